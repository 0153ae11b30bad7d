"""The k smallest entries of every column, in the order of the pair (value, position), exactly.

Distances between codes are small integers, so ties are everywhere, and which of two equal neighbours is kept
must not depend on tiles or devices. Selection is a tournament: the k smallest entries of a column lie in the
k groups of consecutive entries with the smallest (minimum, group), so all but a few groups are never looked
at twice. That leaves one pass of vector minima over the values, several times cheaper than `lax.top_k`.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int32, Num

_GROUP = 16
_LONGEST_DIRECT = 256
# Above this many, one sort costs less than a pass over the candidates for each of them.
_MOST_PASSES = 32


def largest_value(dtype: jnp.dtype) -> np.generic:
    """A value that no finite entry exceeds: marks entries that are never to be selected before others."""
    dtype = jnp.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        return dtype.type(np.inf)
    return dtype.type(jnp.iinfo(dtype).max)


def smallest(values: Num[Array, "m r"], count: int, bound: int | None = None) -> Int32[Array, "count r"]:
    """Positions of the `count` smallest entries along axis 0, ordered by (value, position).

    The vector axis comes last, so that minima over m are element-wise. For integers, `bound` is a number that none
    exceeds; entries equal to the largest value of the dtype count as `bound`. For floats it is None.
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
    # In ascending order, so that positions among the candidates are in the order of positions in the column.
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
    # (value, position) as one integer: all differ, so each next one is the smallest that exceeds the last.
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
    positions = jnp.broadcast_to(jnp.arange(values.shape[0], dtype=jnp.int32)[:, None], values.shape)
    _, order = lax.sort((values, positions), dimension=0, num_keys=2)
    return order[:count]
