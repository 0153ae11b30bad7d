"""Max-pooling with a backward pass that is as fast as its forward pass.

The gradient of `lax.reduce_window` is a select-and-scatter, slow on CPU. Here the window's maximum is a chain of
pairwise selections, first along the width, then along the height, whose gradient is a chain of selections too.
"""

import functools
from collections.abc import Iterator

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedjax_ssl.backend import backend
from fedjax_ssl.models.convolution import Padding, resolve_padding


def max_pool(
    inputs: Float[Array, "n h w c"], size: int, *, stride: int | None = None, padding: Padding = "VALID"
) -> Float[Array, "n h2 w2 c"]:
    """Maximum over size x size windows.

    Equal values: the gradient goes to one of them, the first in a row and the first of the rows, as in PyTorch.
    NaN wins over numbers.

    Args:
        inputs: images.
        size: height and width of the window.
        stride: step between windows, `size` by default.
        padding: as in `conv2d`, with -inf instead of zeros.

    Returns:
        The pooled images; with "VALID", rows and columns that fill no window are dropped.

    Raises:
        ValueError: a window larger than the padded image.
    """
    stride = size if stride is None else stride
    pads = resolve_padding(inputs.shape[1:3], (size, size), stride, padding)
    if pads != ((0, 0), (0, 0)):
        inputs = jnp.pad(inputs, ((0, 0), *pads, (0, 0)), constant_values=-jnp.inf)
    if backend() == "gpu" and stride >= size:
        # All selections have the shape of the result, and with it one kernel, which leaves behind what was selected.
        # A TPU takes more kernels so.
        rows = (functools.reduce(_larger, _offsets(row, size, stride, 2)) for row in _offsets(inputs, size, stride, 1))
        return functools.reduce(_larger, rows)
    for axis in (2, 1):
        inputs = functools.reduce(_larger, _offsets(inputs, size, stride, axis))
    return inputs


def _offsets(inputs: Array, size: int, stride: int, axis: int) -> Iterator[Array]:
    """The first values of all windows along an axis, the second ones, and so on."""
    last = (inputs.shape[axis] - size) // stride * stride + 1
    return (lax.slice_in_dim(inputs, i, i + last, stride, axis) for i in range(size))


def _larger(first: Array, second: Array) -> Array:
    return jnp.where((first >= second) | jnp.isnan(first), first, second)
