"""FedAvg+XCLP: pseudo-labels by label propagation over one graph of all the cohort's examples.

Rounds of federated averaging on labels alone come first (stage 1), then rounds of stage 2
(algorithm 2):

1. The cohort's clients embed all their examples with the global network and send codes of
   `num_bits` bits, the signs of random projections. If two codes differ in h bits, the cosine of
   the two examples is about cos(pi h / num_bits).
2. One graph over all clients' examples joins each to its `num_neighbors` nearest. With A their
   cosines, to the power `similarity_power`, W = A + A^T and its row sums D, S = D^-1/2 W D^-1/2
   carries the labels Y [N, K]: the scores are Z = (I - alpha S)^-1 Y (algorithm 1).
3. An unlabelled example gets the class with the largest score and the weight 1 - H(z / sum z) / log
   K, which is by default divided by the largest one (`confidence_scale`); a labelled one keeps its
   label with weight 1. kappa, the inverse frequency of the class, balances classes (section 2).
4. Clients minimize 1/|B| sum_i weight_i kappa_(y_i) CE(f(x_i), y_i) over batches with equally many
   labelled and unlabelled examples; the mean of their changes is a step of the federated optimizer.

`per_client_lp`, its baseline, propagates each client's own labels over a graph of its own examples
(section 5).

References:
    Scott, Yeo, Lampert, Cross-client label propagation for transductive and semi-supervised
    federated learning, TMLR 2023, arXiv 2210.06434: Algorithms 1 and 2.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedjax_ssl import graph
from fedjax_ssl.checks import checked
from fedjax_ssl.federated import Recipe, RoundContext, RoundResult, Setup, Traffic, count
from fedjax_ssl.federated.contract import Metrics, PyTree
from fedjax_ssl.federated.participation import BEFORE_TRAINING
from fedjax_ssl.graph.graph_settings import Hamming, Level
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.graph_pseudo_labels import (
    GraphPseudoLabels,
    cohort_features,
    graph_operations,
    graph_traffic,
    propagate_over_cohort,
    receiving,
    to_pseudo_labels,
)
from fedjax_ssl.methods.parts.recommended import AT_CLIENTS, MIXED
from fedjax_ssl.methods.parts.setting_types import CountOrZero
from fedjax_ssl.methods.parts.terms import PseudoLabels, examples_mask, pseudo_label_term
from fedjax_ssl.methods.parts.two_stages import after_labelled_stage, mixed_stage
from fedjax_ssl.registry import secure_protocols

# Fewer neighbours than the code's 10, because the digits are 1,400 points and not 2,250.
_GRAPH = {"method.warmup_rounds": 40, "method.num_neighbors": 5}
RECOMMENDED = {
    "xclp": {"per_client": {**AT_CLIENTS, **_GRAPH}, "mixed": {**MIXED, **_GRAPH}},
    "per_client_lp": {"per_client": {**AT_CLIENTS, **_GRAPH}},
}


@checked
@dataclasses.dataclass(frozen=True)
class XCLP(GraphPseudoLabels):
    """Settings of XCLP. Defaults are those of the authors' code; the paper's text has power 1, no
    norm, scale, weights.

    Attributes:
        warmup_rounds: rounds of stage 1 (labelled examples only); 0 starts from scratch.
        graph_augment: weakly augment examples before embedding.
        fixed_projections: use the same hash in every round of a run, in place of a new one.
        similarity: "lsh": codes; "exact": cosines of the features, for comparison only, because
            clients would have to reveal their features.
        protocol: "ideal", "accounted" or "real": clients and server compute distances and scores
            together, between the compiled parts of a round, see `fedjax_ssl.secure`. "none":
            compute them directly, without rounding.
        hamming: protocol of the distances, "transfer" or "paillier".
    """

    warmup_rounds: CountOrZero = 0
    graph_augment: bool = False
    fixed_projections: bool = False
    similarity: Literal["lsh", "exact"] = "lsh"
    protocol: Level = "none"
    hamming: Hamming = "transfer"


def xclp(setup: Setup, settings: XCLP) -> Recipe:
    """FedAvg+XCLP. Defaults are those of the authors' code; the paper's text has power 1 and no
    norm, scale, weights.

    Args:
        setup: the run.
        settings: the method's own.

    Raises:
        ValueError: for a setting outside its range.
    """
    participation = setup.participation
    loses = (
        participation is not None
        and participation.lost is not None
        and participation.lost_when in BEFORE_TRAINING
    )
    if settings.protocol != "none" and (loses or settings.similarity == "exact"):
        raise ValueError(
            f"protocol is {settings.protocol!r}, which compares codes of clients that stay; use "
            "protocol='none' with similarity='exact' or config.participation.lost_when=codes or "
            "scores"
        )
    protocols = None
    if settings.protocol != "none":
        protocols = secure_protocols(settings.protocol, settings.num_bits, settings.hamming)
    exchange = protocols.exchange if protocols else None

    def prepare(state: PyTree, context: RoundContext) -> tuple[PseudoLabels, PyTree]:
        features = cohort_features(setup, context, settings.graph_features, settings.graph_augment)
        result = propagate_over_cohort(
            setup,
            context,
            features,
            context.clients.observed,
            settings,
            settings.fixed_projections,
            exchange,
            settings.similarity,
        )
        real = receiving(setup, context)
        return to_pseudo_labels(result, real, setup.num_classes, settings), state

    def traffic(outcome: RoundResult) -> Traffic:
        if protocols is None or protocols.level == "ideal":
            return graph_traffic(setup, settings.num_bits, outcome)
        down, up = protocols.session_bytes()
        return Traffic(count(1, down), count(1, up))

    def diagnose(outcome: RoundResult, truth: Array, measured: PyTree) -> Metrics:
        return term.log.diagnose(outcome, truth, measured) | graph_operations(
            setup, settings, outcome.context
        )

    term = pseudo_label_term(setup, prepare, traffic)
    whole = term._replace(log=term.log._replace(diagnose=diagnose))
    on_host = exchange is not None
    recipe = after_labelled_stage(
        setup, mixed_stage(setup, whole), settings.warmup_rounds, on_host=on_host
    )
    return recipe._replace(sends=("codes of their examples",))


@checked
@dataclasses.dataclass(frozen=True)
class PerClientLP(GraphPseudoLabels):
    """Settings of label propagation at every client alone; norms, scales and weights are over the
    client's own examples.

    Attributes:
        warmup_rounds: rounds of labels-only training at the start.
        similarity: "exact" cosine, or "lsh" codes of `num_bits` bits.
        graph_augment: weakly augment examples before embedding.
        unlabelled_clients: let clients without labels take part; they get no pseudo-labels and
            train on nothing.
    """

    warmup_rounds: CountOrZero = 0
    similarity: Literal["exact", "lsh"] = "exact"
    graph_augment: bool = False
    unlabelled_clients: bool = False


def per_client_lp(setup: Setup, settings: PerClientLP) -> Recipe:
    """FedAvg with pseudo-labels that each client propagates from its own labels.

    Args:
        setup: the run.
        settings: the method's own.

    Raises:
        ValueError: for a setting outside its range.
    """

    def prepare(state: PyTree, context: RoundContext) -> tuple[PseudoLabels, PyTree]:
        features = cohort_features(setup, context, settings.graph_features, settings.graph_augment)
        real = examples_mask(context.clients)

        def one_client(identity: Array, rows: Array, observed: Array, mask: Array) -> PseudoLabels:
            key = jax.random.fold_in(named_key(context.key, "projections"), identity)
            result = graph.label(
                rows,
                observed,
                setup.num_classes,
                settings,
                key=None if settings.similarity == "exact" else key,
                valid=mask,
                clients=jnp.zeros_like(observed),
            )
            return to_pseudo_labels(result, mask, setup.num_classes, settings)

        return jax.vmap(one_client)(
            context.clients.id, features, context.clients.observed, real
        ), state

    quota = "proportional" if settings.unlabelled_clients else "only"
    stage = mixed_stage(setup, pseudo_label_term(setup, prepare), quota)
    return after_labelled_stage(setup, stage, settings.warmup_rounds)
