"""The engine: builds a `Method` from stages of terms. There is one training loop, and every method runs in it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated.client import Broadcast, ClientUpdate, LocalTraining, client_update
from fedjax_ssl.federated.cohort import Cohort, sample_cohort
from fedjax_ssl.federated.local_optimizer import LearningRate
from fedjax_ssl.federated.memory import Choice, Need, choose, estimate_need, size_spread, tree_bytes, vectorized_runs
from fedjax_ssl.federated.method import Client, Method, Metrics, Params, Round, Sampler, ServerState, Stage, Term
from fedjax_ssl.federated.optimizers import FederatedOptimizer, Grouped, Numbers, fedavg
from fedjax_ssl.federated.packing import packing
from fedjax_ssl.federated.placement import train_cohort, without_examples
from fedjax_ssl.keys import named_key
from fedjax_ssl.models import Model, Outputs

PyTree = Any
BYTES_PER_NUMBER = 4
WEIGHTINGS: dict[str, Callable[[Client], Float[Array, ""]]] = {
    "uniform": lambda client: jnp.ones(()),
    "examples": lambda client: client.num_examples.astype(jnp.result_type(float)),
    "labelled": lambda client: client.num_labelled.astype(jnp.result_type(float)),
}


class Setup(NamedTuple):
    """What a run decides and every method needs; a recipe takes it together with the method's own settings."""

    model: Model
    normalize: Callable[[Array], Array]  # raw inputs -> float inputs of the network
    augment: Callable[[Array, Array], Array]  # (key, raw images) -> raw images: the weak augmentation
    federated_optimizer: FederatedOptimizer
    local_optimizer: optax.GradientTransformation
    learning_rate: LearningRate
    num_classes: int
    max_labelled: int  # bounds over clients, from `FederatedData`
    max_unlabelled: int
    max_known: int  # examples with a class label or a weak label
    max_server: int  # labelled examples at the server
    cohort_size: int
    batch_size: int
    local_epochs: int
    weighting: str = "uniform"
    placement: str = "auto"
    chunk_size: int | None = None  # clients at once on a device; None: chosen from its memory
    mesh: Mesh | None = None  # devices that share each cohort
    reduce: str = "ordered"
    memory: int | None = None  # bytes of a device that all runs on it may fill; None: not known
    everyone: Client | None = None  # all clients, to see whether they differ in size; None: not known
    report: Callable[[Choice], None] | None = None  # is told, whenever a round is traced, how clients are placed
    evaluation_batch_size: int = 512
    strong_augment: Callable[[Array, Array], Array] | None = None  # like `augment`; None: the weak one


