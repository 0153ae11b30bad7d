"""Clients that are not there, drop out, do a part of their work, or are late.

Who is there, who drops out and who is slow is drawn by run, round and client, never by method, so
that methods with one seed lose the same clients. Shapes: C clients, p of a cohort.

References:
    Li et al., Federated optimization in heterogeneous networks (FedProx), MLSys 2020: clients that
    do a part of their epochs.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl.checks import check_choices
from fedjax_ssl.errors import ConfigError, UserError
from fedjax_ssl.federated.by_client import ClientNumbers, numbers_by_client
from fedjax_ssl.federated.client_states import without_examples
from fedjax_ssl.federated.clock import Clock
from fedjax_ssl.federated.cohort import Cohort
from fedjax_ssl.federated.late import Late, Lateness, arrive, parcel_of, split, unpacked
from fedjax_ssl.federated.messages import Arrivals, Sums
from fedjax_ssl.federated.method import Client, Metrics, Now, RoundContext, Schedule
from fedjax_ssl.federated.optimizers import mean_scale
from fedjax_ssl.federated.setup import Facts
from fedjax_ssl.federated.uploads.transform import UploadTransform, uncovered
from fedjax_ssl.keys import named_key

# When a client drops out: before it sends anything; once its codes were compared; once scores were
# propagated; after local training. Where a method compares nothing, the middle two are alike.
LOST_WHEN = ("start", "codes", "scores", "training")
BEFORE_TRAINING = ("codes", "scores")
WEIGHTS = ("renormalise", "fixed", "inverse")
COMMITS = ("ack", "local")
EPOCHS = "epochs"
_MAY_BE_LATE = ("update", "statistics", "weight")


class Fate(NamedTuple):
    """What becomes of a client that was to train."""

    lost: Bool[Array, ""]  # it trained, and nothing of it arrives
    rounds: Int[Array, ""]  # after which its upload arrives
    seconds: Float[Array, ""]  # that it took


class Beside(NamedTuple):
    """What is added up beside a cohort's uploads."""

    invited: dict[str, Float[Array, ""]]
    # ^ weights of all that trained, the lost among them, by group; "": of a client as a whole
    number: Int[Array, ""]  # uploads that arrived
    later: Any = ()  # `late.Parcel` of those that are due later, leading axis D


