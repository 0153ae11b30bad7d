"""Clients of equal size, in pairs that share a slice of the data unevenly: SAGE's split (CVPR 2025), after its code."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl.data.federation.dealing import count_groups, rank_within

_DRAWS = 64  # of which the first even enough one is taken
_SMALLER = 0.25  # share of a slice that its smaller client has at least


def deal_to_pairs(
    key: Key[Array, ""], group: Int[Array, " N"], num_groups: int, num_clients: int, alpha: float
) -> Int[Array, " N"]:
    """Deals examples to equal clients whose class mixes differ.

    All examples in random order are cut into equal slices, one per pair of clients. In a slice, each class in turn is
    split by shares from Dir(alpha, alpha), but a client that holds half of the slice gets nothing more; the whole slice
    is drawn anew until the smaller client has a quarter of it. The examples of all clients, one client after another in
    random order, are then cut again into equal parts: what a client has too many of goes to its neighbour.

    Where none of 64 draws is even enough, as with a single class and a small alpha, the most even one is taken.

    Args:
        key: typed PRNG key.
        group: int32 [N], class of every example, negative = not dealt.
        num_groups: classes.
        num_clients: an even number.
        alpha: > 0, small = uneven.

    Returns:
        client of every example, int32 [N], -1 = not dealt.
    """
    slices, dealt = num_clients // 2, group >= 0
    slice_key, share_key, side_key, order_key = jax.random.split(key, 4)
    everyone = jnp.where(dealt, 0, -1)
    total = dealt.sum(dtype=jnp.int32)
    place = _equal_part(rank_within(slice_key, everyone), total, slices)
    cell = jnp.where(dealt, place * num_groups + group, -1)
    counts = count_groups(cell, slices * num_groups).reshape(slices, num_groups)
    shares = jax.random.dirichlet(share_key, jnp.full(2, alpha, jnp.float32), (slices, _DRAWS, num_groups), jnp.float32)
    first = _even_enough(shares, counts).reshape(-1)
    client = 2 * place + (rank_within(side_key, cell) >= first[cell]).astype(jnp.int32)
    sizes = count_groups(jnp.where(dealt, client, -1), num_clients)
    start = jnp.cumsum(sizes, dtype=jnp.int32) - sizes
    client = jnp.where(dealt, client, -1)
    line = start[client] + rank_within(order_key, client)
    return jnp.where(dealt, _equal_part(line, total, num_clients), -1)


def labelled_examples(
    key: Key[Array, ""], group: Int[Array, " N"], num_classes: int, labels_per_class: int
) -> Bool[Array, " N"]:
    """A random `labels_per_class` examples of every class; those without a label are in group `num_classes`."""
    return (group >= 0) & (group < num_classes) & (rank_within(key, group) < labels_per_class)


def _equal_part(place: Int[Array, " N"], total: Int[Array, ""], parts: int) -> Int[Array, " N"]:
    """Which of `parts` consecutive parts a place of 0..total-1 is in; the first ones have one more if need be."""
    each, longer = total // parts, total % parts
    in_longer = place < longer * (each + 1)
    later = longer + (place - longer * (each + 1)) // jnp.maximum(each, 1)
    return jnp.where(in_longer, place // (each + 1), jnp.minimum(later, parts - 1))


def _even_enough(shares: Float[Array, "S D G 2"], counts: Int[Array, "S G"]) -> Int[Array, "S G"]:
    """How many of every class the first client of each slice gets, by the first draw that is even enough."""
    size = counts.sum(axis=1, dtype=jnp.int32)

    def split(held: Int[Array, "S D 2"], row: tuple[Array, Array]) -> tuple[Array, Array]:
        share, count = row
        # The floor lets a client that is not full get all of a class where its share underflows.
        open_ = jnp.where(2 * held < size[:, None, None], jnp.maximum(share, 1e-30), 0.0)
        both = open_.sum(axis=2)
        ratio = open_[..., 0] / jnp.where(both > 0, both, 1.0)  # nothing is left to give where both are full
        mine = jnp.floor(ratio * count[:, None].astype(ratio.dtype)).astype(jnp.int32)
        return held + jnp.stack([mine, count[:, None] - mine], axis=2), mine

    start = jnp.zeros((*shares.shape[:2], 2), jnp.int32)
    held, first = jax.lax.scan(split, start, (jnp.moveaxis(shares, 2, 0), counts.T))
    smaller = held.min(axis=2)
    enough = smaller >= jnp.floor(_SMALLER * size[:, None].astype(jnp.float32)).astype(jnp.int32)
    chosen = jnp.where(enough.any(axis=1), jnp.argmax(enough, axis=1), jnp.argmax(smaller, axis=1))
    return first[:, jnp.arange(counts.shape[0]), chosen].T
