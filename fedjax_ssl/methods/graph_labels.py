"""What the two label-propagation methods share: features of the cohort, and a propagation's result as pseudo-labels."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_ssl.federated import Round, Setup, map_rows
from fedjax_ssl.federated.terms import PseudoLabels, network_features
from fedjax_ssl.graph import Propagation, class_weights
from fedjax_ssl.keys import named_key

GRAPH_FEATURES = ("network", "inputs")
CLASS_WEIGHTINGS = ("none", "inverse_freq")


def check_graph_settings(graph_features: str, class_weighting: str) -> None:
    """Raises ValueError for a setting that does not exist."""
    if graph_features not in GRAPH_FEATURES:
        raise ValueError(f"graph_features is {graph_features!r}; allowed: {', '.join(GRAPH_FEATURES)}")
    if class_weighting not in CLASS_WEIGHTINGS:
        raise ValueError(f"class_weighting is {class_weighting!r}; allowed: {', '.join(CLASS_WEIGHTINGS)}")


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