def federated_method(
    setup: Setup,
    stages: tuple[Stage, ...],
    *,
    groups: tuple[str, ...] = ("model",),
    split: Callable[[PyTree], Params] = lambda params: {"model": params},
    combine: Callable[[Params], PyTree] = lambda params: params["model"],
    network: Callable[[ServerState], tuple[PyTree, PyTree]] | None = None,
    needs: tuple[str, ...] = ("labels",),
    needs_all: bool = False,
    class_scores: bool = True,
) -> Method:
    """Builds a method out of terms.

    Args:
        setup: model, optimizers, sizes.
        stages: run one after another; all but the last need `rounds`. The learning-rate schedule starts anew in each.
        groups: parameter groups in the order in which a local step updates them.
        split: a freshly initialized network's parameters -> parameters by group.
        combine: parameters by group -> the network's parameters.
        network: state -> (parameters, model state) of the network that predicts and embeds; the global one by default.
        needs: what the method learns from, see `FederatedData.kinds`; any of these is enough.
        needs_all: all of these together are needed.
        class_scores: losses or predictions read the network's class scores; False for methods that replace `predict`.

    Returns:
        A `Method`. Its `round` takes the run's key and folds the round number in itself, so rounds can be scanned with
        one key and a resumed run continues exactly. Its info holds scalars: "loss" (mean over local steps), "clients",
        "local_steps", "examples", "dropped_clients", "bytes_down", "bytes_up", and the terms' diagnostics.

    Raises:
        ValueError: if a stage but the last has no length, two terms share a name, the weighting is unknown, or the
            network has no class scores and the method reads them.
    """
    _check(setup, stages)
    if class_scores and not setup.model.has_class_scores:
        raise ValueError(
            "the network has no class scores, which this method learns and predicts with; use a network with a head "
            "(for example 'resnet9' in place of 'resnet8'), or a method that compares features with prototypes"
        )
    training = LocalTraining(
        model=setup.model,
        combine=combine,
        groups=groups,
        optimizer=setup.local_optimizer,
        federated_optimizer=setup.federated_optimizer,
        weighting=WEIGHTINGS[setup.weighting],
    )
    starts = [0]
    for stage in stages[:-1]:
        starts.append(starts[-1] + (stage.rounds or 0))

    def init(key: Array, data: FederatedData) -> ServerState:
        network, model_state = setup.model.init(named_key(key, "model"))
        params = split(network)
        everyone = all_clients(data)
        terms = {
            term.name: term.init(named_key(named_key(key, "term"), term.name), network, model_state, everyone)
            for stage in stages
            for term in _terms(stage)
        }
        optimizer = setup.federated_optimizer.init(_pack(params), data.num_clients)
        return ServerState(jnp.zeros((), jnp.int32), params, model_state, optimizer, terms)

    def round_of(number: int, stage: Stage) -> Callable[..., tuple[ServerState, Metrics]]:
        spread = None
        if setup.everyone is not None and stage.sampler is not None and not stage.sampler.reads_sent:
            spread = size_spread(stage.sampler, setup.everyone)

        def run(key: Array, state: ServerState, data: FederatedData) -> tuple[ServerState, Metrics]:
            place = partial(_place, setup, spread, state, data)
            return _run_round(setup, training, stage, starts[number], key, state, data, place)

        return run

    rounds = [round_of(number, stage) for number, stage in enumerate(stages)]

    def round(key: Array, state: ServerState, data: FederatedData) -> tuple[ServerState, Metrics]:
        if len(rounds) == 1:
            return rounds[0](key, state, data)
        # Every stage reports the same metrics, NaN where it has none of that name.
        names = [set(jax.eval_shape(run, key, state, data)[1]) for run in rounds]
        everything = sorted(set().union(*names))
        branches = [_report_all(run, everything) for run in rounds]
        number = sum((state.round >= start).astype(jnp.int32) for start in starts[1:])
        return jax.lax.switch(number, branches, key, state, data)

    def apply(state: ServerState, inputs: Array) -> Outputs:
        params, model_state = network(state) if network else (combine(state.params), state.model_state)
        return setup.model.apply(params, model_state, setup.normalize(inputs), train=False)[0]

    return Method(
        init,
        round,
        predict=lambda state, inputs: jax.nn.log_softmax(apply(state, inputs).logits),
        embed=lambda state, inputs: apply(state, inputs).features,
        needs=needs,
        needs_all=needs_all,
    )


def _terms(stage: Stage) -> tuple[Term, ...]:
    return (*stage.terms, *(stage.server.terms if stage.server else ()))


def _check(setup: Setup, stages: tuple[Stage, ...]) -> None:
    if setup.weighting not in WEIGHTINGS:
        raise ValueError(f"weighting is {setup.weighting!r}; allowed: {', '.join(WEIGHTINGS)}")
    if any(stage.rounds is None for stage in stages[:-1]):
        raise ValueError("every stage but the last needs a number of rounds")
    for stage in stages:
        names = [term.name for term in _terms(stage)]
        if len(set(names)) < len(names):
            raise ValueError(f"terms of one stage need different names, got {names}")
        if not names:
            raise ValueError("a stage needs terms, for the clients or for the server")


def _run_round(
    setup: Setup,
    training: LocalTraining,
    stage: Stage,
    start: int,
    key: Array,
    state: ServerState,
    data: FederatedData,
    place: Callable[..., tuple[PyTree, PyTree]],
) -> tuple[ServerState, Metrics]:
    run_key, key = key, jax.random.fold_in(named_key(key, "round"), state.round)
    everyone = all_clients(data)
    nobody = Cohort(jnp.zeros((0,), jnp.int32), jnp.zeros((0,), bool))
    cohort = nobody
    if stage.terms:
        cohort = sample_cohort(
            named_key(key, "cohort"),
            stage.count_labels(everyone),
            data.num_examples,
            setup.cohort_size,
            stage.labelled_quota,
        )
    context = Round(
        key=key,
        run_key=run_key,
        number=state.round - start,
        clients=_clients(data, cohort.ids, cohort.valid),
        valid=cohort.valid,
        everyone=everyone,
        params=training.combine(state.params),
        groups=state.params,
        model_state=state.model_state,
        inputs=data.inputs,
    )
    info: Metrics = {}
    if stage.terms:
        assert stage.sampler is not None
        state, info = _train(setup, training, stage.terms, stage.sampler, context, state, data, cohort.ids, place)
    if stage.server is not None:
        # The server is a federation of one client that is always there.
        at_server = context._replace(
            key=named_key(key, "server"),
            clients=_server(data),
            valid=jnp.ones((1,), bool),
            params=training.combine(state.params),
            groups=state.params,
            model_state=state.model_state,
        )
        alone = training._replace(federated_optimizer=fedavg(), weighting=WEIGHTINGS["uniform"])
        trained, log = _train(
            setup,
            alone,
            stage.server.terms,
            stage.server.sampler,
            at_server,
            state._replace(optimizer=()),
            data,
            jnp.zeros((1,), jnp.int32),
            train_cohort,
        )
        state = trained._replace(optimizer=state.optimizer)
        info = _with_server(info, log)
    return state._replace(round=state.round + 1), info


