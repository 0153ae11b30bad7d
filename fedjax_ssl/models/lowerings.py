"""Ways to compute one convolution: the plain one, and matrix products over shifted slices.

Every function takes (inputs NHWC, kernel HWIO, stride, pads) and returns the same values up to the order of
additions. `conv2d` chooses among them and says when which one is fast.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedjax_ssl.backend import backend

# Rows of a piece of a long contraction, by filters: the results of all pieces are then a small part of its factors.
_FEWEST_ROWS = 32

Pads = tuple[tuple[int, int], tuple[int, int]]


def plain(inputs: Array, kernel: Array, stride: int, pads: Pads) -> Array:
    """XLA's own convolution: the oracle, and the fast path of accelerators."""
    return lax.conv_general_dilated(inputs, kernel, (stride, stride), pads, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def slices(inputs: Array, kernel: Array, stride: int, pads: Pads) -> Array:
    """All kh*kw shifted slices side by side, one product. The slices are kept for the gradient."""
    patches = _patches(inputs, kernel, stride, pads)
    products = patches @ kernel.reshape(-1, kernel.shape[3])
    return products.reshape(*positions(inputs, kernel, stride, pads), kernel.shape[3])


def rows(inputs: Array, kernel: Array, stride: int, pads: Pads) -> Array:
    """kw shifted slices side by side, one product per kernel row: a third of the memory for 3x3."""
    height, width, channels, filters = kernel.shape
    count, out_rows, out_columns = positions(inputs, kernel, stride, pads)
    inputs = padded(inputs, pads)
    wide = _side_by_side(inputs, 2, width, out_columns, stride)
    products = (
        _shifted(wide, 1, i, out_rows, stride).reshape(-1, width * channels) @ kernel[i].reshape(-1, filters)
        for i in range(height)
    )
    return functools.reduce(jnp.add, products).reshape(count, out_rows, out_columns, filters)


def gradients_in_pieces(inputs: Array, kernel: Array, cotangent: Array, stride: int, pads: Pads) -> tuple[Array, Array]:
    """The gradients of `slices`, that of the kernel as a sum over groups of images.

    A GPU's compiler cuts a contraction over so many rows itself, to fill the device, and where the pieces come out
    uneven it copies both factors to pad them. A TPU's does not, and would move more bytes for pieces.
    """
    filters, count = kernel.shape[3], inputs.shape[0]
    patches, pull = jax.vjp(lambda inputs: _patches(inputs, kernel, stride, pads), inputs)
    outputs = cotangent.reshape(-1, filters)
    most = max(outputs.shape[0] // (_FEWEST_ROWS * filters), 1)
    groups = max((number for number in range(1, min(most, count) + 1) if count % number == 0), default=1)
    columns, results = (x.reshape(groups, -1, x.shape[1]) for x in (patches, outputs))
    weights = jnp.sum(lax.dot_general(columns, results, (((1,), (1,)), ((0,), (0,)))), axis=0)
    (images,) = pull(outputs @ kernel.reshape(-1, filters).T)
    return images, weights.reshape(kernel.shape)


def padded(inputs: Array, pads: Pads) -> Array:
    """With zeros around the images. Unlike `jnp.pad` no function of its own, which a program would keep as such."""
    if not any(map(any, pads)):
        return inputs
    return lax.pad(inputs, jnp.zeros((), inputs.dtype), [(0, 0, 0), *((*pad, 0) for pad in pads), (0, 0, 0)])


def positions(inputs: Array, kernel: Array, stride: int, pads: Pads) -> tuple[int, int, int]:
    """Number of images, height and width of the output."""
    return inputs.shape[0], *result_size(inputs.shape[1:3], kernel.shape[:2], stride, pads)


def result_size(image: tuple[int, ...], window: tuple[int, ...], stride: int, pads: Pads) -> tuple[int, int]:
    """Height and width of the output."""
    height, width = ((size + sum(pad) - k) // stride + 1 for size, pad, k in zip(image, pads, window, strict=True))
    return height, width


def _shifted(values: Array, axis: int, start: int, count: int, stride: int) -> Array:
    return lax.slice_in_dim(values, start, start + (count - 1) * stride + 1, stride, axis)


def _patches(inputs: Array, kernel: Array, stride: int, pads: Pads) -> Array:
    """One row per output position, kh*kw*c values each.

    Two-dimensional: with the image axes kept, the products and their gradients are slower on CPU.
    """
    height, width, channels, _ = kernel.shape
    _, out_rows, out_columns = positions(inputs, kernel, stride, pads)
    inputs = padded(inputs, pads)
    if backend() == "cpu" and height * width > 1:
        # In two turns there are 6 slices for a 3x3 kernel and not 9. Without the barrier, what was done to the images
        # before, as augmentation, is computed once more for every slice, and compiled as often.
        wide = _side_by_side(lax.optimization_barrier(inputs), 2, width, out_columns, stride)
        return _side_by_side(wide, 1, height, out_rows, stride).reshape(-1, height * width * channels)
    shifted = [
        _shifted(_shifted(inputs, 1, i, out_rows, stride), 2, j, out_columns, stride)
        for i in range(height)
        for j in range(width)
    ]
    return jnp.concatenate(shifted, -1).reshape(-1, height * width * channels)


def _side_by_side(values: Array, axis: int, number: int, count: int, stride: int) -> Array:
    """In the channels, as many slices of `count` entries, each of which begins one further along the axis."""
    return jnp.concatenate([_shifted(values, axis, i, count, stride) for i in range(number)], -1)
