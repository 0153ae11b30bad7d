"""What the two label-propagation methods share: features of the cohort, and a propagation's result as pseudo-labels."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl import graph
from fedjax_ssl.checks import check_choices
from fedjax_ssl.federated import BYTES_PER_NUMBER, RoundContext, RoundResult, Setup, Traffic, count, map_rows
from fedjax_ssl.federated.terms import PseudoLabels, examples_mask, network_features
from fedjax_ssl.graph import Exchange, Propagation, PropagationSettings, class_weights
from fedjax_ssl.keys import named_key
from fedjax_ssl.secure import SERVER, Protocols


def check_graph_settings(graph_features: str, class_weighting: str) -> None:
    """Raises ValueError for a setting that does not exist."""
    check_choices(("network", "inputs"), graph_features=graph_features)
    check_choices(("none", "inverse_freq"), class_weighting=class_weighting)


def cohort_features(setup: Setup, round: RoundContext, graph_features: str, augment: bool) -> Float[Array, "p n d"]:
    """What is hashed or compared: network features or raw inputs of every example of the cohort.

    `augment` embeds weakly augmented examples (graph_features "network" only).
    """
    if graph_features == "network":
        return network_features(setup, round, named_key(round.key, "graph") if augment else None)
    index = round.clients.rows
    return map_rows(lambda inputs: setup.normalize(inputs).reshape(inputs.shape[0], -1), round.inputs, index)


def propagate_over_cohort(
    setup: Setup,
    round: RoundContext,
    features: Float[Array, "p n d"],
    labels: Int[Array, "p n"],
    settings: PropagationSettings,
    fixed_projections: bool = False,
    exchange: Exchange | None = None,
) -> Propagation:
    """Label propagation over one graph of all the cohort's examples (XCLP, Algorithm 1).

    Labels are propagated from `labels`, -1 = none. `fixed_projections` keeps one hash in all rounds of a run.
    `exchange` are protocols between the clients, not under a trace. The result holds the p * n examples in a row,
    client after client.
    """
    real = examples_mask(round.clients)
    owner = jnp.broadcast_to(jnp.arange(real.shape[0])[:, None], real.shape)
    return graph.xclp(
        named_key(round.run_key if fixed_projections else round.key, "projections"),
        features.reshape(real.size, -1),
        labels.reshape(-1),
        setup.num_classes,
        valid=real.reshape(-1),
        clients=owner.reshape(-1),
        exchange=exchange,
        **settings._asdict(),
    )


def graph_traffic(setup: Setup, num_bits: int, outcome: RoundResult) -> Traffic:
    """Bytes of the plaintext path: codes go up, every client's rows of the scores come down."""
    examples = jnp.sum(outcome.round.clients.num_examples)
    words = -(-num_bits // 32)
    return Traffic(count(examples, BYTES_PER_NUMBER * setup.num_classes), count(examples, BYTES_PER_NUMBER * words))


def protocol_traffic(protocols: Protocols) -> Callable[[RoundResult], Traffic]:
    """Bytes that the cohort's clients were sent and sent in the protocols of a round, as the server relays them."""
    before = {"down": 0, "up": 0}

    def traffic(outcome: RoundResult) -> Traffic:
        of_server = protocols.traffic.total(sender=SERVER), protocols.traffic.total(receiver=SERVER)
        between = protocols.traffic.total() - sum(of_server)
        total = {"down": of_server[0] + between, "up": of_server[1] + between}
        sent = {name: total[name] - before[name] for name in total}
        before.update(total)
        return Traffic(count(1, sent["down"]), count(1, sent["up"]))

    return traffic


def to_pseudo_labels(
    result: Propagation, real: Bool[Array, "p n"], num_classes: int, class_weighting: str
) -> PseudoLabels:
    """Targets and weights of local training; class weights count over all examples that took part in the graph.

    `real` says which examples are not padding; class_weighting "inverse_freq" is kappa of XCLP section 2.
    """
    labels = jnp.where(real, result.labels.reshape(real.shape), -1)
    certainty = jnp.where(labels >= 0, result.confidence.reshape(real.shape), 0.0)
    weights = certainty
    if class_weighting == "inverse_freq":
        per_class = class_weights(result.labels, real.reshape(-1) & result.valid.reshape(-1), num_classes)
        weights = weights * per_class[jnp.maximum(labels, 0)]
    return PseudoLabels(labels, weights, certainty)
