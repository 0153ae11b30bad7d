"""The contract of partitions and supervisions: examples to deal, dealt examples, and shared rules.

Shapes: N training examples, C clients, K classes, E entries dealt to clients.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.checks import In, Whole
from fedjax_ssl.data.federation.dealing import (
    Ids,
    Mask,
    count_groups,
    deal,
    largest_remainder,
    rank_within,
)
from fedjax_ssl.keys import PRNGKey

# Options of partitions and supervisions.
Count = Annotated[int, Whole()]  # at least 1
CountOrNone = Annotated[int, Whole(0)]
Positive = Annotated[float, In("(0, inf)")]


@dataclasses.dataclass(frozen=True)
class Pool:
    """The training examples to deal, and the facts about them before any key is drawn."""

    labels: Ids  # -1 = no label exists
    available: Mask  # False if held out
    natural: Ids  # natural client 0..G-1, -1 = held out or none
    facts: "Facts"

    @property
    def classes(self) -> Ids:
        """Class of every example of the pool with a class, -1 elsewhere."""
        return jnp.where(self.available & (self.labels >= 0), self.labels, -1)


class Facts(NamedTuple):
    """Facts that hold for every key, as Python numbers, so that shapes may depend on them."""

    num_clients: int
    num_classes: int
    class_counts: tuple[int, ...]  # [K] examples of each class, at most
    num_unlabelled: int  # examples without a label, at most
    num_natural: int  # G, natural clients that are not held out
    least: int  # least number of examples in the pool
    most: int  # largest number


class Again(NamedTuple):
    """Examples that have an owner and are dealt once more, M in all, to another client or the same
    one.
    """

    client: Int[Array, " M"]  # -1 = nothing is dealt
    row: Int[Array, " M"]  # row of the training examples


class Partition(NamedTuple):
    """`assign(key, pool)` -> client of every example, int32 [N]."""

    assign: Callable[[PRNGKey, Pool], Ids]
    parts: int = 1
    # ^ parts in which clients' unlabelled examples arrive, see
    # `fedjax_ssl.data.federation.streaming`
    rounds_per_part: int | None = None  # None: rounds of the run // parts
    labelled: Callable[[PRNGKey, Pool], Mask] | None = None
    # ^ (the key of `assign`, pool) -> mask of examples dealt as labelled ones, for the supervision
    # "dealt"
    again: Callable[[PRNGKey, Pool], Again] | None = None
    # ^ (the key of `assign`, pool) -> examples that are dealt again


class Entries(NamedTuple):
    """Training examples as dealt to clients."""

    client: Int[Array, " E"]  # -1 = no entry
    row: Int[Array, " E"]  # row of the training examples
    observation: Int[Array, " E"]  # -1 = none
    labelled: Bool[Array, " E"] | None = None
    # ^ the client sees the class label of this entry; None: not yet decided


class OwnWeakLabels(NamedTuple):
    """Weak labels that came with the dataset; None for kinds that it lacks."""

    coarse: Int[np.ndarray, " N"] | None = None
    num_coarse: int = 0
    correspondence: Float[np.ndarray, "*G J K"] | None = None
    # ^ P(coarse label | class); None: unknown
    sets: Int[np.ndarray, " N"] | None = None  # numbered within each natural client, -1 = in no set
    set_shares: Float[np.ndarray, "G O K"] | None = None
    # ^ class shares of each natural client's sets, 0 on padding


class Holdings(NamedTuple):
    """The dealt training examples, before labels are hidden; examples that are dealt again follow
    the N others.
    """

    client: Ids  # -1 = none
    labels: Ids  # -1 = no label exists
    members: Bool[Array, " C"]  # clients to which a rule applies
    num_classes: int
    own: OwnWeakLabels = OwnWeakLabels()
    labelled: Mask | None = None
    # ^ dealt as labelled ones, if the partition separates them

    @property
    def eligible(self) -> Mask:
        """Examples of the members that have a label."""
        return (self.client >= 0) & (self.labels >= 0) & self.members[self.client]

    @property
    def cell(self) -> Ids:
        """The (client, class) cell of every eligible example, -1 elsewhere."""
        return jnp.where(self.eligible, self.client * self.num_classes + self.labels, -1)


def check_class_counts(
    class_counts: Sequence[float] | Float[np.ndarray, " K"],
    asked: int | Int[np.ndarray, " K"],
    who: str,
    what_to_do: str,
) -> None:
    """Check that there are enough examples of every class.

    Args:
        class_counts: examples of each class.
        asked: needed examples of each class, or one number for all classes.
        who: start of the message: the owner of these examples.
        what_to_do: end of the message: advice.

    Raises:
        ValueError: some class has fewer examples.
    """
    for kind, (wanted, there) in enumerate(
        zip(np.resize(asked, len(class_counts)), class_counts, strict=True)
    ):
        if wanted > there:
            raise ValueError(
                f"{who} {wanted} examples of class {kind}, but there are {int(there)} to take "
                f"them from; {what_to_do}"
            )


def class_or_unlabelled(pool: Pool) -> Ids:
    """Return the class of every example of the pool, K for an example without a label, -1 outside
    the pool.
    """
    group = jnp.where(pool.labels >= 0, pool.labels, pool.facts.num_classes)
    return jnp.where(pool.available, group, -1)


def deal_classes(key: PRNGKey, pool: Pool, shares: Float[Array, "C K"]) -> Ids:
    """Split every class by its column of `shares`, and examples without a label evenly."""
    num_clients, num_classes = shares.shape
    group = class_or_unlabelled(pool)
    totals = count_groups(group, num_classes + 1)
    tie_key, deal_key = jax.random.split(key)
    counts = largest_remainder(shares.T, totals[:num_classes], tie_key)
    even = largest_remainder(jnp.ones((1, num_clients), jnp.float32), totals[num_classes:])
    return deal(deal_key, group, jnp.concatenate([counts, even]).T)


def deal_unlabelled(key: PRNGKey, pool: Pool, each: int | None = None) -> Ids:
    """Deal examples without a label evenly: all of them, or `each` to every client."""
    group = jnp.where(pool.available & (pool.labels < 0), 0, -1)
    if each is not None:
        return deal(key, group, jnp.full((pool.facts.num_clients, 1), each, jnp.int32))
    equal = jnp.ones((1, pool.facts.num_clients), jnp.float32)
    return deal(key, group, largest_remainder(equal, count_groups(group, 1)).T)


def in_parts(key: PRNGKey, entries: Entries, labels: Ids, parts: int, facts: Facts) -> Entries:
    """Cut every client's unlabelled examples into consecutive parts with the same class counts.

    For every class with n unlabelled examples at a client, a random floor(n / parts) go to each
    part, and the rest is unused. So all parts of a client have the same size. Examples of unknown
    class count as a class of their own.
    """
    assert entries.labelled is not None
    streamed = (entries.client >= 0) & ~entries.labelled
    kinds = facts.num_classes + 1
    kind = labels[entries.row] % kinds  # the last kind: unknown class
    cell = jnp.where(streamed, entries.client * kinds + kind, -1)
    each = count_groups(cell, facts.num_clients * kinds)[cell] // parts
    part = rank_within(key, cell) // jnp.maximum(each, 1)
    part = jnp.where((each == 0) | (part >= parts), -1, part)
    entries = entries._replace(client=jnp.where(streamed & (part < 0), -1, entries.client))
    order = jnp.argsort(jnp.where(streamed, part, 0), stable=True)
    return jax.tree.map(lambda values: values[order], entries)
