"""FreeMatch: thresholds of pseudo-labels that follow training.

Probabilities q [n, K] are a batch's, m their largest values; rows outside `mask` do not count.

References:
    Wang et al., FreeMatch: self-adaptive thresholding for semi-supervised learning, ICLR 2023,
    arXiv 2205.07246, after the code of the USB benchmark (microsoft/Semi-supervised-learning).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

_EPSILON = 1e-12  # added before a logarithm


class FreeMatch(NamedTuple):
    """Moving averages over batches."""

    confidence: Float[Array, ""]  # t, mean largest probability
    classes: Float[Array, " K"]  # mean prediction, by class
    labels: Float[Array, " K"]  # shares of the predicted classes


def freematch_start(num_classes: int) -> FreeMatch:
    """Return the averages before the first batch: everything uniform."""
    uniform = jnp.ones((num_classes,)) / num_classes
    return FreeMatch(uniform[0], uniform, uniform)


def freematch_update(
    state: FreeMatch,
    probabilities: Float[Array, "n K"],
    mask: Bool[Array, " n"],
    decay: float | Array = 0.999,
) -> FreeMatch:
    """Move the averages towards a batch.

    Args:
        state: averages before the batch.
        probabilities: q.
        mask: rows that belong to the batch; for an empty batch, nothing moves.
        decay: decay of the averages.
    """
    labels = jax.nn.one_hot(
        jnp.argmax(probabilities, axis=1), probabilities.shape[1], dtype=probabilities.dtype
    )
    batch = FreeMatch(
        _row_mean(jnp.max(probabilities, axis=1), mask),
        _row_mean(probabilities, mask),
        _row_mean(labels, mask),
    )
    return _moved(state, batch, jnp.any(mask), decay)


def freematch_thresholds(state: FreeMatch) -> Float[Array, " K"]:
    """Return the thresholds of the classes: t times the class's share of the largest average."""
    return state.confidence * state.classes / jnp.max(state.classes)


def class_fairness(
    logits: Float[Array, "n K"], counted: Bool[Array, " n"], state: FreeMatch
) -> Float[Array, ""]:
    """Return FreeMatch's self-adaptive fairness, sum_c SN(p / h)_c ln(SN(P / g)_c + 1e-12), SN(x) =
    x / sum x and 1/0 = 0; 0 if no row counts.

    P is the mean prediction and g the shares of the predicted classes, over rows that count; p and
    h are the averages of both. There is no minus sign: the gradient, through P alone, makes
    predictions more even.

    Args:
        logits: scores in training.
        counted: rows that count.
        state: the averages.
    """
    probabilities = jax.nn.softmax(logits)
    votes = jax.nn.one_hot(
        jnp.argmax(logits, axis=1), probabilities.shape[1], dtype=probabilities.dtype
    )
    wanted = _shares(state.classes, state.labels)
    found = _shares(_row_mean(probabilities, counted), _row_mean(votes, counted))
    value = jnp.sum(jax.lax.stop_gradient(wanted) * jnp.log(found + _EPSILON))
    return jnp.where(jnp.any(counted), value, 0.0)


def _row_mean(values: Float[Array, "n *more"], mask: Bool[Array, " n"]) -> Float[Array, "*more"]:
    """Average the rows in the mask; 0 for an empty mask."""
    real = mask.reshape(-1, *[1] * (values.ndim - 1))
    rows = jnp.maximum(jnp.sum(mask, dtype=values.dtype), 1.0)
    return jnp.sum(jnp.where(real, values, 0), axis=0) / rows


def _moved(old, new, there: Bool[Array, ""], decay: float | Array):
    """Move averages, a tree, towards new values, if these exist."""
    return jax.tree.map(
        lambda one, other: jnp.where(there, decay * one + (1.0 - decay) * other, one), old, new
    )


def _shares(values: Float[Array, " K"], counts: Float[Array, " K"]) -> Float[Array, " K"]:
    """Return values / counts (0 for a count of 0), divided by their sum."""
    some = counts > 0
    ratio = jnp.where(some, values / jnp.where(some, counts, 1.0), 0.0)
    total = jnp.sum(ratio)
    return ratio / jnp.where(total > 0, total, 1.0)
