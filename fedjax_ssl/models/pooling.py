"""Max-pooling with a backward pass that is as fast as its forward pass.

The gradient of `lax.reduce_window` is a select-and-scatter, slow on CPU. Here the window's maximum is a chain of
pairwise selections, first along the width, then along the height, whose gradient is a chain of selections too.
"""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedjax_ssl.backend import backend
from fedjax_ssl.models.convolution import Padding, resolve_padding


def max_pool(
    inputs: Float[Array, "n h w c"],
    size: int,
    *,
    stride: int | None = None,
    padding: Padding = "VALID",
    relu: bool = False,
) -> Float[Array, "n h2 w2 c"]:
    """Maximum over size x size windows.

    Equal values: the gradient goes to one of them, the first in a row and the first of the rows, as in PyTorch.
    NaN wins over numbers.

    Args:
        inputs: images.
        size: height and width of the window.
        stride: step between windows, `size` by default.
        padding: as in `conv2d`, with -inf instead of zeros.
        relu: whether negative maxima become 0: ReLU after the pool is that before it, and works on fewer values.

    Returns:
        The pooled images; with "VALID", rows and columns that fill no window are dropped.

    Raises:
        ValueError: a window larger than the padded image.
    """
    stride = size if stride is None else stride
    pads = resolve_padding(inputs.shape[1:3], (size, size), stride, padding)
    if pads != ((0, 0), (0, 0)):
        inputs = jnp.pad(inputs, ((0, 0), *pads, (0, 0)), constant_values=-jnp.inf)
    if backend() == "gpu" and stride >= size and size**2 <= _NO_PLACE:
        return _apart(inputs, size, stride, inputs.shape[1:3], relu)
    for axis in (2, 1):
        inputs = functools.reduce(_larger, _offsets(inputs, size, stride, axis))
    return jax.nn.relu(inputs) if relu else inputs


def _offsets(inputs: Array, size: int, stride: int, axis: int) -> Iterator[Array]:
    """The first values of all windows along an axis, the second ones, and so on."""
    last = (inputs.shape[axis] - size) // stride * stride + 1
    return (lax.slice_in_dim(inputs, i, i + last, stride, axis) for i in range(size))


def _larger(first: Array, second: Array) -> Array:
    return jnp.where((first >= second) | jnp.isnan(first), first, second)


_NO_PLACE = 255  # place of a window whose maximum ReLU makes 0


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def _apart(inputs: Array, size: int, stride: int, image: tuple[int, int], relu: bool) -> Array:
    """Maximum over windows that do not overlap; the gradient reads which value was chosen, one byte for each window.

    All selections have the shape of the result, and with it one kernel on a GPU. A TPU takes more kernels so.
    """
    return _chosen(inputs, size, stride, relu)[0]


def _chosen(inputs: Array, size: int, stride: int, relu: bool) -> tuple[Array, Array]:
    """The largest value of every window, and its place in it."""
    rows = []
    for i, row in enumerate(_offsets(inputs, size, stride, 1)):
        values = enumerate(_offsets(row, size, stride, 2))
        rows.append(functools.reduce(_first, ((x, jnp.full(x.shape, i * size + j, jnp.uint8)) for j, x in values)))
    largest, place = functools.reduce(_first, rows)
    if relu:
        largest, place = jax.nn.relu(largest), jnp.where(largest > 0, place, jnp.uint8(_NO_PLACE))
    return largest, place


def _first(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
    """The larger of two values with its place, by the rule of `_larger`."""
    keep = (one[0] >= other[0]) | jnp.isnan(one[0])
    return jnp.where(keep, one[0], other[0]), jnp.where(keep, one[1], other[1])


def _apart_forward(inputs: Array, size: int, stride: int, image: tuple[int, int], relu: bool) -> tuple[Array, Array]:
    chosen = _chosen(inputs, size, stride, relu)
    # Behind the barrier both are written together; otherwise XLA may choose again for the gradient. Without ReLU
    # something else follows, which is then not written with them.
    return lax.optimization_barrier(chosen) if relu else chosen


def _apart_backward(
    size: int, stride: int, image: tuple[int, int], relu: bool, chosen: Array, cotangent: Array
) -> tuple[Array]:
    zero = jnp.zeros((), cotangent.dtype)
    parts = []
    for i in range(size):
        for j in range(size):
            ends = [
                length - first - (count - 1) * stride - 1
                for length, first, count in zip(image, (i, j), cotangent.shape[1:3], strict=True)
            ]
            spread = ((0, 0, 0), (i, ends[0], stride - 1), (j, ends[1], stride - 1), (0, 0, 0))
            parts.append(lax.pad(jnp.where(chosen == i * size + j, cotangent, zero), zero, spread))
    return (functools.reduce(jnp.add, parts),)


_apart.defvjp(_apart_forward, _apart_backward)
