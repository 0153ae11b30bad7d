"""Ranks and counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.data.federation.dealing import (
    count_groups,
    deal,
    largest_remainder,
    level,
    rank_within,
)


def test_largest_remainder_matches_a_loop_and_adds_up():
    generator = np.random.default_rng(0)
    for _ in range(20):
        shares = generator.dirichlet(np.full(7, 0.4))
        total = int(generator.integers(0, 200))
        quota = shares * total
        expected = np.floor(quota).astype(int)
        for client in np.argsort(-(quota - expected), kind="stable")[: total - expected.sum()]:
            expected[client] += 1
        counts = np.asarray(largest_remainder(jnp.asarray(shares), jnp.asarray(total)))
        np.testing.assert_array_equal(counts, expected)
        assert counts.sum() == total


@pytest.mark.parametrize("total", [0, 1, 59_999, 16_777_259])
def test_largest_remainder_is_exact_for_odd_shares(total):
    shares = jnp.stack([jnp.full(3001, 0.1), jnp.zeros(3001), jnp.arange(3001.0)])
    counts = np.asarray(largest_remainder(shares, jnp.full(3, total, jnp.int32), jax.random.key(0)))
    assert (counts.sum(axis=1) == total).all() and counts.min() >= 0
    assert np.ptp(counts[1]) <= 1 + total // 1_000_000


def test_deal_gives_exactly_the_counts_and_leaves_the_rest():
    group = jnp.asarray([0, 1, 0, 1, 0, -1, 2, 1, 0], jnp.int32)
    counts = jnp.asarray([[1, 0, 1], [0, 0, 0], [2, 3, 0]], jnp.int32)
    client = np.asarray(deal(jax.random.key(0), group, counts))
    dealt = client >= 0
    cells = np.bincount(client[dealt] * 3 + np.asarray(group)[dealt], minlength=9)
    np.testing.assert_array_equal(cells.reshape(3, 3), counts)
    assert client[5] == -1 and (client == -1).sum() == 2


@pytest.mark.thorough
def test_level_moves_as_few_as_possible():
    client = jnp.asarray(np.repeat(np.arange(8), (0, 2, 40, 18, 10, 15, 15, 20)), jnp.int32)
    moved = np.asarray(level(jax.random.key(0), client, 8, 4, 30))
    sizes = np.bincount(moved, minlength=8)
    assert sizes.min() >= 4 and sizes.max() <= 30 and sizes.sum() == 120
    assert (moved != np.asarray(client)).sum() == 10
    moved = np.asarray(level(jax.random.key(0), client, 8, 14, 40))
    sizes = np.bincount(moved, minlength=8)
    assert sizes.min() == 14 and (moved != np.asarray(client)).sum() == 30
    np.testing.assert_array_equal(level(jax.random.key(0), client, 8, 0, 40), client)


def test_rank_within_ignores_padding_and_orders():
    group = jnp.asarray([2, 0, 2, 1, 2, 0, 2], jnp.int32)
    key = jax.random.key(1)
    rank = np.asarray(rank_within(key, group))
    for member in range(3):
        assert sorted(rank[np.asarray(group) == member]) == list(
            range(int((group == member).sum()))
        )
    padded = rank_within(key, jnp.concatenate([group, jnp.full(5, -1, jnp.int32)]))
    np.testing.assert_array_equal(padded[:7], rank)
    ordered = np.asarray(
        rank_within(key, jnp.zeros(6, jnp.int32), order=jnp.asarray([1, 0, 1, 0, 1, 0], jnp.int32))
    )
    assert sorted(ordered[1::2]) == [0, 1, 2] and sorted(ordered[::2]) == [3, 4, 5]


def test_count_groups_ignores_outsiders():
    np.testing.assert_array_equal(
        count_groups(jnp.asarray([0, 2, 2, -1, 3], jnp.int32), 3), [1, 0, 2]
    )
