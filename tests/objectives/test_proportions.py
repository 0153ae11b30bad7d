import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.objectives import l1_norm, proportion_loss

PROPORTIONS = np.array([0.5, 0.3, 0.2])
PREDICTIONS = np.array([[0.9, 0.05, 0.05], [0.2, 0.7, 0.1], [0.3, 0.3, 0.4]])


def test_worked_loss_and_its_minimum(float64) -> None:
    """FedUL section 14, check 14."""
    everything = jnp.ones(3, bool)
    found = proportion_loss(jnp.log(jnp.asarray(PREDICTIONS)), jnp.asarray(PROPORTIONS), everything)
    assert float(found) == pytest.approx(1.0353065213, abs=1e-10)
    exact = proportion_loss(
        jnp.log(jnp.asarray(np.tile(PROPORTIONS, (3, 1)))), jnp.asarray(PROPORTIONS), everything
    )
    assert float(exact) == pytest.approx(1.0296530141, abs=1e-10)


def test_padding_may_be_anything_and_an_empty_set_costs_nothing() -> None:
    logits = jnp.concatenate(
        [jnp.log(jnp.asarray(PREDICTIONS, jnp.float32)), jnp.full((2, 3), jnp.nan, jnp.float32)]
    )
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
    params = {
        "kernel": jnp.asarray([[1.0, -2.0]]),
        "norm": (jnp.asarray([0.0, -0.5], jnp.bfloat16),),
    }
    value, gradient = jax.value_and_grad(l1_norm)(params)
    assert float(value) == 3.5 and value.dtype == jnp.float32
    np.testing.assert_array_equal(gradient["kernel"], [[1, -1]])
    np.testing.assert_array_equal(gradient["norm"][0].astype(jnp.float32), [0, -1])
    assert float(l1_norm({})) == 0.0
