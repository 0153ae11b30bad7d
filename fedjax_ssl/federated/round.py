"""One round: who takes part, what is sent, local training, averaging, what is kept, and what the
log says of it.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl.data import FederatedData, LoadedInputs, NotLoaded
from fedjax_ssl.federated.client import AVERAGE, local_round
from fedjax_ssl.federated.client_states import (
    all_clients,
    clients_of,
    gather_states,
    part_of,
    server_as_client,
    without_examples,
    write_states,
)
from fedjax_ssl.federated.cohort import random_slots
from fedjax_ssl.federated.contract import (
    Broadcast,
    Client,
    Cohort,
    Kept,
    Metrics,
    Now,
    RoundContext,
    RoundResult,
    ServerState,
    Stage,
    Training,
    Validation,
)
from fedjax_ssl.federated.execution import Execution, place_clients
from fedjax_ssl.federated.messages import Arrivals, Download, Total
from fedjax_ssl.federated.optimizers import fedavg, mean_scale
from fedjax_ssl.federated.packing import cut, packing
from fedjax_ssl.federated.placement import train_cohort
from fedjax_ssl.federated.recipe import ParameterGroups
from fedjax_ssl.federated.round_log import bytes_sent, with_server, work_done
from fedjax_ssl.federated.setup import Setup
from fedjax_ssl.federated.traffic import BYTES_PER_NUMBER, count, entries
from fedjax_ssl.federated.uploads.sums import combined
from fedjax_ssl.federated.uploads.transform import chain
from fedjax_ssl.keys import named_key

PyTree = Any
# metric of a round: models of its clients before they are averaged, a tree
CLIENT_MODELS = "client_models"


def run_round(
    setup: Setup,
    groups: ParameterGroups,
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
        groups: parameter groups.
        stage: stage of this round.
        start: rounds before the stage.
        run_key: the run's.
        state: before the round.
        data: the federation.
        execution: where the clients run.
    """
    rate = setup.learning_rate(state.round - start)
    train_server = partial(_train_server, setup, groups, stage, data, rate)
    before = state
    logs: list[Metrics] = []
    # 1. Who takes part.
    context_of = _contexts(setup, groups, stage, start, run_key, state.round, data)
    # 2. The server trains, where it does so before the clients.
    if stage.server is not None and "before" in stage.when:
        state, log = train_server(context_of(state), state, "server before")
        logs.append(log)
    # 3. The clients train, and their changes are averaged.
    info: Metrics = {}
    context = context_of(state)
    if stage.clients is not None:
        state, info = _train_clients(setup, groups, stage, data, rate, context, state, execution)
    # 4. The server trains, where it does so after them.
    if stage.server is not None and "after" in stage.when:
        state, log = train_server(context_of(state), state, "server")
        logs.append(log)
    # Where nobody is there, the server does nothing either; but a transform may have to do with
    # every sum, also one of nobody: the noise of privacy.
    if setup.participation and stage.clients and chain(*setup.uploads).at_server is None:
        there = partial(jnp.where, jnp.any(context.valid))
        state = jax.tree.map(there, state, before._replace(clients=state.clients))
    # 5. The log.
    info = reduce(with_server, logs, info)
    if setup.average_optimizer:
        info = {"optimizer_state_bytes": count(0), **info}
    own_rate = getattr(setup.local_optimizer, "own_rate", False)
    info["learning_rate"] = jnp.full_like(rate, jnp.nan) if own_rate else rate
    return state._replace(round=state.round + 1), info


