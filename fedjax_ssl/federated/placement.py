"""Where a cohort's clients run: one after another, all at once, or in chunks. The result does not depend on it.

On CPU, clients in turn are fastest: vectorizing over clients turns matrix products into batched ones and
convolutions into grouped ones. On accelerators, vectorized clients fill the device.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

PyTree = Any
PLACEMENTS = ("auto", "vmap", "sequential", "chunked")


def map_clients(
    update: Callable[[PyTree], tuple[PyTree, PyTree]],
    clients: PyTree,
    valid: Bool[Array, " p"],
    placement: str = "auto",
    chunk_size: int = 8,
) -> tuple[PyTree, PyTree]:
    """Runs `update` for every client; adds its first result over clients in client order and stacks its second.

    Empty slots of the cohort are run as well (they take no local step) and add nothing.

    Args:
        update: one client -> (to be summed, to be stacked).
        clients: tree with leading axis p.
        valid: False on slots without a client.
        placement: "sequential", "vmap", "chunked", or "auto" (sequential on CPU, chunked elsewhere).
        chunk_size: clients at once when chunked.

    Returns:
        (sums over the cohort, results stacked over the cohort).

    Raises:
        ValueError: for an unknown placement or a chunk size below 1.
    """
    if placement not in PLACEMENTS:
        raise ValueError(f"placement is {placement!r}; allowed: {', '.join(PLACEMENTS)}")
    if chunk_size < 1:
        raise ValueError(f"chunk_size is {chunk_size}; it must be at least 1")
    size = valid.shape[0]
    if placement == "auto":
        placement = "sequential" if jax.default_backend() == "cpu" else "chunked"
    width = {"sequential": 1, "vmap": size, "chunked": min(chunk_size, size)}[placement]
    padding = -size % width
    slots = jax.tree.map(lambda x: jnp.concatenate([x, x[:1].repeat(padding, 0)]) if padding else x, clients)
    counts = jnp.concatenate([valid, jnp.zeros(padding, bool)])
    chunks, chunk_counts = jax.tree.map(lambda x: x.reshape(-1, width, *x.shape[1:]), (slots, counts))

    def add(total: PyTree, one: tuple[PyTree, Bool[Array, ""]]) -> tuple[PyTree, None]:
        summed, count = one
        return jax.tree.map(lambda t, s: t + jnp.where(count, s, jnp.zeros_like(s)), total, summed), None

    def run_chunk(total: PyTree, chunk: tuple[PyTree, Array]) -> tuple[PyTree, PyTree]:
        members, count = chunk
        if width == 1:
            summed, kept = update(jax.tree.map(lambda x: x[0], members))
            total, _ = add(total, (summed, count[0]))
            return total, jax.tree.map(lambda x: x[None], kept)
        summed, kept = jax.vmap(update)(members)
        total, _ = jax.lax.scan(add, total, (summed, count))
        return total, kept

    shapes, _ = jax.eval_shape(update, jax.tree.map(lambda x: x[0], clients))
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    total, stacked = jax.lax.scan(run_chunk, zeros, (chunks, chunk_counts))
    return total, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:size], stacked)
