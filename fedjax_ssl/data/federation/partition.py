"""Who holds which training example.

Every partition is written with ranks and counts instead of loops over examples, so that it can be traced: the same
function runs on one key or inside `jit(vmap(...))` over many. Shapes: N training examples, C clients, K classes.
Examples that are not in the pool (held out for test, validation or the server) get client -1; examples without a class
label (label -1 in the dataset) are dealt evenly to all clients whatever the partition does with the classes.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl.checks import check_choices, check_numbers, check_whole_numbers
from fedjax_ssl.data.federation.dealing import count_groups, deal, largest_remainder, level, rank_within
from fedjax_ssl.data.federation.pairs import deal_to_pairs, labelled_examples
from fedjax_ssl.keys import named_key
from fedjax_ssl.registry import Registry

FEDMATCH_SHARES = (244, 73, 15, 15, 15, 10, 15, 15, 15, 73)
FEDMATCH_MATRIX = np.stack([np.roll((0.5, 0.15, 0.03, 0.03, 0.03, 0.02, 0.03, 0.03, 0.03, 0.15), i) for i in range(10)])


@dataclasses.dataclass(frozen=True)
class Pool:
    """The training examples to deal, and what is known about them before any key is drawn."""

    labels: Int[Array, " N"]  # -1 = no label exists
    available: Bool[Array, " N"]  # False where held out
    natural: Int[Array, " N"]  # natural client 0..G-1, -1 = held out or none
    facts: "Facts"


class Facts(NamedTuple):
    """What holds for every key: Python numbers, so that shapes may depend on them."""

    num_clients: int
    num_classes: int
    class_counts: tuple[int, ...]  # [K] examples of each class, at most
    num_unlabelled: int  # examples without a label, at most
    natural_sizes: tuple[int, ...]  # sizes of all natural clients, before anything is held out; () = none exist
    num_natural: int  # G, natural clients that are not held out
    least: int  # examples in the pool, at least
    most: int  # and at most
    removed: int  # examples taken out of the natural clients that remain, at most


class Bounds(NamedTuple):
    """Client sizes that hold for every key."""

    smallest: int
    largest: int


class Partition(NamedTuple):
    """`assign(key, pool)` -> client of every example, int32 [N]; `bounds(facts)` -> `Bounds`."""

    assign: Callable[[Key[Array, ""], Pool], Int[Array, " N"]]
    bounds: Callable[[Facts], Bounds]
    parts: int = 1  # in which clients' unlabelled examples come, see `fedjax_ssl.data.federation.streaming`
    labelled: Callable[[Key[Array, ""], Pool], Bool[Array, " N"]] | None = None
    # ^ (the key of `assign`, pool) -> examples that were dealt as labelled ones, for the supervision "dealt"


def natural() -> Partition:
    """The dataset's own clients; with fewer `num_clients` a random subset, the rest of the data unused."""

    def assign(key: Key[Array, ""], pool: Pool) -> Int[Array, " N"]:
        chosen = jnp.arange(pool.facts.num_natural, dtype=jnp.int32)
        if pool.facts.num_clients < pool.facts.num_natural:
            chosen = _permutation(key, pool.facts.num_natural)
        kept = chosen < pool.facts.num_clients
        number = jnp.where(kept, jnp.cumsum(kept, dtype=jnp.int32) - 1, -1)
        return jnp.where(pool.available & (pool.natural >= 0), number[pool.natural], -1)

    return Partition(
        assign, lambda facts: Bounds(max(0, min(facts.natural_sizes) - facts.removed), max(facts.natural_sizes))
    )


def iid() -> Partition:
    """Stratified equal parts: client sizes and every class's counts differ by at most one between clients."""

    def assign(key: Key[Array, ""], pool: Pool) -> Int[Array, " N"]:
        group = _class_or_unlabelled(pool)
        order_key, seat_key = jax.random.split(key)
        place = rank_within(order_key, jnp.where(group >= 0, 0, -1), group)
        seats = _permutation(seat_key, pool.facts.num_clients)
        return jnp.where(group >= 0, seats[place % pool.facts.num_clients], -1)

    return Partition(assign, _equal_bounds)


