"""Approximate nearest neighbours for millions of points: a forest of balanced trees, then neighbours of neighbours.

A tree splits the points in two, again and again, until few are left, and every pair within a leaf is compared.
All splits are at the median, so all leaves have the same, static number of points. Trees of random splits and
leaves follow Dasgupta and Freund (2008), "Random projection trees and low dimensional manifolds"; refining lists
by neighbours of neighbours follows Dong, Moses and Li (2011), "Efficient k-nearest neighbor graph construction
for generic similarity measures" (NN-descent).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32, UInt32

from fedjax_ssl.backend import backend
from fedjax_ssl.checks import check_whole_numbers
from fedjax_ssl.graph.checks import check_codes, check_rows
from fedjax_ssl.graph.hamming import paired_distances
from fedjax_ssl.graph.neighbors import (
    Neighbors,
    fastest_kernel,
    nearest_neighbors,
    nearest_to_rows,
    neighbors_from_distances,
)

# Rows whose lists are merged or refined at once.
_ROWS_PER_BLOCK = {"cpu": 2**9, "accelerator": 2**17}
# Pairs of points in the leaves that are searched at once.
_PAIRS_PER_BLOCK = {"cpu": 1, "accelerator": 2**26}


class _Lists(NamedTuple):
    """The nearest points found so far, by (distance, index) along axis 0; rows along the vector axis."""

    distance: Int32[Array, "k n"]  # num_bits + 1 where there is none
    index: Int32[Array, "k n"]  # type: ignore[assignment]  # n where there is none


def approximate_neighbors(
    codes: UInt32[Array, "n words"],
    num_bits: int,
    num_neighbors: int,
    valid: Bool[Array, " n"] | None = None,
    *,
    num_trees: int = 8,
    leaf_size: int = 2048,
    num_refinements: int = 1,
) -> Neighbors:
    """Finds most of the nearest other codes of every code, without comparing all pairs.

    For sizes where `nearest_neighbors` takes too long, on a CPU from about 100,000 points on: time is
    O(n log n + n * leaf_size * num_trees + n * k^2 * num_refinements) and memory O(n k). All neighbours are real,
    with their exact similarity, and are ordered by the pair (distance, index); some of the nearest may be missed,
    and `neighbor_recall` tells how many. Points without structure in many dimensions are the hardest: the more of
    them, the more trees or the larger leaves they need. The result is a function of the codes: the splits are
    drawn from a fixed key. Up to `leaf_size` points the search is exact.

    Args:
        codes: [n, ceil(num_bits / 32)] as `lsh_codes` returns them.
        num_bits: bits per code.
        num_neighbors: k, at least 1.
        valid: [n], False for rows that neither have nor are neighbours (padding). None: all are valid.
        num_trees: trees, at least 1; each finds neighbours that the others missed.
        leaf_size: most points of a leaf, at least 2.
        num_refinements: how often neighbours of neighbours are looked at, at least 0.

    Returns:
        Neighbors, [n, k] each.

    Raises:
        ValueError: if shapes or dtypes do not fit together or a count is below its least value.
    """
    codes = jnp.asarray(codes)
    check_codes(codes, num_bits)
    check_whole_numbers(num_neighbors=num_neighbors)
    check_rows("valid", valid, codes.shape[0])
    check_whole_numbers(num_trees=num_trees)
    check_whole_numbers(2, leaf_size=leaf_size)
    check_whole_numbers(0, num_refinements=num_refinements)
    if codes.shape[0] <= leaf_size:
        return nearest_neighbors(codes, num_bits, num_neighbors, valid)
    valid = jnp.ones(codes.shape[0], bool) if valid is None else jnp.asarray(valid)
    return _approximate_neighbors(codes, valid, num_bits, num_neighbors, num_trees, leaf_size, num_refinements)


@partial(jax.jit, static_argnames=("num_bits", "num_neighbors", "num_trees", "leaf_size", "num_refinements"))
def _approximate_neighbors(
    codes: Array, valid: Array, num_bits: int, num_neighbors: int, num_trees: int, leaf_size: int, num_refinements: int
) -> Neighbors:
    num_points = codes.shape[0]
    shape = (num_neighbors, num_points)
    nothing = _Lists(jnp.full(shape, num_bits + 1, jnp.int32), jnp.full(shape, num_points, jnp.int32))

    def add_tree(lists: _Lists, tree: Array) -> tuple[_Lists, None]:
        leaves = _split_into_leaves(codes, valid, num_bits, leaf_size, tree)
        found = _search_leaves(leaves, codes, valid, num_bits, num_neighbors)

        def merge(rows: Array) -> _Lists:
            some = jax.tree.map(lambda old, new: jnp.concatenate([old[:, rows], new[:, rows]]), lists, found)
            return _nearest_distinct(some, num_neighbors, num_bits, num_points)

        return _by_blocks(merge, num_points, _platform(_ROWS_PER_BLOCK)), None

    def refine(lists: _Lists, _: None) -> tuple[_Lists, None]:
        return _look_at_neighbors_of_neighbors(lists, codes, num_bits), None

    lists, _ = lax.scan(add_tree, nothing, jnp.arange(num_trees, dtype=jnp.uint32))
    lists, _ = lax.scan(refine, lists, None, length=num_refinements)
    return neighbors_from_distances(lists.index.T, lists.distance.T, num_bits)


def _split_into_leaves(codes: Array, valid: Array, num_bits: int, leaf_size: int, tree: Array) -> Array:
    """Cuts the points into leaves of equal size, [leaves, size] indices; n where a place is empty.

    Every node draws two of its points and splits its points at the median of the difference of the distances to
    the two. Equal differences, of equal points above all, are ordered at random, anew in every tree.
    """
    num_points = codes.shape[0]
    depth = (-(-num_points // leaf_size) - 1).bit_length()
    size = -(-num_points // 2**depth)
    padding = size * 2**depth - num_points
    codes = jnp.pad(codes, ((0, 1), (0, 0)))
    valid = jnp.pad(valid, (0, 1))
    # Points that are not valid come last, here and, since splits keep the order, in every node.
    _, members = lax.sort((~valid[:-1], jnp.arange(num_points, dtype=jnp.int32)), num_keys=1, is_stable=True)
    members = jnp.pad(members, (0, padding), constant_values=num_points)
    key = jax.random.fold_in(jax.random.key(0, impl="threefry2x32"), tree)
    for level in range(depth):
        members = members.reshape(2**level, -1)
        pivot_key, tie_key = jax.random.split(jax.random.fold_in(key, level))
        count = jnp.maximum(jnp.sum(valid[members], axis=1, dtype=jnp.uint32), 2)
        draws = jax.random.bits(pivot_key, (2, 2**level), jnp.uint32)
        one = draws[0] % count
        other = (one + 1 + draws[1] % (count - 1)) % count
        chosen = jnp.stack([one, other], axis=1).astype(jnp.int32)
        pivots = codes[jnp.take_along_axis(members, chosen, axis=1)]
        to_first, to_second = (_distance_to_pivot(codes, members, pivots[:, which]) for which in (0, 1))
        rank = (to_first - to_second + num_bits).astype(jnp.uint32)
        noise = jax.random.bits(tie_key, members.shape, jnp.uint32)
        shift = max(32 - (2 * num_bits + 1).bit_length(), 0)
        rank = (rank << shift) | lax.shift_right_logical(noise, jnp.uint32(32 - shift))
        members = _split_at_median(members, jnp.where(valid[members], rank, jnp.uint32(2**32 - 1)))
    return members.reshape(2**depth, size)


def _distance_to_pivot(codes: Array, members: Array, pivots: Array) -> Array:
    def words_of_pair(word: int | Array) -> tuple[Array, Array]:
        return codes[members, word], pivots[:, word, None]

    return paired_distances(words_of_pair, codes.shape[1])


def _split_at_median(members: Array, rank: Array) -> Array:
    """Moves the half of each row with the smallest ranks to its front; both halves keep their order.

    The median is found bit by bit, by counting: sorting took several times as long.
    """
    size = members.shape[1]
    half = size // 2
    rank = lax.optimization_barrier(rank)

    def set_bit(place: Array, median: Array) -> Array:
        higher = median | (jnp.uint32(2**31) >> place.astype(jnp.uint32))
        return jnp.where(jnp.sum(rank < higher[:, None], axis=1, dtype=jnp.int32) <= half, higher, median)

    median = lax.fori_loop(0, 32, set_bit, jnp.zeros(members.shape[0], jnp.uint32))[:, None]
    below, equal = rank < median, rank == median
    missing = half - jnp.sum(below, axis=1, keepdims=True, dtype=jnp.int32)
    front = below | (equal & (jnp.cumsum(equal, axis=1, dtype=jnp.int32) <= missing))
    in_front = jnp.cumsum(front, axis=1, dtype=jnp.int32)
    behind = half + jnp.arange(size, dtype=jnp.int32) - in_front
    place = jnp.where(front, in_front - 1, behind) + size * jnp.arange(members.shape[0], dtype=jnp.int32)[:, None]
    moved = jnp.zeros(members.size, jnp.int32).at[place.reshape(-1)].set(members.reshape(-1), unique_indices=True)
    return moved.reshape(members.shape)


def _search_leaves(leaves: Array, codes: Array, valid: Array, num_bits: int, num_neighbors: int) -> _Lists:
    """The nearest points of every point within its leaf, exactly."""
    num_points = codes.shape[0]
    num_leaves, size = leaves.shape
    codes = jnp.pad(codes, ((0, 1), (0, 0)))
    valid = jnp.pad(valid, (0, 1))
    kernel = fastest_kernel(backend())
    own = jnp.arange(size, dtype=jnp.int32)

    def search(leaf: Array) -> _Lists:
        index, distance = nearest_to_rows(codes[leaf], valid[leaf], own, num_bits, num_neighbors, kernel)
        distance = jnp.minimum(distance.astype(jnp.int32), num_bits + 1)
        return _Lists(distance, jnp.where(distance <= num_bits, leaf[index], num_points))

    batch = max(_platform(_PAIRS_PER_BLOCK) // size**2, 1)
    found = lax.map(search, leaves, batch_size=min(batch, num_leaves) if batch > 1 else None)
    place = jnp.zeros(num_points + 1, jnp.int32).at[leaves.reshape(-1)].set(jnp.arange(leaves.size, dtype=jnp.int32))
    place = place[:num_points]
    return jax.tree.map(lambda part: part.reshape(-1, num_neighbors)[place].T, found)


def _look_at_neighbors_of_neighbors(lists: _Lists, codes: Array, num_bits: int) -> _Lists:
    """Compares every point with its neighbours' neighbours and with points whose neighbour it is."""
    count, num_points = lists.index.shape
    backward = _some_that_point_here(lists)
    # One point more, without neighbours, stands for what is missing.
    forward = jnp.pad(lists.index, ((0, 0), (0, 1)), constant_values=num_points).T
    codes = jnp.pad(codes, ((0, 1), (0, 0)))

    def refine(rows: Array) -> _Lists:
        further = forward[lists.index[:, rows]].swapaxes(1, 2).reshape(-1, rows.shape[0])
        # Held once in memory: fused into what follows, it would be gathered anew for every word of the codes.
        candidates = lax.optimization_barrier(jnp.concatenate([further, backward[:, rows]]))
        distance = paired_distances(lambda word: (codes[candidates, word], codes[rows, word]), codes.shape[1])
        distance = jnp.where((candidates == rows) | (candidates == num_points), num_bits + 1, distance)
        some = _Lists(
            jnp.concatenate([lists.distance[:, rows], distance]), jnp.concatenate([lists.index[:, rows], candidates])
        )
        return _nearest_distinct(lax.optimization_barrier(some), count, num_bits, num_points)

    return _by_blocks(refine, num_points, _platform(_ROWS_PER_BLOCK))


