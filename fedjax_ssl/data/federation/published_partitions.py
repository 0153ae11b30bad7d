"""Partitions from single papers: FedMatch, ProtoFSSL, FedUL, FedRGD and SAGE; `partition.py` has
the general ones.

Sources: the papers and their published code, named with each partition. Shapes: N training
examples, C clients, K classes, B bases of several clients each.
"""

from collections.abc import Sequence
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedjax_ssl.checks import In, Whole
from fedjax_ssl.data.federation.dealing import (
    Ids,
    Mask,
    count_groups,
    deal,
    equal_part,
    int_range,
    largest_remainder,
    rank_within,
    running_sum,
)
from fedjax_ssl.data.federation.pool import (
    Again,
    Count,
    CountOrNone,
    Facts,
    Partition,
    Pool,
    Positive,
    check_class_counts,
    class_or_unlabelled,
    deal_unlabelled,
)
from fedjax_ssl.keys import PRNGKey, named_key
from fedjax_ssl.registry import UsedWith

FEDMATCH_SHARES = (244, 73, 15, 15, 15, 10, 15, 15, 15, 73)
FEDMATCH_MATRIX = np.stack(
    [np.roll((0.5, 0.15, 0.03, 0.03, 0.03, 0.02, 0.03, 0.03, 0.03, 0.15), i) for i in range(10)]
)