def _with_server(info: Metrics, log: Metrics) -> Metrics:
    """The metrics of a round in which the server trained: its work counts, it is no client, and nothing was sent."""
    dropped = log["dropped_clients"]
    nothing = jnp.zeros_like(dropped)
    alone = {**log, "clients": nothing, "dropped_clients": nothing, "bytes_down": nothing, "bytes_up": nothing}
    both = {**alone, **info} if info else alone
    if info:
        both |= {name: info[name] + log[name] for name in ("local_steps", "examples")}
    lost = jnp.where(dropped > 0, jnp.nan, log["loss"])
    return {**both, "server_loss": lost, "server_dropped": dropped}


def _place(
    setup: Setup,
    spread: float | None,
    state: ServerState,
    data: FederatedData,
    update: ClientUpdate,
    clients: Client,
    valid: Bool[Array, " p"],
) -> tuple[PyTree, PyTree]:
    """Trains a cohort as the setup says and, where it says nothing, as the device's memory allows."""
    num_devices = 1 if setup.mesh is None else setup.mesh.size
    share, runs = -(-valid.shape[0] // num_devices), vectorized_runs()
    limit = None
    if setup.memory is not None:
        # Runs of one device share the examples. A round makes a new state of the old one.
        examples = tree_bytes(data.inputs)
        limit = (setup.memory - examples) // (runs or 1) - (tree_bytes(data) - examples) - 2 * tree_bytes(state)

    def estimate(placement: str) -> Need:
        gathered = 0 if setup.mesh is None else share * num_devices
        return estimate_need(update, clients, placement, share, gathered)

    choice = choose(
        setup.placement,
        setup.chunk_size,
        share,
        backend=jax.default_backend(),
        spread=spread if runs is None else None,  # lanes are slow where they are vectorized
        limit=limit,
        estimate=estimate,
    )
    if setup.report is not None:
        setup.report(choice)
    return train_cohort(update, clients, valid, choice.placement, choice.clients_at_once, setup.mesh, setup.reduce)


def _train(
    setup: Setup,
    training: LocalTraining,
    terms: tuple[Term, ...],
    sampler: Sampler,
    context: Round,
    state: ServerState,
    data: FederatedData,
    ids: Int[Array, " p"],
    place: Callable[..., tuple[PyTree, PyTree]],
) -> tuple[ServerState, Metrics]:
    """Trains the context's clients and takes the federated optimizer's step; the round is not counted here."""
    optimizer, term_states, sent = training.federated_optimizer, dict(state.terms), {}
    for term in terms:
        sent[term.name], term_states[term.name] = term.prepare(term_states[term.name], context)
    context = context._replace(clients=context.clients._replace(sent=sent))
    active = jnp.stack([term.takes_part(sent[term.name], context) for term in terms]).any(0)
    clients = without_examples(context.clients, active)._replace(variates=optimizer.send(state.optimizer, ids))
    learning_rate = setup.learning_rate(context.number)
    broadcast = Broadcast(
        context.key, context.number, learning_rate, state.params, state.model_state, term_states, data.inputs
    )
    summed, stacked = place(client_update(training, terms, sampler, broadcast), clients, context.valid)
    counts = stacked["counts"] & context.valid
    before = _pack(state.params)
    after, optimizer_state = optimizer.apply(
        state.optimizer, before, summed["optimizer"], stacked["optimizer"], ids, counts
    )
    params = {name: packing(state.params[name]).unpack(after[name]) for name in after}
    weight = summed["weight"]
    scale = jnp.where(weight > 0, 1.0 / jnp.where(weight > 0, weight, 1.0), 0.0)
    old_state, unravel_state = ravel_pytree(state.model_state)
    model_state = unravel_state(old_state + scale.astype(old_state.dtype) * summed["model_state"])
    network = training.combine(state.params)
    for term in terms:
        fresh = term.start(term_states[term.name], network, state.model_state)
        mean = jax.tree.map(
            lambda total, old: jnp.where(weight > 0, scale * total, old.astype(total.dtype)).astype(old.dtype),
            summed["local"][term.name],
            fresh,
        )
        term_states[term.name] = term.absorb(
            term_states[term.name], mean, stacked["uploads"][term.name], counts, context
        )
    new_state = ServerState(state.round, params, model_state, optimizer_state, term_states)
    return new_state, _metrics(terms, context, data, summed, before, old_state, optimizer.sends(before))


def _metrics(
    terms: tuple[Term, ...],
    context: Round,
    data: FederatedData,
    summed: dict[str, Any],
    params: Grouped,
    state: Array,
    beside: Numbers,
) -> Metrics:
    dtype = jnp.result_type(float)
    clients = jnp.sum(context.valid).astype(dtype)
    model_bytes = BYTES_PER_NUMBER * (sum(values.size for values in jax.tree.leaves(params)) + state.size)
    steps = summed["steps"].astype(dtype)
    info = {
        "loss": summed["loss"] / jnp.maximum(steps, 1.0),
        "clients": clients,
        "local_steps": steps,
        "examples": summed["examples"].astype(dtype),
        "dropped_clients": summed["dropped"].astype(dtype),
        "bytes_down": clients * (model_bytes + BYTES_PER_NUMBER * beside.down),
        "bytes_up": clients * (model_bytes + BYTES_PER_NUMBER * beside.up),
    }
    truth = data.labels[context.clients.index]
    for term in terms:
        traffic = term.traffic(context)
        info["bytes_down"] = info["bytes_down"] + traffic.down
        info["bytes_up"] = info["bytes_up"] + traffic.up
        info.update(term.diagnose(context.clients.sent[term.name], truth, context))
    return info


def all_clients(data: FederatedData) -> Client:
    """All C clients of a federation."""
    return _clients(data, jnp.arange(data.num_clients, dtype=jnp.int32))


def _clients(data: FederatedData, ids: Array, valid: Array | None = None) -> Client:
    """Gathers clients; an empty cohort slot is a client without examples."""
    present = jnp.ones(ids.shape, bool) if valid is None else valid
    index = data.index[ids]
    num_examples = jnp.where(present, data.num_examples[ids], 0)
    real = jnp.arange(index.shape[1], dtype=jnp.int32) < num_examples[:, None]
    weak = data.weak
    if weak is not None:
        everybody = replace(weak, prior=jnp.broadcast_to(weak.prior, (data.num_clients, *weak.prior.shape)))
        weak = jax.tree.map(lambda table: table[ids], everybody)
        weak = replace(
            weak,
            labels=jnp.where(real, weak.labels, -1),
            num_examples=jnp.where(present, weak.num_examples, 0),
        )
    return Client(
        ids,
        index,
        observed=jnp.where(real, data.observed[index], -1),
        num_labelled=jnp.where(present, data.num_labelled[ids], 0),
        num_examples=num_examples,
        sent={},
        variates=(),
        weak=weak,
    )


def _server(data: FederatedData) -> Client:
    """The server as the only client of a federation of its own."""
    index, count = data.server_index[None], data.num_server[None]
    real = jnp.arange(index.shape[1], dtype=jnp.int32) < count[:, None]
    observed = jnp.where(real, data.observed[index], -1)
    return Client(jnp.zeros((1,), jnp.int32), index, observed, count, count, sent={}, variates=())


def _pack(params: Params) -> Grouped:
    return {name: packing(tree).pack(tree) for name, tree in params.items()}


def _report_all(
    run: Callable[..., tuple[ServerState, Metrics]], names: list[str]
) -> Callable[..., tuple[ServerState, Metrics]]:
    def complete(key: Array, state: ServerState, data: FederatedData) -> tuple[ServerState, Metrics]:
        new_state, info = run(key, state, data)
        missing = jnp.full((), jnp.nan, jnp.result_type(float))
        return new_state, {name: info.get(name, missing) for name in names}

    return complete
