"""Evaluation-mode forward passes over many examples, clients folded into the batch, in bounded memory."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

PyTree = Any


def map_rows(
    function: Callable[[Array], PyTree], inputs: Array, rows: Int[Array, "*shape"], batch_size: int = 512
) -> PyTree:
    """Applies `function` to `inputs[rows]` in batches inside one compiled loop.

    Args:
        function: raw inputs [b, ...] -> tree of arrays with leading axis b; rows must not influence each other.
        inputs: raw inputs of all examples [N, ...].
        rows: which examples, any shape, for example [p, n] for a cohort.
        batch_size: examples per step.

    Returns:
        The tree that `function` gives, with `rows.shape` in place of b.
    """
    flat = rows.reshape(-1)
    size = min(batch_size, flat.shape[0])
    padded = jnp.concatenate([flat, jnp.zeros(-flat.shape[0] % size, flat.dtype)])
    results = jax.lax.map(lambda batch: function(inputs[batch]), padded.reshape(-1, size))
    return jax.tree.map(
        lambda x: x.reshape(-1, *x.shape[2:])[: flat.shape[0]].reshape(*rows.shape, *x.shape[2:]), results
    )
