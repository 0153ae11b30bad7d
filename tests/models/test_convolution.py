"""Convolutions and pools against the plain ones of XLA: outputs, gradients, batched kernels, second derivatives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.models import conv2d, lowerings, max_pool
from fedjax_ssl.models.convolution import depthwise_conv2d
from fedjax_ssl.models.lowerings import resolve_padding
from fedjax_ssl.models.winograd import winograd

# images, kernel, stride, padding
GEOMETRIES = {
    "same": ((4, 7, 9, 3), (3, 3, 3, 5), 1, "SAME"),
    "valid": ((3, 8, 6, 2), (3, 3, 2, 4), 1, "VALID"),
    "stride 2, same, even": ((2, 8, 8, 3), (3, 3, 3, 4), 2, "SAME"),
    "stride 2, padded, odd": ((5, 9, 7, 2), (3, 3, 2, 3), 2, 1),
    "5x5 stride 2": ((2, 9, 11, 1), (5, 5, 1, 4), 2, 2),
    "even and oblong kernel": ((2, 6, 7, 3), (2, 4, 3, 2), 1, "SAME"),
    "1x1 stride 2": ((3, 5, 4, 6), (1, 1, 6, 3), 2, 0),
    "5x5": ((2, 6, 11, 2), (5, 5, 2, 3), 1, "SAME"),
    "oblong kernel of width 4": ((2, 5, 9, 2), (2, 4, 2, 3), 1, 2),
    "two columns": ((2, 5, 2, 2), (3, 3, 2, 3), 1, "SAME"),
    "stride over the edge": ((2, 8, 8, 1), (2, 2, 1, 2), 3, "VALID"),
}
FUNCTIONS = {
    "slices": lowerings.slices,
    "rows": lowerings.rows,
    "winograd": winograd,
    "plain_or_slices": lowerings.plain_or_slices,
}


def arrays(*shapes):
    """Standard normal numbers, the same every time."""
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape)) for shape in shapes]


def run(function, *arguments):
    """Outputs and gradients of a convolution, with cosines of the outputs as the loss."""
    outputs, pull = jax.vjp(function, *arguments)
    return outputs, *pull(jnp.cos(outputs))


def check_against_plain(results):
    oracle = jax.tree.leaves(results.pop("oracle"))
    assert {leaf.dtype for leaf in oracle} == {jnp.dtype(jnp.float64)}
    for other in results.values():
        for ours, expected in zip(jax.tree.leaves(other), oracle, strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_lowerings_equal_the_plain_convolution(name):
    images, kernel, stride, padding = GEOMETRIES[name]
    pads = resolve_padding(images[1:3], kernel[:2], stride, padding)

    @jax.jit
    def everything(x, k):
        functions = {"oracle": lowerings.plain, **FUNCTIONS}
        return {
            name: run(lambda x, k, function=function: function(x, k, stride, pads), x, k)
            for name, function in functions.items()
        }

    with jax.enable_x64(True):
        check_against_plain(everything(*arrays(images, kernel)))


@pytest.mark.parametrize("width", [3, 5])
def test_winograd_keeps_the_digits(width):
    x, k = (a.astype(jnp.float32) for a in arrays((2, 12, 24, 64), (width, width, 64, 64)))
    pads = ((1, 1), (1, 1))
    (target,) = (a.astype(jnp.float32) for a in arrays((2, 12 + 3 - width, 24 + 3 - width, 64)))

    @functools.partial(jax.jit, static_argnums=0)
    def everything(function, *values):
        outputs, pull = jax.vjp(lambda x, k: function(x, k, 1, pads), *values[:2])
        return outputs, *pull(values[2])

    results = everything(winograd, x, k, target)
    with jax.enable_x64(True):
        exact = everything(lowerings.plain, *(a.astype(jnp.float64) for a in (x, k, target)))
    for ours, expected in zip(results, exact, strict=True):
        assert np.max(np.abs(ours - np.asarray(expected))) < 5e-6 * np.max(np.abs(expected))


@pytest.mark.parametrize("shared_images", [True, False])
def test_lowerings_under_vmap_over_kernels(shared_images):
    images, kernel, stride, padding = GEOMETRIES["stride 2, padded, odd"]
    pads = resolve_padding(images[1:3], kernel[:2], stride, padding)

    @jax.jit
    def everything(x, ks):
        axes = (None if shared_images else 0, 0)
        functions = {"oracle": lowerings.plain, **FUNCTIONS}
        return {
            name: jax.vmap(lambda x, k, function=function: run(lambda x, k: function(x, k, stride, pads), x, k), axes)(
                x, ks
            )
            for name, function in functions.items()
        }

    with jax.enable_x64(True):
        check_against_plain(everything(*arrays(images if shared_images else (3, *images), (3, *kernel))))


@pytest.mark.parametrize("name", ["stride 2, same, even", "even and oblong kernel"])
def test_padding_rules_are_those_of_lax(name):
    images, kernel, stride, padding = GEOMETRIES[name]
    x, k = (a.astype(jnp.float32) for a in arrays(images, kernel))
    expected = jax.lax.conv_general_dilated(x, k, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    names = ("auto", "lax", "slices", "rows", "winograd")
    for ours in jax.jit(lambda: [conv2d(x, k, stride=stride, padding=padding, lowering=name) for name in names])():
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradient_of_a_gradient(name):
    with jax.enable_x64(True):
        x, k = arrays((2, 5, 6, 2), (3, 3, 2, 3))

        def penalty(function):
            def loss(x, k):
                return jnp.sum(jnp.sin(function(x, k, 1, ((1, 1), (1, 1)))))

            return lambda x, k: jnp.sum(jnp.square(jax.grad(loss)(x, k)))

        ours = jax.jit(jax.grad(penalty(FUNCTIONS[name]), (0, 1)))(x, k)
        expected = jax.jit(jax.grad(penalty(lowerings.plain), (0, 1)))(x, k)
        for a, b in zip(ours, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    "lowering", ["auto", *(pytest.param(p, marks=pytest.mark.thorough) for p in ("lax", "slices", "rows", "winograd"))]
)
def test_dtype_is_kept(lowering):
    x, k = (a.astype(jnp.bfloat16) for a in arrays((2, 5, 5, 16), (3, 3, 16, 4)))
    outputs, *gradients = run(lambda x, k: conv2d(x, k, lowering=lowering), x, k)
    assert outputs.shape == (2, 5, 5, 4)
    assert {a.dtype for a in (outputs, *gradients)} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize(
    ("images", "kernel", "options", "message"),
    [
        ((2, 5, 5, 3), (3, 3, 4, 2), {}, "channels"),
        ((2, 5, 5, 3), (3, 3, 3, 2), {"lowering": "fft"}, "allowed: auto, lax"),
        ((2, 5, 5, 3), (3, 3, 3, 2), {"padding": "FULL"}, "'SAME', 'VALID'"),
        ((2, 5, 5, 3), (3, 3, 3, 2), {"stride": 0}, "stride is 0; it must be a whole number"),
        ((2, 2, 5, 3), (3, 3, 3, 2), {"padding": "VALID"}, "does not fit"),
    ],
)
def test_bad_arguments(images, kernel, options, message):
    with pytest.raises(ValueError, match=message):
        conv2d(jnp.zeros(images), jnp.zeros(kernel), **options)


# Depthwise convolution: shifted slices.


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
        functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), outputs(x, kernel, "slices"), expected
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
    with pytest.raises(ValueError, match=r"kernel \[height, width, 1, channels\], got \(1, 4, 4, 2\)"):
        depthwise_conv2d(jnp.ones((1, 4, 4, 2)), jnp.ones(kernel))


# Pools.


@pytest.mark.parametrize(
    ("shape", "size", "stride", "padding"), [((2, 7, 8, 3), 2, 2, 0), ((2, 9, 8, 2), 3, 2, 1), ((1, 6, 7, 2), 3, 3, 0)]
)
def test_equals_reduce_window(shape, size, stride, padding):
    x = jax.random.permutation(jax.random.key(0), jnp.arange(np.prod(shape), dtype=jnp.float32)).reshape(shape)

    def oracle(x):
        pads = ((0, 0), (padding, padding), (padding, padding), (0, 0))
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, size, size, 1), (1, stride, stride, 1), pads)

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


def test_window_larger_than_image():
    with pytest.raises(ValueError, match="does not fit"):
        max_pool(jnp.zeros((1, 1, 4, 1)), 2)
