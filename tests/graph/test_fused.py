"""The kernel for GPUs and TPUs, interpreted: the same lists as the other kernels, ties and padding included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import graph
from fedjax_ssl.graph import fused
from tests.graph import reference


@pytest.mark.thorough
def test_minima_of_groups():
    codes = reference.random_codes(0, 1024, 40)
    signs = fused.Signs._prepared(jnp.asarray(codes))
    beyond = jnp.where(jnp.arange(1024) % 5 == 0, 4096, 0).astype(jnp.int32)[:, None]
    found = fused.group_minima(signs, beyond, signs[:256], 64)
    distance = np.bitwise_count(codes[:, None] ^ codes[:256]).sum(axis=-1) + np.asarray(beyond)
    np.testing.assert_array_equal(found, distance.reshape(8, 128, 256).min(axis=1))


# Few bits: almost all distances are ties. 1,300 points: the last blocks hold some that are padding.
@pytest.mark.parametrize(
    "bits, count",
    [(8, 3), pytest.param(200, 4, marks=pytest.mark.thorough), pytest.param(256, 1, marks=pytest.mark.thorough)],
)
def test_equals_the_other_kernels(bits, count):
    codes = reference.random_codes(bits, 1300, bits)
    valid = np.arange(1300) % 7 != 3
    assert fused.applies(1300, codes.shape[1], count + 1)
    found = graph.nearest_neighbors(codes, bits, count, valid, kernel="fused")
    jax.tree.map(np.testing.assert_array_equal, found, graph.nearest_neighbors(codes, bits, count, valid))


@pytest.mark.thorough
def test_several_tiles_and_rows_without_neighbors(monkeypatch):
    monkeypatch.setattr(fused, "ROWS", 500)
    codes = np.repeat(reference.random_codes(1, 650, 96), 2, axis=0)
    valid = np.isin(np.arange(1300), [4, 900])
    for there in (valid, ~valid):
        found = graph.nearest_neighbors(codes, 96, 3, there, kernel="fused")
        jax.tree.map(np.testing.assert_array_equal, found, graph.nearest_neighbors(codes, 96, 3, there))


def test_is_for_many_points_and_offsets_of_32_bits():
    assert fused.applies(817_851, 32, 11)
    assert not fused.applies(1_000, 8, 11)
    assert not fused.applies(2_100_000, 32, 11)
    # Too few points: another kernel, the same lists.
    codes = reference.random_codes(0, 40, 64)
    found = graph.nearest_neighbors(codes, 64, 3, kernel="fused")
    jax.tree.map(np.testing.assert_array_equal, found, graph.nearest_neighbors(codes, 64, 3))
