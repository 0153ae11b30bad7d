"""FedMatch around its losses: helpers, learning rates that follow the validation loss, what is kept, and the log.

Source: Jeong et al., FedMatch, ICLR 2021, arXiv 2006.12097; schedules as in the authors' code.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedjax_ssl.federated import (
    AtClient,
    AtServer,
    Broadcast,
    Client,
    ClientResult,
    ForLog,
    RoundContext,
    RoundResult,
    ServerTraining,
    Setup,
    Step,
    Stream,
    Term,
)
from fedjax_ssl.federated.method import Metrics, Params
from fedjax_ssl.federated.terms import PseudoLabels, diagnose_pseudo_labels
from fedjax_ssl.methods.parts import fedmatch_exchange
from fedjax_ssl.methods.parts.fedmatch_exchange import Store, ToClient, combine
from fedjax_ssl.methods.parts.fedmatch_settings import Settings
from fedjax_ssl.methods.parts.matched_batches import Bounds, matched_batches
from fedjax_ssl.methods.parts.plateau import Plateau, first_plateau, next_plateau, validate

Known = TypeVar("Known")
TERM = "fedmatch"
# By `lr_schedule`: factor of a client's learning rate.
RATES: dict[str, Callable[[Client], Float[Array, ""]] | None] = {
    "client": lambda client: _known(remembered_by(client).plateau).factor,
    "global": lambda client: client.sent[TERM].rate,
    "none": None,
}


class State(NamedTuple):
    """What the server keeps beside the model."""

    store: Store
    plateau: Plateau | None  # of the learning rate that all clients have, if they do


class Remembered(NamedTuple):
    """What a client keeps; None where its settings need nothing."""

    plateau: Plateau | None
    accuracy: Float[Array, ""] | None  # of its model on the validation examples
    helpers: tuple[PyTree, Bool[Array, " H"]] | None  # the last ones, and which there are


class Votes(NamedTuple):
    """The pseudo-labels of a client's round, by place in its table, for the log."""

    labels: Int[Array, " W"]  # -1 = none
    confidence: Float[Array, " W"]


def remembered_by(client: Client) -> Remembered:
    """What a client keeps."""
    assert client.kept is not None, "clients of a federation always have a table"
    return client.kept.terms[TERM]


def evaluated(settings: Settings, parts: Params) -> PyTree:
    """The network of a model as it is evaluated."""
    return combine(settings.exchange.visible(parts) if settings.evaluate_sparse else parts)


def receive_differences(client: Client, parts: Params) -> Params:
    """What a client has of the model where only differences are sent."""
    return fedmatch_exchange.receive(client.sent[TERM], parts)


def ask_helpers(
    setup: Setup, settings: Settings, step: Step, inputs: Array
) -> tuple[Float[Array, "H n K"], Bool[Array, " H"]]:
    """The helpers' class probabilities, constants, and which helpers there are.

    A helper is another client's psi with the sigma that this client received, through the whole round.
    """
    sent: ToClient = step.sent
    helpers, available = sent.helpers, sent.available
    if settings.helper_hold == "keep":
        helpers, available = _latest(sent, remembered_by(step.client))

    def predict(helper: PyTree) -> Float[Array, "n K"]:
        params = combine({**step.received.groups, settings.unsupervised_part: helper})
        outputs, _ = setup.model.apply(params, step.received.model_state, inputs, train=False)
        return jax.nn.softmax(outputs.logits)

    def ask() -> Float[Array, "H n K"]:
        return jax.lax.map(predict, helpers)

    shape = jax.eval_shape(jax.vmap(predict), helpers)
    probs = nobody = jnp.zeros(shape.shape, shape.dtype)
    if settings.num_helpers:
        # Nine rounds of ten have no helpers, and no forward passes of theirs.
        probs = jax.lax.cond(step.shared, ask, lambda: nobody)
    return jax.lax.stop_gradient(probs), available


def noted(votes: Votes, batch: Stream, labels: Int[Array, " b"], confidence: Float[Array, " b"]) -> Votes:
    """The votes with those of a batch."""
    place = jnp.where(batch.mask, batch.position, votes.labels.shape[0])
    confidence = confidence.astype(votes.confidence.dtype)
    return Votes(
        votes.labels.at[place].set(labels, mode="drop"), votes.confidence.at[place].set(confidence, mode="drop")
    )


