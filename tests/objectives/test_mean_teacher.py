import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.objectives import consistency, consistency_ramp, teacher_decay


def test_consistency_is_the_mean_square_over_rows_and_classes(float64) -> None:
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 5, 3))
    mask = np.array([True, False, True, True, False])
    found = consistency(jnp.asarray(one), jnp.asarray(other), jnp.asarray(mask))
    assert float(found) == pytest.approx(((one - other)[mask] ** 2).sum() / (3 * 3), rel=1e-12)
    assert float(consistency(jnp.asarray(one), jnp.asarray(other), jnp.zeros(5, bool))) == 0.0


def test_ramp_values() -> None:
    """XCLP section 5.4: lambda_r = 100 exp(-5 (1 - min(r, 5) / 5)^2), r from 1."""
    ramp = [float(consistency_ramp(jnp.asarray(r, jnp.int32), 100.0, 5)) for r in range(1, 7)]
    np.testing.assert_allclose(ramp, [4.0762, 16.5299, 44.9329, 81.8731, 100.0, 100.0], rtol=1e-5)


def test_decay_follows_the_plain_mean_until_it_reaches_its_limit() -> None:
    decays = [float(teacher_decay(jnp.asarray(float(t)), 0.97)) for t in (1, 2, 3, 32, 33, 1000)]
    np.testing.assert_allclose(decays, [1 / 2, 2 / 3, 3 / 4, 32 / 33, 0.97, 0.97], rtol=1e-6)
