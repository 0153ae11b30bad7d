"""Estimated correspondence matrices: the worked numbers of FedMT section 13."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.objectives import (
    correspondence_counts,
    estimate_correspondence,
)
from tests.objectives.compiled import (
    channel_cross_entropy,
    correspondence_channel,
)

PROBS = np.array(
    [
        [0.98, 0.01, 0.005, 0.005],
        [0.97, 0.01, 0.01, 0.01],
        [0.02, 0.96, 0.01, 0.01],
        [0.004, 0.99, 0.003, 0.003],
        [0.01, 0.98, 0.005, 0.005],
        [0.3, 0.4, 0.2, 0.1],
        [0.05, 0.95, 0.0, 0.0],
        [0.01, 0.01, 0.97, 0.01],
        [0.1, 0.1, 0.7, 0.1],
        [0.1, 0.1, 0.1, 0.7],
    ]
)
OBSERVED = np.array([0, 0, 0, 1, 1, 1, 0, 2, 2, 1], np.int32)
CONFIDENT = np.array([0, 1, 2, 3, 4, 7])


def estimate(threshold: float = 0.95, **options: object) -> tuple[np.ndarray, np.ndarray]:
    found = jax.jit(lambda probs, observed: estimate_correspondence(probs, observed, 3, threshold, **options))(
        jnp.asarray(PROBS), jnp.asarray(OBSERVED)
    )
    return np.asarray(found[0]), np.asarray(found[1])


def test_ten_samples_with_a_class_that_is_never_confident(float64) -> None:
    """Check 7."""
    counts, label_counts = correspondence_counts(jnp.asarray(PROBS), jnp.asarray(OBSERVED), 3, 0.95)
    np.testing.assert_array_equal(counts, [[2, 1, 0, 0], [0, 2, 0, 0], [0, 0, 1, 0]])
    np.testing.assert_array_equal(label_counts, [4, 4, 2])
    seen = np.array([[1, 0, 0], [1 / 3, 2 / 3, 0], [0, 0, 1]])
    for fallback, column in [("prior", [0.4, 0.4, 0.2]), ("uniform", [1 / 3] * 3), ("zero", [0, 0, 0])]:
        matrix, support = estimate(fallback=fallback)
        np.testing.assert_allclose(matrix.T, [*seen, column], rtol=1e-14)
        np.testing.assert_array_equal(support, [2, 3, 1, 0])


def test_loss_of_sure_predictions_is_the_conditional_entropy(float64) -> None:
    """Check 8."""
    sure = jnp.asarray(np.where(np.eye(4)[PROBS.argmax(1)] > 0, 0.0, -1e4))
    found = channel_cross_entropy(sure, jnp.asarray(OBSERVED), correspondence_channel(estimate()[0]))[CONFIDENT]
    assert float(jnp.mean(found)) == pytest.approx(0.3182570841, abs=1e-10)


def test_the_estimate_is_a_constant_and_empty_clients_are_uniform() -> None:
    probs, observed = jnp.asarray(PROBS, jnp.float32), jnp.asarray(OBSERVED)
    slope = jax.grad(lambda p: jnp.sum(estimate_correspondence(p, observed, 3, 0.9, smoothing=0.5)[0] ** 2))(probs)
    np.testing.assert_array_equal(slope, 0.0)
    nothing, support = estimate_correspondence(probs, jnp.full(10, -1, jnp.int32), 3, 0.5)
    np.testing.assert_allclose(nothing, 1 / 3, rtol=1e-6)
    np.testing.assert_array_equal(support, 0.0)
    half = estimate_correspondence(probs.astype(jnp.bfloat16), observed, 3, 0.5)[0]
    assert half.dtype == jnp.float32
    with pytest.raises(ValueError, match=r"fallback is 'ones'.* Allowed: prior, uniform, zero"):
        estimate_correspondence(probs, observed, 3, 0.5, fallback="ones")
