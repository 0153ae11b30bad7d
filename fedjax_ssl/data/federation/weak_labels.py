"""Weak labels: coarse labels and set proportions in place of class labels.

A coarse label comes from another label space (FedMT, arXiv 2210.02042). A set with known class
shares only needs counting (FedUL, arXiv 2204.03304). In both cases the class is seen through a
channel: the federation has, for every client, the observation of each example and the matrix behind
it. Shapes: C clients, n rows of the largest client, O observations (padded to the largest
client's), K classes, N training examples, E entries dealt to clients.
"""

import functools
import math
import operator
from collections.abc import Callable
from itertools import zip_longest
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.data.correspondence import CORRESPONDENCES, overlapping
from fedjax_ssl.data.correspondence import correspondence as correspondence_named
from fedjax_ssl.data.federation.dealing import (
    Ids,
    Mask,
    count_groups,
    int_range,
    rank_within,
    running_sum,
)
from fedjax_ssl.data.federation.federated_data import WeakLabels
from fedjax_ssl.data.federation.pool import Entries, Holdings
from fedjax_ssl.keys import PRNGKey, named_key
from fedjax_ssl.registry import check_known

# Rules that fill sets, see `unlabelled_sets`.
Protocol = Literal["dealt", "equal", "reference"]
# smallest share before normalization, and factor of the dominant class (FedUL)
_SCALINGS = 30  # iterations that scale the sets' shares, by set and by class in turn
_LOWEST = 0.1
_DOMINANCE = 10.0


class Observed(NamedTuple):
    """Results of a rule for its clients; zero for all others."""

    entries: Entries
    num_observations: Int[Array, " C"]
    from_sets: Bool[Array, " C"]
    matrix: Float[Array, "C O K"]
    share: Float[Array, "C O"]


class WeakRule(NamedTuple):
    """A rule by which some clients get weak labels."""

    observe: Callable[[PRNGKey, Holdings], Observed]
    coarse_names: Callable[[int], tuple[str, ...]] | None = None
    # ^ K -> names of its coarse labels; None: the dataset's own


def coarse_labels(correspondence: str, overlap: float = 0.0) -> WeakRule:
    """Every example shows a label of another space, drawn once with the probabilities of its class.

    Args:
        correspondence: a name of `fedjax_ssl.data.correspondence`; several names, separated by
            commas, go to the clients in turn, so that label spaces differ; "own": the dataset's
            labels.
        overlap: this share of the labels is uniform over the coarse classes, in [0, 1); not for
            "own".

    Raises:
        ValueError: an unknown correspondence, or an overlap of the dataset's own labels.
    """
    names = [name.strip() for name in correspondence.split(",")]
    known = (*CORRESPONDENCES, "own") if len(names) == 1 else CORRESPONDENCES
    for name in names:
        check_known("correspondence", name, known)
    own = correspondence == "own"
    if overlap and own:
        raise ValueError(
            f"overlap is {overlap}; it must be 0 where the dataset's own labels are used"
        )

    def observe(key: PRNGKey, holdings: Holdings) -> Observed:
        if own:
            return _own_coarse_labels(holdings)
        spaces = [
            overlapping(correspondence_named(name, holdings.num_classes).matrix, overlap)
            for name in names
        ]
        most = max(map(len, spaces))
        matrices = np.stack([np.pad(one, ((0, most - len(one)), (0, 0))) for one in spaces])
        space = (running_sum(holdings.members) - 1) % len(names)  # label space of each client
        with np.errstate(divide="ignore"):
            logits = jnp.asarray(np.log(matrices), jnp.float32).transpose(0, 2, 1)
        drawn = drawn_observations(key, logits[space[holdings.client], holdings.labels])
        return _coarse(holdings, jnp.where(holdings.labels >= 0, drawn, -1), matrices, space)

    def coarse_names(num_classes: int) -> tuple[str, ...]:
        """Return the names of the labels; if spaces differ, label j has the j-th name of each."""
        each = zip_longest(*(correspondence_named(name, num_classes).names for name in names))
        return tuple(" / ".join(name for name in label if name) for label in each)

    return WeakRule(observe, coarse_names=None if own else coarse_names)


def drawn_observations(key: PRNGKey, logits: Float[Array, "N O"]) -> Ids:
    """Draw one observation for every example, which depends only on the key and the example's
    place.
    """
    keys = jax.vmap(lambda row: jax.random.fold_in(key, row))(int_range(logits.shape[0]))
    return jax.vmap(jax.random.categorical)(keys, logits).astype(jnp.int32)


