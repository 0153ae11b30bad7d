"""Exact nearest neighbours, block of rows by block of rows, without all pairs in memory (XCLP, step
6).

Every row is searched against all points, independent of other rows, so devices can share the rows.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Int32, Num, UInt32

from fedjax_ssl.backend import backend
from fedjax_ssl.checks import check_choices, check_whole_numbers
from fedjax_ssl.graph.codes import (
    cosine_from_hamming,
    fastest_kernel,
    has_angle,
    matmul_distances,
    popcount_distances,
    signs_from_codes,
)
from fedjax_ssl.graph.graph_settings import check_codes, check_features, check_rows

# Similarities below this are rounding noise around a right angle.
_LEAST_COSINE = 1e-6
# Entries of one tile of distances, and the fewest and most of its rows.
_TILE_ENTRIES = {"cpu": 2**21, "accelerator": 2**27}
_TILE_ROWS = {"cpu": (32, 128), "accelerator": (256, 4096)}
# Words of one tile's own codes; with more, they leave the fastest cache while the other codes
# stream through.
_TILE_WORDS = 2**13
# Entries of a group in the selection, and the number up to which all entries are compared.
_GROUP = 16
_LONGEST_DIRECT = 256
# For more neighbours than this, one sort is faster than a pass over the candidates for each.
_MOST_PASSES = 32


class Neighbors(NamedTuple):
    """The nearest other points of every point.

    Rows with fewer than k neighbours to find (k >= n, padding rows, rows without an angle) are
    filled up with the point itself at similarity 0, which makes no edge.
    """

    index: Int32[Array, "n k"]  # type: ignore[assignment]
    # ^ sorted by falling similarity, then by rising index
    similarity: Float[Array, "n k"]  # cosine in [0, 1], exactly 0 from a right angle on


def nearest_neighbors(
    codes: UInt32[Array, "n words"],
    num_bits: int,
    num_neighbors: int,
    valid: Bool[Array, " n"] | None = None,
    *,
    kernel: str = "auto",
    mesh: Mesh | None = None,
) -> Neighbors:
    """Find the nearest other codes of every code, exactly (XCLP, Algorithm 1 steps 4 to 6).

    Neighbours are ordered by the pair (distance, index). Memory is O(n k) and one tile of
    distances; time is one pass over all pairs. With a mesh every device holds all codes (n L / 8
    bytes) and searches for its share of the rows; the lists are the same to the last bit.

    Args:
        codes: [n, ceil(num_bits / 32)] as `lsh_codes` returns them.
        num_bits: bits per code.
        num_neighbors: k, at least 1; at most n - 1 neighbours exist.
        valid: [n], False for rows that neither have nor are neighbours (padding). None: all are
            valid.
        kernel: "popcount" (exclusive or and population count), "matmul" (int8 products) or "auto":
            the first on CPUs, the second elsewhere. The result is the same.
        mesh: devices that share the rows; all axes together count as one list of devices. None: one
            device.

    Returns:
        Neighbors, [n, k] each; with a mesh, the whole result is on each of its devices.

    Raises:
        ValueError: if shapes or dtypes do not fit together, a count is below 1, or the mesh is not
            a mesh.
    """
    codes = jnp.asarray(codes)
    check_codes(codes, num_bits)
    check_whole_numbers(num_neighbors=num_neighbors)
    check_rows("valid", valid, codes.shape[0])
    check_choices(("auto", "popcount", "matmul"), kernel=kernel)
    if mesh is not None and (not isinstance(mesh, Mesh) or mesh.empty):
        raise ValueError(
            f"mesh is {mesh!r}; it must be a jax.sharding.Mesh with at least one device, for "
            'example jax.make_mesh((jax.device_count(),), ("device",)), or None for one device.'
        )
    if kernel == "auto":
        kernel = fastest_kernel(backend() if mesh is None else mesh.devices.flat[0].platform)
    valid = jnp.ones(codes.shape[0], bool) if valid is None else jnp.asarray(valid)
    if mesh is not None:
        codes, valid = jax.device_put((codes, valid), NamedSharding(mesh, PartitionSpec()))
    return _nearest_codes(codes, valid, num_bits, num_neighbors, kernel, mesh)


def cosine_neighbors(
    features: Float[Array, "n d"], num_neighbors: int, valid: Bool[Array, " n"] | None = None
) -> Neighbors:
    """Find the nearest other points of every point by the cosine of their features, exactly.

    A client can do this alone, without codes ("exact" similarity of per-client label propagation).

    Args:
        features: [n, d]; rows need not be normalized. Zero rows, and rows that are not finite, have
            no angle.
        num_neighbors: k, at least 1.
        valid: [n], False for padding rows. None: all are valid.

    Returns:
        Neighbors, [n, k] each; similarities below 1e-6 are 0.

    Raises:
        ValueError: if shapes do not fit together, a count is below 1, or known features are not
            finite.
    """
    features = jnp.asarray(features)
    check_features(features)
    check_whole_numbers(num_neighbors=num_neighbors)
    check_rows("valid", valid, features.shape[0])
    if valid is None:
        valid = jnp.ones(features.shape[0], bool)
    return _nearest_cosines(features, jnp.asarray(valid), num_neighbors)


@partial(jax.jit, static_argnames=("num_bits", "num_neighbors", "kernel", "mesh"))
def _nearest_codes(
    codes: Array, valid: Array, num_bits: int, num_neighbors: int, kernel: str, mesh: Mesh | None
) -> Neighbors:
    num_points = codes.shape[0]
    if num_points < 2:
        return _alone(num_points, num_neighbors, jnp.result_type(float))
    rows = jnp.arange(num_points, dtype=jnp.int32)
    if mesh is None:
        index, distance = nearest_to_rows(codes, valid, rows, num_bits, num_neighbors, kernel)
    else:
        share = -(-num_points // mesh.size)

        def search_share(codes: Array, valid: Array) -> tuple[Array, Array]:
            first = lax.axis_index(mesh.axis_names) * share
            # The last devices may have too many rows: they search for the last point again.
            own = jnp.minimum(first + jnp.arange(share, dtype=jnp.int32), num_points - 1)
            found = nearest_to_rows(codes, valid, own, num_bits, num_neighbors, kernel)
            return lax.all_gather(found, mesh.axis_names, tiled=True)

        everywhere = PartitionSpec()
        # Unchecked, because the loops of the search start from constants, which are not marked as
        # varying over devices.
        search = jax.shard_map(
            search_share, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False
        )
        index, distance = search(codes, valid)
        index = index[:num_points]
        distance = distance[:num_points]
    return neighbors_from_distances(index, distance, num_bits)


def nearest_to_rows(
    codes: UInt32[Array, "n words"],
    valid: Bool[Array, " n"],
    rows: Int32[Array, " r"],
    num_bits: int,
    num_neighbors: int,
    kernel: str,
) -> tuple[Int32[Array, "r k"], Int[Array, "r k"]]:
    """Find the nearest other codes of some `rows` of the codes, n at least 2, exactly; kernels of
    `nearest_neighbors`.

    Returns index and distance in bits; distances above `num_bits` where there is no neighbour.
    """
    dtype = jnp.dtype(jnp.int16 if num_bits < 2**15 - 1 else jnp.int32)
    distances: Callable[[Array], Array]
    if kernel == "popcount":
        distances = partial(popcount_distances, codes, dtype=dtype)
        columns = codes[rows].T
    else:
        # Unpacked once here, not again for every tile.
        signs = signs_from_codes(codes)
        columns = signs[rows].T

        def distances(some: Array) -> Array:
            return matmul_distances(signs, some.T, dtype)

    return _search(distances, columns, rows, valid, num_neighbors, bound=num_bits + 1)


def neighbors_from_distances(
    index: Int32[Array, "n k"], distance: Int[Array, "n k"], num_bits: int
) -> Neighbors:
    """Turn lists of all points into neighbours; an entry with a distance above `num_bits` is
    missing.
    """
    similarity = jnp.where(
        distance > num_bits, 0, cosine_from_hamming(distance.astype(jnp.int32), num_bits)
    )
    return _without_missing(index, similarity, distance <= num_bits)


@partial(jax.jit, static_argnames=("num_bits", "num_neighbors"))
def neighbors_from_matrix(
    distance: Int32[Array, "n n"], valid: Bool[Array, " n"], num_bits: int, num_neighbors: int
) -> Neighbors:
    """Find the neighbours of `nearest_neighbors` from the distances of all pairs (XCLP, Algorithm 1
    steps 5 and 6).

    Args:
        distance: [n, n] from `hamming_matrix`, or a protocol; a distance above `num_bits` is no
            pair.
        valid: [n], False for rows that neither have nor are neighbours.
        num_bits: bits per code.
        num_neighbors: k.

    Returns:
        Neighbors, [n, k] each.
    """
    num_points = distance.shape[0]
    if num_points < 2:
        return _alone(num_points, num_neighbors, jnp.result_type(float))
    rows = jnp.arange(num_points, dtype=jnp.int32)
    index, nearest = _search(
        lambda some: some, distance, rows, valid, num_neighbors, bound=num_bits + 1
    )
    return neighbors_from_distances(index, nearest, num_bits)


@partial(jax.jit, static_argnames="num_neighbors")
def _nearest_cosines(features: Array, valid: Array, num_neighbors: int) -> Neighbors:
    if features.shape[0] < 2:
        return _alone(features.shape[0], num_neighbors, features.dtype)
    angled = has_angle(features)
    scale = jnp.max(jnp.abs(features), axis=1, keepdims=True, initial=0)
    features = jnp.where(angled[:, None], features / jnp.where(angled[:, None], scale, 1), 0)
    norm = jnp.linalg.norm(features, axis=1, keepdims=True)
    directions = features / jnp.where(norm > 0, norm, 1)

    def negative_cosines(rows: Array) -> Array:
        return -jnp.matmul(directions, rows, precision=lax.Precision.HIGHEST)

    rows = jnp.arange(features.shape[0], dtype=jnp.int32)
    index, negative = _search(
        negative_cosines, directions.T, rows, valid & angled, num_neighbors, bound=None
    )
    found = jnp.isfinite(negative)
    similarity = jnp.where(found & (-negative >= _LEAST_COSINE), jnp.minimum(-negative, 1), 0)
    return _without_missing(index, similarity, found)


def _alone(num_points: int, num_neighbors: int, dtype: jnp.dtype) -> Neighbors:
    shape = (num_points, num_neighbors)
    return Neighbors(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, dtype))


def _without_missing(index: Array, similarity: Array, found: Array) -> Neighbors:
    own = jnp.arange(index.shape[0], dtype=jnp.int32)[:, None]
    return Neighbors(jnp.where(found, index, own), jnp.where(found, similarity, 0))


def _search(
    values_against: Callable[[Array], Array],
    columns: Array,
    rows: Array,
    valid: Array,
    num_neighbors: int,
    bound: int | None,
) -> tuple[Array, Array]:
    """Return the smallest values of some rows [r] against all n points except themselves: index and
    value, [r, k].

    `values_against` maps some `columns` [w, t], which describe the rows along the last axis [w, r],
    to values [n, t]; smaller is nearer, see `smallest` for the bound. If there is no neighbour, the
    value is the largest of its dtype.
    """

    num_rows = rows.shape[0]
    num_points = valid.shape[0]
    count = min(num_neighbors, num_points - 1)
    width = _rows_per_tile(num_rows, num_points, columns.shape[0])
    num_tiles = -(-num_rows // width)
    padding = num_tiles * width - num_rows
    # Transposed before the loop: inside, the compiler would read the codes with a stride.
    tiles = jnp.pad(columns, ((0, 0), (0, padding))).reshape(-1, num_tiles, width).swapaxes(0, 1)
    own_index = jnp.pad(rows, (0, padding)).reshape(num_tiles, width)
    later_tile = jnp.minimum(jnp.arange(1, num_tiles + 1, dtype=jnp.int32), num_tiles - 1)

    def search_tile(
        some_columns: Array, tile: tuple[Array, Array]
    ) -> tuple[Array, tuple[Array, Array]]:
        own, later = tile
        # A point is either among its own count + 1 nearest, or count others come before it, so no
        # mask over the tile is needed to leave it out.
        values = values_against(some_columns)
        # A barrier: fused into every later use, the distances would be computed again.
        nothing = jnp.asarray(largest_value(values.dtype))
        values = lax.optimization_barrier(jnp.where(valid[:, None], values, nothing))
        index = smallest(values, count + 1, bound)
        value = jnp.take_along_axis(values, index, axis=0)
        skip = jnp.cumsum((index == own).astype(jnp.int32), axis=0)[:count]
        others = skip + jnp.arange(count, dtype=jnp.int32)[:, None]
        found = (
            jnp.take_along_axis(index, others, axis=0),
            jnp.take_along_axis(value, others, axis=0),
        )
        # The next tile is passed on whole. If it were sliced where it is used, its offset would be
        # computed for every distance, which made short codes 13 times slower.
        return tiles[later], found

    _, (index, value) = lax.scan(search_tile, tiles[0], (own_index, later_tile))
    index = index.swapaxes(1, 2).reshape(-1, count)[:num_rows]
    value = value.swapaxes(1, 2).reshape(-1, count)[:num_rows]
    nothing = jnp.asarray(largest_value(value.dtype))
    value = jnp.where(valid[rows][:, None], value, nothing)
    fill = ((0, 0), (0, num_neighbors - count))
    return jnp.pad(index, fill), jnp.pad(value, fill, constant_values=nothing)


def _rows_per_tile(num_rows: int, num_points: int, num_words: int) -> int:
    platform = "cpu" if backend() == "cpu" else "accelerator"
    fewest, most = _TILE_ROWS[platform]
    rows = _TILE_ENTRIES[platform] // num_points
    if platform == "cpu":
        rows = min(rows, _TILE_WORDS // num_words)
    # Whole vectors, and no more rows than there are.
    return min(max(rows, fewest), most, num_rows + 15) // 16 * 16


def largest_value(dtype: jnp.dtype) -> np.generic:
    """Return a value that no finite entry exceeds; it marks entries that come last in any
    selection.
    """
    dtype = jnp.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        return dtype.type(np.inf)
    return dtype.type(jnp.iinfo(dtype).max)


def smallest(
    values: Num[Array, "m r"], count: int, bound: int | None = None
) -> Int32[Array, "count r"]:
    """Find the positions of the `count` smallest entries along axis 0, ordered by (value,
    position), exactly.

    Distances between codes are small integers, so ties are common, and the choice among equal
    neighbours must not depend on tiles or devices. Selection is a tournament: the k smallest
    entries of a column lie in the k groups of consecutive entries with the smallest (minimum,
    group), so all but a few groups are never looked at twice. That leaves one pass of vector minima
    over the values, several times cheaper than `lax.top_k`.

    The vector axis comes last, so that minima over m are element-wise. For integers, `bound` is a
    number that none exceeds; entries equal to the largest value of the dtype count as `bound`. For
    floats it is None.
    """
    length, width = values.shape
    if length <= max(2 * _GROUP * count, _LONGEST_DIRECT):
        return _smallest_directly(values, count, bound)
    if length % _GROUP:
        padding = ((0, -length % _GROUP), (0, 0))
        values = jnp.pad(values, padding, constant_values=largest_value(values.dtype))
    groups = values.reshape(-1, _GROUP, width)
    minima = groups[:, 0]
    for member in range(1, _GROUP):
        minima = jnp.minimum(minima, groups[:, member])
    minima = lax.optimization_barrier(minima)
    # In ascending order, so that candidates are in the order of their positions in the column.
    chosen = jnp.sort(smallest(minima, count, bound), axis=0)
    members = jnp.arange(_GROUP, dtype=jnp.int32)[None, :, None]
    columns = jnp.arange(width, dtype=jnp.int32)[None, None, :]
    candidates = groups[chosen[:, None, :], members, columns].reshape(count * _GROUP, width)
    candidates = lax.optimization_barrier(candidates)
    found = _smallest_directly(candidates, count, bound)
    return jnp.take_along_axis(chosen, found // _GROUP, axis=0) * _GROUP + found % _GROUP


def _smallest_directly(values: Array, count: int, bound: int | None) -> Array:
    length = values.shape[0]
    if bound is None or (bound + 1) * length >= 2**31 or count > _MOST_PASSES:
        return _smallest_by_sorting(values, count)
    # (value, position) as one integer: all are different, so the next one is the smallest that
    # exceeds the last.
    positions = jnp.arange(length, dtype=jnp.int32)[:, None]
    packed = jnp.minimum(values.astype(jnp.int32), bound) * length + positions
    packed = lax.optimization_barrier(packed)
    nothing = jnp.int32(2**31 - 1)

    def following(last: Array, _: None) -> tuple[Array, Array]:
        found = jnp.min(jnp.where(packed > last, packed, nothing), axis=0)
        return found, found

    before_all = jnp.full(values.shape[1], -1, jnp.int32)
    _, found = lax.scan(following, before_all, None, length=count)
    return found % length


def _smallest_by_sorting(values: Array, count: int) -> Array:
    positions = jnp.broadcast_to(
        jnp.arange(values.shape[0], dtype=jnp.int32)[:, None], values.shape
    )
    _, order = lax.sort((values, positions), dimension=0, num_keys=2)
    return order[:count]
