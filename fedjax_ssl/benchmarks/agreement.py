"""Whether this package's own kernels compute on a GPU what XLA's operations do."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedjax_ssl.backend import compiles_kernels
from fedjax_ssl.models.convolution import conv2d

# Factors of products are rounded to TF32, with ten bits, in both ways; sums come in different orders.
ALLOWED = 0.01
# images and their side, channels, filters, stride: few channels and many, strides, and a kernel that is turned
_LAYERS = ((20, 28, 3, 32, 1), (20, 14, 32, 64, 1), (10, 16, 64, 128, 2), (30, 16, 128, 256, 1))


def convolutions_off(layers: tuple[tuple[int, ...], ...] = _LAYERS) -> float:
    """The largest difference between both ways of some layers with a kernel per client, over the largest value.

    Results, results with bias and ReLU, and both gradients are compared, in single precision. 0 where own kernels are
    not taken: on other devices than NVIDIA's GPUs from Ampere on.
    """
    # NumPy's maximum keeps NaN.
    return float(np.max([_off(layer) for layer in layers])) if compiles_kernels() else 0.0


def _off(layer: tuple[int, ...]) -> float:
    count, side, channels, filters, stride = layer
    keys = jax.random.split(jax.random.key(0), 3)
    images = jax.random.normal(keys[0], (2, count, side, side, channels))
    kernels = jax.random.normal(keys[1], (2, 3, 3, channels, filters))
    shape = jax.eval_shape(jax.vmap(partial(conv2d, stride=stride)), images, kernels).shape
    cotangents = jax.random.normal(keys[2], shape)
    ours, theirs = (
        jax.jit(jax.vmap(partial(_results, stride=stride, lowering=lowering)))(images, kernels, cotangents)
        for lowering in ("implicit", "slices")
    )
    differences = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b)), ours, theirs)
    return float(jnp.max(jnp.stack(differences)))


def _results(images: Array, kernel: Array, cotangent: Array, stride: int, lowering: str) -> tuple[Array, ...]:
    convolve = partial(conv2d, stride=stride, lowering=lowering)
    activated = convolve(images, kernel, bias=jnp.linspace(-1, 1, kernel.shape[-1]), relu=True)
    # Without ReLU: a value that is 0 but for rounding would have a gradient in one way and none in the other.
    outputs, pull = jax.vjp(convolve, images, kernel)
    return activated, outputs, *pull(cotangent)
