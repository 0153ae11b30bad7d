import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.objectives import divergence_from, vat_direction

RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(4, 2, 3))
KERNEL = RNG.normal(size=(6, 5))
HEAD = RNG.normal(size=(5, 3))


def network(inputs: jax.Array) -> jax.Array:
    hidden = jnp.tanh(inputs.reshape(len(inputs), -1) @ jnp.asarray(KERNEL, inputs.dtype))
    return hidden @ jnp.asarray(HEAD, inputs.dtype)


direction_of = jax.jit(functools.partial(vat_direction, network))


def test_direction_has_the_radius_hurts_most_and_is_constant() -> None:
    inputs = jnp.asarray(INPUTS, jnp.float32)
    key = jax.random.key(0)
    mask = jnp.ones(4, bool)
    direction = direction_of(inputs, key, 0.05)
    np.testing.assert_allclose(
        np.linalg.norm(np.asarray(direction).reshape(4, -1), axis=1), 0.05, rtol=1e-4
    )
    noise = jax.random.normal(key, inputs.shape, jnp.float32)
    noise = 0.05 * noise / jnp.linalg.norm(noise.reshape(4, -1), axis=1)[:, None, None]
    clean = network(inputs)
    assert divergence_from(clean, network(inputs + direction), mask) > divergence_from(
        clean, network(inputs + noise), mask
    )
    slope = jax.jit(
        jax.grad(lambda scale: vat_direction(lambda x: scale * network(x), inputs, key, 0.05).sum())
    )(1.0)
    assert float(slope) == 0.0


def test_padding_changes_nothing_where_rows_are_normalized_together() -> None:
    """A row of padding is normalized by the others' statistics, so it has a prediction that
    moves with them.
    """

    def normalized(inputs: jax.Array, mask: jax.Array) -> jax.Array:
        rows = inputs.reshape(len(inputs), -1)
        mean, var = (
            jnp.mean(x, axis=0, where=mask[:, None])
            for x in (rows, (rows - rows[mask].mean(0)) ** 2)
        )
        return network((rows - mean) / jnp.sqrt(var + 1e-5))

    def direction(padding: int) -> np.ndarray:
        mask = np.arange(4 + padding) < 4
        inputs = jnp.pad(jnp.asarray(INPUTS, jnp.float32), ((0, padding), (0, 0), (0, 0)))
        key = jax.random.key(1)
        predict = functools.partial(normalized, mask=mask)
        return np.asarray(jax.jit(lambda x: vat_direction(predict, x, key, 0.7, mask=mask))(inputs))

    padded = direction(3)
    np.testing.assert_allclose(padded[:4], direction(0), atol=1e-5)
    np.testing.assert_array_equal(padded[4:], 0.0)


def test_loss_is_the_mean_divergence_from_a_constant(float64) -> None:
    one = jnp.asarray(RNG.normal(size=(3, 4)))
    other = jnp.asarray(RNG.normal(size=(3, 4)))
    mask = jnp.asarray([True, False, True])
    p, q = (
        np.exp(z) / np.exp(z).sum(1, keepdims=True) for z in (np.asarray(one), np.asarray(other))
    )
    expected = (p * np.log(p / q)).sum(1)[[0, 2]].mean()
    assert float(divergence_from(one, other, mask)) == pytest.approx(expected, rel=1e-12)
    np.testing.assert_array_equal(jax.grad(divergence_from)(one, other, mask), 0.0)
    slope = jax.grad(divergence_from, argnums=1)(one, other, mask)
    np.testing.assert_allclose(slope, (q - p) * np.asarray(mask)[:, None] / 2, atol=1e-14)
