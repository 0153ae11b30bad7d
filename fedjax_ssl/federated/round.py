"""One round: who takes part, what is sent, local training, averaging, what is kept, and what the
log says of it.
"""

from collections.abc import Callable
from functools import partial, reduce
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl.data import FederatedData, LoadedInputs, NotLoaded
from fedjax_ssl.federated.client import AVERAGE, ClientUpdate
from fedjax_ssl.federated.client_states import (
    all_clients,
    clients_of,
    gather_states,
    merge_states,
    part_of,
    server_as_client,
    without_examples,
    write_states,
)
from fedjax_ssl.federated.cohort import Cohort, random_slots
from fedjax_ssl.federated.execution import Execution, place_clients
from fedjax_ssl.federated.local_training import LocalTraining
from fedjax_ssl.federated.messages import Arrivals, ClientLog, Download, Sums
from fedjax_ssl.federated.method import (
    Broadcast,
    Client,
    ClientKind,
    Kept,
    Metrics,
    Now,
    RoundContext,
    RoundResult,
    ServerState,
    ServerTraining,
    Stage,
    Validation,
    all_members,
)
from fedjax_ssl.federated.optimizers import fedavg, mean_scale
from fedjax_ssl.federated.packing import cut, packing
from fedjax_ssl.federated.placement import train_cohort
from fedjax_ssl.federated.round_log import Clients, bytes_sent, with_server, work_done
from fedjax_ssl.federated.setup import Setup
from fedjax_ssl.federated.traffic import BYTES_PER_NUMBER, count, entries
from fedjax_ssl.federated.uploads.sums import combined
from fedjax_ssl.federated.uploads.transform import identity
from fedjax_ssl.keys import named_key

PyTree = Any
# metric of a round: models of its clients before they are averaged, a tree
CLIENT_MODELS = "client_models"


class Turn(NamedTuple):
    """Local training of a round, and what it starts from."""

    training: LocalTraining  # parts that stay the same over the rounds
    context: RoundContext  # the round before anything was sent
    state: ServerState  # before the round
    data: FederatedData
    learning_rate: Float[Array, ""]
    join: Callable[[Sums], Sums] = lambda clients: clients
    # ^ adds what trains beside the clients to their sums


class Task(NamedTuple):
    """Clients of one kind, what they do, and where."""

    kind: ClientKind
    members: Bool[Array, " p"]
    place: Callable[..., tuple[Sums, Arrivals]]
    # ^ (update of, download, clients, valid) -> (summed, stacked)


class Results(NamedTuple):
    """Results of the clients, or of one kind of them."""

    summed: Sums
    stacked: Arrivals


class Trained(NamedTuple):
    """A cohort after local training."""

    download: Download  # message to all clients
    context: RoundContext  # the round with what each client was sent
    sent: dict[str, Broadcast]  # by term
    results: list[Results]  # by kind


