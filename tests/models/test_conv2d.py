"""conv2d against the plain convolution: outputs, both gradients, batched kernels, second
derivatives.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.models import conv2d, lowerings
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
def test_winograd_saves_products_and_keeps_the_digits(width):
    x, k = (a.astype(jnp.float32) for a in arrays((2, 12, 24, 64), (width, width, 64, 64)))
    pads = ((1, 1), (1, 1))

    def operations(function):
        lowered = jax.jit(lambda x, k: run(lambda x, k: function(x, k, 1, pads), x, k)).lower(x, k)
        return lowered.cost_analysis()["flops"]

    assert operations(winograd) < 0.65 * operations(lowerings.slices)
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
            name: jax.vmap(
                lambda x, k, function=function: run(
                    lambda x, k: function(x, k, stride, pads), x, k
                ),
                axes,
            )(x, ks)
            for name, function in functions.items()
        }

    with jax.enable_x64(True):
        check_against_plain(
            everything(*arrays(images if shared_images else (3, *images), (3, *kernel)))
        )


@pytest.mark.parametrize("name", ["stride 2, same, even", "even and oblong kernel"])
def test_padding_rules_are_those_of_lax(name):
    images, kernel, stride, padding = GEOMETRIES[name]
    x, k = (a.astype(jnp.float32) for a in arrays(images, kernel))
    expected = jax.lax.conv_general_dilated(
        x, k, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    names = ("auto", "lax", "slices", "rows", "winograd")
    for ours in jax.jit(
        lambda: [conv2d(x, k, stride=stride, padding=padding, lowering=name) for name in names]
    )():
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


def convolutions(function, *arguments):
    """The lines of the compiler's input that hold a convolution."""
    text = jax.jit(function).lower(*arguments).as_text()
    return [line for line in text.splitlines() if "stablehlo.convolution" in line]


def test_accelerators_never_see_grouped_convolutions():
    x, k = (a.astype(jnp.float32) for a in arrays((4, 2, 6, 6, 3), (4, 3, 3, 3, 5)))
    pads = ((1, 1), (1, 1))

    def gradients(x, k):
        return run(lambda x, k: lowerings.plain_or_slices(x, k, 1, pads), x, k)

    assert convolutions(gradients, x[0], k[0])
    assert not convolutions(jax.vmap(gradients), x, k)
    assert not convolutions(jax.vmap(jax.vmap(gradients, (0, None)), (None, 0)), x, k)
    folded = convolutions(jax.vmap(lambda x: lowerings.plain_or_slices(x, k[0], 1, pads)), x)
    assert len(folded) == 1
    assert "feature_group_count = 1 " in folded[0]
    assert "tensor<8x6x6x3xf32>" in folded[0]


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
    "lowering",
    [
        "auto",
        *(
            pytest.param(p, marks=pytest.mark.thorough)
            for p in ("lax", "slices", "rows", "winograd")
        ),
    ],
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
        ((2, 2, 5, 3), (3, 3, 3, 2), {"padding": "VALID"}, "does not fit"),
    ],
)
def test_bad_arguments(images, kernel, options, message):
    with pytest.raises(ValueError, match=message):
        conv2d(jnp.zeros(images), jnp.zeros(kernel), **options)
