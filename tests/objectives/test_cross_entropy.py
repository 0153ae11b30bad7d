"""Losses on class labels and on class shares."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import log_loss

from fedjax_ssl.objectives import batch_cross_entropy, cross_entropy, l1_norm, proportion_loss

RNG = np.random.default_rng(0)
LOGITS = 3 * RNG.normal(size=(9, 4))
TARGETS = np.array([0, 3, 1, -1, 2, 2, -1, 0, 1], np.int32)
MASK = np.array([True, True, True, True, True, False, False, True, True])
WEIGHTS = RNG.uniform(0, 2, size=9)


def losses_by_hand(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    norms = np.log(np.exp(logits).sum(1))
    return np.where(targets >= 0, norms - logits[np.arange(len(logits)), np.maximum(targets, 0)], 0.0)


def test_rows_are_the_negative_log_likelihood(float64) -> None:
    found = cross_entropy(jnp.asarray(LOGITS), jnp.asarray(TARGETS))
    np.testing.assert_allclose(found, losses_by_hand(LOGITS, TARGETS), rtol=1e-12)
    known = TARGETS >= 0
    probs = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
    assert float(found[known].mean()) == pytest.approx(log_loss(TARGETS[known], probs[known], labels=range(4)))


def test_extreme_logits_stay_finite() -> None:
    logits = jnp.asarray([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0]], jnp.float32)
    targets = jnp.asarray([0, 0], jnp.int32)
    np.testing.assert_allclose(cross_entropy(logits, targets), [0.0, 2e4])
    assert np.isfinite(jax.grad(lambda z: cross_entropy(z, targets).sum())(logits)).all()


def test_batch_mean_is_over_the_rows_in_the_mask(float64) -> None:
    rows = losses_by_hand(LOGITS, TARGETS)
    plain = batch_cross_entropy(jnp.asarray(LOGITS), jnp.asarray(TARGETS), jnp.asarray(MASK))
    assert float(plain) == pytest.approx(rows[MASK].sum() / MASK.sum(), rel=1e-12)
    weighted = batch_cross_entropy(jnp.asarray(LOGITS), jnp.asarray(TARGETS), jnp.asarray(MASK), jnp.asarray(WEIGHTS))
    assert float(weighted) == pytest.approx((rows * WEIGHTS)[MASK].sum() / MASK.sum(), rel=1e-12)


def test_gradient_is_that_of_the_explicit_sum(float64) -> None:
    """XCLP section 9.3, item 13."""
    probs = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
    wrong = probs - np.eye(4)[np.maximum(TARGETS, 0)]
    expected = wrong * (WEIGHTS * (TARGETS >= 0) * MASK)[:, None] / MASK.sum()
    arguments = jnp.asarray(TARGETS), jnp.asarray(MASK), jnp.asarray(WEIGHTS)
    found = jax.grad(lambda z: batch_cross_entropy(z, *arguments))(jnp.asarray(LOGITS))
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)


def test_padding_changes_nothing_even_if_it_is_nan() -> None:
    logits = np.concatenate([LOGITS, np.full((3, 4), np.nan)]).astype(np.float32)
    targets = jnp.concatenate([jnp.asarray(TARGETS), jnp.zeros(3, jnp.int32)])
    mask = jnp.concatenate([jnp.asarray(MASK), jnp.zeros(3, bool)])
    found = batch_cross_entropy(jnp.asarray(logits), targets, mask)
    expected = batch_cross_entropy(jnp.asarray(LOGITS, jnp.float32), jnp.asarray(TARGETS), jnp.asarray(MASK))
    assert float(found) == pytest.approx(float(expected), rel=1e-6)


def test_an_empty_batch_is_zero_with_zero_gradient() -> None:
    nobody = jnp.zeros(9, bool)
    value, slope = jax.value_and_grad(lambda z: batch_cross_entropy(z, jnp.asarray(TARGETS), nobody))(
        jnp.asarray(LOGITS, jnp.float32)
    )
    assert float(value) == 0.0
    np.testing.assert_array_equal(slope, 0.0)


# Class shares.


PROPORTIONS = np.array([0.5, 0.3, 0.2])
PREDICTIONS = np.array([[0.9, 0.05, 0.05], [0.2, 0.7, 0.1], [0.3, 0.3, 0.4]])


def test_worked_loss_and_its_minimum(float64) -> None:
    """FedUL section 14, check 14."""
    everything = jnp.ones(3, bool)
    found = proportion_loss(jnp.log(jnp.asarray(PREDICTIONS)), jnp.asarray(PROPORTIONS), everything)
    assert float(found) == pytest.approx(1.0353065213, abs=1e-10)
    exact = proportion_loss(jnp.log(jnp.asarray(np.tile(PROPORTIONS, (3, 1)))), jnp.asarray(PROPORTIONS), everything)
    assert float(exact) == pytest.approx(1.0296530141, abs=1e-10)


def test_padding_may_be_anything_and_an_empty_set_costs_nothing() -> None:
    logits = jnp.concatenate([jnp.log(jnp.asarray(PREDICTIONS, jnp.float32)), jnp.full((2, 3), jnp.nan, jnp.float32)])
    both = jax.jit(jax.value_and_grad(proportion_loss))
    value, gradient = both(logits, jnp.asarray(PROPORTIONS, jnp.float32), jnp.arange(5) < 3)
    assert float(value) == pytest.approx(1.0353065213, rel=1e-6)
    np.testing.assert_array_equal(gradient[3:], 0.0)
    assert np.isfinite(gradient).all() and float(jnp.abs(gradient[:3]).sum()) > 0
    value, gradient = both(logits, jnp.asarray(PROPORTIONS, jnp.float32), jnp.zeros(5, bool))
    assert float(value) == 0.0
    np.testing.assert_array_equal(gradient, 0.0)


@pytest.mark.thorough
def test_a_class_that_nobody_predicts_stays_finite() -> None:
    logits = jnp.tile(jnp.asarray([300.0, -300.0, 0.0], jnp.float32), (4, 1))
    value, gradient = jax.value_and_grad(proportion_loss)(
        logits, jnp.asarray([0.0, 1.0, 0.0], jnp.float32), jnp.ones(4, bool)
    )
    assert float(value) == pytest.approx(600, rel=1e-5)
    assert np.isfinite(gradient).all()


def test_l1_norm_sums_every_leaf() -> None:
    params = {"kernel": jnp.asarray([[1.0, -2.0]]), "norm": (jnp.asarray([0.0, -0.5], jnp.bfloat16),)}
    value, gradient = jax.value_and_grad(l1_norm)(params)
    assert float(value) == 3.5 and value.dtype == jnp.float32
    np.testing.assert_array_equal(gradient["kernel"], [[1, -1]])
    np.testing.assert_array_equal(gradient["norm"][0].astype(jnp.float32), [0, -1])
    assert float(l1_norm({})) == 0.0
