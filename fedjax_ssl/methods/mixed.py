"""Mixed supervision: clients with labels, coarse labels, sets with known class shares, or nothing
train one model together.

The objective has two terms. The first explains a client's observations by its own channel (FedMT's
correspondence, FedUL's set shares, the identity). The second propagates labels over one graph of
all clients' examples (XCLP), from class labels and from weakly labelled examples with a clear
class, to all examples without a class label. If an example has a weak label, its scores are
multiplied by the likelihood of that label under each class, so a pseudo-label never contradicts the
client's knowledge. No published system has this setting; weights and defaults are ours.

References:
    Zhang, Peng, Zhang, Talhouk, Niu, Li, FedMT: federated learning with mixed-type labels, arXiv
    2210.02042. Lu, Wang, Li, Niu, Dou, Sugiyama, Federated learning from only unlabeled data with
    class-conditional-sharing clients, ICLR 2022, arXiv 2204.03304. Scott, Yeo, Lampert,
    Cross-client label propagation for transductive and semi-supervised federated learning, TMLR
    2023, arXiv 2210.06434.
"""

from dataclasses import dataclass, fields
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_ssl.checks import checked, is_zero
from fedjax_ssl.federated import Recipe, Setup
from fedjax_ssl.federated.contract import Client, PyTree, RoundContext
from fedjax_ssl.graph import Propagation, confidence
from fedjax_ssl.methods.fedul import channels
from fedjax_ssl.methods.parts import graph_pseudo_labels as graphs
from fedjax_ssl.methods.parts.channel_terms import KNOWN, channel_of
from fedjax_ssl.methods.parts.composition import Part, composition
from fedjax_ssl.methods.parts.recommended import MIXED
from fedjax_ssl.methods.parts.setting_types import CountOrZero, Positive, Share, Weight
from fedjax_ssl.methods.parts.terms import (
    UNLABELLED,
    PseudoLabels,
    network_outputs,
    pseudo_label_term,
)
from fedjax_ssl.methods.protofssl import Prototypes, prototypes

RECOMMENDED = {"mixed": {"mixed": {**MIXED, "method.warmup_rounds": 40, "method.num_neighbors": 5}}}


@checked
@dataclass(frozen=True)
class PropagatedLabels(graphs.GraphPseudoLabels):
    """Settings of propagated labels.

    Attributes:
        anchor_confidence: labels are also propagated from weakly labelled examples, if network and
            weak label together give a class more than this probability; 1: from class labels alone.
    """

    anchor_confidence: Share = 0.9


@checked
@dataclass(frozen=True)
class Mixed(PropagatedLabels):
    """Settings of mixed supervision.

    Attributes:
        warmup_rounds: rounds with the channel term alone, before labels are propagated.
        channel_weight: weight of the channel term.
        pseudo_label_weight: weight of the propagated labels; 0 builds no graph.
        prototype_weight: weight of pseudo-labels by other clients' class prototypes, with the
            defaults of the term `prototypes`; 0: there are none.
    """

    warmup_rounds: CountOrZero = 0
    channel_weight: Positive = 1.0
    pseudo_label_weight: Weight = 1.0
    prototype_weight: Weight = 0.0


def mixed(setup: Setup, settings: Mixed) -> Recipe:
    """Any mix of labels, coarse labels, sets and nothing: channels and propagated labels in one
    objective.

    It is the composition of the terms `channels`, `graph` and, if wanted, `prototypes`.

    Args:
        setup: the run.
        settings: the method's own.

    Raises:
        ValueError: for a setting outside these, or a negative weight.
    """
    own = {field.name: getattr(settings, field.name) for field in fields(PropagatedLabels)}
    more = (
        ("graph", settings.pseudo_label_weight, partial(graph, setup, PropagatedLabels(**own))),
        ("prototypes", settings.prototype_weight, partial(prototypes, setup, Prototypes())),
    )
    parts = [_weighted(channels(setup), "channels", settings.channel_weight)]
    for name, weight, build in more:
        if not is_zero(weight):
            later = _weighted(build(), name, weight)
            parts.append(later._replace(after=settings.warmup_rounds))
    return composition(setup, parts)