def _own_coarse_labels(holdings: Holdings) -> Observed:
    own = holdings.own
    if own.coarse is None:
        raise ValueError(
            "the dataset has no coarse labels of its own; name a correspondence, such as 'parity'"
        )
    labels = jnp.asarray(own.coarse)
    matrix = own.correspondence
    if matrix is None:
        matrix = np.zeros((own.num_coarse, holdings.num_classes))  # unknown
    if matrix.ndim == 2:
        return _coarse(holdings, labels, matrix[None])
    num_clients = holdings.members.shape[0]
    if len(matrix) != num_clients:
        raise ValueError(
            f"correspondences are given for {len(matrix)} clients, but {num_clients} train; one "
            "for each client goes with the natural partition and all of its clients"
        )
    return _coarse(holdings, labels, matrix, int_range(num_clients))


def _coarse(
    holdings: Holdings,
    observation: Array,
    matrices: Float[np.ndarray, "S J K"],
    space: Int[Array, " C"] | None = None,
) -> Observed:
    """Return coarse labels of every member, in one of S label spaces padded with zero rows; by
    default the first space.
    """
    members = holdings.members
    client = holdings.client
    most = matrices.shape[1]
    if space is None:
        space = jnp.zeros_like(members, jnp.int32)
    last = np.max(np.any(matrices > 0, axis=2) * np.arange(1, most + 1), axis=1)
    last = np.where(last > 0, last, most)  # all rows, if unknown
    num_coarse = jnp.where(members, jnp.asarray(last, jnp.int32)[space], 0)
    return Observed(
        _entries(holdings, (client >= 0) & members[client], observation),
        num_coarse,
        jnp.zeros_like(members),
        jnp.where(members[:, None, None], jnp.asarray(matrices, jnp.float32)[space], 0.0),
        (int_range(most) < num_coarse[:, None]).astype(jnp.float32),
    )


def _entries(holdings: Holdings, there: Mask, observation: Ids) -> Entries:
    """Make one entry for every example that is `there`, at its owner."""
    rows = int_range(there.shape[0])
    return Entries(jnp.where(there, holdings.client, -1), rows, jnp.where(there, observation, -1))


def given() -> WeakRule:
    """Labels that came with the dataset: sets at clients with given class shares, coarse labels at
    all others.

    Clients must be all the natural ones.
    """

    def observe(key: PRNGKey, holdings: Holdings) -> Observed:
        own = holdings.own
        num_clients = holdings.members.shape[0]
        if own.coarse is None:
            none = jnp.full_like(holdings.client, -1)
            coarse = _coarse(holdings, none, np.zeros((1, 1, holdings.num_classes)))
        else:
            coarse = _own_coarse_labels(holdings)
        if own.sets is None:
            return coarse
        if own.set_shares is None:
            raise ValueError(
                "the dataset has a column of sets but not their class shares; give "
                "config.data.proportions, a CSV file (docs/your_data.md)"
            )
        given_for, num_sets, _ = own.set_shares.shape
        if given_for != num_clients:
            raise ValueError(
                f"class shares are given for {given_for} clients, but {num_clients} train; "
                "supervision 'given' goes with the natural partition and all of its clients"
            )
        filled = own.set_shares.sum(axis=2) > 0  # [C, O]
        has_sets = jnp.asarray(filled.any(axis=1))
        most = max(num_sets, coarse.matrix.shape[1])
        # At clients with sets, sets replace coarse labels.
        entries = coarse.entries
        by_sets = has_sets[jnp.maximum(holdings.client, 0)]
        observation = jnp.where(by_sets, jnp.asarray(own.sets), entries.observation)
        counted = by_sets & (observation >= 0) & (entries.client >= 0)
        cell = jnp.where(counted, entries.client * most + observation, -1)
        sizes = count_groups(cell, num_clients * most).reshape(-1, most).astype(jnp.float32)
        shares = np.pad(own.set_shares, ((0, 0), (0, most - num_sets), (0, 0)))
        last = jnp.asarray((filled * np.arange(1, num_sets + 1)).max(axis=1), jnp.int32)
        padded = _padded(coarse, most)
        return Observed(
            entries._replace(observation=observation),
            jnp.where(has_sets, last, padded.num_observations),
            has_sets,
            jnp.where(has_sets[:, None, None], jnp.asarray(shares, jnp.float32), padded.matrix),
            jnp.where(has_sets[:, None], normalized(sizes), padded.share),
        )

    return WeakRule(observe)


def together(observed: list[Observed]) -> Observed:
    """Combine the results of rules for different clients into one table each, with all their
    entries.
    """
    most = max(each.matrix.shape[1] for each in observed)
    padded = [_padded(each, most) for each in observed]
    entries, *facts = zip(*padded, strict=True)
    # A client has results of one rule and zeros of the others; for bool, + is "or".
    summed = (functools.reduce(operator.add, one) for one in facts)
    return Observed(jax.tree.map(lambda *parts: jnp.concatenate(parts), *entries), *summed)