def random() -> Partition:
    """Equal parts drawn at random whatever the classes, as in SemiFL and FedUL; a rest below one each is unused."""

    def assign(key: Key[Array, ""], pool: Pool) -> Int[Array, " N"]:
        rank = rank_within(key, jnp.where(pool.available, 0, -1))
        size = pool.available.sum(dtype=jnp.int32) // pool.facts.num_clients
        client = rank // jnp.maximum(size, 1)
        return jnp.where(pool.available & (client < pool.facts.num_clients), client, -1)

    return Partition(assign, lambda facts: Bounds(facts.least // facts.num_clients, facts.most // facts.num_clients))


def dirichlet(
    alpha: float, min_examples: int = 1, max_examples: int | None = None, skip_full: bool = False
) -> Partition:
    """Each class is split over the clients with shares drawn from Dir(alpha) (Yurochkin et al., ICML 2019).

    Drawing again until every client has enough can loop for ever; here clients below `min_examples` get
    examples from those above instead.

    Args:
        alpha: > 0, small = uneven.
        min_examples: the least that every client has.
        max_examples: the most that a client may have. Without it the tables of a traced call must allow for
            one client that has nearly everything.
        skip_full: classes are dealt in turn, and of the next one a client that holds an equal part of all examples or
            more gets nothing (SemiFL, FedMT).
    """
    check_numbers("(0, inf)", alpha=alpha)
    check_whole_numbers(0, min_examples=min_examples)
    check_whole_numbers(max_examples=1 if max_examples is None else max_examples)

    def assign(key: Key[Array, ""], pool: Pool) -> Int[Array, " N"]:
        facts = pool.facts
        share_key, deal_key, level_key = jax.random.split(key, 3)
        shares = _dirichlet(share_key, jnp.full(facts.num_clients, alpha, jnp.float32), facts.num_classes)
        if skip_full:
            shares = _skip_full(shares, count_groups(_class_or_unlabelled(pool), facts.num_classes))
        client = _deal_classes(deal_key, pool, shares.T)
        return level(level_key, client, facts.num_clients, min_examples, bounds(facts).largest)

    def bounds(facts: Facts) -> Bounds:
        if min_examples * facts.num_clients > facts.least:
            raise ValueError(
                f"min_examples={min_examples} for {facts.num_clients} clients needs "
                f"{min_examples * facts.num_clients} training examples, there are {facts.least}; "
                "lower min_examples or num_clients"
            )
        if max_examples is None:
            largest = facts.most - (facts.num_clients - 1) * min_examples
            if skip_full:  # below an equal part, and then all of one class
                largest = min(largest, 2 * _equal_bounds(facts).largest + max(facts.class_counts))
            return Bounds(min_examples, largest)
        if max_examples * facts.num_clients < facts.most or max_examples < min_examples:
            raise ValueError(
                f"max_examples={max_examples} for {facts.num_clients} clients holds "
                f"{max_examples * facts.num_clients} of up to {facts.most} training examples; raise it to at "
                f"least {max(min_examples, -(-facts.most // facts.num_clients))}"
            )
        return Bounds(min_examples, max_examples)

    return Partition(assign, bounds)


def dirichlet_balanced(alpha: float) -> Partition:
    """Clients of equal size whose class mixes are drawn from Dir(alpha * class frequencies) (Hsu et al., 2019).

    Where the original lets clients draw in turn until classes run out, so that the last clients get leftovers, all
    mixes are scaled together to the class totals and to equal sizes (iterative proportional fitting).

    Args:
        alpha: > 0, total concentration; small = uneven.
    """
    check_numbers("(0, inf)", alpha=alpha)

    def assign(key: Key[Array, ""], pool: Pool) -> Int[Array, " N"]:
        facts = pool.facts
        totals = count_groups(_class_or_unlabelled(pool), facts.num_classes).astype(jnp.float32)
        prior = jnp.asarray(facts.class_counts, jnp.float32)
        concentration = jnp.maximum(alpha * prior / prior.sum(), 1e-6)
        mix_key, deal_key, level_key = jax.random.split(key, 3)
        mixes = _dirichlet(mix_key, concentration, facts.num_clients)
        client = _deal_classes(deal_key, pool, _fit_margins(mixes, totals))
        size = count_groups(jnp.where(client >= 0, 0, -1), 1)[0]
        smallest = size // facts.num_clients
        return level(level_key, client, facts.num_clients, smallest, -(-size // facts.num_clients))

    return Partition(assign, _equal_bounds)


def shards(shards_per_client: int = 2) -> Partition:
    """Examples sorted by label and cut into equal shards; each client gets some at random (McMahan et al., 2017).

    Args:
        shards_per_client: at least 1; a client sees about as many classes.
    """
    check_whole_numbers(shards_per_client=shards_per_client)

    def assign(key: Key[Array, ""], pool: Pool) -> Int[Array, " N"]:
        facts = pool.facts
        num_shards = facts.num_clients * shards_per_client
        labelled = pool.available & (pool.labels >= 0)
        order_key, owner_key, unlabelled_key = jax.random.split(key, 3)
        sorted_place = rank_within(order_key, jnp.where(labelled, 0, -1), pool.labels)
        total = labelled.sum(dtype=jnp.int32)
        each, longer = total // num_shards, total % num_shards
        in_longer = sorted_place < longer * (each + 1)
        shard = jnp.where(
            in_longer,
            sorted_place // (each + 1),
            longer + (sorted_place - longer * (each + 1)) // jnp.maximum(each, 1),
        )
        owner = _permutation(owner_key, num_shards) // shards_per_client
        client = jnp.where(labelled, owner[jnp.clip(shard, 0, num_shards - 1)], -1)
        return jnp.where(labelled, client, _deal_unlabelled(unlabelled_key, pool))

    def bounds(facts: Facts) -> Bounds:
        num_shards = facts.num_clients * shards_per_client
        most = sum(facts.class_counts)
        least = max(facts.least - facts.num_unlabelled, 0)
        unlabelled = -(-facts.num_unlabelled // facts.num_clients)
        return Bounds(least // num_shards * shards_per_client, -(-most // num_shards) * shards_per_client + unlabelled)

    return Partition(assign, bounds)


def classes_per_client(classes: int = 2) -> Partition:
    """Every client has exactly `classes` classes, every class goes to equally many clients (to within one).

    Only classes with examples in the dataset take part. A class's examples are split evenly over its clients.

    Args:
        classes: at least 1.
    """
    check_whole_numbers(classes=classes)

    def present_in(facts: Facts) -> np.ndarray:
        present = np.flatnonzero(np.asarray(facts.class_counts))
        if classes > present.size:
            raise ValueError(f"classes={classes} per client, but the training data have {present.size} classes")
        if facts.num_clients * classes < present.size:
            raise ValueError(
                f"{facts.num_clients} clients with {classes} classes each cannot hold all {present.size} "
                "classes; raise classes or num_clients"
            )
        return present

    def assign(key: Key[Array, ""], pool: Pool) -> Int[Array, " N"]:
        facts = pool.facts
        present = jnp.asarray(present_in(facts), jnp.int32)
        choice_key, deal_key = jax.random.split(key)
        chosen = _balanced_choice(choice_key, present.size, facts.num_clients, classes)
        member = jnp.zeros((facts.num_clients, facts.num_classes), jnp.float32)
        member = member.at[jnp.arange(facts.num_clients)[:, None], present[chosen]].set(1.0)
        return _deal_classes(deal_key, pool, member)

    def bounds(facts: Facts) -> Bounds:
        present = present_in(facts)
        fewest_users = facts.num_clients * classes // present.size
        parts = np.sort(-(-np.asarray(facts.class_counts)[present] // fewest_users))
        return Bounds(0, int(parts[-classes:].sum()) + -(-facts.num_unlabelled // facts.num_clients))

    return Partition(assign, bounds)


def circulant(shares: Sequence[float] = FEDMATCH_SHARES, balanced: int = 0) -> Partition:
    """FedMatch's non-iid matrix: client c prefers class c mod K, with a share that depends on (k - c) mod K.

    The default is the ten-class matrix of FedMatch (Jeong et al., ICLR 2021) in the whole numbers of
    ProtoFSSL, whose CIFAR-10 split is `balanced=5` with 5,400 training images of every class and 100 clients.

    Args:
        shares: [K] non-negative, in any scale: weight of class k for a client of type t at offset (k - t) mod K.
        balanced: number of examples of every class that every client is given first, as far as they go; in the
            papers these are the labelled ones.
    """
    weights = np.asarray(shares, np.float64)
    if weights.ndim != 1 or not np.isfinite(weights).all() or (weights < 0).any() or weights.sum() <= 0:
        raise ValueError(f"shares must be K non-negative numbers, not all zero; got {tuple(shares)}")
    check_whole_numbers(0, balanced=balanced)

    def matrix(facts: Facts) -> np.ndarray:
        if weights.size != facts.num_classes:
            raise ValueError(
                f"shares has {weights.size} entries, the data have {facts.num_classes} classes; "
                "give one share per class, by offset from the client's preferred class"
            )
        offset = np.arange(facts.num_classes)[None] - np.arange(facts.num_clients)[:, None]
        return weights[offset % facts.num_classes]

    def assign(key: Key[Array, ""], pool: Pool) -> Int[Array, " N"]:
        return _deal_classes(key, pool, jnp.asarray(matrix(pool.facts), jnp.float32), balanced)

    def bounds(facts: Facts) -> Bounds:
        table = matrix(facts)
        mass = table.sum(axis=0)
        table = np.where(mass > 0, table / np.where(mass > 0, mass, 1.0), 1.0 / facts.num_clients)
        # One more per class than the exact quota covers the rounding; the evenly dealt part is at most `balanced`.
        sizes = np.ceil(table * np.asarray(facts.class_counts)).sum(axis=1) + facts.num_classes * balanced
        largest = int(sizes.max()) + -(-facts.num_unlabelled // facts.num_clients)
        return Bounds(0, min(largest, facts.most))

    return Partition(assign, bounds)


def fedmatch(
    noniid: bool = False, balanced: int = 5, matrix: Sequence[Sequence[float]] | None = None, parts: int = 1
) -> Partition:
    """FedMatch's tasks: `balanced` examples of every class for each client, and a share of the others.

    IID: floor(rest / C) of what is left of every class. Non-IID: client c draws floor(all that is left / C) classes
    from row c mod R of a matrix, and clients in turn take so many examples of each class as long as there are any:
    some examples are then at no client, and the last clients have fewer (Jeong et al., ICLR 2021; the authors' code).

    Args:
        noniid: which of the two.
        balanced: in the paper the labelled examples of clients, 5 of a class, beside supervision `per_class`. 0 with
            the labels at the server.
        matrix: [R, K], rows sum to 1; for ten classes the paper's by default: row 0 is (.50, .15, .03, .03, .03, .02,
            .03, .03, .03, .15), and every other one is the row before it rotated by one class.
        parts: T, in which a client's unlabelled examples come one after another (streaming): of every class
            floor(n / T) in each, and the rest is not used.
    """
    check_whole_numbers(0, balanced=balanced)
    check_whole_numbers(parts=parts)

    def rows_of(facts: Facts) -> Float[np.ndarray, "C K"]:
        rows = FEDMATCH_MATRIX if matrix is None else np.asarray(matrix, np.float64)
        if rows.ndim != 2 or rows.shape[1] != facts.num_classes:
            raise ValueError(
                f"{'the matrix of FedMatch' if matrix is None else 'matrix'} has shape {rows.shape}, the data have "
                f"{facts.num_classes} classes; give a matrix with a column for each of them"
            )
        if not (rows >= 0).all() or not np.allclose(rows.sum(axis=1), 1.0, rtol=0, atol=1e-6):
            raise ValueError(f"rows of matrix must be at least 0 and sum to 1; they sum to {rows.sum(axis=1)}")
        return rows[np.arange(facts.num_clients) % len(rows)]

    def check(facts: Facts) -> None:
        for kind, count in enumerate(facts.class_counts):
            if count < balanced * facts.num_clients:
                raise ValueError(
                    f"{facts.num_clients} clients are to have {balanced} examples of every class, but class {kind} has "
                    f"{count}; lower partition.balanced or use fewer clients"
                )

    def assign(key: Key[Array, ""], pool: Pool) -> Int[Array, " N"]:
        facts = pool.facts
        check(facts)
        num_clients, num_classes = facts.num_clients, facts.num_classes
        group = _class_or_unlabelled(pool)
        totals = count_groups(group, num_classes + 1)
        rest = jnp.maximum(totals[:num_classes] - balanced * num_clients, 0)
        draw_key, deal_key = jax.random.split(key)
        counts = jnp.broadcast_to(rest // num_clients, (num_clients, num_classes))
        if noniid:
            drawn = _class_draws(draw_key, rows_of(facts), rest.sum(dtype=jnp.int32) // num_clients, facts.most)
            taken_before = jnp.cumsum(drawn, axis=0, dtype=jnp.int32) - drawn
            counts = jnp.clip(rest - taken_before, 0, drawn)
        nobody_knows = largest_remainder(jnp.ones(num_clients, jnp.float32), totals[num_classes])
        return deal(deal_key, group, jnp.concatenate([counts + balanced, nobody_knows[:, None]], axis=1))

    def bounds(facts: Facts) -> Bounds:
        check(facts)
        left = facts.most - balanced * facts.num_clients * facts.num_classes
        return Bounds(0, balanced * facts.num_classes + left // facts.num_clients + 1)

    return Partition(assign, bounds, parts)


def class_counts(counts: Sequence[int], balanced: int = 0, unlabelled: int | None = None) -> Partition:
    """Whole numbers: client c gets counts[(k - c) mod K] examples of class k; what is left is unused.

    The splits of ProtoFSSL (`fedjax_ssl.presets.protofssl_split`).

    Args:
        counts: [K] by offset from the client's preferred class c mod K, or one number for all classes.
        balanced: examples of every class that every client is given beside them; in the paper the labelled ones.
        unlabelled: examples without a class label for each client; all of them, evenly, by default.
    """
    given = tuple(counts)
    check_whole_numbers(0, balanced=balanced, **{f"counts[{place}]": count for place, count in enumerate(given)})
    if not sum(given) + balanced:
        raise ValueError(f"counts are {given} and balanced is 0, so that no client would get anything")
    if unlabelled is not None:
        check_whole_numbers(0, unlabelled=unlabelled)

    def table(facts: Facts) -> Int[np.ndarray, "C K"]:
        if len(given) not in (1, facts.num_classes):
            raise ValueError(
                f"counts has {len(given)} entries, the data have {facts.num_classes} classes; give one number per "
                "class, by offset from the client's preferred class, or one for all"
            )
        client, kind = np.arange(facts.num_clients), np.arange(facts.num_classes)
        each = np.resize(given, facts.num_classes)[(kind - client[:, None]) % facts.num_classes] + balanced
        for number, (asked, there) in enumerate(zip(each.sum(axis=0), facts.class_counts, strict=True)):
            if asked > there:
                raise ValueError(
                    f"{facts.num_clients} clients are to get {asked} examples of class {number}, but {there} are left "
                    "to deal; lower counts or num_clients"
                )
        if unlabelled is not None and unlabelled * facts.num_clients > facts.num_unlabelled:
            raise ValueError(
                f"{facts.num_clients} clients are to get {unlabelled} examples without a label each, but there are "
                f"{facts.num_unlabelled}; lower unlabelled or num_clients"
            )
        return each.astype(np.int32)

    def assign(key: Key[Array, ""], pool: Pool) -> Int[Array, " N"]:
        class_key, unlabelled_key = jax.random.split(key)
        labelled = pool.available & (pool.labels >= 0)
        client = deal(class_key, jnp.where(labelled, pool.labels, -1), jnp.asarray(table(pool.facts)))
        return jnp.where(labelled, client, _deal_unlabelled(unlabelled_key, pool, unlabelled))

    def bounds(facts: Facts) -> Bounds:
        most = -(-facts.num_unlabelled // facts.num_clients) if unlabelled is None else unlabelled
        return Bounds(0, int(table(facts).sum(axis=1).max()) + most)

    return Partition(assign, bounds)


def majority(factor: float = 80.0) -> Partition:
    """FedUL's non-iid split, as in its released code: client c has mostly examples of classes 2c and 2c + 1 (mod K).

    Client c asks for shares drawn from U[0.45, 0.55] per class, multiplied by `factor` for its two classes, of an equal
    part of the data. Classes are handed out in the order of the file, and what runs out is missing: the last clients
    have classes without examples.

    Args:
        factor: > 0, how much more of its two classes a client asks for.
    """
    check_numbers("(0, inf)", factor=factor)

    def assign(key: Key[Array, ""], pool: Pool) -> Int[Array, " N"]:
        facts = pool.facts
        num_clients, num_classes = facts.num_clients, facts.num_classes
        labelled = pool.available & (pool.labels >= 0)
        owner, kind = jnp.arange(num_clients, dtype=jnp.int32)[:, None], jnp.arange(num_classes, dtype=jnp.int32)
        preferred = (kind == 2 * owner % num_classes) | (kind == (2 * owner + 1) % num_classes)
        share_key, unlabelled_key = jax.random.split(key)
        shares = jax.random.uniform(share_key, (num_clients, num_classes), jnp.float32, 0.45, 0.55)
        shares = jnp.where(preferred, factor * shares, shares)
        part = (labelled.sum(dtype=jnp.int32) // num_clients).astype(shares.dtype)
        asked = jnp.floor(shares / shares.sum(axis=1, keepdims=True) * part + 1e-4).astype(jnp.int32)
        ends = jnp.cumsum(asked, axis=0, dtype=jnp.int32)
        # The place of an example among those of its class, in the order of the file.
        one_hot = (pool.labels[:, None] == kind) & labelled[:, None]
        within = jnp.cumsum(one_hot, axis=0, dtype=jnp.int32) - 1
        place = jnp.sum(jnp.where(one_hot, within, 0), axis=1, dtype=jnp.int32)
        client = jnp.sum(place[:, None] >= ends[:, jnp.maximum(pool.labels, 0)].T, axis=1, dtype=jnp.int32)
        client = jnp.where(labelled & (client < num_clients), client, -1)
        return jnp.where(labelled, client, _deal_unlabelled(unlabelled_key, pool))

    return Partition(assign, lambda facts: Bounds(0, _equal_bounds(facts).largest))


def own_class(skew: float, own_part: Literal["size", "class"] = "size", cut: bool = True) -> Partition:
    """FedRGD's non-iid split: client c first gets examples of class c mod K, then of what all classes leave.

    With own_part="size", the share of its own class is skew + (1 - skew) / K on average, and the mean total variation
    distance of the class shares of two clients of different classes is `skew`, as far as the classes last: what a class
    lacks is made up from the others. 0 is `random`, up to a remainder that is dealt here too. No example is dealt
    twice.

    Args:
        skew: R in [0, 1], the part that is of the client's own class.
        own_part: R of the client's "size", and the rest at random (CIFAR-10, SVHN); or of the "class", and the rest in
            class proportions (EMNIST).
        cut: where the clients are a multiple of the classes, one part per class is dealt, and cut at random into equal
            parts for its clients (CIFAR-10, EMNIST); False: every client has exactly R of its own class (SVHN).
    """
    check_numbers("[0, 1]", skew=skew)
    check_choices(("size", "class"), own_part=own_part)

    def assign(key: Key[Array, ""], pool: Pool) -> Int[Array, " N"]:
        facts = pool.facts
        parts = facts.num_clients // facts.num_classes if cut and facts.num_clients % facts.num_classes == 0 else 1
        bases = facts.num_clients // parts
        own_key, rest_key, cut_key, unlabelled_key = jax.random.split(key, 4)
        labelled = pool.available & (pool.labels >= 0)
        group = jnp.where(labelled, pool.labels, -1)
        totals, number = count_groups(group, facts.num_classes), labelled.sum(dtype=jnp.int32)
        base = jnp.arange(bases, dtype=jnp.int32)
        size, kind = number // bases + (base < number % bases).astype(jnp.int32), base % facts.num_classes
        of_kind = jnp.sum(kind == kind[:, None], axis=1, dtype=jnp.int32)
        asked = skew * (size if own_part == "size" else totals[kind] / of_kind).astype(jnp.float32)
        asked = jnp.floor(asked + 1e-4).astype(jnp.int32)
        before = jnp.sum(jnp.where((kind == kind[:, None]) & (base < base[:, None]), asked, 0), axis=1, dtype=jnp.int32)
        own = jnp.clip(totals[kind] - before, 0, asked)
        counts = jnp.where(kind[:, None] == jnp.arange(facts.num_classes), own[:, None], 0).astype(jnp.int32)
        dealt = deal(own_key, group, counts)
        rest = labelled & (dealt < 0)
        if own_part == "size":
            others = deal(rest_key, jnp.where(rest, 0, -1), (size - own)[:, None].astype(jnp.int32))
        else:
            others = rank_within(rest_key, jnp.where(rest, 0, -1), group) % bases
        dealt = jnp.where(rest, others, dealt)
        dealt = dealt + bases * (rank_within(cut_key, dealt) % parts)
        return jnp.where(labelled, dealt, _deal_unlabelled(unlabelled_key, pool))

    def bounds(facts: Facts) -> Bounds:
        equal = _equal_bounds(facts)
        if own_part == "size":
            return Bounds(max(equal.smallest - 1, 0), equal.largest + 1)
        return Bounds(0, min(equal.largest + max(facts.class_counts) + 2, facts.most))

    return Partition(assign, bounds)


def paired_dirichlet(alpha: float, labels_per_class: int) -> Partition:
    """Equal clients in pairs with uneven class mixes, labelled and other examples dealt apart (SAGE).

    See `fedjax_ssl.data.federation.pairs`; with supervision `dealt`, clients see the labels of those dealt as labelled.

    Args:
        alpha: > 0, small = uneven.
        labels_per_class: labelled examples of every class in the federation.
    """
    check_numbers("(0, inf)", alpha=alpha)
    check_whole_numbers(labels_per_class=labels_per_class)

    def labelled(key: Key[Array, ""], pool: Pool) -> Bool[Array, " N"]:
        group, num_classes = _class_or_unlabelled(pool), pool.facts.num_classes
        return labelled_examples(named_key(key, "labelled"), group, num_classes, labels_per_class)

    def assign(key: Key[Array, ""], pool: Pool) -> Int[Array, " N"]:
        bounds(pool.facts)
        group, known, facts = _class_or_unlabelled(pool), labelled(key, pool), pool.facts
        sizes = facts.num_classes + 1, facts.num_clients, alpha
        client = deal_to_pairs(named_key(key, "known"), jnp.where(known, group, -1), *sizes)
        others = deal_to_pairs(named_key(key, "others"), jnp.where(known, -1, group), *sizes)
        return jnp.where(known, client, others)

    def bounds(facts: Facts) -> Bounds:
        if facts.num_clients % 2:
            raise ValueError(f"paired_dirichlet deals to pairs of clients, but num_clients is {facts.num_clients}")
        if min(facts.class_counts) < labels_per_class:
            kind = int(np.argmin(facts.class_counts))
            raise ValueError(
                f"labels_per_class is {labels_per_class}, but class {kind} has {facts.class_counts[kind]} training "
                "examples; lower it"
            )
        # Two equal cuts, each within one.
        return Bounds(max(facts.least // facts.num_clients - 1, 0), facts.most // facts.num_clients + 2)

    return Partition(assign, bounds, labelled)


PARTITIONS: Registry[Partition] = Registry(
    "partition",
    {
        "natural": natural,
        "iid": iid,
        "random": random,
        "dirichlet": dirichlet,
        "dirichlet_balanced": dirichlet_balanced,
        "shards": shards,
        "classes_per_client": classes_per_client,
        "circulant": circulant,
        "fedmatch": fedmatch,
        "class_counts": class_counts,
        "majority": majority,
        "own_class": own_class,
        "paired_dirichlet": paired_dirichlet,
    },
    common={"num_clients": int},
)


def _permutation(key: Key[Array, ""], size: int) -> Int[Array, " size"]:
    return rank_within(key, jnp.zeros(size, jnp.int32))


def _class_or_unlabelled(pool: Pool) -> Int[Array, " N"]:
    """Class of every example of the pool, K for those without a label, -1 outside the pool."""
    group = jnp.where(pool.labels >= 0, pool.labels, pool.facts.num_classes)
    return jnp.where(pool.available, group, -1)


def _deal_classes(key: Key[Array, ""], pool: Pool, shares: Float[Array, "C K"], balanced: int = 0) -> Int[Array, " N"]:
    """Splits every class by its column of `shares`, after `balanced` examples of it for every client."""
    num_clients, num_classes = shares.shape
    group = _class_or_unlabelled(pool)
    totals = count_groups(group, num_classes + 1)
    even = jnp.minimum(totals, balanced * num_clients).at[num_classes].set(totals[num_classes])
    equal = jnp.ones((num_classes + 1, num_clients), jnp.float32)
    tie_key, deal_key = jax.random.split(key)
    counts = largest_remainder(equal, even)
    rest = largest_remainder(shares.T, (totals - even)[:num_classes], tie_key)
    return deal(deal_key, group, counts.at[:num_classes].add(rest).T)


def _class_draws(
    key: Key[Array, ""], rows: Float[np.ndarray, "C K"], number: Int[Array, ""], most: int
) -> Int[Array, "C K"]:
    """How often each class comes up in `number` independent draws of every client from its row, at most `most / C`."""
    ends = jnp.asarray(np.cumsum(rows, axis=1)[:, :-1], jnp.float32)
    place = jnp.arange(max(most // len(rows), 1), dtype=jnp.int32)

    def of_client(client: Int[Array, ""], ends: Float[Array, " k"]) -> Int[Array, " K"]:
        draws = jax.random.uniform(jax.random.fold_in(key, client), place.shape, jnp.float32)
        drawn = jnp.searchsorted(ends, draws, side="right").astype(jnp.int32)
        return count_groups(jnp.where(place < number, drawn, -1), rows.shape[1])

    return jax.vmap(of_client)(jnp.arange(len(rows), dtype=jnp.int32), ends)


def _deal_unlabelled(key: Key[Array, ""], pool: Pool, each: int | None = None) -> Int[Array, " N"]:
    """Deals examples without a label evenly, all of them or so many to each client."""
    group = jnp.where(pool.available & (pool.labels < 0), 0, -1)
    if each is not None:
        return deal(key, group, jnp.full((pool.facts.num_clients, 1), each, jnp.int32))
    equal = jnp.ones((1, pool.facts.num_clients), jnp.float32)
    return deal(key, group, largest_remainder(equal, count_groups(group, 1)).T)


@partial(jax.jit, static_argnums=2)
def _dirichlet(key: Key[Array, ""], concentration: Float[Array, " k"], rows: int) -> Float[Array, "rows k"]:
    return jax.random.dirichlet(key, concentration, (rows,), jnp.float32)


@jax.jit
def _skip_full(shares: Float[Array, "K C"], totals: Int[Array, " K"]) -> Float[Array, "K C"]:
    """How many of every class each client gets, where those that hold an equal part by then get none."""
    num_clients = shares.shape[1]
    full = -(-totals.sum(dtype=jnp.int32) // num_clients)

    def deal_class(held: Int[Array, " C"], row: tuple[Float[Array, " C"], Int[Array, ""]]):
        # The floor splits a class evenly where the shares of all that are not full underflow.
        counts = largest_remainder(jnp.where(held < full, jnp.maximum(row[0], 1e-30), 0.0), row[1])
        return held + counts, counts

    return jax.lax.scan(deal_class, jnp.zeros(num_clients, jnp.int32), (shares, totals))[1].astype(jnp.float32)


@jax.jit
def _fit_margins(mixes: Float[Array, "C K"], totals: Float[Array, " K"]) -> Float[Array, "C K"]:
    """Scales columns to add up to `totals` and rows to equal parts, in turn (Deming and Stephan, 1940)."""

    def fit(_: Int[Array, ""], table: Float[Array, "C K"]) -> Float[Array, "C K"]:
        table = table * (totals / table.sum(axis=0))
        return table * (totals.sum() / mixes.shape[0] / table.sum(axis=1, keepdims=True))

    # The floor keeps every entry reachable when alpha is so small that most shares underflow.
    return jax.lax.fori_loop(0, 50, fit, jnp.maximum(mixes, 1e-9))


def _equal_bounds(facts: Facts) -> Bounds:
    return Bounds(facts.least // facts.num_clients, -(-facts.most // facts.num_clients))


def _balanced_choice(key: Key[Array, ""], num_classes: int, num_clients: int, classes: int) -> Int[Array, "C m"]:
    """`classes` different classes for every client, every class equally often to within one.

    Random permutations of all classes are laid end to end and cut into clients. A client whose cut lies
    across two permutations already has some classes from the first; the second then starts with others.
    """
    cycles = -(-num_clients * classes // num_classes)
    keys = jax.vmap(lambda cycle: jax.random.fold_in(key, cycle))(jnp.arange(cycles))
    carried = jnp.asarray([cycle * num_classes % classes for cycle in range(cycles)], jnp.int32)
    place = jnp.arange(num_classes, dtype=jnp.int32)

    def lay(previous: Int[Array, " K"], step: tuple[Key[Array, ""], Int[Array, ""]]):
        key, carry = step
        taken = jnp.zeros(num_classes, jnp.int32).at[previous].set((place >= num_classes - carry).astype(jnp.int32))
        head_key, tail_key = jax.random.split(key)
        first = rank_within(head_key, jnp.zeros_like(place), taken)
        later = (first >= classes - carry).astype(jnp.int32)
        position = rank_within(tail_key, jnp.zeros_like(place), later)
        permutation = jnp.zeros_like(place).at[position].set(place)
        return permutation, permutation

    _, sequence = jax.lax.scan(lay, place, (keys, carried))
    return sequence.reshape(-1)[: num_clients * classes].reshape(num_clients, classes)
