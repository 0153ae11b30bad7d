"""Convolutions of many clients on GPUs: products with a kernel per client, and nothing materialized.

A product over shifted slices reads and writes kh*kw times the images. Here it reads its factors where they lie, see
`implicit_kernels`. Every function takes the clients as first axis, and adds in an order that does not depend on how
many these are.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float

from fedjax_ssl.backend import backend
from fedjax_ssl.models.implicit_kernels import (
    FEWEST_CHANNELS,
    Geometry,
    contract,
    correlate,
    is_flat,
    product_tile,
    sums_tile,
)
from fedjax_ssl.models.lowerings import Pads, positions

_OPERATIONS_PER_BYTE = 150  # of a GPU whose products and memory are equally busy
_ROWS_WORTH_TURNING = 6_000  # turning a kernel takes less than a tenth of its product with so many
_BLOCKS = 72  # of the gradient of a client's kernel, at least: four clients fill a GPU
_MOST_PARTS = 8  # of a sum that XLA adds where it is used


def convolve(
    inputs: Float[Array, "g n h w c"],
    kernels: Float[Array, "g kh kw c f"],
    stride: int,
    pads: Pads,
    bias: Float[Array, "g f"] | None = None,
) -> Float[Array, "g n h2 w2 f"]:
    """Of each client, the responses of its images to its filters; with a bias, ReLU of the sum."""

    @custom_vmap
    def many(inputs: Array, kernels: Array, *bias: Array) -> Array:
        geometry = _geometry(inputs, kernels, stride, pads)
        rows, (places, channels, filters) = inputs.shape[1] * math.prod(geometry.result), _places(kernels).shape[1:]
        turned = turns(rows, places, channels, filters, inputs.dtype.itemsize)
        kernels = jnp.swapaxes(_places(kernels), 2, 3) if turned else _places(kernels)
        return correlate(inputs, kernels, geometry, _platform(), turned=turned, bias=bias[0] if bias else None)

    many.def_vmap(_folded(many))
    return many(inputs, kernels, *(() if bias is None else (bias,)))


def gradient_of_inputs(
    inputs: Float[Array, "g n h w c"],
    kernels: Float[Array, "g kh kw c f"],
    cotangents: Float[Array, "g n h2 w2 f"],
    stride: int,
    pads: Pads,
) -> Float[Array, "g n h w c"]:
    """The gradient of `convolve` with respect to the images: its cotangents, correlated with the kernel upside down."""
    image, result = inputs.shape[2:4], cotangents.shape[2:4]

    @custom_vmap
    def many(kernels: Array, cotangents: Array) -> Array:
        height, width = kernels.shape[1:3]
        before = (height - 1 - pads[0][0], width - 1 - pads[1][0])
        geometry = Geometry(result, image, (height, width), before, spread=stride)
        return correlate(cotangents, _places(kernels), geometry, _platform(), turned=True, flipped=True)

    many.def_vmap(_folded(many))
    return many(kernels, cotangents)


def gradient_of_kernels(
    inputs: Float[Array, "g n h w c"],
    kernels: Float[Array, "g kh kw c f"],
    cotangents: Float[Array, "g n h2 w2 f"],
    stride: int,
    pads: Pads,
) -> Float[Array, "g kh kw c f"]:
    """The gradient of `convolve` with respect to the kernels."""
    shape = kernels.shape[1:]

    @custom_vmap
    def many(inputs: Array, cotangents: Array) -> Array:
        _, count, height, width, filters = cotangents.shape
        geometry = Geometry(inputs.shape[2:4], (height, width), shape[:2], (pads[0][0], pads[1][0]), stride)
        sums = parts(count * height * width, math.prod(shape[:2]), shape[2], filters, inputs.dtype.itemsize)
        return contract(inputs, cotangents, geometry, sums, _platform()).reshape(-1, *shape)

    many.def_vmap(_folded(many))
    return many(inputs, cotangents)


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


def _platform() -> str:
    return "gpu" if backend() == "gpu" else "interpret"


def _folded(many: Callable) -> Callable:
    """How a function of many clients is vectorized once more, over seeds: these are clients too."""

    def rule(size: int, batched: list[bool], *arguments: Array) -> tuple[Array, bool]:
        whole = (x if b else jnp.broadcast_to(x, (size, *x.shape)) for x, b in zip(arguments, batched, strict=True))
        results = many(*(x.reshape(-1, *x.shape[2:]) for x in whole))
        return results.reshape(size, -1, *results.shape[1:]), True

    return rule
