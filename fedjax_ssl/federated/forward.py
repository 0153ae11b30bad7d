"""Forward passes over a local step's views, and over many examples in evaluation mode and bounded
memory.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from fedjax_ssl.federated.contract import Client, Stream, Streams, TakeStep, Term, View
from fedjax_ssl.keys import named_key
from fedjax_ssl.models import Model, Outputs

PyTree = Any
# scope in which batches are fetched
GATHER = "gather_batch"
AUGMENT = "augment_views"  # scope in which views are traced: profiles show this name


def labelling_key(round_key: Key[Array, ""]) -> Key[Array, ""]:
    """Return the key of the views in which examples are labelled before a round; it is folded with
    the client and the example's place.
    """
    return named_key(round_key, "pseudo-labels")


def map_rows(
    function: Callable[..., PyTree],
    inputs: Array,
    rows: Int[Array, "*shape"],
    batch_size: int = 512,
    along: tuple[Array, ...] = (),
) -> PyTree:
    """Apply `function` to `inputs[rows]` in batches inside one compiled loop.

    Args:
        function: (raw inputs [b, ...], slices [b] of `along`) -> tree of arrays with leading axis
            b; rows must not influence each other.
        inputs: raw inputs of all examples [N, ...].
        rows: rows of `inputs`, in any shape, for example [p, n] for a cohort.
        batch_size: examples per step.
        along: more arrays of the shape of `rows` that the function needs.

    Returns:
        The tree that `function` gives, with `rows.shape` in place of b.
    """
    flat = rows.reshape(-1)
    size = max(min(batch_size, flat.shape[0]), 1)

    def batches(values: Array) -> Array:
        padding = jnp.zeros(-flat.shape[0] % size, values.dtype)
        return jnp.concatenate([values.reshape(-1), padding]).reshape(-1, size)

    results = jax.lax.map(
        lambda batch: function(inputs[batch[0]], *batch[1:]),
        tuple(batches(values) for values in (rows, *along)),
    )

    def unbatched(x: Array) -> Array:
        # No -1 here: a network without class scores has results of width 0, and then reshape cannot
        # infer a size.
        joined = x.reshape(x.shape[0] * size, *x.shape[2:])
        return joined[: flat.shape[0]].reshape(*rows.shape, *x.shape[2:])

    return jax.tree.map(unbatched, results)


def forward_views(
    model: Model,
    params: PyTree,
    model_state: PyTree,
    views: tuple[View, ...],
    streams: Streams,
    key: Key[Array, ""],
    separate: bool = False,
) -> tuple[dict[str, Array], dict[str, Outputs], PyTree]:
    """Return the forward pass of a local step, in training mode.

    Args:
        model: the network.
        params: params of the network.
        model_state: running batch statistics.
        views: views of the pass.
        streams: streams of the batch.
        key: random key for views and dropout.
        separate: one pass per view, in place of one over all views.

    Returns:
        (inputs by view, outputs by view, new model state).
    """
    inputs = build_views(views, streams, key)
    slices: dict[str, Outputs] = {}
    dropout = named_key(key, "dropout")
    passes = [(dropout, views)] if views else []
    if separate:
        passes = [(named_key(dropout, view.name), (view,)) for view in views]
    for own_key, some in passes:
        outputs, model_state = model.apply(
            params,
            model_state,
            jnp.concatenate([inputs[view.name] for view in some]),
            train=True,
            key=own_key,
            mask=jnp.concatenate([view.real(streams) for view in some]),
        )
        offset = 0
        for view in some:
            rows = inputs[view.name].shape[0]
            slices[view.name] = jax.tree.map(lambda x, at=offset, n=rows: x[at : at + n], outputs)
            offset += rows
    return inputs, slices, model_state


@jax.named_scope(AUGMENT)
def build_views(views: tuple[View, ...], streams: Streams, key: Key[Array, ""]) -> dict[str, Array]:
    """Build the inputs of views, by name."""
    return {view.name: view.build(named_key(key, view.name), streams) for view in views}


def separate_passes(step: TakeStep) -> TakeStep:
    """Take a local step with one forward pass per view, each with its own batch statistics: a
    `Stage.wrap_step`.
    """
    return lambda at: step(at._replace(forward=partial(at.forward, separate=True)))


@jax.named_scope(GATHER)
def gather_streams(
    positions: dict[str, Int[Array, " b"]],
    masks: dict[str, Bool[Array, " b"]],
    client: Client,
    inputs: Array,
    key: Key[Array, ""],
) -> Streams:
    """Fetch the rows of a local batch, by stream.

    Args:
        positions: places in `client.rows`.
        masks: False on padding.
        client: owner of the examples.
        inputs: raw inputs of all examples.
        key: random key of this client in this round.
    """
    streams = {}
    for name, position in positions.items():
        mask = masks[name]
        observed = jnp.where(mask, client.observed[position], -1)
        rows = inputs[client.rows[position]]
        # Padding points to row 0, which may hold another client's NaN: even a loss of zero would
        # then have a NaN gradient.
        real = mask.reshape(-1, *[1] * (rows.ndim - 1))
        weak = None if client.weak is None else jnp.where(mask, client.weak.labels[position], -1)
        streams[name] = Stream(
            position, mask, observed, jnp.where(real, rows, jnp.zeros_like(rows)), weak, key
        )
    return streams


def views_of(terms: tuple[Term, ...]) -> tuple[View, ...]:
    """Return the views of all terms, each once."""
    by_name = {view.name: view for term in terms for view in term.views}
    return tuple(by_name.values())
