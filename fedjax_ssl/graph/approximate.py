"""Approximate nearest neighbours for millions of points: an inverted file, searched block by block.

Points are put into lists by the nearest of some centres, and every point is compared with the
points of near lists only (Sivic and Zisserman (2003), "Video Google"; Jegou, Douze and Schmid
(2011), "Product quantization for nearest neighbor search"). Points of one list are near each other,
so they are searched for together: 128 of them vote for the lists that they look into, and what they
are compared with is one dense tile, as in the exact search. How many lists are enough is measured:
the true neighbours of a sample of the points say how far the search has to go.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int32, UInt32

from fedjax_ssl.backend import backend
from fedjax_ssl.checks import check_numbers, check_whole_numbers
from fedjax_ssl.graph.codes import fastest_kernel, hamming_distances, signs_from_codes
from fedjax_ssl.graph.neighbors import (
    Neighbors,
    largest_value,
    nearest_neighbors,
    nearest_to_rows,
    neighbors_from_distances,
    smallest,
)
from fedjax_ssl.graph.settings import check_codes, check_rows

# Points that are searched for together, and units of what they are compared with.
_BLOCK = 128
# Blocks that a block is compared with before the nearest are kept.
_BLOCKS_PER_TILE = 32
# Blocks that are searched for at once by an accelerator.
_BLOCKS_AT_ONCE = 64
# Points from which centres are learned, for each of them, and how often these are moved.
_SAMPLE_PER_CENTRE = 32
_MOVES = 8
# Blocks, and points of each, whose true neighbours say how far to search.
_SAMPLE_BLOCKS = 128
_SAMPLE_ROWS = 4
# The vote of a point for its nearest list; all votes of a block and the number of a list are one
# integer of 32 bits.
_VOTE = 2**11

# Points whose recall is measured at most: products of two places must fit 32 bits.
_MOST_SAMPLES = 2**15

_Found = TypeVar("_Found")


class _Centres(NamedTuple):
    """Nearest centre of every code, and the bits that differ from it, [n] each."""

    first: Int32[Array, " n"]
    second: Int32[Array, " n"]
    distance: Int32[Array, " n"]


class _Lists(NamedTuple):
    """All points, list after list, in blocks; the last block of a list has empty places."""

    blocks: UInt32[Array, "b 128 words"]
    columns: UInt32[Array, "b words 128"]  # the same, transposed
    to_centre: Int32[Array, "b 128"]  # bits that differ between a point and the centre of its list
    index: Int32[Array, "b 128"]  # type: ignore[assignment]
    # ^ number of the point; n at empty places
    first_block: Int32[Array, " lists"]
    num_blocks: Int32[Array, " lists"]
    place: Int32[Array, " n"]
    # ^ position of every point among all places; points that are not valid have none
    list_of_point: Int32[Array, " n"]


def approximate_neighbors(
    codes: UInt32[Array, "n words"],
    num_bits: int,
    num_neighbors: int,
    valid: Bool[Array, " n"] | None = None,
    *,
    recall: float = 0.97,
    exact_up_to: int = 20_000,
) -> Neighbors:
    """Find most of the nearest other codes of every code, without comparing all pairs.

    For sizes where `nearest_neighbors` takes too long. All neighbours are real, with their exact
    similarity, and are ordered by the pair (distance, index); some of the nearest may be missed,
    and of equally near ones any may come last. Where there are fewer, a list ends as that of
    `nearest_neighbors`. The search goes as far as the neighbours of about 500 points ask for, so
    that time follows the structure of the points: in clusters it grows like n^1.5, and without any
    structure it comes near that of the exact search. `neighbor_recall` tells what was reached.
    Memory is O(n (k + words)). The result is a function of the codes alone.

    Args:
        codes: [n, ceil(num_bits / 32)] as `lsh_codes` returns them.
        num_bits: bits per code.
        num_neighbors: k, at least 1.
        valid: [n], False for rows that neither have nor are neighbours (padding). None: all are
            valid.
        recall: the share of the sample's neighbours that the search has to reach, in (0, 1]; a
            sample's is within about 0.01 of that of all points.
        exact_up_to: up to so many points all pairs are compared.

    Returns:
        Neighbors, [n, k] each.

    Raises:
        ValueError: if shapes or dtypes do not fit together, a count is below its least value, or
            the share is none.
    """
    codes = jnp.asarray(codes)
    check_codes(codes, num_bits)
    check_whole_numbers(num_neighbors=num_neighbors)
    check_rows("valid", valid, codes.shape[0])
    check_whole_numbers(0, exact_up_to=exact_up_to)
    check_numbers("(0, 1]", recall=recall)
    if codes.shape[0] <= max(exact_up_to, 1):
        return nearest_neighbors(codes, num_bits, num_neighbors, valid)
    valid = jnp.ones(codes.shape[0], bool) if valid is None else jnp.asarray(valid)
    return _approximate_neighbors(codes, valid, num_bits, num_neighbors, float(recall))


@partial(jax.jit, static_argnames=("num_bits", "num_neighbors", "recall"))
def _approximate_neighbors(
    codes: Array, valid: Array, num_bits: int, num_neighbors: int, recall: float
) -> Neighbors:
    num_points = codes.shape[0]
    centres = _learn_centres(codes, valid, math.isqrt(num_points))
    lists = _fill_lists(codes, valid, centres)
    num_tiles = _tiles_needed(lists, codes, valid, centres, num_bits, num_neighbors, recall)

    def search(block: Array, columns: Array) -> tuple[Array, Array]:
        return _search_block(lists, block, columns, centres, num_tiles, num_bits, num_neighbors)

    distance, index = _by_blocks(search, lists.columns)
    distance, index = (
        part.swapaxes(1, 2).reshape(-1, num_neighbors)[lists.place] for part in (distance, index)
    )
    distance = jnp.where(valid[:, None], distance, num_bits + 1)
    return neighbors_from_distances(index, distance, num_bits)


def _by_blocks(function: Callable[[Array, Array], _Found], columns: Array) -> _Found:
    """Apply a function of a block's number and columns [words, 128] to every block."""
    numbers = jnp.arange(columns.shape[0], dtype=jnp.int32)
    if backend() != "cpu":
        return lax.map(
            lambda block: function(block, columns[block]), numbers, batch_size=_BLOCKS_AT_ONCE
        )

    def step(own: Array, block: Array) -> tuple[Array, _Found]:
        # The next columns are handed on as they are: sliced where they are used, a CPU's program
        # would compute their offset for every distance, which takes ten times as long.
        return columns[jnp.minimum(block + 1, columns.shape[0] - 1)], function(block, own)

    return lax.scan(step, columns[0], numbers)[1]


