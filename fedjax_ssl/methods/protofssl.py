"""ProtoFSSL: clients exchange class prototypes, and label their examples by those of other clients.

A class is scored by the distance to its prototype, the mean embedding of its examples. A local step
of a client is an episode: a few labelled examples of every class (the support) make prototypes. A
few others (the queries Q) and unlabelled examples U are compared with these,

    L = -1/|Q| sum over Q log p_y(x) + lambda 1/|U| sum over U CE(q(u), p(u))        (algorithm 1)

where q is the mean of the probabilities by the prototypes of H helpers, clients of the round
before, sharpened with exponent 1/T. Clients upload the prototypes of their labelled examples; the
server keeps those of the last rounds.

Shapes: B stored rounds, p cohort slots, H helpers, K classes, d features.

References:
    Kim, Park, et al., Federated semi-supervised learning with prototypical networks, arXiv
    2205.13921. Defaults are those of the authors' code of May 2022, from which the published tables
    come; see docs/methods/protofssl.md.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedjax_ssl import objectives
from fedjax_ssl.checks import checked, is_zero
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import (
    Now,
    Recipe,
    RoundContext,
    RoundResult,
    Sampler,
    Schedule,
    ServerState,
    Stage,
    Step,
    Term,
    Traffic,
    Training,
    View,
    map_rows,
)
from fedjax_ssl.federated.contract import (
    AtClient,
    AtServer,
    Broadcast,
    Client,
    ClientResult,
    ForLog,
    Metrics,
    merged,
)
from fedjax_ssl.federated.messages import Upload
from fedjax_ssl.federated.sampler import masked_permutation
from fedjax_ssl.federated.setup import Setup
from fedjax_ssl.federated.traffic import BYTES_PER_NUMBER, count
from fedjax_ssl.federated.uploads import UploadTransform
from fedjax_ssl.graph.weighting import class_counts
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.composition import Part
from fedjax_ssl.methods.parts.prototype_bank import (
    PrototypeBank,
    PrototypeSets,
    choose_helpers,
    empty_bank,
    finite_sets,
    newest_sets,
    push,
)
from fedjax_ssl.methods.parts.setting_types import Count, CountOrZero, Positive, Share, Weight
from fedjax_ssl.methods.parts.static_batch_norm import with_static_batch_norm
from fedjax_ssl.methods.parts.terms import (
    PseudoLabels,
    augmented_view,
    examples_mask,
    network_features,
    pseudo_label_term,
)
from fedjax_ssl.methods.parts.views_and_teachers import judge_unlabelled
from fedjax_ssl.models import Outputs, count_parameters

# The paper's settings, except the distance: "mean_sq" learns slowly with a small network.
RECOMMENDED = {
    "protofssl": {
        "per_class": {
            "rounds": 80,
            "method.distance": "sq_euclidean",
            "optimizer.name": "rmsprop",
            "optimizer.learning_rate": 1e-3,
            "optimizer.batch_size": 5,
            "optimizer.local_epochs": 10,
            # In the code, the state of the optimizer is passed on from client to client and from
            # round to round.
            "optimizer.average_state": True,
        }
    }
}

TERM = "protofssl"
# Streams of an episode.
SUPPORT = "support"
QUERY = "query"
UNLABELLED = "unlabelled"
GIGA = 1e9
MEGA = 1e6
# Newest rounds whose prototypes predict.
EVAL_ROUNDS = 2
Number = float | Array


@checked
@dataclass(frozen=True)
class ProtoFSSL:
    """Settings of ProtoFSSL.

    Attributes:
        num_support: labelled examples per class and step that make the local prototypes.
        num_query: labelled examples per class and step that are compared with them.
        num_unlabelled: unlabelled examples per step.
        unlabelled_weight: lambda, of the loss on them; 0 leaves them out of the step.
        temperature: T, pseudo-labels are sharpened with exponent 1/T.
        distance: "mean_sq" (the code's), "euclidean" (the paper's text) or "sq_euclidean".
        absent_classes: gradient through the pseudo-labels of a client without labels of some class.
            "stop": none. "flow", as in the code: it drives embeddings away from that class, because
            its probability is clipped at 1e-7.
        num_helpers: prototype sets that make the pseudo-labels; all sets if there are fewer. The
            paper's runs have as many as clients in a cohort.
        helper_interval: rounds between two choices of helpers.
        proto_source: prototypes for the local predictions: "local_support", or "global", the
            helpers' mean (algorithm 2), with all labelled examples of a step as queries.
        keep_proto_rounds: rounds whose prototypes may help.
        proto_noise_std: standard deviation of Gaussian noise on the shared prototypes.
        unlabel_round: unlabelled examples are used after this round, counted from 0.
        static_batch_norm: statistics of batch norm layers (norm "bn") by a pass over the data after
            every round, as in HeteroFL, in place of running averages; see
            `fedjax_ssl.methods.parts.static_batch_norm`.
    """

    num_support: Count = 1
    num_query: Count = 2
    num_unlabelled: Count = 100
    unlabelled_weight: Weight = 0.3
    temperature: Positive = 0.5
    distance: Literal["sq_euclidean", "mean_sq", "euclidean"] = "mean_sq"
    absent_classes: Literal["stop", "flow"] = "stop"
    num_helpers: Count = 5
    helper_interval: Count = 1
    proto_source: Literal["local_support", "global"] = "local_support"
    keep_proto_rounds: Count = 1
    proto_noise_std: Weight = 0.0
    unlabel_round: CountOrZero = 0
    static_batch_norm: bool = False

    @property
    def pseudo_labelled(self) -> bool:
        """Whether the method learns from unlabelled examples at all."""
        return not is_zero(self.unlabelled_weight)

    @property
    def global_source(self) -> bool:
        """Whether local predictions use the helpers' mean prototypes."""
        return self.proto_source == "global"

    @property
    def most_helpers(self) -> int:
        """Bound of the number of prototype sets that are sent."""
        return self.num_helpers if self.pseudo_labelled or self.global_source else 0


