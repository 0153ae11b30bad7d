"""FedRGD's partition: a share of every client is of a class of its own.

Source: the public code of "Improving semi-supervised federated learning by reducing the gradient diversity of models"
(Zhang et al., IEEE Big Data 2021, arXiv 2008.11364). Shapes: N training examples, B bases, K classes.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from fedjax_ssl.checks import check_choices, check_numbers
from fedjax_ssl.data.federation.dealing import count_groups, deal, deal_again, rank_within
from fedjax_ssl.data.federation.pool import Again, Bounds, Facts, Partition, Pool, deal_unlabelled, equal_bounds


def own_class(
    skew: float, own_part: Literal["size", "class"] = "size", cut: bool = True, reuse: bool = False
) -> Partition:
    """FedRGD's non-iid split: client c first gets examples of class c mod K, then of what all classes leave.

    With own_part="size", the share of its own class is skew + (1 - skew) / K on average, and the mean total variation
    distance of the class shares of two clients of different classes is `skew`, as far as the classes last: what a class
    lacks is made up from the others. 0 is `random`, up to a remainder that is dealt here too. No example is dealt
    twice, but with `reuse`.

    Args:
        skew: R in [0, 1], the part that is of the client's own class.
        own_part: R of the client's "size", and the rest at random (CIFAR-10, SVHN); or of the "class", and the rest in
            class proportions (EMNIST).
        cut: where the clients are a multiple of the classes, one part per class is dealt, and cut at random into equal
            parts for its clients (CIFAR-10, EMNIST); False: every client has exactly R of its own class (SVHN).
        reuse: as the authors' code deals SVHN: a class that runs out is dealt again, to further clients, so that as
            many examples of other classes stay unused; and after client K - 1 the classes go on with the second one.
            With own_part="size" and cut=False.
    """
    check_numbers("[0, 1]", skew=skew)
    check_choices(("size", "class"), own_part=own_part)
    if reuse and (cut or own_part != "size"):
        raise ValueError("reuse deals to every client R of its own size: it needs own_part='size' and cut=False")

    def own_parts(pool: Pool) -> _OwnParts:
        facts = pool.facts
        parts = facts.num_clients // facts.num_classes if cut and facts.num_clients % facts.num_classes == 0 else 1
        bases = facts.num_clients // parts
        group = jnp.where(pool.available & (pool.labels >= 0), pool.labels, -1)
        totals, number = count_groups(group, facts.num_classes), jnp.sum(group >= 0, dtype=jnp.int32)
        base = jnp.arange(bases, dtype=jnp.int32)
        size, kind = number // bases + (base < number % bases).astype(jnp.int32), base % facts.num_classes
        if reuse and facts.num_classes > 1:
            later = 1 + (base - facts.num_classes) % (facts.num_classes - 1)
            kind = jnp.where(base < facts.num_classes, base, later)
        of_kind = jnp.sum(kind == kind[:, None], axis=1, dtype=jnp.int32)
        asked = skew * (size if own_part == "size" else totals[kind] / of_kind).astype(jnp.float32)
        asked = jnp.floor(asked + 1e-4).astype(jnp.int32)
        before = jnp.sum(jnp.where((kind == kind[:, None]) & (base < base[:, None]), asked, 0), axis=1, dtype=jnp.int32)
        own = jnp.where(totals[kind] > 0, asked, 0) if reuse else jnp.clip(totals[kind] - before, 0, asked)
        counts = jnp.where(kind[:, None] == jnp.arange(facts.num_classes, dtype=jnp.int32), own[:, None], 0)
        return _OwnParts(parts, bases, group, size, own, counts.astype(jnp.int32))

    def assign(key: Key[Array, ""], pool: Pool) -> Int[Array, " N"]:
        own_key, rest_key, cut_key, unlabelled_key = jax.random.split(key, 4)
        parts, bases, group, size, own, counts = own_parts(pool)
        labelled = group >= 0
        dealt = deal(own_key, group, counts)
        rest = labelled & (dealt < 0)
        if own_part == "size":
            others = deal(rest_key, jnp.where(rest, 0, -1), (size - own)[:, None].astype(jnp.int32))
        else:
            others = rank_within(rest_key, jnp.where(rest, 0, -1), group) % bases
        dealt = jnp.where(rest, others, dealt)
        if parts > 1:
            dealt = dealt + bases * (rank_within(cut_key, dealt) % parts)
        return jnp.where(labelled, dealt, deal_unlabelled(unlabelled_key, pool))

    def again(key: Key[Array, ""], pool: Pool) -> Again:
        own = own_parts(pool)
        return Again(*deal_again(jax.random.split(key, 4)[0], own.group, own.counts))

    def bounds(facts: Facts) -> Bounds:
        equal = equal_bounds(facts)
        if own_part == "size":
            return Bounds(max(equal.smallest - 1, 0), equal.largest + 1)
        return Bounds(0, min(equal.largest + max(facts.class_counts) + 2, facts.most))

    return Partition(assign, bounds, again=again if reuse else None)


class _OwnParts(NamedTuple):
    """What `own_class` deals first, to B bases of several clients each."""

    parts: int  # clients of a base
    bases: int
    group: Int[Array, " N"]  # class of every example of the pool that has one
    size: Int[Array, " B"]
    own: Int[Array, " B"]  # examples of the base's own class
    counts: Int[Array, "B K"]  # the same by class
