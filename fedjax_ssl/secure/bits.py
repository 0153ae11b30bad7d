"""Codes as bits, distances as numbers modulo a power of two, and who plays which part for a pair of clients."""

import numpy as np

from fedjax_ssl.secure.errors import InconsistentView


def bits_of(codes: np.ndarray, num_bits: int) -> np.ndarray:
    """Codes uint32 [n, words] -> uint8 [n, num_bits] of 0 and 1."""
    data = np.ascontiguousarray(codes, "<u4").view(np.uint8)
    return np.unpackbits(data, axis=1, bitorder="little")[:, :num_bits]


def ring(num_bits: int) -> type:
    """The smallest of uint8, uint16 and uint32 in which distances 0..num_bits are different numbers."""
    return next(dtype for dtype in (np.uint8, np.uint16, np.uint32) if num_bits <= np.iinfo(dtype).max)


def roles(a: int, b: int, counts: dict[int, int]) -> tuple[int, int]:
    """(the one with fewer points, the other one) of a pair: the first receives in oblivious transfers."""
    one, other = sorted((a, b))
    return (other, one) if counts[other] < counts[one] else (one, other)


def own_distances(codes: np.ndarray, num_bits: int) -> np.ndarray:
    """Distances between the points of one client, [n, n] in `ring`: by a product, exact below 2^24 bits."""
    signs = 1 - 2 * bits_of(codes, num_bits).astype(np.float32)
    return ((num_bits - signs @ signs.T) / 2).astype(ring(num_bits))


def check_distances(distances: np.ndarray, num_bits: int, a: int, b: int) -> None:
    """Raises InconsistentView for a number that is no distance: one of the two did not follow the protocol."""
    if distances.size and int(distances.max()) > num_bits:
        raise InconsistentView(f"clients {a} and {b} gave a distance above {num_bits} bits")