def run_round(
    setup: Setup,
    training: LocalTraining,
    stage: Stage,
    start: int,
    run_key: Key[Array, ""],
    state: ServerState,
    data: FederatedData,
    execution: Execution,
) -> tuple[ServerState, Metrics]:
    """One round of a stage.

    Args:
        setup: the run.
        training: parts of local training that stay the same over the rounds.
        stage: stage of this round.
        start: rounds before the stage.
        run_key: the run's.
        state: before the round.
        data: the federation.
        execution: where the clients run.
    """
    training = training._replace(keep_models=execution.keep_models)
    key = _round_key(run_key, state.round)
    part = part_of(data, state.round, setup.rounds)
    federation = all_clients(data, part)
    drawn = None
    if isinstance(data.inputs, LoadedInputs):
        drawn = data.inputs.drawn
        federation = federation._replace(rows=cast(Array, NotLoaded(federation.rows.shape)))
    if drawn is None or not stage.trains_clients:
        cohort = draw_cohort(setup, stage, run_key, state.round, federation)
    else:  # not drawn again: the examples of these clients are there, and no others
        cohort = Cohort(*(table[state.round - drawn.first] for table in (drawn.ids, drawn.valid)))
    slots = random_slots(named_key(key, "slots"), cohort.ids, cohort.valid, data.num_clients)

    def turn(state: ServerState) -> Turn:
        clients = clients_of(data, cohort.ids, cohort.valid, part)
        kept = gather_states(state.clients, cohort.ids, slots if training.keep_by_slot else None)
        context = RoundContext(
            key=key,
            run_key=run_key,
            number=state.round - start,
            round=state.round,
            clients=clients._replace(kept=kept),
            valid=cohort.valid,
            all_clients=federation._replace(kept=state.clients),
            params=training.combine(state.params),
            groups=state.params,
            model_state=state.model_state,
            inputs=data.inputs,
            validation=_validation(data),
            slots=slots,
        )
        return Turn(training, context, state, data, rate)

    rate = setup.learning_rate(state.round - start)
    before = state
    server = stage.server
    logs: list[Metrics] = []
    if server is not None and "before" in server.when:
        state, log = train_at_server(turn(state), server, "server before")
        logs.append(log)
    info: Metrics = {}
    if stage.trains_clients:
        train = partial(_train_clients, stage, execution)
        if stage.around_clients is not None:
            state, info = stage.around_clients(turn(state), stage, train)
        else:
            state, info = train(turn(state))
    if server is not None and "after" in server.when:
        state, log = train_at_server(turn(state), server)
        logs.append(log)
    info = reduce(with_server, logs, info)
    if training.average_optimizer:
        info = {"optimizer_state_bytes": count(0), **info}
    info["learning_rate"] = (
        jnp.full_like(rate, jnp.nan) if getattr(training.optimizer, "own_rate", False) else rate
    )
    # A transform may have to do with every sum, also one of nobody: the noise of privacy.
    alone = training.uploads.at_server is None
    participation = setup.participation
    if participation and stage.trains_clients and alone:
        # Where nobody is there, the server does nothing either.
        there = partial(jnp.where, jnp.any(cohort.valid))
        state = jax.tree.map(there, state, before._replace(clients=state.clients))
    return state._replace(round=state.round + 1), info


def draw_cohort(
    setup: Setup, stage: Stage, run_key: Key[Array, ""], number: Int[Array, ""], clients: Client
) -> Cohort:
    """Draws the clients that take part in a round. Nothing that happens in training decides it.

    Where the server trains alone the cohort has no slots.

    Args:
        setup: the run.
        stage: stage of this round.
        run_key: the run's.
        number: rounds before this one.
        clients: all of the federation.
    """
    if not stage.trains_clients:
        return Cohort(jnp.zeros((0,), jnp.int32), jnp.zeros((0,), bool))
    key = named_key(_round_key(run_key, number), "cohort")
    participation = setup.participation
    if participation is not None:
        clients = participation.available(run_key, number, clients)
    counts = stage.count_labels(clients)
    drawn = setup.draw_cohort(
        key, counts, clients.num_examples, setup.cohort_size, stage.labelled_quota
    )
    if participation is None:
        return drawn
    return participation.remaining(run_key, number, drawn, clients.id.shape[0])


def _round_key(run_key: Key[Array, ""], number: Int[Array, ""]) -> Key[Array, ""]:
    return jax.random.fold_in(named_key(run_key, "round"), number)


def train_at_server(
    turn: Turn, server: ServerTraining, key_name: str = "server"
) -> tuple[ServerState, Metrics]:
    """Train the server as a federation of one client that is always there: (state, metrics)."""
    state = turn.state
    alone, task = at_server(turn, server, server_as_client(turn.data), key_name)
    kept = alone.context.clients.kept
    assert kept is not None
    alone = alone._replace(
        training=alone.training._replace(federated_optimizer=fedavg(), private=()),
        state=alone.state._replace(optimizer=(), clients=kept),
    )
    trained, info = _train(alone, [task])
    after = trained.clients.optimizer if server.keep_optimizer else state.server
    untouched = {
        "optimizer": state.optimizer,
        "clients": state.clients,
        "local_optimizer": state.local_optimizer,
    }
    return trained._replace(server=after, **untouched), info