def protofssl(setup: Setup, settings: ProtoFSSL) -> Recipe:
    """ProtoFSSL: classes are scored by prototypes; the helpers' prototypes of the round before give
    pseudo-labels.

    A local step is an episode, and `setup.local_epochs` is their number E; `setup.batch_size` is
    not used. The network's class scores are not used.

    Args:
        setup: the run.
        settings: the method's own.

    Raises:
        ValueError: for a setting outside its range.
    """
    # A step is an episode.
    sampler = episodes(setup, settings, _learns_unlabelled)
    stage = Stage(
        Training((_term(setup, settings),), sampler),
        labelled_quota="any" if settings.global_source else "only",
    )
    recipe = Recipe(
        setup,
        (stage,),
        init=partial(_with_bank, setup, settings),
        predict=partial(_predict, settings),
        class_scores=False,
        uploads=(_as_shared(settings),),
        check=partial(check_episodes, settings),
    )
    return with_static_batch_norm(recipe) if settings.static_batch_norm else recipe


@checked
@dataclass(frozen=True)
class Prototypes:
    """Settings of pseudo-labels by prototypes: those of ProtoFSSL, and a threshold, which is ours.

    Attributes:
        threshold: smallest confidence of a pseudo-label that counts; 0: all count, as in ProtoFSSL.
        distance: between embeddings and prototypes: "sq_euclidean", "mean_sq" (the same divided by
            the number of features, which makes pseudo-labels of a small network vague) or
            "euclidean".
        temperature: T, pseudo-labels are sharpened with exponent 1/T.
        num_helpers: prototype sets that make the pseudo-labels; all sets if there are fewer.
    """

    threshold: Share = 0.95
    distance: Literal["sq_euclidean", "mean_sq", "euclidean"] = "sq_euclidean"
    temperature: Positive = 0.5
    num_helpers: Count = 5


