"""FedAvg+XCLP: pseudo-labels by label propagation over one graph of all the cohort's examples.

Rounds of federated averaging on labels alone come first (stage 1), then rounds of stage 2
(algorithm 2):

1. The cohort's clients embed all their examples with the global network and send codes of
   `num_bits` bits, the signs of random projections. Of two examples whose codes differ in h bits,
   the cosine is about cos(pi h / num_bits).
2. One graph over all clients' examples joins each to its `num_neighbors` nearest. With A their
   cosines, to the power `similarity_power`, W = A + A^T and its row sums D, S = D^-1/2 W D^-1/2
   carries the labels Y [N, K]: the scores are Z = (I - alpha S)^-1 Y (algorithm 1).
3. An unlabelled example gets the class with the largest score and the weight 1 - H(z / sum z) / log
   K, which is by default divided by the largest one (`confidence_scale`); a labelled one keeps its
   label with weight 1. kappa, the inverse frequency of the class, balances classes (section 2).
4. Clients minimize 1/|B| sum_i weight_i kappa_(y_i) CE(f(x_i), y_i) over batches of as many
   labelled as unlabelled examples; the mean of their changes is a step of the federated optimizer.

`per_client_lp`, its baseline, propagates each client's own labels over a graph of that client alone
(section 5).

References:
    Scott, Yeo, Lampert, Cross-client label propagation for transductive and semi-supervised
    federated learning, TMLR 2023, arXiv 2210.06434: Algorithms 1 and 2.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from fedjax_ssl import graph
from fedjax_ssl.checks import checked, is_zero
from fedjax_ssl.federated import Recipe, RoundContext, RoundResult, Setup, Traffic, count
from fedjax_ssl.federated.method import Broadcast, Metrics, PyTree
from fedjax_ssl.graph.settings import Hamming, Level
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.graph_pseudo_labels import (
    GraphPseudoLabels,
    cohort_features,
    graph_operations,
    graph_traffic,
    propagate_over_cohort,
    to_pseudo_labels,
)
from fedjax_ssl.methods.parts.recommended import AT_CLIENTS, MIXED
from fedjax_ssl.methods.parts.settings import CountOrZero, Decay
from fedjax_ssl.methods.parts.terms import PseudoLabels, examples_mask, pseudo_label_term
from fedjax_ssl.methods.parts.two_stages import after_labelled_stage, mixed_stage

# Fewer neighbours than the code's 10: the digits are 1,400 points, not 2,250.
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
        graph_augment: weakly augment the examples before they are embedded.
        fixed_projections: the same hash in every round of a run instead of a fresh one.
        similarity: "lsh": codes; "exact": cosines of the features, for comparison: clients would
            have to show these.
        lost_before: share of clients that drop out of a round before their codes are compared, as
            if never invited.
        lost_after: share of clients that drop out between that and the row sums: their examples
            stay in the graph, their labels do not count, and they do not train (section 3.3).
        protocol: "ideal", "accounted" or "real": clients and server find distances and scores
            together, between the compiled parts of a round, see `fedjax_ssl.secure`. "none": the
            kernels, which round nothing.
        hamming: protocol of the distances, "transfer" or "paillier".
    """

    warmup_rounds: CountOrZero = 0
    graph_augment: bool = False
    fixed_projections: bool = False
    similarity: Literal["lsh", "exact"] = "lsh"
    lost_before: Decay = 0.0
    lost_after: Decay = 0.0
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
    loses = not (is_zero(settings.lost_before) and is_zero(settings.lost_after))
    if settings.protocol != "none" and (loses or settings.similarity == "exact"):
        raise ValueError(
            f"protocol is {settings.protocol!r}, which compares codes of clients that stay; use "
            "protocol='none' with similarity='exact', lost_before or lost_after"
        )
    leaving = settings.lost_before + settings.lost_after
    if isinstance(leaving, (int, float)) and leaving > 1:  # a traced one is not known
        raise ValueError(
            f"lost_before + lost_after is {leaving:g}; shares of all clients are at most 1 together"
        )
    protocols = None
    if settings.protocol != "none":
        protocols = graph.protocols(settings.protocol, settings.num_bits, settings.hamming)
    exchange = protocols.exchange if protocols else None

    def prepare(state: PyTree, context: RoundContext) -> tuple[PseudoLabels, PyTree]:
        features = cohort_features(setup, context, settings.graph_features, settings.graph_augment)
        clients = context.clients
        real = examples_mask(context.clients)
        if loses:
            # Gone before the codes: no example in the graph. Gone after them: examples, no labels.
            before, lost = _lost(settings, context)
            clients = clients._replace(
                num_examples=jnp.where(before, 0, clients.num_examples),
                observed=jnp.where(lost[:, None], -1, clients.observed),
            )
            real = real & ~lost[:, None]
        result = propagate_over_cohort(
            setup,
            context._replace(clients=clients),
            features,
            clients.observed,
            settings,
            settings.fixed_projections,
            exchange,
            settings.similarity,
        )
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

    def stays(sent: Broadcast, context: RoundContext) -> Bool[Array, " p"]:
        return term.server.participates(sent, context) & ~_lost(settings, context)[1]

    term = pseudo_label_term(setup, prepare, traffic)
    whole = term._replace(log=term.log._replace(diagnose=diagnose))
    if loses:
        whole = whole._replace(server=term.server._replace(participates=stays))
    on_host = exchange is not None
    recipe = after_labelled_stage(
        setup, mixed_stage(setup, whole), settings.warmup_rounds, on_host=on_host
    )
    return recipe._replace(sends=("codes of their examples",))


def _lost(settings: XCLP, context: RoundContext) -> tuple[Bool[Array, " p"], Bool[Array, " p"]]:
    """Draws which clients of the cohort drop out: before their codes are compared, and at all."""
    key = named_key(context.key, "lost")
    drawn = jax.vmap(lambda client: jax.random.uniform(jax.random.fold_in(key, client)))(
        context.clients.id
    )
    return drawn < settings.lost_before, drawn < settings.lost_before + settings.lost_after


@checked
@dataclasses.dataclass(frozen=True)
class PerClientLP(GraphPseudoLabels):
    """Settings of label propagation at every client alone; norms, scales and weights are over its
    own examples.

    Attributes:
        warmup_rounds: rounds of labels-only training before.
        similarity: "exact" cosine, or "lsh" codes of `num_bits` bits.
        graph_augment: weakly augment the examples before they are embedded.
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
            result = graph.label_propagation(
                rows,
                observed,
                setup.num_classes,
                settings,
                similarity=settings.similarity,
                key=jax.random.fold_in(named_key(context.key, "projections"), identity),
                valid=mask,
            )
            return to_pseudo_labels(result, mask, setup.num_classes, settings)

        return jax.vmap(one_client)(
            context.clients.id, features, context.clients.observed, real
        ), state

    quota = "proportional" if settings.unlabelled_clients else "only"
    stage = mixed_stage(setup, pseudo_label_term(setup, prepare), quota)
    return after_labelled_stage(setup, stage, settings.warmup_rounds)
