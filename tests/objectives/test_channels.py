"""Label channels: the identity, padding, precision, the numbers of FedMT, estimated matrices, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.objectives import (
    check_correspondence,
    check_observed,
    check_set_priors,
    check_test_prior,
    correspondence_counts,
    estimate_correspondence,
    identity_channel,
    is_observable,
    pad_channel,
)
from tests.objectives.compiled import (
    channel_cross_entropy,
    channel_cross_entropy_on_probs,
    channel_log_probs,
    correspondence_channel,
    cross_entropy,
    loss_and_slope,
)
from tests.objectives.fedul_fixture import SET_PRIORS, TEST_PRIOR

RNG = np.random.default_rng(0)
NESTED = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
LOGITS = (5 * RNG.normal(size=(16, 10))).astype(np.float32)
LABELS = np.concatenate([RNG.integers(0, 10, 13), [-1, 9, -1]]).astype(np.int32)


def losses(logits: object, matrix: object, observed: object) -> np.ndarray:
    channel = correspondence_channel(jnp.asarray(matrix))
    return np.asarray(channel_cross_entropy(jnp.asarray(logits), jnp.asarray(observed, jnp.int32), channel))


def slope(logits: np.ndarray, matrix: np.ndarray, observed: int) -> np.ndarray:
    label = jnp.asarray([observed], jnp.int32)
    return np.asarray(loss_and_slope(jnp.asarray(logits)[None], label, correspondence_channel(matrix))[1][0])


def softmax(logits: np.ndarray) -> np.ndarray:
    exps = np.exp(logits - logits.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("wrap", "num_rows"),
    [pytest.param(lambda f: f, 13, marks=pytest.mark.thorough), (jax.jit, 10), (jax.jit, 64)],
    ids=["eager", "exact", "padded"],
)
def test_identity_is_cross_entropy_to_the_bit(wrap, num_rows: int) -> None:
    logits, labels = jnp.asarray(LOGITS), jnp.asarray(LABELS)
    weights = jnp.asarray(RNG.uniform(0.5, 2, 16), jnp.float32)
    channel = pad_channel(identity_channel(10), num_rows)

    def through_channel(z: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows = channel_cross_entropy(z, labels, channel)
        return jnp.sum(rows * weights), rows

    def directly(z: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows = cross_entropy(z, labels)
        return jnp.sum(rows * weights), rows

    (_, rows), gradient = wrap(jax.value_and_grad(through_channel, has_aux=True))(logits)
    (_, expected_rows), expected = wrap(jax.value_and_grad(directly, has_aux=True))(logits)
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_array_equal(gradient, expected)
    assert float(jnp.sum(jnp.abs(gradient))) > 0


def test_padding_is_never_read() -> None:
    channel = pad_channel(correspondence_channel(NESTED), 4)
    poisoned = channel._replace(log_weights=channel.log_weights.at[2:].set(jnp.nan))
    logits = jnp.asarray(LOGITS[:5, :3])
    observed = jnp.asarray([0, 1, 0, -1, 1], jnp.int32)
    for loss in (channel_cross_entropy, channel_cross_entropy_on_probs):
        both = jax.jit(jax.value_and_grad(lambda z, channel, f=loss: f(z, observed, channel).sum()))
        value, gradient = both(logits, poisoned)
        expected, expected_gradient = both(logits, correspondence_channel(NESTED))
        np.testing.assert_allclose(value, expected, rtol=1e-6)
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-6)


def test_an_impossible_observation_costs_nothing_and_is_reported() -> None:
    """A row of zeros, as an estimated matrix can have one."""
    matrix = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    channel, observed = correspondence_channel(matrix), jnp.asarray([0, 1, 2, -1], jnp.int32)
    logits = jnp.asarray(LOGITS[:4, :3])
    np.testing.assert_array_equal(is_observable(observed, channel), [True, False, True, False])
    value, gradient = loss_and_slope(logits, observed, channel)
    np.testing.assert_array_equal(channel_cross_entropy(logits, observed, channel)[jnp.asarray([1, 3])], 0.0)
    assert np.isfinite(value) and np.isfinite(gradient).all()
    np.testing.assert_array_equal(np.asarray(gradient)[[1, 3]], 0.0)
    assert float(channel_log_probs(logits, channel)[0, 1]) == float(jnp.finfo(jnp.float32).min)


def test_padding_to_fewer_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="num_rows is 2; the channel has 3 rows already"):
        pad_channel(identity_channel(3), 2)


def test_nested_spaces(float64) -> None:
    """FedMT section 13, check 1."""
    logits = np.array([1.0, 0.5, -0.2])
    log_probs = channel_log_probs(jnp.asarray(logits)[None], correspondence_channel(NESTED))
    np.testing.assert_allclose(np.exp(log_probs[0]), [0.84211863, 0.15788137], atol=1e-8)
    found = losses(np.stack([logits, logits]), NESTED, [0, 1])
    np.testing.assert_allclose(found, [0.1718343812, 1.8459113654], atol=1e-10)
    np.testing.assert_allclose(slope(logits, NESTED, 0), [-0.09827473, -0.05960664, 0.15788137], atol=1e-8)
    np.testing.assert_allclose(slope(logits, NESTED, 1), [0.52418460, 0.31793403, -0.84211863], atol=1e-8)
    fine = cross_entropy(jnp.asarray(logits)[None], jnp.asarray([1], jnp.int32))
    assert float(fine[0]) == pytest.approx(1.1459113654, abs=1e-10)


def test_overlapping_spaces(float64) -> None:
    """FedMT section 13, check 2."""
    matrix = np.array([[1, 0, 0, 0, 0.6], [0, 1, 1, 0, 0], [0, 0, 0, 1, 0.4]])
    logits = np.array([0.2, -0.3, 0.1, 0.0, 1.0])
    log_probs = channel_log_probs(jnp.asarray(logits)[None], correspondence_channel(matrix))
    np.testing.assert_allclose(np.exp(log_probs[0]), [0.42035205, 0.27204213, 0.30760582], atol=1e-8)
    found = losses(np.stack([logits] * 3), matrix, [0, 1, 2])
    np.testing.assert_allclose(found, [0.8666627066, 1.3017983323, 1.1789361205], atol=1e-10)
    gradient = slope(logits, matrix, 0)
    np.testing.assert_allclose(gradient, [-0.24820873, 0.10917386, 0.16286827, 0.14736930, -0.17120270], atol=1e-8)
    assert np.linalg.norm(gradient) == pytest.approx(0.38869095, abs=1e-8)
    for k in range(5):
        shift = 1e-5 * np.eye(5)[k]
        ahead, behind = losses(np.stack([logits + shift, logits - shift]), matrix, [0, 0])
        assert (ahead - behind) / 2e-5 == pytest.approx(gradient[k], abs=2e-10)


def test_identity_and_uninformative_matrices(float64) -> None:
    """FedMT section 13, checks 3 and 4, and one observation only (check 14)."""
    found = losses(np.array([[2.0, -1.0, 0.5]] * 3), np.eye(3), [0, 1, 2])
    np.testing.assert_allclose(found, [0.2413112967, 3.2413112967, 1.7413112967], atol=1e-10)
    same = np.array([[0.7] * 3, [0.3] * 3])
    logits = np.array([[3.0, -2.0, 0.1], [0.0, 9.0, 1.0]])
    np.testing.assert_allclose(losses(logits, same, [0, 1]), [0.3566749439, 1.2039728043], atol=1e-10)
    np.testing.assert_allclose(slope(logits[0], same, 0), 0.0, atol=1e-15)
    np.testing.assert_array_equal(losses(logits, np.ones((1, 3)), [0, 0]), 0.0)


def test_underflow_stays_finite() -> None:
    """FedMT section 13, check 5, in float32, where -log(M p) is inf."""
    logits = np.array([0.0, 0.0, -200.0], np.float32)
    assert float(losses(logits[None], NESTED, [1])[0]) == pytest.approx(200.6931471806, rel=1e-6)
    np.testing.assert_allclose(slope(logits, NESTED, 1), [0.5, 0.5, -1.0], rtol=1e-6)


def test_a_matrix_with_missing_mass_needs_its_remainder(float64) -> None:
    """Columns of less than 1: with the remainder q_j = (M p)_j, without it the rest is shared out."""
    matrix, logits = np.array([[0.5, 0.0, 0.2], [0.1, 0.7, 0.0]]), LOGITS[:4, :3].astype(np.float64)
    expected = softmax(logits) @ matrix.T
    with_rest = channel_log_probs(jnp.asarray(logits), correspondence_channel(matrix, remainder=True))
    np.testing.assert_allclose(np.exp(with_rest)[:, :2], expected, rtol=1e-12)
    without = channel_log_probs(jnp.asarray(logits), correspondence_channel(matrix))
    np.testing.assert_allclose(np.exp(without), expected / expected.sum(1, keepdims=True), rtol=1e-12)


def test_invariants_of_the_projection(float64) -> None:
    """FedMT section 13, check 11."""
    rng = np.random.default_rng(1)
    matrix = rng.dirichlet(np.full(3, 0.5), size=5).T
    logits, observed = 3 * rng.normal(size=(50, 5)), rng.integers(0, 3, 50)

    probs = softmax(logits)
    posterior = matrix[observed] * probs / (matrix[observed] * probs).sum(1, keepdims=True)
    _, found = loss_and_slope(jnp.asarray(logits), jnp.asarray(observed, jnp.int32), correspondence_channel(matrix))
    found = np.asarray(found)
    # Also the gradient of cross-entropy with the soft target that is the posterior given the coarse label.
    np.testing.assert_allclose(found, probs - posterior, atol=1e-13)
    np.testing.assert_allclose(found.sum(1), 0.0, atol=1e-13)
    assert np.linalg.norm(found, axis=1).max() <= np.sqrt(2)
    log_probs = channel_log_probs(jnp.asarray(logits), correspondence_channel(matrix))
    np.testing.assert_allclose(np.exp(log_probs).sum(1), 1.0, rtol=1e-13)
    fine, coarse = rng.permutation(5), rng.permutation(3)
    expected = losses(logits, matrix, observed)
    np.testing.assert_allclose(losses(logits[:, fine], matrix[:, fine], observed), expected, rtol=1e-12)
    np.testing.assert_allclose(losses(logits, matrix[coarse], np.argsort(coarse)[observed]), expected, rtol=1e-12)


# Estimated matrices: the numbers of FedMT section 13.


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


# What is refused.


def test_small_deviations_are_divided_out() -> None:
    found = check_set_priors(SET_PRIORS * [[1.0005], [1], [0.9995], [1]])
    np.testing.assert_allclose(found, SET_PRIORS, rtol=1e-14)
    np.testing.assert_allclose(check_test_prior(np.float32([0.3333, 0.3333, 0.3333]), 3), 1 / 3, rtol=1e-12)


@pytest.mark.parametrize(
    ("priors", "options", "message"),
    [
        ([[0.5, 0.5], [0.5, np.nan]], {}, "Row 1 of set_priors of client 7 holds nan for class 1"),
        ([[-0.1, 1.1]], {}, "Row 0 of set_priors of client 7 holds -0.1 for class 0"),
        ([[0.5, 0.5], [0.5, 0.6]], {}, "Row 1 of set_priors of client 7 sums to 1.1"),
        ([0.5, 0.5], {}, r"set_priors of client 7 have shape \(2,\)"),
        ([[0.5, 0.5]], {"num_classes": 3}, r"shape \(1, 2\); the shape must be \[sets, classes\] with 3 classes"),
        ([[0.5, 0.5]], {"set_shares": [-1]}, r"set_shares of client 7 are \[-1.0\]"),
        ([[0.5, 0.5]], {"set_shares": [1, 2]}, "they must be 1 finite numbers"),
    ],
)
def test_bad_set_priors_are_refused(priors: list, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_set_priors(priors, client=7, **options)


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        ([0.5, 0.5, 0.0], "test_prior is 0 for class 2; every entry must be positive"),
        ([0.5, np.nan, 0.5], "test_prior is nan for class 1"),
        ([0.5, 0.3, 0.3], "test_prior sums to 1.1"),
        ([0.5, 0.5], r"test_prior has shape \(2,\); it must have one entry for each of 3 classes"),
    ],
)
def test_bad_test_priors_are_refused(prior: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_test_prior(prior, 3)
    np.testing.assert_array_equal(check_test_prior(TEST_PRIOR, 3), TEST_PRIOR)


@pytest.mark.parametrize(
    ("matrix", "options", "message"),
    [
        ([[1.0, np.inf]], {}, "Row 0 of the correspondence matrix of client b holds inf for class 1"),
        ([[1.2, 1.0], [-0.2, 0.0]], {}, "Row 1 of the correspondence matrix of client b holds -0.2 for class 0"),
        ([[1.0, 0.0], [0.0, 0.0]], {}, "Column 1 of the correspondence matrix of client b is all 0"),
        ([[1.0, 0.9]], {}, "Column 1 .* sums to 0.9; .*divide columns by their sums"),
        (NESTED.T, {}, "all rows sum to 1, so the matrix looks transposed"),
        (NESTED, {"num_classes": 4}, r"has shape \(2, 3\); .* with 4 classes"),
        ([1.0, 0.0], {}, r"has shape \(2,\)"),
        ([[1.0, 1.0], [0, 0]], {"observed_counts": [4, 2]}, "Row 1 .* is all 0, yet 2 examples carry this label"),
        (NESTED, {"observed_counts": [1, 1, 1]}, r"observed_counts of client b have shape \(3,\)"),
    ],
)
def test_bad_correspondences_are_refused(matrix: object, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_correspondence(matrix, client="b", **options)


def test_observed_labels_are_counted_or_refused() -> None:
    np.testing.assert_array_equal(check_observed([0, 2, -1, 2], 4), [1, 0, 2, 0])
    np.testing.assert_array_equal(check_observed([], 2), [0, 0])
    with pytest.raises(ValueError, match="Observed label 3 of example 1 of client 0 does not exist; labels are 0 to 2"):
        check_observed([0, 3], 3, client=0)
    with pytest.raises(ValueError, match="Observed label -2 of example 0 does not exist"):
        check_observed([-2], 3)
    with pytest.raises(ValueError, match="dtype float64; they must be integers"):
        check_observed([0.0, 1.0], 3)
