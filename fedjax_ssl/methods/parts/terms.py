"""Terms that many methods share: labelled examples, and pseudo-labels made before local
training.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.federated.contract import (
    AtServer,
    Broadcast,
    Client,
    ForLog,
    Metrics,
    PyTree,
    RoundContext,
    RoundResult,
    Step,
    Term,
    Traffic,
    View,
)
from fedjax_ssl.federated.forward import map_rows
from fedjax_ssl.federated.setup import Setup
from fedjax_ssl.models import Outputs
from fedjax_ssl.objectives import batch_cross_entropy

# Streams of batches that keep the two kinds of examples separate.
LABELLED = "labelled"
UNLABELLED = "unlabelled"


class PseudoLabels(NamedTuple):
    """Targets of local training for a cohort; true labels are included, with weight 1 (times class
    weight).
    """

    labels: Int[Array, "p n"]  # -1 = none
    weights: Float[Array, "p n"]
    confidence: Float[Array, "p n"]  # confidence in [0, 1], for the log


def augmented_view(setup: Setup, stream: str) -> View:
    """Return the view of a stream under the run's weak augmentation, normalized for the network."""
    return View(
        f"{stream}/weak",
        stream,
        lambda key, streams: setup.normalize(setup.augment(key, streams[stream].inputs)),
    )


def supervised_term(setup: Setup) -> Term:
    """Return a term with the cross-entropy on the observed labels of stream "labelled"."""
    view = augmented_view(setup, "labelled")

    def loss(step: Step) -> Array:
        batch = step.streams["labelled"]
        return batch_cross_entropy(
            step.outputs[view.name].logits, batch.observed, batch.mask, loss=setup.loss
        )

    return Term("supervised", (view,), loss)


def pseudo_label_term(
    setup: Setup,
    prepare: Callable[[PyTree, RoundContext], tuple[PseudoLabels, PyTree]],
    traffic: Callable[[RoundResult], Traffic] | None = None,
    init: Callable[..., PyTree] = lambda *given: (),
    stream: str = "mixed",
) -> Term:
    """Return a term with the weighted cross-entropy of a stream against labels and pseudo-labels:
    1/|B| sum_i w_i CE(f(x_i), y_i).

    No gradient reaches targets or weights: they are made before local training (XCLP, Algorithm 2).

    Args:
        setup: the run.
        prepare: (term state, context) -> (`PseudoLabels` of the cohort, term state).
        traffic: bytes sent for the pseudo-labels; None: clients make them without messages.
        init: (key, params, model_state, clients) -> term state.
        stream: stream with the rows.
    """
    view = augmented_view(setup, stream)

    def send(state: PyTree, context: RoundContext) -> tuple[Broadcast, PyTree]:
        pseudo_labels, state = prepare(state, context)
        return Broadcast(pseudo_labels), state

    def loss(step: Step) -> Array:
        batch = step.streams[stream]
        targets = step.sent
        logits = step.outputs[view.name].logits
        labels = targets.labels[batch.position]
        return batch_cross_entropy(
            logits, labels, batch.mask, targets.weights[batch.position], setup.loss
        )

    def participates(sent: Broadcast, context: RoundContext) -> Bool[Array, " p"]:
        # A client with labels takes part even if its values are NaN: it is then counted as dropped.
        return jnp.any((sent.own.labels >= 0) | (context.clients.observed >= 0), axis=1)

    return Term(
        "pseudo_labels",
        (view,),
        loss,
        server=AtServer(init, send, participates, at_clients=traffic is None),
        log=ForLog(
            diagnose=lambda outcome, truth, _: diagnose_pseudo_labels(
                outcome.sent.own, truth, staying(setup, outcome.context)
            ),
            traffic=traffic,
        ),
    )


