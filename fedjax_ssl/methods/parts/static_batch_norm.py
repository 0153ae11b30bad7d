"""Static batch normalization: statistics from a pass over the data in place of running averages
(SemiFL, section 5).

The network trains with the statistics of its batches. The statistics for prediction are not sent by
clients, but computed for the new global parameters: every batch of the un-augmented training
examples gives a mean and an unbiased variance, and each batch counts equally. Source: Diao et al.,
HeteroFL, ICLR 2021; SemiFL, NeurIPS 2022.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import Recipe
from fedjax_ssl.federated.contract import ServerState, merged
from fedjax_ssl.models import Model

PyTree = Any


class Part(NamedTuple):
    """Examples of a pass, in their order."""

    rows: Int[Array, " r"]
    num_rows: Int[Array, ""]  # number of real rows, which come first
    batch_size: int


def batch_statistics(
    model: Model,
    normalize: Callable[[Array], Array],
    params: PyTree,
    model_state: PyTree,
    inputs: Array,
    *parts: Part,
) -> PyTree:
    """Return the statistics of the network's batch norm layers, averaged over batches.

    Args:
        model: network whose state has only running means and variances of batch norm layers.
        normalize: raw inputs -> the network's.
        params: params of the network.
        model_state: structure of the result, and the result itself if no batch has two examples.
        inputs: raw inputs of all examples [N, ...].
        *parts: examples; those with a value that is not finite are left out. The last batch of a
            part may be short and counts equally, but a single example is left out.

    Returns:
        A tree like `model_state`.
    """
    if not jax.tree.leaves(model_state):
        return model_state
    nothing = jax.tree.map(jnp.zeros_like, model_state)
    weights = model.batch_weights()

    def add_part(total: tuple[PyTree, Array], part: Part) -> tuple[PyTree, Array]:
        size = max(min(part.batch_size, part.rows.shape[0]), 1)
        padded = jnp.concatenate(
            [part.rows, jnp.zeros(-part.rows.shape[0] % size, part.rows.dtype)]
        )

        def add_batch(number: Int[Array, ""], total: tuple[PyTree, Array]) -> tuple[PyTree, Array]:
            place = number * size + jnp.arange(size, dtype=jnp.int32)
            values = normalize(inputs[padded[place]])
            # One client's broken values must not reach the statistics of all.
            mask = (place < part.num_rows) & jnp.all(
                jnp.isfinite(values), axis=tuple(range(1, values.ndim))
            )
            _, state = model.apply(
                params, nothing, values, train=True, key=jax.random.key(0), mask=mask
            )
            # From zero, a running average holds the batch's statistics times that layer's weight of
            # a batch.
            counts = jnp.sum(mask) > 1
            batch = jax.tree.map(
                lambda x, weight: jnp.where(counts, x / weight, 0.0), state, weights
            )
            return jax.tree.map(jnp.add, total[0], batch), total[1] + counts.astype(jnp.int32)

        return jax.lax.fori_loop(0, -(-part.num_rows // size), add_batch, total)

    summed, batches = reduce(add_part, parts, (nothing, jnp.zeros((), jnp.int32)))
    return jax.tree.map(
        lambda x, old: jnp.where(batches > 0, x / jnp.maximum(batches, 1).astype(x.dtype), old),
        summed,
        model_state,
    )


def with_static_batch_norm(
    recipe: Recipe,
    network: Callable[[ServerState], PyTree] = lambda state: merged(state.params),
    batch_size: int = 250,
    server_batch_size: int | None = None,
) -> Recipe:
    """Return the method with statistics computed anew at the start and after every round.

    The pass goes over the server's labelled examples, then over all clients' examples, client by
    client. A network without batch norm is not changed, at no cost.

    Args:
        recipe: recipe of a method with the network's statistics in `ServerState.model_state`.
        network: state -> the network's parameters.
        batch_size: examples per batch.
        server_batch_size: batch size of the server's examples, which then have separate batches in
            the order of their classes, as in (FL)^2; None: they come before the clients' in one
            sequence.
    """
    setup = recipe.setup

    def parts(data: FederatedData) -> tuple[Part, ...]:
        server = (data.server_index[None], data.num_server[None])
        clients = (data.index, data.num_examples)
        if server_batch_size is None:
            return (_joined(batch_size, server, clients),)
        own = _joined(server_batch_size, server)
        labels = jnp.where(
            jnp.arange(own.rows.shape[0]) < own.num_rows, data.observed[own.rows], data.num_classes
        )
        by_class = own.rows[jnp.argsort(labels, stable=True)]
        return own._replace(rows=by_class), _joined(batch_size, clients)

    def refreshed(state: ServerState, data: FederatedData) -> ServerState:
        if not jax.tree.leaves(state.model_state):
            return state
        statistics = batch_statistics(
            setup.model,
            setup.normalize,
            network(state),
            state.model_state,
            data.inputs,
            *parts(data),
        )
        return state._replace(model_state=statistics)

    def init(state: ServerState, data: FederatedData) -> ServerState:
        return refreshed(recipe.init(state, data), data)

    def after_average(before: ServerState, after: ServerState, data: FederatedData) -> ServerState:
        return refreshed(recipe.after_average(before, after, data), data)

    # Without a batch norm layer, no pass over the examples is needed.
    statistics = jax.tree.leaves(jax.eval_shape(setup.model.init, jax.random.key(0))[1])
    return recipe._replace(
        init=init,
        after_average=after_average,
        sends=(*recipe.sends, *["batch statistics of a pass"] * bool(statistics)),
        looks_at_all=bool(statistics) or recipe.looks_at_all,
    )


def _joined(batch_size: int, *tables: tuple[Int[Array, "p n"], Int[Array, " p"]]) -> Part:
    """Join the examples of padded tables, with padding at the end."""
    rows = jnp.concatenate([index.reshape(-1) for index, _ in tables])
    real = jnp.concatenate(
        [(jnp.arange(i.shape[1]) < count[:, None]).reshape(-1) for i, count in tables]
    )
    return Part(rows[jnp.argsort(~real, stable=True)], jnp.sum(real), batch_size)
