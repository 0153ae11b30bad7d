"""Label channels as such: the identity, padding, precision, and the numbers of labels of another
space (FedMT section 13).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.objectives import Channel, identity_channel, is_observable, pad_channel
from tests.objectives.compiled import (
    by_hand,
    channel_cross_entropy,
    channel_log_probs,
    correspondence_channel,
    cross_entropy,
    loss_and_slope,
    set_channel,
)

RNG = np.random.default_rng(0)
NESTED = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
OVERLAPPING = np.array([[1, 0, 0, 0, 0.6], [0, 1, 1, 0, 0], [0, 0, 0, 1, 0.4]])
LOGITS = (5 * RNG.normal(size=(16, 10))).astype(np.float32)
LABELS = np.concatenate([RNG.integers(0, 10, 13), [-1, 9, -1]]).astype(np.int32)


@pytest.mark.parametrize("num_rows", [10, 64])
def test_identity_is_cross_entropy_to_the_bit(num_rows: int) -> None:
    logits = jnp.asarray(LOGITS)
    labels = jnp.asarray(LABELS)
    channel = pad_channel(identity_channel(10), num_rows)
    weights = jnp.asarray(RNG.uniform(0.5, 2, 16), jnp.float32)
    found, expected = (
        jax.jit(jax.value_and_grad(lambda z, of=of: jnp.sum(of(z) * weights)))(logits)
        for of in (
            lambda z: channel_cross_entropy(z, labels, channel),
            lambda z: cross_entropy(z, labels),
        )
    )
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])
    assert float(jnp.sum(jnp.abs(found[1]))) > 0


def test_half_precision_logits_are_computed_in_float32() -> None:
    logits = jnp.asarray(LOGITS, jnp.bfloat16)
    found = channel_cross_entropy(logits, jnp.asarray(LABELS), identity_channel(10))
    expected = cross_entropy(logits.astype(jnp.float32), jnp.asarray(LABELS))
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, expected)


def test_clients_with_labels_coarse_labels_sets_and_nothing_share_one_program() -> None:
    """One vmap over padded channels gives what every client gets alone; padding is never read."""
    priors = np.array([[0.7, 0.2, 0.1], [0.2, 0.8, 0.0]])
    sets = set_channel(priors, np.array([0.4, 0.6]), np.array([0.5, 0.3, 0.2]))
    nothing = Channel(jnp.zeros((0, 3)), jnp.zeros(0, bool))
    channels = [identity_channel(3), correspondence_channel(NESTED), sets, nothing]
    stacked = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), *[pad_channel(c, 4) for c in channels]
    )
    weights = jnp.where(stacked.valid[..., None], stacked.log_weights, jnp.nan)
    stacked = stacked._replace(log_weights=weights)
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
    with pytest.raises(ValueError, match="num_rows is 2; the channel has 3 rows already"):
        pad_channel(identity_channel(3), 2)


def test_an_impossible_observation_costs_nothing_and_is_reported() -> None:
    """A row of zeros, as an estimated matrix can have one."""
    channel = correspondence_channel(np.insert(NESTED, 1, 0.0, axis=0))
    observed = jnp.asarray([0, 1, 2, -1], jnp.int32)
    logits = jnp.asarray(LOGITS[:4, :3])
    np.testing.assert_array_equal(is_observable(observed, channel), [True, False, True, False])
    value, gradient = loss_and_slope(logits, observed, channel)
    assert np.isfinite(value) and np.isfinite(gradient).all()
    nothing = np.array([1, 3])
    np.testing.assert_array_equal(channel_cross_entropy(logits, observed, channel)[nothing], 0.0)
    np.testing.assert_array_equal(gradient[nothing], 0.0)
    assert float(channel_log_probs(logits, channel)[0, 1]) == float(jnp.finfo(jnp.float32).min)


def test_a_channel_of_traced_values_with_zeros_has_finite_gradients() -> None:
    """Also of sets: an empty one, a padded row, zeros in the priors (FedUL section 14, check 9)."""
    observed = jnp.asarray([0, 1, 3, -1], jnp.int32)
    logits = jnp.asarray([[200.0, -200.0, 0.0]] * 4, jnp.float32)
    priors = jnp.asarray([[0, 0.5, 0.5], [0.2, 0.5, 0.3], [0, 0, 0], [0.3, 0.3, 0.4]], jnp.float32)
    shares = jnp.asarray([0.5, 0.5, 0.0, 0.0], jnp.float32)

    def total(make, z, *parts):
        return channel_cross_entropy(z, observed, make(*parts)).sum()

    def of_sets(priors, shares):
        return set_channel(priors, shares, np.array([0.5, 0.3, 0.2]))

    for make, parts in ((correspondence_channel, (priors,)), (of_sets, (priors, shares))):
        slope = jax.jit(jax.grad(total, argnums=tuple(range(1, 2 + len(parts)))), static_argnums=0)
        gradients = slope(make, logits, *parts)
        assert all(np.isfinite(gradient).all() for gradient in gradients)
        np.testing.assert_array_equal(gradients[0][3], 0.0)
        assert float(jnp.abs(gradients[0][0]).sum()) > 1


@pytest.mark.parametrize(
    ("matrix", "logits", "probs", "losses", "slopes"),
    [
        # check 1, nested spaces
        (
            NESTED,
            [1.0, 0.5, -0.2],
            [0.84211863, 0.15788137],
            [0.1718343812, 1.8459113654],
            [[-0.09827473, -0.05960664, 0.15788137], [0.52418460, 0.31793403, -0.84211863]],
        ),
        # check 2, overlapping ones
        (
            OVERLAPPING,
            [0.2, -0.3, 0.1, 0.0, 1.0],
            [0.42035205, 0.27204213, 0.30760582],
            [0.8666627066, 1.3017983323, 1.1789361205],
            [[-0.24820873, 0.10917386, 0.16286827, 0.14736930, -0.17120270]],
        ),
        # checks 3, 4 and 14: the identity, and matrices that tell nothing
        (np.eye(3), [2.0, -1.0, 0.5], None, [0.2413112967, 3.2413112967, 1.7413112967], []),
        (
            [[0.7] * 3, [0.3] * 3],
            [3.0, -2.0, 0.1],
            [0.7, 0.3],
            [0.3566749439, 1.2039728043],
            [[0.0] * 3] * 2,
        ),
        (np.ones((1, 3)), [3.0, -2.0, 0.1], [1.0], [0.0], [[0.0] * 3]),
    ],
)
def test_worked_examples(float64, matrix, logits, probs, losses, slopes) -> None:
    channel = correspondence_channel(np.asarray(matrix))
    rows = jnp.tile(jnp.asarray(logits), (len(losses), 1))
    observed = jnp.arange(len(losses), dtype=jnp.int32)
    if probs is not None:
        np.testing.assert_allclose(np.exp(channel_log_probs(rows, channel)[0]), probs, atol=1e-8)
    found = channel_cross_entropy(rows, observed, channel)
    np.testing.assert_allclose(found, losses, atol=1e-10)
    for observation, slope in enumerate(slopes):
        one = observed[observation : observation + 1]
        np.testing.assert_allclose(loss_and_slope(rows[:1], one, channel)[1], [slope], atol=1e-8)


@pytest.mark.parametrize("matrix", [RNG.dirichlet(np.full(3, 0.5), size=5).T, OVERLAPPING / 2])
def test_the_projection_against_numpy(float64, matrix) -> None:
    """Check 11, also of a matrix whose columns lack mass: their order does not matter."""
    logits = 3 * RNG.normal(size=(50, 5))
    observed = RNG.integers(0, 3, 50)
    probs, losses, slopes = by_hand(logits, observed, matrix)
    fine = RNG.permutation(5)
    coarse = RNG.permutation(3)
    own = jnp.asarray(np.argsort(coarse)[observed], jnp.int32)
    channel = correspondence_channel(matrix[coarse][:, fine])
    z = jnp.asarray(logits[:, fine])
    np.testing.assert_allclose(np.exp(channel_log_probs(z, channel)), probs[:, coarse], rtol=1e-10)
    np.testing.assert_allclose(channel_cross_entropy(z, own, channel), losses, rtol=1e-10)
    found = np.asarray(loss_and_slope(z, own, channel)[1])
    np.testing.assert_allclose(found, slopes[:, fine], atol=1e-13)
    assert np.linalg.norm(found, axis=1).max() <= np.sqrt(2)


def test_underflow_stays_finite() -> None:
    """Check 5, in float32, where -log(M p) is inf."""
    logits = jnp.asarray([[0.0, 0.0, -200.0]], jnp.float32)
    value, slope = loss_and_slope(logits, jnp.asarray([1]), correspondence_channel(NESTED))
    assert float(value) == pytest.approx(200.6931471806, rel=1e-6)
    np.testing.assert_allclose(slope, [[0.5, 0.5, -1.0]], rtol=1e-6)
