import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import log_loss

from fedjax_ssl.objectives import batch_cross_entropy, cross_entropy

RNG = np.random.default_rng(0)
LOGITS = 3 * RNG.normal(size=(9, 4))
TARGETS = np.array([0, 3, 1, -1, 2, 2, -1, 0, 1], np.int32)
MASK = np.array([True, True, True, True, True, False, False, True, True])
WEIGHTS = RNG.uniform(0, 2, size=9)


def losses_by_hand(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    norms = np.log(np.exp(logits).sum(1))
    return np.where(
        targets >= 0, norms - logits[np.arange(len(logits)), np.maximum(targets, 0)], 0.0
    )


def test_rows_are_the_negative_log_likelihood(float64) -> None:
    found = cross_entropy(jnp.asarray(LOGITS), jnp.asarray(TARGETS))
    np.testing.assert_allclose(found, losses_by_hand(LOGITS, TARGETS), rtol=1e-12)
    known = TARGETS >= 0
    probs = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
    assert float(found[known].mean()) == pytest.approx(
        log_loss(TARGETS[known], probs[known], labels=range(4))
    )


def test_extreme_logits_stay_finite() -> None:
    logits = jnp.asarray([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0]], jnp.float32)
    targets = jnp.asarray([0, 0], jnp.int32)
    np.testing.assert_allclose(cross_entropy(logits, targets), [0.0, 2e4])
    assert np.isfinite(jax.grad(lambda z: cross_entropy(z, targets).sum())(logits)).all()


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_batch_mean_and_its_gradient_are_those_of_the_explicit_sum(float64, weights) -> None:
    """XCLP section 9.3, item 13: over the rows in the mask; a missing target pulls nowhere."""
    given = np.ones(9) if weights is None else weights
    rows = losses_by_hand(LOGITS, TARGETS) * given
    probs = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
    wrong = probs - np.eye(4)[np.maximum(TARGETS, 0)]
    expected = wrong * (given * (TARGETS >= 0) * MASK)[:, None] / MASK.sum()
    arguments = (jnp.asarray(TARGETS), jnp.asarray(MASK), weights)
    value, slope = jax.value_and_grad(lambda z: batch_cross_entropy(z, *arguments))(
        jnp.asarray(LOGITS)
    )
    assert float(value) == pytest.approx(rows[MASK].sum() / MASK.sum(), rel=1e-12)
    np.testing.assert_allclose(slope, expected, rtol=1e-10, atol=1e-14)


def test_padding_changes_nothing_even_if_it_is_nan() -> None:
    logits = np.concatenate([LOGITS, np.full((3, 4), np.nan)]).astype(np.float32)
    targets = jnp.concatenate([jnp.asarray(TARGETS), jnp.zeros(3, jnp.int32)])
    mask = jnp.concatenate([jnp.asarray(MASK), jnp.zeros(3, bool)])
    found = batch_cross_entropy(jnp.asarray(logits), targets, mask)
    expected = batch_cross_entropy(
        jnp.asarray(LOGITS, jnp.float32), jnp.asarray(TARGETS), jnp.asarray(MASK)
    )
    assert float(found) == pytest.approx(float(expected), rel=1e-6)


def test_an_empty_batch_is_zero_with_zero_gradient() -> None:
    nobody = jnp.zeros(9, bool)
    value, slope = jax.value_and_grad(
        lambda z: batch_cross_entropy(z, jnp.asarray(TARGETS), nobody)
    )(jnp.asarray(LOGITS, jnp.float32))
    assert float(value) == 0.0
    np.testing.assert_array_equal(slope, 0.0)


def test_a_single_class_costs_nothing() -> None:
    assert float(cross_entropy(jnp.asarray([[3.0]]), jnp.asarray([0], jnp.int32))[0]) == 0.0
