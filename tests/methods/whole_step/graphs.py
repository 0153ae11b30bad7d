"""Label propagation over one graph in NumPy, for methods whose pseudo-labels come from it."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import graph
from tests import toy
from tests.graph import reference
from tests.methods.whole_step import harness

CLASSES = toy.NUM_CLASSES
BITS = 96
DIRECTIONS = np.random.default_rng(3).normal(size=(harness.WIDTH, BITS))


def use_directions(patch: pytest.MonkeyPatch) -> None:
    """Let the package hash by `DIRECTIONS`."""

    def codes(key: jax.Array, features: jax.Array, num_bits: int) -> jax.Array:
        bits = (features @ DIRECTIONS >= 0).reshape(-1, BITS // 32, 32)
        values = 2 ** np.arange(32, dtype=np.uint32)
        return jnp.sum(jnp.where(bits, values, np.uint32(0)), axis=2, dtype=jnp.uint32)

    patch.setattr(sys.modules[graph.label.__module__], "lsh_codes", codes)


def of_codes(features: np.ndarray) -> np.ndarray:
    """cos(pi H / L) of the codes' distances H."""
    bits = features @ DIRECTIONS >= 0
    return reference.cosines(np.sum(bits[:, None] != bits[None], axis=2), BITS)


def of_features(features: np.ndarray) -> np.ndarray:
    """Cosines, without the negative ones."""
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    return np.maximum(unit @ unit.T, 0)


def propagated(
    similarity: np.ndarray, known: np.ndarray, k: int, alpha: float, power: float, code: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Algorithm 1 from similarities on: scores, and confidences.

    With `code`, labels are divided by their class's number of labels and confidences by the largest
    of all.
    """
    nearest = reference.nearest(-similarity, k)
    edges = reference.normalize(reference.weights(similarity, nearest, power))
    labels = reference.one_hot(known, CLASSES)
    if code:
        labels = labels / np.maximum(labels.sum(axis=0), 1)
    scores = reference.influence(edges, alpha) @ labels
    sure = confidence(scores)
    return scores, sure / sure.max() if code else sure


def confidence(scores: np.ndarray) -> np.ndarray:
    """1 - H(q) / log C; 0 for a row without any score."""
    reached = scores.sum(axis=1) > 1e-12
    return np.where(reached, reference.omega(np.where(reached[:, None], scores, 1)), 0)


def likeliest(scores: np.ndarray) -> np.ndarray:
    """The class with the largest score; -1 for a row without any."""
    return np.where(scores.sum(axis=1) > 1e-12, scores.argmax(axis=1), -1)


def balance(labels: np.ndarray) -> np.ndarray:
    """kappa: N / C by the number of each class's labels; 1 for a class without any."""
    counts = reference.one_hot(labels, CLASSES).sum(axis=0)
    return np.where(counts > 0, counts.sum() / CLASSES / np.maximum(counts, 1), 1)


def apart(clients: list[harness.Examples], *tables: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    """Tables over all examples, cut by client."""
    ends = np.cumsum([len(client.observed) for client in clients])[:-1]
    return list(zip(*(np.split(table, ends) for table in tables), strict=True))
