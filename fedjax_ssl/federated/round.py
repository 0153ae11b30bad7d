"""One round, as Algorithm 1 of FedAvg: the cohort, messages to clients, local training, and the
next model.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key

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
from fedjax_ssl.federated.execution import Execution
from fedjax_ssl.federated.local_models import with_client_models
from fedjax_ssl.federated.messages import Arrivals, Download, Total
from fedjax_ssl.federated.optimizers import fedavg, mean_scale
from fedjax_ssl.federated.packing import cut, packing
from fedjax_ssl.federated.placement import train_cohort
from fedjax_ssl.federated.recipe import Recipe
from fedjax_ssl.federated.round_log import round_metrics, with_server, work_done
from fedjax_ssl.federated.setup import Setup
from fedjax_ssl.federated.traffic import count
from fedjax_ssl.federated.uploads.sums import combined
from fedjax_ssl.federated.uploads.transform import chain
from fedjax_ssl.keys import named_key

PyTree = Any


def run_round(
    recipe: Recipe,
    stage: Stage,
    start: int,
    run_key: Key[Array, ""],
    state: ServerState,
    data: FederatedData,
    execution: Execution,
) -> tuple[ServerState, Metrics]:
    """Run one round of a stage.

    Args:
        recipe: the method in its run.
        stage: stage of this round.
        start: rounds before the stage.
        run_key: the run's.
        state: before the round.
        data: the federation.
        execution: where the clients run.
    """
    setup = recipe.setup
    before = state
    logs: list[Metrics] = []
    # 1. Draw the cohort.
    context_of = _contexts(recipe, stage, start, run_key, state.round, data)
    # 2. The server trains, if its turn is before the clients.
    if stage.server and "before" in stage.when:
        state, log = _train_server(recipe, stage, context_of(state), state, data, "server before")
        logs.append(log)
    # 3. The clients train, and their changes are averaged.
    info: Metrics = {}
    context = context_of(state)
    if stage.clients is not None:
        shown = with_client_models(stage) if execution.keep_models else stage
        state, info = _train_clients(recipe, shown, context, state, data, execution)
    # 4. The server trains, if its turn is after the clients.
    if stage.server and "after" in stage.when:
        state, log = _train_server(recipe, stage, context_of(state), state, data, "server")
        logs.append(log)
    # In an empty round the server does nothing either. But some transforms act on every sum, also
    # on an empty one: the noise of privacy.
    if setup.participation and stage.clients and chain(*setup.uploads).at_server is None:
        there = partial(jnp.where, jnp.any(context.valid))
        state = jax.tree.map(there, state, before._replace(clients=state.clients))
    # 5. The log.
    info = reduce(with_server, logs, info)
    if setup.average_optimizer:
        info = {"optimizer_state_bytes": count(0), **info}
    rate = setup.learning_rate(context.number)
    own_rate = setup.local_optimizer.own_rate
    info["learning_rate"] = jnp.full_like(rate, jnp.nan) if own_rate else rate
    return state._replace(round=state.round + 1), info


def _contexts(
    recipe: Recipe,
    stage: Stage,
    start: int,
    run_key: Key[Array, ""],
    number: Int[Array, ""],
    data: FederatedData,
) -> Callable[[ServerState], RoundContext]:
    """Draw the cohort of a round, and return the function that makes the `RoundContext` from a
    state.
    """
    key = _round_key(run_key, number)
    part = part_of(data, number, recipe.setup.rounds)
    federation = all_clients(data, part)
    drawn = None
    if isinstance(data.inputs, LoadedInputs):
        drawn = data.inputs.drawn
        federation = federation._replace(rows=cast(Array, NotLoaded(federation.rows.shape)))
    if drawn is None or stage.clients is None:
        cohort = draw_cohort(recipe.setup, stage, run_key, number, federation)
    else:  # Not drawn again: only the examples of these clients are on the device.
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
            params=recipe.groups.combine(state.params),
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
    """Draw the clients of a round, independent of anything that happens in training.

    If the server trains alone, the cohort has no slots.

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
    recipe: Recipe,
    stage: Stage,
    context: RoundContext,
    state: ServerState,
    data: FederatedData,
    execution: Execution,
) -> tuple[ServerState, Metrics]:
    """Train the cohort, with the server beside it if the stage says so, and average."""
    training = stage.clients
    assert training is not None
    beside = bool(stage.server) and "beside" in stage.when
    # 1. Send the model to all clients, with the messages of the federated optimizer and the terms.
    context, of_replicas = _sent_by_optimizer(recipe, context, state, stage.replicas * beside)
    replicas = None
    if beside:
        replicas, state = _train_replicas(recipe, stage, context, of_replicas, state, data)
    context, sent, state = _send(training, context, state)
    # 2. Clients train on their own examples, and their uploads are added up.
    total, arrivals = _train_locally(recipe, training, context, sent, state, data, execution)
    # 3. The sum becomes the next model.
    after, summed = _average(recipe, stage, context, state, total, arrivals, replicas)
    # 4. Every term sees its clients' uploads, and the states before and after.
    outcomes = {
        term.name: RoundResult(
            context=context,
            sent=sent[term.name],
            uploads=arrivals.terms[term.name],
            counts=arrivals.counts,
            averages=summed.averages[term.name],
            weight=total.weight,
            before=state,
            after=after,
        )
        for term in training.terms
    }
    absorbed = {
        term.name: term.server.server_update(after.terms[term.name], outcomes[term.name])
        for term in training.terms
    }
    # 5. Write the log, which does not influence training.
    truth = data.labels[context.clients.rows]
    info = round_metrics(recipe, training.terms, outcomes, arrivals, total.work, truth)
    if replicas is not None:
        info = with_server(info, work_done(replicas.work))
    return after._replace(terms={**after.terms, **absorbed}), info


