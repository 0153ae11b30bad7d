"""Losses that need no label: consistency of views, votes of helpers, teachers, mixed inputs, adversarial directions."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from fedjax_ssl.objectives import (
    agreement_vote,
    annealed_cross_entropy,
    batch_cross_entropy,
    consistency,
    consistency_ramp,
    fixmatch_loss,
    inter_client_kl,
    mixup,
    mixup_cross_entropy,
    mixup_share,
    teacher_decay,
    training_signal_ceiling,
    uda_loss,
    vat_direction,
    vat_loss,
)

WEAK = np.array([[5.0, 0, 0], [1, 0.5, 0], [0, 0, 4]])
STRONG = np.array([[2.0, 1, 0], [0, 0, 3], [1, 0, 0.5]])
ALL = np.ones(3, bool)


def test_fixmatch_is_the_mean_over_the_whole_batch(float64) -> None:
    """FedRGD's specification, check 1."""
    value, (weak, strong) = jax.jit(jax.value_and_grad(fixmatch_loss, (0, 1)))(WEAK, STRONG, ALL, 0.95)
    assert float(value) == pytest.approx(0.5292918784, abs=1e-10)
    assert not np.any(weak) and not np.any(strong[1]), "no gradient reaches targets or rows that are not confident"
    assert np.all(np.any(np.asarray(strong)[[0, 2]] != 0, axis=1))


def test_fixmatch_of_a_view_against_itself(float64) -> None:
    both = np.concatenate([WEAK, STRONG])
    value = jax.jit(fixmatch_loss)(both, both, np.ones(6, bool), 0.95)
    assert float(value) == pytest.approx(0.0082270336, abs=1e-10)


def test_uda_sharpens_the_targets_of_rows_it_is_sure_of(float64) -> None:
    """FedMatch's specification, check 14."""
    weak, strong = np.array([[3.0, 1, 0], [1, 0.5, 0]]), np.array([[2.0, 1, 0], [0, 1, 0]])
    assert float(uda_loss(weak, strong, np.ones(2, bool), 0.8, 0.4)) == pytest.approx(0.2076967, abs=1e-7)
    entropy = -sum(p * np.log(p) for p in (0.992762, 0.006689, 0.000549)) / 2
    assert 0.2076967 - entropy == pytest.approx(0.1852824, abs=1e-5), "the divergence lacks the targets' entropy"


def test_rows_outside_the_mask_do_not_count(float64) -> None:
    mask = np.array([True, False, True])
    for loss in (lambda w, s, m: fixmatch_loss(w, s, m, 0.3), lambda w, s, m: uda_loss(w, s, m, 0.0, 1.0)):
        np.testing.assert_allclose(loss(WEAK, STRONG, mask), loss(WEAK[mask], STRONG[mask], ALL[:2]), rtol=1e-12)


def test_annealing_drops_labelled_rows_that_are_known_too_well(float64) -> None:
    at = jnp.array([0, 0.25, 0.5, 0.75, 1])
    ceilings = training_signal_ceiling(at, 10)
    np.testing.assert_allclose(ceilings, [0.106064, 0.121166, 0.173876, 0.357854, 1], atol=5e-7)
    true = np.array([0.05, 0.15, 0.30, 0.90])
    logits, targets = np.log(np.stack([true, 1 - true], axis=1)), np.zeros(4, np.int32)
    losses = [annealed_cross_entropy(logits, targets, np.ones(4, bool), ceilings[i]) for i in (0, 2, 4)]
    np.testing.assert_allclose(losses, [2.995732, 2.446426, 1.550546], atol=1e-6)
    assert float(annealed_cross_entropy(logits, targets, np.ones(4, bool), 0.01)) == 0.0
    assert float(annealed_cross_entropy(logits, targets - 1, np.ones(4, bool), 1.0)) == 0.0


def test_schedules_of_the_annealing() -> None:
    linear, log = (training_signal_ceiling(jnp.asarray(0.5), 10, name) for name in ("linear", "log"))
    assert float(linear) == pytest.approx(0.55)
    assert float(log) == pytest.approx(0.1 + 0.9 * (1 - np.exp(-2.5)))
    with pytest.raises(ValueError, match="schedule is 'cosine'"):
        training_signal_ceiling(jnp.asarray(0.5), 10, "cosine")


