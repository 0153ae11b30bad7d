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
from tests.objectives.fedul_fixture import (
    POSTERIOR,
    SET_PRIORS,
    SET_PROBS,
    SET_SHARES,
    TEST_PRIOR,
    set_matrix,
)

# Columns: p(x | class) on four points.
CLASS_CONDITIONALS = np.array(
    [[0.5, 0.1, 0.0], [0.3, 0.2, 0.1], [0.15, 0.4, 0.2], [0.05, 0.3, 0.7]]
)
SET_CONDITIONALS = CLASS_CONDITIONALS @ SET_PRIORS.T * SET_SHARES  # p(x, set)
SET_POSTERIORS = SET_CONDITIONALS / SET_CONDITIONALS.sum(1, keepdims=True)
BAYES = CLASS_CONDITIONALS * TEST_PRIOR / (CLASS_CONDITIONALS * TEST_PRIOR).sum(1, keepdims=True)
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
    np.testing.assert_allclose(
        log_probs, channel_log_probs(logits - 2.5, fixture_channel()), atol=1e-14
    )
    four = jnp.tile(logits, (4, 1))
    expected = [0.692764844482, 1.336685084277, 1.944763579084, 2.363687840567]
    np.testing.assert_allclose(
        channel_cross_entropy(four, SETS, fixture_channel()), expected, atol=1e-12
    )
    expected = [1.148830115269, 1.386306214696, 1.506000287353, 1.554948662114]
    np.testing.assert_allclose(
        channel_cross_entropy_on_probs(four, SETS, fixture_channel()), expected, atol=1e-12
    )
    uniform = set_channel(SET_PRIORS, SET_SHARES, np.full(3, 1 / 3))
    expected = [0.569767441860, 0.235465116279, 0.104651162791, 0.090116279070]
    np.testing.assert_allclose(set_probs(POSTERIOR, uniform)[0], expected, atol=1e-12)
    # Priors and shares up to a factor.
    scaled = set_channel(SET_PRIORS, 50 * SET_SHARES, 3 * TEST_PRIOR)
    np.testing.assert_allclose(set_probs(POSTERIOR, scaled)[0], SET_PROBS, atol=1e-12)


def test_float32_is_close_to_float64() -> None:
    """Check 2: ten classes, forty sets, logits with standard deviation 10."""
    rng = np.random.default_rng(0)
    priors = rng.dirichlet(np.ones(10), size=40)
    test_prior = rng.dirichlet(np.full(10, 5.0))
    shares = rng.dirichlet(np.ones(40))
    logits = 10 * rng.normal(size=(50, 10))
    found = channel_log_probs(
        jnp.asarray(logits, jnp.float32), set_channel(priors, shares, test_prior)
    )
    shifted = (
        np.exp(logits - logits.max(1, keepdims=True)) @ set_matrix(priors, shares, test_prior).T
    )
    np.testing.assert_allclose(found, np.log(shifted / shifted.sum(1, keepdims=True)), atol=2e-5)


def test_gradient_is_client_posterior_minus_set_posterior(float64) -> None:
    """Check 3."""
    logits = jnp.log(jnp.asarray(POSTERIOR))
    third = jnp.asarray([2], jnp.int32)

    def loss(z: jax.Array) -> jax.Array:
        return channel_cross_entropy(z[None], third, fixture_channel())[0]

    _, gradient = loss_and_slope(logits[None], third, fixture_channel())
    gradient = gradient[0]
    np.testing.assert_allclose(
        gradient, [0.337542560915, 0.046134497602, -0.383677058517], atol=1e-12
    )
    by_set = SET_PRIORS / TEST_PRIOR * POSTERIOR
    by_set /= by_set.sum(1, keepdims=True)
    np.testing.assert_allclose(gradient, SET_PROBS @ by_set - by_set[2], atol=1e-11)
    for k in range(3):
        step = jnp.asarray(1e-5 * np.eye(3)[k])
        assert float(loss(logits + step) - loss(logits - step)) / 2e-5 == pytest.approx(
            float(gradient[k]), abs=1e-9
        )


def test_left_inverse_and_what_happens_without_it(float64) -> None:
    """Checks 4 and 5."""
    probs = set_probs(POSTERIOR, fixture_channel())[0]
    back = TEST_PRIOR * (np.linalg.pinv(SET_PRIORS) @ (probs / SET_SHARES))
    np.testing.assert_allclose(back / back.sum(), POSTERIOR, atol=1e-14)
    deficient = np.array([[0.5, 0.3, 0.2], [0.2, 0.6, 0.2], [0.35, 0.45, 0.2], [0.41, 0.39, 0.2]])
    same = set_probs(
        np.array([POSTERIOR, [0.45, 0.05, 0.5]]), set_channel(deficient, SET_SHARES, TEST_PRIOR)
    )
    expected = [0.4417936824, 0.2584493042, 0.1965981886, 0.1031588248]
    np.testing.assert_allclose(same, [expected, expected], atol=1e-10)


