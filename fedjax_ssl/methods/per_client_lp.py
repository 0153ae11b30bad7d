"""FedAvg+perclientLP: label propagation on each client's own graph, nothing shared.

References:
    Baseline of Scott et al., Cross-client label propagation, TMLR 2023, arXiv 2210.06434, section 5.
"""

import jax
from jaxtyping import Array

from fedjax_ssl.federated import Method, RoundContext, Setup
from fedjax_ssl.federated.method import PyTree
from fedjax_ssl.federated.terms import PseudoLabels, examples_mask, pseudo_label_term
from fedjax_ssl.graph import PropagationSettings, label_propagation
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.graph_pseudo_labels import check_graph_settings, cohort_features, to_pseudo_labels
from fedjax_ssl.methods.parts.two_stages import after_labelled_stage, mixed_stage


def per_client_lp(
    setup: Setup,
    *,
    warmup_rounds: int = 0,
    similarity: str = "exact",
    num_bits: int = 4096,
    num_neighbors: int = 10,
    alpha: float | Array = 0.99,
    similarity_power: float | Array = 3.0,
    label_norm: str = "class",
    confidence_scale: str = "max",
    class_weighting: str = "inverse_freq",
    graph_features: str = "network",
    graph_augment: bool = False,
    unlabelled_clients: bool = False,
) -> Method:
    """FedAvg with pseudo-labels that each client propagates from its own labels.

    Args:
        setup: the run.
        warmup_rounds: rounds of labels-only training before.
        similarity: "exact" cosine, or "lsh" codes of `num_bits` bits.
        num_bits: bits of a code.
        num_neighbors: neighbours per example.
        alpha: propagation, in [0, 1).
        similarity_power: exponent of the kept similarities.
        label_norm: "none" or "class", over the client's own labels.
        confidence_scale: "none" or "max", over the client's own examples.
        class_weighting: "none" or "inverse_freq", over the client's own examples.
        graph_features: "network" features or raw "inputs".
        graph_augment: weakly augment the examples before they are embedded.
        unlabelled_clients: let clients without labels take part; they get no pseudo-labels and train on nothing.

    Raises:
        ValueError: for a setting outside these.
    """
    check_graph_settings(graph_features, class_weighting)
    settings = PropagationSettings(num_bits, num_neighbors, alpha, similarity_power, label_norm, confidence_scale)

    def prepare(state: PyTree, round: RoundContext) -> tuple[PseudoLabels, PyTree]:
        features = cohort_features(setup, round, graph_features, graph_augment)
        real = examples_mask(round.clients)

        def one_client(identity: jax.Array, rows: jax.Array, observed: jax.Array, mask: jax.Array) -> PseudoLabels:
            result = label_propagation(
                rows,
                observed,
                setup.num_classes,
                settings,
                similarity=similarity,
                key=jax.random.fold_in(named_key(round.key, "projections"), identity),
                valid=mask,
            )
            return to_pseudo_labels(result, mask, setup.num_classes, class_weighting)

        return jax.vmap(one_client)(round.clients.id, features, round.clients.observed, real), state

    quota = "proportional" if unlabelled_clients else "only"
    stage = mixed_stage(setup, pseudo_label_term(setup, prepare), quota)
    return after_labelled_stage(setup, stage, warmup_rounds)
