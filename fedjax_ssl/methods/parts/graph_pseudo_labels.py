"""Settings of a graph over examples, and its labels as targets of local training: for XCLP, its
baseline, and `mixed`.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl import graph
from fedjax_ssl.checks import checked
from fedjax_ssl.federated import (
    BYTES_PER_NUMBER,
    RoundContext,
    RoundResult,
    Setup,
    Traffic,
    count,
    map_rows,
)
from fedjax_ssl.federated.contract import Metrics
from fedjax_ssl.graph.graph_settings import CODE, ConfidenceScale, GraphSettings, LabelNorm
from fedjax_ssl.graph.weighting import scale_confidence
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.setting_types import Positive
from fedjax_ssl.methods.parts.terms import (
    PseudoLabels,
    examples_mask,
    network_features,
    staying,
)


@checked
@dataclass(frozen=True)
class GraphPseudoLabels(GraphSettings):
    """Settings of label propagation over a graph, and of the targets made from it; the defaults are
    the authors' code's.

    Attributes:
        class_weighting: "none" or "inverse_freq": weights balance the classes (kappa of section 2
            of the paper).
        graph_features: features to hash or compare: "network" features or raw "inputs".
    """

    similarity_power: Positive = CODE.similarity_power
    label_norm: LabelNorm = CODE.label_norm
    confidence_scale: ConfidenceScale = CODE.confidence_scale
    class_weighting: Literal["none", "inverse_freq"] = "inverse_freq"
    graph_features: Literal["network", "inputs"] = "network"


def cohort_features(
    setup: Setup, context: RoundContext, graph_features: str, augment: bool
) -> Float[Array, "p n d"]:
    """Return the features to hash or compare: network features or raw inputs of every example of
    the cohort.

    `augment` embeds weakly augmented examples (graph_features "network" only).
    """
    if graph_features == "network":
        return network_features(
            setup, context, named_key(context.key, "graph") if augment else None
        )
    index = context.clients.rows
    return map_rows(
        lambda inputs: setup.normalize(inputs).reshape(inputs.shape[0], -1), context.inputs, index
    )


def receiving(setup: Setup, context: RoundContext) -> Bool[Array, "p n"]:
    """Return the mask of real examples whose client is still there to receive labels."""
    return examples_mask(staying(setup, context))


def propagate_over_cohort(
    setup: Setup,
    context: RoundContext,
    features: Float[Array, "p n d"],
    labels: Int[Array, "p n"],
    settings: GraphPseudoLabels,
    fixed_projections: bool = False,
    exchange: graph.Exchange | None = None,
    similarity: str = "lsh",
) -> graph.Propagation:
    """Propagate labels over one graph of all the cohort's examples (XCLP, Algorithm 1).

    Labels are propagated from `labels`, -1 = none. `fixed_projections` keeps one hash in all rounds
    of a run. `exchange` has protocols between the clients, which do not work under a trace.
    `similarity` "exact" compares features by their cosines in place of codes; real clients would
    have to reveal these features. If a client drops out after codes are compared (section 3.3), its
    points stay in the graph, and its labels count if scores were propagated by then. The result
    holds the p * n examples in a row, client after client.
    """
    real = examples_mask(context.clients)
    owner = jnp.broadcast_to(jnp.arange(real.shape[0])[:, None], real.shape)
    points = features.reshape(real.size, -1)
    participation = setup.participation
    receives = None if participation is None else participation.left(context)
    if receives is not None:
        receives = receiving(setup, context)
        if participation is not None and participation.lost_when == "codes":
            labels = jnp.where(receives, labels, -1)
    known = labels.reshape(-1)
    taking_part: dict[str, Any] = {"valid": real.reshape(-1), "clients": owner.reshape(-1)}
    if similarity != "exact":
        key = named_key(context.run_key if fixed_projections else context.key, "projections")
        taking_part |= {"key": key, "exchange": exchange}
    result = graph.label(points, known, setup.num_classes, settings, **taking_part)
    if receives is None or settings.confidence_scale != "max":
        return result
    # The largest confidence is taken over rows whose clients are still there.
    counted = receives.reshape(-1) & result.valid
    own = jnp.where(counted, graph.confidence(result.scores), 0)
    own = scale_confidence(own, "max", taking_part["clients"])
    return result._replace(confidence=jnp.where(counted & (known >= 0), 1, own))


def graph_traffic(setup: Setup, num_bits: int, outcome: RoundResult) -> Traffic:
    """Count the bytes of the plaintext path: codes go up, and the rows of the scores go down to
    every client that is still there.
    """
    examples = jnp.sum(outcome.context.clients.num_examples)
    staying_examples = jnp.sum(staying(setup, outcome.context).num_examples)
    words = -(-num_bits // 32)
    return Traffic(
        count(staying_examples, BYTES_PER_NUMBER * setup.num_classes),
        count(examples, BYTES_PER_NUMBER * words),
    )


def graph_operations(setup: Setup, settings: GraphPseudoLabels, context: RoundContext) -> Metrics:
    """Count the numeric operations of Algorithm 1, in millions, by the paper's orders of growth
    (section 3.3).

    These are the mean client's codes, distances and row sums, and the server's inverse. The kernels
    here need no inverse.
    """
    clients = context.clients
    real = context.valid
    features = jax.eval_shape(
        lambda: cohort_features(setup, context, settings.graph_features, False)
    )
    examples, labels = (
        n.astype(jnp.result_type(float)) for n in (clients.num_examples, clients.num_labelled)
    )
    points = jnp.mean(examples, where=real)
    total = jnp.sum(examples, where=real)
    labelled = jnp.mean(labels, where=real)
    counts = {
        "codes": points * features.shape[-1] * settings.num_bits,
        "distances": points * total * settings.num_bits,
        "inverse": total**3,
        "row_sums": total * labelled * setup.num_classes,
    }
    return {f"operations_{step}": count / 1e6 for step, count in counts.items()}


def to_pseudo_labels(
    result: graph.Propagation,
    real: Bool[Array, "p n"],
    num_classes: int,
    settings: GraphPseudoLabels,
) -> PseudoLabels:
    """Make targets and weights of local training. The weight of an example is its confidence
    omega_i times kappa_(y_i), the inverse frequency of its class in the graph.

    `real` is the mask of examples that are not padding and receive targets.
    """
    labels = jnp.where(real, result.labels.reshape(real.shape), -1)
    certainty = jnp.where(labels >= 0, result.confidence.reshape(real.shape), 0.0)
    weights = certainty
    if settings.class_weighting == "inverse_freq":
        per_class = graph.class_weights(
            result.labels, real.reshape(-1) & result.valid.reshape(-1), num_classes
        )
        weights = weights * per_class[jnp.maximum(labels, 0)]
    return PseudoLabels(labels, weights, certainty)