def prototypes(setup: Setup, settings: Prototypes) -> Part:
    """Pseudo-labels by other clients' class prototypes (ProtoFSSL).

    The network's class scores are trained on them.

    Args:
        setup: the run.
        settings: the term's own.
    """
    # Prototypes are sent as in ProtoFSSL. Labels come from the received network, because during
    # local steps embeddings move away from the prototypes of the round before.
    shared = {name: value for name, value in vars(settings).items() if name != "threshold"}
    how = ProtoFSSL(**shared, proto_source="global")
    whole = _term(setup, how)

    def prepare(state: PyTree, context: RoundContext) -> tuple[Broadcast, PyTree]:
        sent, state = whole.server.prepare(state, context)
        helpers = sent.shared
        probabilities = jax.vmap(lambda own: pseudo_labels(own, helpers.sets, how))(
            network_features(setup, context)
        )
        largest = jnp.max(probabilities, axis=2)
        unlabelled = examples_mask(context.clients) & (context.clients.observed < 0)
        sure = unlabelled & helpers.active & (largest >= settings.threshold)
        labels = jnp.where(sure, jnp.argmax(probabilities, axis=2).astype(jnp.int32), -1)
        targets = PseudoLabels(labels, sure.astype(largest.dtype), largest)
        return Broadcast(targets, helpers), state

    nothing: Any = None
    taught = pseudo_label_term(setup, nothing, stream=UNLABELLED)
    server = taught.server._replace(
        prepare=prepare, server_update=whole.server.server_update, at_clients=False
    )
    log = taught.log._replace(traffic=whole.log.traffic)
    term = taught._replace(
        name=TERM, server=server, client=whole.client, log=log, sends=whole.sends
    )
    return Part(term, ("labels",), init=partial(_with_bank, setup, how))


# One round: messages, losses, stored state and log


class Helpers(NamedTuple):
    """Message to all clients besides the model."""

    sets: PrototypeSets  # [H, K, d]; all absent if they are not needed
    active: Bool[Array, ""]  # unlabelled examples are used in this round


class State(NamedTuple):
    """State that the server keeps besides the model."""

    bank: PrototypeBank
    helpers: PrototypeSets  # helpers of the last choice, [H, K, d]


def _term(setup: Setup, settings: ProtoFSSL) -> Term:
    """Return ProtoFSSL's term: one loss, with prototypes up and helpers' prototypes down."""
    streams = (SUPPORT, QUERY, UNLABELLED) if settings.pseudo_labelled else (SUPPORT, QUERY)
    views = {stream: augmented_view(setup, stream) for stream in streams}

    def participates(sent: Broadcast, context: RoundContext) -> Bool[Array, " p"]:
        clients = context.clients
        helpers = sent.shared
        labelled = clients.num_labelled > 0
        towards_helpers = helpers.active & (clients.num_examples > clients.num_labelled)
        return labelled | towards_helpers if settings.global_source else labelled

    def store(state: State, outcome: RoundResult) -> State:
        return state._replace(
            bank=push(state.bank, outcome.uploads, outcome.context.clients.id, outcome.counts)
        )

    server = AtServer(
        prepare=partial(_prepare, settings), participates=participates, server_update=store
    )
    client = AtClient(collect=partial(_prototypes_after, setup))
    log = ForLog(
        measure=partial(_rows_used, setup, settings),
        diagnose=partial(_diagnose, setup, settings),
        traffic=partial(_traffic, setup, settings),
    )
    return Term(
        TERM,
        tuple(views.values()),
        partial(_loss, setup, settings, views),
        server=server,
        client=client,
        log=log,
        sends="class prototypes",
    )


def _as_shared(settings: ProtoFSSL) -> UploadTransform:
    """Add noise to the prototypes that a client uploads; an upload with prototypes that are not
    finite is lost.
    """

    def at_client(
        key: Key[Array, ""], upload: Upload, trained: ClientResult, state: PyTree
    ) -> Upload:
        sets = _with_noise(settings, upload.terms[TERM], trained.key)
        return upload._replace(
            terms={**upload.terms, TERM: sets},
            arrived=upload.arrived & jnp.all(finite_sets(sets)),
        )

    return UploadTransform("shared prototypes", at_client=at_client)


