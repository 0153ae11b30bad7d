"""Convolution with fewer multiplications: Winograd's minimal filtering.

References:
    Lavin, Gray, Fast algorithms for convolutional neural networks, CVPR 2016, arXiv 1509.09308: F(m
    x m, r x r). Barabasz, Anderson, Soodhalter, Gregg, Error analysis and improving the accuracy of
    Winograd convolution for deep neural networks, ACM TOMS 2020, arXiv 1803.10986: which points
    keep the digits.
"""

import contextlib
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jaxtyping import Array, Float

from fedjax_ssl.backend import backend
from fedjax_ssl.models import lowerings

# Filtering is the transpose of multiplying two polynomials. Their values at enough points determine
# the product, and each point takes one multiplication. Zero, these and their negatives, and
# infinity (the leading coefficient) give tiles of six values. With more points, or with others,
# numbers of very different size are added up, and digits get lost.
_POSITIVE = (0.75, 1.5)
_POINTS = (0.0, *(p for positive in _POSITIVE for p in (positive, -positive)))
_SIZE = len(_POINTS) + 1


class _Tiles(NamedTuple):
    """Tiles along one axis of the outputs."""

    number: int
    step: int  # outputs of a tile
    blocks: int  # pieces of `step` inputs that all tiles lie in


def winograd(
    inputs: Float[Array, "n h w c"],
    kernel: Float[Array, "kh kw c f"],
    stride: int,
    pads: lowerings.Pads,
) -> Float[Array, "n h2 w2 f"]:
    """Six products for six neighbouring values give 7 - kw outputs, along both axes of the images;
    else `slices`.

    A 3x3 kernel takes 36 products for a tile of 4x4 outputs instead of 144, a 5x5 kernel 36 for 2x2
    instead of 100. An axis that gains nothing is contracted as it is; where that is the width, all
    goes to `slices`. Nothing is gained by other sizes than 3 to 5, strides and few outputs along
    the axis. To `slices` go half precision too, which has no digits to spare, and integers.

    The outputs of a tile share its rounding: in float32 they are off by some 2e-6 of the largest of
    them (`slices`: 5e-7). A value that is not finite spoils its tile, and one above 1e36 may
    overflow. Products have the backend's default precision, which may be too low for this on a GPU
    or TPU, so `conv2d` chooses it on CPUs only.
    """
    # A function of the compiled program too, and not written out for every layer: there is less to
    # compile.
    with set_xla_metadata(inlineable="false") if backend() == "cpu" else contextlib.nullcontext():
        return _winograd(inputs, kernel, stride, pads)


# Traced once for all layers of a shape: the transforms are many small operations.
@functools.partial(jax.jit, static_argnames=("stride", "pads"))
def _winograd(inputs: Array, kernel: Array, stride: int, pads: lowerings.Pads) -> Array:
    height, width, channels, filters = kernel.shape
    count, out_rows, out_columns = lowerings.positions(inputs, kernel, stride, pads)
    along_rows = _tiles(out_rows, height)
    along_columns = _tiles(out_columns, width)
    exact = jnp.issubdtype(inputs.dtype, jnp.floating) and inputs.dtype.itemsize >= 4
    if stride != 1 or along_columns is None or not exact:
        return lowerings.slices(inputs, kernel, stride, pads)
    # To the points, one matrix product per point over all channels, and back. The transforms only
    # add and scale, and their cost is shared by all filters; the products are where the time goes.
    # Axes that a transform leaves alone are one axis to it: with all of them it takes longer to
    # compile, and to run.
    inputs = _padded(inputs, pads, along_rows, along_columns)
    columns = along_columns.number
    padded_rows = inputs.shape[1]
    # [6, n * h, tiles, c]
    values = _to_points(inputs.reshape(-1, inputs.shape[2], channels), along_columns)
    transform = _kernel_transform(width)
    if along_rows is None:
        values = values.reshape(_SIZE, count, padded_rows, columns, channels)
        values = jnp.concatenate([values[:, :, i : i + out_rows] for i in range(height)], -1)
        transform = np.einsum("pw,hk->phkw", transform, np.eye(height))
        points = _SIZE
        depth = height * channels
        rows = out_rows
    else:
        # Without the barrier XLA computes a transformed value, and its gradient, anew for every
        # point of the rows.
        values = lax.optimization_barrier(values).reshape(
            _SIZE * count, padded_rows, columns * channels
        )
        values = _to_points(values, along_rows)  # [6, 6 * n, tiles, tiles * c]
        transform = np.einsum("qh,pw->qphw", _kernel_transform(height), transform)
        points = _SIZE**2
        depth = channels
        rows = along_rows.number * along_rows.step
    kernels = jnp.asarray(transform.reshape(-1, height * width), kernel.dtype) @ kernel.reshape(
        height * width, -1
    )
    products = lax.dot_general(
        values.reshape(points, -1, depth),
        kernels.reshape(points, depth, filters),
        (((2,), (1,)), ((0,), (0,))),
    )
    if along_rows is not None:
        products = products.reshape(_SIZE, -1, columns * filters)
        products = lax.optimization_barrier(_from_points(products, height))
    outputs = _from_points(products.reshape(_SIZE, -1, filters), width)
    return outputs.reshape(count, rows, columns * along_columns.step, filters)[
        :, :out_rows, :out_columns
    ]


