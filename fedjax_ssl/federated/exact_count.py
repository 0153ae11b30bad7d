"""Counts of bytes that stay exact: whole numbers below 2^64 inside programs whose integers have 32 bits.

Float32 counts exactly to 2^24 only, and a round of a large federation moves more than 2^31 bytes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Shaped, UInt32

_LIMB = 16  # bits of the pieces in which is calculated: products and sums of them fit into 32 bits
_MASK = 2**_LIMB - 1


class Count(NamedTuple):
    """Whole numbers from 0 to 2^64 - 1, as high * 2^32 + low."""

    high: UInt32[Array, "*shape"]
    low: UInt32[Array, "*shape"]

    def __add__(self, other: "Count") -> "Count":  # type: ignore[override]
        """The sum, as of numbers and not of tuples."""
        return _from_limbs([a + b for a, b in zip(_limbs(self), _limbs(other), strict=True)])

    def total(self) -> "Count":
        """The sum along the first axis, of up to 2^16 entries."""
        return _from_limbs([jnp.sum(limb, axis=0, dtype=jnp.uint32) for limb in _limbs(self)])

    def __int__(self) -> int:
        return int(self.to_numpy())

    def to_numpy(self) -> Shaped[np.ndarray, "*shape"]:
        """The numbers on the host, as uint64."""
        high, low = (np.asarray(half, np.uint64) for half in (self.high, self.low))
        return (high << np.uint64(32)) + low


def count(number: int | Int[Array, "*shape"], unit: int = 1) -> Count:
    """number * unit.

    Args:
        number: not negative, below 2^31; may be traced.
        unit: not negative; the product is below 2^64.
    """
    value = jnp.asarray(number).astype(jnp.uint32)
    factors = [value & _MASK, value >> _LIMB]
    limbs = [jnp.zeros_like(value)] * 6
    for i, factor in enumerate(factors):
        for j in range(4):
            product = factor * np.uint32((unit >> (_LIMB * j)) & _MASK)
            limbs[i + j] = limbs[i + j] + (product & _MASK)
            limbs[i + j + 1] = limbs[i + j + 1] + (product >> _LIMB)
    return _from_limbs(limbs[:4])


def to_numbers(metrics: dict) -> dict:
    """The metrics of a run on the host: a `Count` becomes an array of whole numbers."""
    is_count = lambda leaf: isinstance(leaf, Count)  # noqa: E731
    return jax.tree.map(lambda x: x.to_numpy() if is_count(x) else np.asarray(x), metrics, is_leaf=is_count)


def _limbs(number: Count) -> list[Array]:
    return [number.low & _MASK, number.low >> _LIMB, number.high & _MASK, number.high >> _LIMB]


def _from_limbs(limbs: list[Array]) -> Count:
    """Carries what exceeds a limb into the next one."""
    carry, digits = jnp.zeros_like(limbs[0]), []
    for limb in limbs:
        total = limb + carry
        digits.append(total & _MASK)
        carry = total >> _LIMB
    return Count((digits[3] << _LIMB) | digits[2], (digits[1] << _LIMB) | digits[0])
