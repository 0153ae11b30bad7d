"""Sets of unlabelled examples with known class shares: how a client's examples are cut into them (FedUL)."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl.checks import check_choices, check_numbers
from fedjax_ssl.data.federation.dealing import count_groups, rank_within
from fedjax_ssl.data.federation.pool import Bounds
from fedjax_ssl.data.federation.weak_labels import Entries, Holdings, Observed, WeakRule, drawn_observations, normalized
from fedjax_ssl.keys import named_key

PROTOCOLS = ("dealt", "drawn", "clean", "reference")


def unlabelled_sets(
    counts: tuple[int, ...], protocol: str = "dealt", shared: bool = False, low: float = 0.1, dominance: float = 10.0
) -> WeakRule:
    """Cuts the examples of every client into sets of known, different class shares (FedUL, section 7 of its code).

    Set m wants the shares U[low, 1), that of class m mod K multiplied by `dominance`, normalized. What the method is
    told are the shares that came out, not those wanted; except with "drawn".

    Args:
        counts: number of sets of the first, second, ... client with sets; one number for all if there is one.
        protocol: "dealt": each class of a client is dealt to its sets in proportion to what they want, so that all
            examples are used once. "drawn": every example falls into a set with the probabilities of its class, and
            what is told are the shares to be expected: in small sets, what came out is another thing. "clean": sets of
            equal size, disjoint, all smaller by the factor at which every class suffices. "reference", as in the
            released code: sets of equal size, each drawn anew from all of the client's examples, so that they overlap,
            and smaller where a class is short; with `shared`, wanted shares are the sum of the clients' and normalized
            over the sets.
        shared: all clients want the same shares; else each its own.
        low: smallest share before normalization, in [0, 1).
        dominance: factor of the dominant class, > 0.

    Raises:
        ValueError: a count below 1, an unknown protocol, or a number outside what is allowed.
    """
    if not counts or min(counts) < 1:
        raise ValueError(f"sets is {', '.join(map(str, counts))}; every client with sets needs at least 1")
    check_choices(PROTOCOLS, protocol=protocol)
    check_numbers("[0, 1)", low=low)
    check_numbers("(0, inf)", dominance=dominance)
    most = max(counts)

    def observe(key: Key[Array, ""], holdings: Holdings) -> Observed:
        num_clients, num_classes = holdings.members.shape[0], holdings.num_classes
        if len(counts) not in (1, num_clients):
            raise ValueError(
                f"{len(counts)} numbers of sets are given for {num_clients} clients; give one for each, or one"
            )
        num_sets = _spread(counts, holdings.members)
        wanted = _wanted(named_key(key, "shares"), num_sets, num_classes, most)
        pool = count_groups(holdings.cell, num_clients * num_classes).reshape(num_clients, -1)
        if protocol == "drawn":
            return _draw_each(named_key(key, "sets"), holdings, num_sets, wanted, pool)
        size = pool.sum(axis=1, dtype=jnp.int32) // jnp.maximum(num_sets, 1)  # of a set
        if protocol == "reference":
            quota = jnp.floor(size[:, None, None].astype(wanted.dtype) * wanted + 1e-4).astype(jnp.int32)
            entries = _draw_overlapping(named_key(key, "sets"), holdings, quota, _copies(num_classes))
        else:
            quota = _clean_quota(wanted, pool, size) if protocol == "clean" else _dealt_quota(wanted, pool)
            entries = _draw_disjoint(named_key(key, "sets"), holdings, quota)
        matrix, share = realized_shares(entries, holdings.labels, num_clients, most, num_classes)
        return Observed(entries, num_sets, holdings.members, matrix, share)

    def _wanted(key: Array, num_sets: Array, num_classes: int, rows: int) -> Float[Array, "C O K"]:
        shape = (num_sets.shape[0], rows, num_classes)
        drawn = jax.random.uniform(key, shape, jnp.float32, low, 1.0)
        dominant = np.arange(rows)[:, None] % num_classes == np.arange(num_classes)
        drawn = jnp.where(dominant, dominance, 1.0) * drawn
        real = (np.arange(rows, dtype=np.int32) < num_sets[:, None])[:, :, None]
        drawn = jnp.where(real, drawn, 0.0)
        rows_sum = drawn / jnp.maximum(drawn.sum(axis=2, keepdims=True), 1e-12)
        if not shared:
            return rows_sum
        together = rows_sum.sum(axis=0, keepdims=True)
        over = 1 if protocol == "reference" else 2
        return jnp.where(real, together / jnp.maximum(together.sum(axis=over, keepdims=True), 1e-12), 0.0)

    def _copies(num_classes: int) -> int:
        # Shares normalized over the sets ask for K / M times as many examples as the client has.
        return -(-num_classes // min(counts)) if shared else 1

    def largest(sizes: Bounds, num_classes: int) -> int:
        return sizes.largest * (max(_copies(num_classes), 1) if protocol == "reference" else 1)

    return WeakRule(observe, largest)


def realized_shares(
    entries: Entries, labels: Int[Array, " N"], num_clients: int, num_sets: int, num_classes: int
) -> tuple[Float[Array, "C O K"], Float[Array, "C O"]]:
    """Class shares of every set as it came out, and the share of every set in its client's examples."""
    truth = labels[entries.row]
    real = (entries.client >= 0) & (entries.observation >= 0) & (truth >= 0)
    cell = (entries.client * num_sets + entries.observation) * num_classes + truth
    counts = count_groups(jnp.where(real, cell, -1), num_clients * num_sets * num_classes)
    counts = counts.reshape(num_clients, num_sets, num_classes).astype(jnp.float32)
    return normalized(counts), normalized(counts.sum(axis=2))


