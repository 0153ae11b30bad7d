"""The scores and losses of ProtoFSSL (docs/methods/protofssl.md, "A round"), and a client's prototypes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.federated import Client, Setup, map_rows
from fedjax_ssl.federated.method import PyTree
from fedjax_ssl.methods.parts.prototype_bank import PrototypeSets
from fedjax_ssl.objectives import (
    batch_cross_entropy,
    class_prototypes,
    clipped_cross_entropy,
    consistency,
    helper_pseudo_labels,
    prototype_log_probs,
)


class Scoring(NamedTuple):
    """How embeddings are compared with prototypes, and pseudo-labels with predictions."""

    temperature: float | Array = 0.5  # T of the sharpening
    distance: str = "mean_sq"
    unlabel_loss: str = "ce"
    stop_gradient: bool = False  # of pseudo-labels


def query_loss(
    embeddings: Float[Array, "n d"],
    targets: Int[Array, " n"],
    centers: Float[Array, "K d"],
    present: Bool[Array, " K"],
    scoring: Scoring,
) -> Float[Array, ""]:
    """L_s = -1/|Q| sum_x log p_y(x), |Q| = queries whose class has a prototype; 0 without any.

    Args:
        embeddings: of the labelled queries.
        targets: their classes, -1 = padding.
        centers: local prototypes.
        present: classes that have one.
        scoring: names the distance.
    """
    log_probs = prototype_log_probs(embeddings, centers, present, distance=scoring.distance)
    counted = (targets >= 0) & present[jnp.maximum(targets, 0)]
    return batch_cross_entropy(log_probs, jnp.where(counted, targets, -1), counted)


def pseudo_labels(embeddings: Float[Array, "n d"], helpers: PrototypeSets, scoring: Scoring) -> Float[Array, "n K"]:
    """The helpers' probabilities, averaged and sharpened; 0 without helpers."""
    return helper_pseudo_labels(
        embeddings, helpers.centers, helpers.present, 1.0, scoring.temperature, distance=scoring.distance
    )


def unlabelled_loss(
    embeddings: Float[Array, "n d"],
    mask: Bool[Array, " n"],
    centers: Float[Array, "K d"],
    present: Bool[Array, " K"],
    helpers: PrototypeSets,
    scoring: Scoring,
) -> Float[Array, ""]:
    """L_u: local predictions against the helpers' pseudo-labels, averaged over the rows in the mask; 0 without any.

    A class without a local prototype has probability 0 and keeps its part in the cross-entropy, clipped: otherwise the
    loss could be lowered by moving pseudo-labels onto absent classes.

    Args:
        embeddings: of the unlabelled queries.
        mask: False on padding, and everywhere while unlabelled examples are not learned from.
        centers: local prototypes.
        present: classes that have one.
        helpers: constants.
        scoring: distance, sharpening, loss, and whether gradients flow through pseudo-labels.
    """
    targets = pseudo_labels(embeddings, helpers, scoring)
    if scoring.stop_gradient:
        targets = jax.lax.stop_gradient(targets)
    log_probs = prototype_log_probs(embeddings, centers, present, distance=scoring.distance)
    if scoring.unlabel_loss == "mse":
        return consistency(jnp.exp(log_probs), targets, mask)
    return clipped_cross_entropy(targets, log_probs, mask)


def mean_log_probs(embeddings: Float[Array, "n d"], sets: PrototypeSets, distance: str) -> Float[Array, "n K"]:
    """log of the probabilities averaged over prototype sets; uniform where there is none."""
    probs = helper_pseudo_labels(embeddings, sets.centers, sets.present, 1.0, 1.0, distance=distance)
    log_probs = jnp.log(jnp.maximum(probs, jnp.finfo(probs.dtype).tiny))
    return jnp.where(jnp.any(sets.present), log_probs, -jnp.log(float(probs.shape[1])))


def labelled_prototypes(
    setup: Setup, params: PyTree, model_state: PyTree, client: Client, inputs: Array
) -> Float[Array, "K d"]:
    """Mean embedding of all of a client's labelled examples by class, in evaluation mode, without augmentation."""

    def embed(raw: Array) -> Float[Array, "b d"]:
        return setup.model.apply(params, model_state, setup.normalize(raw), train=False)[0].features

    bound = min(max(setup.max_labelled, 1), client.rows.shape[0])
    embeddings = map_rows(embed, inputs, client.rows[:bound], setup.evaluation_batch_size)
    return class_prototypes(embeddings, client.observed[:bound], setup.num_classes)[0]
