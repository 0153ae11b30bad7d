"""Uploads that come rounds after they were sent, and a server that waits for a number of them.

What is under way is a part of `ServerState`: sums of the uploads that are due in one round, in two,
and so on. How stale an upload is, is how often the server has stepped since the client was sent its
model: as many times as rounds went by, but where the server waits for a buffer. Shapes: D, the
longest delay.

References:
    Nguyen et al., Federated learning with buffered asynchronous aggregation (FedBuff), AISTATS
    2022: a step of the server every K arrivals, differences times (1 + staleness)^-1/2.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.checks import check_whole_numbers
from fedjax_ssl.errors import UserError
from fedjax_ssl.federated.by_client import ClientNumbers, numbers_by_client
from fedjax_ssl.federated.messages import Sums
from fedjax_ssl.federated.optimizers import Grouped
from fedjax_ssl.federated.setup import Facts

PyTree = Any
_WHOLE = "[0, 10000]"


class Lateness(NamedTuple):
    """Which uploads are late, and how many the server waits for."""

    delay: ClientNumbers | None = None  # rounds; None: no upload is late
    late: ClientNumbers | None = None  # probability that an upload is; None: each of them
    longest: int = 0  # D
    buffer: int | None = None  # K; None: the server steps in every round


class Parcel(NamedTuple):
    """Uploads in sum, with what a step of the server takes of them."""

    weight: dict[str, Float[Array, ""]]  # by group
    change: Grouped  # times the weight
    statistics: Float[Array, " s"]  # times the weight
    total: Float[Array, ""]  # sum of the clients' weights
    invited: dict[str, Float[Array, ""]]  # as `participation.Beside`
    number: Int[Array, ""]  # uploads


class Late(NamedTuple):
    """What the server has of earlier rounds."""

    coming: Parcel | tuple[()] = ()
    # ^ leading axis D: due in 1 to D rounds; with a buffer a second one D + 1: after 0 to D steps
    # of the server
    waiting: Parcel | tuple[()] = ()  # arrived since its last step


def lateness(
    facts: Facts,
    *,
    delay: float | Array | str | None = None,
    late: float | Array | str | None = None,
    buffer: int | None = None,
    longest: int | None = None,
) -> Lateness | None:
    """Read which uploads are late.

    Args:
        facts: clients and rounds of the run.
        delay: rounds that a late upload takes: a number, "uniform:LOW:HIGH" for a whole number
            drawn for each of them, or a file; see `numbers_by_client`. What clients moved by is
            taken times (1 + delay)^-1/2.
        late: probability that an upload is late, as there; None: each is.
        buffer: K. The server steps at the end of a round in which as many uploads lie there since
            its last step, with all of them; None: in every round.
        longest: D, for which there is room, at least the longest delay; runs with one D share their
            programs, and their delay may be traced. None: the longest delay.

    Returns:
        None where nothing is late and the server steps in every round.

    Raises:
        ValueError: a delay that is no whole number of rounds, or another setting that cannot be
            used.
    """
    if buffer is not None:
        check_whole_numbers(buffer=buffer)
    never = isinstance(delay, int | float) and delay == 0
    if delay is None or never:
        return None if buffer is None else Lateness(buffer=buffer)
    rounds, most = _rounds(delay, facts)
    if longest is not None and most > longest:
        raise UserError(f"delay is {delay}, and longest {longest}; give longest={most:g} or more")
    share = None if late is None else numbers_by_client("late", late, "[0, 1]", facts)
    return Lateness(rounds, share, longest or int(most), buffer)


def _rounds(delay: float | Array | str, facts: Facts) -> tuple[ClientNumbers, float]:
    """Read a delay in rounds, and the longest there is; 0 where it is not known."""
    rounds = numbers_by_client("delay", delay, _WHOLE, facts, each_round=True)
    if isinstance(delay, jax.Array):
        return rounds, 0
    form, *bounds = str(delay).split(":")
    if form in ("beta", "lognormal"):
        raise UserError(f"delay is {delay!r}; give rounds: a number, uniform:LOW:HIGH or a file")
    for bound in (rounds.least, rounds.most):
        if bound % 1:
            raise UserError(f"delay has {bound:g}; rounds are whole numbers")
    if form == "uniform":
        wider = f"uniform:{bounds[0]}:{rounds.most + 1}"
        drawn = numbers_by_client("delay", wider, _WHOLE, facts, each_round=True)
        rounds = rounds._replace(of=drawn.of)

    def whole(*place: Array) -> Array:
        return jnp.minimum(jnp.floor(rounds.of(*place)), rounds.most)

    return rounds._replace(of=whole), rounds.most


def parcel_of(summed: Sums, invited: dict[str, Float[Array, ""]], number: Array) -> Parcel:
    """Return what a step of the server takes of sums over so many uploads."""
    update = summed.update
    return Parcel(
        update.weight,
        update.change,
        summed.statistics,
        summed.weight,
        invited,
        number.astype(jnp.int32),
    )


def unpacked(summed: Sums, parcel: Parcel) -> Sums:
    """Return sums with what a parcel holds in place of theirs; `Sums.beside` is not touched."""
    update = summed.update._replace(weight=parcel.weight, change=parcel.change)
    return summed._replace(update=update, statistics=parcel.statistics, weight=parcel.total)


def split(parcel: Parcel, rounds: Int[Array, ""], how: Lateness) -> tuple[Parcel, Parcel]:
    """Return what is there of a client's upload at the end of its round, and what is due later.

    Args:
        parcel: its upload.
        rounds: after which it arrives; 0: in its own.
        how: what is late.

    Returns:
        (now, later with a leading axis D). Differences of later are times (1 + rounds)^-1/2, but
        where the server waits for a buffer: then only `arrive` knows how stale they are.
    """
    scaled = parcel
    if how.buffer is None:
        scaled = _times(jax.lax.rsqrt(1.0 + rounds.astype(parcel.total.dtype)), parcel)
    due = rounds == jnp.arange(1, how.longest + 1, dtype=rounds.dtype)

    def at_its_round(x: Array) -> Array:
        here = due.reshape(-1, *[1] * x.ndim)
        return jnp.where(here, x, jnp.zeros_like(x))

    now = jax.tree.map(lambda x: jnp.where(rounds == 0, x, jnp.zeros_like(x)), parcel)
    return now, jax.tree.map(at_its_round, scaled)


def _times(factor: Float[Array, ""], parcel: Parcel) -> Parcel:
    """Return a parcel with its differences times a factor."""
    return parcel._replace(
        change=jax.tree.map(lambda x: factor * x, parcel.change),
        statistics=factor.astype(parcel.statistics.dtype) * parcel.statistics,
    )


def nothing_yet(how: Lateness, shared: Grouped, statistics: Float[Array, " s"]) -> Late:
    """Return the state before the first round.

    Args:
        how: what is late.
        shared: shared parameters, by group.
        statistics: batch statistics, in one vector.
    """
    zero = jnp.zeros(())
    weights = dict.fromkeys(shared, zero)
    empty = Parcel(
        weights,
        jax.tree.map(jnp.zeros_like, shared),
        jnp.zeros_like(statistics),
        zero,
        {**weights, "": zero},
        jnp.zeros((), jnp.int32),
    )
    coming: Any = ()
    if how.longest:
        shape = (how.longest,) if how.buffer is None else (how.longest, how.longest + 1)
        coming = jax.tree.map(lambda x: jnp.zeros((*shape, *x.shape), x.dtype), empty)
    return Late(coming, () if how.buffer is None else empty)


def arrive(how: Lateness, state: Late, now: Parcel, later: PyTree) -> tuple[Parcel, Late]:
    """Return what the server's step takes at the end of a round, and what is left for later.

    Args:
        how: what is late.
        state: of the rounds before.
        now: of this round's uploads, those that are not late.
        later: the others, leading axis D.
    """
    coming = state.coming
    if how.longest:
        assert isinstance(coming, Parcel)
        due = jax.tree.map(lambda x: x[0], coming)
        coming = jax.tree.map(lambda x: jnp.concatenate([x[1:], jnp.zeros_like(x[:1])]), coming)
        if how.buffer is None:
            coming = jax.tree.map(jnp.add, coming, later)
        else:
            due = _of_all_ages(due)
            coming = jax.tree.map(lambda x, new: x.at[:, 0].add(new), coming, later)
        now = jax.tree.map(jnp.add, now, due)
    if how.buffer is None:
        return now, Late(coming)
    there = jax.tree.map(jnp.add, state.waiting, now)
    assert isinstance(there, Parcel)
    steps = there.number >= how.buffer

    def where(taken: Bool[Array, ""]) -> Parcel:
        found: Parcel = jax.tree.map(lambda x: jnp.where(taken, x, jnp.zeros_like(x)), there)
        return found

    def older(x: Array) -> Array:
        return jnp.where(steps, jnp.roll(x, 1, axis=1), x)

    return where(steps), Late(jax.tree.map(older, coming), where(~steps))


def _of_all_ages(due: Parcel) -> Parcel:
    """Return what arrives in sum; differences are times (1 + staleness)^-1/2.

    Args:
        due: leading axis D + 1, by steps of the server since the clients were sent their model.
    """
    ages = jnp.arange(due.total.shape[0], dtype=due.total.dtype)
    weighted = jax.vmap(_times)(jax.lax.rsqrt(1.0 + ages), due)
    total: Parcel = jax.tree.map(lambda x: jnp.sum(x, axis=0, dtype=x.dtype), weighted)
    return total