def _train_server(
    recipe: Recipe,
    stage: Stage,
    context: RoundContext,
    state: ServerState,
    data: FederatedData,
    key_name: str,
) -> tuple[ServerState, Metrics]:
    """Train the server, as a federation with one client that always takes part."""
    assert stage.server is not None
    own = _at_server(recipe, stage)
    own = own._replace(
        setup=own.setup._replace(federated_optimizer=fedavg()),
        groups=own.groups._replace(private=()),
    )
    kept = Kept({}, state.server if stage.keep_server_optimizer else {}, {}, ())
    client = server_as_client(data)._replace(kept=kept)
    context = _with_clients(context, client, key_name)
    alone = state._replace(optimizer=(), local_optimizer={}, clients=kept)
    one_client = Execution("sequential")
    after, info = _train_clients(own, Stage(stage.server), context, alone, data, one_client)
    return after._replace(
        server=after.clients.optimizer if stage.keep_server_optimizer else state.server,
        optimizer=state.optimizer,
        clients=state.clients,
        local_optimizer=state.local_optimizer,
    ), info


def _train_replicas(
    recipe: Recipe,
    stage: Stage,
    context: RoundContext,
    received: PyTree,
    state: ServerState,
    data: FederatedData,
) -> tuple[Total, ServerState]:
    """Train the server as members of the average: return (sums of the replicas, state with their
    kept optimizers). Upload transforms do not see replicas, because nothing of them leaves the
    server.
    """
    assert stage.server is not None and context.clients.kept is not None
    number = stage.replicas
    nothing = _repeated(jax.tree.map(jnp.zeros_like, context.clients.kept.federated), number)
    kept = Kept({}, state.server if stage.keep_server_optimizer else {}, {}, nothing)
    clients = _repeated(server_as_client(data), number)._replace(
        id=jnp.arange(number, dtype=jnp.int32), kept=kept, sent_by_optimizer=received
    )
    context = _with_clients(context, clients, "server")
    alone = state._replace(local_optimizer={})
    context, sent, alone = _send(stage.server, context, alone)
    total, arrivals = _train_locally(
        _at_server(recipe, stage), stage.server, context, sent, alone, data, Execution("sequential")
    )
    if not stage.keep_server_optimizer:
        return total, state

    def keep(new: Array, old: Array) -> Array:
        members = arrivals.counts.reshape(-1, *[1] * (new.ndim - 1))
        return jnp.where(members, new, old)

    return total, state._replace(server=jax.tree.map(keep, arrivals.kept.optimizer, state.server))


def _at_server(recipe: Recipe, stage: Stage) -> Recipe:
    """Return the method with the server in place of the clients: nothing is sent, and the
    optimizer's state is the server's own.
    """
    setup = recipe.setup._replace(
        keep_optimizer=stage.keep_server_optimizer,
        uploads=(),
        weighting="uniform",
        average_optimizer=False,
        combine_uploads=None,
        participation=None,
    )
    return recipe._replace(setup=setup, groups=recipe.groups._replace(own_statistics=False))


def _with_clients(context: RoundContext, clients: Client, key_name: str) -> RoundContext:
    """Return a round with these clients, all of them present, and with its own draws."""
    return context._replace(
        key=named_key(context.key, key_name),
        clients=clients,
        valid=jnp.ones(clients.id.shape, bool),
        slots=None,
    )


def _sent_by_optimizer(
    recipe: Recipe, context: RoundContext, state: ServerState, replicas: int
) -> tuple[RoundContext, PyTree]:
    """Let the federated optimizer send to clients and to replicas of the server, which are for it
    clients before their first round: return (round with the messages to each client, messages to
    the replicas).
    """
    kept = context.clients.kept
    assert kept is not None
    size = context.valid.shape[0]
    members = context
    before = kept.federated
    if replicas:
        slots = context.slots
        assert slots is not None
        places = size + jnp.arange(replicas, dtype=slots.dtype)
        members = context._replace(slots=jnp.concatenate([slots, places]))
        nothing = _repeated(jax.tree.map(jnp.zeros_like, before), replicas)
        before = jax.tree.map(lambda *x: jnp.concatenate(x), before, nothing)
    sent = recipe.setup.federated_optimizer.send(state.optimizer, before, members)
    to_clients = jax.tree.map(lambda x: x[:size], sent)
    clients = context.clients._replace(sent_by_optimizer=to_clients)
    return context._replace(clients=clients), jax.tree.map(lambda x: x[size:], sent)


