"""ProtoFSSL: clients exchange class prototypes, and label their examples with those of other clients.

References:
    Kim, Park, et al., Federated semi-supervised learning with prototypical networks, arXiv 2205.13921. Defaults are
    those of the authors' code of May 2022, from which the published tables come; see docs/methods/protofssl.md.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedjax_ssl.checks import check_choices, check_numbers, check_weights, check_whole_numbers, is_zero
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import (
    BYTES_PER_NUMBER,
    Client,
    Method,
    RoundContext,
    Sampler,
    ServerState,
    Setup,
    Stage,
    Step,
    Term,
)
from fedjax_ssl.federated.engine import federated_method
from fedjax_ssl.federated.episodes import QUERY, SUPPORT, UNLABELLED, check_episodes, episodes, support_and_query
from fedjax_ssl.federated.method import (
    AtClient,
    AtServer,
    Broadcast,
    ClientResult,
    ForLog,
    Metrics,
    Now,
    RoundResult,
    Traffic,
    View,
)
from fedjax_ssl.federated.setup import WEIGHTINGS
from fedjax_ssl.federated.terms import augmented_view
from fedjax_ssl.federated.traffic import count
from fedjax_ssl.graph.weighting import class_counts
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.cost_model import Cost, Work, cost_metrics, protofssl_cost
from fedjax_ssl.methods.parts.prototype_bank import (
    Helpers,
    PrototypeBank,
    PrototypeSets,
    choose_helpers,
    empty_bank,
    finite_sets,
    newest_sets,
    push,
)
from fedjax_ssl.methods.parts.prototype_log import diagnose_helpers
from fedjax_ssl.methods.parts.prototype_losses import (
    Scoring,
    labelled_prototypes,
    mean_log_probs,
    query_loss,
    unlabelled_loss,
)
from fedjax_ssl.objectives import DISTANCES, class_prototypes, mean_prototypes

TERM = "protofssl"


class State(NamedTuple):
    """What the server keeps beside the model."""

    bank: PrototypeBank
    helpers: PrototypeSets  # as last chosen, [H, K, d]


class EpisodeSettings(NamedTuple):
    """Of the method, as `protofssl` explains them."""

    num_support: int
    num_query: int
    num_unlabelled: int
    unlabelled_weight: float | Array
    scoring: Scoring
    num_helpers: int
    helper_interval: int
    proto_source: str
    proto_refresh: str
    keep_proto_rounds: int
    min_proto_count: int
    proto_noise_std: float | Array
    unlabel_round: int
    warmup_episode: int
    eval_bank: str
    l2: float | Array

    @property
    def pseudo_labelled(self) -> bool:
        """Whether unlabelled examples are learned from at all."""
        return not is_zero(self.unlabelled_weight)

    @property
    def global_source(self) -> bool:
        """Whether local predictions compare with the helpers' mean prototypes."""
        return self.proto_source == "global"

    @property
    def most_helpers(self) -> int:
        """Prototype sets that are sent, at most."""
        return self.num_helpers if self.pseudo_labelled or self.global_source else 0


