"""Convolution with fewer multiplications: Winograd's minimal filtering along the width.

References:
    Lavin, Gray, Fast algorithms for convolutional neural networks, CVPR 2016, arXiv 1509.09308: F(m, r), here in one
    dimension, while the rows of the kernel and its channels are contracted as they are.
"""

import functools
import math
from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedjax_ssl.models import lowerings

# Filtering is the transpose of multiplying two polynomials. Their values at enough points determine the product, and
# each point takes one multiplication. These five and infinity (the leading coefficient) give tiles of six values. More
# points would save more products, but the points' powers grow, and the rounding error with them.
_POINTS = (0, 1, -1, 2, -2)
_SIZE = len(_POINTS) + 1
# Transform of the inputs, one row per point: the coefficients of the product of (x - q) over the other points q.
_INPUT = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)


def winograd(
    inputs: Float[Array, "n h w c"], kernel: Float[Array, "kh kw c f"], stride: int, pads: lowerings.Pads
) -> Float[Array, "n h2 w2 f"]:
    """Six products for six neighbouring values of a row, which give 7 - kw outputs; else `slices`.

    A kernel of width 3 takes 1.5 products per output, kernel row and channel instead of 3, one of width 5 takes 3
    instead of 5. What gains nothing goes to `slices`: other widths than 3 to 5, strides, images of few columns; so
    do half precision, which has no digits to spare, and integers.

    The outputs of a tile share its rounding: in float32 they are off by some 2e-6 of the largest of them (`slices`:
    5e-7). A value that is not finite spoils its tile, and one above 6e37 overflows. Products have the backend's default
    precision, which may be too low for this on a GPU or TPU, so `conv2d` chooses it on CPUs only.
    """
    height, width, channels, filters = kernel.shape
    count, out_rows, out_columns = lowerings.positions(inputs, kernel, stride, pads)
    step = _SIZE + 1 - width
    tiles = -(-out_columns // max(step, 1))
    exact = jnp.issubdtype(inputs.dtype, jnp.floating) and inputs.dtype.itemsize >= 4
    if stride != 1 or not 3 <= width <= 5 or _SIZE * tiles >= width * out_columns or not exact:
        return lowerings.slices(inputs, kernel, stride, pads)
    # To the points, one matrix product per point over kernel rows and channels together, and back. The transforms
    # only add and scale, and their cost is shared by all filters; the products are where the time goes.
    values = jnp.stack(_combine(_INPUT, _tiles(inputs, pads, tiles, step)))
    # Without the barrier XLA computes a transformed value, and its gradient, anew for every row of the kernel.
    values = lax.optimization_barrier(values)
    patches = jnp.concatenate([values[:, :, i : i + out_rows] for i in range(height)], -1)
    kernels = jnp.stack(_combine(_kernel_transform(width), jnp.unstack(kernel, axis=1)))
    products = lax.dot_general(
        patches.reshape(_SIZE, -1, height * channels),
        kernels.reshape(_SIZE, height * channels, filters),
        (((2,), (1,)), ((0,), (0,))),
    )
    products = products.reshape(_SIZE, count, out_rows, tiles, filters)
    outputs = jnp.stack(_combine(_output_transform(width), jnp.unstack(products)), 3)
    return outputs.reshape(count, out_rows, tiles * step, filters)[:, :, :out_columns]


def _tiles(inputs: Array, pads: lowerings.Pads, tiles: int, step: int) -> list[Array]:
    """Six arrays [n, h, tiles, c]: the first to sixth value of every tile; tiles overlap and begin `step` apart."""
    blocks = tiles + -(-_SIZE // step) - 1
    left = pads[1][0]
    right = blocks * step - inputs.shape[2] - left
    inputs = jnp.pad(inputs, ((0, 0), pads[0], (left, right), (0, 0)))
    inputs = inputs.reshape(*inputs.shape[:2], blocks, step, inputs.shape[3])
    return [value for i in range(blocks - tiles + 1) for value in jnp.unstack(inputs[:, :, i : i + tiles], axis=3)][
        :_SIZE
    ]


def _kernel_transform(width: int) -> list[list[float]]:
    """The kernel's values at the points, over the product of the point's distances to the others; its last entry."""
    scales = [math.prod(p - q for q in _POINTS if q != p) for p in _POINTS]
    at_points = [[p**j / scale for j in range(width)] for p, scale in zip(_POINTS, scales, strict=True)]
    return [*at_points, [float(j == width - 1) for j in range(width)]]


def _output_transform(width: int) -> list[list[int]]:
    """One row per output: powers of the points; infinity goes to the last output alone."""
    last = _SIZE - width
    return [[*(p**j for p in _POINTS), int(j == last)] for j in range(last + 1)]


def _combine(matrix: Sequence[Sequence[float]], arrays: Sequence[Array]) -> list[Array]:
    """Weighted sums of the arrays, one per row of the matrix."""
    return [
        functools.reduce(jnp.add, [c * x if c != 1 else x for c, x in zip(row, arrays, strict=True) if c])
        for row in matrix
    ]