def test_the_bayes_classifier_minimizes_the_risk(float64) -> None:
    """Check 6: posteriors of the sets, the least risk, and gradient descent that finds the
    classifier.
    """
    np.testing.assert_allclose(BAYES[2], [0.3191489362, 0.5106382979, 0.1702127660], atol=1e-10)
    np.testing.assert_allclose(
        SET_POSTERIORS[3], [0.2258543834, 0.3298662704, 0.3298662704, 0.1144130758], atol=1e-10
    )
    channel = fixture_channel()
    probs = set_probs(BAYES, channel)
    np.testing.assert_allclose(probs, SET_POSTERIORS, atol=1e-14)
    marginal = SET_CONDITIONALS.sum(1)
    np.testing.assert_allclose(marginal, [0.209, 0.204, 0.2505, 0.3365], atol=1e-12)
    np.testing.assert_allclose(marginal @ probs, SET_SHARES, atol=1e-12)

    def risk(table: jax.Array) -> jax.Array:
        return -jnp.sum(jnp.asarray(SET_CONDITIONALS) * channel_log_probs(table, channel))

    @jax.jit
    def descend(table: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 20_000, lambda _, z: z - 5.0 * jax.grad(risk)(z), table)

    table = descend(jnp.zeros((4, 3)))
    assert float(risk(table)) == pytest.approx(1.218944141416, abs=5e-6)
    found = np.asarray(jax.nn.softmax(table))
    np.testing.assert_allclose(found[1:], BAYES[1:], atol=1e-6)
    # The first posterior lies on the boundary and is approached slowly.
    np.testing.assert_allclose(found[0], BAYES[0], atol=4e-3)


@pytest.mark.thorough
def test_the_loss_on_probabilities_is_not_proper(float64) -> None:
    """Check 7: its minimizers on a grid, and a case in which it names the other class."""
    steps = np.arange(0, 501)
    first, second = np.meshgrid(steps, steps, indexing="ij")
    inside = first + second <= 500
    grid = (
        np.stack([first[inside], second[inside], 500 - first[inside] - second[inside]], axis=1)
        / 500
    )
    logits = jnp.log(jnp.maximum(jnp.asarray(grid), 1e-300))
    every = [
        channel_cross_entropy_on_probs(logits, jnp.full(len(grid), m, jnp.int32), fixture_channel())
        for m in SETS
    ]
    best = grid[np.argmin(SET_POSTERIORS @ np.stack(every), axis=1)]
    np.testing.assert_allclose(
        best, [[1, 0, 0], [1, 0, 0], [0.492, 0.508, 0], [0, 0.196, 0.804]], atol=2.1e-3
    )

    channel = set_channel(
        np.array([[0.9, 0.1], [0.1, 0.9]]), np.array([0.8, 0.2]), np.array([0.5, 0.5])
    )
    observed = set_probs(np.array([0.45, 0.55]), channel)[0]
    np.testing.assert_allclose(observed, [0.7731092437, 0.2268907563], atol=1e-10)
    line = np.linspace(0, 1, 101)
    logits = jnp.log(jnp.maximum(jnp.asarray(np.stack([line, 1 - line], axis=1)), 1e-300))
    minimizers = []
    for loss in (channel_cross_entropy, channel_cross_entropy_on_probs):
        risks = sum(
            observed[m] * np.asarray(loss(logits, jnp.full(101, m, jnp.int32), channel))
            for m in (0, 1)
        )
        minimizers.append(line[np.argmin(risks)])
    np.testing.assert_allclose(minimizers, [0.45, 1.0], atol=1e-12)


def test_pure_sets_are_labels(float64) -> None:
    """Check 8, first part."""
    channel = set_channel(np.eye(3), np.array([0.2, 0.3, 0.5]), TEST_PRIOR)
    expected = [0.3835616438, 0.2739726027, 0.3424657534]
    np.testing.assert_allclose(set_probs(POSTERIOR, channel)[0], expected, atol=1e-10)
    shifted = np.exp(np.log(POSTERIOR) + np.log([0.2, 0.3, 0.5]) - np.log(TEST_PRIOR))
    np.testing.assert_allclose(shifted / shifted.sum(), expected, atol=1e-10)


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