def _with_noise(settings: ProtoFSSL, sets: PrototypeSets, key: Key[Array, ""]) -> PrototypeSets:
    if is_zero(settings.proto_noise_std):
        return sets
    centers = sets.centers
    noise = jax.random.normal(named_key(key, "prototype noise"), centers.shape, centers.dtype)
    return sets._replace(centers=centers + settings.proto_noise_std * noise)


def _learns_unlabelled(now: Now) -> Bool[Array, ""]:
    return now.shared[TERM].active


def _shared_classes(setup: Setup, client: Client) -> Bool[Array, " K"]:
    return class_counts(client.observed, setup.num_classes) >= 1


def _prototypes_after(setup: Setup, trained: ClientResult) -> PrototypeSets:
    """Return the prototypes of one client's labelled examples, at the end of local training, for
    the next round.
    """
    client = trained.client
    centers = labelled_prototypes(
        setup, trained.params, trained.model_state, client, trained.inputs
    )
    return PrototypeSets(centers, _shared_classes(setup, client))


def _prepare(settings: ProtoFSSL, state: State, context: RoundContext) -> tuple[Broadcast, State]:
    """Chooses the helpers whose prototypes everybody receives."""
    bank = state.bank
    key = named_key(context.key, "helpers")
    helpers = choose_helpers(key, bank, settings.keep_proto_rounds, settings.most_helpers)
    if settings.helper_interval > 1:
        due = ((context.number - 1) % settings.helper_interval == 0) | ~jnp.any(
            state.helpers.present
        )
        helpers = jax.tree.map(lambda new, old: jnp.where(due, new, old), helpers, state.helpers)
    active = (
        jnp.any(helpers.present)
        & (context.number > settings.unlabel_round)
        & settings.pseudo_labelled
    )
    needed = helpers.present if settings.global_source else helpers.present & active
    return Broadcast(shared=Helpers(PrototypeSets(helpers.centers, needed), active)), State(
        bank, helpers
    )


def _loss(
    setup: Setup, settings: ProtoFSSL, views: dict[str, View], step: Step
) -> Float[Array, ""]:
    """Return L = L_s + lambda L_u of one episode (algorithm 1)."""
    helpers = step.shared
    features = {stream: step.outputs[view.name].features for stream, view in views.items()}
    support = step.streams[SUPPORT]
    query = step.streams[QUERY]
    centers, present = objectives.class_prototypes(
        features[SUPPORT], support.observed, setup.num_classes
    )
    queries = features[QUERY]
    targets = query.observed
    if settings.global_source:
        there = jnp.any(helpers.sets.present)
        means, known = objectives.mean_prototypes(helpers.sets.centers, helpers.sets.present)
        centers = jnp.where(there, means.astype(centers.dtype), centers)
        present = jnp.where(there, known, present)
        queries = jnp.concatenate([features[SUPPORT], queries])
        targets = jnp.concatenate([jnp.where(there, support.observed, -1), targets])
    total = query_loss(queries, targets, centers, present, settings)
    if settings.pseudo_labelled:
        mask = step.streams[UNLABELLED].mask
        total = total + settings.unlabelled_weight * unlabelled_loss(
            features[UNLABELLED], mask, centers, present, helpers.sets, settings
        )
    # A client whose support is not finite is dropped, even if it has nothing to compare with it.
    return total + 0.0 * jnp.sum(centers)


def _rows_used(
    setup: Setup, settings: ProtoFSSL, trained: ClientResult
) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """Count the examples that a client used: (forward and backward, forward only, for the
    prototypes it shares).
    """
    client = trained.client
    steps = trained.num_steps
    counts = class_counts(client.observed, setup.num_classes).astype(jnp.int32)
    support, query = support_and_query(counts, settings)
    rows = steps * jnp.sum(support + query, dtype=jnp.int32)
    if settings.pseudo_labelled:
        unlabelled = jnp.minimum(settings.num_unlabelled, client.num_examples - client.num_labelled)
        rows = rows + jnp.where(_learns_unlabelled(trained.now), steps, 0) * unlabelled
    return rows, client.num_labelled


