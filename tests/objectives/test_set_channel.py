"""Sets with known class proportions: the worked numbers of FedUL section 14."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.objectives import Channel, pad_channel
from tests.objectives.compiled import (
    channel_cross_entropy,
    channel_cross_entropy_on_probs,
    channel_log_probs,
    cross_entropy,
    loss_and_slope,
    set_channel,
)
from tests.objectives.fedul_fixture import POSTERIOR, SET_PRIORS, SET_PROBS, SET_SHARES, TEST_PRIOR

SETS = jnp.arange(4, dtype=jnp.int32)


def fixture_channel() -> Channel:
    return set_channel(SET_PRIORS, SET_SHARES, TEST_PRIOR)


def set_probs(posterior: np.ndarray, channel: Channel) -> np.ndarray:
    with np.errstate(divide="ignore"):
        logits = np.maximum(np.log(np.atleast_2d(posterior)), -1e300)
    return np.exp(np.asarray(channel_log_probs(jnp.asarray(logits), channel)))


def test_worked_probabilities(float64) -> None:
    """Checks 1 and 2."""
    logits = jnp.asarray(np.log(POSTERIOR) + 2.5)[None]
    log_probs = channel_log_probs(logits, fixture_channel())
    np.testing.assert_allclose(np.exp(log_probs[0]), SET_PROBS, atol=1e-12)
    np.testing.assert_allclose(log_probs, channel_log_probs(logits - 2.5, fixture_channel()), atol=1e-14)
    four = jnp.tile(logits, (4, 1))
    expected = [0.692764844482, 1.336685084277, 1.944763579084, 2.363687840567]
    np.testing.assert_allclose(channel_cross_entropy(four, SETS, fixture_channel()), expected, atol=1e-12)
    expected = [1.148830115269, 1.386306214696, 1.506000287353, 1.554948662114]
    np.testing.assert_allclose(channel_cross_entropy_on_probs(four, SETS, fixture_channel()), expected, atol=1e-12)
    uniform = set_channel(SET_PRIORS, SET_SHARES, np.full(3, 1 / 3))
    expected = [0.569767441860, 0.235465116279, 0.104651162791, 0.090116279070]
    np.testing.assert_allclose(set_probs(POSTERIOR, uniform)[0], expected, atol=1e-12)
    # Priors and shares up to a factor.
    scaled = set_channel(SET_PRIORS, 50 * SET_SHARES, 3 * TEST_PRIOR)
    np.testing.assert_allclose(set_probs(POSTERIOR, scaled)[0], SET_PROBS, atol=1e-12)


def test_gradient_is_client_posterior_minus_set_posterior(float64) -> None:
    """Check 3."""
    logits, third = jnp.log(jnp.asarray(POSTERIOR)), jnp.asarray([2], jnp.int32)

    def loss(z: jax.Array) -> jax.Array:
        return channel_cross_entropy(z[None], third, fixture_channel())[0]

    _, gradient = loss_and_slope(logits[None], third, fixture_channel())
    gradient = gradient[0]
    np.testing.assert_allclose(gradient, [0.337542560915, 0.046134497602, -0.383677058517], atol=1e-12)
    by_set = SET_PRIORS / TEST_PRIOR * POSTERIOR
    by_set /= by_set.sum(1, keepdims=True)
    np.testing.assert_allclose(gradient, SET_PROBS @ by_set - by_set[2], atol=1e-11)
    for k in range(3):
        step = jnp.asarray(1e-5 * np.eye(3)[k])
        assert float(loss(logits + step) - loss(logits - step)) / 2e-5 == pytest.approx(float(gradient[k]), abs=1e-9)


def test_pure_sets_in_the_proportions_of_the_test_are_plain_supervision() -> None:
    """Check 8: loss and gradient of a labelled client, to the bit because shares and prior cancel first."""
    channel = set_channel(np.eye(3), TEST_PRIOR, TEST_PRIOR)
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)), jnp.float32)
    labels = jnp.asarray([0, 1, 2, 2, -1, 0], jnp.int32)
    found = loss_and_slope(logits, labels, channel)
    expected = jax.value_and_grad(lambda z: cross_entropy(z, labels).sum())(logits)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


def test_equal_sets_and_two_classes(float64) -> None:
    """Check 8: equal rows teach nothing; with two classes Q_m is proportional to a_m eta + b_m."""
    equal = set_channel(np.tile([0.2, 0.5, 0.3], (4, 1)), SET_SHARES, TEST_PRIOR)
    np.testing.assert_allclose(set_probs(POSTERIOR, equal)[0], SET_SHARES, atol=1e-14)
    logits = jnp.tile(jnp.asarray([2.0, -1.0, 0.3]), (4, 1))
    np.testing.assert_allclose(jax.grad(lambda z: channel_cross_entropy(z, SETS, equal).sum())(logits), 0.0, atol=1e-15)
    first, shares = np.array([0.8, 0.5, 0.1]), np.array([0.3, 0.4, 0.3])
    channel = set_channel(np.stack([first, 1 - first], axis=1), shares, np.array([0.35, 0.65]))
    found = set_probs(np.array([0.62, 0.38]), channel)[0]
    np.testing.assert_allclose(found, [0.4028472489, 0.4124663332, 0.1846864179], atol=1e-10)
    lines = np.array([0.5934065934, 0.2637362637, -0.3296703297]) * 0.62 + [0.0923076923, 0.3076923077, 0.4153846154]
    np.testing.assert_allclose(found, lines / lines.sum(), atol=1e-9)


@pytest.mark.parametrize("num_rows", [3, 5])
def test_extreme_logits_and_zero_priors_stay_finite(num_rows: int) -> None:
    """Check 9, in float32; probabilities would give an infinite loss and a NaN gradient."""
    priors = np.array([[0, 0.5, 0.5], [0.2, 0.5, 0.3], [0.7, 0.2, 0.1]])
    channel = pad_channel(set_channel(priors, np.array([0.3, 0.3, 0.4]), TEST_PRIOR), num_rows)
    logits = jnp.asarray([200.0, -200.0, 0.0], jnp.float32)
    log_probs = channel_log_probs(logits[None], channel)[0, :3]
    # The printed digits are float32 without the shift by the largest logit; log(0.12 / 0.68) and so on are exact.
    np.testing.assert_allclose(log_probs, [-199.90202, -1.7346039, -0.1941528], atol=1e-5, rtol=1e-6)
    np.testing.assert_allclose(log_probs[1:], np.log([0.12 / 0.68, 0.56 / 0.68]), rtol=1e-6)
    _, gradient = loss_and_slope(logits[None], SETS[:1], channel)
    np.testing.assert_allclose(gradient, [[1, 0, -1]], atol=1e-6)


def test_zero_priors_and_empty_sets_inside_a_trace_have_finite_gradients() -> None:
    """Check 9, last part: traced constructors, an empty set, a padded row, zeros in the priors."""
    priors = jnp.asarray([[0, 0.5, 0.5], [0.2, 0.5, 0.3], [0, 0, 0], [0.3, 0.3, 0.4]], jnp.float32)
    shares = jnp.asarray([0.5, 0.5, 0.0, 0.0], jnp.float32)
    observed = jnp.asarray([0, 1, 3, -1], jnp.int32)
    logits = jnp.asarray([[200.0, -200.0, 0.0]] * 4, jnp.float32)

    @jax.jit
    def slope(z: jax.Array, set_priors: jax.Array, set_shares: jax.Array) -> tuple[jax.Array, ...]:
        def total(*leaves: jax.Array) -> jax.Array:
            return channel_cross_entropy(leaves[0], observed, set_channel(*leaves[1:], TEST_PRIOR)).sum()

        return jax.grad(total, argnums=(0, 1, 2))(z, set_priors, set_shares)

    gradients = slope(logits, priors, shares)
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    np.testing.assert_array_equal(gradients[0][2:], 0.0)
    assert float(jnp.abs(gradients[0][0]).sum()) > 1


def test_a_class_of_no_set_gets_no_gradient() -> None:
    """Check 10."""
    channel = set_channel(
        np.array([[0.7, 0.3, 0], [0.2, 0.8, 0], [0.5, 0.5, 0]]), np.array([0.3, 0.3, 0.4]), TEST_PRIOR
    )
    logits = jnp.asarray([[0.5, -1.0, 3.0]] * 3, jnp.float32)
    _, gradient = loss_and_slope(logits, SETS[:3], channel)
    np.testing.assert_array_equal(gradient[:, 2], 0.0)
    assert float(jnp.abs(gradient[:, :2]).sum()) > 0


def test_order_of_the_sets_and_padding_do_not_matter(float64) -> None:
    """Check 11."""
    rng = np.random.default_rng(0)
    logits, observed = jnp.asarray(rng.normal(size=(9, 3))), rng.integers(0, 4, 9)

    def both(channel: Channel, seen: np.ndarray) -> tuple[jax.Array, jax.Array]:
        return loss_and_slope(logits, jnp.asarray(seen, jnp.int32), channel)

    expected = both(fixture_channel(), observed)
    order = np.array([2, 0, 3, 1])
    permuted = set_channel(SET_PRIORS[order], SET_SHARES[order], TEST_PRIOR)
    empty_sets = set_channel(
        np.concatenate([SET_PRIORS, np.zeros((1, 3)), [[1, 0, 0]]]), np.append(SET_SHARES, [0, 0]), TEST_PRIOR
    )
    others = [
        both(permuted, np.argsort(order)[observed]),
        both(pad_channel(fixture_channel(), 7), observed),
        both(empty_sets, observed),
    ]
    for other in others:
        np.testing.assert_allclose(other[0], expected[0], rtol=1e-13)
        np.testing.assert_allclose(other[1], expected[1], atol=1e-14)
