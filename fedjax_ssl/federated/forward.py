"""Evaluation-mode forward passes over many examples, clients folded into the batch, in bounded memory."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

PyTree = Any


def map_rows(
    function: Callable[..., PyTree],
    inputs: Array,
    rows: Int[Array, "*shape"],
    batch_size: int = 512,
    along: tuple[Array, ...] = (),
) -> PyTree:
    """Applies `function` to `inputs[rows]` in batches inside one compiled loop.

    Args:
        function: (raw inputs [b, ...], slices [b] of `along`) -> tree of arrays with leading axis b; rows must not
            influence each other.
        inputs: raw inputs of all examples [N, ...].
        rows: which examples, any shape, for example [p, n] for a cohort.
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
        lambda batch: function(inputs[batch[0]], *batch[1:]), tuple(batches(values) for values in (rows, *along))
    )

    def unbatched(x: Array) -> Array:
        # No -1 here: a network without class scores has results of width 0, from which no size can be inferred.
        joined = x.reshape(x.shape[0] * size, *x.shape[2:])
        return joined[: flat.shape[0]].reshape(*rows.shape, *x.shape[2:])

    return jax.tree.map(unbatched, results)