def _diagnose(
    setup: Setup,
    settings: ProtoFSSL,
    outcome: RoundResult,
    truth: Int[Array, "p n"],
    measured: PyTree,
) -> Metrics:
    """Log the cost of the round, and the pseudo-labels of `num_unlabelled` unlabelled examples
    of every client.
    """
    costs = _costs(setup, settings, outcome, *measured)
    helpers = outcome.sent.shared
    if not settings.pseudo_labelled:
        return costs

    def predict(outputs):
        return jax.vmap(lambda z: pseudo_labels(z, helpers.sets, settings))(outputs.features)

    def given(largest):
        return jnp.full_like(largest, helpers.active, dtype=bool)

    return costs | judge_unlabelled(setup, outcome, truth, settings.num_unlabelled, predict, given)


def _traffic(setup: Setup, settings: ProtoFSSL, outcome: RoundResult) -> Traffic:
    """Count the bytes: the helpers' prototypes to every client, and every client's own prototypes
    back.
    """
    context = outcome.context
    sets = outcome.sent.shared.sets
    down = jnp.sum(sets.present) * jnp.sum(context.valid)
    classes = jax.vmap(partial(_shared_classes, setup))(context.clients)
    size = BYTES_PER_NUMBER * sets.centers.shape[-1]
    return Traffic(count(down, size), count(jnp.sum(classes & context.valid[:, None]), size))


def _with_bank(
    setup: Setup, settings: ProtoFSSL, state: ServerState, data: FederatedData
) -> ServerState:
    """Return the state with an empty bank."""
    key = jax.random.key(0)  # any key: only shapes of the draws are read

    def features() -> Array:
        inputs = setup.normalize(data.inputs[:1])
        network = merged(state.params), state.model_state
        return setup.model.apply(*network, inputs, train=False)[0].features

    width = jax.eval_shape(features).shape[-1]
    bank = empty_bank(settings.keep_proto_rounds + 1, setup.cohort_size, setup.num_classes, width)
    choice: Any = jax.eval_shape(
        lambda: choose_helpers(key, bank, settings.keep_proto_rounds, settings.most_helpers)
    )
    nobody = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), choice)
    return state._replace(terms={**state.terms, TERM: State(bank, nobody)})


def _predict(settings: ProtoFSSL, state: ServerState, outputs: Outputs) -> Float[Array, "n K"]:
    """Score classes by the prototypes of the bank."""
    sets = newest_sets(state.terms[TERM].bank, EVAL_ROUNDS)
    return mean_log_probs(outputs.features, sets, settings.distance)


# Cost of a client in a round, by the formulas of Table 1 and as it is run


def analytic_cost(
    labelled: Number,
    unlabelled: Number,
    operations: float,
    model_bytes: float,
    num_helpers: int,
    num_classes: int,
    num_features: int,
    passes: int = 1,
) -> tuple[Number, Number]:
    """Count operations and bytes of a client in a round (Table 1).

    F (|D^L| + |D^U|) E + D H K |D^U| E + F |D^L| and 2 Theta + C (1 + H) K, with C bytes for D
    features. Operations are additions and multiplications of forward passes alone; bytes are those
    down and up together. With 50 labelled and 490 unlabelled examples and two helpers these are the
    figures of Table 2.

    Args:
        labelled: labelled examples |D^L|.
        unlabelled: unlabelled examples |D^U|.
        operations: F, operations of one example.
        model_bytes: Theta.
        num_helpers: H.
        num_classes: K.
        num_features: D.
        passes: E, passes over all examples.
    """
    forwards = (labelled + unlabelled) * passes + labelled
    distances = num_features * num_helpers * num_classes * unlabelled * passes
    prototypes = BYTES_PER_NUMBER * num_features * (1 + num_helpers) * num_classes
    return operations * forwards + distances, 2 * model_bytes + prototypes


