"""Partitions: the assignment of training examples to clients.

Every partition uses ranks and counts instead of loops over examples, so it can be traced: the same
function runs on one key or inside `jit(vmap(...))` over many. Shapes: N training examples, C
clients, K classes. Examples that are not in the pool (held out for test, validation or the server)
get client -1. Examples without a class label (label -1 in the dataset) are dealt evenly to all
clients by every partition.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedjax_ssl.data.federation.dealing import (
    Ids,
    count_groups,
    equal_part,
    int_range,
    largest_remainder,
    level,
    rank_within,
    running_sum,
)
from fedjax_ssl.data.federation.pool import (
    Count,
    CountOrNone,
    Facts,
    Partition,
    Pool,
    Positive,
    class_or_unlabelled,
    deal_classes,
    deal_unlabelled,
)
from fedjax_ssl.data.federation.published_partitions import PUBLISHED
from fedjax_ssl.keys import PRNGKey
from fedjax_ssl.registry import Registry


def natural() -> Partition:
    """Use the dataset's own clients; if `num_clients` is smaller, a random subset of them, and the
    other data are unused.
    """

    def assign(key: PRNGKey, pool: Pool) -> Ids:
        chosen = int_range(pool.facts.num_natural)
        if pool.facts.num_clients < pool.facts.num_natural:
            chosen = _permutation(key, pool.facts.num_natural)
        kept = chosen < pool.facts.num_clients
        number = jnp.where(kept, running_sum(kept) - 1, -1)
        return jnp.where(pool.available & (pool.natural >= 0), number[pool.natural], -1)

    return Partition(assign)


def iid() -> Partition:
    """Stratified equal parts: client sizes and every class's counts differ by at most one
    between clients.
    """

    def assign(key: PRNGKey, pool: Pool) -> Ids:
        group = class_or_unlabelled(pool)
        order_key, seat_key = jax.random.split(key)
        place = rank_within(order_key, jnp.where(group >= 0, 0, -1), group)
        seats = _permutation(seat_key, pool.facts.num_clients)
        return jnp.where(group >= 0, seats[place % pool.facts.num_clients], -1)

    return Partition(assign)


def random() -> Partition:
    """Equal parts drawn at random, regardless of class, as in SemiFL and FedUL; a remainder below
    one example per client is unused.
    """

    def assign(key: PRNGKey, pool: Pool) -> Ids:
        rank = rank_within(key, jnp.where(pool.available, 0, -1))
        size = pool.available.sum(dtype=jnp.int32) // pool.facts.num_clients
        client = rank // jnp.maximum(size, 1)
        return jnp.where(pool.available & (client < pool.facts.num_clients), client, -1)

    return Partition(assign)


def dirichlet(
    alpha: Positive,
    min_examples: CountOrNone = 1,
    skip_full: bool = False,
) -> Partition:
    """Each class is split over the clients with shares drawn from Dir(alpha) (Yurochkin et al.,
    ICML 2019).

    Drawing again until every client has enough can loop forever. Here, clients below `min_examples`
    get examples from larger clients instead.

    Args:
        alpha: concentration, small = uneven.
        min_examples: fewest examples of a client.
        skip_full: deal classes in turn, and give nothing of the next class to a client that already
            holds an equal part of all examples (SemiFL, FedMT).
    """

    def assign(key: PRNGKey, pool: Pool) -> Ids:
        facts = pool.facts
        check(facts)
        share_key, deal_key, level_key = jax.random.split(key, 3)
        concentration = jnp.full(facts.num_clients, alpha, jnp.float32)
        shares = jax.random.dirichlet(share_key, concentration, (facts.num_classes,), jnp.float32)
        if skip_full:
            shares = _skip_full(shares, count_groups(pool.classes, facts.num_classes))
        client = deal_classes(deal_key, pool, shares.T)
        return level(level_key, client, facts.num_clients, min_examples, client.shape[0])

    def check(facts: Facts) -> None:
        needed = min_examples * facts.num_clients
        if needed > facts.least:
            raise ValueError(
                f"min_examples={min_examples} for {facts.num_clients} clients needs {needed} "
                f"training examples, there are {facts.least}; lower min_examples or num_clients"
            )

    return Partition(assign)


def dirichlet_balanced(alpha: Positive) -> Partition:
    """Clients of equal size whose class mixes are drawn from Dir(alpha * class frequencies) (Hsu et
    al., 2019).

    In the original, clients draw in turn until classes run out, and the last clients get leftovers.
    Here all mixes are scaled together to the class totals and to equal sizes (iterative
    proportional fitting).

    Args:
        alpha: total concentration; small = uneven.
    """

    def assign(key: PRNGKey, pool: Pool) -> Ids:
        facts = pool.facts
        totals = count_groups(pool.classes, facts.num_classes).astype(jnp.float32)
        prior = jnp.asarray(facts.class_counts, jnp.float32)
        concentration = jnp.maximum(alpha * prior / prior.sum(), 1e-6)
        mix_key, deal_key, level_key = jax.random.split(key, 3)
        mixes = jax.random.dirichlet(mix_key, concentration, (facts.num_clients,), jnp.float32)
        client = deal_classes(deal_key, pool, _fit_margins(mixes, totals))
        size = count_groups(jnp.where(client >= 0, 0, -1), 1)[0]
        smallest = size // facts.num_clients
        return level(level_key, client, facts.num_clients, smallest, -(-size // facts.num_clients))

    return Partition(assign)


def shards(shards_per_client: Count = 2) -> Partition:
    """Sort examples by label and cut them into equal shards; each client gets some at random
    (McMahan et al., 2017).

    Args:
        shards_per_client: number of shards of a client; it sees about as many classes.
    """

    def assign(key: PRNGKey, pool: Pool) -> Ids:
        facts = pool.facts
        num_shards = facts.num_clients * shards_per_client
        labelled = pool.classes >= 0
        order_key, owner_key, unlabelled_key = jax.random.split(key, 3)
        sorted_place = rank_within(order_key, jnp.where(labelled, 0, -1), pool.labels)
        shard = equal_part(sorted_place, labelled.sum(dtype=jnp.int32), num_shards)
        owner = _permutation(owner_key, num_shards) // shards_per_client
        return jnp.where(labelled, owner[shard], deal_unlabelled(unlabelled_key, pool))

    return Partition(assign)


def classes_per_client(classes: Count = 2) -> Partition:
    """Every client has exactly `classes` classes, and every class goes to equally many clients
    (within one).

    Only classes with examples in the dataset take part. A class's examples are split evenly over
    its clients.

    Args:
        classes: number of classes of a client.
    """

    def present_in(facts: Facts) -> np.ndarray:
        present = np.flatnonzero(np.asarray(facts.class_counts))
        if classes > present.size:
            raise ValueError(
                f"classes={classes} per client, but the training data have {present.size} classes"
            )
        if facts.num_clients * classes < present.size:
            raise ValueError(
                f"{facts.num_clients} clients with {classes} classes each cannot hold all "
                f"{present.size} classes; raise classes or num_clients"
            )
        return present

    def assign(key: PRNGKey, pool: Pool) -> Ids:
        facts = pool.facts
        present = jnp.asarray(present_in(facts), jnp.int32)
        choice_key, deal_key = jax.random.split(key)
        chosen = _balanced_choice(choice_key, present.size, facts.num_clients, classes)
        member = jnp.zeros((facts.num_clients, facts.num_classes), jnp.float32)
        member = member.at[jnp.arange(facts.num_clients)[:, None], present[chosen]].set(1.0)
        return deal_classes(deal_key, pool, member)

    return Partition(assign)


_GENERAL = (natural, iid, random, dirichlet, dirichlet_balanced, shards, classes_per_client)
PARTITIONS: Registry[Partition] = Registry(
    "partition",
    {rule.__name__: rule for rule in (*_GENERAL, *PUBLISHED)},
    given=("facts",),
    common={"num_clients": int, "pooled": bool},
    makes=Partition,
)


def _permutation(key: PRNGKey, size: int) -> Int[Array, " size"]:
    return rank_within(key, jnp.zeros(size, jnp.int32))


@jax.jit
def _skip_full(shares: Float[Array, "K C"], totals: Int[Array, " K"]) -> Float[Array, "K C"]:
    """Return the counts of every class that each client gets, 0 for clients that already hold an
    equal part.
    """
    num_clients = shares.shape[1]
    full = -(-totals.sum(dtype=jnp.int32) // num_clients)

    def deal_class(held: Int[Array, " C"], row: tuple[Float[Array, " C"], Int[Array, ""]]):
        # The floor splits a class evenly if the shares of all clients that are not full underflow.
        counts = largest_remainder(jnp.where(held < full, jnp.maximum(row[0], 1e-30), 0.0), row[1])
        return held + counts, counts

    return jax.lax.scan(deal_class, jnp.zeros(num_clients, jnp.int32), (shares, totals))[1].astype(
        jnp.float32
    )


@jax.jit
def _fit_margins(mixes: Float[Array, "C K"], totals: Float[Array, " K"]) -> Float[Array, "C K"]:
    """Scale columns to add up to `totals` and rows to equal parts, in turn (Deming and Stephan,
    1940).
    """

    def fit(_: Int[Array, ""], table: Float[Array, "C K"]) -> Float[Array, "C K"]:
        table = table * (totals / table.sum(axis=0))
        return table * (totals.sum() / mixes.shape[0] / table.sum(axis=1, keepdims=True))

    # The floor keeps every entry reachable when alpha is so small that most shares underflow.
    return jax.lax.fori_loop(0, 50, fit, jnp.maximum(mixes, 1e-9))


def _balanced_choice(
    key: PRNGKey, num_classes: int, num_clients: int, classes: int
) -> Int[Array, "C m"]:
    """Choose `classes` different classes for every client, every class equally often to within
    one.

    Random permutations of all classes are laid end to end and cut into clients. A client whose cut
    lies across two permutations already has some classes from the first; the second then starts
    with others.
    """
    cycles = -(-num_clients * classes // num_classes)
    keys = jax.vmap(lambda cycle: jax.random.fold_in(key, cycle))(jnp.arange(cycles))
    carried = jnp.asarray([cycle * num_classes % classes for cycle in range(cycles)], jnp.int32)
    place = int_range(num_classes)

    def lay(previous: Int[Array, " K"], step: tuple[PRNGKey, Int[Array, ""]]):
        key, carry = step
        taken = (
            jnp.zeros(num_classes, jnp.int32)
            .at[previous]
            .set((place >= num_classes - carry).astype(jnp.int32))
        )
        head_key, tail_key = jax.random.split(key)
        first = rank_within(head_key, jnp.zeros_like(place), taken)
        later = (first >= classes - carry).astype(jnp.int32)
        position = rank_within(tail_key, jnp.zeros_like(place), later)
        permutation = jnp.zeros_like(place).at[position].set(place)
        return permutation, permutation

    _, sequence = jax.lax.scan(lay, place, (keys, carried))
    return sequence.reshape(-1)[: num_clients * classes].reshape(num_clients, classes)
