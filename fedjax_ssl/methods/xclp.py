"""FedAvg+XCLP: pseudo-labels by label propagation over one graph of all the cohort's examples.

Rounds of federated averaging on labels alone come first (stage 1), then rounds of stage 2 (algorithm 2):

1. The cohort's clients embed all their examples with the global network and send codes of `num_bits` bits, the signs of
   random projections. Of two examples whose codes differ in h bits, the cosine is about cos(pi h / num_bits).
2. One graph over all clients' examples joins each to its `num_neighbors` nearest. With A their cosines, to the power
   `similarity_power`, W = A + A^T and its row sums D, S = D^-1/2 W D^-1/2 carries the labels Y [N, K]: the scores are
   Z = (I - alpha S)^-1 Y (algorithm 1).
3. An unlabelled example gets the class with the largest score and the weight 1 - H(z / sum z) / log K, a labelled one
   keeps its label with weight 1; kappa, the inverse frequency of the class, balances classes (section 2).
4. Clients minimize 1/|B| sum_i weight_i kappa_(y_i) CE(f(x_i), y_i) over batches of as many labelled as unlabelled
   examples; the mean of their changes is a step of the federated optimizer.

References:
    Scott, Yeo, Lampert, Cross-client label propagation for transductive and semi-supervised federated learning, TMLR
    2023, arXiv 2210.06434: Algorithms 1 and 2.
"""

from collections.abc import Callable
from functools import partial

from jaxtyping import Array

from fedjax_ssl.checks import check_choices
from fedjax_ssl.federated import Method, RoundContext, RoundResult, Setup, Traffic
from fedjax_ssl.federated.method import PyTree
from fedjax_ssl.federated.terms import PseudoLabels, examples_mask, pseudo_label_term
from fedjax_ssl.graph import PropagationSettings
from fedjax_ssl.methods.parts.graph_pseudo_labels import (
    check_graph_settings,
    cohort_features,
    graph_traffic,
    propagate_over_cohort,
    protocol_traffic,
    to_pseudo_labels,
)
from fedjax_ssl.methods.parts.two_stages import after_labelled_stage, mixed_stage
from fedjax_ssl.secure import CHOICES, protocols


def xclp(
    setup: Setup,
    *,
    warmup_rounds: int = 0,
    num_bits: int = 4096,
    num_neighbors: int = 10,
    alpha: float | Array = 0.99,
    similarity_power: float | Array = 3.0,
    label_norm: str = "class",
    confidence_scale: str = "max",
    class_weighting: str = "inverse_freq",
    graph_features: str = "network",
    graph_augment: bool = False,
    fixed_projections: bool = False,
    protocol: str = "none",
    hamming: str = "transfer",
) -> Method:
    """FedAvg+XCLP. Defaults are those of the authors' code; the paper's text has power 1 and no norm, scale, weights.

    Args:
        setup: the run.
        warmup_rounds: rounds of stage 1 (labelled examples only); 0 starts from scratch.
        num_bits: bits of a code.
        num_neighbors: neighbours per example.
        alpha: propagation, in [0, 1).
        similarity_power: exponent of the kept similarities.
        label_norm: "none", or "class" to divide labels by the number of labelled examples of their class.
        confidence_scale: "none", "max" (by the cohort's largest confidence) or "client_max".
        class_weighting: "none" or "inverse_freq".
        graph_features: what is hashed: "network" features or raw "inputs".
        graph_augment: weakly augment the examples before they are embedded.
        fixed_projections: the same hash in every round of a run instead of a fresh one.
        protocol: "ideal", "accounted" or "real": clients and server find distances and scores together, between the
            compiled parts of a round, see `fedjax_ssl.secure`. "none": the kernels, which round nothing.
        hamming: protocol of the distances, "transfer" or "paillier".

    Raises:
        ValueError: for a setting outside these.
    """
    check_graph_settings(graph_features, class_weighting)
    check_choices(CHOICES, protocol=protocol)
    chosen = None if protocol == "none" else protocols(protocol, num_bits, hamming=hamming)
    exchange = None if chosen is None else chosen.exchange
    settings = PropagationSettings(num_bits, num_neighbors, alpha, similarity_power, label_norm, confidence_scale)

    def prepare(state: PyTree, round: RoundContext) -> tuple[PseudoLabels, PyTree]:
        features = cohort_features(setup, round, graph_features, graph_augment)
        result = propagate_over_cohort(
            setup, round, features, round.clients.observed, settings, fixed_projections, exchange
        )
        return to_pseudo_labels(result, examples_mask(round.clients), setup.num_classes, class_weighting), state

    traffic: Callable[[RoundResult], Traffic] = partial(graph_traffic, setup, num_bits)
    if chosen is not None and chosen.level != "ideal":
        traffic = protocol_traffic(chosen)
    term = pseudo_label_term(setup, prepare, traffic)
    return after_labelled_stage(setup, mixed_stage(setup, term), warmup_rounds, on_host=chosen is not None)
