"""Codes by random hyperplanes and Hamming distances."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import graph
from fedjax_ssl.graph.codes import matmul_distances, popcount_distances, signs_from_codes
from tests.graph import reference

KEY = jax.random.key(3)


def features(num_points: int, dimension: int = 7, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(num_points, dimension)).astype(np.float32)


def unpack(codes: np.ndarray) -> np.ndarray:
    return np.unpackbits(np.asarray(codes).view(np.uint8), axis=1, bitorder="little")


@pytest.mark.parametrize("num_bits", [1, 31, 32, 33, 300])
def test_shape_dtype_and_unused_bits(num_bits):
    codes = np.asarray(graph.lsh_codes(KEY, features(5), num_bits))
    assert codes.shape == (5, -(-num_bits // 32)) and codes.dtype == np.uint32
    assert not unpack(codes)[:, num_bits:].any()
    assert 0 < unpack(codes)[:, :num_bits].mean() < 1


def test_bits_are_signs_of_projections_that_all_points_share():
    # The codes of the unit vectors and their opposites are complementary wherever no projection is
    # 0.
    unit = np.eye(6, dtype=np.float32)
    both = unpack(graph.lsh_codes(KEY, np.concatenate([unit, -unit]), 96))
    np.testing.assert_array_equal(both[:6] + both[6:], np.ones((6, 96)))


def test_a_shorter_code_is_the_start_of_a_longer_one():
    short = graph.lsh_codes(KEY, features(5), 64)
    long = graph.lsh_codes(KEY, features(5), 600)
    np.testing.assert_array_equal(short, long[:, :2])


@pytest.mark.parametrize(
    "points_at_once", [None, pytest.param(300, marks=pytest.mark.thorough), 2048]
)
def test_equal_rows_get_equal_codes_whatever_stands_around_them(points_at_once):
    points = features(700)
    points[650] = points[3]
    codes = np.asarray(graph.lsh_codes(KEY, points, 256, points_at_once=points_at_once))
    np.testing.assert_array_equal(codes[650], codes[3])
    np.testing.assert_array_equal(
        graph.lsh_codes(KEY, points[600:], 256, points_at_once=points_at_once), codes[600:]
    )


@pytest.mark.parametrize("scale", [2.0**-100, 0.25, 2.0**100, 3.0])
def test_scaling_single_rows_keeps_codes(scale):
    points = features(40)
    scaled = points * np.where(np.arange(40)[:, None] % 2, np.float32(scale), 1)
    np.testing.assert_array_equal(
        graph.lsh_codes(KEY, scaled, 256), graph.lsh_codes(KEY, points, 256)
    )


def test_float64_features_see_the_same_hyperplanes():
    codes = np.asarray(graph.lsh_codes(KEY, features(50), 512))
    with jax.enable_x64(True):
        finer = np.asarray(graph.lsh_codes(KEY, features(50).astype(np.float64), 512))
    assert unpack(codes ^ finer).sum() <= 2  # a projection within rounding of 0 may change sides


@pytest.mark.parametrize(
    "degrees, spread", [(10, 0.0112), (30, 0.0183), (60, 0.0231), (90, 0.0245)]
)
def test_share_of_differing_bits_estimates_the_angle(degrees, spread):
    # 64 independent pairs at one angle: the mean lies within 5 standard errors (fails once in 1.7
    # million), and the spread within 45 % of the printed one (5 standard errors of a standard
    # deviation of 64).
    angle = np.deg2rad(degrees)
    estimates = []
    for pair in range(64):
        points = jnp.array([[1.0, 0.0, 0.0], [np.cos(angle), np.sin(angle), 0.0]], jnp.float32)
        codes = graph.lsh_codes(jax.random.fold_in(KEY, pair), points, 4096)
        estimates.append(np.pi * int(unpack(codes[:1] ^ codes[1:]).sum()) / 4096)
    share = angle / np.pi
    assert np.pi * np.sqrt(share * (1 - share) / 4096) == pytest.approx(spread, abs=5e-5)
    assert np.mean(estimates) == pytest.approx(angle, abs=5 * spread / 8)
    assert np.std(estimates) == pytest.approx(spread, rel=0.45)


def test_zero_rows_and_bad_rows_under_a_trace():
    points = features(4)
    points[1] = 0
    points[2, 3] = np.nan
    codes = jax.jit(graph.lsh_codes, static_argnums=2)(KEY, points, 64)
    zero = np.full(2, 0xFFFFFFFF, np.uint32)
    np.testing.assert_array_equal(codes[1], zero)
    np.testing.assert_array_equal(codes[2], zero)
    np.testing.assert_array_equal(graph.has_angle(points), [True, False, False, True])
    np.testing.assert_array_equal(codes[0], graph.lsh_codes(KEY, points[:1], 64)[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_known_bad_features_are_refused(bad):
    points = features(4)
    points[2, 3] = bad
    with pytest.raises(ValueError, match="NaN or infinity in 1 of 4 rows"):
        graph.lsh_codes(KEY, points, 64)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="num_bits is 0"):
        graph.lsh_codes(KEY, features(4), 0)
    with pytest.raises(ValueError, match="flatten"):
        graph.lsh_codes(KEY, features(4)[None], 32)
    with pytest.raises(ValueError, match="must be floating"):
        graph.lsh_codes(KEY, np.ones((2, 3), np.uint8), 32)


def test_distances_equal_counting():
    codes = reference.random_codes(1, 40, 100)
    expected = reference.hamming(codes)
    np.testing.assert_array_equal(popcount_distances(codes[:7], codes.T, jnp.int32), expected[:7])
    signs = signs_from_codes(jnp.asarray(codes))
    np.testing.assert_array_equal(matmul_distances(signs[:7], signs, jnp.int32), expected[:7])


def test_cosine_is_exactly_zero_from_a_right_angle_on():
    for num_bits in (1, 2, 12, 13, 4096):
        distance = np.arange(num_bits + 1)
        cosine = np.asarray(graph.cosine_from_hamming(jnp.asarray(distance), num_bits))
        assert (cosine[2 * distance >= num_bits] == 0).all()
        assert (cosine[2 * distance < num_bits] > 0).all() and cosine[0] == 1
    with pytest.raises(ValueError, match="num_bits"):
        graph.cosine_from_hamming(jnp.arange(3), 0)


def test_no_points():
    assert graph.lsh_codes(KEY, np.zeros((0, 3), np.float32), 40).shape == (0, 2)