def diagnose_pseudo_labels(
    sent: PseudoLabels, truth: Int[Array, "p n"], clients: Client
) -> Metrics:
    """Measure the quality of the pseudo-labels on the cohort's unlabelled examples; NaN if there
    are none to average.

    Returns:
        "pseudo_label_accuracy" among the examples with a pseudo-label, "pseudo_label_coverage"
        (share of examples with one), and the mean confidence of correct and of wrong pseudo-labels.
    """
    unlabelled = examples_mask(clients) & (clients.observed < 0)
    given = unlabelled & (sent.labels >= 0) & (truth >= 0)
    right = given & (sent.labels == truth)
    return {
        "pseudo_label_accuracy": jnp.mean(right.astype(sent.confidence.dtype), where=given),
        "pseudo_label_coverage": jnp.mean(
            (sent.labels >= 0).astype(sent.confidence.dtype), where=unlabelled
        ),
        "confidence_correct": jnp.mean(sent.confidence, where=right),
        "confidence_wrong": jnp.mean(sent.confidence, where=given & ~right),
    }


def network_pseudo_labels(
    setup: Setup, context: RoundContext, clients: Client, key: Array | None = None
) -> PseudoLabels:
    """Return the global network's own predictions as pseudo-labels, weighted by 1 - entropy / log K
    (XCLP section 5.4).

    Args:
        setup: the run.
        context: the round, with parameters and inputs.
        clients: the clients with the examples to label, leading axis p.
        key: if given, the network sees weakly augmented examples.

    Returns:
        `PseudoLabels` in which labelled examples keep their label with weight 1.
    """
    from fedjax_ssl.graph import confidence  # not at the top: most methods have no graph

    probabilities = jax.nn.softmax(network_outputs(setup, context, clients, key).logits)
    predicted = jnp.argmax(probabilities, axis=-1).astype(jnp.int32)
    certainty = confidence(probabilities.reshape(-1, setup.num_classes)).reshape(predicted.shape)
    labelled = clients.observed >= 0
    real = examples_mask(clients)
    labels = jnp.where(real, jnp.where(labelled, clients.observed, predicted), -1)
    weights = jnp.where(
        real, jnp.where(labelled, jnp.ones_like(certainty), certainty), jnp.zeros_like(certainty)
    )
    return PseudoLabels(labels, weights, weights)


def network_features(
    setup: Setup, context: RoundContext, key: Array | None = None
) -> Float[Array, "p n d"]:
    """Return the features of every example of the cohort, the input of the network's head, in
    evaluation mode.

    Args:
        setup: the run.
        context: the round, with cohort, parameters and inputs.
        key: if given, the network sees weakly augmented examples.
    """
    return network_outputs(setup, context, context.clients, key).features


def staying(setup: Setup, context: RoundContext) -> Client:
    """Return the cohort without the examples of clients that are lost before they train."""
    participation = setup.participation
    return context.clients if participation is None else participation.staying(context)


def examples_mask(clients: Client) -> Bool[Array, "p n"]:
    """Return the mask of real entries in the clients' tables, which are not padding."""
    return jnp.arange(clients.rows.shape[1], dtype=jnp.int32) < clients.num_examples[:, None]


def network_outputs(
    setup: Setup, context: RoundContext, clients: Client, key: Array | None = None
) -> Outputs:
    """Return the network's outputs for every example of the clients, [p, n, ...]; weakly augmented
    if a key is given.
    """

    def evaluate(inputs: Array, owner: Array, position: Array) -> Outputs:
        if key is not None:
            # The draw of an example depends on client and place, not on its row in this batch.
            keys = jax.vmap(lambda c, i: jax.random.fold_in(jax.random.fold_in(key, c), i))(
                owner, position
            )
            inputs = jax.vmap(lambda k, x: setup.augment(k, x[None])[0])(keys, inputs)
        outputs, _ = setup.model.apply(
            context.params, context.model_state, setup.normalize(inputs), train=False
        )
        return outputs

    shape = clients.rows.shape
    owner = jnp.broadcast_to(clients.id[:, None], shape)
    position = jnp.broadcast_to(jnp.arange(shape[1], dtype=jnp.int32), shape)
    return map_rows(
        evaluate, context.inputs, clients.rows, setup.evaluation_batch_size, (owner, position)
    )
