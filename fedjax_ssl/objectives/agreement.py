"""Losses between predictions: for two views of an example, for student and teacher, for several
clients' models.

References:
    Sohn et al., FixMatch: simplifying semi-supervised learning with consistency and confidence,
    NeurIPS 2020. Xie et al., Unsupervised data augmentation for consistency training (UDA), NeurIPS
    2020: sections 2 and 3. Tarvainen and Valpola, Mean teachers are better role models, NeurIPS
    2017, as FedSiam uses it. Jeong, Yoon, Yang, Hwang, Federated semi-supervised learning with
    inter-client consistency and disjoint learning, ICLR 2021, arXiv 2006.12097: equations 3 and 4.
"""

from typing import Annotated, Literal

import jax
import jax.numpy as jnp
from jax.scipy.special import xlogy
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.checks import OneOf, checked
from fedjax_ssl.objectives.cross_entropy import (
    RowLoss,
    batch_cross_entropy,
    batch_mean,
    cross_entropy,
)

MaskMean = Literal["batch", "confident"]


@checked
def fixmatch_loss(
    weak_logits: Float[Array, "n K"],
    strong_logits: Float[Array, "n K"],
    mask: Bool[Array, " n"],
    threshold: float | Array,
    mask_mean: MaskMean = "batch",
) -> Float[Array, ""]:
    """Return 1/B sum_i [max q_i >= threshold] CE(argmax q_i, strong_i), q = softmax(weak), B = rows
    in the mask.

    The mean is over the whole batch, also over rows that are not confident. No gradient reaches
    `weak_logits`.

    Args:
        weak_logits: logits of the views that give the pseudo-labels.
        strong_logits: logits of the views that are trained on them.
        mask: rows that belong to the batch.
        threshold: threshold of the largest probability; above 1, no row is confident.
        mask_mean: "confident": take the mean over the confident rows in place of the batch; 0 if
            there are none.
    """
    probabilities = jax.lax.stop_gradient(jax.nn.softmax(weak_logits))
    confident = jnp.max(probabilities, axis=1) >= threshold
    labels = jnp.argmax(probabilities, axis=1).astype(jnp.int32)
    counted = mask if mask_mean == "batch" else mask & confident
    return batch_cross_entropy(strong_logits, jnp.where(confident, labels, -1), counted)


def annealed_cross_entropy(
    logits: Float[Array, "n K"],
    targets: Int[Array, " n"],
    mask: Bool[Array, " n"],
    ceiling: float | Array,
    loss: RowLoss = cross_entropy,
) -> Float[Array, ""]:
    """Return the cross-entropy over rows whose true class is not yet more probable than `ceiling`
    (UDA's TSA).

    sum_i [p_i(y_i) <= ceiling] CE(y_i, z_i) / the number of such rows; 0 without any.

    Args:
        logits: unnormalized class scores.
        targets: class of every row, -1 = none.
        mask: rows that belong to the batch.
        ceiling: see `training_signal_ceiling`.
        loss: loss of every row, such as `Setup.loss`.
    """
    probability = jnp.exp(-jax.lax.stop_gradient(cross_entropy(logits, targets)))
    return batch_mean(loss(logits, targets), mask & (targets >= 0) & (probability <= ceiling))


@checked
def training_signal_ceiling(
    progress: Float[Array, ""],
    num_classes: int,
    schedule: Annotated[str, OneOf(("exp", "linear", "log"))] = "exp",
) -> Float[Array, ""]:
    """Return the largest probability of the true class at which a labelled example still counts.

    alpha (1 - 1/K) + 1/K with alpha = exp(5 (t - 1)), t, or 1 - exp(-5 t) for "exp", "linear",
    "log"; t = `progress`.

    Args:
        progress: share of training done so far, in [0, 1].
        num_classes: K.
        schedule: "exp", "linear" or "log"; "exp" holds labelled examples back longest.
    """
    alpha = {
        "exp": jnp.exp(5 * (progress - 1)),
        "linear": progress,
        "log": 1 - jnp.exp(-5 * progress),
    }[schedule]
    return alpha * (1 - 1 / num_classes) + 1 / num_classes


def linear_ramp(number: Int[Array, ""], start: int, end: int) -> Float[Array, ""]:
    """Return a weight that rises from 0 at `start` to 1 at `end`: clip((number - start) / (end -
    start), 0, 1).
    """
    return jnp.clip((number - start).astype(jnp.result_type(float)) / (end - start), 0.0, 1.0)