def _spread(counts: tuple[int, ...], members: Bool[Array, " C"]) -> Int[Array, " C"]:
    """Number of sets of every client: `counts` in order of the members, 0 for all others."""
    place = jnp.cumsum(members, dtype=jnp.int32) - 1
    table = jnp.asarray(counts, jnp.int32)
    return jnp.where(members, table[jnp.clip(place, 0, len(counts) - 1)], 0)


def _clean_quota(wanted: Array, pool: Array, size: Array) -> Int[Array, "C O K"]:
    """Examples per set and class: equal sets, smaller by one factor per client.

    A class with less than an example per set would make all sets as good as empty, and is left out.
    """
    num_sets = jnp.sum(jnp.any(wanted > 0, axis=2), axis=1, dtype=jnp.int32)
    enough = pool >= jnp.maximum(num_sets, 1)[:, None]
    wanted = normalized(jnp.where(enough[:, None, :], wanted, 0.0)) * size[:, None, None].astype(jnp.float32)
    needed = wanted.sum(axis=1)
    factor = jnp.min(
        jnp.where(needed > 0, pool.astype(needed.dtype) / jnp.where(needed > 0, needed, 1.0), jnp.inf), axis=1
    )
    factor = jnp.minimum(factor, 1.0)
    return jnp.floor(wanted * factor[:, None, None] + 1e-4).astype(jnp.int32)


def _dealt_quota(wanted: Array, pool: Array) -> Int[Array, "C O K"]:
    """Examples per set and class: all of the pool, cut where the running shares say so."""
    running = jnp.cumsum(wanted, axis=1)
    ends = jnp.floor(
        running / jnp.maximum(running[:, -1:], 1e-12) * pool[:, None, :].astype(running.dtype) + 0.5
    ).astype(jnp.int32)
    return jnp.diff(ends, axis=1, prepend=jnp.zeros_like(ends[:, :1]))


def _draw_disjoint(key: Key[Array, ""], holdings: Holdings, quota: Int[Array, "C O K"]) -> Entries:
    cell = holdings.cell
    rank = rank_within(key, cell)
    ends = jnp.cumsum(quota, axis=1, dtype=jnp.int32)  # [C, O, K]
    mine = ends[jnp.maximum(holdings.client, 0), :, jnp.maximum(holdings.labels, 0)]  # [N, O]
    observation = jnp.sum(rank[:, None] >= mine, axis=1, dtype=jnp.int32)
    taken = (cell >= 0) & (observation < quota.shape[1])
    rows = jnp.arange(cell.shape[0], dtype=jnp.int32)
    return Entries(jnp.where(taken, holdings.client, -1), rows, jnp.where(taken, observation, -1))


def _draw_each(
    key: Key[Array, ""], holdings: Holdings, num_sets: Int[Array, " C"], wanted: Float[Array, "C O K"], pool: Array
) -> Observed:
    """Every example falls into a set by chance; class shares and sizes of the sets are those to be expected."""
    chances = wanted / jnp.maximum(wanted.sum(axis=1, keepdims=True), 1e-12)  # P(set | class)
    mine = chances[jnp.maximum(holdings.client, 0), :, jnp.maximum(holdings.labels, 0)]  # [N, O]
    real = holdings.eligible
    drawn = drawn_observations(key, jnp.log(mine))
    rows = jnp.arange(real.shape[0], dtype=jnp.int32)
    entries = Entries(jnp.where(real, holdings.client, -1), rows, jnp.where(real, drawn, -1))
    expected = chances * pool[:, None, :].astype(chances.dtype)
    return Observed(entries, num_sets, holdings.members, normalized(expected), normalized(expected.sum(axis=2)))


def _draw_overlapping(key: Key[Array, ""], holdings: Holdings, quota: Int[Array, "C O K"], copies: int) -> Entries:
    cell = holdings.cell
    size, num_sets = cell.shape[0], quota.shape[1]

    def draw(number: Array) -> Bool[Array, " N"]:
        rank = rank_within(jax.random.fold_in(key, number), cell)
        most = quota[jnp.maximum(holdings.client, 0), number, jnp.maximum(holdings.labels, 0)]
        return (cell >= 0) & (rank < most)

    drawn = jax.lax.map(draw, jnp.arange(num_sets, dtype=jnp.int32))  # [O, N]
    place = jnp.nonzero(drawn.reshape(-1), size=size * copies, fill_value=-1)[0].astype(jnp.int32)
    row = jnp.maximum(place, 0) % size
    return Entries(jnp.where(place >= 0, holdings.client[row], -1), row, jnp.where(place >= 0, place // size, -1))
