"""What the two label-propagation methods share: features of the cohort, and a propagation's result as pseudo-labels."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl import graph
from fedjax_ssl.checks import check_choices
from fedjax_ssl.federated import BYTES_PER_NUMBER, Round, Setup, Traffic, map_rows
from fedjax_ssl.federated.terms import PseudoLabels, examples_mask, network_features
from fedjax_ssl.graph import Propagation, class_weights
from fedjax_ssl.keys import named_key

GRAPH_FEATURES = ("network", "inputs")
CLASS_WEIGHTINGS = ("none", "inverse_freq")


def check_graph_settings(graph_features: str, class_weighting: str) -> None:
    """Raises ValueError for a setting that does not exist."""
    check_choices(GRAPH_FEATURES, graph_features=graph_features)
    check_choices(CLASS_WEIGHTINGS, class_weighting=class_weighting)


def cohort_features(setup: Setup, round: Round, graph_features: str, augment: bool) -> Float[Array, "p n d"]:
    """What is hashed or compared: network features or raw inputs of every example of the cohort.

    Args:
        setup: the run.
        round: the cohort and the network.
        graph_features: "network" or "inputs".
        augment: embed weakly augmented examples (network features only).
    """
    if graph_features == "network":
        return network_features(setup, round, named_key(round.key, "graph") if augment else None)
    index = round.clients.index
    return map_rows(lambda inputs: setup.normalize(inputs).reshape(inputs.shape[0], -1), round.inputs, index)


def propagate_over_cohort(
    setup: Setup,
    round: Round,
    features: Float[Array, "p n d"],
    labels: Int[Array, "p n"],
    fixed_projections: bool = False,
    **settings: Any,
) -> Propagation:
    """Label propagation over one graph of all the cohort's examples (XCLP, Algorithm 1).

    Args:
        setup: the run.
        round: the cohort.
        features: of its examples, see `cohort_features`.
        labels: from which labels are propagated, -1 = none.
        fixed_projections: the same hash in every round instead of a fresh one.
        **settings: of `fedjax_ssl.graph.xclp`.

    Returns:
        Labels of the p * n examples in a row, client after client.
    """
    real = examples_mask(round.clients)
    owner = jnp.broadcast_to(jnp.arange(real.shape[0])[:, None], real.shape)
    return graph.xclp(
        jax.random.key(0) if fixed_projections else named_key(round.key, "projections"),
        features.reshape(real.size, -1),
        labels.reshape(-1),
        setup.num_classes,
        valid=real.reshape(-1),
        clients=owner.reshape(-1),
        **settings,
    )


def graph_traffic(setup: Setup, num_bits: int, round: Round) -> Traffic:
    """Bytes of the plaintext path: codes go up, every client's rows of the scores come down."""
    examples = jnp.sum(round.clients.num_examples).astype(jnp.result_type(float))
    numbers = BYTES_PER_NUMBER * examples
    return Traffic(down=setup.num_classes * numbers, up=-(-num_bits // 32) * numbers)


def to_pseudo_labels(
    result: Propagation, real: Bool[Array, "p n"], num_classes: int, class_weighting: str
) -> PseudoLabels:
    """Targets and weights of local training; class weights count over all examples that took part in the graph.

    Args:
        result: propagation over the p * n examples in a row, labelled rows with their true label.
        real: which examples are not padding.
        num_classes: K.
        class_weighting: "none", or "inverse_freq" (XCLP section 2, kappa).
    """
    labels = jnp.where(real, result.labels.reshape(real.shape), -1)
    certainty = jnp.where(labels >= 0, result.confidence.reshape(real.shape), 0.0)
    weights = certainty
    if class_weighting == "inverse_freq":
        per_class = class_weights(result.labels, real.reshape(-1) & result.valid.reshape(-1), num_classes)
        weights = weights * per_class[jnp.maximum(labels, 0)]
    return PseudoLabels(labels, weights, certainty)
