"""Exact counts of bytes sent: messages are counted on the device, and multiplied and added up on
the host.

Integers on the device have 32 bits, and a round of a large federation moves more than 2^32 bytes.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fedjax_ssl.federated.contract import Count

BYTES_PER_NUMBER = 4


def count(number: int | Int[Array, "*shape"], unit: int = 1) -> Count:
    """Count `number` things of `unit` bytes each; an array counts with the sum of its entries.

        >>> int(count(3, 2**40) + count(jnp.array([1, 2]), 5)) == 3 * 2**40 + 15
        True

    Args:
        number: not negative, below 2^31; may be traced.
        unit: not negative; the bytes are below 2^64.
    """
    times = jnp.asarray(number, jnp.int32).reshape(-1)
    halves = np.array(divmod(unit, 2**32), np.uint32)
    return Count(times, jnp.broadcast_to(halves, (*times.shape, 2)))


def entries(tree: Any) -> int:
    """Count the numbers of a tree."""
    return sum(values.size for values in jax.tree.leaves(tree))


def to_numbers(metrics: dict) -> dict:
    """Return the metrics of a run on the host: a `Count` becomes an array of whole numbers."""

    def is_count(leaf):
        return isinstance(leaf, Count)

    return jax.tree.map(
        lambda x: x.to_numpy() if is_count(x) else np.asarray(x), metrics, is_leaf=is_count
    )
