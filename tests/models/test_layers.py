"""Layers: norms against NumPy, weight normalisation, dropout's rate and bits, features of unit
length.
"""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.models.layers import Conv, Dense, Dropout, keep_mask, unit_length
from fedjax_ssl.models.normalization import Norm

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((6, 3, 4, 5)).astype(np.float32) * 3 + 1


START = {
    "params": {"scale": jnp.ones(5), "bias": jnp.zeros(5)},
    "batch_stats": {"mean": jnp.zeros(5), "var": jnp.ones(5)},
}


def batch_norm(x, mask, variables=START, train=True):
    apply = functools.partial(Norm("bn").apply, mutable=["batch_stats"])
    return jax.jit(apply, static_argnums=2)(variables, x, train, mask)


def test_batch_norm_starts_with_unit_statistics():
    variables = Norm("bn").init(jax.random.key(0), jnp.asarray(IMAGES), True, None)
    chex.assert_trees_all_equal(variables, {**START, "batch_weights": {"mean": 0.1, "var": 0.1}})


def test_batch_norm_follows_pytorch():
    y, new = batch_norm(jnp.asarray(IMAGES), None)
    mean = IMAGES.mean((0, 1, 2))
    var = IMAGES.var((0, 1, 2))
    np.testing.assert_allclose(y, (IMAGES - mean) / np.sqrt(var + 1e-5), rtol=1e-4, atol=1e-5)
    n = IMAGES[..., 0].size
    np.testing.assert_allclose(new["batch_stats"]["mean"], 0.1 * mean, rtol=1e-5)
    np.testing.assert_allclose(new["batch_stats"]["var"], 0.9 + 0.1 * var * n / (n - 1), rtol=1e-5)


def test_batch_norm_equals_flax():
    y, _ = batch_norm(jnp.asarray(IMAGES), None)
    theirs = nn.BatchNorm(use_running_average=False)
    expected, _ = jax.jit(theirs.init_with_output)(jax.random.key(0), jnp.asarray(IMAGES))
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_batch_norm_ignores_padding_rows():
    mask = jnp.asarray([True, True, False, True, False, True])
    rows = np.flatnonzero(mask)
    padded = jnp.asarray(IMAGES).at[2].set(jnp.nan)
    y, new = batch_norm(padded, mask)
    expected, expected_new = batch_norm(jnp.asarray(IMAGES[rows]), None)
    np.testing.assert_allclose(y[rows], expected, rtol=1e-5, atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), new, expected_new)