def _send(
    training: Training, context: RoundContext, state: ServerState
) -> tuple[RoundContext, dict[str, Broadcast], ServerState]:
    """Let every term prepare a round: return (round with the messages to each client, messages of
    each term, state).
    """
    terms = dict(state.terms)
    sent = {}
    for term in training.terms:
        sent[term.name], terms[term.name] = term.server.prepare(terms[term.name], context)
    clients = context.clients._replace(sent={name: message.own for name, message in sent.items()})
    return context._replace(clients=clients), sent, state._replace(terms=terms)


def _train_locally(
    recipe: Recipe,
    training: Training,
    context: RoundContext,
    sent: dict[str, Broadcast],
    state: ServerState,
    data: FederatedData,
    execution: Execution,
) -> tuple[Total, Arrivals]:
    """Train clients, except those that no term needs and those that dropped out: return (sums over
    clients, results of each).
    """
    setup = recipe.setup
    shared = {name: message.shared for name, message in sent.items()}
    # Only the log uses test examples; if they stay on the host, it goes without.
    test = None
    if not isinstance(data.inputs, LoadedInputs):
        test = Validation(data.test_index, data.labels[data.test_index], data.num_test)
    download = Download(
        key=context.key,
        now=Now(context.number, shared, context.run_key, context.round),
        learning_rate=setup.learning_rate(context.number),
        params=state.params,
        model_state=state.model_state,
        optimizer=state.optimizer,
        local_optimizer=state.local_optimizer,
        terms=state.terms,
        inputs=data.inputs,
        validation=_validation(data),
        test=test,
        uploads=state.uploads,
    )
    left = None if setup.participation is None else setup.participation.left(context)
    asked = [term.server.participates(sent[term.name], context) for term in training.terms]
    stay = jnp.stack(asked).any(0)
    active = without_examples(context.clients, stay if left is None else stay & ~left)
    local_of = partial(local_round, recipe, training)
    total, arrivals = train_cohort(local_of, execution, download, active, context.valid)
    if left is not None:
        arrivals = arrivals._replace(arrived=arrivals.arrived & ~left, lost=left)
    return total, arrivals._replace(counts=arrivals.counts & context.valid)


@jax.named_scope(AVERAGE)
def _average(
    recipe: Recipe,
    stage: Stage,
    context: RoundContext,
    state: ServerState,
    total: Total,
    arrivals: Arrivals,
    replicas: Total | None,
) -> tuple[ServerState, Total]:
    """Take the federated optimizer's step: return (state with the next model, sums after the run's
    transforms).
    """
    setup = recipe.setup
    if setup.combine_uploads is not None:
        assert isinstance(arrivals.parts, Total)
        total = combined(setup.combine_uploads, arrivals.parts, total, arrivals.counts)
    uploads = state.uploads
    if (change := chain(*setup.uploads).at_server) is not None:
        total, uploads = change(named_key(context.key, "uploads"), total, context, uploads)
    if replicas is not None:
        total = _joined(total, replicas, stage.statistics_of)
    # Optimizers get a group as few long arrays.
    packings = {group: packing(state.params[group]) for group in recipe.groups.shared}
    before = {group: one.pack(state.params[group]) for group, one in packings.items()}
    moved, optimizer = setup.federated_optimizer.apply(state.optimizer, before, total, context)
    params = {group: one.unpack(moved[group]) for group, one in packings.items()}
    statistics, unravel = ravel_pytree(state.model_state)
    scale = mean_scale(total.weight).astype(statistics.dtype)
    return state._replace(
        params={group: params.get(group, tree) for group, tree in state.params.items()},
        model_state=cut(unravel, statistics + scale * total.statistics),
        optimizer=optimizer,
        clients=write_states(state.clients, arrivals.kept, context.clients.id, arrivals.counts),
        local_optimizer=_mean_optimizer(state.local_optimizer, total.optimizer),
        uploads=uploads,
    ), total


def _mean_optimizer(
    before: dict[str, PyTree], summed: dict[str, tuple[Array, PyTree]]
) -> dict[str, PyTree]:
    """Return the clients' mean state of the local optimizer; a group whose weights sum to 0 keeps
    its old state.
    """

    def mean(weight: Float[Array, ""], total: Array, old: Array) -> Array:
        value = mean_scale(weight) * total
        # step counts are whole numbers
        value = value if jnp.issubdtype(old.dtype, jnp.floating) else jnp.round(value)
        return jnp.where(weight > 0, value.astype(old.dtype), old)

    return {
        group: jax.tree.map(partial(mean, weight), total, before[group])
        for group, (weight, total) in summed.items()
    }


def _joined(clients: Total, replicas: Total, statistics_of: str) -> Total:
    """Add the replicas of the server to the sums of the clients."""
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
