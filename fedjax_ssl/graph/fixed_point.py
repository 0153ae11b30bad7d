"""Numbers in fixed point, as sums modulo 2^32 and 2^64 need them: the rounding of every level of the protocols."""

import math

import numpy as np


def spare_bits(largest_sum: float, num_terms: int, modulus_bits: int = 32) -> int:
    """Bits f behind the point, the most with which no sum reaches 2^modulus_bits.

    The sum of numbers that add up to at most `largest_sum`, each rounded, is at most 2^f largest_sum + num_terms / 2.
    After `from_fixed_point` it is off by at most num_terms 2^-(f + 1).
    """
    return math.floor(math.log2((2**modulus_bits - num_terms) / largest_sum))


def to_fixed_point(values: np.ndarray, fraction_bits: int, largest: float, dtype: type = np.uint32) -> np.ndarray:
    """Rounds numbers of 0..largest to multiples of 2^-fraction_bits.

    Args:
        values: float64, what one party adds to the sum.
        fraction_bits: f, from `spare_bits`.
        largest: that the sum, and so each of its terms, can reach.
        dtype: np.uint32 or np.uint64.

    Returns:
        `dtype`, as many; nothing saturates and nothing wraps around.

    Raises:
        ValueError: NaN, infinity, a negative or a subnormal number, one above `largest`, or a bound that does not fit.
    """
    bits = 8 * np.dtype(dtype).itemsize
    if not largest * 2.0**fraction_bits < 2.0**bits:
        raise ValueError(
            f"numbers up to {largest:.3g} with {fraction_bits} bits behind the point do not fit {bits} bits"
        )
    allowed = (values == 0) | ((values >= np.finfo(float).tiny) & (values <= largest))
    if not allowed.all():
        raise ValueError(
            f"{int((~allowed).sum())} numbers cannot be put into fixed point: they are NaN, infinite, negative, "
            f"subnormal, or above the bound {largest:.6g}"
        )
    return np.rint(np.ldexp(values, fraction_bits)).astype(dtype)


def from_fixed_point(values: np.ndarray, fraction_bits: int) -> np.ndarray:
    """The numbers, float64."""
    return np.ldexp(values.astype(float), -fraction_bits)
