"""Messages with part of a model's numbers: the receiver's state afterwards, and the bytes sent."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from fedjax_ssl.federated.contract import Count
from fedjax_ssl.federated.traffic import BYTES_PER_NUMBER, count


def merge(sent: PyTree, new: PyTree, old: PyTree) -> PyTree:
    """Return the receiver's entries: `new` where `sent` is True, otherwise `old`."""
    return jax.tree.map(jnp.where, sent, new, old)


def num_sent(sent: PyTree) -> Int[Array, ""]:
    """Count the true entries of a tree of bool arrays, as int32, because float32 counts to 2^24
    only.
    """
    return sum(
        (jnp.sum(mask, dtype=jnp.int32) for mask in jax.tree.leaves(sent)),
        start=jnp.zeros((), jnp.int32),
    )


def message_bytes(
    entries: Int[Array, "*messages"],
    size: int,
    there: Bool[Array, "*messages"] | None = None,
) -> Count:
    """Count the bytes of messages that each carry `entries` of a model's `size` numbers.

    Every message has the shortest of three forms: all numbers, 4 bytes each; the sent numbers, and
    one bit per number of the model; the sent numbers, each with its place.

    Args:
        entries: numbers that are sent.
        size: numbers of the whole model.
        there: mask of messages that are sent; others have 0 bytes.
    """
    some = jnp.ones_like(entries, bool) if there is None else there
    bitmap = -(-size // 8)
    # 8 e < 4 e + bitmap, and 4 e + bitmap >= 4 size, each as one comparison that cannot overflow.
    few = some & (entries < -(-bitmap // BYTES_PER_NUMBER))
    nearly_all = some & ~few & (entries >= size - bitmap // BYTES_PER_NUMBER)
    by_bitmap = some & ~few & ~nearly_all
    return (
        count(jnp.where(few, entries, 0), 2 * BYTES_PER_NUMBER)
        + count(nearly_all, BYTES_PER_NUMBER * size)
        + count(jnp.where(by_bitmap, entries, 0), BYTES_PER_NUMBER)
        + count(by_bitmap, bitmap)
    )
