"""Draw the clients of a round by a sampler's name."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl.checks import In, check_choices, checked
from fedjax_ssl.own_code import check_returned, where
from fedjax_ssl.registry import Registry

QUOTAS = ("any", "proportional", "only")


class Cohort(NamedTuple):
    """The clients of one round in increasing order of id, so that sums over them do not depend on the draw's order."""

    ids: Int[Array, " p"]  # C in empty slots: gathers clamp it, scatters drop it
    valid: Bool[Array, " p"]  # False in slots for which no client was eligible


# (key, labelled examples per client, examples per client, slots p, labelled_quota) -> a cohort of p slots, traceable;
# see `sample_cohort`.
CohortSampler = Callable[[Key[Array, ""], Int[Array, " C"], Int[Array, " C"], int, str], Cohort]


def sample_cohort(
    key: Key[Array, ""],
    num_labelled: Int[Array, " C"],
    num_examples: Int[Array, " C"],
    size: int,
    labelled_quota: str = "proportional",
) -> Cohort:
    """Draws clients uniformly without replacement.

    Args:
        key: the round's key.
        num_labelled: labelled examples per client.
        num_examples: examples per client; clients without any never take part.
        size: slots p, at most C.
        labelled_quota: "any" ignores labels; "proportional" draws ceil(size * labelled clients / clients) clients that
            have labels and the rest from those that have none (XCLP section 5.3); "only" draws from clients with
            labels.

    Returns:
        A `Cohort` of `size` slots; slots stay empty when fewer clients are eligible.

    Raises:
        ValueError: if `size` is not in 1..C or the quota is unknown.
    """
    # 24 bits, which float32 holds exactly: on a CPU, selecting the largest is 20 times as fast as sorting integers.
    priority = (jax.random.bits(key, num_examples.shape) >> 8).astype(jnp.float32)
    return _highest(priority, num_labelled, num_examples, size, labelled_quota)


@checked
def by_size(power: Annotated[float, In("[0, inf)")] = 1.0) -> CohortSampler:
    """Clients with more examples are drawn more often, one after another without replacement.

    Args:
        power: power of the number of examples that the chance of being drawn next follows; 0 draws uniformly.

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
        return _highest(priority, num_labelled, num_examples, size, labelled_quota)

    return draw


def uniform() -> CohortSampler:
    """Clients are drawn uniformly without replacement."""
    return sample_cohort


COHORTS: Registry[CohortSampler] = Registry(
    "cohort sampler",
    {
        "uniform": (uniform, "clients are drawn uniformly, without replacement"),
        "by_size": (by_size, "clients with more examples are drawn more often, without replacement"),
    },
    makes=Callable,
    called_with=("key", "num_labelled", "num_examples", "size", "labelled_quota"),
)


def cohort_sampler(name: str, **options: Any) -> CohortSampler:
    """Looks up how cohorts are drawn.

    Args:
        name: name of `COHORTS`, or "module:function".
        **options: of the choice.

    Raises:
        ValueError: an unknown name or option; from the sampler: a cohort of another shape.
    """
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


def check_cohorts(name: str, options: Mapping[str, Any], num_labelled: Array, num_examples: Array, size: int) -> None:
    """Draws a hundred cohorts, and raises ValueError where one has a client that is not there, or one twice."""
    keys, clients = jax.random.split(jax.random.key(0), 100), num_examples.shape[0]
    draw, place = cohort_sampler(name, **options), where(COHORTS.builder(name))
    ids, valid = jax.vmap(lambda key: draw(key, num_labelled, num_examples, size, "any"))(keys)
    for drawn in map(np.compress, np.asarray(valid), np.asarray(ids)):
        if stray := sorted({*drawn[(drawn < 0) | (drawn >= clients)].tolist()}):
            raise ValueError(f"cohort sampler {name!r} draws client {stray[0]}; there are 0 to {clients - 1} ({place})")
        if len({*drawn.tolist()}) < len(drawn):
            raise ValueError(f"cohort sampler {name!r} draws a client twice in a round ({place})")


def _highest(
    priority: Float[Array, " C"],
    num_labelled: Int[Array, " C"],
    num_examples: Int[Array, " C"],
    size: int,
    labelled_quota: str,
) -> Cohort:
    """The eligible clients of highest priority, which is at least 0."""
    num_clients = num_examples.shape[0]
    if not 1 <= size <= num_clients:
        raise ValueError(f"cohort size is {size}; with {num_clients} clients it must be 1..{num_clients}")
    check_choices(QUOTAS, labelled_quota=labelled_quota)
    present = num_examples > 0
    labelled, unlabelled = present & (num_labelled > 0), present & (num_labelled == 0)
    if labelled_quota == "any":
        return _cohort([_draw(priority, present, jnp.asarray(size), size)], size, num_clients)
    if labelled_quota == "only":
        return _cohort([_draw(priority, labelled, jnp.asarray(size), size)], size, num_clients)
    total, with_labels = jnp.sum(present), jnp.sum(labelled)
    quota = -(-size * with_labels // jnp.maximum(total, 1))
    quota = jnp.clip(quota, size - jnp.sum(unlabelled), with_labels)
    drawn = [_draw(priority, labelled, quota, size), _draw(priority, unlabelled, size - quota, size)]
    return _cohort(drawn, size, num_clients)


def random_slots(
    key: Key[Array, ""], ids: Int[Array, " p"], valid: Bool[Array, " p"], num_clients: int
) -> Int[Array, " p"]:
    """The clients' places in a random order of the cohort, drawn by their ids.

    Empty slots stand for clients that were not drawn, those of the lowest ids, so that where everybody is drawn a
    client without examples changes nobody else's place.

    Args:
        key: typed PRNG key.
        ids: ids of the cohort, in increasing order, empty slots last.
        valid: False on empty slots.
        num_clients: C.

    Returns:
        A permutation of 0..p-1, int32.
    """
    drawn = jnp.zeros(num_clients, bool).at[jnp.where(valid, ids, num_clients)].set(True, mode="drop")
    with_absent = jnp.argsort(~drawn, stable=True)[: ids.shape[0]]
    order = jnp.argsort(jax.random.bits(key, (num_clients,))[with_absent], stable=True)
    return jnp.argsort(order).astype(jnp.int32)


def _draw(
    priority: Float[Array, " C"], eligible: Bool[Array, " C"], count: Int[Array, ""], size: int
) -> Int[Array, " size"]:
    """The `count` eligible clients of highest priority (the lower id among equals), C in the other slots."""
    highest, ids = jax.lax.top_k(jnp.where(eligible, priority, -1.0), size)
    taken = (highest >= 0) & (jnp.arange(size) < count)
    return jnp.where(taken, ids, priority.shape[0])


def _cohort(drawn: list[Int[Array, " size"]], size: int, num_clients: int) -> Cohort:
    ids = jnp.sort(jnp.concatenate(drawn))[:size].astype(jnp.int32)
    return Cohort(ids, ids < num_clients)