def around_training(setup: Setup, settings: Settings) -> tuple[AtServer, AtClient, ForLog]:
    """All that the term of the unlabelled examples does before and after local training."""
    exchange, lr_schedule = settings.exchange, settings.lr_schedule

    def init(key: Key[Array, ""], network: PyTree, model_state: PyTree, everyone: Client) -> State:
        store = fedmatch_exchange.empty_store(settings.split(network), everyone.id.shape[0], setup.num_classes)
        return State(store, first_plateau(settings.patience) if lr_schedule == "global" else None)

    def prepare(state: State, round: RoundContext) -> tuple[Broadcast, State]:
        sent, plateau = fedmatch_exchange.to_cohort(exchange, state.store, round), state.plateau
        if lr_schedule == "global":
            network, before = (evaluated(settings, round.groups), round.model_state), _known(state.plateau)
            loss, _ = validate(setup, *network, round.inputs, _known(round.validation))
            after = next_plateau(before, loss, settings.lr_divisor, settings.patience)
            plateau = jax.tree.map(lambda new, old: jnp.where(round.number > 0, new, old), after, before)
            sent = sent._replace(rate=jnp.broadcast_to(plateau.factor, round.valid.shape))
        with_helpers = fedmatch_exchange.helpers_due(exchange, round.number)
        if settings.helper_hold == "keep":
            with_helpers = round.number + 1 >= settings.helper_interval
        return Broadcast(sent, with_helpers), State(store=state.store, plateau=plateau)

    def server_update(state: State, outcome: RoundResult) -> State:
        return state._replace(store=fedmatch_exchange.server_update(setup, exchange, state.store, outcome))

    def keep(network: PyTree, model_state: PyTree, client: Client) -> Remembered:
        many = (settings.num_helpers,)
        nobody = jax.tree.map(lambda w: jnp.zeros(many + w.shape, w.dtype), network), jnp.zeros(many, bool)
        own = lr_schedule == "client"
        return Remembered(
            plateau=first_plateau(settings.patience) if own else None,
            accuracy=jnp.zeros(()) if own else None,
            helpers=nobody if settings.helper_hold == "keep" else None,
        )

    def remember(trained: ClientResult) -> Remembered:
        kept = remembered_by(trained.client)
        if lr_schedule == "client":
            network = evaluated(settings, trained.groups), trained.model_state
            loss, accuracy = validate(setup, *network, trained.inputs, trained.validation)
            after = next_plateau(_known(kept.plateau), loss, settings.lr_divisor, settings.patience)
            kept = kept._replace(plateau=after, accuracy=accuracy)
        if settings.helper_hold == "keep":
            kept = kept._replace(helpers=_latest(trained.client.sent[TERM], kept))
        return kept

    def start(state: State, params: PyTree, model_state: PyTree, kept: PyTree) -> Votes:
        width = setup.max_labelled + setup.max_unlabelled  # no table is wider
        return Votes(jnp.full(width, -1, jnp.int32), jnp.zeros(width))

    def measure(trained: ClientResult) -> Votes:
        return jax.tree.map(lambda values: values[: trained.client.rows.shape[0]], trained.local[TERM])

    def diagnose(outcome: RoundResult, truth: Int[Array, "p n"], measured: Votes) -> Metrics:
        clients = outcome.round.clients
        given = PseudoLabels(measured.labels, measured.confidence, measured.confidence)
        metrics = {**diagnose_pseudo_labels(given, truth, clients), **fedmatch_exchange.costs(outcome)}
        if lr_schedule == "client":
            accuracy = outcome.after.clients.terms[TERM].accuracy.at[clients.id].get(mode="clip")
            metrics["client_validation_accuracy"] = jnp.mean(accuracy, where=outcome.counts)
        return metrics

    needs_memory = lr_schedule == "client" or settings.helper_hold == "keep"
    client = AtClient(start=start, collect=lambda trained: fedmatch_exchange.collect(exchange, trained))
    if needs_memory:
        client = client._replace(keep=keep, remember=remember)
    log = ForLog(measure, diagnose, lambda outcome: fedmatch_exchange.traffic(exchange, outcome))
    return AtServer(init, prepare, server_update=server_update), client, log


def server_training(setup: Setup, settings: Settings, supervised: Term) -> ServerTraining:
    """Epochs over the server's labelled examples in stored order, before the clients, at a rate of its own."""
    sampler = matched_batches(
        settings.server_batch_size,
        None,
        settings.server_epochs,
        Bounds(setup.max_server, 1, 0),
        shuffle=settings.shuffle,
    )
    if settings.lr_schedule == "none":
        return ServerTraining((supervised,), sampler, when=("before",))

    def loss_after(trained: ClientResult) -> Float[Array, ""]:
        network = evaluated(settings, trained.groups), trained.model_state
        return validate(setup, *network, trained.inputs, trained.validation)[0]

    def server_update(state: Plateau, outcome: RoundResult) -> Plateau:
        after = next_plateau(state, outcome.uploads[0], settings.lr_divisor, settings.patience)
        return jax.tree.map(lambda new, old: jnp.where(outcome.counts[0], new, old), after, state)

    term = supervised._replace(
        server=AtServer(
            init=lambda *_: first_plateau(settings.patience),
            prepare=lambda state, round: (Broadcast(state.factor[None]), state),
            server_update=server_update,
        ),
        client=AtClient(collect=loss_after),
    )
    return ServerTraining((term,), sampler, when=("before",), rate=lambda client: client.sent[term.name])


def _known(value: Known | None) -> Known:
    """What the settings say is there."""
    assert value is not None
    return value


def _latest(sent: ToClient, kept: Remembered) -> tuple[PyTree, Bool[Array, " H"]]:
    """The helpers of this round, or where there are none those of before."""
    fresh = jnp.any(sent.available)
    return jax.tree.map(lambda new, old: jnp.where(fresh, new, old), (sent.helpers, sent.available), kept.helpers)
