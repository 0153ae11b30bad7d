"""Losses that make the predictions of two views of an example agree: FixMatch, UDA, and UDA's annealing.

References:
    Sohn et al., FixMatch: simplifying semi-supervised learning with consistency and confidence, NeurIPS 2020.
    Xie et al., Unsupervised data augmentation for consistency training (UDA), NeurIPS 2020: sections 2 and 3.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.checks import check_choices
from fedjax_ssl.objectives.cross_entropy import batch_cross_entropy, cross_entropy

AnnealingSchedule = Literal["exp", "linear", "log"]
MaskMean = Literal["batch", "confident"]


def fixmatch_loss(
    weak_logits: Float[Array, "n K"],
    strong_logits: Float[Array, "n K"],
    mask: Bool[Array, " n"],
    threshold: float | Array,
    mask_mean: MaskMean = "batch",
) -> Float[Array, ""]:
    """1/B sum_i [max q_i >= threshold] CE(argmax q_i, strong_i), q = softmax(weak), B = rows in the mask.

    The mean is over the whole batch, also over rows that are not confident. No gradient reaches `weak_logits`.

    Args:
        weak_logits: of the views that give the pseudo-labels.
        strong_logits: of the views that learn them.
        mask: rows that belong to the batch.
        threshold: of the largest probability; above 1 nothing is confident.
        mask_mean: "confident": the mean over the confident rows in place of the batch, 0 without any.
    """
    check_choices(("batch", "confident"), mask_mean=mask_mean)
    probabilities = jax.lax.stop_gradient(jax.nn.softmax(weak_logits))
    confident = jnp.max(probabilities, axis=1) >= threshold
    labels = jnp.argmax(probabilities, axis=1).astype(jnp.int32)
    counted = mask if mask_mean == "batch" else mask & confident
    return batch_cross_entropy(strong_logits, jnp.where(confident, labels, -1), counted)


def uda_loss(
    weak_logits: Float[Array, "n K"],
    strong_logits: Float[Array, "n K"],
    mask: Bool[Array, " n"],
    threshold: float | Array | None = 0.8,
    temperature: float | Array | None = 0.4,
) -> Float[Array, ""]:
    """1/B sum_i [max p_i > threshold] CE(q_i, strong_i), q = softmax(weak / temperature), p = softmax(weak).

    B is the number of rows in the mask. Cross-entropy and Kullback-Leibler divergence differ by the entropy of the
    targets, a constant here. No gradient reaches `weak_logits`.

    Args:
        weak_logits: of the views that give the targets.
        strong_logits: of the views that learn them.
        mask: rows that belong to the batch.
        threshold: of the largest probability before sharpening; None: every row counts.
        temperature: of the targets; None: not sharpened.
    """
    weak_logits = jax.lax.stop_gradient(weak_logits)
    targets = jax.nn.softmax(weak_logits if temperature is None else weak_logits / temperature)
    rows = -jnp.sum(targets * jax.nn.log_softmax(strong_logits), axis=1)
    counted = mask
    if threshold is not None:
        counted = mask & (jnp.max(jax.nn.softmax(weak_logits), axis=1) > threshold)
    return jnp.sum(jnp.where(counted, rows, 0)) / jnp.maximum(jnp.sum(mask, dtype=rows.dtype), 1.0)


def annealed_cross_entropy(
    logits: Float[Array, "n K"], targets: Int[Array, " n"], mask: Bool[Array, " n"], ceiling: float | Array
) -> Float[Array, ""]:
    """Cross-entropy over the rows whose true class is not yet more probable than `ceiling` (UDA's TSA).

    sum_i [p_i(y_i) <= ceiling] CE(y_i, z_i) / the number of such rows; 0 without any.

    Args:
        logits: unnormalized class scores.
        targets: class of every row, -1 = none.
        mask: rows that belong to the batch.
        ceiling: see `training_signal_ceiling`.
    """
    rows = cross_entropy(logits, targets)
    kept = mask & (targets >= 0) & (jnp.exp(-jax.lax.stop_gradient(rows)) <= ceiling)
    return jnp.sum(jnp.where(kept, rows, 0)) / jnp.maximum(jnp.sum(kept, dtype=rows.dtype), 1.0)


def training_signal_ceiling(
    progress: Float[Array, ""], num_classes: int, schedule: AnnealingSchedule = "exp"
) -> Float[Array, ""]:
    """The largest probability of the true class with which a labelled example still trains.

    alpha (1 - 1/K) + 1/K with alpha = exp(5 (t - 1)), t, or 1 - exp(-5 t) for "exp", "linear", "log"; t = `progress`.

    Args:
        progress: share of training that is over, in [0, 1].
        num_classes: K.
        schedule: "exp" holds labelled examples back longest.
    """
    check_choices(("exp", "linear", "log"), schedule=schedule)
    alpha = {"exp": jnp.exp(5 * (progress - 1)), "linear": progress, "log": 1 - jnp.exp(-5 * progress)}[schedule]
    return alpha * (1 - 1 / num_classes) + 1 / num_classes


def linear_ramp(number: Int[Array, ""], start: int, end: int) -> Float[Array, ""]:
    """A weight that rises from 0 at `start` to 1 at `end`: clip((number - start) / (end - start), 0, 1)."""
    return jnp.clip((number - start).astype(jnp.result_type(float)) / (end - start), 0.0, 1.0)
