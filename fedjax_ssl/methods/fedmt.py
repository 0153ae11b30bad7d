"""FedMT: clients with labels from another, mostly coarser space than the classes to predict.

The server has a few examples with class labels. A client's label is the class seen through a
correspondence matrix, M [J, K] with M_jk = P(label j | class k) (equation 2). A round is one of
SemiFL, with these changes:

1. Confident pseudo-labels as in `fedjax_ssl.methods.semifl`, in the space of the classes. FedMT(E)
   estimates M from them: M_jk is the share of label j among the confident examples of the client
   whose pseudo-label is k (equation 4).
2. The projection loss is added to SemiFL's two losses, for an example with label j, scores z =
   f(a(x)) and p = softmax z:

       -log (M p)_j = LSE_k(z_k) - LSE_k(z_k + log M_jk)    (equation 3, computed as on the right).

3. The mean of the clients' changes is a step of the federated optimizer, then the server trains on
   its examples (equation 1). In Algorithm 1 the server comes first, so it also trains once before
   round 0.

References:
    Federated learning with mixed-type labels, arXiv 2210.02042v4: equations 1 to 4 and algorithm 1.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_ssl import objectives
from fedjax_ssl.checks import checked, is_zero
from fedjax_ssl.data import WeakLabels
from fedjax_ssl.federated import (
    Client,
    Recipe,
    RoundContext,
    RoundResult,
    Setup,
    Stage,
    Step,
    Term,
    Training,
)
from fedjax_ssl.federated.contract import (
    AtServer,
    Broadcast,
    Metrics,
    PyTree,
    never,
)
from fedjax_ssl.federated.forward import separate_passes
from fedjax_ssl.methods.parts.alternating_training import ServerTurn, alternating
from fedjax_ssl.methods.parts.channel_terms import (
    channel_losses,
    channel_of,
    channel_term,
    learns,
)
from fedjax_ssl.methods.parts.composition import Part
from fedjax_ssl.methods.parts.confident_pseudo_labels import (
    above,
    confident_epochs,
    confident_losses,
    confident_term,
    has_confident,
    sent_to,
)
from fedjax_ssl.methods.parts.recommended import AT_SERVER
from fedjax_ssl.methods.parts.setting_types import BetaParameter, Share, Weight
from fedjax_ssl.methods.parts.terms import augmented_view, examples_mask
from fedjax_ssl.objectives import Channel

RECOMMENDED = {"fedmt": {"coarse": AT_SERVER}}


class Estimate(NamedTuple):
    """A client's estimated correspondence, from counts of its coarse labels by confident
    pseudo-label; with a leading axis p for the cohort.
    """

    matrix: Float[Array, "O K"]  # columns sum to 1
    support: Float[Array, " K"]  # confident examples of each class in the estimate


@checked
@dataclass(frozen=True)
class FedMT(ServerTurn):
    """Settings of FedMT.

    Attributes:
        correspondence: "known": the federation's, or an estimate if it has none; "estimated": every
            client's own estimate in every round, from the model just received.
        threshold: largest probability above which a pseudo-label is confident.
        strict: False: also at it, as in SemiFL.
        fix_weight: weight of the loss on confident examples; 0 leaves it out.
        mix_weight: weight of the loss on mixtures; 0 leaves it out.
        projection_weight: weight of the projection loss; 0 leaves it out, which is SemiFL.
        projection_examples: "fix": the confident examples of each batch; "all": equally many from
            all examples with a label.
        gate: "confident": a client without a confident example skips the round; "none": it trains
            by projection alone, over all its examples with a label.
        mixup_alpha: alpha of the Beta distribution of the mixing share, > 0.
        warm_start: in the first round the server trains alone.
        separate_passes: a forward pass per loss, see `fedjax_ssl.methods.semifl`.
    """

    correspondence: Literal["known", "estimated"] = "known"
    threshold: Share = 0.95
    strict: bool = True
    fix_weight: Weight = 1.0
    mix_weight: Weight = 1.0
    projection_weight: Weight = 1.0
    projection_examples: Literal["fix", "all"] = "fix"
    gate: Literal["confident", "none"] = "confident"
    mixup_alpha: BetaParameter = 0.75
    warm_start: bool = True
    separate_passes: bool = False


def fedmt(setup: Setup, settings: FedMT) -> Recipe:
    """FedMT: coarse labels at clients through a known or an estimated correspondence, class labels
    at the server.

    A client with class labels uses the identity as correspondence, and a client with sets their
    class shares, so that all kinds of clients train together.

    Args:
        setup: the run.
        settings: the method's own.

    Raises:
        ValueError: for a setting outside these, or settings that leave nothing to train on.
    """
    losses = confident_losses(setup, settings.fix_weight, settings.mix_weight, settings.mixup_alpha)
    projects = not is_zero(settings.projection_weight)
    from_all = settings.projection_examples == "all"
    ungated = settings.gate == "none"
    if ungated and not from_all:
        raise ValueError(
            "gate is 'none', so projection_examples must be 'all': a client may have no "
            "confident example"
        )
    if ungated and not projects:
        raise ValueError(
            "gate is 'none', so projection_weight must be above 0: other clients have nothing to "
            "train on"
        )
    if not projects and not losses:
        raise ValueError(
            "fix_weight, mix_weight and projection_weight are all 0; clients would have nothing "
            "to learn"
        )
    choose = above(settings.threshold, settings.strict)
    labels = confident_term(setup, choose)
    terms = losses
    if projects:
        labels = confident_term(setup, choose, estimated, diagnose=_diagnose)
        terms = (*losses, projection_term(setup, settings))
    if ungated:
        labels = labels._replace(server=labels.server._replace(participates=_confident_or_labelled))
    sampler = confident_epochs(setup.batch_size, setup.local_epochs, from_all, ungated)
    clients = Stage(
        Training(
            (labels, *terms),
            sampler,
            wrap_step=separate_passes if settings.separate_passes else None,
        )
    )
    return alternating(
        setup, clients, settings, ("coarse", "server"), warm_up_rounds=int(settings.warm_start)
    )


def coarse(setup: Setup) -> Part:
    """Cross-entropy of coarse labels (FedMT's projection loss).

    It uses their correspondence to classes.
    """
    term = channel_term(setup, kinds=("coarse",))
    return Part(term._replace(name="coarse"), ("coarse",), True)


def projection_term(setup: Setup, settings: FedMT) -> Term:
    """Return the projection loss: cross-entropy of the observed labels through each client's
    channel (equation 3).

    It is averaged over the rows with a label that is possible under the channel.
    """
    stream = "known" if settings.projection_examples == "all" else "fix"
    view = augmented_view(setup, stream)

    def loss(step: Step) -> Array:
        batch = step.streams[stream]
        weak = step.client.weak
        channel = None if weak is None else _channel(settings, step.client, weak)
        losses = channel_losses(step.outputs[view.name].logits, batch, channel, loss=setup.loss)
        told = batch.observed >= 0
        if channel is not None and batch.weak is not None:
            told = told | objectives.is_observable(batch.weak, channel)
        return objectives.batch_mean(losses, told & batch.mask)

    weight = settings.projection_weight
    return Term("projection", (view,), loss, weight, server=AtServer(participates=never))


def _channel(settings: FedMT, client: Client, weak: WeakLabels) -> Channel:
    estimate: Estimate = sent_to(client).extra
    matrix = estimate.matrix.astype(weak.matrix.dtype)
    if settings.correspondence == "known":
        matrix = jnp.where(jnp.any(weak.matrix > 0), weak.matrix, matrix)
    coarse = objectives.correspondence_channel(matrix)
    sets = objectives.pad_channel(channel_of(weak), coarse.valid.shape[0])
    return jax.tree.map(partial(jnp.where, weak.from_sets), sets, coarse)


def estimated(
    context: RoundContext,
    probabilities: Float[Array, "p n K"],
    confident: Bool[Array, "p n"],
) -> PyTree:
    """Return the correspondence of every client, from its confident pseudo-labels (equation 4).

    Args:
        context: the round, with the cohort and its weak labels.
        probabilities: class probabilities, by the model just received.
        confident: examples that count.

    Returns:
        `Estimate` with leading axis p; () if no client has weak labels.
    """
    weak = context.clients.weak
    if weak is None:
        return ()
    num_rows = weak.matrix.shape[1]
    real = examples_mask(context.clients)
    sound = jnp.all(jnp.isfinite(probabilities).all(axis=2) | ~real, axis=1) & ~weak.from_sets
    real = real & sound[:, None]

    def count(p: Array, labels: Array, sure: Array, counted: Array) -> tuple[Array, Array]:
        counts, _ = objectives.correspondence_counts(p, labels, num_rows, -1.0, sure & counted)
        return counts, objectives.correspondence_counts(p, labels, num_rows, 2.0, counted)[1]

    counts, label_counts = jax.vmap(count)(probabilities, weak.labels, confident, real)
    columns = jax.vmap(objectives.normalize_counts)(counts, label_counts)
    # A column without counts is spread over all rows, also over padding rows, which no label of
    # this client uses.
    inside = jnp.arange(num_rows, dtype=jnp.int32) < weak.num_observations[:, None]
    columns = jnp.where(inside[:, :, None], columns, 0.0)
    totals = columns.sum(axis=1, keepdims=True)
    return Estimate(columns / jnp.where(totals > 0, totals, 1.0), counts.sum(axis=1))


def _confident_or_labelled(sent: Broadcast, context: RoundContext) -> Bool[Array, " p"]:
    labelled = learns(context.clients) & (context.clients.num_known > 0)
    return has_confident(sent, context) | (context.valid & labelled)


def _diagnose(outcome: RoundResult) -> Metrics:
    """Measure the error of the estimates over the cohort's clients with coarse labels; NaN if there
    are none.

    "correspondence_error" is the largest error of an entry, for clients with a known
    correspondence; "classes_without_support" the mean number of classes of which a client has no
    confident example.
    """
    context = outcome.context
    weak = outcome.context.clients.weak
    if weak is None:
        return {}
    estimate: Estimate = outcome.sent.own.extra
    coarse = context.valid & weak.has_coarse
    comparable = context.valid & weak.has_known_correspondence
    difference = jnp.max(
        jnp.abs(estimate.matrix - weak.matrix.astype(estimate.matrix.dtype)), axis=(1, 2)
    )
    largest = jnp.max(difference, where=comparable, initial=0.0)
    missing = jnp.sum(estimate.support == 0, axis=1).astype(difference.dtype)
    return {
        "correspondence_error": jnp.where(jnp.any(comparable), largest, jnp.nan),
        "classes_without_support": jnp.mean(missing, where=coarse),
    }