# Votes and divergences between models of several clients: the digits of FedMatch.


HELPERS = np.array([[[0.7, 0.2, 0.1]], [[0.5, 0.4, 0.1]]])
LOCAL = np.array([[0.6, 0.3, 0.1]])


@pytest.mark.parametrize(
    ("local", "helpers", "lowest", "kept"), [(0, [2, 2], 2, 2), (3, [1, 2], 1, 3), (2, [2, 0, 0], 0, 2), (3, [], 3, 3)]
)
def test_the_class_with_most_votes_wins(local: int, helpers: list[int], lowest: int, kept: int) -> None:
    """FedMatch section 13, check 1: four classes, models that are sure; the last helper of three may be absent."""
    one_hot = np.eye(4)
    padded = np.array([*helpers, 1, 1, 1])[:3]
    there = np.arange(3) < len(helpers)
    for tie, expected in (("lowest_index", lowest), ("local", kept)):
        found = agreement_vote(one_hot[[local]], one_hot[padded][:, None], jnp.asarray(there), tie)
        assert found.dtype == jnp.int32 and found.tolist() == [expected]


def test_equal_probabilities_vote_for_the_lowest_class_and_no_helper_is_no_vote() -> None:
    equal = np.array([[0.4, 0.4, 0.1, 0.1]])
    assert agreement_vote(equal, np.zeros((0, 1, 4))).tolist() == [0]
    with pytest.raises(ValueError, match=r"tie is 'locla'\. Did you mean 'local'\? Allowed: lowest_index, local"):
        agreement_vote(equal, np.zeros((0, 1, 4)), tie="locla")


def test_divergence_from_the_helpers_and_its_slope(float64) -> None:
    """FedMatch section 13, check 2; the other direction of the first would be 0.0291491."""

    def mean(logits: jax.Array, there: jax.Array) -> jax.Array:
        return inter_client_kl(jax.nn.log_softmax(logits), jnp.asarray(HELPERS), there)[0]

    both = jax.jit(jax.value_and_grad(mean))
    logits = jnp.log(LOCAL)
    for there, expected in (([1, 0], 0.0268125), ([0, 1], 0.0239121), ([1, 1], 0.0253623), ([0, 0], 0.0)):
        value, slope = both(logits, jnp.asarray(there, bool))
        assert float(value) == pytest.approx(expected, abs=5e-8)
        chosen = HELPERS[np.asarray(there, bool), 0]
        target = chosen.mean(0) if len(chosen) else LOCAL[0]
        np.testing.assert_allclose(slope[0], LOCAL[0] - target, atol=1e-15)
    # The mean divergence is that of the mean and the spread around it.
    middle = HELPERS.mean(0)[0]
    spread = np.mean([(p * np.log(p / middle)).sum() for p in HELPERS[:, 0]])
    assert float(both(logits, jnp.ones(2, bool))[0]) == pytest.approx(
        (middle * np.log(middle / LOCAL[0])).sum() + spread, abs=1e-15
    )


def test_a_helper_that_excludes_a_class_has_a_finite_divergence() -> None:
    sure = np.array([[[1.0, 0.0]]], np.float32)
    found = inter_client_kl(jnp.log(jnp.asarray([[0.5, 0.5]])), jnp.asarray(sure))
    assert float(found[0]) == pytest.approx(np.log(2), rel=1e-6)


# Mean teacher.


def test_consistency_is_the_mean_square_over_rows_and_classes(float64) -> None:
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 5, 3))
    mask = np.array([True, False, True, True, False])
    found = consistency(jnp.asarray(one), jnp.asarray(other), jnp.asarray(mask))
    assert float(found) == pytest.approx(((one - other)[mask] ** 2).sum() / (3 * 3), rel=1e-12)
    assert float(consistency(jnp.asarray(one), jnp.asarray(other), jnp.zeros(5, bool))) == 0.0