def _costs(
    setup: Setup,
    settings: ProtoFSSL,
    outcome: RoundResult,
    trained: Int[Array, " p"],
    others: Int[Array, " p"],
) -> Metrics:
    """Return the mean costs of a round's clients; empty if the network's operations are unknown.

    `trained` examples went forward and backward, `others` forward only; a backward pass counts as
    two forward ones.
    """
    if setup.model.forward_operations is None:
        return {}
    operations = float(setup.model.forward_operations())
    valid = outcome.context.valid
    clients = outcome.context.clients

    def mean(values: Array) -> Float[Array, ""]:
        total = jnp.sum(values, where=valid).astype(jnp.result_type(float))
        return total / jnp.maximum(jnp.sum(valid), 1).astype(total.dtype)

    labelled = mean(clients.num_labelled)
    unlabelled: Number = mean(clients.num_examples) - labelled if settings.pseudo_labelled else 0
    size = float(BYTES_PER_NUMBER * count_parameters(outcome.context.params))
    width = outcome.sent.shared.sets.centers.shape[-1]
    asked = analytic_cost(
        labelled, unlabelled, operations, size, settings.most_helpers, setup.num_classes, width
    )
    forward = mean(trained + others)
    backward = 2 * mean(trained)
    values = {
        "analytic_gflop": asked[0] / GIGA,
        "analytic_megabytes": asked[1] / MEGA,
        "as_run_forward_gflop": operations / GIGA * forward,
        "as_run_gflop": operations / GIGA * (forward + backward),
    }
    return {name: jnp.asarray(value, forward.dtype) for name, value in values.items()}


# Scores and losses of an episode (docs/methods/protofssl.md, "A round")


def query_loss(
    embeddings: Float[Array, "n d"],
    targets: Int[Array, " n"],
    centers: Float[Array, "K d"],
    present: Bool[Array, " K"],
    settings: ProtoFSSL,
) -> Float[Array, ""]:
    """Return L_s = -1/|Q| sum_x log p_y(x), over queries whose class has a prototype; 0 if there
    are none.

    Args:
        embeddings: embeddings of the labelled queries.
        targets: their classes, -1 = padding.
        centers: local prototypes.
        present: mask of classes with a local prototype.
        settings: settings, for the distance.
    """
    log_probs = objectives.prototype_log_probs(
        embeddings, centers, present, distance=settings.distance
    )
    counted = (targets >= 0) & present[jnp.maximum(targets, 0)]
    return objectives.batch_cross_entropy(log_probs, jnp.where(counted, targets, -1), counted)


def pseudo_labels(
    embeddings: Float[Array, "n d"], helpers: PrototypeSets, settings: ProtoFSSL
) -> Float[Array, "n K"]:
    """Return the helpers' probabilities, averaged and sharpened; 0 without helpers."""
    return objectives.helper_pseudo_labels(
        embeddings,
        helpers.centers,
        helpers.present,
        1.0,
        settings.temperature,
        distance=settings.distance,
    )


def unlabelled_loss(
    embeddings: Float[Array, "n d"],
    mask: Bool[Array, " n"],
    centers: Float[Array, "K d"],
    present: Bool[Array, " K"],
    helpers: PrototypeSets,
    settings: ProtoFSSL,
) -> Float[Array, ""]:
    """Return L_u: local predictions against the helpers' pseudo-labels, averaged over the rows in
    the mask; 0 if there are none.

    A class without a local prototype has probability 0. It stays in the cross-entropy, clipped,
    because otherwise the loss would fall by moving pseudo-labels onto absent classes.

    Args:
        embeddings: embeddings of the unlabelled queries.
        mask: False on padding, and everywhere while unlabelled examples are not learned from.
        centers: local prototypes.
        present: mask of classes with a local prototype.
        helpers: prototypes of the helpers, as constants.
        settings: distance, sharpening, and whether gradients flow through pseudo-labels.
    """
    targets = pseudo_labels(embeddings, helpers, settings)
    if settings.absent_classes == "stop":
        targets = jnp.where(jnp.all(present), targets, jax.lax.stop_gradient(targets))
    log_probs = objectives.prototype_log_probs(
        embeddings, centers, present, distance=settings.distance
    )
    return objectives.clipped_cross_entropy(targets, log_probs, mask)


