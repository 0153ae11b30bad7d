"""Nearest neighbours against the dense reference, ties included, and shared among devices to the last bit."""

from functools import partial

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_ssl import graph
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


@pytest.mark.parametrize("kernel", ["popcount", "matmul"])
@pytest.mark.parametrize(
    "num_bits, count", [(6, 10), *(pytest.param(*x, marks=pytest.mark.thorough) for x in ((40, 1), (12, 33)))]
)
def test_ties_go_to_the_lower_index(num_bits, count, kernel):
    # 700 points on 64 codes: hundreds of equal distances in every row, many of them 0.
    codes = reference.random_codes(num_bits, 700, num_bits)
    found = graph.nearest_neighbors(codes, num_bits, count, kernel=kernel)
    assert_equals_reference(found, codes, num_bits, count)


def test_enough_points_for_several_levels_of_groups():
    codes = reference.random_codes(8, 6000, 10)
    index, _ = graph.nearest_neighbors(codes, 10, 4)
    rows = np.random.default_rng(0).choice(6000, 50, replace=False)
    distance = np.bitwise_count(codes[rows, None, :] ^ codes[None]).sum(-1).astype(np.int64)
    distance[np.arange(50), rows] = 99
    expected = np.argsort(distance * 6000 + np.arange(6000), axis=1)[:, :4]
    np.testing.assert_array_equal(np.asarray(index)[rows], expected)


@pytest.mark.parametrize("num_points, count", [(1, 3), (2, 5), (5, 4), (5, 9)])
def test_more_neighbors_than_points(num_points, count):
    codes = reference.random_codes(2, num_points, 64)
    assert_equals_reference(graph.nearest_neighbors(codes, 64, count), codes, 64, count)


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
        np.testing.assert_allclose(similarity[row], np.maximum(cosine[row, expected], 0), atol=1e-12)


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
    index, similarity = jax.jit(lambda rows, there: graph.cosine_neighbors(rows, 4, there))(points, valid)
    np.testing.assert_array_equal(index[:15], expected.index)
    np.testing.assert_allclose(similarity[:15], expected.similarity, atol=1e-6)
    np.testing.assert_array_equal(index[15:], np.arange(15, 20)[:, None] * np.ones(4, int))
    np.testing.assert_array_equal(similarity[15:], 0)


# Rows shared among devices.


def mesh_of(num_devices: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:num_devices]), ("device",))


def assert_same(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("kernel", ["popcount", "matmul"])
@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_devices_change_no_bit(num_devices, kernel):
    # 64 codes for 301 points: ties everywhere; neither 2 nor 4 devices divide the rows.
    codes = reference.random_codes(6, 301, 6)
    valid = np.arange(301) % 7 != 3
    for there in (None, valid):
        expected = graph.nearest_neighbors(codes, 6, 10, there)
        assert_same(graph.nearest_neighbors(codes, 6, 10, there, kernel=kernel, mesh=mesh_of(num_devices)), expected)


def test_all_axes_count_as_one_list_of_devices_also_under_jit():
    codes = reference.random_codes(6, 301, 6)
    expected = graph.nearest_neighbors(codes, 6, 10)
    square = jax.make_mesh((2, 2), ("row", "column"))
    find = partial(graph.nearest_neighbors, num_bits=6, num_neighbors=10, mesh=square)
    eager = find(codes)
    assert_same(eager, expected)
    assert eager.index.sharding.is_fully_replicated and len(eager.index.sharding.device_set) == 4
    assert_same(jax.jit(find)(codes), expected)


def test_codes_may_lie_on_one_device_or_in_shards():
    codes = reference.random_codes(4, 300, 6)
    expected = graph.nearest_neighbors(codes, 6, 10)
    mesh = mesh_of(4)
    for place in (jax.devices()[1], NamedSharding(mesh, PartitionSpec("device"))):
        assert_same(graph.nearest_neighbors(jax.device_put(codes, place), 6, 10, mesh=mesh), expected)


@pytest.mark.parametrize("mesh", [4, "device", jax.sharding.AbstractMesh((2,), ("device",))])
def test_what_is_no_mesh_of_devices_is_refused(mesh):
    with pytest.raises(ValueError, match=r"it must be a jax.sharding.Mesh"):
        graph.nearest_neighbors(reference.random_codes(0, 4, 32), 32, 1, mesh=mesh)
