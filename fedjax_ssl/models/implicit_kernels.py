"""Two kernels for GPUs (Pallas, Triton): correlation of images with a kernel per client, and the kernel's gradient.

Both are products. A row is a position of all results of a client. Of its neighbourhood, a block reads a part of the
channels at one place of the kernel at a time, in the image itself: what lies outside is masked. With few channels all
places lie side by side, and every value is read by itself. What is read as the images' values, and what becomes of
results before they are written, are parts of their own (`implicit_parts`).
"""

import math
from functools import partial
from types import NoneType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedjax_ssl.backend import triton_options
from fedjax_ssl.models.implicit_parts import BiasReLU, Finish, Places, Source, Values, load
from fedjax_ssl.models.normalization import statistics_dtype

_ROWS = 128  # of a block of a product
_MOST = 128  # filters or channels of a block
FEWEST_CHANNELS = 16  # the smallest side of a product
_BYTES = 128  # of a row's values that are multiplied at once


class Geometry(NamedTuple):
    """Which value of the images a position of the results meets at a place of the kernel."""

    image: tuple[int, ...]  # height and width of what is read
    result: tuple[int, ...]  # of the results
    window: tuple[int, ...]  # of the kernel
    before: tuple[int, int]  # zeros before the first row and column
    stride: int = 1  # of positions
    spread: int = 1  # there are so many steps from one value of the image to the next, with zeros between


class _Work(NamedTuple):
    """What a block has to know."""

    geometry: Geometry
    rows: int  # of a client
    channels: int
    filters: int
    tile: tuple[int, int, int]
    flat: bool  # places of the kernel lie side by side

    @property
    def places(self) -> int:
        """That are gone through one after another."""
        return 1 if self.flat else math.prod(self.geometry.window)

    @property
    def depth(self) -> int:
        """Values of a row at one of these places."""
        return self.channels * (math.prod(self.geometry.window) if self.flat else 1)


def is_flat(channels: int) -> bool:
    """Whether there are so few channels that all places of the kernel are multiplied at once."""
    return channels < FEWEST_CHANNELS


