import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.objectives import (
    annealed_cross_entropy,
    fixmatch_loss,
    soft_cross_entropy,
    training_signal_ceiling,
)

WEAK = np.array([[5.0, 0, 0], [1, 0.5, 0], [0, 0, 4]])
STRONG = np.array([[2.0, 1, 0], [0, 0, 3], [1, 0, 0.5]])
ALL = np.ones(3, bool)


def uda_loss(weak, strong, mask, threshold: float, temperature: float):
    """UDA's as the method has it: of the rows above the threshold, with sharpened targets."""
    counted = jnp.max(jax.nn.softmax(weak), axis=1) > threshold
    targets = jax.nn.softmax(jnp.asarray(weak) / temperature)
    return soft_cross_entropy(jnp.asarray(strong), targets, jnp.asarray(mask), counted)


def test_fixmatch_is_the_mean_over_the_whole_batch(float64) -> None:
    """FedRGD's specification, check 1."""
    value, (weak, strong) = jax.jit(jax.value_and_grad(fixmatch_loss, (0, 1)))(
        WEAK, STRONG, ALL, 0.95
    )
    assert float(value) == pytest.approx(0.5292918784, abs=1e-10)
    assert not np.any(weak) and not np.any(strong[1]), (
        "no gradient reaches targets or rows that are not confident"
    )
    assert np.all(np.any(np.asarray(strong)[[0, 2]] != 0, axis=1))


def test_fixmatch_of_a_view_against_itself_and_over_confident_rows(float64) -> None:
    """ProtoFSSL's mean is over the confident rows; without one the loss is 0."""
    both = np.concatenate([WEAK, STRONG])
    value = jax.jit(fixmatch_loss)(both, both, np.ones(6, bool), 0.95)
    assert float(value) == pytest.approx(0.0082270336, abs=1e-10)
    for threshold, share in ((0.95, 3 / 2), (0.9999, 0)):
        confident = fixmatch_loss(WEAK, STRONG, ALL, threshold, mask_mean="confident")
        whole = fixmatch_loss(WEAK, STRONG, ALL, 0.95)
        np.testing.assert_allclose(confident, share * whole, rtol=1e-12)


def test_uda_sharpens_the_targets_of_rows_it_is_sure_of(float64) -> None:
    """FedMatch's specification, check 14."""
    weak = np.array([[3.0, 1, 0], [1, 0.5, 0]])
    strong = np.array([[2.0, 1, 0], [0, 1, 0]])
    assert float(uda_loss(weak, strong, np.ones(2, bool), 0.8, 0.4)) == pytest.approx(
        0.2076967, abs=1e-7
    )
    entropy = -sum(p * np.log(p) for p in (0.992762, 0.006689, 0.000549)) / 2
    assert 0.2076967 - entropy == pytest.approx(0.1852824, abs=1e-5), (
        "the divergence lacks the targets' entropy"
    )


@pytest.mark.parametrize(
    "loss",
    [lambda *rows: fixmatch_loss(*rows, 0.3), lambda *rows: uda_loss(*rows, 0.0, 1.0)],
)
def test_rows_outside_the_mask_do_not_count(float64, loss) -> None:
    mask = np.array([True, False, True])
    alone = loss(WEAK[mask], STRONG[mask], ALL[:2])
    np.testing.assert_allclose(loss(WEAK, STRONG, mask), alone, rtol=1e-12)


def test_annealing_drops_labelled_rows_that_are_known_too_well(float64) -> None:
    at = jnp.array([0, 0.25, 0.5, 0.75, 1])
    ceilings = training_signal_ceiling(at, 10)
    np.testing.assert_allclose(ceilings, [0.106064, 0.121166, 0.173876, 0.357854, 1], atol=5e-7)
    true = np.array([0.05, 0.15, 0.30, 0.90])
    logits = np.log(np.stack([true, 1 - true], axis=1))
    targets = np.zeros(4, np.int32)
    losses = [
        annealed_cross_entropy(logits, targets, np.ones(4, bool), ceilings[i]) for i in (0, 2, 4)
    ]
    np.testing.assert_allclose(losses, [2.995732, 2.446426, 1.550546], atol=1e-6)
    assert float(annealed_cross_entropy(logits, targets, np.ones(4, bool), 0.01)) == 0.0
    assert float(annealed_cross_entropy(logits, targets - 1, np.ones(4, bool), 1.0)) == 0.0


def test_schedules_of_the_annealing() -> None:
    linear, log = (
        training_signal_ceiling(jnp.asarray(0.5), 10, name) for name in ("linear", "log")
    )
    assert float(linear) == pytest.approx(0.55)
    assert float(log) == pytest.approx(0.1 + 0.9 * (1 - np.exp(-2.5)))
    with pytest.raises(ValueError, match="schedule is 'cosine'"):
        training_signal_ceiling(jnp.asarray(0.5), 10, "cosine")