def _padded(observed: Observed, num_rows: int) -> Observed:
    missing = num_rows - observed.matrix.shape[1]
    return observed._replace(
        matrix=jnp.pad(observed.matrix, ((0, 0), (0, missing), (0, 0))),
        share=jnp.pad(observed.share, ((0, 0), (0, missing))),
    )


def shares_of_sets(
    weak: WeakLabels, entries: Entries, counted: Bool[Array, " E"]
) -> Float[Array, "C O"]:
    """Return the share of every set among the client's examples that train as members of sets
    (without a class label); 1 elsewhere.
    """
    num_clients, num_sets = weak.share.shape
    slot = jnp.where(counted, entries.client * num_sets + entries.observation, -1)
    sizes = count_groups(slot, num_clients * num_sets).reshape(num_clients, num_sets)
    return jnp.where(weak.from_sets[:, None], normalized(sizes.astype(jnp.float32)), weak.share)


def perturbed_shares(
    key: PRNGKey, shares: Float[Array, "C O K"], noise: float
) -> Float[Array, "C O K"]:
    """Return class shares with counting errors; the paper's formula is lost, and this one is ours.

    Args:
        key: typed PRNG key.
        shares: rows sum to 1, or are zero on padding.
        noise: epsilon; every entry is raised or lowered with equal probability, by epsilon times
            itself, and cut to [0, 1]; then rows are normalized. A row that is cut to zero becomes
            uniform.
    """
    sign = jnp.where(jax.random.bernoulli(key, shape=shares.shape), 1.0, -1.0)
    moved = jnp.clip(shares * (1.0 + noise * sign), 0.0, 1.0)
    padding = shares.sum(axis=-1, keepdims=True) == 0
    emptied = moved.sum(axis=-1, keepdims=True) == 0
    return jnp.where(padding, 0.0, normalized(jnp.where(emptied, 1.0, moved)))


def normalized(values: Float[Array, "*rows n"]) -> Float[Array, "*rows n"]:
    """Return the rows divided by their sums; rows of zeros stay."""
    total = values.sum(axis=-1, keepdims=True)
    return jnp.where(total > 0, values / jnp.where(total > 0, total, 1.0), 0.0)


def _shares(values: Array, axis: int) -> Array:
    """Return values divided by their sums along an axis; zeros stay."""
    return values / jnp.maximum(values.sum(axis=axis, keepdims=True), 1e-12)