def at_server(
    turn: Turn,
    server: ServerTraining,
    clients: Client,
    key_name: str = "server",
    federated: PyTree = (),
) -> tuple[Turn, Task]:
    """Return what the server does in place of clients: nothing is sent, and the state of its
    optimizer is its own.

    Args:
        turn: the clients'.
        server: what it trains.
        clients: from `server_as_client`, leading axis that of `ServerState.server`.
        key_name: tells its draws from those of clients.
        federated: what these clients keep for the federated optimizer.
    """
    always = jnp.ones(clients.id.shape, bool)
    kept = Kept({}, turn.state.server if server.keep_optimizer else {}, {}, federated)
    own = turn._replace(
        training=turn.training._replace(
            keep_optimizer=server.keep_optimizer,
            keep_by_slot=False,
            keep_models=False,
            uploads=identity(),
            receive=None,
            weighting="uniform",
            average_optimizer=False,
            own_statistics=False,
            unsent=MappingProxyType({}),
            summation=None,
            participation=None,
        ),
        context=turn.context._replace(
            key=named_key(turn.context.key, key_name),
            clients=clients._replace(kept=kept),
            valid=always,
            slots=None,
        ),
        state=turn.state._replace(local_optimizer={}),
    )
    kind = ClientKind(all_members, server.terms, server.sampler, server.rate)
    return own, Task(kind, always, train_cohort)


def _train_clients(stage: Stage, execution: Execution, turn: Turn) -> tuple[ServerState, Metrics]:
    """Train the cohort, kind by kind."""
    rest = jnp.ones_like(turn.context.valid)
    tasks = []
    for kind in stage.kinds:
        members = rest & kind.members(turn.context.clients)
        rest = rest & ~members
        tasks.append((kind, members))
    if (own := stage.own_kind) is not None:
        tasks.insert(0, (own, rest))
    placed = []
    for kind, members in tasks:
        place = partial(place_clients, execution, kind.sampler, turn.state, turn.data)
        placed.append(Task(kind, members, place))
    return _train(turn, placed)


def _train(turn: Turn, tasks: list[Task]) -> tuple[ServerState, Metrics]:
    """Train the clients and take the federated optimizer's step; the round is not counted here."""
    return _absorb(turn, tasks, train_locally(turn, tasks))


def train_locally(turn: Turn, tasks: list[Task]) -> Trained:
    """Send what the clients of these kinds need, and train them."""
    context = turn.context
    state = turn.state
    data = turn.data
    participation = turn.training.participation
    # 1. All that is sent.
    states = dict(state.terms)
    sent = {}
    for term in (term for task in tasks for term in task.kind.terms):
        sent[term.name], states[term.name] = term.server.prepare(states[term.name], context)
    kept = context.clients.kept
    assert kept is not None
    clients = context.clients._replace(
        sent={name: message.own for name, message in sent.items()},
        sent_by_optimizer=turn.training.federated_optimizer.send(
            state.optimizer, kept.federated, context
        ),
    )
    shared = {name: message.shared for name, message in sent.items()}
    download = Download(
        key=context.key,
        now=Now(context.number, shared, context.run_key, context.round),
        learning_rate=turn.learning_rate,
        params=state.params,
        model_state=state.model_state,
        optimizer=state.optimizer,
        local_optimizer=state.local_optimizer,
        terms=states,
        inputs=data.inputs,
        validation=_validation(data),
        test=_test(data),
        uploads=state.uploads,
    )
    context = context._replace(clients=clients)
    # 2. The clients, kind by kind, without those that have dropped out since.
    left = None if participation is None else participation.left(context)
    results = []
    for task in tasks:
        asked = [term.server.participates(sent[term.name], context) for term in task.kind.terms]
        stay = jnp.stack(asked).any(0) & task.members
        active = without_examples(context.clients, stay if left is None else stay & ~left)
        update_of = partial(ClientUpdate, turn.training, task.kind)
        summed, stacked = task.place(update_of, download, active, context.valid)
        if left is not None:
            stacked = stacked._replace(arrived=stacked.arrived & ~left, lost=left)
        results.append(Results(summed, stacked))
    return Trained(download, context, sent, results)