def test_batch_norm_gradient_ignores_padding_rows():
    mask = jnp.arange(6) < 4

    def loss(x, mask, weights):
        return jnp.sum(jnp.sin(batch_norm(x, mask)[0]) * weights[:, None, None, None])

    weights = jnp.where(mask, 1.0, 0.0)
    padded = jax.jit(jax.grad(loss))(jnp.asarray(IMAGES), mask, weights)
    alone = jax.jit(jax.grad(loss))(jnp.asarray(IMAGES[:4]), None, weights[:4])
    np.testing.assert_allclose(padded[:4], alone, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(padded[4:], 0)


@pytest.mark.parametrize("count", [0, 1])
def test_batch_norm_of_almost_nothing_stays_finite_and_leaves_the_running_statistics(count):
    x = jnp.asarray(RNG.standard_normal((3, 5)).astype(np.float32))
    y, new = batch_norm(x, jnp.arange(3) < count)
    assert np.isfinite(y).all()
    chex.assert_trees_all_equal(new["batch_stats"], START["batch_stats"])


def test_batch_norm_in_evaluation_uses_the_running_statistics():
    stats = {"mean": jnp.arange(5.0), "var": jnp.arange(1.0, 6.0)}
    params = {"scale": jnp.full(5, 2.0), "bias": jnp.full(5, -1.0)}
    y, new = batch_norm(
        jnp.asarray(IMAGES), None, {"params": params, "batch_stats": stats}, train=False
    )
    expected = 2 * (IMAGES - np.arange(5)) / np.sqrt(np.arange(1, 6) + 1e-5) - 1
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_equal(new["batch_stats"], stats)


def test_group_norm_against_numpy():
    x = RNG.standard_normal((2, 3, 3, 64)).astype(np.float32)
    params = {"scale": jnp.full(64, 2.0), "bias": jnp.full(64, -1.0)}
    y = Norm("gn").apply({"params": params}, jnp.asarray(x), True, None)
    groups = x.reshape(2, 9, 32, 2)
    mean = groups.mean((1, 3), keepdims=True)
    var = groups.var((1, 3), keepdims=True)
    expected = 2 * ((groups - mean) / np.sqrt(var + 1e-5)).reshape(x.shape) - 1
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


def test_weight_norm_starts_as_v_and_scales_with_g():
    x = jnp.asarray(IMAGES)
    layer = Conv(7, 3, padding=1, weight_norm=True)
    params = jax.jit(layer.init)(jax.random.key(0), x)["params"]
    v = np.asarray(params["v"])
    np.testing.assert_allclose(params["g"], np.sqrt((v**2).sum((0, 1, 2))), rtol=1e-6)
    plain = {"kernel": params["v"], "bias": params["bias"]}
    expected = Conv(7, 3, padding=1).apply({"params": plain}, x)
    np.testing.assert_allclose(layer.apply({"params": params}, x), expected, rtol=1e-5, atol=1e-6)
    doubled = {**params, "g": 2 * params["g"], "v": 5 * params["v"]}
    ours = layer.apply({"params": doubled}, x) - params["bias"]
    np.testing.assert_allclose(ours, 2 * (expected - params["bias"]), rtol=1e-4, atol=1e-5)


def test_default_initialisation_is_pytorchs():
    params = jax.jit(Dense(200).init)(jax.random.key(0), jnp.zeros((1, 400)))["params"]
    bound = 1 / np.sqrt(400)
    for leaf in params.values():
        assert np.abs(leaf).max() <= bound
        np.testing.assert_allclose(np.std(leaf), bound / np.sqrt(3), rtol=0.15)


@pytest.mark.parametrize("rate", [0.5, 0.25, 0.125, 0.3])
def test_dropout_rate_and_independence_of_padding(rate):
    key = jax.random.key(3)
    draw = jax.jit(keep_mask, static_argnums=(1, 2))
    keep = np.asarray(draw(key, (500, 7, 11), rate))
    # 38,500 draws: a deviation of 0.0125 is 5 standard errors or more
    np.testing.assert_allclose(keep.mean(), 1 - rate, atol=0.0125)
    np.testing.assert_array_equal(draw(key, (20, 7, 11), rate), keep[:20])
    assert len({row.tobytes() for row in keep}) == 500
    neighbours = np.corrcoef(
        keep.reshape(500, -1)[:, :-1].ravel(), keep.reshape(500, -1)[:, 1:].ravel()
    )[0, 1]
    assert abs(neighbours) < 0.03


def test_dropout_keeps_the_mean_and_is_off_in_evaluation():
    x = jnp.ones((50, 200))
    y = Dropout(0.25).apply({}, x, True, rngs={"dropout": jax.random.key(0)})
    np.testing.assert_allclose(np.unique(y), [0, 4 / 3], rtol=1e-6)
    np.testing.assert_array_equal(Dropout(0.25).apply({}, x, False), x)


def test_unit_length_of_zero_and_tiny_rows():
    x = jnp.asarray([[0.0, 0.0], [3.0, 4.0], [1e-10, 0.0], [1e-15, 0.0]])
    np.testing.assert_allclose(unit_length(x), [[0, 0], [0.6, 0.8], [1, 0], [1e-15, 0]], rtol=1e-6)
    assert np.isfinite(jax.grad(lambda x: jnp.sum(unit_length(x) ** 3))(x)).all()