def product_tile(filters: int, depth: int, itemsize: int) -> tuple[int, int, int]:
    """Rows, filters and values of a row that a block multiplies at once."""
    return _ROWS, _side(filters, _MOST), _side(depth, _BYTES // min(itemsize, 4))


def sums_tile(depth: int, filters: int, itemsize: int) -> tuple[int, int, int]:
    """Values of a row, filters and rows that a block of a kernel's gradient multiplies at once."""
    return _side(depth, _MOST), _side(filters, _MOST), _BYTES // min(itemsize, 4)


def correlate(
    images: Source,
    kernels: Float[Array, "g t f c"] | Float[Array, "g t c f"],
    geometry: Geometry,
    *,
    turned: bool = False,
    flipped: bool = False,
    finish: Finish | None = None,
) -> tuple[Float[Array, "g n h2 w2 f"], tuple[Float[Array, "g f"], ...]]:
    """Of each client, the cross-correlation of its images with its kernel.

    Args:
        images: with c channels; all arrays with the clients as first axis.
        kernels: of t places, row by row.
        geometry: of all images.
        turned: the kernels have c fastest, so that a product reads its second factor along what it sums over.
        flipped: the last place of the kernel meets the first value.
        finish: what is done with results before they are written.

    Returns:
        The results; and the sums that `finish` has, none without.
    """
    from jax.experimental import pallas as pl

    clients, count, *_, channels = images.values.shape
    dtype = images.values.dtype
    filters, rows = kernels.shape[2 if turned else 3], count * math.prod(geometry.result)
    work = _Work(geometry, rows, channels, filters, (0, 0, 0), is_flat(channels) and not turned)
    work = work._replace(tile=product_tile(filters, work.depth, dtype.itemsize))
    factors, tree = jax.tree.flatten((images, kernels, finish))
    blocks, sums = pl.cdiv(rows, work.tile[0]), 0 if finish is None else finish.sums
    partial_sums = pl.BlockSpec((None, None, filters), lambda _, block, client: (client, block, 0))
    call = pl.pallas_call(
        partial(_product_block, tree=tree, work=work, turned=turned, flipped=flipped),
        grid=(pl.cdiv(filters, work.tile[1]), blocks, clients),
        in_specs=[_of_client(math.prod(factor.shape[1:])) for factor in factors],
        out_specs=[_of_client(rows * filters)] + [partial_sums] * sums,
        out_shape=[jax.ShapeDtypeStruct((clients, rows * filters), dtype)]
        + [jax.ShapeDtypeStruct((clients, blocks, filters), statistics_dtype(dtype))] * sums,
        name="correlate",
        **_options(work, clients, (images, finish)),
    )
    results, *found = call(*(factor.reshape(clients, -1) for factor in factors))
    results = results.reshape(clients, count, *geometry.result, filters)
    return results, tuple(jnp.sum(one, axis=1) for one in found)


def contract(
    images: Source,
    cotangents: Source,
    geometry: Geometry,
    parts: int,
) -> Float[Array, "g t*c f"]:
    """Of each client, the gradient of its kernel: images and gradients of the results, summed over positions.

    Args:
        images: with c channels; all arrays with the clients as first axis.
        cotangents: of f filters.
        geometry: of all images.
        parts: sums that positions are divided among, which are added afterwards.
    """
    from jax.experimental import pallas as pl

    clients, count, *_, channels = images.values.shape
    dtype = images.values.dtype
    filters, rows = cotangents.values.shape[4], count * math.prod(geometry.result)
    work = _Work(geometry, rows, channels, filters, (0, 0, 0), is_flat(channels))
    work = work._replace(tile=sums_tile(work.depth, filters, dtype.itemsize))
    tall, wide, depth = work.tile
    size = work.places * work.depth * filters
    factors, tree = jax.tree.flatten((images, cotangents))
    call = pl.pallas_call(
        partial(_sums_block, tree=tree, work=work, length=pl.cdiv(pl.cdiv(rows, parts), depth)),
        grid=(work.places * pl.cdiv(work.depth, tall) * pl.cdiv(filters, wide), parts, clients),
        in_specs=[_of_client(math.prod(factor.shape[1:])) for factor in factors],
        out_specs=pl.BlockSpec((None, None, size), lambda _, part, client: (client, part, 0)),
        out_shape=jax.ShapeDtypeStruct((clients, parts, size), statistics_dtype(dtype)),
        name="correlate_gradient",
        **_options(work, clients, (images, cotangents)),
    )
    found = call(*(factor.reshape(clients, -1) for factor in factors))
    return jnp.sum(found, axis=1).astype(dtype).reshape(clients, -1, filters)


def _product_block(*references: Any, tree: Any, work: _Work, turned: bool, flipped: bool) -> None:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    (rows, columns, depth), given = work.tile, tree.num_leaves
    (images, kernels, finish), (out, *sums) = tree.unflatten(references[:given]), references[given:]
    column = pl.program_id(0) * columns + _range(columns)
    row = pl.program_id(1) * rows + _range(rows)
    position = _positions(row, work)
    chunks = pl.cdiv(work.depth, depth)

    def turn(step: Array, so_far: Array) -> Array:
        place, chunk = _divided(step, chunks)
        value = chunk * depth + _range(depth)
        seen = images.read(_read_places(position, place, value, work))
        place = work.places - 1 - place if flipped else place
        one, other, size = (column, value, work.depth) if turned else (value, column, work.filters)
        at = (place * (work.filters if turned else work.depth) + one[:, None]) * size + other
        whole = work.filters % columns == 0 and work.depth % depth == 0
        there = (one < (work.filters if turned else work.depth))[:, None] & (other < size)
        weights = load(kernels, at, None if whole else there)
        contracted = (((1,), (1 if turned else 0,)), ((), ()))
        return so_far + lax.dot_general(seen, weights, contracted, preferred_element_type=so_far.dtype)

    dtype = out.dtype
    start = jnp.zeros((rows, columns), statistics_dtype(dtype))
    found = lax.fori_loop(jnp.int32(0), jnp.int32(work.places * chunks), turn, start)
    places = _result_places(row, column, work)
    if finish is not None:
        found, totals = finish.last(found, places, dtype)
        for total, reference in zip(totals, sums, strict=True):
            triton.store(reference.at[column], total, mask=column < work.filters)
    triton.store(out.at[places.at], found.astype(dtype), mask=places.there)


def _sums_block(*references: Any, tree: Any, work: _Work, length: int) -> None:
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    tall, wide, depth = work.tile
    (images, cotangents), out = tree.unflatten(references[:-1]), references[-1]
    block, place = _divided(pl.program_id(0), work.places)
    down, right = _divided(block, pl.cdiv(work.filters, wide))
    value, column = down * tall + _range(tall), right * wide + _range(wide)
    first = pl.program_id(1) * (length * depth)

    def turn(step: Array, so_far: Array) -> Array:
        row = first + step * depth + _range(depth)
        seen = images.read(_read_places(_positions(row, work), place, value, work))
        slopes = cotangents.read(_result_places(row, column, work))
        return so_far + lax.dot_general(seen, slopes, (((0,), (0,)), ((), ())), preferred_element_type=so_far.dtype)

    start = jnp.zeros((tall, wide), out.dtype)
    found = lax.fori_loop(jnp.int32(0), jnp.int32(length), turn, start)
    at = (place * work.depth + value)[:, None] * work.filters + column
    triton.store(out.at[at], found, mask=(value < work.depth)[:, None] & (column < work.filters))


def _positions(row: Array, work: _Work) -> tuple[Array, ...]:
    """Of rows of a product: whether they are any, their image, and which of its values they meet first."""
    height, width = work.geometry.result
    image, within = _divided(row, height * width)
    down, right = _divided(within, width)
    top = down * work.geometry.stride - work.geometry.before[0]
    left = right * work.geometry.stride - work.geometry.before[1]
    return tuple(x[:, None] for x in (row < work.rows, image, top, left))


def _read_places(position: tuple[Array, ...], place: Array, value: Array, work: _Work) -> Places:
    """Where the values of a block's rows lie among those of a client, and which there are."""
    there, image, y, x = position
    geometry, channel = work.geometry, value
    if work.flat:
        place, channel = _divided(value, work.channels)
    i, j = _divided(place, geometry.window[1])
    y, x = y + i, x + j
    there = there & (y >= 0) & (x >= 0)
    if geometry.spread > 1:
        (y, above), (x, beside) = _divided(y, geometry.spread), _divided(x, geometry.spread)
        there = there & (above == 0) & (beside == 0)
    there = there & (y < geometry.image[0]) & (x < geometry.image[1])
    at = (image * math.prod(geometry.image) + y * geometry.image[1] + x) * work.channels + channel
    if work.depth % value.shape[0]:
        there = there & (value < work.depth)
    return Places(at, jnp.broadcast_to(there, at.shape), *_within(channel, work.channels, image, work))


def _result_places(row: Array, column: Array, work: _Work) -> Places:
    """Where the results of a block's rows lie among those of a client, and which there are."""
    there = (row < work.rows)[:, None] & (column < work.filters)
    image, _ = _divided(row, math.prod(work.geometry.result))
    return Places(row[:, None] * work.filters + column, there, *_within(column, work.filters, image[:, None], work))


def _within(channel: Array, channels: int, image: Array, work: _Work) -> tuple[Array, Array]:
    """Indices of channels and images, those outside moved to the last ones."""
    images = work.rows // math.prod(work.geometry.result)
    return jnp.minimum(channel, channels - 1), jnp.minimum(image, images - 1)


def _divided(value: Array, by: int) -> tuple[Array, Array]:
    """Quotient and rest of what is not negative, or not used where it is."""
    return lax.div(value, jnp.int32(by)), lax.rem(value, jnp.int32(by))


def _range(size: int) -> Array:
    return lax.iota(jnp.int32, size)


def _side(size: int, most: int) -> int:
    """The smallest power of two that holds a size, within what a block can have."""
    return min(max(1 << (size - 1).bit_length(), FEWEST_CHANNELS), most)


def _of_client(size: int) -> Any:
    from jax.experimental import pallas as pl

    return pl.BlockSpec((None, size), lambda _, __, client: (client, 0))


def _options(work: _Work, clients: int, parts: tuple[Source | Finish | None, ...]) -> dict[str, Any]:
    # For whoever reads the compiled program, which says nothing of a kernel's inside.
    counted = 2 * clients * work.rows * work.places * work.depth * work.filters
    # With four, blocks that compute what they read or sum up what they write would spill registers.
    warps = 4 if all(isinstance(part, Values | BiasReLU | NoneType) for part in parts) else 8
    return {"metadata": {"operations": str(counted)}, **triton_options(warps)}
