"""Estimated correspondence matrices: the worked numbers of FedMT section 13."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.objectives import (
    batch_cross_entropy,
    correspondence_counts,
    mixup_cross_entropy,
    normalize_counts,
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


def estimate_correspondence(
    probs: jax.Array,
    observed: jax.Array,
    num_observed: int,
    threshold: float,
    mask: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The correspondence of one client as FedMT(E) makes it, and its confident rows of every
    class.
    """
    counts, label_counts = correspondence_counts(probs, observed, num_observed, threshold, mask)
    return normalize_counts(counts, label_counts), counts.sum(axis=0)


def estimate() -> np.ndarray:
    found = estimate_correspondence(jnp.asarray(PROBS), jnp.asarray(OBSERVED), 3, 0.95)
    return np.asarray(found[0])


def test_ten_samples_with_a_class_that_is_never_confident(float64) -> None:
    """Check 7; the matrix is in tests/methods/test_fedmt.py."""
    counts, label_counts = correspondence_counts(jnp.asarray(PROBS), jnp.asarray(OBSERVED), 3, 0.95)
    np.testing.assert_array_equal(counts, [[2, 1, 0, 0], [0, 2, 0, 0], [0, 0, 1, 0]])
    np.testing.assert_array_equal(label_counts, [4, 4, 2])


def test_projection_losses_with_the_estimate(float64) -> None:
    """Check 7: losses of the six confident samples."""
    with np.errstate(divide="ignore"):
        logits = jnp.asarray(np.maximum(np.log(PROBS), -1e300))
    observed = jnp.asarray(OBSERVED)
    found = channel_cross_entropy(logits, observed, correspondence_channel(estimate()))[CONFIDENT]
    expected = [0.01477529, 0.02292750, 1.06711362, 0.41369891, 0.42261127, 0.02839947]
    np.testing.assert_allclose(found, expected, atol=1e-8)
    assert float(jnp.mean(found)) == pytest.approx(0.3282543443, abs=1e-10)


def test_the_estimate_is_a_constant_and_empty_clients_are_uniform() -> None:
    probs = jnp.asarray(PROBS, jnp.float32)
    observed = jnp.asarray(OBSERVED)
    slope = jax.grad(lambda p: jnp.sum(estimate_correspondence(p, observed, 3, 0.9)[0] ** 2))(probs)
    np.testing.assert_array_equal(slope, 0.0)
    nothing, support = estimate_correspondence(probs, jnp.full(10, -1, jnp.int32), 3, 0.5)
    np.testing.assert_allclose(nothing, 1 / 3, rtol=1e-6)
    np.testing.assert_array_equal(support, 0.0)
    half = estimate_correspondence(probs.astype(jnp.bfloat16), observed, 3, 0.5)[0]
    assert half.dtype == jnp.float32


def test_total_client_loss(float64) -> None:
    """Check 10: projection, confident and mixed samples."""
    both = jnp.ones(2, bool)
    channel = correspondence_channel(np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    weak = jnp.asarray([[1.0, 0.5, -0.2], [-0.3, 0.1, 0.9]])
    projection = float(
        jnp.mean(channel_cross_entropy(weak, jnp.asarray([0, 1], jnp.int32), channel))
    )
    fixed = jnp.asarray([0, 2], jnp.int32)
    strong = float(
        batch_cross_entropy(jnp.asarray([[0.8, 0.2, 0.0], [0.0, 0.4, 0.5]]), fixed, both)
    )
    mixed_logits = jnp.asarray([[0.6, 0.3, 0.1], [0.2, 0.2, 0.7]])
    partners = jnp.asarray([1, 0], jnp.int32)
    mixed = float(mixup_cross_entropy(mixed_logits, fixed, partners, 0.3, both))
    np.testing.assert_allclose(
        [projection, strong, mixed], [0.3658745411, 0.8065223519, 1.1038316624], atol=1e-10
    )
    assert projection + strong + mixed == pytest.approx(2.2762285554, abs=1e-9)
    assert projection + 0.5 * strong + 0.25 * mixed == pytest.approx(1.0450936326, abs=1e-9)