class Participation(NamedTuple):
    """How reliable clients are; `Setup.participation`, which is None where all of them are.

    Example:
        >>> from fedjax_ssl.federated import Facts, participation
        >>> facts = Facts(num_clients=10, cohort_size=10, rounds=100)
        >>> half = participation(facts, probability=0.5)
        >>> there = half.happens("available", half.probability, jax.random.key(0), jnp.int32(0),
        ...                      jnp.arange(10))
        >>> there.shape
        (10,)
    """

    probability: ClientNumbers | None = None  # that a client is there; None: always
    lost: ClientNumbers | None = None  # probability that it drops out; None: never
    lost_when: str = "training"  # of `LOST_WHEN`
    weights: str = "renormalise"  # of `WEIGHTS`
    commit: str = "ack"  # of `COMMITS`
    slow: ClientNumbers | None = None  # probability that it does a part of its work; None: never
    work: tuple[float, float] = (0.0, 1.0)  # share of its steps that a slow client takes
    whole_epochs: int | None = None
    # ^ in place of `work`: of so many epochs it does 1 to all but one
    lateness: Lateness | None = None  # which uploads are late; None: none
    clock: Clock | None = None  # how fast clients are; None: they take no time

    def happens(
        self,
        what: str,
        probability: ClientNumbers,
        run_key: Key[Array, ""],
        number: Int[Array, ""],
        ids: Int[Array, " n"],
    ) -> Bool[Array, " n"]:
        """Draw for each client whether something happens in a round.

        Args:
            what: tells these draws from others.
            probability: of each client.
            run_key: the run's.
            number: rounds before this one.
            ids: the clients'.
        """
        key = jax.random.fold_in(named_key(run_key, f"participation {what}"), number)
        drawn = jax.vmap(lambda client: jax.random.uniform(jax.random.fold_in(key, client)))(ids)
        return drawn < probability.of(run_key, number, ids)

    def available(self, run_key: Key[Array, ""], number: Int[Array, ""], clients: Client) -> Client:
        """Return all C clients, of which those that are not there have no examples."""
        if self.probability is None:
            return clients
        there = self.happens("available", self.probability, run_key, number, clients.id)
        return without_examples(clients, there)

    def remaining(
        self, run_key: Key[Array, ""], number: Int[Array, ""], cohort: Cohort, num_clients: int
    ) -> Cohort:
        """Return a cohort without the clients that are lost before they send anything: their slots
        are empty.
        """
        if self.lost is None or self.lost_when != "start":
            return cohort
        lost = self.happens("lost", self.lost, run_key, number, cohort.ids)
        ids = jnp.sort(jnp.where(cohort.valid & ~lost, cohort.ids, num_clients))
        return Cohort(ids, ids < num_clients)

    def left(self, context: RoundContext) -> Bool[Array, " p"] | None:
        """Return which clients of a cohort are lost between what they send first and their
        training; None where nobody ever is.
        """
        if self.lost is None or self.lost_when not in BEFORE_TRAINING:
            return None
        assert context.round is not None, "clients are drawn in rounds"
        return self.happens("lost", self.lost, context.run_key, context.round, context.clients.id)

    def staying(self, context: RoundContext) -> Client:
        """Return a cohort in which the clients of `left` have no examples."""
        left = self.left(context)
        return context.clients if left is None else without_examples(context.clients, ~left)

    def shortened(self, now: Now, client: Client, schedule: Schedule) -> Schedule:
        """Return the batches of a client, which takes the first of its steps where it is slow."""
        if self.slow is None:
            return schedule
        steps = schedule.num_steps
        key, number = _place(now)
        ids = client.id[None]
        slow = self.happens("slow", self.slow, key, number, ids)[0]
        own = jax.random.fold_in(jax.random.fold_in(named_key(key, "work"), number), client.id)
        if self.whole_epochs is None:
            share = jax.random.uniform(own, minval=self.work[0], maxval=self.work[1])
            taken = first_steps(share, steps)
        else:
            taken = jax.random.randint(own, (), 1, self.whole_epochs) * steps // self.whole_epochs
        return schedule._replace(num_steps=jnp.where(slow, taken, steps))

    def fate(
        self,
        now: Now,
        client: Client,
        trained: Bool[Array, ""],
        steps: Int[Array, ""],
        sent: Float[Array, ""] | float,
    ) -> Fate:
        """Draw what becomes of a client after its training.

        Args:
            now: the round.
            client: the client.
            trained: whether it trained; else it is neither lost nor late.
            steps: local steps that it took.
            sent: bytes that go down to it and up from it, where they take time.
        """
        place = _place(now)
        ids = client.id[None]
        lost = jnp.zeros((), bool)
        rounds = jnp.zeros((), jnp.int32)
        seconds = jnp.zeros(())
        if self.lost is not None and self.lost_when == "training":
            lost = self.happens("lost", self.lost, *place, ids)[0]
        if self.clock is not None:
            seconds = self.clock.seconds(*place, client.id, steps, sent)
            if self.clock.deadline is not None:
                lost = lost | (seconds > self.clock.deadline)
        if self.lateness is not None and self.lateness.delay is not None:
            rounds = self.lateness.delay.of(*place, ids)[0].astype(jnp.int32)
            if self.lateness.late is not None:
                late = self.happens("late", self.lateness.late, *place, ids)[0]
                rounds = jnp.where(late, rounds, 0)
        return Fate(lost & trained, jnp.where(trained & ~lost, rounds, 0), seconds)

    def weighed(
        self,
        now: Now,
        client: Client,
        summed: Sums,
        weights: dict[str, Float[Array, ""]],
        fate: Fate,
        counted: Bool[Array, ""],
    ) -> Sums:
        """Return what a client adds to the sums.

        Args:
            now: the round.
            client: the client.
            summed: its upload times its weight; 0 where it is lost.
            weights: its own, lost or not, as `Beside.invited`.
            fate: what becomes of it.
            counted: whether its upload arrives, now or later.
        """
        if self.weights == "inverse" and self.lost is not None:
            arrives = 1.0 - self.lost.of(*_place(now), client.id[None])[0]
            summed = _scaled(summed, dict.fromkeys(weights, mean_scale(arrives)))
        if self.lateness is None or not self.lateness.longest:
            return summed._replace(beside=Beside(weights, counted.astype(jnp.int32)))
        parcel = parcel_of(summed, weights, counted)
        parcel, later = split(parcel, fate.rounds, self.lateness)
        beside = Beside(parcel.invited, parcel.number, later)
        return unpacked(summed, parcel)._replace(beside=beside)

    def arrived(self, summed: Sums, late: Late | tuple[()]) -> tuple[Sums, Late | tuple[()]]:
        """Return what the server's step takes at the end of a round, and what is left for later."""
        if self.lateness is None:
            return self.averaged(summed), late
        assert isinstance(late, Late)
        invited, number, later = summed.beside
        parcel = parcel_of(summed, invited, number)
        parcel, late = arrive(self.lateness, late, parcel, later)
        summed = unpacked(summed, parcel)
        return self.averaged(summed._replace(beside=Beside(parcel.invited, parcel.number))), late

    def logged(self, context: RoundContext, stacked: Arrivals) -> Metrics:
        """Return what the log says of a cohort."""
        fate = stacked.fate
        lost = fate.lost
        if (left := self.left(context)) is not None:
            lost = lost | left
        lost = lost & context.valid
        late = context.valid & (fate.rounds > 0)
        info: Metrics = {"lost_clients": jnp.sum(lost, dtype=jnp.int32)}
        if self.lateness is not None:
            info["late_clients"] = jnp.sum(late, dtype=jnp.int32)
        if self.clock is not None:
            waited = context.valid & ~lost & ~late
            info["simulated_seconds"] = self.clock.of_round(fate.seconds, lost, waited)
        return info

    def check_sent(
        self,
        sent: Mapping[str, Sequence[str]],
        grouped: bool,
        uploads: Sequence[UploadTransform],
    ) -> None:
        """Raise ValueError where clients send what the settings cannot do with.

        Args:
            sent: what leaves clients, of `EVERYTHING` -> names of it; nothing where they train
                alone.
            grouped: whether parts of the cohort are averaged on their own.
            uploads: transforms of the run.
        """
        if self.lateness is not None:
            setting = "delay" if self.lateness.longest else "buffer"
            for one in uploads:
                if one.at_server is not None:
                    raise ConfigError(
                        f"config.participation.{setting} adds uploads of several rounds, and "
                        f"{one.name!r} is for the sum of one; leave one of them out"
                    )
            if not sent or grouped:
                raise ConfigError(
                    f"config.participation.{setting} is for clients that move one common model "
                    "(config.federated.name)"
                )
            _refuse(setting, uncovered(sent, _MAY_BE_LATE))
        if self.weights != "renormalise":
            _refuse("weights", {"report": sent.get("report", ())})

    def notes(self) -> list[str]:
        """Return what a user may not expect of these settings."""
        there = self.probability
        if self.weights != "inverse" or there is None or there.least == there.most:
            return []
        return [
            "config.participation.weights=inverse makes up for clients that are lost, not for "
            "those that are not there (config.participation.probability): who is there less often "
            "counts less"
        ]

    def averaged(self, summed: Sums) -> Sums:
        """Return sums over the arrivals whose means are taken over all that trained, where the
        weights say so.

        Whoever divides them by the weights of the arrivals gets sum_R w d / sum_cohort w.
        """
        if self.weights == "renormalise":
            return summed
        invited = summed.beside.invited
        arrived = {**summed.update.weight, "": summed.weight}
        return _scaled(summed, {g: arrived[g] * mean_scale(invited[g]) for g in invited})


