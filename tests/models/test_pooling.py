"""max_pool against reduce_window, and its gradient on ties."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.models import max_pool


@pytest.mark.parametrize(
    ("shape", "size", "stride", "padding"),
    [((2, 7, 8, 3), 2, 2, 0), ((2, 9, 8, 2), 3, 2, 1), ((1, 6, 7, 2), 3, 3, 0)],
)
def test_equals_reduce_window(shape, size, stride, padding):
    x = jax.random.permutation(
        jax.random.key(0), jnp.arange(np.prod(shape), dtype=jnp.float32)
    ).reshape(shape)

    def oracle(x):
        pads = ((0, 0), (padding, padding), (padding, padding), (0, 0))
        return jax.lax.reduce_window(
            x, -jnp.inf, jax.lax.max, (1, size, size, 1), (1, stride, stride, 1), pads
        )

    @jax.jit
    def both(x):
        ours, pull = jax.vjp(lambda x: max_pool(x, size, stride=stride, padding=padding), x)
        expected, oracle_pull = jax.vjp(oracle, x)
        return ours, expected, pull(jnp.sin(ours))[0], oracle_pull(jnp.sin(ours))[0]

    ours, expected, gradient, oracle_gradient = both(x)
    np.testing.assert_array_equal(ours, expected)
    np.testing.assert_allclose(gradient, oracle_gradient, rtol=1e-6)


@pytest.mark.thorough
def test_ties_send_the_whole_gradient_to_one_value():
    gradient = jax.grad(lambda x: jnp.sum(max_pool(x, 2)))(jnp.zeros((1, 4, 4, 1)))
    np.testing.assert_array_equal(gradient[0, :, :, 0], np.tile([[1.0, 0.0], [0.0, 0.0]], (2, 2)))


@pytest.mark.thorough
def test_relu_after_the_pool_is_relu_before_it():
    x = jax.random.normal(jax.random.key(0), (2, 5, 4, 3)) - 0.5

    def run(pool):
        outputs, pull = jax.vjp(pool, x)
        return outputs, *pull(jnp.cos(outputs))

    ours = jax.jit(lambda: run(lambda x: max_pool(x, 2, relu=True)))()
    jax.tree.map(np.testing.assert_array_equal, ours, run(lambda x: jax.nn.relu(max_pool(x, 2))))
    assert np.mean(ours[0] == 0) > 0.05


@pytest.mark.parametrize("position", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_nan_wins(position):
    x = jnp.ones((1, 2, 2, 1)).at[0, *position, 0].set(jnp.nan)
    largest, gradient = jax.value_and_grad(lambda x: jnp.sum(max_pool(x, 2)))(x)
    assert np.isnan(largest)
    np.testing.assert_array_equal(gradient, np.isnan(x))


@pytest.mark.thorough
@pytest.mark.parametrize("relu", [False, True])
def test_forward_mode_is_reverse_mode(relu):
    x, tangent = jax.random.normal(jax.random.key(0), (2, 2, 5, 6, 3))
    outputs, along = jax.jvp(lambda x: max_pool(x, 2, relu=relu), (x,), (tangent,))
    expected, pull = jax.vjp(lambda x: max_pool(x, 2, relu=relu), x)
    np.testing.assert_array_equal(outputs, expected)
    (gradient,) = pull(jnp.cos(outputs))
    np.testing.assert_allclose(
        jnp.vdot(along, jnp.cos(outputs)), jnp.vdot(tangent, gradient), rtol=1e-5
    )


def test_window_larger_than_image():
    with pytest.raises(ValueError, match="does not fit"):
        max_pool(jnp.zeros((1, 1, 4, 1)), 2)
