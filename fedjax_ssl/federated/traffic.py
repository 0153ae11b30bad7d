"""Bytes that are sent: counted by message on the device, multiplied and added up on the host, so
that they are exact.

Integers of a program have 32 bits, and a round of a large federation moves more than 2^32 bytes.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Shaped, UInt32

BYTES_PER_NUMBER = 4


class Count(NamedTuple):
    """Number of messages and the bytes of each. `+` puts two counts together."""

    times: Int[Array, "*shape m"]
    sizes: UInt32[Array, "*shape m 2"]  # higher and lower half of the bytes

    def __add__(self, other: "Count") -> "Count":  # type: ignore[override]
        """Both together, as of numbers and not of tuples."""
        return Count(
            jnp.concatenate([self.times, other.times], axis=-1),
            jnp.concatenate([self.sizes, other.sizes], axis=-2),
        )

    def of_all_rounds(self) -> "Count":
        """Put the counts of several rounds together, which lie along the leading axes."""
        return Count(self.times.reshape(-1), self.sizes.reshape(-1, 2))

    def padded(self, length: int) -> "Count":
        """Return the same count in `length` parts."""
        return self + count(jnp.zeros(length - self.times.shape[-1], jnp.int32))

    def __int__(self) -> int:
        return int(self.to_numpy())

    def to_numpy(self) -> Shaped[np.ndarray, "*shape"]:
        """Return the bytes on the host, as uint64."""
        halves = np.asarray(self.sizes, np.uint64)
        sizes = (halves[..., 0] << np.uint64(32)) + halves[..., 1]
        return np.sum(np.asarray(self.times).astype(np.uint64) * sizes, axis=-1)


def count(number: int | Int[Array, "*shape"], unit: int = 1) -> Count:
    """Count `number` things of `unit` bytes each; of an array, of all its entries together.

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