def test_equal_sets_and_two_classes(float64) -> None:
    """Check 8: equal rows teach nothing; with two classes Q_m is proportional to a_m eta + b_m."""
    equal = set_channel(np.tile([0.2, 0.5, 0.3], (4, 1)), SET_SHARES, TEST_PRIOR)
    np.testing.assert_allclose(set_probs(POSTERIOR, equal)[0], SET_SHARES, atol=1e-14)
    logits = jnp.tile(jnp.asarray([2.0, -1.0, 0.3]), (4, 1))
    np.testing.assert_allclose(
        jax.grad(lambda z: channel_cross_entropy(z, SETS, equal).sum())(logits), 0.0, atol=1e-15
    )
    first = np.array([0.8, 0.5, 0.1])
    shares = np.array([0.3, 0.4, 0.3])
    channel = set_channel(np.stack([first, 1 - first], axis=1), shares, np.array([0.35, 0.65]))
    found = set_probs(np.array([0.62, 0.38]), channel)[0]
    np.testing.assert_allclose(found, [0.4028472489, 0.4124663332, 0.1846864179], atol=1e-10)
    lines = np.array([0.5934065934, 0.2637362637, -0.3296703297]) * 0.62 + [
        0.0923076923,
        0.3076923077,
        0.4153846154,
    ]
    np.testing.assert_allclose(found, lines / lines.sum(), atol=1e-9)


@pytest.mark.parametrize("num_rows", [3, 5])
def test_extreme_logits_and_zero_priors_stay_finite(num_rows: int) -> None:
    """Check 9, in float32; probabilities would give an infinite loss and a NaN gradient."""
    priors = np.array([[0, 0.5, 0.5], [0.2, 0.5, 0.3], [0.7, 0.2, 0.1]])
    channel = pad_channel(set_channel(priors, np.array([0.3, 0.3, 0.4]), TEST_PRIOR), num_rows)
    logits = jnp.asarray([200.0, -200.0, 0.0], jnp.float32)
    log_probs = channel_log_probs(logits[None], channel)[0, :3]
    # The printed digits are float32 without the shift by the largest logit; log(0.12 / 0.68) and so
    # on are exact.
    np.testing.assert_allclose(
        log_probs, [-199.90202, -1.7346039, -0.1941528], atol=1e-5, rtol=1e-6
    )
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
            return channel_cross_entropy(
                leaves[0], observed, set_channel(*leaves[1:], TEST_PRIOR)
            ).sum()

        return jax.grad(total, argnums=(0, 1, 2))(z, set_priors, set_shares)

    gradients = slope(logits, priors, shares)
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    np.testing.assert_array_equal(gradients[0][2:], 0.0)
    assert float(jnp.abs(gradients[0][0]).sum()) > 1


def test_a_class_of_no_set_gets_no_gradient() -> None:
    """Check 10."""
    channel = set_channel(
        np.array([[0.7, 0.3, 0], [0.2, 0.8, 0], [0.5, 0.5, 0]]),
        np.array([0.3, 0.3, 0.4]),
        TEST_PRIOR,
    )
    logits = jnp.asarray([[0.5, -1.0, 3.0]] * 3, jnp.float32)
    _, gradient = loss_and_slope(logits, SETS[:3], channel)
    np.testing.assert_array_equal(gradient[:, 2], 0.0)
    assert float(jnp.abs(gradient[:, :2]).sum()) > 0


def test_order_of_the_sets_and_padding_do_not_matter(float64) -> None:
    """Check 11."""
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(9, 3)))
    observed = rng.integers(0, 4, 9)

    def both(channel: Channel, seen: np.ndarray) -> tuple[jax.Array, jax.Array]:
        return loss_and_slope(logits, jnp.asarray(seen, jnp.int32), channel)

    expected = both(fixture_channel(), observed)
    order = np.array([2, 0, 3, 1])
    permuted = set_channel(SET_PRIORS[order], SET_SHARES[order], TEST_PRIOR)
    empty_sets = set_channel(
        np.concatenate([SET_PRIORS, np.zeros((1, 3)), [[1, 0, 0]]]),
        np.append(SET_SHARES, [0, 0]),
        TEST_PRIOR,
    )
    others = [
        both(permuted, np.argsort(order)[observed]),
        both(pad_channel(fixture_channel(), 7), observed),
        both(empty_sets, observed),
    ]
    for other in others:
        np.testing.assert_allclose(other[0], expected[0], rtol=1e-13)
        np.testing.assert_allclose(other[1], expected[1], atol=1e-14)