def mean_log_probs(
    embeddings: Float[Array, "n d"], sets: PrototypeSets, distance: str
) -> Float[Array, "n K"]:
    """Return the log of the probabilities averaged over prototype sets; uniform without any set."""
    probs = objectives.helper_pseudo_labels(
        embeddings, sets.centers, sets.present, 1.0, 1.0, distance=distance
    )
    log_probs = jnp.log(jnp.maximum(probs, jnp.finfo(probs.dtype).tiny))
    return jnp.where(jnp.any(sets.present), log_probs, -jnp.log(float(probs.shape[1])))


def labelled_prototypes(
    setup: Setup, params: PyTree, model_state: PyTree, client: Client, inputs: Array
) -> Float[Array, "K d"]:
    """Return the mean embedding of a client's labelled examples by class, in evaluation mode,
    without augmentation.
    """

    def embed(raw: Array) -> Float[Array, "b d"]:
        return setup.model.apply(params, model_state, setup.normalize(raw), train=False)[0].features

    bound = min(max(setup.max_labelled, 1), client.rows.shape[0])
    embeddings = map_rows(embed, inputs, client.rows[:bound], setup.evaluation_batch_size)
    return objectives.class_prototypes(embeddings, client.observed[:bound], setup.num_classes)[0]


# Episodes: local steps on a few examples of every class, as in training of prototypical networks
# (Snell, Swersky, Zemel, NeurIPS 2017), with unlabelled queries (algorithm 1)


def episodes(
    setup: Setup,
    settings: ProtoFSSL,
    learns_unlabelled: Callable[[Now], Bool[Array, ""]],
) -> Sampler:
    """Return a sampler of episodes: every step draws `num_support` and `num_query` new examples of
    each class, and unlabelled ones.

    Streams "support" [K * num_support] and "query" [K * num_query], class after class, and
    "unlabelled" [num_unlabelled], without repetition within a step. If a class has only n labels,
    fewer than needed, min(num_support, n - 1) are support and the rest queries; a single one is
    support. If there are too few unlabelled examples, all are drawn.

    Args:
        setup: the run. A client with something to learn from takes `local_epochs` steps, others
            none.
        settings: the method's own. The stream "unlabelled" is left out if it is not used.
        learns_unlabelled: round -> whether it draws unlabelled queries. It may read messages of
            terms.
    """
    num_steps = setup.local_epochs

    def schedule(key: Key[Array, ""], client: Client, now: Now) -> Schedule:
        size = client.rows.shape[0]
        bound = min(max(setup.max_labelled, 1), size)
        known = jnp.arange(bound, dtype=jnp.int32) < client.num_labelled
        classes = jnp.where(known, client.observed[:bound], -1)
        learns = learns_unlabelled(now)
        number = client.num_examples - client.num_labelled

        def one_step(step: Int[Array, ""]) -> tuple[dict[str, Array], dict[str, Array]]:
            step_key = jax.random.fold_in(key, step)
            labelled_key = named_key(step_key, "labelled")
            places, masks = _by_class(labelled_key, classes, setup.num_classes, settings)
            if settings.pseudo_labelled:
                order = masked_permutation(named_key(step_key, "unlabelled"), number, size)
                taken = min(settings.num_unlabelled, size)
                slot = jnp.arange(taken, dtype=jnp.int32)
                places[UNLABELLED] = jnp.minimum(client.num_labelled + order[:taken], size - 1)
                masks[UNLABELLED] = (slot < number) & learns
            return places, masks

        positions, masks = jax.vmap(one_step)(jnp.arange(num_steps, dtype=jnp.int32))
        trains = jnp.any(known) | ((number > 0) & learns)
        return Schedule(positions, masks, jnp.where(trains, num_steps, 0))

    return Sampler(schedule, reads_sent=True, equal_steps=True)


