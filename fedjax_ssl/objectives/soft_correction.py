"""Pseudo-labels of a local model, softly corrected by those of the global one, by how far their confidences are apart.

References:
    SAGE, CVPR 2025, arXiv 2503.13227 (confidence-driven soft correction), after the authors' published code.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

HALVES_AT_05 = math.log(2) / 0.05  # the local share is 1/2 where confidences differ by 0.05
_SMALLEST = 1e-6  # of a difference and of a share
_EPSILON = 1e-10  # added to probabilities before logarithms


class Corrected(NamedTuple):
    """Targets of a batch, without gradient."""

    targets: Float[Array, "n K"]  # a distribution over at most two classes
    counted: Bool[Array, " n"]  # rows of which either model is confident


def local_share(difference: Float[Array, "..."], kappa: float | Array = HALVES_AT_05) -> Float[Array, "..."]:
    """lambda = exp(-kappa d), of the local model's label where the confidences differ by d; both within [1e-6, 1]."""
    distance = jnp.clip(difference + _SMALLEST, _SMALLEST, 1.0)
    return jnp.clip(jnp.exp(-kappa * distance), _SMALLEST, 1.0)


def corrected_labels(
    local_probabilities: Float[Array, "n K"],
    global_probabilities: Float[Array, "n K"],
    threshold: float | Array,
    kappa: float | Array = HALVES_AT_05,
) -> Corrected:
    """lambda e(local class) + (1 - lambda) e(global class) where the local model is confident, else e(global class).

    The global class enters even where the global model is not confident. With one class for both, the target is that.

    Args:
        local_probabilities: of the classes, by the model in training.
        global_probabilities: by the model that was received.
        threshold: at which a largest probability is confident; above 1, nothing is.
        kappa: how fast the local share falls with the difference of the confidences.
    """
    ours, theirs = (jax.lax.stop_gradient(p) for p in (local_probabilities, global_probabilities))
    sure, other = jnp.max(ours, axis=1), jnp.max(theirs, axis=1)
    share = jnp.where(sure >= threshold, local_share(jnp.abs(sure - other), kappa), 0.0)[:, None]
    mine, global_class = (jax.nn.one_hot(jnp.argmax(p, axis=1), p.shape[1], dtype=p.dtype) for p in (ours, theirs))
    return Corrected(share * mine + (1.0 - share) * global_class, (sure >= threshold) | (other >= threshold))


def soft_label_divergence(
    logits: Float[Array, "n K"], corrected: Corrected, mask: Bool[Array, " n"]
) -> Float[Array, ""]:
    """1/B sum over counted rows of KL[target || softmax(logits)], 1e-10 added to both; B = rows in the mask.

    Args:
        logits: class scores that learn the targets.
        corrected: of the same rows.
        mask: rows that belong to the batch.
    """
    probabilities = jax.nn.softmax(logits) + _EPSILON
    targets = corrected.targets.astype(probabilities.dtype) + _EPSILON
    rows = jnp.sum(targets * (jnp.log(targets) - jnp.log(probabilities)), axis=1)
    counted = mask & corrected.counted
    return jnp.sum(jnp.where(counted, rows, 0.0)) / jnp.maximum(jnp.sum(mask, dtype=rows.dtype), 1.0)