def _contexts(
    setup: Setup,
    groups: ParameterGroups,
    stage: Stage,
    start: int,
    run_key: Key[Array, ""],
    number: Int[Array, ""],
    data: FederatedData,
) -> Callable[[ServerState], RoundContext]:
    """Draw the cohort of a round; returns what makes the round's data of a state."""
    key = _round_key(run_key, number)
    part = part_of(data, number, setup.rounds)
    federation = all_clients(data, part)
    drawn = None
    if isinstance(data.inputs, LoadedInputs):
        drawn = data.inputs.drawn
        federation = federation._replace(rows=cast(Array, NotLoaded(federation.rows.shape)))
    if drawn is None or stage.clients is None:
        cohort = draw_cohort(setup, stage, run_key, number, federation)
    else:  # not drawn again: the examples of these clients are there, and no others
        cohort = Cohort(*(table[number - drawn.first] for table in (drawn.ids, drawn.valid)))
    slots = random_slots(named_key(key, "slots"), cohort.ids, cohort.valid, data.num_clients)

    def context_of(state: ServerState) -> RoundContext:
        clients = clients_of(data, cohort.ids, cohort.valid, part)
        return RoundContext(
            key=key,
            run_key=run_key,
            number=number - start,
            round=number,
            clients=clients._replace(kept=gather_states(state.clients, cohort.ids)),
            valid=cohort.valid,
            all_clients=federation._replace(kept=state.clients),
            params=groups.combine(state.params),
            groups=state.params,
            model_state=state.model_state,
            inputs=data.inputs,
            validation=_validation(data),
            slots=slots,
        )

    return context_of


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
    if stage.clients is None:
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


def _train_clients(
    setup: Setup,
    groups: ParameterGroups,
    stage: Stage,
    data: FederatedData,
    rate: Float[Array, ""],
    context: RoundContext,
    state: ServerState,
    execution: Execution,
) -> tuple[ServerState, Metrics]:
    """Train the cohort, with the server beside it where the stage says so, and average."""
    training = stage.clients
    assert training is not None
    beside = stage.server is not None and "beside" in stage.when
    received, of_replicas = _sent_by_optimizer(setup, context, state, stage.replicas * beside)
    replicas: Total | None = None
    if beside:
        replicas, state = _train_replicas(
            setup, groups, stage, data, rate, context, state, of_replicas
        )
    trained = _train_locally(
        setup,
        groups,
        training,
        data,
        rate,
        context,
        state,
        received,
        partial(place_clients, execution, training.sampler, state, data),
        execution.keep_models,
    )
    after, info = _absorb(
        setup, groups, training, data, state, *trained, replicas, stage.statistics_of
    )
    return after, info if replicas is None else with_server(info, work_done(replicas.work))


def _train_server(
    setup: Setup,
    groups: ParameterGroups,
    stage: Stage,
    data: FederatedData,
    rate: Float[Array, ""],
    context: RoundContext,
    state: ServerState,
    key_name: str,
) -> tuple[ServerState, Metrics]:
    """Train the server as a federation of one client that is always there: (state, metrics)."""
    assert stage.server is not None
    own = _at_server(setup, stage)._replace(federated_optimizer=fedavg())
    common = groups._replace(private=(), own_statistics=False)
    kept = Kept({}, state.server if stage.keep_server_optimizer else {}, {}, ())
    alone = state._replace(optimizer=(), local_optimizer={}, clients=kept)
    context = _with_clients(context, server_as_client(data)._replace(kept=kept), key_name)
    trained = _train_locally(own, common, stage.server, data, rate, context, alone, ())
    after, info = _absorb(own, common, stage.server, data, alone, *trained)
    return after._replace(
        server=after.clients.optimizer if stage.keep_server_optimizer else state.server,
        optimizer=state.optimizer,
        clients=state.clients,
        local_optimizer=state.local_optimizer,
    ), info


def _train_replicas(
    setup: Setup,
    groups: ParameterGroups,
    stage: Stage,
    data: FederatedData,
    rate: Float[Array, ""],
    context: RoundContext,
    state: ServerState,
    received: PyTree,
) -> tuple[Total, ServerState]:
    """Train the server as members of the average: (their sums, state with the optimizers that they
    keep). Upload transforms do not see them: nothing of them leaves the server.
    """
    assert stage.server is not None and context.clients.kept is not None
    number = stage.replicas
    nothing = _repeated(jax.tree.map(jnp.zeros_like, context.clients.kept.federated), number)
    kept = Kept({}, state.server if stage.keep_server_optimizer else {}, {}, nothing)
    clients = _repeated(server_as_client(data), number)
    clients = clients._replace(id=jnp.arange(number, dtype=clients.id.dtype), kept=kept)
    own = _at_server(setup, stage)
    common = groups._replace(own_statistics=False)
    context = _with_clients(context, clients, "server")
    alone = state._replace(local_optimizer={})
    *_, total, stacked = _train_locally(
        own, common, stage.server, data, rate, context, alone, received
    )
    if not stage.keep_server_optimizer:
        return total, state
    keep = partial(_where_slots, stacked.counts)
    return total, state._replace(server=jax.tree.map(keep, stacked.kept.optimizer, state.server))


