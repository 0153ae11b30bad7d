"""ProtoFSSL: clients exchange class prototypes, and label their examples with those of other clients.

References:
    Kim, Park, et al., Federated semi-supervised learning with prototypical networks, arXiv 2205.13921. Defaults are
    those of the authors' code of May 2022, from which the published tables come; see docs/methods/protofssl.md.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl.checks import check_choices, check_numbers, check_weights, check_whole_numbers, is_zero
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import (
    BYTES_PER_NUMBER,
    Client,
    Method,
    Round,
    ServerState,
    Setup,
    Stage,
    Step,
    Term,
    Traffic,
    Trained,
    episodes,
    federated_method,
)
from fedjax_ssl.federated.episodes import QUERY, SUPPORT, UNLABELLED
from fedjax_ssl.federated.method import Metrics, PyTree
from fedjax_ssl.federated.terms import PseudoLabels, augmented_view, diagnose_pseudo_labels, network_outputs
from fedjax_ssl.graph.weighting import class_counts
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.prototype_bank import (
    PrototypeBank,
    PrototypeSets,
    choose_helpers,
    empty_bank,
    newest_sets,
    push,
)
from fedjax_ssl.methods.parts.prototype_losses import (
    Scoring,
    labelled_prototypes,
    mean_log_probs,
    pseudo_labels,
    query_loss,
    unlabelled_loss,
)
from fedjax_ssl.objectives import class_prototypes, mean_prototypes
from fedjax_ssl.objectives.prototypes import DISTANCES

TERM = "protofssl"


class State(NamedTuple):
    """What the server keeps beside the model."""

    bank: PrototypeBank
    helpers: PrototypeSets  # as last chosen, [H, K, d]


class Sent(NamedTuple):
    """What a client receives beside the model; with a leading axis p for the cohort."""

    helpers: PrototypeSets  # [H, K, d]; all absent where they are not needed
    active: Bool[Array, ""]  # unlabelled examples are learned from in this round


def protofssl(
    setup: Setup,
    *,
    num_support: int = 1,
    num_query: int = 2,
    num_unlabelled: int = 100,
    unlabelled_weight: float = 0.3,
    temperature: float = 0.5,
    distance: str = "mean_sq",
    unlabel_loss: str = "ce",
    stop_gradient_pseudo_label: bool = False,
    num_helpers: int = 5,
    helper_interval: int = 1,
    proto_source: str = "local_support",
    proto_refresh: str = "end",
    keep_proto_rounds: int = 1,
    min_proto_count: int = 1,
    proto_noise_std: float = 0.0,
    unlabel_round: int = 0,
    warmup_episode: int = 0,
    eval_bank: str = "two_rounds",
    l2: float = 0.0,
) -> Method:
    """ProtoFSSL: classes are scored by prototypes; the helpers' prototypes of the round before give pseudo-labels.

    A local step is an episode, and `setup.local_epochs` their number E; `setup.batch_size` plays no part. The network's
    class scores are not used.

    Args:
        setup: the run.
        num_support: labelled examples per class and step that make the local prototypes.
        num_query: labelled examples per class and step that are compared with them.
        num_unlabelled: unlabelled examples per step.
        unlabelled_weight: lambda, of the loss on them; 0 leaves them out of the step.
        temperature: T, pseudo-labels are sharpened with exponent 1/T.
        distance: "mean_sq" (the code's), "euclidean" (the paper's text) or "sq_euclidean".
        unlabel_loss: "ce", against probabilities clipped at 1e-7, or "mse".
        stop_gradient_pseudo_label: hold pseudo-labels fixed; in the code the gradient flows through them.
        num_helpers: prototype sets that make the pseudo-labels; all there are, if fewer. In the paper's runs as many as
            clients in a cohort.
        helper_interval: rounds between two choices of helpers.
        proto_source: of the local predictions: "local_support", or "global", the helpers' mean (algorithm 2), where all
            labelled examples of a step are queries.
        proto_refresh: clients compute the prototypes they share at the "end" of their training, for the next round, or
            at its "begin", with the model just received, for the same round.
        keep_proto_rounds: rounds whose prototypes may help.
        min_proto_count: labels below which a client does not share a class.
        proto_noise_std: of Gaussian noise on what is shared.
        unlabel_round: unlabelled examples are used in rounds after this one, counted from 0.
        warmup_episode: steps at the start of every round without them.
        eval_bank: predictions average over the prototypes of the newest "two_rounds", or of the "latest".
        l2: weight of the sum of the squared convolution weights.

    Raises:
        ValueError: for a setting outside these.
    """
    scoring = Scoring(temperature, distance, unlabel_loss, stop_gradient_pseudo_label)
    check_choices(DISTANCES, distance=distance)
    check_choices(("ce", "mse"), unlabel_loss=unlabel_loss)
    check_choices(("local_support", "global"), proto_source=proto_source)
    check_choices(("end", "begin"), proto_refresh=proto_refresh)
    check_choices(("two_rounds", "latest"), eval_bank=eval_bank)
    check_whole_numbers(num_support=num_support, num_query=num_query, num_unlabelled=num_unlabelled)
    check_whole_numbers(num_helpers=num_helpers, helper_interval=helper_interval)
    check_whole_numbers(keep_proto_rounds=keep_proto_rounds, min_proto_count=min_proto_count)
    check_whole_numbers(0, unlabel_round=unlabel_round, warmup_episode=warmup_episode)
    check_weights(unlabelled_weight=unlabelled_weight, proto_noise_std=proto_noise_std, l2=l2)
    check_numbers("(0, inf)", temperature=temperature)
    if warmup_episode >= setup.local_epochs:
        raise ValueError(
            f"protofssl: warmup_episode is {warmup_episode}; of {setup.local_epochs} local steps "
            "(config.optimizer.local_epochs) none would use unlabelled examples"
        )
    pseudo_labelled, shared = not is_zero(unlabelled_weight), proto_source == "global"
    helpers_at_most = num_helpers if pseudo_labelled or shared else 0
    streams = (SUPPORT, QUERY, UNLABELLED) if pseudo_labelled else (SUPPORT, QUERY)
    views = {stream: augmented_view(setup, stream) for stream in streams}

    def shared_classes(client: Client) -> Bool[Array, " K"]:
        return class_counts(client.observed, setup.num_classes) >= min_proto_count

    def share(params: PyTree, model_state: PyTree, client: Client, inputs: Array, key: Key[Array, ""]) -> PrototypeSets:
        noise = named_key(key, "prototype noise")
        centers = labelled_prototypes(setup, params, model_state, client, inputs)
        if not is_zero(proto_noise_std):
            centers = centers + proto_noise_std * jax.random.normal(noise, centers.shape, centers.dtype)
        return PrototypeSets(centers, shared_classes(client))

    def prepare(state: State, round: Round) -> tuple[Sent, State]:
        bank, slots = state.bank, round.valid.shape[0]
        if proto_refresh == "begin":
            key = named_key(round.key, "begin")
            keys = jax.vmap(lambda client: jax.random.fold_in(key, client))(round.clients.id)
            uploads = jax.vmap(lambda c, k: share(round.params, round.model_state, c, round.inputs, k))(
                round.clients, keys
            )
            bank = push(bank, uploads, round.clients.id, round.valid)
        helpers = choose_helpers(named_key(round.key, "helpers"), bank, keep_proto_rounds, helpers_at_most)
        if helper_interval > 1:
            due = ((round.number - 1) % helper_interval == 0) | ~jnp.any(state.helpers.present)
            helpers = jax.tree.map(lambda new, old: jnp.where(due, new, old), helpers, state.helpers)
        active = jnp.any(helpers.present) & (round.number > unlabel_round) & pseudo_labelled
        needed = helpers.present if shared else helpers.present & active
        sent = Sent(PrototypeSets(helpers.centers, needed), active)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (slots, *x.shape)), sent), State(bank, helpers)

    def takes_part(sent: Sent, round: Round) -> Bool[Array, " p"]:
        clients = round.clients
        labelled = clients.num_labelled > 0
        return labelled | (sent.active & (clients.num_examples > clients.num_labelled)) if shared else labelled

    def loss(step: Step) -> tuple[Array, PyTree]:
        sent: Sent = step.client.sent[TERM]
        features = {stream: step.outputs[view.name].features for stream, view in views.items()}
        support, query = step.streams[SUPPORT], step.streams[QUERY]
        centers, present = class_prototypes(features[SUPPORT], support.observed, setup.num_classes)
        queries, targets = features[QUERY], query.observed
        if shared:
            there, (means, known) = (
                jnp.any(sent.helpers.present),
                mean_prototypes(sent.helpers.centers, sent.helpers.present),
            )
            centers = jnp.where(there, means.astype(centers.dtype), centers)
            present = jnp.where(there, known, present)
            queries = jnp.concatenate([features[SUPPORT], queries])
            targets = jnp.concatenate([jnp.where(there, support.observed, -1), targets])
        total = query_loss(queries, targets, centers, present, scoring)
        if pseudo_labelled:
            mask = step.streams[UNLABELLED].mask
            total = total + unlabelled_weight * unlabelled_loss(
                features[UNLABELLED], mask, centers, present, sent.helpers, scoring
            )
        # A client whose support is not finite is dropped even where it has nothing to compare with it.
        total = total + 0.0 * jnp.sum(centers)
        if not is_zero(l2):
            kernels = [leaf for leaf in jax.tree.leaves(step.params) if leaf.ndim == 4]
            total = total + l2 * sum(jnp.sum(jnp.square(kernel)) for kernel in kernels)
        return total, step.local

    def collect(trained: Trained) -> PyTree:
        if proto_refresh == "begin":
            return ()
        return share(trained.params, trained.model_state, trained.client, trained.inputs, trained.key)

    def absorb(state: State, local: PyTree, uploads: PyTree, counts: Bool[Array, " p"], round: Round) -> State:
        if proto_refresh == "begin":
            return state
        return state._replace(bank=push(state.bank, uploads, round.clients.id, counts))

    def diagnose(sent: Sent, truth: Int[Array, "p n"], round: Round) -> Metrics:
        """Of `num_unlabelled` unlabelled examples of every client, under the model that was sent."""
        if not pseudo_labelled:
            return {}
        clients, size = round.clients, round.clients.index.shape[1]
        place = clients.num_labelled[:, None] + jnp.arange(min(num_unlabelled, size), dtype=jnp.int32)
        within = jnp.minimum(place, size - 1)
        rows = jnp.take_along_axis(clients.index, within, axis=1)
        features = network_outputs(setup, round, clients._replace(index=rows)).features
        probs = jax.vmap(lambda z, own: pseudo_labels(z, own, scoring))(features, sent.helpers)
        largest = jnp.max(probs, axis=2)
        given = (place < clients.num_examples[:, None]) & sent.active[:, None] & jnp.isfinite(largest)
        labels = jnp.where(given, jnp.argmax(probs, axis=2).astype(jnp.int32), -1)
        nothing = jnp.zeros_like(clients.num_labelled)
        seen = clients._replace(
            index=rows,
            observed=jnp.full_like(rows, -1),
            num_labelled=nothing,
            num_examples=clients.num_examples - clients.num_labelled,
        )
        targets = PseudoLabels(labels, largest, largest)
        return diagnose_pseudo_labels(targets, jnp.take_along_axis(truth, within, axis=1), round._replace(clients=seen))

    def traffic(round: Round) -> Traffic:
        helpers: PrototypeSets = round.clients.sent[TERM].helpers
        down = jnp.sum(helpers.present & round.valid[:, None, None])
        up = jnp.sum(jax.vmap(shared_classes)(round.clients) & round.valid[:, None])
        size, dtype = BYTES_PER_NUMBER * helpers.centers.shape[-1], jnp.result_type(float)
        return Traffic(size * down.astype(dtype), size * up.astype(dtype))

    term = Term(
        TERM,
        tuple(views.values()),
        loss,
        prepare=prepare,
        takes_part=takes_part,
        collect=collect,
        absorb=absorb,
        diagnose=diagnose,
        traffic=traffic,
    )
    steps = setup.local_epochs
    sampler = episodes(
        steps,
        setup.num_classes,
        num_support,
        num_query,
        num_unlabelled if pseudo_labelled else 0,
        setup.max_labelled,
        lambda client: jnp.where(client.sent[TERM].active, warmup_episode, steps),
    )
    stage = Stage((term,), sampler, labelled_quota="any" if shared else "only")
    method = federated_method(setup, (stage,), class_scores=False)
    embed = method.embed
    assert embed is not None

    def init(key: Key[Array, ""], data: FederatedData) -> ServerState:
        state = method.init(key, data)
        width = jax.eval_shape(lambda: embed(state, data.inputs[:1])).shape[-1]
        bank = empty_bank(keep_proto_rounds + 1, setup.cohort_size, setup.num_classes, width)
        helpers = jax.eval_shape(lambda: choose_helpers(key, bank, keep_proto_rounds, helpers_at_most))
        nobody = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), helpers)
        return state._replace(terms={**state.terms, TERM: State(bank, nobody)})

    def predict(state: ServerState, inputs: Array) -> Float[Array, "n K"]:
        sets = newest_sets(state.terms[TERM].bank, 2 if eval_bank == "two_rounds" else 1)
        return mean_log_probs(embed(state, inputs), sets, distance)

    return method._replace(init=init, predict=predict)
