"""Draw the clients of a round, by the name of a sampler."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from fedjax_ssl.checks import In, check_choices, checked
from fedjax_ssl.federated.contract import Cohort
from fedjax_ssl.registry import Registry

QUOTAS = ("any", "proportional", "only")  # from the widest draw to the narrowest
# With more clients than this, a draw does not look at all of them: it walks a keyed permutation of
# the ids.
MOST_IN_SIGHT = 1 << 12
_FEISTEL_ROUNDS = 12


# (key, labelled examples per client, examples per client, slots p, labelled_quota) -> a cohort of p
# slots, traceable; see `sample_cohort`.
CohortSampler = Callable[[Key[Array, ""], Int[Array, " C"], Int[Array, " C"], int, str], Cohort]


def sample_cohort(
    key: Key[Array, ""],
    num_labelled: Int[Array, " C"],
    num_examples: Int[Array, " C"],
    size: int,
    labelled_quota: str = "proportional",
) -> Cohort:
    """Draw clients uniformly without replacement.

    With more than `MOST_IN_SIGHT` clients, the draw takes the first ones of a pseudo-random
    permutation of the ids (Luby and Rackoff 1988; Black and Rogaway 2002), so that its time grows
    with the cohort and not with the federation.

    Args:
        key: the round's key.
        num_labelled: labelled examples per client.
        num_examples: examples per client; clients without any never take part.
        size: slots p, at most C.
        labelled_quota: "any" ignores labels; "proportional" draws ceil(size * labelled clients /
            clients) clients that have labels and the rest from those that have none (XCLP section
            5.3); "only" draws from clients with labels.

    Returns:
        A `Cohort` of `size` slots; slots stay empty when fewer clients are eligible.

    Raises:
        ValueError: if `size` is not in 1..C or the quota is unknown.
    """
    if num_examples.shape[0] > MOST_IN_SIGHT:
        walked = partial(_walk, jax.random.bits(key, (_FEISTEL_ROUNDS,)))
        return _by_quota(walked, num_labelled, num_examples, size, labelled_quota)
    # 24 bits, which float32 holds exactly: on a CPU, selecting the largest is 20 times as fast as
    # sorting integers.
    priority = (jax.random.bits(key, num_examples.shape) >> 8).astype(jnp.float32)
    return _by_quota(partial(_highest, priority), num_labelled, num_examples, size, labelled_quota)


@checked
def by_size(power: Annotated[float, In("[0, inf)")] = 1.0) -> CohortSampler:
    """Clients are drawn without replacement, those with more examples more often.

    Args:
        power: the chance to be drawn next is the number of examples to this power; 0 draws
            uniformly.

    Source: Efraimidis and Spirakis, Weighted random sampling with a reservoir, 2006.
    """

    def draw(
        key: Key[Array, ""],
        num_labelled: Int[Array, " C"],
        num_examples: Int[Array, " C"],
        size: int,
        labelled_quota: str,
    ) -> Cohort:
        weight = jnp.maximum(num_examples, 1).astype(jnp.float32) ** power
        drawn = jax.random.uniform(key, num_examples.shape, jnp.float32)
        # A power of the draw in (0, 1), as a logarithm that no large weight rounds to 0.
        priority = jnp.exp(jnp.log(jnp.maximum(drawn, 1e-7)) * (weight.mean() / weight))
        return _by_quota(
            partial(_highest, priority), num_labelled, num_examples, size, labelled_quota
        )

    return draw


def uniform() -> CohortSampler:
    """Clients are drawn uniformly without replacement."""
    return sample_cohort


COHORTS: Registry[CohortSampler] = Registry(
    "cohort sampler",
    {
        "uniform": (uniform, "clients are drawn uniformly, without replacement"),
        "by_size": (
            by_size,
            "clients with more examples are drawn more often, without replacement",
        ),
    },
    makes=Callable,
    called_with=("key", "num_labelled", "num_examples", "size", "labelled_quota"),
    given=("facts",),
)


def cohort_sampler(name: str, **options: Any) -> CohortSampler:
    """Build the sampler of cohorts that a config names.

    Args:
        name: name of `COHORTS`, or "module:function".
        **options: options of the sampler; and `facts`, sizes of the run, for a sampler with such a
            parameter.

    Raises:
        ValueError: an unknown name or option; from the sampler: a cohort of another shape.
    """
    from fedjax_ssl.own_code import check_returned  # a recipe does not need it

    draw = COHORTS.build(name, **options)

    def checked(
        key: Key[Array, ""],
        num_labelled: Int[Array, " C"],
        num_examples: Int[Array, " C"],
        size: int,
        labelled_quota: str,
    ) -> Cohort:
        cohort = draw(key, num_labelled, num_examples, size, labelled_quota)
        for field, kind in (("ids", np.integer), ("valid", np.bool_)):
            part = getattr(cohort, field, cohort)
            check_returned(f"{field} of cohort sampler {name!r}", draw, part, (size,), kind)
        return cohort

    return checked


def check_cohorts(
    name: str, options: Mapping[str, Any], num_labelled: Array, num_examples: Array, size: int
) -> None:
    """Draw a hundred cohorts. Raise ValueError if one has an unknown client, or a client twice."""
    from fedjax_ssl.own_code import where

    keys = jax.random.split(jax.random.key(0), 100)
    clients = num_examples.shape[0]
    draw = cohort_sampler(name, **options)
    place = where(COHORTS.builder(name))
    ids, valid = jax.vmap(lambda key: draw(key, num_labelled, num_examples, size, "any"))(keys)
    for drawn in map(np.compress, np.asarray(valid), np.asarray(ids)):
        if stray := sorted({*drawn[(drawn < 0) | (drawn >= clients)].tolist()}):
            raise ValueError(
                f"cohort sampler {name!r} draws client {stray[0]}; there are 0 to {clients - 1} "
                f"({place})"
            )
        if len({*drawn.tolist()}) < len(drawn):
            raise ValueError(f"cohort sampler {name!r} draws a client twice in a round ({place})")


def _by_quota(
    draw: Callable[[Bool[Array, " C"], Int[Array, ""], int], Int[Array, " size"]],
    num_labelled: Int[Array, " C"],
    num_examples: Int[Array, " C"],
    size: int,
    labelled_quota: str,
) -> Cohort:
    """Return a cohort drawn by `draw(eligible, count, size)`, which returns `count` ids and C in
    the other slots.
    """
    num_clients = num_examples.shape[0]
    if not 1 <= size <= num_clients:
        raise ValueError(
            f"cohort size is {size}; with {num_clients} clients it must be 1..{num_clients}"
        )
    check_choices(QUOTAS, labelled_quota=labelled_quota)
    present = num_examples > 0
    labelled = present & (num_labelled > 0)
    unlabelled = present & (num_labelled == 0)
    if labelled_quota == "any":
        return _cohort([draw(present, jnp.asarray(size), size)], size, num_clients)
    if labelled_quota == "only":
        return _cohort([draw(labelled, jnp.asarray(size), size)], size, num_clients)
    total = jnp.sum(present)
    with_labels = jnp.sum(labelled)
    if size * num_clients < np.iinfo(np.int32).max:
        quota = -(-size * with_labels // jnp.maximum(total, 1))
    else:
        quota = jnp.ceil(size * (with_labels / jnp.maximum(total, 1))).astype(total.dtype)
    quota = jnp.clip(quota, size - jnp.sum(unlabelled), with_labels)
    return _cohort(
        [draw(labelled, quota, size), draw(unlabelled, size - quota, size)], size, num_clients
    )


def random_slots(
    key: Key[Array, ""], ids: Int[Array, " p"], valid: Bool[Array, " p"], num_clients: int
) -> Int[Array, " p"]:
    """Return the clients' places in a random order of the cohort, drawn by their ids.

    Empty slots stand for the clients with the lowest ids that were not drawn. So if all clients are
    drawn, a client without examples does not change the place of another one.

    Args:
        key: typed PRNG key.
        ids: ids of the cohort, in increasing order, empty slots last.
        valid: False on empty slots.
        num_clients: C.

    Returns:
        A permutation of 0..p-1, int32.
    """
    slots = jnp.arange(ids.shape[0], dtype=jnp.int32)
    # enough ids to fill all slots with clients that were not drawn
    first = min(num_clients, 2 * ids.shape[0])
    drawn = jnp.zeros(first, bool).at[jnp.where(valid, ids, first)].set(True, mode="drop")
    absent = jnp.argsort(drawn, stable=True)[slots - valid.sum(dtype=jnp.int32)]
    with_absent = jnp.where(valid, ids, absent.astype(ids.dtype))
    if num_clients > MOST_IN_SIGHT:
        bits = jax.vmap(lambda client: jax.random.bits(jax.random.fold_in(key, client)))(
            with_absent
        )
    else:
        bits = jax.random.bits(key, (num_clients,))[with_absent]
    order = jnp.argsort(bits, stable=True)
    return jnp.argsort(order).astype(jnp.int32)


def _highest(
    priority: Float[Array, " C"], eligible: Bool[Array, " C"], count: Int[Array, ""], size: int
) -> Int[Array, " size"]:
    """Return the `count` eligible clients of highest priority, which is at least 0 (the lower id
    among equals).
    """
    highest, ids = jax.lax.top_k(jnp.where(eligible, priority, -1.0), size)
    taken = (highest >= 0) & (jnp.arange(size) < count)
    return jnp.where(taken, ids, priority.shape[0])


def _walk(
    keys: UInt32[Array, " r"], eligible: Bool[Array, " C"], count: Int[Array, ""], size: int
) -> Int[Array, " size"]:
    """Return the first `count` eligible clients of a permutation, walking it until they are
    found.
    """
    num_clients = eligible.shape[0]
    bits = (num_clients - 1).bit_length()
    step = max(2 * size, 256)

    def more(walk: tuple[Array, Array, Array]) -> Bool[Array, ""]:
        place, found, _ = walk
        return (found < count) & (place < 1 << bits)

    def go_on(walk: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        place, found, ids = walk
        # The permutation is over 2**bits numbers; numbers that are no client are skipped.
        here = _permuted(keys, place + jnp.arange(step, dtype=jnp.int32), bits)
        taken = (here < num_clients) & eligible[jnp.minimum(here, num_clients - 1)]
        slot = found + jnp.cumsum(taken, dtype=jnp.int32) - 1
        ids = ids.at[jnp.where(taken & (slot < count), slot, size)].set(here, mode="drop")
        return place + step, slot[-1] + 1, ids

    start = jnp.zeros((2,), jnp.int32)
    return jax.lax.while_loop(more, go_on, (*start, jnp.full(size, num_clients, jnp.int32)))[2]


def _permuted(keys: UInt32[Array, " r"], place: Int[Array, " n"], bits: int) -> Int[Array, " n"]:
    """Return the numbers at these places of a permutation of 0 to 2**bits - 1: a Feistel network of
    unequal halves.
    """
    low = bits // 2
    left = place.astype(jnp.uint32) >> low
    right = place.astype(jnp.uint32) & ((1 << low) - 1)
    for number, key in enumerate(keys):
        width = low if number % 2 else bits - low
        mixed = (right ^ key) * jnp.uint32(0x85EBCA6B)  # the finalizer of MurmurHash3
        mixed = (mixed ^ (mixed >> 13)) * jnp.uint32(0xC2B2AE35)
        before = left
        left = right
        right = before ^ ((mixed ^ (mixed >> 16)) >> (32 - width))
    return ((left << low) | right).astype(jnp.int32)


def _cohort(drawn: list[Int[Array, " size"]], size: int, num_clients: int) -> Cohort:
    ids = jnp.sort(jnp.concatenate(drawn))[:size].astype(jnp.int32)
    return Cohort(ids, ids < num_clients)