def protofssl(
    setup: Setup,
    *,
    num_support: int = 1,
    num_query: int = 2,
    num_unlabelled: int = 100,
    unlabelled_weight: float | Array = 0.3,
    temperature: float | Array = 0.5,
    distance: str = "mean_sq",
    unlabel_loss: str = "ce",
    stop_gradient_pseudo_label: bool = False,
    num_helpers: int = 5,
    helper_interval: int = 1,
    proto_source: str = "local_support",
    proto_refresh: str = "end",
    keep_proto_rounds: int = 1,
    min_proto_count: int = 1,
    proto_noise_std: float | Array = 0.0,
    unlabel_round: int = 0,
    warmup_episode: int = 0,
    eval_bank: str = "two_rounds",
    l2: float | Array = 0.0,
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
    settings = EpisodeSettings(
        num_support=num_support,
        num_query=num_query,
        num_unlabelled=num_unlabelled,
        unlabelled_weight=unlabelled_weight,
        scoring=Scoring(temperature, distance, unlabel_loss, stop_gradient_pseudo_label),
        num_helpers=num_helpers,
        helper_interval=helper_interval,
        proto_source=proto_source,
        proto_refresh=proto_refresh,
        keep_proto_rounds=keep_proto_rounds,
        min_proto_count=min_proto_count,
        proto_noise_std=proto_noise_std,
        unlabel_round=unlabel_round,
        warmup_episode=warmup_episode,
        eval_bank=eval_bank,
        l2=l2,
    )
    quota = "any" if settings.global_source else "only"
    stage = Stage((_term(setup, settings),), _sampler(setup, settings), labelled_quota=quota)
    if settings.proto_refresh == "end":
        stage = stage._replace(weigh=partial(_weigh, setup))
    return _with_bank(setup, settings, federated_method(setup, (stage,), class_scores=False))


def _term(setup: Setup, settings: EpisodeSettings) -> Term:
    """What ProtoFSSL adds to federated averaging: one loss, prototypes up, helpers' prototypes down."""
    streams = (SUPPORT, QUERY, UNLABELLED) if settings.pseudo_labelled else (SUPPORT, QUERY)
    views = {stream: augmented_view(setup, stream) for stream in streams}

    def participates(sent: Broadcast, round: RoundContext) -> Bool[Array, " p"]:
        clients, helpers = round.clients, sent.shared
        labelled = clients.num_labelled > 0
        towards_helpers = helpers.active & (clients.num_examples > clients.num_labelled)
        return labelled | towards_helpers if settings.global_source else labelled

    server = AtServer(prepare=partial(_prepare, setup, settings), participates=participates)
    client = AtClient()
    log = ForLog(
        measure=partial(_rows_used, setup, settings),
        diagnose=partial(_diagnose, setup, settings),
        traffic=partial(_traffic, setup, settings),
    )
    if settings.proto_refresh == "end":
        server = server._replace(server_update=_store)
        client = client._replace(collect=partial(_prototypes_after, setup, settings))
    return Term(
        TERM, tuple(views.values()), partial(_loss, setup, settings, views), server=server, client=client, log=log
    )


def _weigh(setup: Setup, client: Client, uploads: dict[str, PyTree]) -> Float[Array, ""]:
    """The run's weight; NaN, which drops the client, where the prototypes that it uploads are not finite."""
    return jnp.where(jnp.all(finite_sets(uploads[TERM])), WEIGHTINGS[setup.weighting](client), jnp.nan)


def _sampler(setup: Setup, settings: EpisodeSettings) -> Sampler:
    """A step is an episode; unlabelled examples are drawn from the first step that learns from them."""
    return episodes(
        setup.local_epochs,
        setup.num_classes,
        settings.num_support,
        settings.num_query,
        settings.num_unlabelled if settings.pseudo_labelled else 0,
        setup.max_labelled,
        partial(_first_unlabelled_step, setup, settings),
    )


def _first_unlabelled_step(setup: Setup, settings: EpisodeSettings, client: Client, now: Now) -> Int[Array, ""]:
    return jnp.where(now.shared[TERM].active, settings.warmup_episode, setup.local_epochs)


def _shared_classes(setup: Setup, settings: EpisodeSettings, client: Client) -> Bool[Array, " K"]:
    return class_counts(client.observed, setup.num_classes) >= settings.min_proto_count


def _share(
    setup: Setup,
    settings: EpisodeSettings,
    params: PyTree,
    model_state: PyTree,
    client: Client,
    inputs: Array,
    key: Key[Array, ""],
) -> PrototypeSets:
    """The prototypes of one client's labelled examples as it shares them."""
    centers = labelled_prototypes(setup, params, model_state, client, inputs)
    if not is_zero(settings.proto_noise_std):
        noise = jax.random.normal(named_key(key, "prototype noise"), centers.shape, centers.dtype)
        centers = centers + settings.proto_noise_std * noise
    return PrototypeSets(centers, _shared_classes(setup, settings, client))


def _prototypes_after(setup: Setup, settings: EpisodeSettings, trained: ClientResult) -> PrototypeSets:
    """At the end of local training, for the next round."""
    network = trained.params, trained.model_state
    return _share(setup, settings, *network, trained.client, trained.inputs, trained.key)


def _prototypes_before(setup: Setup, settings: EpisodeSettings, round: RoundContext) -> PrototypeSets:
    """At the beginning, with the model just received, for the same round; leading axis p."""
    begin = named_key(round.key, "begin")
    keys = jax.vmap(lambda client: jax.random.fold_in(begin, client))(round.clients.id)

    def share(client: Client, key: Key[Array, ""]) -> PrototypeSets:
        return _share(setup, settings, round.params, round.model_state, client, round.inputs, key)

    return jax.vmap(share)(round.clients, keys)


def _prepare(setup: Setup, settings: EpisodeSettings, state: State, round: RoundContext) -> tuple[Broadcast, State]:
    """Chooses the helpers whose prototypes everybody receives."""
    bank = state.bank
    if settings.proto_refresh == "begin":
        bank = push(bank, _prototypes_before(setup, settings, round), round.clients.id, round.valid)
    key = named_key(round.key, "helpers")
    helpers = choose_helpers(key, bank, settings.keep_proto_rounds, settings.most_helpers)
    if settings.helper_interval > 1:
        due = ((round.number - 1) % settings.helper_interval == 0) | ~jnp.any(state.helpers.present)
        helpers = jax.tree.map(lambda new, old: jnp.where(due, new, old), helpers, state.helpers)
    active = jnp.any(helpers.present) & (round.number > settings.unlabel_round) & settings.pseudo_labelled
    needed = helpers.present if settings.global_source else helpers.present & active
    return Broadcast(shared=Helpers(PrototypeSets(helpers.centers, needed), active)), State(bank, helpers)


def _loss(setup: Setup, settings: EpisodeSettings, views: dict[str, View], step: Step) -> Float[Array, ""]:
    """L = L_s + lambda L_u of one episode (algorithm 1)."""
    helpers, scoring = step.shared, settings.scoring
    features = {stream: step.outputs[view.name].features for stream, view in views.items()}
    support, query = step.streams[SUPPORT], step.streams[QUERY]
    centers, present = class_prototypes(features[SUPPORT], support.observed, setup.num_classes)
    queries, targets = features[QUERY], query.observed
    if settings.global_source:
        there = jnp.any(helpers.sets.present)
        means, known = mean_prototypes(helpers.sets.centers, helpers.sets.present)
        centers = jnp.where(there, means.astype(centers.dtype), centers)
        present = jnp.where(there, known, present)
        queries = jnp.concatenate([features[SUPPORT], queries])
        targets = jnp.concatenate([jnp.where(there, support.observed, -1), targets])
    total = query_loss(queries, targets, centers, present, scoring)
    if settings.pseudo_labelled:
        mask = step.streams[UNLABELLED].mask
        total = total + settings.unlabelled_weight * unlabelled_loss(
            features[UNLABELLED], mask, centers, present, helpers.sets, scoring
        )
    # A client whose support is not finite is dropped even where it has nothing to compare with it.
    total = total + 0.0 * jnp.sum(centers)
    if not is_zero(settings.l2):
        kernels = [leaf for leaf in jax.tree.leaves(step.params) if leaf.ndim == 4]
        total = total + settings.l2 * sum(jnp.sum(jnp.square(kernel)) for kernel in kernels)
    return total


def _store(state: State, outcome: RoundResult) -> State:
    return state._replace(bank=push(state.bank, outcome.uploads, outcome.round.clients.id, outcome.counts))


def _rows_used(setup: Setup, settings: EpisodeSettings, trained: ClientResult) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """Examples that a client went through: (forward and backward, forward only, for the prototypes it shares)."""
    client, steps = trained.client, trained.num_steps
    counts = class_counts(client.observed, setup.num_classes).astype(jnp.int32)
    support, query = support_and_query(counts, settings.num_support, settings.num_query)
    rows = steps * jnp.sum(support + query, dtype=jnp.int32)
    if settings.pseudo_labelled:
        without = jnp.minimum(_first_unlabelled_step(setup, settings, client, trained.now), steps)
        unlabelled = jnp.minimum(settings.num_unlabelled, client.num_examples - client.num_labelled)
        rows = rows + (steps - without) * unlabelled
    return rows, client.num_labelled


def _diagnose(
    setup: Setup, settings: EpisodeSettings, outcome: RoundResult, truth: Int[Array, "p n"], measured: PyTree
) -> Metrics:
    """What the round cost and, of `num_unlabelled` unlabelled examples of every client, how good pseudo-labels are."""
    width = outcome.sent.shared.sets.centers.shape[-1]

    def cost(work: Work) -> Cost:
        used = work if settings.pseudo_labelled else work._replace(unlabelled=0)
        return protofssl_cost(used, settings.most_helpers, setup.num_classes, width)

    metrics = cost_metrics(setup, outcome, cost, *measured)
    if not settings.pseudo_labelled:
        return metrics
    return metrics | diagnose_helpers(setup, settings.num_unlabelled, settings.scoring, outcome, truth)


def _traffic(setup: Setup, settings: EpisodeSettings, outcome: RoundResult) -> Traffic:
    """Helpers' prototypes to every client, every client's own back."""
    round, sets = outcome.round, outcome.sent.shared.sets
    down = jnp.sum(sets.present) * jnp.sum(round.valid)
    classes = jax.vmap(partial(_shared_classes, setup, settings))(round.clients)
    size = BYTES_PER_NUMBER * sets.centers.shape[-1]
    return Traffic(count(down, size), count(jnp.sum(classes & round.valid[:, None]), size))


def _with_bank(setup: Setup, settings: EpisodeSettings, method: Method) -> Method:
    """The method with an empty bank at the start, and predictions by the prototypes in it."""
    embed = method.embed
    assert embed is not None

    def init(key: Key[Array, ""], data: FederatedData) -> ServerState:
        state = method.init(key, data)
        width = jax.eval_shape(lambda: embed(state, data.inputs[:1])).shape[-1]
        bank = empty_bank(settings.keep_proto_rounds + 1, setup.cohort_size, setup.num_classes, width)
        choice: Any = jax.eval_shape(
            lambda: choose_helpers(key, bank, settings.keep_proto_rounds, settings.most_helpers)
        )
        nobody = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), choice)
        return state._replace(terms={**state.terms, TERM: State(bank, nobody)})

    def predict(state: ServerState, inputs: Array) -> Float[Array, "n K"]:
        sets = newest_sets(state.terms[TERM].bank, 2 if settings.eval_bank == "two_rounds" else 1)
        return mean_log_probs(embed(state, inputs), sets, settings.scoring.distance)

    check = partial(
        check_episodes, num_support=settings.num_support, num_query=settings.num_query, queries=settings.global_source
    )
    return method._replace(init=init, predict=predict, check=check)
