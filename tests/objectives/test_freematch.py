"""FreeMatch: the numbers of the specification's checks, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.objectives import (
    FreeMatch,
    batch_mean,
    class_fairness,
    cross_entropy,
    freematch_start,
    freematch_thresholds,
    freematch_update,
)

Q = [[0.97, 0.02, 0.01], [0.5, 0.3, 0.2], [0.2, 0.45, 0.35], [0.1, 0.3, 0.6], [0.36, 0.33, 0.31]]
STRONG = [[2.0, 0, -1], [1, 0.5, 0], [0, 1, 0], [1, 0, 0.2], [0.2, 0.4, -0.3]]
ALL = np.ones(5, bool)


def loss(counted: jax.Array) -> float:
    losses = cross_entropy(jnp.asarray(STRONG), jnp.argmax(jnp.asarray(Q), axis=1))
    return float(batch_mean(losses, jnp.asarray(ALL), counted))


def reached(thresholds: jax.Array) -> np.ndarray:
    q = np.asarray(Q)
    return q.max(1) >= np.asarray(thresholds)[q.argmax(1)]


def test_freematch(float64) -> None:
    """Check 2: from the start, and later on."""
    q = jnp.asarray(Q)
    first = freematch_update(freematch_start(3), q, ALL)
    assert float(first.confidence) == pytest.approx(0.333576, abs=1e-12)
    np.testing.assert_allclose(first.classes, [0.333426, 0.33328, 0.333294], atol=1e-12)
    assert reached(freematch_thresholds(first)).all()
    later = FreeMatch(jnp.asarray(0.8), jnp.asarray([0.5, 0.3, 0.2]), jnp.asarray([0.6, 0.3, 0.1]))
    state = freematch_update(later, q, ALL)
    assert float(state.confidence) == pytest.approx(0.799776, abs=1e-12)
    np.testing.assert_allclose(state.classes, [0.499926, 0.29998, 0.200094], atol=1e-12)
    np.testing.assert_allclose(state.labels, [0.6, 0.2999, 0.1001], atol=1e-12)
    thresholds = freematch_thresholds(state)
    np.testing.assert_allclose(thresholds, [0.799776, 0.4799046348, 0.3201081339], atol=1e-10)
    mask = reached(thresholds)
    np.testing.assert_array_equal(mask, [1, 0, 0, 1, 0])
    assert loss(jnp.asarray(mask)) == pytest.approx(0.3134294999, abs=1e-10)
    fairness = jax.jit(jax.value_and_grad(class_fairness))
    value, slope = fairness(jnp.asarray(STRONG), jnp.asarray(mask), state)
    assert float(value) == pytest.approx(-21.6237316662, abs=1e-9)
    np.testing.assert_allclose(slope, 0.0, atol=1e-12)
    value, slope = fairness(jnp.asarray(STRONG), jnp.asarray(ALL), state)
    assert float(value) == pytest.approx(-14.7437703605, abs=1e-9)
    assert np.abs(slope).max() > 1e-3
    nobody = fairness(jnp.asarray(STRONG), jnp.asarray(~ALL), state)
    np.testing.assert_array_equal(np.concatenate([[nobody[0]], np.ravel(nobody[1])]), 0.0)


def test_padding_moves_nothing(float64) -> None:
    q = jnp.asarray(Q)
    start = freematch_start(3)
    np.testing.assert_array_equal(freematch_update(start, q, ~ALL)[0], start[0])
    padded = jnp.concatenate([q, jnp.full((2, 3), jnp.nan)])
    found = freematch_update(start, padded, np.r_[ALL, 0, 0] > 0)
    for own, expected in zip(found, freematch_update(start, q, ALL), strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-12)
