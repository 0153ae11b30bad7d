import sys
from itertools import pairwise
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.federated import Cohort, cohort_sampler, sample_cohort

compiled = jax.jit(sample_cohort, static_argnums=(3, 4))


def counts(*clients: tuple[int, int]) -> tuple[jax.Array, jax.Array]:
    """(labelled, examples) per client -> the two tables."""
    table = jnp.asarray(clients, jnp.int32)
    return table[:, 0], table[:, 1]


def draw(
    seed: int, clients: list[tuple[int, int]], size: int, quota: str = "proportional"
) -> list[int]:
    labelled, examples = counts(*clients)
    cohort = compiled(jax.random.key(seed), labelled, examples, size, quota)
    assert cohort.ids.shape == cohort.valid.shape == (size,)
    taken = np.asarray(cohort.ids)[np.asarray(cohort.valid)].tolist()
    assert np.asarray(cohort.valid).tolist() == [True] * len(taken) + [False] * (size - len(taken))
    assert taken == sorted(set(taken)), "in increasing order, nobody twice"
    assert all(clients[client][1] > 0 for client in taken), "empty clients never take part"
    return taken


@pytest.mark.parametrize(
    ("labelled_clients", "expected"), [(100, 5), (50, 3), (10, 1), (1, 1), (99, 5)]
)
def test_proportional_quota_of_the_paper(labelled_clients: int, expected: int) -> None:
    """XCLP section 5.3: ceil(5 m_L / m) labelled clients of five, so 5 + 0 and 3 + 2."""
    clients = [(20, 450)] * labelled_clients + [(0, 450)] * (100 - labelled_clients)
    for seed in range(5):
        taken = draw(seed, clients, 5)
        assert len(taken) == 5
        assert sum(client < labelled_clients for client in taken) == expected


@pytest.mark.parametrize("quota", ["any", "proportional", "only"])
def test_everybody_eligible_is_taken_if_there_are_slots_for_all(quota: str) -> None:
    clients = [(2, 5), (0, 4), (0, 0), (1, 1), (0, 3)]
    assert draw(0, clients, 5, quota) == ([0, 3] if quota == "only" else [0, 1, 3, 4])


@pytest.mark.parametrize("quota", ["any", "proportional", "only"])
def test_slots_stay_empty_when_nobody_is_eligible(quota: str) -> None:
    assert draw(0, [(0, 0)] * 4, 3, quota) == []


def test_only_labelled_leaves_slots_empty_rather_than_take_others() -> None:
    clients = [(1, 3), (0, 3), (0, 3), (2, 3)]
    assert draw(1, clients, 3, "only") == [0, 3]
    assert draw(1, [(0, 3)] * 4, 3, "only") == []


def test_without_labelled_clients_the_cohort_is_filled_with_unlabelled_ones() -> None:
    assert len(draw(0, [(0, 3)] * 6, 4)) == 4


def test_too_few_unlabelled_clients_are_replaced_by_labelled_ones() -> None:
    clients = [(1, 2)] * 5 + [(0, 0)] * 4 + [(0, 2)]
    for seed in range(5):
        taken = draw(seed, clients, 6)
        assert taken == [0, 1, 2, 3, 4, 9]


@pytest.mark.parametrize("quota", ["any", "proportional", "only"])
def test_clients_without_examples_do_not_change_the_draw(quota: str) -> None:
    clients = [(1, 4), (0, 4), (2, 4), (0, 4), (3, 4), (1, 4)]
    for seed in range(5):
        assert draw(seed, clients, 3, quota) == draw(seed, clients + [(0, 0)] * 7, 3, quota)


@pytest.mark.parametrize("quota", ["any", "only"])
def test_every_client_is_drawn_equally_often(quota: str) -> None:
    labelled, examples = counts(*[(1, 4)] * 8, (0, 0), (0, 0))
    keys = jax.random.split(jax.random.key(0), 2000)
    cohorts = jax.jit(jax.vmap(lambda key: sample_cohort(key, labelled, examples, 3, quota)))(keys)
    assert np.asarray(cohorts.valid).all()
    times = np.bincount(np.asarray(cohorts.ids).reshape(-1), minlength=10)
    # 750 times each, standard deviation 21.7: five deviations fail for fewer than 1 key in 10^5
    assert (np.abs(times[:8] - 750) < 108).all()
    assert (times[8:] == 0).all()


def test_proportional_draws_are_uniform_within_each_part() -> None:
    labelled, examples = counts(*[(1, 4)] * 4, *[(0, 4)] * 4)
    keys = jax.random.split(jax.random.key(0), 2000)
    cohorts = jax.jit(jax.vmap(lambda key: sample_cohort(key, labelled, examples, 3)))(keys)
    times = np.bincount(np.asarray(cohorts.ids).reshape(-1), minlength=8)
    # 2 of 4 labelled: 1,000 times; 1 of 4 unlabelled: 500; deviations 22.4 and 19.4, at five of
    # them
    assert (np.abs(times[:4] - 1000) < 112).all()
    assert (np.abs(times[4:] - 500) < 97).all()