@pytest.mark.parametrize(("number", "ramp_rounds"), [(1, 5), (2, 5), (5, 5), (6, 5), (100, 5), (1, 1), (3, 10)])
def test_ramp_of_the_published_schedule(float64, number: int, ramp_rounds: int) -> None:
    """XCLP section 5.4: lambda_r = 100 exp(-5 (1 - min(r, 5) / 5)^2), r from 1."""
    expected = 100 * math.exp(-5 * (1 - min(number, ramp_rounds) / ramp_rounds) ** 2)
    found = consistency_ramp(jnp.asarray(number, jnp.int32), 100.0, ramp_rounds)
    assert float(found) == pytest.approx(expected, rel=1e-12)


def test_decay_follows_the_plain_mean_until_it_reaches_its_limit() -> None:
    decays = [float(teacher_decay(jnp.asarray(float(t)), 0.97)) for t in (1, 2, 3, 32, 33, 1000)]
    np.testing.assert_allclose(decays, [1 / 2, 2 / 3, 3 / 4, 32 / 33, 0.97, 0.97], rtol=1e-6)


# Mixup.


ONE = jnp.ones(1, bool)


def test_mixed_loss_is_cross_entropy_with_a_soft_target(float64) -> None:
    """SemiFL section 12, check 5."""
    logits = jnp.asarray([[0.5, -0.5, 1.0]])
    first, second = jnp.asarray([0], jnp.int32), jnp.asarray([2], jnp.int32)
    found = float(mixup_cross_entropy(logits, first, second, 0.3, ONE))
    assert found == pytest.approx(0.7541306053, abs=1e-10)
    log_probs = np.asarray(logits[0]) - np.log(np.exp(logits[0]).sum())
    assert found == pytest.approx(-(0.3 * log_probs[0] + 0.7 * log_probs[2]), abs=1e-14)
    alone = mixup_cross_entropy(logits, first, second, jnp.asarray(1.0), ONE)
    assert float(alone) == float(batch_cross_entropy(logits, first, ONE))


def test_inputs_are_mixed_with_one_weight_in_their_own_type() -> None:
    first, second = jnp.ones((2, 3, 1), jnp.bfloat16), jnp.zeros((2, 3, 1), jnp.bfloat16)
    found = mixup(first, second, jnp.asarray(0.25, jnp.float32))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found.astype(jnp.float32), 0.25)


def test_images_as_stored_are_refused() -> None:
    with pytest.raises(ValueError, match="mixup got dtypes uint8 and uint8; inputs must be floating"):
        mixup(jnp.zeros(2, jnp.uint8), jnp.zeros(2, jnp.uint8), 0.5)


@pytest.mark.parametrize("alpha", [0.75, 2.0])
def test_shares_of_a_mix_are_beta_distributed(alpha: float) -> None:
    """Kolmogorov-Smirnov with 4,000 draws; a right sampler fails for one seed in 1,000, this seed is fixed."""
    keys = jax.random.split(jax.random.key(0), 4000)
    shares = np.asarray(jax.jit(jax.vmap(lambda key: mixup_share(key, alpha)))(keys), np.float64)
    assert scipy.stats.kstest(shares, scipy.stats.beta(alpha, alpha).cdf).pvalue > 1e-3
    assert shares.min() >= 0 and shares.max() <= 1
    if alpha == 0.75:  # SemiFL section 12, check 6: below its mean entropy no model brings the mixed loss
        entropy = scipy.special.entr(shares) + scipy.special.entr(1 - shares)
        np.testing.assert_allclose(entropy.mean(), 0.4556857, atol=0.01)


def test_the_parameter_of_the_share_is_checked() -> None:
    with pytest.raises(ValueError, match=r"alpha is 0.*above 0"):
        mixup_share(jax.random.key(0), 0.0)


# Virtual adversarial training.


RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(4, 2, 3))
KERNEL = RNG.normal(size=(6, 5))
HEAD = RNG.normal(size=(5, 3))


def network(inputs: jax.Array) -> jax.Array:
    hidden = jnp.tanh(inputs.reshape(len(inputs), -1) @ jnp.asarray(KERNEL, inputs.dtype))
    return hidden @ jnp.asarray(HEAD, inputs.dtype)


