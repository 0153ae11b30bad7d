"""Label channels as such: the identity, padding, precision, and the numbers of labels of another
space (FedMT).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.objectives import Channel, identity_channel, is_observable, pad_channel
from tests.objectives.compiled import (
    channel_cross_entropy,
    channel_cross_entropy_on_probs,
    channel_log_probs,
    correspondence_channel,
    cross_entropy,
    loss_and_slope,
    set_channel,
)

RNG = np.random.default_rng(0)
NESTED = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
LOGITS = (5 * RNG.normal(size=(16, 10))).astype(np.float32)
LABELS = np.concatenate([RNG.integers(0, 10, 13), [-1, 9, -1]]).astype(np.int32)


def losses(logits: object, matrix: object, observed: object) -> np.ndarray:
    channel = correspondence_channel(jnp.asarray(matrix))
    return np.asarray(
        channel_cross_entropy(jnp.asarray(logits), jnp.asarray(observed, jnp.int32), channel)
    )


def slope(logits: np.ndarray, matrix: np.ndarray, observed: int) -> np.ndarray:
    label = jnp.asarray([observed], jnp.int32)
    return np.asarray(
        loss_and_slope(jnp.asarray(logits)[None], label, correspondence_channel(matrix))[1][0]
    )


def softmax(logits: np.ndarray) -> np.ndarray:
    exps = np.exp(logits - logits.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("wrap", "num_rows"),
    [pytest.param(lambda f: f, 13, marks=pytest.mark.thorough), (jax.jit, 10), (jax.jit, 64)],
    ids=["eager", "exact", "padded"],
)
def test_identity_is_cross_entropy_to_the_bit(wrap, num_rows: int) -> None:
    logits = jnp.asarray(LOGITS)
    labels = jnp.asarray(LABELS)
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


def test_half_precision_logits_are_computed_in_float32() -> None:
    logits = jnp.asarray(LOGITS, jnp.bfloat16)
    found = channel_cross_entropy(logits, jnp.asarray(LABELS), identity_channel(10))
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(
        found, cross_entropy(logits.astype(jnp.float32), jnp.asarray(LABELS))
    )


def test_clients_with_labels_coarse_labels_sets_and_nothing_share_one_program() -> None:
    """One vmap over padded channels gives what every client gets alone."""
    sets = set_channel(
        np.array([[0.7, 0.2, 0.1], [0.2, 0.8, 0.0]]),
        np.array([0.4, 0.6]),
        np.array([0.5, 0.3, 0.2]),
    )
    nothing = Channel(jnp.zeros((0, 3)), jnp.zeros(0, bool))
    channels = [identity_channel(3), correspondence_channel(NESTED), sets, nothing]
    stacked = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), *[pad_channel(channel, 4) for channel in channels]
    )
    logits = jnp.asarray(LOGITS[:6, :3])
    observed = jnp.asarray(
        [[0, 1, 2, -1, 1, 0], [0, 1, 0, 1, -1, 0], [1, 1, 0, 0, 1, -1], [-1] * 6], jnp.int32
    )

    values, gradients = jax.vmap(loss_and_slope, in_axes=(None, 0, 0))(logits, observed, stacked)
    for client, channel in enumerate(channels[:3]):
        value, gradient = loss_and_slope(logits, observed[client], channel)
        np.testing.assert_allclose(values[client], value, rtol=1e-6)
        np.testing.assert_allclose(gradients[client], gradient, rtol=1e-5, atol=1e-6)
    assert float(values[3]) == 0.0
    np.testing.assert_array_equal(gradients[3], 0.0)


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
    channel = correspondence_channel(matrix)
    observed = jnp.asarray([0, 1, 2, -1], jnp.int32)
    logits = jnp.asarray(LOGITS[:4, :3])
    np.testing.assert_array_equal(is_observable(observed, channel), [True, False, True, False])
    value, gradient = loss_and_slope(logits, observed, channel)
    np.testing.assert_array_equal(
        channel_cross_entropy(logits, observed, channel)[jnp.asarray([1, 3])], 0.0
    )
    assert np.isfinite(value) and np.isfinite(gradient).all()
    np.testing.assert_array_equal(np.asarray(gradient)[[1, 3]], 0.0)
    assert float(channel_log_probs(logits, channel)[0, 1]) == float(jnp.finfo(jnp.float32).min)


def test_a_channel_of_traced_values_with_zeros_has_finite_gradients() -> None:
    logits = jnp.asarray(LOGITS[:4, :3])
    observed = jnp.asarray([0, 1, 0, 1], jnp.int32)

    @jax.jit
    def both(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.grad(
            lambda z, m: channel_cross_entropy(z, observed, correspondence_channel(m)).sum(),
            argnums=(0, 1),
        )(logits, matrix)

    to_logits, to_matrix = both(jnp.asarray(NESTED, jnp.float32))
    assert np.isfinite(to_logits).all() and np.isfinite(to_matrix).all()
    expected = np.concatenate(
        [slope(LOGITS[i, :3], NESTED, int(observed[i]))[None] for i in range(4)]
    )
    np.testing.assert_allclose(to_logits, expected, rtol=1e-5, atol=1e-6)


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
    np.testing.assert_allclose(
        slope(logits, NESTED, 0), [-0.09827473, -0.05960664, 0.15788137], atol=1e-8
    )
    np.testing.assert_allclose(
        slope(logits, NESTED, 1), [0.52418460, 0.31793403, -0.84211863], atol=1e-8
    )
    fine = cross_entropy(jnp.asarray(logits)[None], jnp.asarray([1], jnp.int32))
    assert float(fine[0]) == pytest.approx(1.1459113654, abs=1e-10)


def test_overlapping_spaces(float64) -> None:
    """FedMT section 13, check 2."""
    matrix = np.array([[1, 0, 0, 0, 0.6], [0, 1, 1, 0, 0], [0, 0, 0, 1, 0.4]])
    logits = np.array([0.2, -0.3, 0.1, 0.0, 1.0])
    log_probs = channel_log_probs(jnp.asarray(logits)[None], correspondence_channel(matrix))
    np.testing.assert_allclose(
        np.exp(log_probs[0]), [0.42035205, 0.27204213, 0.30760582], atol=1e-8
    )
    found = losses(np.stack([logits] * 3), matrix, [0, 1, 2])
    np.testing.assert_allclose(found, [0.8666627066, 1.3017983323, 1.1789361205], atol=1e-10)
    gradient = slope(logits, matrix, 0)
    np.testing.assert_allclose(
        gradient, [-0.24820873, 0.10917386, 0.16286827, 0.14736930, -0.17120270], atol=1e-8
    )
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
    np.testing.assert_allclose(
        losses(logits, same, [0, 1]), [0.3566749439, 1.2039728043], atol=1e-10
    )
    np.testing.assert_allclose(slope(logits[0], same, 0), 0.0, atol=1e-15)
    np.testing.assert_array_equal(losses(logits, np.ones((1, 3)), [0, 0]), 0.0)


def test_underflow_stays_finite() -> None:
    """FedMT section 13, check 5, in float32, where -log(M p) is inf."""
    logits = np.array([0.0, 0.0, -200.0], np.float32)
    assert float(losses(logits[None], NESTED, [1])[0]) == pytest.approx(200.6931471806, rel=1e-6)
    np.testing.assert_allclose(slope(logits, NESTED, 1), [0.5, 0.5, -1.0], rtol=1e-6)


@pytest.mark.thorough
def test_double_softmax_and_its_floors(float64) -> None:
    """FedMT section 13, check 6."""
    label = jnp.asarray([0], jnp.int32)
    logits = jnp.log(jnp.asarray([[0.9, 0.08, 0.02]]))
    assert float(channel_cross_entropy(logits, label, identity_channel(3))[0]) == pytest.approx(
        0.1053605157, abs=1e-10
    )
    twice = channel_cross_entropy_on_probs(logits, label, identity_channel(3))
    assert float(twice[0]) == pytest.approx(0.6180003585, abs=1e-10)
    # Padding does not move the floor.
    for num, floor in [(3, 0.5514), (20, 2.0782)]:
        sure = jnp.where(jnp.arange(num) == 0, 1000.0, 0.0)[None]
        found = channel_cross_entropy_on_probs(sure, label, pad_channel(identity_channel(num), 20))
        assert float(found[0]) == pytest.approx(floor, abs=1e-4)


def test_missing_mass_of_a_matrix_is_shared_out(float64) -> None:
    matrix = np.array([[0.5, 0.0, 0.2], [0.1, 0.7, 0.0]])
    logits = LOGITS[:4, :3].astype(np.float64)
    expected = softmax(logits) @ matrix.T
    without = channel_log_probs(jnp.asarray(logits), correspondence_channel(matrix))
    np.testing.assert_allclose(
        np.exp(without), expected / expected.sum(1, keepdims=True), rtol=1e-12
    )


def test_invariants_of_the_projection(float64) -> None:
    """FedMT section 13, check 11."""
    rng = np.random.default_rng(1)
    matrix = rng.dirichlet(np.full(3, 0.5), size=5).T
    logits = 3 * rng.normal(size=(50, 5))
    observed = rng.integers(0, 3, 50)

    probs = softmax(logits)
    posterior = matrix[observed] * probs / (matrix[observed] * probs).sum(1, keepdims=True)
    _, found = loss_and_slope(
        jnp.asarray(logits), jnp.asarray(observed, jnp.int32), correspondence_channel(matrix)
    )
    found = np.asarray(found)
    # Also the gradient of cross-entropy with the soft target that is the posterior given the coarse
    # label.
    np.testing.assert_allclose(found, probs - posterior, atol=1e-13)
    np.testing.assert_allclose(found.sum(1), 0.0, atol=1e-13)
    assert np.linalg.norm(found, axis=1).max() <= np.sqrt(2)
    log_probs = channel_log_probs(jnp.asarray(logits), correspondence_channel(matrix))
    np.testing.assert_allclose(np.exp(log_probs).sum(1), 1.0, rtol=1e-13)
    fine = rng.permutation(5)
    coarse = rng.permutation(3)
    expected = losses(logits, matrix, observed)
    np.testing.assert_allclose(
        losses(logits[:, fine], matrix[:, fine], observed), expected, rtol=1e-12
    )
    np.testing.assert_allclose(
        losses(logits, matrix[coarse], np.argsort(coarse)[observed]), expected, rtol=1e-12
    )


def test_the_projection_loss_is_not_convex_and_does_not_identify(float64) -> None:
    """FedMT section 13, checks 12 and 13."""
    channel = correspondence_channel(NESTED)
    label = jnp.asarray([0], jnp.int32)
    curvature = jax.jit(jax.hessian(lambda z: channel_cross_entropy(z[None], label, channel)[0]))(
        jnp.zeros(3)
    )
    np.testing.assert_allclose(np.linalg.eigvalsh(curvature), [-1 / 6, 0, 1 / 3], atol=1e-12)
    alike = np.log([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3]])
    log_probs = channel_log_probs(jnp.asarray(alike), channel)
    np.testing.assert_allclose(np.exp(log_probs), [[0.7, 0.3]] * 2, rtol=1e-12)
