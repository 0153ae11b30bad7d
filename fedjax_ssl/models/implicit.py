"""Convolutions of many clients on GPUs: products with a kernel per client, and nothing materialized.

A product over shifted slices reads and writes kh*kw times the images. Here it reads its factors where they lie, see
`implicit_kernels`. Every function takes the clients as first axis, and adds in an order that does not depend on how
many these are.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float

from fedjax_ssl.models.implicit_kernels import (
    FEWEST_CHANNELS,
    Geometry,
    contract,
    correlate,
    is_flat,
    product_tile,
    sums_tile,
)
from fedjax_ssl.models.implicit_parts import Finish, Source
from fedjax_ssl.models.lowerings import Pads, positions

Results = tuple[Array, tuple[Array, ...]]

_OPERATIONS_PER_BYTE = 150  # of a GPU whose products and memory are equally busy
_ROWS_WORTH_TURNING = 6_000  # turning a kernel takes less than a tenth of its product with so many
_BLOCKS = 72  # of the gradient of a client's kernel, at least: four clients fill a GPU
_MOST_PARTS = 8  # of a sum that XLA adds where it is used


def convolve(
    inputs: Source, kernels: Float[Array, "g kh kw c f"], stride: int, pads: Pads, finish: Finish | None = None
) -> Results:
    """Of each client, the responses of its images to its filters.

    Args:
        inputs: images [g, n, h, w, c], and what is made of their values as they are read.
        kernels: of all clients.
        stride: of both spatial axes.
        pads: zeros around the images.
        finish: what becomes of the responses before they are written.

    Returns:
        (responses [g, n, h2, w2, f], the sums [g, f] that `finish` has).
    """

    def many(inputs: Source, kernels: Array, finish: Finish | None) -> Results:
        images = inputs.values
        geometry = _geometry(images, kernels, stride, pads)
        rows, (places, channels, filters) = images.shape[1] * math.prod(geometry.result), _places(kernels).shape[1:]
        turned = turns(rows, places, channels, filters, images.dtype.itemsize)
        kernels = jnp.swapaxes(_places(kernels), 2, 3) if turned else _places(kernels)
        return correlate(inputs, kernels, geometry, turned=turned, finish=finish)

    return _of_clients(many)(inputs, kernels, finish)


def gradient_of_inputs(
    image: tuple[int, int],
    kernels: Float[Array, "g kh kw c f"],
    cotangents: Source,
    stride: int,
    pads: Pads,
    finish: Finish | None = None,
) -> Results:
    """The gradient of `convolve` with respect to the values that it read, images of this height and width.

    These are the cotangents [g, n, h2, w2, f], correlated with the kernel upside down; `finish` as in `convolve`.
    """

    def many(kernels: Array, cotangents: Source, finish: Finish | None) -> Results:
        height, width = kernels.shape[1:3]
        before = (height - 1 - pads[0][0], width - 1 - pads[1][0])
        geometry = Geometry(cotangents.values.shape[2:4], image, (height, width), before, spread=stride)
        return correlate(cotangents, _places(kernels), geometry, turned=True, flipped=True, finish=finish)

    return _of_clients(many)(kernels, cotangents, finish)


def gradient_of_kernels(
    inputs: Source, window: tuple[int, int], cotangents: Source, stride: int, pads: Pads
) -> Float[Array, "g kh kw c f"]:
    """The gradient of `convolve` with respect to the kernels, which have this height and width."""

    def many(inputs: Source, cotangents: Source) -> Array:
        _, count, height, width, filters = cotangents.values.shape
        images = inputs.values
        geometry = Geometry(images.shape[2:4], (height, width), window, (pads[0][0], pads[1][0]), stride)
        sums = parts(count * height * width, math.prod(window), images.shape[4], filters, images.dtype.itemsize)
        found = contract(inputs, cotangents, geometry, sums)
        return found.reshape(-1, *window, images.shape[4], filters)

    return _of_clients(many)(inputs, cotangents)


def applies(images: tuple[int, ...], filters: int, result: tuple[int, int], itemsize: int) -> bool:
    """Whether a GPU reads factors of this shape well: 16 bytes at a time, or few channels; and offsets have 32 bits."""
    channels = images[3]
    read = (filters,) if is_flat(channels) else (channels, filters)
    aligned = filters >= FEWEST_CHANNELS and all(size * itemsize % 16 == 0 for size in read)
    largest = images[0] * max(math.prod(images[1:3]), math.prod(result)) * max(channels, filters)
    return itemsize in (2, 4) and aligned and largest < 2**31


def operations(rows: int, places: int, channels: int, filters: int, itemsize: int) -> float:
    """Floating-point operations of one client's products in whole tiles."""
    if is_flat(channels):
        places, channels = 1, places * channels
    _, columns, depth = product_tile(filters, channels, itemsize)
    return 2.0 * rows * places * (-(-channels // depth) * depth) * (-(-filters // columns) * columns)


def turns(rows: int, places: int, channels: int, filters: int, itemsize: int) -> bool:
    """Whether kernels are turned before they are read: in long products, which take longer than reading and writing."""
    moved = rows * (channels + filters) * itemsize
    busy = operations(rows, places, channels, filters, itemsize) > _OPERATIONS_PER_BYTE * moved
    return busy and rows >= _ROWS_WORTH_TURNING and not is_flat(channels)


def parts(rows: int, places: int, channels: int, filters: int, itemsize: int) -> int:
    """How many sums the gradient of a client's kernel is cut into, which are added afterwards."""
    if is_flat(channels):
        places, channels = 1, places * channels
    tall, wide, depth = sums_tile(channels, filters, itemsize)
    blocks = places * -(-channels // tall) * -(-filters // wide)
    return max(min(-(-_BLOCKS // blocks), rows // (8 * depth), _MOST_PARTS), 1)


def _geometry(inputs: Array, kernels: Array, stride: int, pads: Pads) -> Geometry:
    result = positions(inputs[0], kernels[0], stride, pads)[1:]
    return Geometry(inputs.shape[2:4], result, kernels.shape[1:3], (pads[0][0], pads[1][0]), stride)


def _places(kernels: Array) -> Array:
    return kernels.reshape(kernels.shape[0], -1, *kernels.shape[3:])


def all_batched(size: int, arguments: tuple[Any, ...], batched: list) -> tuple[Any, ...]:
    """The arguments of a rule of `custom_vmap`, those that are not batched repeated."""
    return jax.tree.map(lambda x, b: x if b else jnp.broadcast_to(x, (size, *x.shape)), arguments, tuple(batched))


def _of_clients(many: Callable) -> Callable:
    """A function of many clients, which vectorized once more, over seeds, takes these as clients too."""
    many = custom_vmap(many)

    @many.def_vmap
    def _(size: int, batched: list, *arguments: Any) -> tuple[Any, Any]:
        whole = all_batched(size, arguments, batched)
        results = many(*jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), whole))
        results = jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), results)
        return results, jax.tree.map(lambda _: True, results)

    return many
