"""Sums that a few false uploads cannot move far."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from jax.sharding import Mesh

from fedjax_ssl import federated, methods
from fedjax_ssl.contrib.robust.faults import scale
from fedjax_ssl.contrib.robust.robust_sums import (
    geometric_median,
    median,
    norm_bound,
    trimmed_mean,
)
from fedjax_ssl.federated import build
from tests import toy

KEY = jax.random.key(8)
UPDATES = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
COUNTS = np.array([1, 1, 0, 1, 1, 1, 0, 1, 1])
REAL = UPDATES[COUNTS > 0]


def of(combine, updates=UPDATES, weights=COUNTS):
    each = {"w": jnp.asarray(updates, jnp.float32)}
    return np.asarray(combine(each, jnp.asarray(weights, jnp.float32))["w"])


@pytest.mark.parametrize("number", [6, 7])
def test_a_median_is_numpys(number: int) -> None:
    counts = np.where(np.cumsum(COUNTS) <= number, COUNTS, 0)
    expected = np.median(UPDATES[counts > 0], axis=0)
    np.testing.assert_allclose(of(median(), weights=3 * counts), expected, rtol=1e-6)


@pytest.mark.parametrize("trim", [0.0, 0.2, 0.3, 0.49])
def test_a_trimmed_mean_is_scipys(trim: float) -> None:
    expected = scipy.stats.trim_mean(REAL, trim, axis=0)
    np.testing.assert_allclose(of(trimmed_mean(trim)), expected, rtol=1e-5, atol=1e-6)


def test_a_geometric_median_is_nearest_to_all() -> None:
    weights = COUNTS * np.arange(1.0, 10.0)

    def distances(point):
        return np.sum(weights * np.linalg.norm(UPDATES - point, axis=1))

    best = scipy.optimize.minimize(distances, REAL.mean(0), method="Nelder-Mead")
    assert distances(of(geometric_median(60), weights=weights)) < best.fun + 1e-4


def test_a_bound_shortens_long_updates_alone() -> None:
    norms = np.linalg.norm(REAL, axis=1, keepdims=True)
    bound = float(np.median(norms))
    expected = (REAL * np.minimum(1, bound / norms)).mean(0)
    np.testing.assert_allclose(of(norm_bound(bound)), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of(norm_bound(1e9)), REAL.mean(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("combine", [median(), trimmed_mean(), geometric_median(), norm_bound()])
def test_nobody_changes_nothing_and_one_client_is_the_result(combine) -> None:
    nobody = np.zeros(len(UPDATES))
    np.testing.assert_array_equal(of(combine, weights=nobody), 0.0)
    one = np.eye(len(UPDATES))[3]
    small = 0.01 * UPDATES
    np.testing.assert_allclose(of(combine, small, one), small[3], rtol=1e-5)


def method_of(data, combine=None, **changes):
    setup = toy.setup(data, combine_uploads=combine, **changes)
    return build(methods.recipe("fedavg", setup))


def test_what_trims_all_and_other_sums_are_refused() -> None:
    data = toy.federation()
    with pytest.raises(ValueError, match=r"trim is 0\.5.*or nobody is left"):
        trimmed_mean(0.5)
    with pytest.raises(ValueError, match="clients also send what the federated optimizer"):
        method_of(data, median(), federated_optimizer=federated.scaffold())
    with pytest.raises(ValueError, match="does not add up what all clients send"):
        method_of(data, median(), federated_optimizer=federated.local())
    with pytest.raises(ValueError, match="states of optimizers"):
        method_of(data, median(), average_optimizer=True)
    peers = methods.build("protofssl", toy.setup(data, combine_uploads=median()))
    assert any("not for what the term" in line for line in peers.recipe.check(data))


@pytest.mark.thorough
def test_a_false_update_moves_the_mean_and_not_the_median() -> None:
    data = toy.federation(sizes=(9,) * 5, labelled=(9,) * 5)
    uploads = scale(0.2, -1000.0).in_uploads(5)
    plain, _ = toy.train(method_of(data), KEY, data, 1)
    honest = np.asarray(jax.tree.leaves(plain.params)[0])
    far = {}
    for name, combine in (("mean", None), ("median", median())):
        end, _ = toy.train(method_of(data, combine, uploads=uploads), KEY, data, 1)
        far[name] = np.abs(np.asarray(jax.tree.leaves(end.params)[0]) - honest).max()
    assert far["median"] < 1.0 < far["mean"]


@pytest.mark.thorough
@pytest.mark.parametrize("combine", [median(), trimmed_mean(), geometric_median(), norm_bound()])
def test_bits_do_not_depend_on_placement_or_devices(combine) -> None:
    data = toy.federation()
    method = method_of(data, combine, uploads=scale(0.4, -3.0).in_uploads(data.num_clients))
    place = partial(toy.executed, method)
    mesh = Mesh(np.array(jax.devices()[:2]), ("clients",))
    ends = [
        toy.train(one, KEY, data, 2)[0].params
        for one in (
            place(placement="sequential"),
            place(placement="sequential", mesh=mesh),
            place(placement="chunked", chunk_size=2),
            place(placement="lanes", chunk_size=2),
        )
    ]
    chex.assert_trees_all_equal(ends[0], ends[1])
    for other in ends[2:]:
        chex.assert_trees_all_close(ends[0], other, atol=1e-6)
