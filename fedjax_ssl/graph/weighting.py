"""Confidence of propagated labels, and class weights of a loss (XCLP, step 13, and its code)."""

import jax
import jax.numpy as jnp
from jax.scipy.special import xlogy
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.checks import check_whole_numbers


def confidence(scores: Float[Array, "n c"]) -> Float[Array, " n"]:
    """Return 1 - H(q) / log C for the normalized scores q of each row (XCLP, Algorithm 1 step 13).

    Args:
        scores: [n, C]; entries below 0, from rounding of an iterative solver, count as 0.

    Returns:
        [n] in [0, 1]: 1 for a single non-zero entry (and for C = 1 if the score is positive), 0 for
        equal scores and for rows of zeros.
    """
    scores = jnp.maximum(jnp.asarray(scores), 0)
    total = jnp.sum(scores, axis=1)
    reached = total > 0
    if scores.shape[1] < 2:
        return reached.astype(scores.dtype)
    shares = scores / jnp.where(reached, total, 1)[:, None]
    entropy = -jnp.sum(xlogy(shares, shares), axis=1)
    sure = jnp.clip(1 - entropy / jnp.log(jnp.asarray(scores.shape[1], scores.dtype)), 0, 1)
    return jnp.where(reached, sure, 0)


def scale_confidence(
    values: Float[Array, " n"], scale: str, clients: Int[Array, " n"]
) -> Float[Array, " n"]:
    """Divide confidences by their maximum over all rows ("max") or over the rows of each client
    ("client_max"), never by 0.
    """
    if scale == "none" or values.shape[0] == 0:
        return values
    if scale == "max":
        most = jnp.max(values)
    else:
        num_rows = values.shape[0]
        _, place = jnp.unique(jnp.asarray(clients), return_inverse=True, size=num_rows)
        most = jax.ops.segment_max(values, place.reshape(-1), num_rows)[place.reshape(-1)]
    return values / jnp.where(most > 0, most, 1)


def class_weights(
    labels: Int[Array, " n"], valid: Bool[Array, " n"], num_classes: int
) -> Float[Array, " classes"]:
    """Return weights that make every class count the same: (N / C) / count (`inverse_freq`).

    Args:
        labels: [n] labels and pseudo-labels.
        valid: [n]; rows that are False, or whose label is -1, are not counted: neither in a class
            nor in N.
        num_classes: C.

    Returns:
        [C], 1 for a class without rows.

    Raises:
        ValueError: if num_classes < 1.
    """
    check_whole_numbers(num_classes=num_classes)
    labels = jnp.where(jnp.asarray(valid), jnp.asarray(labels), -1)
    counts = class_counts(labels, num_classes)
    share = jnp.sum(counts) / num_classes
    return jnp.where(counts > 0, share / jnp.where(counts > 0, counts, 1), 1)


def class_counts(labels: Int[Array, " n"], num_classes: int) -> Float[Array, " classes"]:
    """Return the number of rows with each label, [C]; labels outside 0..C-1 are not counted."""
    classes = jnp.arange(num_classes, dtype=labels.dtype)
    return jnp.sum(labels[:, None] == classes, axis=0).astype(jnp.result_type(float))
