"""The spec in plain dense NumPy float64, written independently of the package, and its worked
example.
"""

import numpy as np

EXAMPLE_BITS = 12
_EXAMPLE = "011001000011 011000000111 010011110001 010110010001 010000100100 010110011001"
EXAMPLE_CODES = np.array([list(code) for code in _EXAMPLE.split()], int)
EXAMPLE_LABELS = np.array([0, -1, -1, 1, -1, 1], np.int32)


def pack(bits: np.ndarray) -> np.ndarray:
    """Bits [points, bits] to little-endian words."""
    padded = np.pad(bits, ((0, 0), (0, -bits.shape[1] % 32)))
    return np.packbits(padded, axis=1, bitorder="little").view("<u4")


def random_codes(seed: int, num_points: int, num_bits: int) -> np.ndarray:
    return pack(np.random.default_rng(seed).integers(0, 2, (num_points, num_bits)))


def hamming(codes: np.ndarray) -> np.ndarray:
    return np.bitwise_count(codes[:, None, :] ^ codes[None, :, :]).sum(axis=-1).astype(np.int64)


def cosines(distance: np.ndarray, num_bits: int) -> np.ndarray:
    return np.where(2 * distance >= num_bits, 0.0, np.cos(np.pi * distance / num_bits))


def nearest(distance: np.ndarray, count: int, valid: np.ndarray | None = None) -> list[np.ndarray]:
    """Neighbours of each row by (distance, index), fewer where there are not enough."""
    num_points = len(distance)
    valid = np.ones(num_points, bool) if valid is None else valid
    found = []
    for row in range(num_points):
        others = np.array(
            [j for j in range(num_points) if j != row and valid[j] and valid[row]], int
        )
        order = np.lexsort((others, distance[row, others]))
        found.append(others[order][:count])
    return found


def weights(similarity: np.ndarray, neighbors: list[np.ndarray], power: float = 1.0) -> np.ndarray:
    kept = np.zeros_like(similarity)
    for row, columns in enumerate(neighbors):
        kept[row, columns] = similarity[row, columns] ** power
    return kept + kept.T


def normalize(weight: np.ndarray) -> np.ndarray:
    degree = weight.sum(axis=1)
    degree = np.where(degree > 0, degree, 1)
    return weight / np.sqrt(degree[:, None] * degree[None, :])


def influence(normalized: np.ndarray, alpha: float) -> np.ndarray:
    return np.linalg.inv(np.eye(len(normalized)) - alpha * normalized)


def one_hot(labels: np.ndarray, num_classes: int) -> np.ndarray:
    return (labels[:, None] == np.arange(num_classes)).astype(float)


def omega(scores: np.ndarray) -> np.ndarray:
    shares = scores / scores.sum(axis=1, keepdims=True)
    logs = np.log(np.where(shares > 0, shares, 1))
    return 1 + (shares * logs).sum(axis=1) / np.log(scores.shape[1])
