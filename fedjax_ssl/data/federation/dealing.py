"""Ranks and counts in place of loops over examples, so that every draw can be traced.

Shapes: N training examples, C clients, G groups.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.keys import PRNGKey, named_key

# `Ids`: client, class, group or place of every training example, negative = none. `Mask`: whether
# an example is chosen.
Ids = Int[Array, " N"]
Mask = Bool[Array, " N"]


def int_range(length: int) -> Int[Array, " length"]:
    """Return 0, 1, ..., length - 1 as int32, in 64-bit mode too."""
    return jnp.arange(length, dtype=jnp.int32)


def running_sum(values: Array, axis: int | None = None) -> Array:
    """Return running sums of whole numbers as int32, in 64-bit mode too."""
    return jnp.cumsum(values, axis=axis, dtype=jnp.int32)


@jax.jit
def rank_within(key: PRNGKey, group: Ids, order: Ids | None = None) -> Ids:
    """Return the place of every example in a random order of its group.

    Random bits are drawn by position, so appending examples without a group changes nothing for the
    others.

    Args:
        key: typed PRNG key.
        group: int32, >= 0; negative = in no group.
        order: if given, examples with smaller `order` come first and only equal ones are shuffled.

    Returns:
        int32 [N], 0 for the first of each group; meaningless for examples in no group.
    """
    bits = jax.random.bits(key, group.shape, jnp.uint32)
    keys = (bits, group) if order is None else (bits, order, group)
    sequence = jnp.lexsort(keys).astype(jnp.int32)
    in_order = group[sequence]
    start = jnp.searchsorted(in_order, in_order).astype(jnp.int32)
    return jnp.zeros(group.shape, jnp.int32).at[sequence].set(int_range(group.shape[0]) - start)


def count_groups(group: Ids, num_groups: int) -> Int[Array, " G"]:
    """Count the entries of `group` that equal 0, 1, ..., num_groups-1 (int32); other values are
    not counted.
    """
    group = jnp.where((group >= 0) & (group < num_groups), group, num_groups)
    return jnp.zeros(num_groups + 1, jnp.int32).at[group].add(1)[:num_groups]


def draw_within(
    key: PRNGKey,
    cell: Ids,
    quota: Int[Array, " C"],
    group: Ids | None = None,
) -> Mask:
    """Draw a number of examples from every cell. Groups are drawn whole: the nearest number that is
    possible, and never all of a cell.

    Args:
        key: typed PRNG key.
        cell: client or class of every example; negative = in none.
        quota: number of examples to draw from each cell.
        group: 0..N-1; examples of one group are drawn together, in the cell of their first one.
            None: no groups.

    Returns:
        bool [N], True for the drawn ones.
    """
    if group is None:
        return (cell >= 0) & (rank_within(key, cell) < quota[cell])
    inside = cell >= 0
    row = int_range(cell.shape[0])
    group = jnp.where(inside, group, cell.shape[0])  # examples with a negative cell are dropped
    first = jnp.full(cell.shape, cell.shape[0], jnp.int32).at[group].min(row, mode="drop")[group]
    cell = jnp.where(inside, cell[first], -1)
    place = rank_within(
        key, cell, rank_within(named_key(key, "group"), jnp.zeros_like(cell))[first]
    )
    size = count_groups(group, cell.shape[0])[group]
    start = jnp.full(cell.shape, cell.shape[0], jnp.int32).at[group].min(place, mode="drop")[group]
    last = start + size == count_groups(cell, quota.shape[0])[cell]
    return inside & (2 * start + size - 1 < 2 * quota[cell]) & ~last


def with_their_groups(chosen: Mask, group: Ids | None) -> Mask:
    """Add all other members of their groups 0..N-1 to the chosen examples; None: no groups."""
    return chosen if group is None else jnp.zeros_like(chosen).at[group].max(chosen)[group]


@jax.jit
def largest_remainder(
    shares: Float[Array, "*rows C"], totals: Int[Array, "*rows"], key: PRNGKey | None = None
) -> Int[Array, "*rows C"]:
    """Return whole numbers as close to `totals * shares` as possible that add up to `totals`
    (Hamilton's method).

    Args:
        shares: non-negative weights, in any scale; a row of zeros counts as equal shares.
        totals: required sum of each row, >= 0.
        key: breaks ties at random; without it the lower index wins.

    Returns:
        int32, same shape as `shares`; every entry is within one of its exact quota.
    """
    shares = jnp.asarray(shares, jnp.float32)
    mass = shares.sum(axis=-1, keepdims=True)
    shares = jnp.where(mass > 0, shares / jnp.where(mass > 0, mass, 1.0), 1.0 / shares.shape[-1])
    quota = shares * totals[..., None].astype(jnp.float32)
    floor = jnp.floor(quota)
    # Rounding in float32 must never deal more examples than exist, so the running sum is cut at the
    # total.
    running = jnp.minimum(running_sum(floor.astype(jnp.int32), axis=-1), totals[..., None])
    whole = jnp.diff(running, axis=-1, prepend=jnp.zeros_like(running[..., :1]))
    left = totals - running[..., -1]
    # A stable sort breaks ties by index, so without a key constant bits will do.
    bits = jnp.zeros(shares.shape, jnp.uint32)
    if key is not None:
        bits = jax.random.bits(key, (shares.size,), jnp.uint32).reshape(shares.shape)
    by_remainder = jnp.lexsort((bits, floor - quota), axis=-1)
    place = jnp.argsort(by_remainder, axis=-1).astype(jnp.int32)
    every, rest = jnp.divmod(left, jnp.int32(shares.shape[-1]))
    return whole + every[..., None] + (place < rest[..., None]).astype(jnp.int32)


def equal_part(place: Ids, total: Int[Array, ""], parts: int) -> Ids:
    """Return the one of `parts` consecutive parts that contains a place of 0..total-1; the first
    parts have one place more if needed.
    """
    each = total // parts
    longer = total % parts
    in_longer = place < longer * (each + 1)
    later = longer + (place - longer * (each + 1)) // jnp.maximum(each, 1)
    return jnp.where(in_longer, place // (each + 1), jnp.minimum(later, parts - 1))


def deal(key: PRNGKey, group: Ids, counts: Int[Array, "C G"]) -> Ids:
    """Deal the examples of every group to clients at random: client c gets counts[c, g] examples of
    group g.

    Args:
        key: typed PRNG key.
        group: int32 [N], class (or other group) of every example; outside 0..G-1 = not dealt.
        counts: int32; column sums are at most the sizes of the groups; examples left over are not
            dealt.

    Returns:
        client of every example, int32 [N], -1 = not dealt.
    """
    num_clients, num_groups = counts.shape
    inside = (group >= 0) & (group < num_groups)
    group = jnp.where(inside, group, -1)
    rank = rank_within(key, group)
    bounds = running_sum(counts, axis=0).T  # [G, C]
    # One search over all groups: shift group g's bounds and ranks by the examples dealt before it.
    before = running_sum(bounds[:, -1]) - bounds[:, -1]
    flat = (before[:, None] + bounds).reshape(-1)
    slot = jnp.searchsorted(flat, before[group] + rank, side="right").astype(jnp.int32)
    return jnp.where(inside & (rank < bounds[group, -1]), slot % num_clients, -1)


def level(
    key: PRNGKey,
    client: Ids,
    num_clients: int,
    smallest: Int[Array, ""] | int,
    largest: Int[Array, ""] | int,
) -> Ids:
    """Move as few examples as possible so that every client has between `smallest` and `largest`
    examples.

    Clients above the maximum give their surplus, and clients below the minimum take what they lack.
    If the two sums differ, other clients give or take in proportion to what they can. The method
    always ends, for any sizes.

    Args:
        key: typed PRNG key.
        client: int32 [N], -1 = nobody's.
        num_clients: static C.
        smallest: at most examples / C.
        largest: at least examples / C.

    Returns:
        int32 [N].
    """
    sizes = count_groups(client, num_clients)
    give = jnp.maximum(sizes - largest, 0)
    take = jnp.maximum(smallest - sizes, 0)
    missing = take.sum(dtype=jnp.int32) - give.sum(dtype=jnp.int32)
    spare = jnp.maximum(sizes - smallest, 0) - give
    room = jnp.maximum(largest - sizes, 0) - take
    give += largest_remainder(spare.astype(jnp.float32), jnp.maximum(missing, 0))
    take += largest_remainder(room.astype(jnp.float32), jnp.maximum(-missing, 0))
    give_key, take_key = jax.random.split(key)
    moved = (client >= 0) & (rank_within(give_key, client) < give[client])
    receiver = deal(take_key, jnp.where(moved, 0, -1), take[:, None])
    return jnp.where(moved, receiver, client)