def unlabelled_sets(
    counts: tuple[int, ...], protocol: Protocol = "dealt", shared: bool = False
) -> WeakRule:
    """Cut the examples of every client into sets of known, different class shares (FedUL, section 7
    of its code).

    Set m wants shares from U[0.1, 1), with class m mod K multiplied by 10, normalized. The method
    gets the actual shares, not the wanted ones.

    Args:
        counts: number of sets of the first, second, ... client with sets; a single number is for
            all.
        protocol: "dealt": each class of a client is dealt to its sets in proportion to the wanted
            shares, so that all examples are used once. "equal", as in the paper's text: the same,
            but all sets of a client have the same size up to rounding, because wanted shares are
            scaled by set and by class until both sums are right. "reference", as in the released
            code: sets of equal size, each drawn anew from all of the client's examples, so that
            they overlap, and smaller if a class is short; with `shared`, wanted shares are the sum
            of the clients' and normalized over the sets.
        shared: all clients want the same shares; False: each its own.
    """
    if not counts:
        raise ValueError("set_counts is empty; give the number of sets of every client")
    most = max(counts)

    def observe(key: PRNGKey, holdings: Holdings) -> Observed:
        num_clients = holdings.members.shape[0]
        num_classes = holdings.num_classes
        if len(counts) not in (1, num_clients):
            raise ValueError(
                f"{len(counts)} numbers of sets are given for {num_clients} clients; give one for "
                "each, or one"
            )
        num_sets = _spread(counts, holdings.members)
        wanted = _wanted(named_key(key, "shares"), num_sets, num_classes, most)
        pool = count_groups(holdings.cell, num_clients * num_classes).reshape(num_clients, -1)
        draw_key = named_key(key, "sets")
        size = pool.sum(axis=1, dtype=jnp.int32) // jnp.maximum(num_sets, 1)  # examples of one set
        size = size[:, None, None].astype(wanted.dtype)
        if protocol == "reference":
            quota = jnp.floor(size * wanted + 1e-4).astype(jnp.int32)
            entries = _draw_overlapping(draw_key, holdings, quota, _copies(num_classes))
        else:
            if protocol == "equal":
                wanted = _of_one_size(wanted, pool)
            entries = _draw_disjoint(draw_key, holdings, _dealt_quota(wanted, pool))
        matrix, share = realized_shares(entries, holdings.labels, num_clients, most, num_classes)
        return Observed(entries, num_sets, holdings.members, matrix, share)

    def _wanted(key: Array, num_sets: Array, num_classes: int, rows: int) -> Float[Array, "C O K"]:
        shape = (num_sets.shape[0], rows, num_classes)
        drawn = jax.random.uniform(key, shape, jnp.float32, _LOWEST, 1.0)
        dominant = np.arange(rows)[:, None] % num_classes == np.arange(num_classes)
        drawn = jnp.where(dominant, _DOMINANCE, 1.0) * drawn
        real = (np.arange(rows, dtype=np.int32) < num_sets[:, None])[:, :, None]
        own = _shares(jnp.where(real, drawn, 0.0), axis=2)
        if not shared:
            return own
        together = own.sum(axis=0, keepdims=True)
        return jnp.where(real, _shares(together, axis=1 if protocol == "reference" else 2), 0.0)

    def _copies(num_classes: int) -> int:
        # Shares normalized over the sets want K / M times as many examples as the client has.
        return -(-num_classes // min(counts)) if shared else 1

    return WeakRule(observe)


def realized_shares(
    entries: Entries, labels: Ids, num_clients: int, num_sets: int, num_classes: int
) -> tuple[Float[Array, "C O K"], Float[Array, "C O"]]:
    """Return the actual class shares of every set, and the share of every set in its client's
    examples.
    """
    truth = labels[entries.row]
    real = (entries.client >= 0) & (entries.observation >= 0) & (truth >= 0)
    shape = num_clients, num_sets, num_classes
    cell = (entries.client * num_sets + entries.observation) * num_classes + truth
    counts = count_groups(jnp.where(real, cell, -1), math.prod(shape))
    counts = counts.reshape(shape).astype(jnp.float32)
    return normalized(counts), normalized(counts.sum(axis=2))


def _spread(counts: tuple[int, ...], members: Bool[Array, " C"]) -> Int[Array, " C"]:
    """Return the number of sets of every client: `counts` in order of the members, 0 for others."""
    place = running_sum(members) - 1
    table = jnp.asarray(counts, jnp.int32)
    return jnp.where(members, table[jnp.clip(place, 0, len(counts) - 1)], 0)


def _of_one_size(wanted: Array, pool: Array) -> Float[Array, "C O K"]:
    """Return examples per set and class for sets of one size: the wanted shares, scaled in turn
    (Sinkhorn and Knopp, 1967) until their sums are those of the pool.
    """
    real = jnp.any(wanted > 0, axis=2, keepdims=True)
    classes = pool[:, None, :].astype(wanted.dtype)
    number = jnp.maximum(real.sum(axis=1, keepdims=True, dtype=jnp.int32), 1)
    size = classes.sum(axis=2, keepdims=True) / number.astype(wanted.dtype)

    def scaled(_: int, quota: Array) -> Array:
        by_set = normalized(quota) * size
        return jnp.swapaxes(normalized(jnp.swapaxes(by_set, 1, 2)), 1, 2) * classes

    return jax.lax.fori_loop(0, _SCALINGS, scaled, wanted)


def _dealt_quota(wanted: Array, pool: Array) -> Int[Array, "C O K"]:
    """Return examples per set and class: all of the pool, cut by the running shares."""
    running = jnp.cumsum(wanted, axis=1)
    running /= jnp.maximum(running[:, -1:], 1e-12)
    ends = jnp.floor(running * pool[:, None, :].astype(running.dtype) + 0.5).astype(jnp.int32)
    return jnp.diff(ends, axis=1, prepend=jnp.zeros_like(ends[:, :1]))


def _draw_disjoint(key: PRNGKey, holdings: Holdings, quota: Int[Array, "C O K"]) -> Entries:
    cell = holdings.cell
    rank = rank_within(key, cell)
    ends = running_sum(quota, axis=1)  # [C, O, K]
    mine = ends[holdings.client, :, holdings.labels]  # [N, O]
    observation = jnp.sum(rank[:, None] >= mine, axis=1, dtype=jnp.int32)
    return _entries(holdings, (cell >= 0) & (observation < quota.shape[1]), observation)


def _draw_overlapping(
    key: PRNGKey, holdings: Holdings, quota: Int[Array, "C O K"], copies: int
) -> Entries:
    cell = holdings.cell
    size = cell.shape[0]
    num_sets = quota.shape[1]

    def draw(number: Array) -> Mask:
        rank = rank_within(jax.random.fold_in(key, number), cell)
        most = quota[holdings.client, number, holdings.labels]
        return (cell >= 0) & (rank < most)

    drawn = jax.lax.map(draw, int_range(num_sets))  # [O, N]
    place = jnp.nonzero(drawn.reshape(-1), size=size * copies, fill_value=-1)[0].astype(jnp.int32)
    real = place >= 0
    row = jnp.maximum(place, 0) % size
    return Entries(
        jnp.where(real, holdings.client[row], -1), row, jnp.where(real, place // size, -1)
    )