@jax.named_scope(AVERAGE)
def _absorb(turn: Turn, tasks: list[Task], trained: Trained) -> tuple[ServerState, Metrics]:
    """Take the federated optimizer's step and hand the terms what the clients uploaded: (state,
    metrics).
    """
    training = turn.training
    state = turn.state
    download, context, sent, results = trained
    optimizer = training.federated_optimizer
    kept = context.clients.kept
    assert kept is not None
    # 1. What all kinds of clients sent, as the run's transforms leave it.
    together = _join(results, tasks, kept)
    counts = together.stacked.counts & context.valid
    summed = together.summed
    if training.summation is not None:
        summed = combined(training.summation, together.stacked.sent, summed, counts)
    uploads = state.uploads
    if (change := training.uploads.at_server) is not None:
        summed, uploads = change(named_key(context.key, "uploads"), summed, context, uploads)
        summed = summed._replace(tallies={})
    averages = summed.averages
    summed = turn.join(summed)
    # 2. The federated optimizer's step on the parameters; batch statistics take their mean.
    before = {
        group: packing(state.params[group]).pack(state.params[group]) for group in training.shared
    }
    moved, optimizer_state = optimizer.apply(state.optimizer, before, summed.update, context)
    flat_state, unravel_state = ravel_pytree(state.model_state)
    scale = mean_scale(summed.weight).astype(flat_state.dtype)
    slots = context.slots if training.keep_by_slot else None
    new = together.stacked.kept
    after = state._replace(
        params={
            g: packing(tree).unpack(moved[g]) if g in moved else tree
            for g, tree in state.params.items()
        },
        model_state=cut(unravel_state, flat_state + scale * summed.statistics),
        optimizer=optimizer_state,
        terms=download.terms,
        clients=write_states(state.clients, new, context.clients.id, counts, slots),
        local_optimizer=_mean_optimizer(state.local_optimizer, summed.optimizer),
        uploads=uploads,
    )
    # 3. Every term sees what its own clients sent, and the states before and after.
    outcomes: dict[str, RoundResult] = {}
    seen = RoundResult(context, Broadcast(), (), counts, (), summed.weight, state, after)
    for task, result in zip(tasks, results, strict=True):
        outcomes |= _outcomes(task, result, averages, seen, sent)
    terms = [term for task in tasks for term in task.kind.terms]
    absorbed = {
        term.name: term.server.server_update(after.terms[term.name], outcomes[term.name])
        for term in terms
    }
    # 4. The log, of which nothing comes back.
    info = work_done(summed.work) | {"clients": jnp.sum(context.valid, dtype=jnp.int32)}
    if training.participation is not None:
        lost = context.valid & together.stacked.lost
        info["lost_clients"] = jnp.sum(lost, dtype=jnp.int32)
    state_size = 0 if training.own_statistics else flat_state.size
    kinds = [
        Clients(task.kind.terms, task.members, result.stacked.arrived)
        for task, result in zip(tasks, results, strict=True)
    ]
    sent_size = {g: entries(arrays) - training.unsent.get(g, 0) for g, arrays in before.items()}
    info |= bytes_sent(kinds, outcomes, optimizer.sends(before), sent_size, state_size)
    if training.average_optimizer:
        # Beside the bytes above and not among them: ProtoFSSL, whose clients share one optimizer,
        # does not count it.
        size = 2 * BYTES_PER_NUMBER * entries(state.local_optimizer)
        info["optimizer_state_bytes"] = count(info["clients"], size)
    truth = turn.data.labels[context.clients.rows]
    log = together.stacked.log
    if log.model is not None:
        info[CLIENT_MODELS] = {
            "params": log.model.params,
            "model_state": log.model.model_state,
            "client": context.clients.id,
            "trained": counts,
        }
    for term in terms:
        info |= term.log.diagnose(outcomes[term.name], truth, log.measured[term.name])
    return after._replace(terms={**after.terms, **absorbed}), info


