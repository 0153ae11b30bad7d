"""Max-pooling with a backward pass that is as fast as its forward pass.

The gradient of `lax.reduce_window` is a select-and-scatter, slow on CPU. Windows that lie side by
side note here in one byte which of their values was the largest, and the gradient reads it. Others
are a chain of pairwise selections, first along the width, then along the height, whose gradient is
a chain of selections too.
"""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from fedjax_ssl.models.lowerings import Padding, resolve_padding


def max_pool(
    inputs: Float[Array, "n h w c"],
    size: int,
    *,
    stride: int | None = None,
    padding: Padding = "VALID",
    relu: bool = False,
) -> Float[Array, "n h2 w2 c"]:
    """Return the maximum over size x size windows.

    Equal values: the gradient goes to one of them, the first in a row and the first of the rows, as
    in PyTorch. NaN wins over numbers.

    Args:
        inputs: images.
        size: height and width of the window.
        stride: step between windows, `size` by default.
        padding: as in `conv2d`, with -inf instead of zeros.
        relu: whether negative maxima become 0: ReLU after the pool is that before it, and works on
            fewer values.

    Returns:
        The pooled images; with "VALID", rows and columns that fill no window are dropped.

    Raises:
        ValueError: a window larger than the padded image.
    """
    stride = size if stride is None else stride
    pads = resolve_padding(inputs.shape[1:3], (size, size), stride, padding)
    if pads != ((0, 0), (0, 0)):
        inputs = jnp.pad(inputs, ((0, 0), *pads, (0, 0)), constant_values=-jnp.inf)
    if stride == size and size**2 <= _NO_PLACE:
        # Written as it is: what follows often has other axes, and a CPU would compute it value by
        # value.
        return lax.optimization_barrier(_apart(inputs, size, relu))
    for axis in (2, 1):
        inputs = functools.reduce(_larger, _offsets(inputs, size, stride, axis))
    return jax.nn.relu(inputs) if relu else inputs


def _offsets(inputs: Array, size: int, stride: int, axis: int) -> Iterator[Array]:
    """Return the first values of all windows along an axis, the second ones, and so on."""
    last = (inputs.shape[axis] - size) // stride * stride + 1
    return (lax.slice_in_dim(inputs, i, i + last, stride, axis) for i in range(size))


def _larger(first: Array, second: Array) -> Array:
    return jnp.where((first >= second) | jnp.isnan(first), first, second)


_NO_PLACE = 255  # place of a window whose maximum ReLU makes 0


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _apart(inputs: Array, size: int, relu: bool) -> Array:
    """Return the maximum over windows side by side. The derivative reads which value was chosen,
    one byte for each window.

    No value is chosen by a branch, which a CPU would guess wrong, and all operations have the shape
    of the result.
    """
    largest = functools.reduce(jnp.maximum, _values(inputs, size))
    return jax.nn.relu(largest) if relu else largest


@_apart.defjvp
def _apart_derivative(
    size: int, relu: bool, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    (inputs,) = primals
    (tangent,) = tangents
    values = list(_values(inputs, size))
    largest = functools.reduce(jnp.maximum, values)
    nowhere = jnp.uint8(_NO_PLACE)
    places = (
        jnp.where((x == largest) | jnp.isnan(x), jnp.uint8(i), nowhere)
        for i, x in enumerate(values)
    )
    place = functools.reduce(jnp.minimum, places)
    if relu:
        place = jnp.where(largest > 0, place, nowhere)
        largest = jax.nn.relu(largest)
    # Behind the barrier both are written; otherwise XLA may choose again for the gradient.
    largest, place = lax.optimization_barrier((largest, place))
    chosen = place[:, :, None, :, None] == np.arange(size**2, dtype=np.uint8).reshape(
        size, 1, size, 1
    )
    return largest, jnp.sum(jnp.where(chosen, _windows(tangent, size), 0), (2, 4))


def _windows(inputs: Array, size: int) -> Array:
    """Cut images to [n, rows, size, columns, size, c], without rows and columns that fill no
    window.
    """
    count, height, width, channels = inputs.shape
    rows = height // size
    columns = width // size
    inputs = inputs[:, : rows * size, : columns * size]
    return inputs.reshape(count, rows, size, columns, size, channels)


def _values(inputs: Array, size: int) -> Iterator[Array]:
    """Return the first value of all windows, the second one, and so on, row by row."""
    windows = _windows(inputs, size)
    return (windows[:, :, i, :, j] for i in range(size) for j in range(size))
