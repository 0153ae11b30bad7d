"""CBAFed: a few clients with labels for all of their examples, all others without any;
class-balanced thresholds.

The labelled clients train alone at first (warm-up). Then, in a round with W the model that a client
receives:

1. A client with labels trains on them, with local residuals: after epochs 5, 10, ... the weights
   and batch statistics become 0.8 times those of the last such moment, at first the end of epoch 0,
   plus 0.2 times the present ones.
2. A client without labels labels its examples once, in one view each: p = softmax f_W(a(x)). It
   keeps those with max p > T_c for the likeliest class c. Of the others it keeps those whose second
   class is a tail class, with that label. It trains on these very views, and uploads how many it
   kept of every class.
3. The models are averaged, with as many shares as a client has labels or kept examples. After
   rounds 5, 10, ... the model and its batch statistics become the mean of themselves and of those
   of the last such moment (global residual).
4. Let a_c be the labelled and the kept examples of class c, K the number of classes, s_c = K/10 a_c
   / sum a. Then

       T_c = min(s_c + 0.84 - std s, 0.95),    tail classes: s_c < 0.03.

Written after the authors' code, because the text of the paper was not available
(docs/methods/others.md).

References:
    Li, Li, Wang, Class balanced adaptive pseudo labeling for federated semi-supervised learning,
    CVPR 2023.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl.checks import checked, is_zero
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import (
    BYTES_PER_NUMBER,
    AtClient,
    Client,
    ClientResult,
    LocalStep,
    Now,
    PyTree,
    Recipe,
    RoundContext,
    RoundResult,
    Sampler,
    Schedule,
    ServerState,
    Setup,
    Snapshot,
    Stage,
    StepTaken,
    Streams,
    TakeStep,
    Term,
    Traffic,
    Training,
    View,
    batches_per_epoch,
    count,
    labelled_epochs,
)
from fedjax_ssl.graph import class_counts
from fedjax_ssl.methods.parts.confident_pseudo_labels import (
    CONFIDENT,
    Choice,
    confident_epochs,
    confident_term,
    fix_term,
    labelled_view,
    sent_to,
)
from fedjax_ssl.methods.parts.setting_types import Count, CountOrZero, Decay, Share, Weight
from fedjax_ssl.methods.parts.terms import examples_mask, supervised_term

RECOMMENDED = {
    "cbafed": {
        "all": {  # all labels of a few clients
            "rounds": 51,
            "method.warmup_epochs": 51,
            "optimizer.learning_rate": 0.03,
            "optimizer.momentum": 0.9,
            "optimizer.weight_decay": 5e-4,
            "optimizer.clip_norm": 5.0,
            "optimizer.keep_state": True,
            "optimizer.local_epochs": 11,
            "federated.weighting": "examples",  # weighting during the warm-up
        }
    }
}

TAIL_SHARE = 0.03  # a class with a smaller share is a tail class
RESIDUAL_EPOCHS = 5  # epochs between two local residuals
RESIDUAL_ROUNDS = 5  # rounds between two global residuals
# Learning rate of clients without labels, as a factor of the run's; 0.02 of 0.03 in the authors'
# code.
UNLABELLED_RATE = 2 / 3

RESIDUAL = "global residual"  # entry of the term's state: the model of the last global residual


class Thresholds(NamedTuple):
    """Thresholds of the largest class probability, and the mask of classes with few examples."""

    lowest: Float[Array, " K"]
    tail: Bool[Array, " K"]


@checked
@dataclass(frozen=True)
class CBAFed:
    """Settings of CBAFed.

    Attributes:
        warmup_rounds: rounds at the start in which clients with labels train alone; the average is
            as `config.federated.weighting` says, in the paper by "examples".
        warmup_epochs: local epochs of these.
        base_threshold: T_c of a class with as many examples as the standard deviation.
        largest_threshold: the most that T_c may be; the code has 0.9 for SVHN.
        tail_second: whether an unsure example may be labelled with its second class.
        local_residual: share of the earlier weights at a client with labels; 0 leaves it out.
        global_residual: share of the earlier model at the server; 0 leaves it out.
        labelled_weight: factor of the weight of clients with labels in the average.
    """

    warmup_rounds: CountOrZero = 1
    warmup_epochs: Count = 501
    base_threshold: Share = 0.84
    largest_threshold: Share = 0.95
    tail_second: bool = True
    local_residual: Decay = 0.8
    global_residual: Decay = 0.5
    labelled_weight: Weight = 1.0


def cbafed(setup: Setup, settings: CBAFed) -> Recipe:
    """CBAFed: class-balanced adaptive thresholds, residual weights.

    Clients with a label train on their labels, `config.optimizer.local_epochs` a round; all others
    have none. As in the code, momentum lives on with `config.optimizer.keep_state`, and all clients
    take part.

    Args:
        setup: the run.
        settings: the method's own.

    Raises:
        ValueError: for a setting outside these, or a single class.
    """
    if setup.num_classes < 2:
        raise ValueError(
            "cbafed compares how many examples the classes have; it needs two classes at least"
        )
    labelled = supervised_term(setup)
    learned = _learned_term(setup)
    if not is_zero(settings.local_residual):
        residual = with_local_residual(setup.batch_size, settings)
        labelled = labelled._replace(client=residual)
        learned = learned._replace(client=residual)
    together = Stage(
        Training(
            (_labelling_term(setup, settings), learned),
            _epochs(setup),
            rate=lambda client: jnp.where(_has_labels(client), 1.0, UNLABELLED_RATE),
            weigh=partial(_weight, settings),
        )
    )
    epochs = labelled_epochs(
        setup.batch_size, settings.warmup_epochs, setup.max_labelled, skip_single=True
    )
    warm_up = Stage(
        Training((labelled,), epochs), labelled_quota="only", rounds=settings.warmup_rounds
    )
    recipe = Recipe(setup, (warm_up, together) if settings.warmup_rounds else (together,))
    return with_global_residual(recipe, settings)


def _has_labels(client: Client) -> Bool[Array, "..."]:
    return client.num_labelled > 0


def _weight(settings: CBAFed, client: Client, uploads: dict[str, PyTree]) -> Float[Array, ""]:
    """Return a client's weight in the average: its labels times their factor, or the number of
    examples that it kept.
    """
    labels = settings.labelled_weight * client.num_labelled.astype(jnp.result_type(float))
    return jnp.where(_has_labels(client), labels, jnp.sum(uploads[CONFIDENT]))


def _epochs(setup: Setup) -> Sampler:
    """Return a sampler of the local epochs: the run's number over a client's labels, or one over
    the examples it kept.
    """
    epochs = setup.local_epochs
    sampler = confident_epochs(setup.batch_size, epochs, with_partners=False, skip_single=True)

    def schedule(key: Key[Array, ""], client: Client, now: Now) -> Schedule:
        drawn = sampler.schedule(key, client, now)
        first = drawn.num_steps // epochs
        return drawn._replace(num_steps=jnp.where(_has_labels(client), drawn.num_steps, first))

    return sampler._replace(schedule=schedule)


def _learned_term(setup: Setup) -> Term:
    """Cross-entropy of a client's labels in fresh views, or of the examples that it kept in the
    very views that it labelled.
    """
    seen = labelled_view(setup)

    def build(key: Key[Array, ""], streams: Streams) -> Array:
        batch = streams["fix"]
        fresh = setup.normalize(setup.augment(key, batch.inputs))
        own = (batch.observed >= 0).reshape(-1, *[1] * (fresh.ndim - 1))
        return jnp.where(own, fresh, seen.build(key, streams))

    return fix_term(setup, 1.0, View("fix", "fix", build))


def class_thresholds(counts: Float[Array, " K"], settings: CBAFed) -> Thresholds:
    """Return the thresholds of the classes (step 4).

    Args:
        counts: a, examples of every class; without any, all classes count the same and are tail
            classes.
        settings: the method's own.
    """
    num_classes = counts.shape[0]
    share = counts / jnp.maximum(jnp.sum(counts), 1.0) * (num_classes / 10)
    lowest = share + settings.base_threshold - jnp.std(share, ddof=1)
    return Thresholds(jnp.minimum(lowest, settings.largest_threshold), share < TAIL_SHARE)


def choose_by_class(
    probabilities: Float[Array, "... K"], thresholds: Thresholds, tail_second: bool
) -> tuple[Int[Array, "..."], Bool[Array, "..."]]:
    """Return the label of every example, and the mask of kept ones (step 2)."""
    first = jnp.argmax(probabilities, axis=-1).astype(jnp.int32)
    largest = jnp.max(probabilities, axis=-1)
    sure = ~(largest <= thresholds.lowest[first])
    if not tail_second:
        return first, sure
    others = jnp.where(
        jax.nn.one_hot(first, probabilities.shape[-1], dtype=bool), -1.0, probabilities
    )
    second = jnp.argmax(others, axis=-1).astype(jnp.int32)
    return jnp.where(sure, first, second), sure | thresholds.tail[second]


def _labelling_term(setup: Setup, settings: CBAFed) -> Term:
    """Labels the examples of clients without labels; its state is what they kept of every class,
    b.
    """

    def choose(
        kept: Float[Array, " K"], context: RoundContext, probabilities: Float[Array, "p n K"]
    ) -> Choice:
        thresholds = class_thresholds(_labelled_counts(setup, context) + kept, settings)
        labels, confident = choose_by_class(probabilities, thresholds, settings.tail_second)
        return Choice(labels, confident & (context.clients.num_labelled == 0)[:, None])

    def kept_of(trained: ClientResult) -> Float[Array, " K"]:
        sent = sent_to(trained.client)
        kept = sent.confident & ~_has_labels(trained.client)
        return class_counts(jnp.where(kept, sent.labels, -1), setup.num_classes)

    def server_update(kept: Float[Array, " K"], outcome: RoundResult) -> Float[Array, " K"]:
        return jnp.sum(jnp.where(outcome.counts[:, None], outcome.uploads, 0.0), axis=0)

    def traffic(outcome: RoundResult) -> Traffic:
        """Count the numbers sent: thresholds and a bit per class down, kept examples of every class
        up.
        """
        clients = jnp.sum(
            outcome.context.valid & (outcome.context.clients.num_labelled == 0), dtype=jnp.int32
        )
        numbers = BYTES_PER_NUMBER * setup.num_classes
        return Traffic(
            count(clients, numbers + -(-setup.num_classes // 8)), count(clients, numbers)
        )

    term = confident_term(setup, choose)
    return term._replace(
        server=term.server._replace(
            init=lambda *_: jnp.zeros(setup.num_classes), server_update=server_update
        ),
        client=AtClient(collect=kept_of),
        log=term.log._replace(traffic=traffic),
    )


def _labelled_counts(setup: Setup, context: RoundContext) -> Float[Array, " K"]:
    """Count the labelled examples of every class at all clients, without examples that have a value
    that is not finite.
    """
    clients = context.all_clients
    sound = jnp.all(jnp.isfinite(context.inputs), axis=tuple(range(1, context.inputs.ndim)))
    labels = jnp.where(sound[clients.rows] & examples_mask(clients), clients.observed, -1)
    return class_counts(labels.reshape(-1), setup.num_classes)


def with_local_residual(batch_size: int, settings: CBAFed) -> AtClient:
    """Return step 1: after every 5 epochs, weights and batch statistics W become a share of R plus
    the rest of W, and R becomes the new W.

    R is at first what there is after epoch 0. Momentum stays as it is.
    """

    def start(state: PyTree, params: PyTree, model_state: PyTree, kept: PyTree) -> Snapshot:
        return Snapshot(params, model_state)

    def blended(step: TakeStep, name: str) -> TakeStep:
        def take(at: LocalStep) -> StepTaken:
            taken = step(at)
            held = taken.local[name]
            labelled = at.inputs.client.num_labelled
            steps = jnp.maximum(batches_per_epoch(labelled, batch_size, skip_single=True), 1)
            number = at.inputs.number
            epoch = number // steps
            ends = (labelled > 0) & ((number + 1) % steps == 0) & (epoch % RESIDUAL_EPOCHS == 0)
            now = _blend(ends & (epoch > 0), settings.local_residual, held, at.network(taken))
            held = jax.tree.map(lambda old, new: jnp.where(ends, new, old), held, now)
            taken = at.with_network(taken, now)
            return taken._replace(local={**taken.local, name: held})

        return take

    return AtClient(start=start, wrap_step=blended)


def _blend(due: Bool[Array, ""], share: float | Array, old: Any, new: Any) -> Any:
    """Return a share of the old values plus the rest of the new ones if it is due, otherwise the
    new ones.
    """
    return jax.tree.map(lambda x, y: jnp.where(due, share * x + (1.0 - share) * y, y), old, new)


def with_global_residual(recipe: Recipe, settings: CBAFed) -> Recipe:
    """Return the same method with step 3: after every 5 rounds, the model W with its batch
    statistics becomes a share of W' plus the rest of W, and W' becomes the new W.

    Counting begins after the warm-up; W' is at first the model before that. A share of 0 leaves
    everything as it is.
    """
    if is_zero(settings.global_residual):
        return recipe

    def init(state: ServerState, data: FederatedData) -> ServerState:
        state = recipe.init(state, data)
        return state._replace(
            terms={**state.terms, RESIDUAL: Snapshot(state.params, state.model_state)}
        )

    def after_average(before: ServerState, after: ServerState, data: FederatedData) -> ServerState:
        after = recipe.after_average(before, after, data)
        number = before.round - settings.warmup_rounds
        held = after.terms[RESIDUAL]
        due = (number > 0) & (number % RESIDUAL_ROUNDS == 0)
        now = _blend(due, settings.global_residual, held, Snapshot(after.params, after.model_state))
        held = jax.tree.map(lambda old, new: jnp.where(due | (number < 0), new, old), held, now)
        terms = {**after.terms, RESIDUAL: held}
        return after._replace(params=now.params, model_state=now.model_state, terms=terms)

    return recipe._replace(init=init, after_average=after_average)