def _at_server(setup: Setup, stage: Stage) -> Setup:
    """Return the run of a server in place of clients: nothing is sent, and the state of its
    optimizer is its own.
    """
    return setup._replace(
        keep_optimizer=stage.keep_server_optimizer,
        uploads=(),
        weighting="uniform",
        average_optimizer=False,
        combine_uploads=None,
        participation=None,
    )


def _with_clients(context: RoundContext, clients: Client, key_name: str) -> RoundContext:
    """Return a round of these clients, which are all there, with draws of its own."""
    return context._replace(
        key=named_key(context.key, key_name),
        clients=clients,
        valid=jnp.ones(clients.id.shape, bool),
        slots=None,
    )


def _sent_by_optimizer(
    setup: Setup, context: RoundContext, state: ServerState, replicas: int
) -> tuple[PyTree, PyTree]:
    """Return what the federated optimizer sends to clients, and to replicas of the server, to whom
    it is what a client before its first round would be sent.
    """
    kept = context.clients.kept
    assert kept is not None
    optimizer = setup.federated_optimizer
    if not replicas:
        return optimizer.send(state.optimizer, kept.federated, context), ()
    slots = context.slots
    assert slots is not None
    size = slots.shape[0]
    nothing = _repeated(jax.tree.map(jnp.zeros_like, kept.federated), replicas)
    received = optimizer.send(
        state.optimizer,
        jax.tree.map(lambda *x: jnp.concatenate(x), kept.federated, nothing),
        context._replace(
            slots=jnp.concatenate([slots, size + jnp.arange(replicas, dtype=slots.dtype)])
        ),
    )
    clients = jax.tree.map(lambda x: x[:size], received)
    return clients, jax.tree.map(lambda x: x[size:], received)


