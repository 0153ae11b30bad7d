"""The inverted file: real neighbours, in order, most of the nearest ones; exact for few points."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import graph
from fedjax_ssl.graph import approximate
from fedjax_ssl.graph.neighbors import Neighbors
from tests.graph import reference
from tests.graph.test_propagation import clustered_codes

BITS = 64
SMALL = dict(exact_up_to=0)
TABLE = np.append(reference.cosines(np.arange(BITS + 1), BITS), 0).astype(np.float32)


def assert_well_formed(found, codes, valid):
    """Distinct valid others with their exact similarity, by (distance, index), then themselves
    at 0.
    """
    index, similarity = (np.asarray(part) for part in found)
    num_points = len(codes)
    own = np.arange(num_points)[:, None]
    distance = np.bitwise_count(codes[index] ^ codes[:, None]).sum(axis=-1).astype(np.int64)
    there = index != own
    np.testing.assert_allclose(similarity, np.where(there, TABLE[distance], 0), atol=1e-6)
    assert valid[index[there]].all() and not there[~valid].any()
    rank = np.where(there, distance * num_points + index, BITS * num_points + num_points)
    steps = np.diff(rank, axis=1)
    assert ((steps > 0) | ~there[:, 1:]).all() and (steps >= 0).all()


def plain_recall(index, codes, count, valid):
    """The share of the nearest found, over all rows, written independently."""
    distance = reference.hamming(codes)
    hits = total = 0
    for row, nearest in enumerate(reference.nearest(distance, count, valid)):
        if len(nearest):
            listed = {j for j in index[row].tolist() if j != row and valid[j]}
            hits += min(
                sum(distance[row, j] <= distance[row, nearest[-1]] for j in listed), len(nearest)
            )
            total += len(nearest)
    return hits / total


@pytest.mark.parametrize("padded", [False, True])
def test_finds_most_neighbors_and_only_real_ones(padded):
    codes, _ = clustered_codes(0, 500, BITS, 5)
    valid = np.arange(500) % 4 != 1 if padded else np.ones(500, bool)
    found = graph.approximate_neighbors(codes, BITS, 6, valid, **SMALL)
    assert found.index.shape == found.similarity.shape == (500, 6)
    assert found.index.dtype == jnp.int32 and found.similarity.dtype == jnp.float32
    assert_well_formed(found, codes, valid)
    recall = graph.neighbor_recall(found, codes, BITS, valid)
    np.testing.assert_allclose(
        recall, plain_recall(np.asarray(found.index), codes, 6, valid), rtol=1e-6
    )
    assert recall > 0.8


@pytest.mark.thorough
def test_finds_as_many_as_it_is_asked_for():
    # Few large clusters: one tile, of 4,096 places, is not enough.
    codes, _ = clustered_codes(0, 15_000, BITS, 3)
    recalls = []
    for share in (0.5, 0.9, 1.0):
        found = graph.approximate_neighbors(codes, BITS, 6, recall=share)
        assert_well_formed(found, codes, np.ones(len(codes), bool))
        recalls.append(float(graph.neighbor_recall(found, codes, BITS)))
    assert recalls[0] > 0.47 and recalls[1] > 0.87 and recalls[2] > 0.97
    assert recalls == sorted(recalls)


@pytest.mark.parametrize("num_points, count", [(0, 3), (1, 3), (5, 9), (60, 4)])
def test_few_points_are_searched_exactly(num_points, count):
    codes = (
        reference.random_codes(1, num_points, BITS) if num_points else np.zeros((0, 2), np.uint32)
    )
    found = graph.approximate_neighbors(codes, BITS, count, exact_up_to=60)
    jax.tree.map(np.testing.assert_array_equal, found, graph.nearest_neighbors(codes, BITS, count))


@pytest.mark.thorough
def test_one_tile_holds_all_points():
    # More neighbours than there are others.
    codes = reference.random_codes(1, 9, BITS)
    valid = np.arange(9) != 4
    found = graph.approximate_neighbors(codes, BITS, 10, valid, **SMALL)
    jax.tree.map(
        np.testing.assert_array_equal, found, graph.nearest_neighbors(codes, BITS, 10, valid)
    )


@pytest.mark.parametrize("num_valid", [0, 1, 2])
def test_almost_all_rows_are_padding(num_valid):
    codes, _ = clustered_codes(0, 500, BITS, 5)
    valid = np.isin(np.arange(500), [7, 307][:num_valid])
    found = graph.approximate_neighbors(codes, BITS, 6, valid, **SMALL)
    jax.tree.map(
        np.testing.assert_array_equal, found, graph.nearest_neighbors(codes, BITS, 6, valid)
    )
    assert graph.neighbor_recall(found, codes, BITS, valid) == 1


def test_duplicated_points_find_each_other():
    codes = np.repeat(reference.random_codes(3, 4, BITS), 125, axis=0)
    found = graph.approximate_neighbors(codes, BITS, 6, **SMALL)
    assert_well_formed(found, codes, np.ones(500, bool))
    np.testing.assert_array_equal(found.similarity, 1)
    # Of 125 equal points any six will do.
    assert graph.neighbor_recall(found, codes, BITS) == 1


@pytest.mark.thorough
def test_is_a_function_of_the_codes_also_under_jit():
    codes, _ = clustered_codes(2, 500, BITS, 5)
    find = partial(graph.approximate_neighbors, num_bits=BITS, num_neighbors=6, **SMALL)
    first = find(codes)
    jax.tree.map(np.testing.assert_array_equal, find(codes), first)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(find)(codes), first)


@pytest.mark.thorough
def test_codes_of_many_words():
    codes = np.repeat(reference.random_codes(3, 10, 32), 140, axis=1)
    found = graph.approximate_neighbors(codes, 4480, 3, **SMALL)
    # Among equally near ones others may be kept.
    np.testing.assert_array_equal(
        found.similarity, graph.nearest_neighbors(codes, 4480, 3).similarity
    )


@pytest.mark.thorough
def test_labels_from_approximate_neighbors():
    codes, cluster = clustered_codes(0, 500, BITS, 5)
    labels = np.where(np.arange(500) % 10 == 0, cluster, -1).astype(np.int32)
    search = partial(graph.approximate_neighbors, **SMALL)
    settings = graph.GraphSettings(BITS, 6)
    found = graph.xclp_from_codes(codes, labels, 5, settings, neighbor_search=search)
    assert np.mean(np.asarray(found.labels) == cluster) > 0.95
    # Few points: the same labels as without lists.
    search = partial(graph.approximate_neighbors, exact_up_to=500)
    exact = graph.xclp_from_codes(codes, labels, 5, settings)
    found = graph.xclp_from_codes(codes, labels, 5, settings, neighbor_search=search)
    jax.tree.map(np.testing.assert_array_equal, found, exact)


def test_recall_counts_ties_and_no_neighbor_twice():
    # Point 0 has two neighbours at distance 1 and one at 3.
    codes = np.array([[0], [1], [2], [7]], np.uint32)
    lists = [[1, 2], [2, 1], [1, 1], [1, 3], [0, 0]]
    exact = np.asarray(graph.nearest_neighbors(codes, 32, 2).index)
    found = []
    for listed in lists:
        index = jnp.asarray(np.vstack([listed, exact[1:]]), jnp.int32)
        found.append(graph.neighbor_recall(Neighbors(index, jnp.zeros((4, 2))), codes, 32))
    np.testing.assert_allclose(found, [1, 1, 7 / 8, 7 / 8, 6 / 8])
    # For k = 1 either of the two nearest counts.
    index = jnp.array([[2], [0], [0], [1]], jnp.int32)
    assert graph.neighbor_recall(Neighbors(index, jnp.zeros((4, 1))), codes, 32) == 1


def test_recall_of_a_sample_takes_valid_rows():
    codes, _ = clustered_codes(0, 500, BITS, 5)
    valid = np.arange(500) >= 300
    exact = graph.nearest_neighbors(codes, BITS, 6, valid)
    assert graph.neighbor_recall(exact, codes, BITS, valid, sample=20) == 1
    # Lists of the other rows are not looked at: half of the sampled ones lose their neighbours.
    half = (np.arange(500) < 400)[:, None]
    index = jnp.where(half, exact.index, jnp.arange(500, dtype=jnp.int32)[:, None])
    recall = graph.neighbor_recall(
        Neighbors(index, exact.similarity), codes, BITS, valid, sample=20
    )
    np.testing.assert_allclose(recall, 0.5)


def test_a_sample_of_many_points_is_spread_over_all():
    places = np.asarray(approximate._spread(71_552, np.int32(5_000_000)), np.int64)
    assert (
        (np.diff(places) >= 69).all()
        and np.diff(places).max() <= 70
        and places[0] == 0
        and places[-1] < 5_000_000
    )


def test_bad_arguments_are_refused():
    codes = reference.random_codes(0, 4, BITS)
    for change, message in [
        (dict(num_neighbors=0), "num_neighbors is 0"),
        (dict(num_bits=32), r"uint32 \[points, 1\]"),
        (dict(valid=np.ones(3, bool)), "one entry per point"),
        (dict(recall=0.0), "recall is 0.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            graph.approximate_neighbors(codes, **(dict(num_bits=BITS, num_neighbors=2) | change))
    found = graph.nearest_neighbors(codes, BITS, 2)
    with pytest.raises(ValueError, match="sample is 0"):
        graph.neighbor_recall(found, codes, BITS, sample=0)
    with pytest.raises(ValueError, match=r"must be \(3, k\)"):
        graph.neighbor_recall(found, codes[:3], BITS)
