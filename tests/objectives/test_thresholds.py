"""FlexMatch, FreeMatch and SoftMatch: the numbers of the specification's checks, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.objectives import (
    FreeMatch,
    SoftMatch,
    batch_mean,
    class_fairness,
    cross_entropy,
    flexmatch_rates,
    flexmatch_thresholds,
    freematch_start,
    freematch_thresholds,
    freematch_update,
    last_labels,
    softmatch_start,
    softmatch_update,
    softmatch_weights,
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


@pytest.mark.parametrize(
    ("counts", "rates", "mask"),
    [
        ([4.0, 2, 1, 3], [1, 0.5, 0.25], [1, 0, 1, 1, 0]),
        ([2.0, 1, 0, 7], [0.2857142857, 0.1428571429, 0], [1, 1, 1, 1, 1]),
        ([0.0, 0, 0, 10], [0.1, 0.2, 0.3], None),  # all in one place: as before
    ],
)
def test_flexmatch(float64, counts: list, rates: list, mask: list | None) -> None:
    """Check 1."""
    found = flexmatch_rates(jnp.asarray(counts), jnp.asarray([0.1, 0.2, 0.3]))
    np.testing.assert_allclose(found, rates, atol=1e-10)
    if mask is not None:
        np.testing.assert_array_equal(reached(flexmatch_thresholds(found)), mask)


def test_flexmatch_thresholds(float64) -> None:
    found = flexmatch_thresholds(jnp.asarray([1, 0.5, 0.25]))
    np.testing.assert_allclose(found, [0.95, 0.3166666667, 0.1357142857], atol=1e-10)
    found = flexmatch_thresholds(jnp.asarray([2 / 7, 1 / 7, 0]))
    np.testing.assert_allclose(found, [0.1583333333, 0.0730769231, 0], atol=1e-10)


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


def test_softmatch(float64) -> None:
    """Check 3: weights of the first batch, and of a state later on."""
    q = jnp.asarray(Q)
    uniform = jnp.full(3, 1 / 3)
    first = softmatch_update(softmatch_start(3), q, ALL, uniform)
    np.testing.assert_allclose(first.classes, [0.426, 0.28, 0.294], atol=1e-12)
    found = [first.mean, first.variance]
    np.testing.assert_allclose(found, [0.3335683024, 0.9990549894], atol=1e-10)
    np.testing.assert_array_equal(softmatch_weights(first, q, uniform), 1.0)
    later = SoftMatch(jnp.asarray(0.8), jnp.asarray(0.02), first.classes)
    state = softmatch_update(later, q, ALL, uniform)
    found = [state.mean, state.variance]
    np.testing.assert_allclose(found, [0.7997683024, 0.0200349894], atol=1e-10)
    weights = softmatch_weights(state, q, uniform)
    expected = [1, 1.298e-7, 7.78514e-5, 0.0272013143, 2.92e-8]
    np.testing.assert_allclose(weights, expected, rtol=2e-3)
    assert float(weights[3]) == pytest.approx(0.0272013143, abs=1e-10)
    assert loss(weights) == pytest.approx(0.0415795012, abs=1e-10)


def test_padding_and_single_rows_move_what_they_can(float64) -> None:
    q = jnp.asarray(Q)
    uniform = jnp.full(3, 1 / 3)
    one = np.arange(5) == 0
    for start, update in (
        (freematch_start(3), freematch_update),
        (softmatch_start(3), lambda *some: softmatch_update(*some, uniform)),
    ):
        np.testing.assert_array_equal(update(start, q, ~ALL)[0], start[0])
        padded = update(
            start, jnp.concatenate([q, jnp.full((2, 3), jnp.nan)]), np.r_[ALL, 0, 0] > 0
        )
        for found, expected in zip(padded, update(start, q, ALL), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-12)
    alone = softmatch_update(softmatch_start(3), q, one, uniform)
    assert float(alone.variance) == 1.0
    assert float(alone.mean) > 1 / 3


def test_the_last_label_of_an_example_counts() -> None:
    table = jnp.asarray([-1, 2, -1, 0])
    place = jnp.asarray([1, 3, 1, 0])
    found = last_labels(table, place, jnp.asarray([0, 2, 1, 0]), jnp.asarray([1, 0, 1, 1]) > 0)
    np.testing.assert_array_equal(found, [0, 1, -1, 0])