def _outcomes(
    task: Task,
    result: Results,
    averages: dict[str, PyTree],
    seen: RoundResult,
    sent: dict[str, Broadcast],
) -> dict[str, RoundResult]:
    """Return what the server sees for each term of one kind of clients; others of the cohort do
    not count.
    """
    return {
        term.name: seen._replace(
            sent=sent[term.name],
            uploads=result.stacked.terms[term.name],
            counts=result.stacked.counts & seen.context.valid & task.members,
            averages=averages[term.name],
            weight=result.summed.weight,
        )
        for term in task.kind.terms
    }


def _mean_optimizer(
    before: dict[str, PyTree], summed: dict[str, tuple[Array, PyTree]]
) -> dict[str, PyTree]:
    """Return the clients' mean state of the local optimizer; a group of which nothing has weight
    keeps the one before.
    """

    def mean(weight: Float[Array, ""], total: Array, old: Array) -> Array:
        value = mean_scale(weight) * total
        # counts of steps
        value = value if jnp.issubdtype(old.dtype, jnp.floating) else jnp.round(value)
        return jnp.where(weight > 0, value.astype(old.dtype), old)

    return {
        group: jax.tree.map(partial(mean, weight), total, before[group])
        for group, (weight, total) in summed.items()
    }


def _join(results: list[Results], tasks: list[Task], before: Kept) -> Results:
    """Return the results of all kinds of clients together; what a term sent or averaged stays with
    its kind's results.
    """
    if len(results) == 1:
        return results[0]
    sums = [result.summed._replace(averages={}) for result in results]
    # Every kind has terms of its own.
    averages = {name: own for r in results for name, own in r.summed.averages.items()}
    kept = [
        (result.stacked.kept, task.members) for result, task in zip(results, tasks, strict=True)
    ]
    model = results[0].stacked.log.model
    for result, task in zip(results[1:], tasks[1:], strict=True):
        mine = partial(where_slots, task.members)
        model = jax.tree.map(mine, result.stacked.log.model, model)
    stacked = Arrivals(
        terms={},
        counts=jnp.stack([result.stacked.counts for result in results]).any(0),
        arrived=jnp.stack([result.stacked.arrived for result in results]).all(0),
        kept=merge_states(kept, before),
        log=ClientLog(
            {name: value for r in results for name, value in r.stacked.log.measured.items()}, model
        ),
        lost=jnp.stack(
            [r.stacked.lost & task.members for r, task in zip(results, tasks, strict=True)]
        ).any(0),
        # A slot is of one kind, and weighs 0 in the others.
        sent=jax.tree.map(lambda *own: sum(own), *[r.stacked.sent for r in results]),
    )
    total = reduce(partial(jax.tree.map, jnp.add), sums)
    return Results(total._replace(averages=averages), stacked)


def where_slots(members: Bool[Array, " p"], new: Array, old: Array) -> Array:
    """Return the new rows of members, and the old ones of others."""
    return jnp.where(members.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def _validation(data: FederatedData) -> Validation:
    return Validation(data.valid_index, data.labels[data.valid_index], data.num_valid)


def _test(data: FederatedData) -> Validation | None:
    """Return the test examples, which only the log looks at; None where they stay on the host."""
    if isinstance(data.inputs, LoadedInputs):
        return None
    return Validation(data.test_index, data.labels[data.test_index], data.num_test)
