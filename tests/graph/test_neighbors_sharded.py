"""Rows shared among devices: the same lists, to the last bit, as one device finds."""

from functools import partial

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_ssl import graph
from tests.graph import reference


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
        assert_same(
            graph.nearest_neighbors(codes, 6, 10, there, kernel=kernel, mesh=mesh_of(num_devices)),
            expected,
        )


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
        assert_same(
            graph.nearest_neighbors(jax.device_put(codes, place), 6, 10, mesh=mesh), expected
        )


@pytest.mark.thorough
def test_codes_of_more_words_than_are_summed_at_once():
    codes = reference.random_codes(1, 9, 4200)
    found = graph.nearest_neighbors(codes, 4200, 3, mesh=mesh_of(2))
    assert_same(found, graph.nearest_neighbors(codes, 4200, 3))


@pytest.mark.thorough
def test_labels_with_shared_rows_are_the_same():
    random = np.random.default_rng(0)
    points = random.normal(size=(90, 6)).astype(np.float32)
    shown = np.where(np.arange(90) < 12, random.integers(3, size=90), -1).astype(np.int32)
    search = partial(graph.nearest_neighbors, mesh=mesh_of(4))
    valid = np.arange(90) % 5 != 2
    options = dict(num_bits=64, num_neighbors=4, valid=valid, solver="conjugate_gradient")
    expected = graph.label(points, shown, 3, **options, key=jax.random.key(0))
    found = graph.label(points, shown, 3, neighbor_search=search, **options, key=jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("mesh", [4, "device", jax.sharding.AbstractMesh((2,), ("device",))])
def test_what_is_no_mesh_of_devices_is_refused(mesh):
    with pytest.raises(ValueError, match=r"it must be a jax.sharding.Mesh"):
        graph.nearest_neighbors(reference.random_codes(0, 4, 32), 32, 1, mesh=mesh)
