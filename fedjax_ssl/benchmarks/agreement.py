"""Whether this package's own kernels compute on a GPU what products over patches do, which are XLA's."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedjax_ssl.backend import compiles_kernels, why_no_kernels
from fedjax_ssl.models.chained import Layer, conv_norms
from fedjax_ssl.models.convolution import conv2d
from fedjax_ssl.models.passes import Passes
from fedjax_ssl.models.separate import PLAIN_OR_SLICES, PRODUCTS

# Factors of products are rounded to TF32, with ten bits, in both ways; sums come in different orders. Of bfloat16, with
# seven bits, results are rounded too.
ALLOWED = 0.01
# images and their side, channels, filters, stride: few channels and many, strides, and a kernel that is turned
_LAYERS = ((20, 28, 3, 32, 1), (20, 14, 32, 64, 1), (10, 16, 64, 128, 2), (30, 16, 128, 256, 1))
_CHAIN = (20, 16, (3, 64, 128))  # images and their side; channels from layer to layer


class Agreement(NamedTuple):
    """Of this package's own kernels with products over patches."""

    off: float | None  # see `compare_convolutions`; None: own kernels are not taken here
    why: str = ""  # they are not


def compare_convolutions(
    layers: tuple[tuple[int, ...], ...] = _LAYERS, chain: tuple[int, int, tuple[int, ...]] = _CHAIN
) -> Agreement:
    """The largest difference between both ways of some layers with a kernel per client, over the largest value.

    Results, results with bias and ReLU, and both gradients are compared, in single precision and in bfloat16. Of layers
    with batch norm within, in single precision, the length of the difference over that of the values: near 0 an
    activation's gradient may take either side.
    """
    if not compiles_kernels():
        return Agreement(None, why_no_kernels() or "")
    plain = (_off(layer, dtype) for layer in layers for dtype in (jnp.float32, jnp.bfloat16))
    return Agreement(float(np.max([*plain, _off_with_norms(*chain)])))  # NumPy's maximum keeps NaN


def _off(layer: tuple[int, ...], dtype: jnp.dtype) -> float:
    count, side, channels, filters, stride = layer
    keys = jax.random.split(jax.random.key(0), 3)
    images = jax.random.normal(keys[0], (2, count, side, side, channels), dtype)
    kernels = jax.random.normal(keys[1], (2, 3, 3, channels, filters), dtype)
    shape = jax.eval_shape(jax.vmap(partial(conv2d, stride=stride)), images, kernels).shape
    cotangents = jax.random.normal(keys[2], shape, dtype)
    ours, theirs = (
        jax.jit(jax.vmap(partial(_results, stride=stride, lowering=lowering)))(images, kernels, cotangents)
        for lowering in ("implicit", "slices")
    )
    differences = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b)), ours, theirs)
    return float(jnp.max(jnp.stack(differences)))


def _results(images: Array, kernel: Array, cotangent: Array, stride: int, lowering: str) -> tuple[Array, ...]:
    convolve = partial(conv2d, stride=stride, lowering=lowering)
    activated = convolve(images, kernel, bias=jnp.linspace(-1, 1, kernel.shape[-1], dtype=kernel.dtype), relu=True)
    # Without ReLU: a value that is 0 but for rounding would have a gradient in one way and none in the other.
    outputs, pull = jax.vjp(convolve, images, kernel)
    return activated, outputs, *pull(cotangent)


def _off_with_norms(count: int, side: int, channels: tuple[int, ...]) -> float:
    keys = iter(jax.random.split(jax.random.key(1), 2 + 5 * len(channels)))
    images = jax.random.normal(next(keys), (2, count, side, side, channels[0]))
    layers = []
    for before, after in itertools.pairwise(channels):
        kernel = jax.random.normal(next(keys), (2, 3, 3, before, after))
        layers.append(Layer(kernel, *(jax.random.normal(next(keys), (2, after)) for _ in range(4))))
    cotangents = jax.random.normal(next(keys), (2, count, side, side, channels[-1]))
    marked = jnp.broadcast_to(jnp.arange(count) < count - 1, (2, count))
    ours, theirs = (
        jax.jit(jax.vmap(partial(_results_with_norms, make=make)))(images, layers, marked, cotangents)
        for make in (PRODUCTS, PLAIN_OR_SLICES)
    )
    differences = jax.tree.map(
        lambda a, b: jnp.linalg.norm(jnp.ravel(a - b)) / jnp.linalg.norm(jnp.ravel(b)), ours, theirs
    )
    return float(jnp.max(jnp.stack(differences)))


def _results_with_norms(
    images: Array, layers: list[Layer], marked: Array, cotangents: Array, make: Callable[..., Passes]
) -> tuple[Array, ...]:
    def run(images: Array, layers: list[Layer]) -> Array:
        return conv_norms(images, layers, marked, [((1, 1), (1, 1))] * len(layers), 1e-5, 0.1, make)[0]

    outputs, pull = jax.vjp(run, images, layers)
    of_images, of_layers = pull(cotangents)
    # Those of biases are 0 behind a norm layer.
    of_weights = (part for one in of_layers for part in (one.kernel, one.scale, one.shift))
    return outputs, of_images, *of_weights
