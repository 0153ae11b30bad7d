"""Proxies: the numbers of the specification's checks 1 to 4, and edge cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.contrib.methods._proxies import (
    Tuning,
    candidate_classes,
    pooled_prior,
    proxy_contrast,
    proxy_margin,
    tuned_proxies,
    tuning_loss,
)

FEATURES = [[1, 0.2], [-0.3, 1], [0.8, 0.6], [0.5, -0.5], [0.9, 0.4], [0.2, -0.8]]
HEAD = [[0.6, 0.1], [-0.2, 0.7], [0.1, -0.6]]
LABELLED = [[0.97, 0.02, 0.01], [0.2, 0.7, 0.1]]
UNLABELLED = [[0.05, 0.45, 0.5], [0.03, 0.01, 0.96]]
PRIOR = [0.3, 0.3, 0.4]
CONFIDENT = [True, False, False, True, False, True]
ROWS = [[[1, 0], [0, 1], [-1, -0.5]], [[0.6, 0.4], [0.2, 0.8], [-0.6, -1]]]  # of two clients
BOTH = [True, True]


def contrast(head, candidates=None, mask=None):
    """Losses of the rows of check 1, the features and the head through their maps."""
    features = jnp.asarray(FEATURES) @ jnp.asarray([[1, 0.1], [0, 0.9]]).T
    features = features + jnp.asarray([0.05, -0.05])
    rows = head @ jnp.asarray([[1, 0.2], [-0.1, 1]]).T
    if candidates is None:
        candidates = found_candidates()
    return proxy_contrast(features, rows, candidates, jnp.ones(6, bool) if mask is None else mask)


def found_candidates():
    q = jnp.asarray([*LABELLED, *UNLABELLED, *UNLABELLED])
    return candidate_classes(q, jnp.asarray(PRIOR), jnp.asarray(CONFIDENT))


def test_contrast_and_its_gradient(float64) -> None:
    """Check 1."""

    @jax.jit
    def found(head):
        rows = contrast(head)
        return rows, jax.grad(lambda head: jnp.mean(contrast(head)[2:]))(head)

    sets = [[1, 0, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1], [0, 1, 1], [0, 0, 1]]
    np.testing.assert_array_equal(found_candidates().sets, sets)
    rows, slope = found(jnp.asarray(HEAD))
    expected = [1.3153596689, 0.6602595860, 1.3500637066, 0.3491353865]
    np.testing.assert_allclose(rows[2:], expected, atol=1e-10)
    np.testing.assert_allclose(jnp.mean(rows[2:]), 0.9187045870, atol=1e-10)
    gradient = [[0, 0], [-0.2144496717, -0.0612713348], [-0.4483434352, -0.0747239059]]
    np.testing.assert_allclose(slope, gradient, atol=1e-10)


def test_a_row_without_a_candidate_and_padding_are_outside_of_everything(float64) -> None:
    q = found_candidates()
    none = q._replace(sets=q.sets.at[2].set(False), weights=q.weights.at[2].set(0.0))

    @jax.jit
    def found(mask):
        def rows(head):
            return contrast(head, none, mask)

        head = jnp.asarray(HEAD)
        return rows(head), jax.grad(lambda head: jnp.sum(rows(head)[2:]))(head)

    # row 0 would be the negative of row 2; the code lets it have itself for one, too
    assert found(jnp.ones(6, bool))[0][2] == 0
    rows, slope = found(jnp.arange(6) > 0)
    # without row 0 no row has a negative: no loss, no gradient
    assert not np.any(np.asarray(rows[2:])) and not np.any(np.asarray(slope))


def test_the_likeliest_class_need_not_be_a_candidate() -> None:
    q = jnp.asarray([[0.45, 0.30, 0.25]])
    prior = jnp.asarray([0.5, 0.28, 0.22])
    assert candidate_classes(q, prior, jnp.asarray([False])).sets.tolist() == [[False, True, True]]
    assert candidate_classes(q, prior, jnp.asarray([True])).sets.tolist() == [[True, False, False]]


@pytest.fixture(scope="module")
def averaged() -> np.ndarray:
    return np.tensordot([0.75, 0.25], np.asarray(ROWS), 1)


def test_tuning_of_two_clients(float64, averaged) -> None:
    """Check 2."""
    rows = jnp.asarray(ROWS)
    start = jnp.asarray(averaged)
    np.testing.assert_allclose(start, [[0.9, 0.1], [0.05, 0.95], [-0.9, -0.625]], atol=1e-12)
    margin = proxy_margin(start)
    np.testing.assert_allclose(margin, 1.8393273227, atol=1e-10)
    assert proxy_margin(start, 1.0) == 1.0

    @jax.jit
    def of(proxies, pairs, mask, margin):
        return jax.value_and_grad(tuning_loss)(proxies, rows, pairs, mask, margin)

    everybody = jnp.arange(6)
    all_of_them = jnp.ones(6, bool)
    loss, slope = of(start, everybody, all_of_them, margin)
    np.testing.assert_allclose(loss, 1.4743916814, atol=1e-10)
    gradient = [
        [-0.2129180350, 0.0529932460],
        [0.0701815429, -0.2293954119],
        [0.1124383758, 0.1126401243],
    ]
    np.testing.assert_allclose(slope, gradient, atol=1e-10)
    # a batch of four and one of two, clients in order
    once = start
    for first in (0, 4):
        mask = jnp.arange(first, first + 4) < 6
        once = once - 0.005 * of(once, jnp.arange(first, first + 4) % 6, mask, margin)[1]
    cut = [
        [0.9025024753, 0.0994101847],
        [0.0503157039, 0.9514009523],
        [-0.9004508649, -0.6268132193],
    ]
    np.testing.assert_allclose(once, cut, atol=1e-10)
    np.testing.assert_allclose(
        tuning_loss(start, rows, everybody, all_of_them), 0.4365147787, atol=1e-10
    )


def test_steps_of_all_rows_at_once(float64, averaged) -> None:
    """Check 2: whole batches do not depend on the order."""
    rows = jnp.asarray(ROWS)
    start = jnp.asarray(averaged)
    whole = Tuning(1, 0.005, batch_size=6)
    one, many = (
        jax.jit(tuned_proxies, static_argnums=5)(
            jax.random.key(0), start, rows, jnp.asarray(BOTH), jnp.arange(2), how
        )
        for how in (whole, whole._replace(epochs=100))
    )
    after_one = [
        [0.9010645902, 0.0997350338],
        [0.0496490923, 0.9511469771],
        [-0.9005621919, -0.6255632006],
    ]
    after_all = [
        [0.9902726323, 0.0639279042],
        [0.0074047441, 1.0166209414],
        [-0.9433550593, -0.6725093999],
    ]
    np.testing.assert_allclose(one, after_one, atol=1e-10)
    np.testing.assert_allclose(many, after_all, atol=1e-9)
    loss = tuning_loss(many, rows, jnp.arange(6), jnp.ones(6, bool), proxy_margin(start))
    np.testing.assert_allclose(loss, 1.4318200580, atol=1e-10)


def test_clients_that_do_not_count_are_not_looked_at(float64, averaged) -> None:
    """As without them, whatever they sent, also in how many steps there are."""
    rows = jnp.asarray([*ROWS, np.full((3, 2), np.nan)])
    how = Tuning(3, 0.005, batch_size=6)
    start = jnp.asarray(averaged)

    @jax.jit
    def tune(counts):
        return tuned_proxies(jax.random.key(0), start, rows, counts, jnp.arange(3), how)

    two = tuned_proxies(jax.random.key(0), start, rows[:2], jnp.asarray(BOTH), jnp.arange(2), how)
    np.testing.assert_allclose(tune(jnp.asarray([True, True, False])), two, atol=1e-12)
    np.testing.assert_array_equal(tune(jnp.zeros(3, bool)), start)
    none = how._replace(epochs=0)
    kept = tuned_proxies(jax.random.key(0), start, rows, jnp.ones(3, bool), jnp.arange(3), none)
    np.testing.assert_array_equal(kept, start)


def test_prior(float64) -> None:
    """Check 3."""
    counts = jnp.asarray([[30.0, 10.0, 0.0], [5.0, 5.0, 50.0]])
    start = jnp.ones(3) / 3
    np.testing.assert_allclose(pooled_prior(start, counts, 0.99), [0.3335, 0.3315, 0.3350])
    prior = jax.lax.fori_loop(0, 100, lambda _, prior: pooled_prior(prior, counts, 0.99), start)
    np.testing.assert_allclose(prior, [0.3438994610, 0.2171059292, 0.4389946098], atol=1e-10)
    np.testing.assert_array_equal(pooled_prior(start, jnp.zeros((2, 3)), 0.99), start)


def test_one_client(float64) -> None:
    """Check 4: distances of 0 have no slope."""
    rows = jnp.asarray(ROWS[:1])
    start = rows[0]
    margin = proxy_margin(start)
    np.testing.assert_allclose(margin, 1.8027756377, atol=1e-10)
    loss, slope = jax.value_and_grad(tuning_loss)(
        start, rows, jnp.arange(3), jnp.ones(3, bool), margin
    )
    np.testing.assert_allclose(loss, 1.1476024818, atol=1e-10)
    gradient = [
        [-0.1901016703, 0.0775255329],
        [0.0403630740, -0.2071202866],
        [0.1301001480, 0.0990385597],
    ]
    np.testing.assert_allclose(slope, gradient, atol=1e-10)