def _train_locally(
    setup: Setup,
    groups: ParameterGroups,
    training: Training,
    data: FederatedData,
    rate: Float[Array, ""],
    context: RoundContext,
    state: ServerState,
    received: PyTree,
    place: Callable[..., tuple[Total, Arrivals]] = train_cohort,
    keep_models: bool = False,
) -> tuple[RoundContext, dict[str, Broadcast], Download, Total, Arrivals]:
    """Send what clients need, and train them: (the round with what each was sent, what each term
    sent, the message to all, sums over the clients, results of each).
    """
    # 1. All that is sent.
    states = dict(state.terms)
    sent = {}
    for term in training.terms:
        sent[term.name], states[term.name] = term.server.prepare(states[term.name], context)
    clients = context.clients._replace(
        sent={name: message.own for name, message in sent.items()}, sent_by_optimizer=received
    )
    context = context._replace(clients=clients)
    shared = {name: message.shared for name, message in sent.items()}
    download = Download(
        key=context.key,
        now=Now(context.number, shared, context.run_key, context.round),
        learning_rate=rate,
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
    # 2. Local training, without clients that no term asks for and those that dropped out since.
    left = None if setup.participation is None else setup.participation.left(context)
    asked = [term.server.participates(sent[term.name], context) for term in training.terms]
    stay = jnp.stack(asked).any(0)
    active = without_examples(clients, stay if left is None else stay & ~left)
    local_of = partial(local_round, setup, groups, training, keep_models)
    total, stacked = place(local_of, download, active, context.valid)
    if left is not None:
        stacked = stacked._replace(arrived=stacked.arrived & ~left, lost=left)
    return context, sent, download, total, stacked


@jax.named_scope(AVERAGE)
def _absorb(
    setup: Setup,
    groups: ParameterGroups,
    training: Training,
    data: FederatedData,
    state: ServerState,
    context: RoundContext,
    sent: dict[str, Broadcast],
    download: Download,
    total: Total,
    stacked: Arrivals,
    replicas: Total | None = None,
    statistics_of: str = "members",
) -> tuple[ServerState, Metrics]:
    """Take the federated optimizer's step and hand the terms what the clients uploaded: (state,
    metrics).
    """
    optimizer = setup.federated_optimizer
    # 1. What clients sent, as the run's transforms leave it.
    counts = stacked.counts & context.valid
    weight = total.weight
    if setup.combine_uploads is not None:
        assert isinstance(stacked.parts, Total)
        total = combined(setup.combine_uploads, stacked.parts, total, counts)
    uploads = state.uploads
    if (change := chain(*setup.uploads).at_server) is not None:
        total, uploads = change(named_key(context.key, "uploads"), total, context, uploads)
    if replicas is not None:
        total = _joined(total, replicas, statistics_of)
    # 2. The federated optimizer's step on the parameters; batch statistics take their mean.
    before = {
        group: packing(state.params[group]).pack(state.params[group]) for group in groups.shared
    }
    moved, optimizer_state = optimizer.apply(state.optimizer, before, total, context)
    flat_state, unravel_state = ravel_pytree(state.model_state)
    scale = mean_scale(total.weight).astype(flat_state.dtype)
    after = state._replace(
        params={
            g: packing(tree).unpack(moved[g]) if g in moved else tree
            for g, tree in state.params.items()
        },
        model_state=cut(unravel_state, flat_state + scale * total.statistics),
        optimizer=optimizer_state,
        terms=download.terms,
        clients=write_states(state.clients, stacked.kept, context.clients.id, counts),
        local_optimizer=_mean_optimizer(state.local_optimizer, total.optimizer),
        uploads=uploads,
    )
    # 3. Every term sees what its clients sent, and the states before and after.
    outcomes = {
        term.name: RoundResult(
            context=context,
            sent=sent[term.name],
            uploads=stacked.terms[term.name],
            counts=counts,
            averages=total.averages[term.name],
            weight=weight,
            before=state,
            after=after,
        )
        for term in training.terms
    }
    terms = training.terms
    absorbed = {
        term.name: term.server.server_update(after.terms[term.name], outcomes[term.name])
        for term in terms
    }
    # 4. The log, of which nothing comes back.
    info = work_done(total.work) | {"clients": jnp.sum(context.valid, dtype=jnp.int32)}
    if setup.participation is not None:
        info["lost_clients"] = jnp.sum(context.valid & stacked.lost, dtype=jnp.int32)
    state_size = 0 if groups.own_statistics else flat_state.size
    sizes = {group: entries(arrays) for group, arrays in before.items()}
    beside = optimizer.sends(before)
    info |= bytes_sent(terms, stacked.arrived, outcomes, beside, sizes, state_size)
    if setup.average_optimizer:
        # Beside the bytes above and not among them: ProtoFSSL, whose clients share one optimizer,
        # does not count it.
        size = 2 * BYTES_PER_NUMBER * entries(state.local_optimizer)
        info["optimizer_state_bytes"] = count(info["clients"], size)
    truth = data.labels[context.clients.rows]
    log = stacked.log
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


def _where_slots(members: Bool[Array, " p"], new: Array, old: Array) -> Array:
    """Return the new rows of members, and the old ones of others."""
    return jnp.where(members.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def _joined(clients: Total, replicas: Total, statistics_of: str) -> Total:
    """Add the replicas of the server to the sums of the average."""
    averaged = ("update", "weights", "reported", "statistics", "weight")
    both = {
        name: jax.tree.map(jnp.add, getattr(clients, name), getattr(replicas, name))
        for name in averaged
    }
    if statistics_of == "replicas":
        both |= {"statistics": replicas.statistics, "weight": replicas.weight}
    return clients._replace(**both)


def _repeated(tree: Any, number: int) -> Any:
    """Repeat the first entry of arrays."""
    return jax.tree.map(lambda x: jnp.repeat(x[:1], number, axis=0), tree)


def _validation(data: FederatedData) -> Validation:
    return Validation(data.valid_index, data.labels[data.valid_index], data.num_valid)


def _test(data: FederatedData) -> Validation | None:
    """Return the test examples, which only the log looks at; None where they stay on the host."""
    if isinstance(data.inputs, LoadedInputs):
        return None
    return Validation(data.test_index, data.labels[data.test_index], data.num_test)
