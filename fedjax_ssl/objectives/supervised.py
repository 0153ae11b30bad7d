"""Losses on labelled examples: cross-entropy, focal loss, label smoothing, class weights, logit
adjustment.

References:
    Focal loss: Lin et al., Focal loss for dense object detection, ICCV 2017; of several classes,
    with weights, as in FLamby's Fed-ISIC2019 (du Terrail et al., NeurIPS 2022). Logit adjustment:
    Menon et al., Long-tail learning via logit adjustment, ICLR 2021, equation 10. Label smoothing:
    Szegedy et al., CVPR 2016, section 7.
"""

from collections.abc import Sequence
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_ssl.checks import In, OneOf, checked
from fedjax_ssl.objectives.cross_entropy import RowLoss, at_target, cross_entropy

LOSSES = ("cross_entropy", "focal")
INVERSE = ("inverse",)


@checked
def supervised_loss(
    name: Annotated[str, OneOf(LOSSES)] = "cross_entropy",
    counts: Float[Array, " K"] | None = None,
    *,
    label_smoothing: Annotated[float, In("[0, 1)")] = 0.0,
    gamma: Annotated[float, In("[0, inf)")] = 2.0,
    class_weights: Sequence[float | str] | None = None,
    logit_adjustment: Annotated[float, In("[0, inf)")] = 0.0,
) -> RowLoss:
    """Build the loss of a row, -w_y (1 - p_y)^gamma ((1 - s) log p_y + s / K sum_k log p_k).

    Here p = softmax(z + tau log prior) for scores z. The batch mean is over rows, and is not
    divided by the sum of weights. By default this is `cross_entropy` itself.

    Args:
        name: "cross_entropy", for which gamma is 0, or "focal".
        counts: observed labels of every class; a class without labels gets the prior of a single
            label, and does not change the weights of the others.
        label_smoothing: s, in [0, 1).
        gamma: exponent that lowers the weight of rows that are already right.
        class_weights: w, a number per class, or ("inverse",) for labels / (classes with labels *
            labels of the class), with mean 1 over the labelled examples.
        logit_adjustment: tau; 1 is consistent with the balanced error.

    Raises:
        ValueError: an unknown name, or a number outside its range.

    Example:
        >>> loss = fs.objectives.supervised_loss("focal", gamma=2.0, class_weights=(1.0, 3.0))
        >>> loss(jnp.zeros((3, 2)), jnp.array([0, 1, -1])).round(4).tolist()  # -1: no label
        [0.1733, 0.5199, 0.0]
    """
    focal = name == "focal"
    if not (focal or label_smoothing or class_weights is not None or logit_adjustment):
        return cross_entropy
    found = jnp.ones(1) if counts is None else jnp.maximum(counts, 1).astype(jnp.result_type(float))
    total = jnp.sum(found)
    labels = total
    present = jnp.ones((), found.dtype)
    if counts is not None:
        labels = jnp.sum(counts).astype(found.dtype)
        present = jnp.maximum(jnp.sum(counts > 0), 1).astype(found.dtype)

    def loss(logits: Float[Array, "n K"], targets: Int[Array, " n"]) -> Float[Array, " n"]:
        if logit_adjustment:
            logits = logits + (logit_adjustment * jnp.log(found / total)).astype(logits.dtype)
        log_probs = jax.nn.log_softmax(logits)
        chosen = at_target(log_probs, targets)
        losses = -chosen
        if label_smoothing:
            losses = (1 - label_smoothing) * losses - label_smoothing * jnp.mean(log_probs, axis=1)
        if focal:
            # Not 0, because a power below 1 has no gradient there.
            losses = losses * jnp.maximum(-jnp.expm1(chosen), jnp.finfo(losses.dtype).tiny) ** gamma
        if class_weights is not None:
            inverse = labels / (present * found)
            weights = inverse if tuple(class_weights) == INVERSE else jnp.asarray(class_weights)
            losses = losses * weights.astype(losses.dtype)[targets]
        return jnp.where(targets >= 0, losses, 0)

    return loss