def _tiles(outputs: int, size: int) -> _Tiles | None:
    """Tiles along an axis of so many outputs, for a kernel of this size; None if they save
    nothing.
    """
    if not 3 <= size <= 5:
        return None
    step = _SIZE + 1 - size
    number = -(-outputs // step)
    return (
        _Tiles(number, step, number + -(-_SIZE // step) - 1)
        if _SIZE * number < size * outputs
        else None
    )


def _padded(inputs: Array, pads: lowerings.Pads, *axes: _Tiles | None) -> Array:
    """Pad the images, and add zeros to the end of an axis that is cut, up to the end of its last
    block.
    """
    sizes = inputs.shape[1:3]
    rows, columns = [
        pad if tiles is None else (pad[0], tiles.blocks * tiles.step - size - pad[0])
        for size, pad, tiles in zip(sizes, pads, axes, strict=True)
    ]
    return lowerings.padded(inputs, (rows, columns))


def _to_points(inputs: Array, tiles: _Tiles) -> Array:
    """Cut [a, size, b] to [6, a, tiles, b]: every tile's values at the points; tiles overlap and
    begin `step` apart.

    At a point p the coefficients are those of the product of (x - q) over the other points q. What
    they have in common at p and -p, the even ones, is added up once.
    """
    before, _, after = inputs.shape
    inputs = inputs.reshape(before, tiles.blocks, tiles.step, after)
    pieces = (inputs[:, i : i + tiles.number] for i in range(tiles.blocks - tiles.number + 1))
    values = [value for piece in pieces for value in jnp.unstack(piece, axis=2)][:_SIZE]
    even = values[::2]
    odd = values[1::2]
    squares = [p * p for p in _POSITIVE]
    results = [_weighted(_coefficients(squares), even)]
    for p in _POSITIVE:
        others = _coefficients([q * q for q in _POSITIVE if q != p])
        one = _weighted(others, even[1:])
        other = p * _weighted(others, odd[:-1])
        results += [one + other, one - other]
    return jnp.stack([*results, _weighted(_coefficients(squares), odd)])


def _from_points(products: Array, size: int) -> Array:
    """[6, a, b] to [a, outputs of a tile, b]: output j adds p^j times the product at p, infinity
    to the last alone.
    """
    zero, *finite, infinity = jnp.unstack(products)
    pairs = list(zip(finite[::2], finite[1::2], strict=True))
    sums = [a + b for a, b in pairs]
    differences = [a - b for a, b in pairs]
    last = _SIZE - size
    outputs = [
        _weighted([p**j for p in _POSITIVE], differences if j % 2 else sums)
        for j in range(last + 1)
    ]
    outputs[0] += zero
    outputs[last] += infinity
    return jnp.stack(outputs, 1)


def _kernel_transform(size: int) -> np.ndarray:
    """[6, size]: a kernel's values at the points, over the product of the point's distances to
    the others; its end.
    """
    at_points = [
        [p**j / math.prod(p - q for q in _POINTS if q != p) for j in range(size)] for p in _POINTS
    ]
    return np.array([*at_points, [float(j == size - 1) for j in range(size)]])


def _coefficients(roots: Sequence[float]) -> list[float]:
    """Return the coefficients of the polynomial with these roots and leading coefficient 1, lowest
    power first.
    """
    found = [1.0]
    for root in roots:
        found = [low - root * high for low, high in zip([0.0, *found], [*found, 0.0], strict=True)]
    return found


def _weighted(factors: Sequence[float], arrays: Sequence[Array]) -> Array:
    return functools.reduce(
        jnp.add, [c * x if c != 1 else x for c, x in zip(factors, arrays, strict=True)]
    )