def fedmatch(
    noniid: bool = False,
    balanced: CountOrNone = 5,
    parts: Count = 1,
    rounds_per_part: Annotated[int | None, Whole(), UsedWith("parts")] = None,
) -> Partition:
    """FedMatch's tasks: `balanced` examples of every class for each client, and a share of the
    others.

    IID: each client gets floor(rest / C) of the remaining examples of every class. Non-IID: client
    c draws floor(rest / C) classes from row c mod 10 of the paper's matrix, and clients in turn
    take an example for each draw while there are any. Then some examples go to no client, and the
    last clients have fewer (Jeong et al., ICLR 2021; the authors' code).

    Args:
        noniid: True: non-IID; False: IID.
        balanced: examples of every class for each client; in the paper the labelled ones, 5 of a
            class, with supervision `per_class`. Use 0 with labels at the server.
        parts: T, parts in which a client's unlabelled examples arrive one after another
            (streaming): floor(n / T) of every class in each, and the rest is unused.
        rounds_per_part: rounds in which a client has a part, the last one to the end; None: rounds
            of the run // T.
    """

    def rows_of(facts: Facts) -> Float[np.ndarray, "C K"]:
        if facts.num_classes != len(FEDMATCH_MATRIX):
            raise ValueError(
                f"FedMatch's non-iid tasks have ten classes, the data have {facts.num_classes}; "
                "give partition.noniid=False, or another partition"
            )
        return FEDMATCH_MATRIX[np.arange(facts.num_clients) % len(FEDMATCH_MATRIX)]

    def check(facts: Facts) -> None:
        who = f"{facts.num_clients} clients with {balanced} examples of every class each need"
        what_to_do = "lower partition.balanced or use fewer clients"
        check_class_counts(facts.class_counts, balanced * facts.num_clients, who, what_to_do)

    def assign(key: PRNGKey, pool: Pool) -> Ids:
        facts = pool.facts
        check(facts)
        num_clients = facts.num_clients
        num_classes = facts.num_classes
        group = class_or_unlabelled(pool)
        totals = count_groups(group, num_classes + 1)
        rest = jnp.maximum(totals[:num_classes] - balanced * num_clients, 0)
        draw_key, deal_key = jax.random.split(key)
        counts = jnp.broadcast_to(rest // num_clients, (num_clients, num_classes))
        if noniid:
            number = rest.sum(dtype=jnp.int32) // num_clients
            drawn = _class_draws(draw_key, rows_of(facts), number, facts.most)
            taken_before = running_sum(drawn, axis=0) - drawn
            counts = jnp.clip(rest - taken_before, 0, drawn)
        nobody_knows = largest_remainder(jnp.ones(num_clients, jnp.float32), totals[num_classes])
        counts = jnp.concatenate([counts + balanced, nobody_knows[:, None]], axis=1)
        return deal(deal_key, group, counts)

    return Partition(assign, parts, rounds_per_part)


def class_counts(
    counts: Annotated[Sequence[int], Whole(0)],
    balanced: CountOrNone = 0,
    unlabelled: Annotated[int | None, Whole(0)] = None,
    labelled_counts: Annotated[Sequence[int] | None, Whole(0)] = None,
    overlap: bool = False,
) -> Partition:
    """Exact counts: client c gets counts[(k - c) mod K] examples of class k; the rest is unused.

    The splits of ProtoFSSL (`fedjax_ssl.presets.protofssl_split`).

    Args:
        counts: [K] by offset from the client's preferred class c mod K, or one number for all
            classes.
        balanced: further examples of every class for every client; in the paper the labelled ones.
        unlabelled: examples without a class label for each client; all of them, evenly, by default.
        labelled_counts: numbers like `counts`, of examples that are dealt separately as labelled
            ones, for supervision `dealt`.
        overlap: deal the unlabelled examples from the start of each class again, so that labelled
            examples are also unlabelled examples of the same or another client (ProtoFSSL's later
            code).
    """
    given = tuple(counts)
    apart = None if labelled_counts is None else tuple(labelled_counts)
    if overlap and apart is None:
        raise ValueError(
            "overlap says that labelled examples are unlabelled ones too, but nothing is dealt "
            "as labelled; give labelled_counts, with supervision 'dealt'"
        )
    if not sum(given) + balanced + sum(apart or ()):
        raise ValueError(
            f"counts are {given} and balanced is 0, so that no client would get anything"
        )

    def tables(facts: Facts) -> tuple[Int[np.ndarray, "C K"], Int[np.ndarray, "C K"]]:
        """Count of examples dealt as labelled ones, and of all others."""
        known = np.zeros((facts.num_clients, facts.num_classes), np.int64)
        if apart is not None:
            known = _by_offset(facts, "labelled_counts", apart)
        others = _by_offset(facts, "counts", given) + balanced
        asked = (known + others).sum(axis=0)
        if overlap:
            asked = np.maximum(known.sum(axis=0), others.sum(axis=0))
        who = f"{facts.num_clients} clients are to get"
        check_class_counts(facts.class_counts, asked, who, "lower counts or num_clients")
        if unlabelled is not None and unlabelled * facts.num_clients > facts.num_unlabelled:
            raise ValueError(
                f"{who} {unlabelled} examples without a label each, but there are "
                f"{facts.num_unlabelled}; lower unlabelled or num_clients"
            )
        return known.astype(np.int32), others.astype(np.int32)

    def slots(key: PRNGKey, pool: Pool, table: Int[np.ndarray, "R K"]) -> Ids:
        return deal(jax.random.split(key)[0], pool.classes, jnp.asarray(table))

    def labelled(key: PRNGKey, pool: Pool) -> Mask:
        return slots(key, pool, tables(pool.facts)[0]) >= 0

    def assign(key: PRNGKey, pool: Pool) -> Ids:
        known, others = tables(pool.facts)
        # Labelled ones come first in every class; without any, these rows deal nothing.
        table = known if overlap else np.concatenate([known, others])
        place = slots(key, pool, table)
        client = jnp.where(place < 0, -1, place % pool.facts.num_clients)
        rest = deal_unlabelled(jax.random.split(key)[1], pool, unlabelled)
        return jnp.where(pool.labels < 0, rest, client)

    def again(key: PRNGKey, pool: Pool) -> Again:
        rows = int_range(pool.labels.shape[0])
        return Again(slots(key, pool, tables(pool.facts)[1]), rows)

    return Partition(
        assign,
        labelled=None if apart is None else labelled,
        again=again if overlap else None,
    )


def _by_offset(facts: Facts, name: str, given: tuple[int, ...]) -> Int[np.ndarray, "C K"]:
    """Return numbers by offset from the client's preferred class, as a table."""
    if len(given) not in (1, facts.num_classes):
        raise ValueError(
            f"{name} has {len(given)} entries, the data have {facts.num_classes} classes; give "
            "one number per class, by offset from the client's preferred class, or one for all"
        )
    client = np.arange(facts.num_clients)
    kind = np.arange(facts.num_classes)
    return np.resize(given, facts.num_classes)[(kind - client[:, None]) % facts.num_classes]


def majority(
    max_examples: Annotated[int | None, Whole(1)] = None,
) -> Partition:
    """FedUL's non-iid split, as in its released code: client c has mostly examples of classes 2c
    and 2c + 1 (mod K).

    Client c wants an equal part of the data, with class shares drawn from U[0.45, 0.55], times
    80 for its two classes. Examples are dealt in the order of the file until a class runs
    out, so the last clients lack some classes.

    Args:
        max_examples: most examples of a client, if that is less than an equal part.
    """

    def assign(key: PRNGKey, pool: Pool) -> Ids:
        facts = pool.facts
        num_clients = facts.num_clients
        num_classes = facts.num_classes
        labelled = pool.classes >= 0
        owner = int_range(num_clients)[:, None]
        kind = int_range(num_classes)
        preferred = (kind == 2 * owner % num_classes) | (kind == (2 * owner + 1) % num_classes)
        share_key, unlabelled_key = jax.random.split(key)
        shares = jax.random.uniform(share_key, (num_clients, num_classes), jnp.float32, 0.45, 0.55)
        shares = jnp.where(preferred, 80.0 * shares, shares)
        part = (labelled.sum(dtype=jnp.int32) // num_clients).astype(shares.dtype)
        if max_examples is not None:
            part = jnp.minimum(part, max_examples)
        asked = jnp.floor(shares / shares.sum(axis=1, keepdims=True) * part + 1e-4)
        ends = running_sum(asked.astype(jnp.int32), axis=0)
        # among those of its class, in the order of the file
        place = rank_within(key, pool.classes, int_range(labelled.shape[0]))
        client = jnp.sum(place[:, None] >= ends[:, pool.labels].T, axis=1, dtype=jnp.int32)
        client = jnp.where(labelled & (client < num_clients), client, -1)
        return jnp.where(labelled, client, deal_unlabelled(unlabelled_key, pool))

    return Partition(assign)


def paired_dirichlet(alpha: Positive, labels_per_class: Count) -> Partition:
    """Equal clients in pairs with uneven class mixes; labelled and other examples are dealt
    separately (SAGE).

    See `deal_to_pairs`. With supervision `dealt`, clients see the labels of the labelled examples.

    Args:
        alpha: concentration, small = uneven.
        labels_per_class: labelled examples of every class in the federation.
    """

    def labelled(key: PRNGKey, pool: Pool) -> Mask:
        place = rank_within(named_key(key, "labelled"), pool.classes)
        return (pool.classes >= 0) & (place < labels_per_class)

    def assign(key: PRNGKey, pool: Pool) -> Ids:
        facts = pool.facts
        check(facts)
        group = class_or_unlabelled(pool)
        known = labelled(key, pool)
        sizes = facts.num_classes + 1, facts.num_clients, alpha
        client = deal_to_pairs(named_key(key, "known"), jnp.where(known, group, -1), *sizes)
        others = deal_to_pairs(named_key(key, "others"), jnp.where(known, -1, group), *sizes)
        return jnp.where(known, client, others)

    def check(facts: Facts) -> None:
        if facts.num_clients % 2:
            raise ValueError(
                "paired_dirichlet deals to pairs of clients, but num_clients is "
                f"{facts.num_clients}"
            )
        asks = "labels_per_class asks for"
        check_class_counts(facts.class_counts, labels_per_class, asks, "lower it")

    return Partition(assign, labelled=labelled)


def _class_draws(
    key: PRNGKey, rows: Float[np.ndarray, "C K"], number: Int[Array, ""], most: int
) -> Int[Array, "C K"]:
    """Count each class in `number` independent draws of every client from its row, at most `most
    / C`.
    """
    ends = jnp.asarray(np.cumsum(rows, axis=1)[:, :-1], jnp.float32)
    place = jnp.arange(max(most // len(rows), 1), dtype=jnp.int32)

    def of_client(client: Int[Array, ""], ends: Float[Array, " k"]) -> Int[Array, " K"]:
        draws = jax.random.uniform(jax.random.fold_in(key, client), place.shape, jnp.float32)
        drawn = jnp.searchsorted(ends, draws, side="right").astype(jnp.int32)
        return count_groups(jnp.where(place < number, drawn, -1), rows.shape[1])

    return jax.vmap(of_client)(int_range(len(rows)), ends)


def own_class(
    skew: Annotated[float, In("[0, 1]")],
    cut: bool = True,
) -> Partition:
    """FedRGD's non-iid split: client c first gets examples of class c mod K, then a share of the
    remaining ones of all classes.

    The share of its own class is skew + (1 - skew) / K on average, and the mean total variation
    distance of the class shares of two clients of different classes is `skew`, while classes last;
    missing examples of a class are replaced by other classes. 0 is `random`, except that a
    remainder is dealt too. No example is dealt twice.

    Args:
        skew: R, share of the client's own class.
        cut: if the number of clients is a multiple of the classes, deal one part per class and cut
            it at random into equal parts for its clients (CIFAR-10); False: every client has
            exactly R of its own class (SVHN).
    """

    def own_parts(
        pool: Pool,
    ) -> tuple[int, int, Int[Array, " B"], Int[Array, " B"], Int[Array, "B K"]]:
        """Return the first part of the deal: clients of a base, bases, their sizes, their own
        examples, the same by class.
        """
        num_clients = pool.facts.num_clients
        num_classes = pool.facts.num_classes
        parts = 1
        if cut and num_clients % num_classes == 0:
            parts = num_clients // num_classes
        bases = num_clients // parts
        group = pool.classes
        number = jnp.sum(group >= 0, dtype=jnp.int32)
        base = int_range(bases)
        size = number // bases + (base < number % bases).astype(jnp.int32)
        # The class of every base, and how many examples of it are there for how many bases.
        kind = base % num_classes
        there = count_groups(group, num_classes)[kind]
        same = kind == kind[:, None]
        asked = jnp.floor(skew * size.astype(jnp.float32) + 1e-4).astype(jnp.int32)
        # Bases take their part one after another, as long as there is any.
        taken = jnp.where(same & (base < base[:, None]), asked, 0)
        own = jnp.clip(there - jnp.sum(taken, axis=1, dtype=jnp.int32), 0, asked)
        counts = jnp.where(kind[:, None] == int_range(num_classes), own[:, None], 0)
        return parts, bases, size, own, counts.astype(jnp.int32)

    def assign(key: PRNGKey, pool: Pool) -> Ids:
        own_key, rest_key, cut_key, unlabelled_key = jax.random.split(key, 4)
        parts, bases, size, own, counts = own_parts(pool)
        group = pool.classes
        labelled = group >= 0
        dealt = deal(own_key, group, counts)
        left = labelled & (dealt < 0)
        rest = jnp.where(left, 0, -1)
        others = deal(rest_key, rest, (size - own)[:, None].astype(jnp.int32))
        dealt = jnp.where(left, others, dealt)
        if parts > 1:
            dealt = dealt + bases * (rank_within(cut_key, dealt) % parts)
        return jnp.where(labelled, dealt, deal_unlabelled(unlabelled_key, pool))

    return Partition(assign)


_DRAWS = 64  # draws at most; the first draw that is even enough is taken
_SMALLER = 0.25  # share of a slice that its smaller client has at least


def deal_to_pairs(key: PRNGKey, group: Ids, num_groups: int, num_clients: int, alpha: float) -> Ids:
    """Deal examples to equal clients whose class mixes differ.

    All examples in random order are cut into equal slices, one per pair of clients. In a slice,
    each class in turn is split by shares from Dir(alpha, alpha), but a client that holds half of
    the slice gets nothing more; the whole slice is drawn anew until the smaller client has a
    quarter of it. The examples of all clients, one client after another in random order, are then
    cut again into equal parts, so a client's surplus goes to its neighbour.

    If none of 64 draws is even enough, for example with a single class and a small alpha, the most
    even one is taken.

    Args:
        key: typed PRNG key.
        group: int32 [N], class of every example, negative = not dealt.
        num_groups: classes.
        num_clients: an even number.
        alpha: > 0, small = uneven.

    Returns:
        client of every example, int32 [N], -1 = not dealt.
    """
    slices = num_clients // 2
    dealt = group >= 0
    slice_key, share_key, side_key, order_key = jax.random.split(key, 4)
    total = dealt.sum(dtype=jnp.int32)
    place = equal_part(rank_within(slice_key, jnp.where(dealt, 0, -1)), total, slices)
    cell = jnp.where(dealt, place * num_groups + group, -1)
    counts = count_groups(cell, slices * num_groups).reshape(slices, num_groups)
    shares = jax.random.dirichlet(
        share_key, jnp.full(2, alpha, jnp.float32), (slices, _DRAWS, num_groups), jnp.float32
    )
    first = _even_enough(shares, counts).reshape(-1)
    side = (rank_within(side_key, cell) >= first[cell]).astype(jnp.int32)
    client = jnp.where(dealt, 2 * place + side, -1)
    sizes = count_groups(client, num_clients)
    start = running_sum(sizes) - sizes
    line = start[client] + rank_within(order_key, client)
    return jnp.where(dealt, equal_part(line, total, num_clients), -1)


def _even_enough(shares: Float[Array, "S D G 2"], counts: Int[Array, "S G"]) -> Int[Array, "S G"]:
    """Return the counts of every class that the first client of each slice gets, by the first
    draw that is even enough.
    """
    size = counts.sum(axis=1, dtype=jnp.int32)

    def split(held: Int[Array, "S D 2"], row: tuple[Array, Array]) -> tuple[Array, Array]:
        share, count = row
        # The floor lets a client that is not full get all of a class where its share underflows.
        open_ = jnp.where(2 * held < size[:, None, None], jnp.maximum(share, 1e-30), 0.0)
        both = open_.sum(axis=2)
        # nothing is left to give where both are full
        ratio = open_[..., 0] / jnp.where(both > 0, both, 1.0)
        mine = jnp.floor(ratio * count[:, None].astype(ratio.dtype)).astype(jnp.int32)
        return held + jnp.stack([mine, count[:, None] - mine], axis=2), mine

    start = jnp.zeros((*shares.shape[:2], 2), jnp.int32)
    held, first = jax.lax.scan(split, start, (jnp.moveaxis(shares, 2, 0), counts.T))
    smaller = held.min(axis=2)
    enough = smaller >= jnp.floor(_SMALLER * size[:, None].astype(jnp.float32)).astype(jnp.int32)
    chosen = jnp.where(enough.any(axis=1), jnp.argmax(enough, axis=1), jnp.argmax(smaller, axis=1))
    return first[:, jnp.arange(counts.shape[0]), chosen].T


PUBLISHED = (fedmatch, class_counts, majority, own_class, paired_dirichlet)
