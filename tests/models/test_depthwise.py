"""Depthwise convolution: shifted slices against XLA's grouped convolution."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.models.convolution import depthwise_conv2d

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("size", "stride", "padding"), [(3, 1, 1), (5, 2, 2), (3, 2, "SAME")])
def test_values_and_gradients_are_the_grouped_convolutions(size, stride, padding):
    x = jnp.asarray(RNG.standard_normal((2, 6, 5, 4), np.float32))
    kernel = jnp.asarray(RNG.standard_normal((size, size, 1, 4), np.float32))

    @functools.partial(jax.jit, static_argnums=2)
    def outputs(x, kernel, lowering):
        def scored(x, kernel):
            y = depthwise_conv2d(x, kernel, stride=stride, padding=padding, lowering=lowering)
            return jnp.sum(jnp.sin(y)), y

        return jax.grad(scored, (0, 1), has_aux=True)(x, kernel)

    expected = outputs(x, kernel, "lax")
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
        outputs(x, kernel, "slices"),
        expected,
    )


def test_short_types_are_added_up_in_float32():
    x = jnp.full((1, 5, 5, 1), 1.01, jnp.bfloat16)
    kernel = jnp.full((5, 5, 1, 1), 0.99, jnp.bfloat16)
    y = depthwise_conv2d(x, kernel, padding="VALID", lowering="slices")
    assert y.dtype == jnp.bfloat16
    exact = 25 * float(x[0, 0, 0, 0]) * float(kernel[0, 0, 0, 0])
    assert y.item() == float(jnp.asarray(exact, jnp.bfloat16))


@pytest.mark.parametrize("kernel", [(3, 3, 2, 2), (3, 3, 1, 4), (3, 3, 2)])
def test_shapes_that_do_not_fit(kernel):
    with pytest.raises(
        ValueError, match=r"kernel \[height, width, 1, channels\], got \(1, 4, 4, 2\)"
    ):
        depthwise_conv2d(jnp.ones((1, 4, 4, 2)), jnp.ones(kernel))