def first_steps(share: Float[Array, ""], steps: Int[Array, ""]) -> Int[Array, ""]:
    """Return a share of a client's steps, rounded down: one at least, where it has any.

    Example:
        >>> [int(first_steps(jnp.float32(share), jnp.int32(95))) for share in (0, 0.05, 0.99)]
        [1, 4, 94]
    """
    taken = jnp.floor(share * steps.astype(share.dtype)).astype(steps.dtype)
    return jnp.maximum(taken, jnp.minimum(steps, 1))


def _refuse(setting: str, sent: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError where something is sent that a setting cannot do with."""
    if names := [name for part in sent.values() for name in part]:
        raise ConfigError(
            f"config.participation.{setting} is for updates and batch statistics alone, but "
            f"clients also send {', '.join(names)}; leave it out, or use another method or "
            "federated optimizer"
        )


def _place(now: Now) -> tuple[Key[Array, ""], Int[Array, ""]]:
    """Return the run's key and the round."""
    assert now.run_key is not None and now.round is not None, "clients train in rounds"
    return now.run_key, now.round


def _scaled(summed: Sums, factors: dict[str, Float[Array, ""]]) -> Sums:
    """Return sums with differences times a factor: by group, and of batch statistics by ""."""
    change = {
        group: jax.tree.map(partial(jnp.multiply, factors[group]), tree)
        for group, tree in summed.update.change.items()
    }
    return summed._replace(
        update=summed.update._replace(change=change),
        statistics=factors[""].astype(summed.statistics.dtype) * summed.statistics,
    )


def participation(
    facts: Facts,
    local_epochs: int | None = None,
    *,
    probability: float | Array | str | None = None,
    lost: float | Array | str | None = None,
    lost_when: str = "training",
    weights: str = "renormalise",
    commit: str = "ack",
    slow: float | Array | str | None = None,
    work: Sequence[float] | Sequence[str] | None = None,
    lateness: Lateness | None = None,
    clock: Clock | None = None,
) -> Participation | None:
    """Read how reliable clients are.

    Args:
        facts: clients and rounds of the run.
        local_epochs: of a client; None: local training is not in epochs.
        probability: that a client is there in a round; a cohort is drawn among those. This and the
            next ones are a number, a distribution or a file, see `numbers_by_client`.
        lost: probability that a client of the cohort drops out.
        lost_when: before it sends anything ("start"), once codes were compared ("codes"), once
            scores were propagated ("scores"), or after "training".
        weights: of the arrivals R: "renormalise", w_k / sum_R w; "fixed", w_k / sum_cohort w;
            "inverse", w_k / (pi_k sum_cohort w) with pi_k = 1 - lost. The last two shrink or
            stretch what the model and batch statistics move by.
        commit: "ack": a client that is lost after training goes back to what it kept before;
            "local": it keeps what it trained, but for what the federated optimizer keeps.
        slow: probability that a client does a part of its work.
        work: share of its steps that a slow client takes, at least one step: one number, or two
            between which it is drawn; ("epochs",): of E local epochs 1 to E - 1.
        lateness: which uploads are late, from `lateness`.
        clock: how fast clients are, from `clock`.

    Returns:
        None where every client is reliable.

    Raises:
        ValueError: a setting that cannot be used.
    """
    check_choices(LOST_WHEN, lost_when=lost_when)
    check_choices(WEIGHTS, weights=weights)
    check_choices(COMMITS, commit=commit)

    def read(name: str, given: float | Array | str | None, interval: str) -> ClientNumbers | None:
        return None if given is None else numbers_by_client(name, given, interval, facts)

    there = read("probability", probability, "[0, 1]")
    drops = read("lost", lost, "[0, 1]")
    part = read("slow", slow, "[0, 1]")
    if there is not None and there.most == 0:
        raise UserError("probability is 0 for every client, so that nobody is ever there")
    if drops is not None and drops.least == 1:
        raise UserError("lost is 1 for every client, so that nothing of anybody ever arrives")
    if weights != "renormalise" and drops is not None and lost_when != "training":
        raise UserError(
            f"weights is {weights!r}, which needs the weights of the clients that are lost; these "
            f"drop out before they have any (lost_when={lost_when!r}). Use lost_when='training', "
            "or weights='renormalise'"
        )
    if weights == "inverse" and clock is not None and clock.deadline is not None:
        raise UserError(
            "weights is 'inverse', which takes 1 - lost for the probability to arrive, and nobody "
            "knows that of missing the deadline; use renormalise or fixed, or leave the deadline "
            "out"
        )
    given = None if work is None else tuple(work)
    whole_epochs = local_epochs if given == (EPOCHS,) else None
    if given == (EPOCHS,) and (whole_epochs is None or whole_epochs < 2):
        raise UserError(
            "work is 'epochs', 1 to E - 1 of E local epochs, but local training has no two: give "
            "config.optimizer.local_epochs of at least 2, or work=0,1"
        )
    share: tuple[Any, ...] = given or (0.0, 1.0)
    if given == (EPOCHS,):
        share = (0.0, 1.0)
    if len(share) > 2 or share[0] > share[-1]:
        raise UserError(f"work is {given}; give one number, or two of which the first is not above")
    if all(one is None for one in (there, drops, part, lateness, clock)):
        return None
    how = Participation(there, drops, lost_when, weights, commit, part)
    return how._replace(
        work=(share[0], share[-1]), whole_epochs=whole_epochs, lateness=lateness, clock=clock
    )