def check_episodes(settings: ProtoFSSL, data: FederatedData) -> list[str]:
    """Compare the labels of clients with those that an episode needs; on the host, before training.

    Returns:
        Notes, a sentence each.

    Raises:
        ValueError: no client has a query in any episode.
    """
    index = np.asarray(data.index)
    known = np.asarray(data.num_labelled)
    classes = np.where(
        np.arange(index.shape[1]) < known[:, None], np.asarray(data.observed)[index], -1
    )
    asked = settings.num_support + settings.num_query
    counts = np.stack([(classes == kind).sum(axis=1) for kind in range(data.num_classes)], axis=1)
    if counts.max() < 2 and not settings.global_source:
        raise ValueError(
            "no client has two labels of one class, one for the support of an episode and one "
            f"for a query; give every client {asked} labels per class, or 2 at "
            "least"
        )
    notes = []
    if (without := int((known == 0).sum())) and not settings.global_source:
        notes.append(
            f"{without} of {known.size} clients have no class labels: they have no prototypes and "
            "never train"
        )
    held = counts[known > 0]
    if fewer := int((held < asked).sum()):
        notes.append(
            f"an episode asks for {asked} labels of every class ({settings.num_support} support, "
            f"{settings.num_query} queries); of {held.size} classes at clients with labels, "
            f"{fewer} have fewer, of which {(held == 0).sum()} have none ({_absent(settings)}) and "
            f"{(held == 1).sum()} a single one (support, never a query)"
        )
    return notes


def _absent(settings: ProtoFSSL) -> str:
    """Return a note about a client without labels of some class."""
    if not settings.pseudo_labelled:
        return "probability 0 there"
    if settings.absent_classes == "stop":
        return (
            "probability 0 there; absent_classes='stop' holds pseudo-labels fixed at such "
            "clients, unlike the code"
        )
    return "probability 0 there; absent_classes='flow' drives embeddings off them, as in the code"


def support_and_query(
    counts: Int[Array, "*n"], settings: ProtoFSSL
) -> tuple[Int[Array, "*n"], Int[Array, "*n"]]:
    """Return the numbers of support and query examples of a class in a step, from its number of
    labels; see `episodes`.
    """
    support = jnp.where(counts > 1, jnp.minimum(settings.num_support, counts - 1), counts)
    return support, jnp.minimum(settings.num_query, counts - support)


def _by_class(
    key: Key[Array, ""],
    classes: Int[Array, " n"],
    num_classes: int,
    settings: ProtoFSSL,
) -> tuple[dict[str, Int[Array, " b"]], dict[str, Bool[Array, " b"]]]:
    """Draw support and queries of every class from examples of these classes, -1 = none."""
    group = jnp.where(classes >= 0, classes, num_classes)
    # Class after class.
    order = jnp.lexsort((jax.random.bits(key, group.shape), group)).astype(jnp.int32)
    counts = jnp.sum(
        group[None] == jnp.arange(num_classes, dtype=group.dtype)[:, None], axis=1, dtype=jnp.int32
    )
    starts = jnp.cumsum(counts) - counts
    support, query = support_and_query(counts, settings)

    def slots(begin: Int[Array, " K"], taken: Int[Array, " K"], width: int) -> tuple[Array, Array]:
        column = jnp.arange(width, dtype=jnp.int32)
        mask = column < taken[:, None]
        places = order[jnp.minimum(begin[:, None] + column, order.shape[0] - 1)]
        return jnp.where(mask, places, 0).reshape(-1), mask.reshape(-1)

    drawn = {
        SUPPORT: slots(starts, support, settings.num_support),
        QUERY: slots(starts + support, query, settings.num_query),
    }
    places = {name: places for name, (places, _) in drawn.items()}
    return places, {name: mask for name, (_, mask) in drawn.items()}
