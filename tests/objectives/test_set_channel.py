"""Sets with known class proportions: the worked numbers of FedUL section 14."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.objectives import Channel, pad_channel
from tests.objectives.compiled import (
    by_hand,
    channel_cross_entropy,
    channel_cross_entropy_on_probs,
    channel_log_probs,
    cross_entropy,
    loss_and_slope,
    set_channel,
)
from tests.objectives.fedul_fixture import (
    POSTERIOR,
    SET_PRIORS,
    SET_PROBS,
    SET_SHARES,
    TEST_PRIOR,
    set_matrix,
)

SETS = jnp.arange(4, dtype=jnp.int32)
UNIFORM = np.full(3, 1 / 3)
DEFICIENT = np.array([[0.5, 0.3, 0.2], [0.2, 0.6, 0.2], [0.35, 0.45, 0.2], [0.41, 0.39, 0.2]])
FIRST = np.array([0.8, 0.5, 0.1])


def fixture_channel() -> Channel:
    return set_channel(SET_PRIORS, SET_SHARES, TEST_PRIOR)


def set_probs(posterior: np.ndarray, channel: Channel) -> np.ndarray:
    with np.errstate(divide="ignore"):
        logits = np.maximum(np.log(np.atleast_2d(posterior)), -1e300)
    return np.exp(np.asarray(channel_log_probs(jnp.asarray(logits), channel)))


@pytest.mark.parametrize(
    ("priors", "shares", "test_prior", "posterior", "expected"),
    [
        (SET_PRIORS, SET_SHARES, TEST_PRIOR, POSTERIOR, SET_PROBS),  # check 1
        # up to a factor
        (SET_PRIORS, 50 * SET_SHARES, 3 * TEST_PRIOR, POSTERIOR, SET_PROBS),
        (
            *(SET_PRIORS, SET_SHARES, UNIFORM, POSTERIOR),
            [0.569767441860, 0.235465116279, 0.104651162791, 0.090116279070],
        ),
        # check 5: rank 2, so that another posterior looks the same
        *(
            (
                *(DEFICIENT, SET_SHARES, TEST_PRIOR, posterior),
                [0.4417936824, 0.2584493042, 0.1965981886, 0.1031588248],
            )
            for posterior in (POSTERIOR, [0.45, 0.05, 0.5])
        ),
        # check 8: pure sets, equal sets, two classes
        (
            *(np.eye(3), [0.2, 0.3, 0.5], TEST_PRIOR, POSTERIOR),
            [0.3835616438, 0.2739726027, 0.3424657534],
        ),
        (np.tile([0.2, 0.5, 0.3], (4, 1)), SET_SHARES, TEST_PRIOR, POSTERIOR, SET_SHARES),
        (
            *(np.stack([FIRST, 1 - FIRST], axis=1), [0.3, 0.4, 0.3], [0.35, 0.65], [0.62, 0.38]),
            [0.4028472489, 0.4124663332, 0.1846864179],
        ),
    ],
)
def test_worked_probabilities(float64, priors, shares, test_prior, posterior, expected) -> None:
    channel = set_channel(priors, np.asarray(shares), np.asarray(test_prior))
    np.testing.assert_allclose(set_probs(np.asarray(posterior), channel)[0], expected, atol=1e-10)


def test_worked_losses_and_their_slope(float64) -> None:
    """Checks 2 and 3; a shift of the logits changes nothing."""
    four = jnp.tile(jnp.asarray(np.log(POSTERIOR) + 2.5), (4, 1))
    expected = [0.692764844482, 1.336685084277, 1.944763579084, 2.363687840567]
    found = channel_cross_entropy(four, SETS, fixture_channel())
    np.testing.assert_allclose(found, expected, atol=1e-12)
    expected = [1.148830115269, 1.386306214696, 1.506000287353, 1.554948662114]
    found = channel_cross_entropy_on_probs(four, SETS, fixture_channel())
    np.testing.assert_allclose(found, expected, atol=1e-12)
    _, slope = loss_and_slope(four[2:3], SETS[2:3], fixture_channel())
    expected = [[0.337542560915, 0.046134497602, -0.383677058517]]
    np.testing.assert_allclose(slope, expected, atol=1e-12)


def test_float32_is_close_to_float64() -> None:
    """Check 2: ten classes, forty sets, logits with standard deviation 10."""
    rng = np.random.default_rng(0)
    priors = rng.dirichlet(np.ones(10), size=40)
    test_prior = rng.dirichlet(np.full(10, 5.0))
    shares = rng.dirichlet(np.ones(40))
    logits = 10 * rng.normal(size=(50, 10))
    channel = set_channel(priors, shares, test_prior)
    found = channel_log_probs(jnp.asarray(logits, jnp.float32), channel)
    nobody = np.zeros(50, int)
    expected, *_ = by_hand(logits, nobody, set_matrix(priors, shares, test_prior))
    np.testing.assert_allclose(found, np.log(expected), atol=2e-5)


def test_pure_sets_in_the_proportions_of_the_test_are_plain_supervision() -> None:
    """Check 8: loss and gradient of a labelled client, to the bit because shares and prior
    cancel first.
    """
    channel = set_channel(np.eye(3), TEST_PRIOR, TEST_PRIOR)
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)), jnp.float32)
    labels = jnp.asarray([0, 1, 2, 2, -1, 0], jnp.int32)
    found = loss_and_slope(logits, labels, channel)
    expected = jax.value_and_grad(lambda z: cross_entropy(z, labels).sum())(logits)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


@pytest.mark.parametrize("num_rows", [3, 5])
def test_extreme_logits_and_zero_priors_stay_finite(num_rows: int) -> None:
    """Check 9, in float32; probabilities would give an infinite loss and a NaN gradient."""
    priors = np.array([[0, 0.5, 0.5], [0.2, 0.5, 0.3], [0.7, 0.2, 0.1]])
    channel = pad_channel(set_channel(priors, np.array([0.3, 0.3, 0.4]), TEST_PRIOR), num_rows)
    logits = jnp.asarray([[200.0, -200.0, 0.0]], jnp.float32)
    log_probs = channel_log_probs(logits, channel)[0, :3]
    # The printed digits are float32 without the shift by the largest logit; log(0.12 / 0.68) and so
    # on are exact.
    np.testing.assert_allclose(log_probs, [-199.90202, -1.7346039, -0.1941528], atol=1e-5)
    np.testing.assert_allclose(log_probs[1:], np.log([0.12 / 0.68, 0.56 / 0.68]), rtol=1e-6)
    _, gradient = loss_and_slope(logits, SETS[:1], channel)
    np.testing.assert_allclose(gradient, [[1, 0, -1]], atol=1e-6)


def test_a_class_of_no_set_gets_no_gradient() -> None:
    """Check 10."""
    priors = np.array([[0.7, 0.3, 0], [0.2, 0.8, 0], [0.5, 0.5, 0]])
    channel = set_channel(priors, np.array([0.3, 0.3, 0.4]), TEST_PRIOR)
    logits = jnp.asarray([[0.5, -1.0, 3.0]] * 3, jnp.float32)
    _, gradient = loss_and_slope(logits, SETS[:3], channel)
    np.testing.assert_array_equal(gradient[:, 2], 0.0)
    assert float(jnp.abs(gradient[:, :2]).sum()) > 0


def test_order_of_the_sets_and_padding_do_not_matter(float64) -> None:
    """Check 11: against NumPy."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(9, 3))
    observed = rng.integers(0, 4, 9)
    weights = set_matrix(SET_PRIORS, SET_SHARES, TEST_PRIOR)
    _, losses, slopes = by_hand(logits, observed, weights)
    order = np.array([2, 0, 3, 1])
    more = np.concatenate([SET_PRIORS, np.zeros((1, 3)), [[1, 0, 0]]])
    for channel, seen in (
        (
            set_channel(SET_PRIORS[order], SET_SHARES[order], TEST_PRIOR),
            np.argsort(order)[observed],
        ),
        (pad_channel(fixture_channel(), 7), observed),
        (set_channel(more, np.append(SET_SHARES, [0, 0]), TEST_PRIOR), observed),
    ):
        value, slope = loss_and_slope(jnp.asarray(logits), jnp.asarray(seen, jnp.int32), channel)
        np.testing.assert_allclose(value, losses.sum(), rtol=1e-13)
        np.testing.assert_allclose(slope, slopes, atol=1e-14)