def _weighted(part: Part, name: str, weight: float | Array) -> Part:
    return part._replace(name=name, term=part.term._replace(weight=weight))


def graph(setup: Setup, settings: PropagatedLabels) -> Part:
    """Labels propagated over one graph of the cohort (XCLP).

    They never contradict a weak label.
    """

    def prepare(state: PyTree, context: RoundContext) -> tuple[PseudoLabels, PyTree]:
        outputs = network_outputs(setup, context, context.clients)
        features = outputs.features
        if settings.graph_features == "inputs":
            features = graphs.cohort_features(setup, context, "inputs", False)
        own = context.clients.observed
        likelihood = observation_likelihood(context.clients, setup.num_classes)
        anchors = _anchors(outputs.logits, likelihood, context.clients, settings.anchor_confidence)
        result = graphs.propagate_over_cohort(setup, context, features, anchors, settings)
        result = _refined(result, likelihood, own)
        real = graphs.receiving(setup, context)
        targets = graphs.to_pseudo_labels(result, real, setup.num_classes, settings)
        # Class labels count in the channel term already.
        return targets._replace(weights=jnp.where(own >= 0, 0.0, targets.weights)), state

    traffic = partial(graphs.graph_traffic, setup, settings.num_bits)
    term = pseudo_label_term(setup, prepare, traffic, stream=UNLABELLED)
    return Part(term, KNOWN, sends=("codes of their examples",))


def _refined(
    result: Propagation, likelihood: Float[Array, "p n K"], own: Int[Array, "p n"]
) -> Propagation:
    """Return the propagated scores times the likelihood of each observation under every class;
    class labels are kept.
    """
    scores = result.scores * likelihood.reshape(result.scores.shape)
    reached = result.valid & jnp.any(scores > 0, axis=1)
    labels = jnp.where(reached, jnp.argmax(scores, axis=1).astype(own.dtype), -1)
    # The scale of the confidence is the graph's; an observation only sharpens or confirms the
    # propagated label.
    sharper = jnp.where(reached, confidence(jnp.where(reached[:, None], scores, 1.0)), 0.0)
    certainty = jnp.maximum(sharper, jnp.where(reached, result.confidence, 0.0))
    own = own.reshape(-1)
    return result._replace(
        labels=jnp.where(own >= 0, own, labels),
        confidence=jnp.where(own >= 0, 1.0, certainty),
        # A labelled example counts unless its values are NaN, as the graph says.
        valid=jnp.where(own >= 0, result.valid, reached),
    )


def _anchors(
    logits: Float[Array, "p n K"],
    likelihood: Float[Array, "p n K"],
    clients: Client,
    threshold: float | Array,
) -> Int[Array, "p n"]:
    """Return the examples from which labels are propagated: with a class label, or with a class on
    which network and weak label agree confidently.
    """
    posterior = jax.nn.softmax(logits) * likelihood
    posterior = posterior / jnp.maximum(posterior.sum(axis=2, keepdims=True), 1e-12)
    own = clients.observed
    if clients.weak is None:
        return own
    sure = (clients.weak.labels >= 0) & (jnp.max(posterior, axis=2) > threshold)
    return jnp.where(
        own >= 0, own, jnp.where(sure, jnp.argmax(posterior, axis=2).astype(own.dtype), -1)
    )


def observation_likelihood(clients: Client, num_classes: int) -> Float[Array, "p n K"]:
    """Return the likelihood of each example's observation under every class, up to a factor; 1
    without an observation.

    Args:
        clients: leading axis p.
        num_classes: K.
    """
    weak = clients.weak
    if weak is None:
        return jnp.ones((*clients.rows.shape, num_classes))
    channels = jax.vmap(channel_of)(weak)
    weights = jnp.exp(channels.log_weights)
    chosen = jnp.take_along_axis(weights, jnp.maximum(weak.labels, 0)[:, :, None], axis=1)
    chosen = chosen / jnp.maximum(jnp.max(chosen, axis=2, keepdims=True), 1e-12)
    known = (weak.labels >= 0) & jnp.any(chosen > 0, axis=2)
    return jnp.where(known[:, :, None], chosen, 1.0)
