"""Blockwise nearest neighbours against the dense reference, ties included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from fedjax_ssl import graph
from fedjax_ssl.graph import neighbors as neighbors_module
from fedjax_ssl.graph.neighbors import smallest
from tests.graph import reference


def assert_equals_reference(found, codes, num_bits, count, valid=None):
    distance = reference.hamming(codes)
    index, similarity = (np.asarray(part) for part in found)
    assert index.shape == similarity.shape == (len(codes), count)
    for row, expected in enumerate(reference.nearest(distance, count, valid)):
        there = len(expected)
        np.testing.assert_array_equal(index[row, :there], expected)
        cosine = reference.cosines(distance[row, expected], num_bits)
        np.testing.assert_allclose(similarity[row, :there], cosine, atol=1e-7)
        np.testing.assert_array_equal(index[row, there:], row)
        np.testing.assert_array_equal(similarity[row, there:], 0)


@pytest.fixture
def small_tiles(monkeypatch):
    # 24 rows per tile do not divide 700 points. Other programs stay: clearing all caches would
    # compile them again.
    asked = []
    monkeypatch.setattr(
        neighbors_module, "_rows_per_tile", lambda *sizes: asked.append(sizes) or 24
    )
    neighbors_module._nearest_codes.clear_cache()
    yield
    neighbors_module._nearest_codes.clear_cache()
    assert asked, "the search was compiled again"


@pytest.mark.parametrize("kernel", ["popcount", "matmul"])
@pytest.mark.parametrize(
    "num_bits, count",
    [(6, 10), *(pytest.param(*x, marks=pytest.mark.thorough) for x in ((40, 1), (12, 33)))],
)
def test_ties_go_to_the_lower_index(num_bits, count, kernel):
    # 700 points on 64 codes: hundreds of equal distances in every row, many of them 0.
    codes = reference.random_codes(num_bits, 700, num_bits)
    found = graph.nearest_neighbors(codes, num_bits, count, kernel=kernel)
    assert_equals_reference(found, codes, num_bits, count)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("kernel", ["popcount", "matmul"])
def test_tiles_that_do_not_divide_the_points(kernel):
    codes = reference.random_codes(5, 700, 6)
    found = graph.nearest_neighbors(codes, 6, 10, kernel=kernel)
    assert_equals_reference(found, codes, 6, 10)


def test_enough_points_for_several_levels_of_groups():
    codes = reference.random_codes(8, 6000, 10)
    index, _ = graph.nearest_neighbors(codes, 10, 4)
    rows = np.random.default_rng(0).choice(6000, 50, replace=False)
    distance = np.bitwise_count(codes[rows, None, :] ^ codes[None]).sum(-1).astype(np.int64)
    distance[np.arange(50), rows] = 99
    expected = np.argsort(distance * 6000 + np.arange(6000), axis=1)[:, :4]
    np.testing.assert_array_equal(np.asarray(index)[rows], expected)


@pytest.mark.parametrize("devices", [0, 4])
@pytest.mark.parametrize("num_points, count", [(0, 3), (1, 3), (2, 5), (5, 4), (5, 9)])
def test_few_points(num_points, count, devices):
    codes = reference.random_codes(2, num_points, 64)
    mesh = Mesh(np.array(jax.devices()[:devices]), ("device",)) if devices else None
    found = graph.nearest_neighbors(codes, 64, count, mesh=mesh)
    assert_equals_reference(found, codes, 64, count)


@pytest.mark.parametrize("num_valid", [0, 1, 3, 200])
def test_padding_rows_are_left_out(num_valid):
    codes = reference.random_codes(3, 333, 16)
    valid = np.zeros(333, bool)
    valid[np.random.default_rng(0).choice(333, num_valid, replace=False)] = True
    found = graph.nearest_neighbors(codes, 16, 5, valid)
    assert_equals_reference(found, codes, 16, 5, valid)


def test_under_jit_and_vmap():
    codes = np.stack([reference.random_codes(seed, 60, 8) for seed in range(3)])
    valid = np.ones((3, 60), bool)
    valid[1, 40:] = False
    find = jax.jit(jax.vmap(lambda some, there: graph.nearest_neighbors(some, 8, 4, there)))
    index, similarity = find(codes, valid)
    for client in range(3):
        found = (index[client], similarity[client])
        assert_equals_reference(found, codes[client], 8, 4, valid[client])


def test_long_codes_and_distances_beyond_16_bits():
    codes = np.zeros((4, 1250), np.uint32)
    codes[1] = 0xFFFFFFFF
    codes[2, :800] = 0xFFFFFFFF
    index, similarity = graph.nearest_neighbors(codes, 40000, 2)
    np.testing.assert_array_equal(index, [[3, 2], [2, 0], [1, 0], [0, 2]])
    np.testing.assert_allclose(similarity[2], [np.cos(np.pi * 14400 / 40000), 0], atol=1e-6)


def test_bad_arguments_are_refused():
    codes = reference.random_codes(0, 4, 32)
    with pytest.raises(ValueError, match="num_neighbors is 0"):
        graph.nearest_neighbors(codes, 32, 0)
    with pytest.raises(ValueError, match=r"uint32 \[points, 2\]"):
        graph.nearest_neighbors(codes, 33, 1)
    with pytest.raises(ValueError, match="uint32"):
        graph.nearest_neighbors(codes.astype(np.int32), 32, 1)
    with pytest.raises(ValueError, match="one entry per point"):
        graph.nearest_neighbors(codes, 32, 1, np.ones(3, bool))
    with pytest.raises(ValueError, match=r"kernel is 'gpu'.*popcount"):
        graph.nearest_neighbors(codes, 32, 1, kernel="gpu")


@pytest.mark.thorough
@pytest.mark.parametrize("bound", [None, 5])
@pytest.mark.parametrize("length, count", [(1, 1), (300, 300), (2000, 7), (5000, 40)])
def test_smallest_orders_by_value_and_position(length, count, bound):
    values = np.random.default_rng(length).integers(0, 6, (length, 9)).astype(np.int16)
    found = smallest(jnp.asarray(values if bound else values.astype(np.float32)), count, bound)
    np.testing.assert_array_equal(found, np.argsort(values, axis=0, kind="stable")[:count])


def dense_cosines(points: np.ndarray) -> np.ndarray:
    norm = np.linalg.norm(points.astype(float), axis=1, keepdims=True)
    unit = points / np.where(norm > 0, norm, 1)
    return unit @ unit.T


@pytest.mark.usefixtures("float64")
def test_exact_cosines():
    points = np.random.default_rng(1).normal(size=(400, 5))
    points[7] *= 1e200
    points[30] *= 1e-200
    index, similarity = graph.cosine_neighbors(points, 6)
    scaled = points.copy()
    scaled[7] /= 1e200
    scaled[30] /= 1e-200
    cosine = dense_cosines(scaled)
    for row, expected in enumerate(reference.nearest(-cosine, 6)):
        np.testing.assert_array_equal(index[row], expected)
        np.testing.assert_allclose(
            similarity[row], np.maximum(cosine[row, expected], 0), atol=1e-12
        )


def test_exact_cosines_of_ties_zero_rows_and_right_angles():
    points = np.array([[1, 0], [0, 1], [2, 0], [0, 0], [3, 0], [-1, 0]], np.float32)
    index, similarity = graph.cosine_neighbors(points, 3)
    np.testing.assert_array_equal(index[0], [2, 4, 1])
    np.testing.assert_array_equal(similarity[0], [1, 1, 0])
    np.testing.assert_array_equal(index[4], [0, 2, 1])
    np.testing.assert_array_equal(similarity[1], [0, 0, 0])
    np.testing.assert_array_equal(index[3], [3, 3, 3])
    np.testing.assert_array_equal(similarity[3], [0, 0, 0])
    assert not (np.asarray(index)[[0, 1, 2, 4, 5]] == 3).any()


def test_exact_cosines_leave_out_padding_and_bad_rows():
    points = np.random.default_rng(2).normal(size=(20, 3)).astype(np.float32)
    expected = graph.cosine_neighbors(points[:15], 4)
    points[17] = np.nan
    valid = np.arange(20) < 16
    points[15] = np.inf
    index, similarity = jax.jit(lambda rows, there: graph.cosine_neighbors(rows, 4, there))(
        points, valid
    )
    np.testing.assert_array_equal(index[:15], expected.index)
    np.testing.assert_allclose(similarity[:15], expected.similarity, atol=1e-6)
    np.testing.assert_array_equal(index[15:], np.arange(15, 20)[:, None] * np.ones(4, int))
    np.testing.assert_array_equal(similarity[15:], 0)


def test_known_bad_features_are_refused():
    with pytest.raises(ValueError, match="NaN or infinity"):
        graph.cosine_neighbors(np.full((3, 2), np.nan, np.float32), 1)
    with pytest.raises(ValueError, match="num_neighbors"):
        graph.cosine_neighbors(np.ones((3, 2), np.float32), 0)
    assert graph.cosine_neighbors(np.ones((1, 2), np.float32), 2).index.shape == (1, 2)