direction_of = jax.jit(functools.partial(vat_direction, network))


def test_direction_is_the_hessian_times_the_start(float64) -> None:
    """Against the explicit Fisher matrix J^T (diag p - p p^T) J of every example."""
    inputs, key = jnp.asarray(INPUTS), jax.random.key(1)
    found = np.asarray(direction_of(inputs, key, 0.7)).reshape(4, 6)
    start = np.asarray(jax.random.normal(key, (4, 2, 3))).reshape(4, 6)
    jacobians = np.asarray(jax.jit(jax.vmap(jax.jacobian(lambda x: network(x[None])[0])))(inputs))
    scores = np.asarray(jax.jit(network)(inputs))
    for row in range(4):
        jacobian = jacobians[row].reshape(3, 6)
        probs = np.exp(scores[row]) / np.exp(scores[row]).sum()
        fisher = jacobian.T @ (np.diag(probs) - np.outer(probs, probs)) @ jacobian
        expected = fisher @ start[row]
        np.testing.assert_allclose(found[row], 0.7 * expected / np.linalg.norm(expected), atol=1e-7)


def test_direction_has_the_radius_hurts_most_and_is_constant() -> None:
    inputs, key, mask = jnp.asarray(INPUTS, jnp.float32), jax.random.key(0), jnp.ones(4, bool)
    direction = direction_of(inputs, key, 0.05)
    np.testing.assert_allclose(np.linalg.norm(np.asarray(direction).reshape(4, -1), axis=1), 0.05, rtol=1e-4)
    noise = jax.random.normal(key, inputs.shape, jnp.float32)
    noise = 0.05 * noise / jnp.linalg.norm(noise.reshape(4, -1), axis=1)[:, None, None]
    clean = network(inputs)
    assert vat_loss(clean, network(inputs + direction), mask) > vat_loss(clean, network(inputs + noise), mask)
    slope = jax.jit(jax.grad(lambda scale: vat_direction(lambda x: scale * network(x), inputs, key, 0.05).sum()))(1.0)
    assert float(slope) == 0.0


def test_padding_changes_nothing_where_rows_are_normalized_together() -> None:
    """A row of padding is normalized by the others' statistics, so it has a prediction that moves with them."""

    def normalized(inputs: jax.Array, mask: jax.Array) -> jax.Array:
        rows = inputs.reshape(len(inputs), -1)
        mean, var = (jnp.mean(x, axis=0, where=mask[:, None]) for x in (rows, (rows - rows[mask].mean(0)) ** 2))
        return network((rows - mean) / jnp.sqrt(var + 1e-5))

    def direction(padding: int) -> np.ndarray:
        mask = np.arange(4 + padding) < 4
        inputs = jnp.pad(jnp.asarray(INPUTS, jnp.float32), ((0, padding), (0, 0), (0, 0)))
        key, predict = jax.random.key(1), functools.partial(normalized, mask=mask)
        return np.asarray(jax.jit(lambda x: vat_direction(predict, x, key, 0.7, mask=mask))(inputs))

    padded = direction(3)
    np.testing.assert_allclose(padded[:4], direction(0), atol=1e-5)
    np.testing.assert_array_equal(padded[4:], 0.0)


def test_loss_is_the_mean_divergence_from_a_constant(float64) -> None:
    one, other = jnp.asarray(RNG.normal(size=(3, 4))), jnp.asarray(RNG.normal(size=(3, 4)))
    mask = jnp.asarray([True, False, True])
    p, q = (np.exp(z) / np.exp(z).sum(1, keepdims=True) for z in (np.asarray(one), np.asarray(other)))
    expected = (p * np.log(p / q)).sum(1)[[0, 2]].mean()
    assert float(vat_loss(one, other, mask)) == pytest.approx(expected, rel=1e-12)
    np.testing.assert_array_equal(jax.grad(vat_loss)(one, other, mask), 0.0)
    slope = jax.grad(vat_loss, argnums=1)(one, other, mask)
    np.testing.assert_allclose(slope, (q - p) * np.asarray(mask)[:, None] / 2, atol=1e-14)
