"""SAGE: numbers of the specification's checks, limits and edge cases."""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ssl import methods
from fedjax_ssl.contrib.methods.sage import corrected_labels, local_share
from fedjax_ssl.objectives import soft_label_divergence
from tests import toy
from tests.methods.parts.test_guess import OURS, STRONG, THEIRS


def key() -> jax.Array:
    return jax.random.key(3)


def sure_at(threshold: float):
    return lambda probabilities: jnp.max(probabilities, axis=1) >= threshold


def test_share_of_the_local_label(float64) -> None:
    """Check 1."""
    shares = local_share(jnp.asarray([0.0, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0]))
    expected = [
        0.9999861372,
        0.8705384950,
        0.4999930686,
        0.2499965343,
        0.0624991336,
        0.0009765490,
        0.000001,
    ]
    np.testing.assert_allclose(shares, expected, atol=1e-10)


def test_targets_loss_and_gradient(float64) -> None:
    """Check 2."""
    everybody = jnp.ones(5, bool)
    strong = jnp.asarray(STRONG)

    @jax.jit
    def found():
        corrected = corrected_labels(jnp.asarray(OURS), jnp.asarray(THEIRS), sure_at(0.95))
        targets = corrected.targets
        one_by_one = [
            5 * soft_label_divergence(strong, targets, everybody, jnp.arange(5) == row)
            for row in range(5)
        ]
        loss, slope = jax.value_and_grad(soft_label_divergence)(
            strong, targets, everybody, corrected.counted
        )
        soft = -jnp.sum(corrected.targets * jax.nn.log_softmax(strong), axis=1)
        return (
            corrected,
            jnp.stack(one_by_one),
            loss,
            slope,
            jnp.mean(jnp.where(corrected.counted, soft, 0.0)),
        )

    corrected, rows, loss, slope, soft = found()
    targets = [
        [1, 0, 0],
        [0.0272043280, 0.9727956720, 0],
        [0, 1, 0],
        [0, 1, 0],
        [0.8122411362, 0.1877588638, 0],
    ]
    np.testing.assert_allclose(corrected.targets, targets, atol=1e-10)
    np.testing.assert_array_equal(corrected.counted, [True, True, True, False, True])
    np.testing.assert_allclose(
        rows, [0.1698460155, 1.0417819020, 0.5514447096, 1.5514447093, 0.5190375020], atol=1.5e-10
    )
    np.testing.assert_allclose([loss, soft], [0.4564220258, 0.5779905343], atol=1e-10)
    gradient = [
        [-0.0312410531, 0.0228390399, 0.0084020132],
        [0.0958552126, -0.1331199573, 0.0372647446],
        [0.0423883115, -0.0847766230, 0.0423883115],
        [0.0, 0.0, 0.0],
        [-0.0917252043, 0.0488295225, 0.0428956818],
    ]
    np.testing.assert_allclose(slope, gradient, atol=1e-9)


def test_limits_of_the_targets() -> None:
    """Check 5: a share of 1 is FixMatch where the local model is confident, a share of 0 takes
    the global class.
    """
    ours = jnp.asarray(OURS)
    theirs = jnp.asarray(THEIRS)
    of = jax.jit(lambda kappa: corrected_labels(ours, theirs, sure_at(0.95), kappa))
    local = of(0.0)
    both = of(1e9)
    sure = np.asarray(OURS).max(1) >= 0.95
    np.testing.assert_allclose(np.asarray(local.targets)[sure], np.eye(3)[[0, 0, 0]])
    np.testing.assert_allclose(both.targets, np.eye(3)[np.argmax(THEIRS, axis=1)], atol=1.1e-6)


def test_a_client_with_less_than_a_batch_takes_no_step_and_one_without_labels_learns_from_the_others() -> (
    None
):
    """Edge cases."""
    data = toy.federation(sizes=(3, 8), labelled=(3, 0))
    run = toy.setup(data, model=toy.linear_model())
    method = methods.build("sage", run, threshold=0.0)
    start = jax.jit(method.init)(key(), data)
    state, info = jax.jit(method.round)(key(), start, data)
    assert info["local_steps"] == 2 * 2 and info["examples"] == 4 * 8
    chex.assert_tree_all_finite(state)