@pytest.mark.parametrize("size", [0, 4, -1])
def test_a_cohort_larger_than_the_federation_is_refused(size: int) -> None:
    labelled, examples = counts((1, 2), (1, 2), (0, 2))
    with pytest.raises(ValueError, match=rf"{size}.*3 clients"):
        sample_cohort(jax.random.key(0), labelled, examples, size)


@pytest.mark.parametrize("quota", ["any", "proportional", "only"])
def test_cohorts_of_a_large_federation_keep_the_contract(quota: str) -> None:
    """Clients of three kinds in turn, and beside them many that have no examples and change
    nothing.
    """
    clients = [(1, 4), (0, 4), (0, 0)] * 1500
    for seed in range(3):
        taken = draw(seed, clients, 100, quota)
        labelled = sum(client % 3 == 0 for client in taken)
        assert len(taken) == 100 and (
            quota == "any" or labelled == (50 if quota == "proportional" else 100)
        )
        assert taken == draw(seed, clients + [(0, 0)] * 3000, 100, quota)
    few = [(1, 4), (0, 4)] * 3 + [(0, 0)] * 5000
    assert draw(0, few, 10, quota) == ([0, 2, 4] if quota == "only" else [0, 1, 2, 3, 4, 5])
    everybody = draw(0, [(1, 4)] * 5000, 5000, quota)
    assert everybody == list(range(5000))


def test_draws_from_a_large_federation_are_uniform_and_independent() -> None:
    clients = 5000
    size = 100
    count = 1000
    ones = jnp.ones(clients, jnp.int32)
    keys = jax.random.split(jax.random.key(0), count)
    ids = np.asarray(jax.jit(jax.vmap(lambda key: sample_cohort(key, ones, ones, size)))(keys).ids)
    times = np.bincount(ids.reshape(-1), minlength=clients)
    # chi-square over its degrees of freedom: 1 with deviation sqrt(2 / 4999) = 0.02
    spread = ((times - 20) ** 2).sum() / (20 * (1 - size / clients)) / (clients - 1)
    assert abs(spread - 1) < 0.1
    again = [len(np.intersect1d(*pair)) for pair in pairwise(ids)]
    # hypergeometric: mean 2, variance 1.92, so that the mean of 999 is off by 0.044
    assert abs(np.mean(again) - 2) < 0.2 and abs(np.var(again) - 1.92) < 0.5
    # neighbours in a cohort: 100 * 99 / 5,000 = 1.98 pairs of clients c and c + 1
    assert abs((np.diff(ids) == 1).sum(1).mean() - 1.98) < 0.2


def test_cohorts_are_drawn_in_64_bit_mode(float64) -> None:
    labelled, examples = counts((1, 2), (0, 2), (1, 3))
    cohort = sample_cohort(jax.random.key(0), labelled, examples, 2)
    assert cohort.ids.dtype == jnp.int32


@pytest.mark.thorough
def test_larger_clients_are_drawn_more_often_by_their_size():
    """Expected: shares of the first draw are the sizes'; 4,000 keys, so off by 0.03 with a
    chance below 1e-3.
    """
    sizes = jnp.array([10, 30, 60, 0], jnp.int32)
    draw = cohort_sampler("by_size")
    keys = jax.random.split(jax.random.key(0), 4000)
    ids = np.asarray(jax.vmap(lambda key: draw(key, sizes, sizes, 1, "any").ids[0])(keys))
    np.testing.assert_allclose(
        np.bincount(ids, minlength=4) / 4000, [0.1, 0.3, 0.6, 0.0], atol=0.03
    )
    pair = draw(keys[0], sizes, sizes, 3, "any")
    assert pair.ids.tolist() == [0, 1, 2] and bool(pair.valid.all())


def test_a_cohort_of_another_shape_is_refused(monkeypatch):
    def short():
        return lambda key, labelled, examples, size, quota: Cohort(
            jnp.zeros(1, jnp.int32), jnp.ones(1, bool)
        )

    monkeypatch.setitem(sys.modules, "own_cohorts", SimpleNamespace(short=short))
    sizes = jnp.full(4, 5, jnp.int32)
    said = r"ids of cohort sampler 'own_cohorts:short': int32 \[1\] came, integer \[3\] has to \(.*test_cohort"
    with pytest.raises(ValueError, match=said):
        cohort_sampler("own_cohorts:short")(jax.random.key(0), sizes, sizes, 3, "any")