def _some_that_point_here(lists: _Lists) -> Array:
    """For every point and j: one point, of those that have it as their j-th neighbour, [k, n]; n if none has."""
    num_points = lists.index.shape[1]
    origin = jnp.arange(num_points, dtype=jnp.int32)

    def of_one_place(index: Array) -> Array:
        last = jnp.full(num_points + 1, -1, jnp.int32).at[index].max(origin)[:num_points]
        return jnp.where(last >= 0, last, num_points)

    return lax.map(of_one_place, lists.index)


def _nearest_distinct(lists: _Lists, count: int, num_bits: int, num_points: int) -> _Lists:
    """The `count` smallest pairs (distance, index) of every column, each once.

    Every pass finds the smallest pair above the last one, which also leaves out what is there twice.
    """
    distance, index = lists

    def following(last: _Lists, _: None) -> tuple[_Lists, _Lists]:
        above = (distance > last.distance) | ((distance == last.distance) & (index > last.index))
        nearest = jnp.min(jnp.where(above, distance, num_bits + 1), axis=0)
        lowest = jnp.min(jnp.where(above & (distance == nearest), index, num_points), axis=0)
        found = _Lists(nearest, lowest)
        return found, found

    before_all = jnp.full(distance.shape[1:], -1, jnp.int32)
    _, found = lax.scan(following, _Lists(before_all, before_all), None, length=count)
    return found


def _by_blocks(function: Callable[[Array], _Lists], num_points: int, block: int) -> _Lists:
    """Applies a function of a block of rows, block after block, and joins what it returns."""
    block = min(block, num_points)
    num_blocks = -(-num_points // block)
    rows = jnp.minimum(jnp.arange(num_blocks * block, dtype=jnp.int32), num_points - 1)
    found = lax.map(function, rows.reshape(num_blocks, block))
    return jax.tree.map(lambda part: part.swapaxes(0, 1).reshape(part.shape[1], -1)[:, :num_points], found)


def _platform(settings: dict[str, int]) -> int:
    return settings["cpu" if backend() == "cpu" else "accelerator"]
