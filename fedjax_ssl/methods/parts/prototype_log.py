"""What the log says of ProtoFSSL's pseudo-labels."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from fedjax_ssl.federated import Setup
from fedjax_ssl.federated.method import Metrics, RoundResult
from fedjax_ssl.federated.terms import PseudoLabels, diagnose_pseudo_labels, network_outputs
from fedjax_ssl.methods.parts.prototype_losses import Scoring, pseudo_labels


def diagnose_helpers(
    setup: Setup, num_unlabelled: int, scoring: Scoring, outcome: RoundResult, truth: Int[Array, "p n"]
) -> Metrics:
    """How good pseudo-labels are, of the first unlabelled examples of every client under the model that was sent.

    Args:
        setup: the run.
        num_unlabelled: examples of each client.
        scoring: of pseudo-labels.
        outcome: of a term that sent `Helpers` to all.
        truth: true labels.
    """
    round, helpers = outcome.round, outcome.sent.shared
    clients, size = round.clients, round.clients.rows.shape[1]
    place = clients.num_labelled[:, None] + jnp.arange(min(num_unlabelled, size), dtype=jnp.int32)
    within = jnp.minimum(place, size - 1)
    rows = jnp.take_along_axis(clients.rows, within, axis=1)
    features = network_outputs(setup, round, clients._replace(rows=rows)).features
    probs = jax.vmap(lambda z: pseudo_labels(z, helpers.sets, scoring))(features)
    largest = jnp.max(probs, axis=2)
    given = (place < clients.num_examples[:, None]) & helpers.active & jnp.isfinite(largest)
    labels = jnp.where(given, jnp.argmax(probs, axis=2).astype(jnp.int32), -1)
    seen = clients._replace(
        rows=rows,
        observed=jnp.full_like(rows, -1),
        num_labelled=jnp.zeros_like(clients.num_labelled),
        num_examples=clients.num_examples - clients.num_labelled,
    )
    targets = PseudoLabels(labels, largest, largest)
    return diagnose_pseudo_labels(targets, jnp.take_along_axis(truth, within, axis=1), seen)