def _learn_centres(codes: Array, valid: Array, count: int) -> Array:
    """Codes with about equally many points around each, [count, words], by k-majority on a sample.

    Every bit of a centre is that of most of its points, which makes the sum of their distances to
    it smallest.
    """
    size = min(_SAMPLE_PER_CENTRE * count, codes.shape[0])
    order = jnp.argsort(~valid, stable=True)
    sample = codes[order[_spread(size, jnp.sum(valid, dtype=jnp.int32))]]
    signs = signs_from_codes(sample)

    def move(centres: Array, _: None) -> tuple[Array, None]:
        own = _nearest_centres(sample, centres).first
        sums = jnp.zeros((count, signs.shape[1]), jnp.int32).at[own].add(signs.astype(jnp.int32))
        bits = (sums > 0).reshape(count, -1, 32).astype(jnp.uint32) << jnp.arange(
            32, dtype=jnp.uint32
        )
        moved = jnp.sum(bits, axis=2, dtype=jnp.uint32)
        alone = jnp.ones(count, bool).at[own].set(False)
        return jnp.where(alone[:, None], centres, moved), None

    return lax.scan(move, sample[_spread(count, jnp.int32(size))], None, length=_MOVES)[0]


def _spread(count: int, length: Array) -> Array:
    """`count` places spread evenly over `length`, the wider gaps first."""
    places = jnp.arange(count, dtype=jnp.int32)
    # No product that could be too large for 32 bits.
    return places * (length // count) + jnp.minimum(places, length % count)


def _nearest_centres(codes: Array, centres: Array) -> _Centres:
    num_points = codes.shape[0]
    num_centres = centres.shape[0]
    padded = jnp.pad(codes, ((0, -num_points % _BLOCK), (0, 0)))
    number = jnp.arange(num_centres, dtype=jnp.int32)[:, None]

    def nearest(_: Array, columns: Array) -> tuple[Array, Array]:
        # Distance and number in one integer: all differ.
        packed = hamming_distances(centres, columns).astype(jnp.int32) * num_centres + number
        first = jnp.min(packed, axis=0)
        return first, jnp.min(jnp.where(packed == first, 2**31 - 1, packed), axis=0)

    first, second = _by_blocks(nearest, padded.reshape(-1, _BLOCK, codes.shape[1]).swapaxes(1, 2))
    first = first.reshape(-1)[:num_points]
    second = second.reshape(-1)[:num_points]
    return _Centres(first % num_centres, second % num_centres, first // num_centres)


def _fill_lists(codes: Array, valid: Array, centres: Array) -> _Lists:
    """Sorts the points by their nearest and their second nearest centre."""
    num_points = codes.shape[0]
    num_lists = centres.shape[0]
    near = _nearest_centres(codes, centres)
    list_of_point = jnp.where(valid, near.first, num_lists)
    order = jnp.argsort(list_of_point * num_lists + near.second, stable=True).astype(jnp.int32)
    length = jnp.zeros(num_lists + 1, jnp.int32).at[list_of_point].add(1)
    num_blocks = -(-length[:num_lists] // _BLOCK)
    first_block = jnp.cumsum(num_blocks) - num_blocks
    most_blocks = num_points // _BLOCK + num_lists
    # Points that are not valid get places behind all others, which do not exist.
    first_place = jnp.append(first_block * _BLOCK, most_blocks * _BLOCK)
    own = list_of_point[order]
    rank = jnp.arange(num_points, dtype=jnp.int32) - (jnp.cumsum(length) - length)[own]
    place = first_place[own] + rank
    index = jnp.full(most_blocks * _BLOCK, num_points, jnp.int32).at[place].set(order, mode="drop")
    index = index.reshape(most_blocks, _BLOCK)
    blocks = jnp.pad(codes, ((0, 1), (0, 0)))[index]
    return _Lists(
        blocks=blocks,
        columns=blocks.swapaxes(1, 2),
        to_centre=jnp.pad(near.distance, (0, 1))[index],
        index=index,
        first_block=first_block,
        num_blocks=num_blocks,
        place=jnp.zeros(num_points, jnp.int32).at[order].set(jnp.where(own < num_lists, place, 0)),
        list_of_point=list_of_point,
    )


def _vote(lists: _Lists, block: Array, columns: Array, centres: Array, num_bits: int) -> Array:
    """All lists, those that the points of a block want most first, [lists].

    A vote halves with every quarter of a random distance's standard deviation that a centre is
    farther than the nearest one.
    """
    num_lists = centres.shape[0]
    farther = hamming_distances(centres, columns).astype(jnp.int32) - lists.to_centre[block]
    halving = max(round(math.log2(math.sqrt(num_bits) / 4)), 0)
    votes = (_VOTE >> jnp.minimum(farther >> halving, 31)).astype(jnp.float32)
    # A product is a fast sum along the vector axis, and exact for integers of 24 bits.
    votes = votes @ (lists.index[block] < lists.list_of_point.shape[0]).astype(jnp.float32)
    key = (_VOTE * _BLOCK - votes.astype(jnp.int32)).astype(jnp.uint32) * num_lists
    return (jnp.sort(key + jnp.arange(num_lists, dtype=jnp.uint32)) % num_lists).astype(jnp.int32)


def _tiles_needed(
    lists: _Lists,
    codes: Array,
    valid: Array,
    centres: Array,
    num_bits: int,
    num_neighbors: int,
    recall: float,
) -> Array:
    """Count the tiles that every block has to be compared with until it has met the wanted
    share of its neighbours.
    """
    num_points = codes.shape[0]
    num_used = jnp.sum(lists.num_blocks)
    sample = _spread(_SAMPLE_BLOCKS, jnp.maximum(num_used, 1))
    places = jnp.arange(_SAMPLE_ROWS, dtype=jnp.int32) * (_BLOCK // _SAMPLE_ROWS)
    rows = lists.index[sample][:, places].reshape(-1)
    there = (rows < num_points)[:, None]
    rows = jnp.minimum(rows, num_points - 1)
    # Of neighbours as far as the last one, others are as good: some of them are looked for, too.
    more = 3 * num_neighbors
    index, distance = nearest_to_rows(codes, valid, rows, num_bits, more, fastest_kernel(backend()))
    farthest = distance[:, num_neighbors - 1 : num_neighbors]
    good = there & (distance <= jnp.minimum(farthest, num_bits))

    def blocks_before(block: Array) -> Array:
        wanted = _vote(lists, block, lists.columns[block], centres, num_bits)
        blocks = lists.num_blocks[wanted]
        return jnp.zeros_like(blocks).at[wanted].set(jnp.cumsum(blocks) - blocks)

    before = jnp.repeat(lax.map(blocks_before, sample), _SAMPLE_ROWS, axis=0)
    own = lists.list_of_point[index]
    position = (
        lists.place[index] // _BLOCK
        - lists.first_block[own]
        + jnp.take_along_axis(before, own, axis=1)
    )
    never = 2**31 - 1
    needed = jnp.sort(jnp.where(good, position // _BLOCKS_PER_TILE + 1, never), axis=1)[
        :, :num_neighbors
    ].reshape(-1)
    total = jnp.sum(needed < never, dtype=jnp.int32)
    last = jnp.ceil(recall * total.astype(jnp.float32)).astype(jnp.int32) - 1
    return jnp.where(total > 0, jnp.sort(needed)[last], 1)


def _search_block(
    lists: _Lists,
    block: Array,
    columns: Array,
    centres: Array,
    num_tiles: Array,
    num_bits: int,
    num_neighbors: int,
) -> tuple[Array, Array]:
    """Return the nearest points in the lists that a block wants: distance and index, `num_bits + 1`
    where there is none.
    """
    num_points = lists.list_of_point.shape[0]
    wanted = _vote(lists, block, columns, centres, num_bits)
    until = jnp.cumsum(lists.num_blocks[wanted])
    own = lists.index[block]
    count = min(num_neighbors + 1, _BLOCK * _BLOCKS_PER_TILE)

    def others(tile: Array) -> tuple[Array, Array]:
        number = tile * _BLOCKS_PER_TILE + jnp.arange(_BLOCKS_PER_TILE, dtype=jnp.int32)
        which = jnp.sum(until <= number[:, None], axis=1, dtype=jnp.int32)
        there = which < until.shape[0]
        which = jnp.minimum(which, until.shape[0] - 1)
        chosen = (
            lists.first_block[wanted[which]]
            + number
            - until[which]
            + lists.num_blocks[wanted[which]]
        )
        chosen = jnp.where(there, chosen, 0)
        index = jnp.where(there[:, None], lists.index[chosen], num_points)
        return lists.blocks[chosen].reshape(index.size, -1), index.reshape(-1)

    def compare(tile: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        codes, index, kept_distance, kept_index = state
        distance = hamming_distances(codes, columns)
        nothing = jnp.asarray(largest_value(distance.dtype))
        distance = lax.optimization_barrier(
            jnp.where((index < num_points)[:, None], distance, nothing)
        )
        found = smallest(distance, count, num_bits + 1)
        # `nothing` at empty places, which therefore need no mask of their own.
        new_distance = jnp.take_along_axis(distance, found, axis=0).astype(jnp.int32)
        new_index = index[found]
        new_distance = jnp.where(new_index == own, num_bits + 1, new_distance)
        nearest = _nearest_of(
            jnp.concatenate([kept_distance, new_distance]),
            jnp.concatenate([kept_index, new_index]),
            num_neighbors,
            num_bits,
            num_points,
        )
        # As above, the codes of the next tile are handed on as they are.
        return *others(tile + 1), *nearest

    shape = (num_neighbors, _BLOCK)
    nobody = jnp.full(shape, num_bits + 1, jnp.int32), jnp.full(shape, num_points, jnp.int32)
    num_tiles = jnp.where(jnp.any(own < num_points), num_tiles, 0)
    *_, distance, index = lax.fori_loop(0, num_tiles, compare, (*others(jnp.int32(0)), *nobody))
    return distance, index


def _nearest_of(
    distance: Array, index: Array, count: int, num_bits: int, num_points: int
) -> tuple[Array, Array]:
    """Return the `count` smallest pairs (distance, index) of every column."""

    def following(
        last: tuple[Array, Array], _: None
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        above = (distance > last[0]) | ((distance == last[0]) & (index > last[1]))
        nearest = jnp.min(jnp.where(above, distance, num_bits + 1), axis=0)
        lowest = jnp.min(jnp.where(above & (distance == nearest), index, num_points), axis=0)
        return (nearest, lowest), (nearest, lowest)

    before_all = jnp.full(distance.shape[1:], -1, jnp.int32)
    _, found = lax.scan(following, (before_all, before_all), None, length=count)
    return found


def neighbor_recall(
    neighbors: Neighbors,
    codes: UInt32[Array, "n words"],
    num_bits: int,
    valid: Bool[Array, " n"] | None = None,
    sample: int = 1000,
) -> Float[Array, ""]:
    """Return the share of the nearest neighbours that lists hold, by an exact search for a sample
    of the points.

    A listed neighbour counts if it is no farther than the k-th nearest; equally near ones are as
    good.

    Args:
        neighbors: [n, k] each.
        codes: [n, ceil(num_bits / 32)].
        num_bits: bits per code.
        valid: [n], as in the search. None: all are valid.
        sample: how many points are searched for, spread evenly over the valid ones; all if there
            are fewer.

    Returns:
        In [0, 1]; 1 where there is nothing to find.

    Raises:
        ValueError: if shapes or dtypes do not fit together, a count is below 1, or the sample is
            above 32,768.
    """
    codes = jnp.asarray(codes)
    check_codes(codes, num_bits)
    check_whole_numbers(sample=sample)
    if sample > _MOST_SAMPLES:
        raise ValueError(f"sample is {sample}; at most {_MOST_SAMPLES} points can be searched for.")
    check_rows("valid", valid, codes.shape[0])
    if neighbors.index.ndim != 2 or neighbors.index.shape[0] != codes.shape[0]:
        raise ValueError(
            f"neighbours have shape {neighbors.index.shape}; for these codes it must be "
            f"({codes.shape[0]}, k)."
        )
    if codes.shape[0] < 2:
        return jnp.ones((), jnp.result_type(float))
    valid = jnp.ones(codes.shape[0], bool) if valid is None else jnp.asarray(valid)
    return _neighbor_recall(neighbors.index, codes, valid, num_bits, min(sample, codes.shape[0]))


@partial(jax.jit, static_argnames=("num_bits", "sample"))
def _neighbor_recall(index: Array, codes: Array, valid: Array, num_bits: int, sample: int) -> Array:
    places = jnp.arange(sample, dtype=jnp.int32)
    num_valid = jnp.sum(valid, dtype=jnp.int32)
    # places * num_valid // sample, which could be too large for 32 bits.
    stride = places * (num_valid // sample) + places * (num_valid % sample) // sample
    # With fewer valid rows than places all are taken, and rows that are not valid, which have
    # nothing to find.
    stride = jnp.where(num_valid < sample, places, stride)
    rows = jnp.argsort(~valid, stable=True)[stride].astype(jnp.int32)
    kernel = fastest_kernel(backend())
    count = index.shape[1]
    _, exact = nearest_to_rows(codes, valid, rows, num_bits, count, kernel)
    listed = index[rows]

    def distances(pair: tuple[Array, Array]) -> Array:
        own, others = pair
        bits = lax.population_count(codes[others] ^ codes[own])
        return jnp.sum(bits, axis=1, dtype=jnp.int32)

    # Row by row: the words of all pairs may not fit into memory.
    distance = lax.map(distances, (rows, listed), batch_size=_BLOCK)
    earlier = jnp.tril(jnp.ones((count, count), bool), -1)
    repeated = jnp.any((listed[:, :, None] == listed[:, None, :]) & earlier, axis=2)
    exact = jnp.minimum(exact.astype(jnp.int32), num_bits + 1)
    true = jnp.sum(exact <= num_bits, axis=1)
    farthest = jnp.max(jnp.where(exact <= num_bits, exact, -1), axis=1)
    counts = (listed != rows[:, None]) & valid[listed] & ~repeated & (distance <= farthest[:, None])
    found = jnp.minimum(jnp.sum(counts, axis=1), true)
    return jnp.where(jnp.sum(true) > 0, jnp.sum(found) / jnp.maximum(jnp.sum(true), 1), 1)