def consistency(
    probabilities: Float[Array, "n K"],
    targets: Float[Array, "n K"],
    mask: Bool[Array, " n"],
    counted: Bool[Array, " n"] | Float[Array, " n"] | None = None,
) -> Float[Array, ""]:
    """Return the squared distance averaged over rows and classes: 1/(BK) sum_i c_i ||p_i - q_i||^2,
    B = rows in the mask.

    Args:
        probabilities: p.
        targets: q.
        mask: rows that belong to the batch.
        counted: c, as in `batch_mean`.
    """
    squares = jnp.where(mask[:, None], (probabilities - targets) ** 2, 0)
    if counted is not None:
        squares = squares * counted.astype(squares.dtype)[:, None]
    rows = jnp.maximum(jnp.sum(mask, dtype=squares.dtype), 1.0)
    return jnp.sum(squares) / (rows * squares.shape[1])


def soft_label_divergence(
    logits: Float[Array, "n K"],
    targets: Float[Array, "n K"],
    mask: Bool[Array, " n"],
    counted: Bool[Array, " n"] | Float[Array, " n"] | None = None,
) -> Float[Array, ""]:
    """Return 1/B sum_i c_i KL[target_i || softmax(logits_i)], with 1e-10 added to all
    probabilities; B = rows in the mask.

    Args:
        logits: class scores that are trained on the targets.
        targets: distributions.
        mask: rows that belong to the batch.
        counted: c, as in `batch_mean`.
    """
    probabilities = jax.nn.softmax(logits) + 1e-10
    wanted = targets.astype(probabilities.dtype) + 1e-10
    rows = jnp.sum(wanted * (jnp.log(wanted) - jnp.log(probabilities)), axis=1)
    return batch_mean(rows, mask, counted)


def consistency_ramp(
    round_number: Int[Array, ""], max_weight: float | Array, ramp_rounds: int
) -> Float[Array, ""]:
    """Return the weight of the consistency loss: max_weight * exp(-5 (1 - min(r, ramp)/ramp)^2), r
    counted from 1.
    """
    progress = jnp.minimum(round_number, ramp_rounds).astype(jnp.result_type(float)) / ramp_rounds
    return max_weight * jnp.exp(-5.0 * (1.0 - progress) ** 2)


def teacher_decay(step: Float[Array, ""], decay: float | Array) -> Float[Array, ""]:
    """Return the decay of the teacher's moving average at step t = 1, 2, ...: min(1 - 1/(t + 1),
    decay).
    """
    return jnp.minimum(1.0 - 1.0 / (step + 1.0), decay)


def agreement_vote(
    local_probs: Float[Array, "n K"],
    helper_probs: Float[Array, "H n K"],
    available: Bool[Array, " H"] | None = None,
) -> Int[Array, " n"]:
    """Return the class that most models predict, of equal ones the lowest; every model votes for
    its most probable class.

    Args:
        local_probs: probabilities of the own model; any increasing function of them gives the same
            votes.
        helper_probs: probabilities of the helpers; H may be 0.
        available: mask of existing helpers; all by default.

    Returns:
        int32.
    """
    classes = jnp.arange(local_probs.shape[-1], dtype=jnp.int32)

    def votes(probs: Float[Array, "*more n K"]) -> Bool[Array, "*more n K"]:
        return jnp.argmax(probs, axis=-1)[..., None].astype(jnp.int32) == classes

    own = votes(local_probs).astype(jnp.int32)
    others = votes(helper_probs)
    if available is not None:
        others = others & available[:, None, None]
    count = own + jnp.sum(others, axis=0, dtype=jnp.int32)
    return jnp.argmax(count, axis=-1).astype(jnp.int32)


def inter_client_kl(
    local_log_probs: Float[Array, "n K"],
    helper_probs: Float[Array, "H n K"],
    available: Bool[Array, " H"] | None = None,
) -> Float[Array, " n"]:
    """Return the mean over the helpers of KL[p_helper || p_local] in nats; 0 without helpers.

    Args:
        local_log_probs: log-probabilities of the model in training.
        helper_probs: probabilities of the helpers, H may be 0; the caller stops their gradient.
        available: mask of existing helpers; all by default.
    """
    there = jnp.ones(helper_probs.shape[0], bool) if available is None else available
    divergence = jnp.sum(
        xlogy(helper_probs, helper_probs) - helper_probs * local_log_probs, axis=-1
    )
    total = jnp.sum(jnp.where(there[:, None], divergence, 0), axis=0)
    return total / jnp.maximum(jnp.sum(there, dtype=total.dtype), 1.0)
