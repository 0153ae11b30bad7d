"""Estimation of the correspondence between two label spaces from pseudo-labels (FedMT, equation 4)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.checks import check_choices
from fedjax_ssl.objectives.float_range import at_least_float32

FALLBACKS = ("prior", "uniform", "zero")


def correspondence_counts(
    probs: Float[Array, "n K"],
    observed: Int[Array, " n"],
    num_observed: int,
    threshold: float | Float[Array, ""],
    mask: Bool[Array, " n"] | None = None,
) -> tuple[Float[Array, "J K"], Float[Array, " J"]]:
    """How often an observed label meets a confident pseudo-label, and how often it occurs at all.

    Counts of several clients may be added, then normalized. They are exact up to 2^24 examples in float32.

    Args:
        probs: class probabilities; the pseudo-label is the most probable class, the first one among equals.
        observed: observed label of every row, -1 = none: such a row is not counted.
        num_observed: J, number of observed labels.
        threshold: a pseudo-label is confident above it, not at it.
        mask: rows that are examples, by default all.

    Returns:
        counts of (observed label, pseudo-label) among confident rows, counts of observed labels among all rows.
    """
    probs = at_least_float32(probs)
    known = observed >= 0 if mask is None else (observed >= 0) & mask
    confident = known & (jnp.max(probs, axis=1) > threshold)
    # one_hot is all 0 where the index is -1.
    labels = jax.nn.one_hot(jnp.where(known, observed, -1), num_observed, dtype=probs.dtype)
    pseudo_labels = jnp.where(confident, jnp.argmax(probs, axis=1), -1)
    counts = jnp.matmul(
        labels.T, jax.nn.one_hot(pseudo_labels, probs.shape[1], dtype=probs.dtype), precision=jax.lax.Precision.HIGHEST
    )
    return jax.lax.stop_gradient((counts, jnp.sum(labels, axis=0)))


def normalize_counts(
    counts: Float[Array, "J K"],
    label_counts: Float[Array, " J"],
    *,
    fallback: str = "prior",
    smoothing: float | Float[Array, ""] = 0.0,
) -> Float[Array, "J K"]:
    """Correspondence matrix of counts: (n_jk + a pi_j) / (n_k + a), pi = frequencies of the observed labels.

    Args:
        counts: how often observed label j meets pseudo-label k.
        label_counts: how often observed label j occurs; all 0 makes pi uniform.
        fallback: what a column without counts becomes where a = 0: "prior" (pi), "uniform" (1 / J) or "zero". Zero
            columns take mass away from M p, which pushes the model away from classes that are not confident yet.
        smoothing: a, counts of the frequencies that are added to every column.

    Raises:
        ValueError: an unknown fallback.
    """
    check_choices(FALLBACKS, fallback=fallback)
    total = jnp.sum(label_counts)
    uniform = jnp.full_like(label_counts, 1.0 / label_counts.shape[0])
    prior = jnp.where(total > 0, label_counts / jnp.maximum(total, 1.0), uniform)
    empty = {"prior": prior, "uniform": uniform, "zero": jnp.zeros_like(prior)}[fallback]
    support = jnp.sum(counts, axis=0) + smoothing
    columns = (counts + smoothing * prior[:, None]) / jnp.where(support > 0, support, jnp.ones_like(support))
    return jax.lax.stop_gradient(jnp.where(support > 0, columns, empty[:, None]))


def estimate_correspondence(
    probs: Float[Array, "n K"],
    observed: Int[Array, " n"],
    num_observed: int,
    threshold: float | Float[Array, ""],
    *,
    fallback: str = "prior",
    smoothing: float | Float[Array, ""] = 0.0,
    mask: Bool[Array, " n"] | None = None,
) -> tuple[Float[Array, "J K"], Float[Array, " K"]]:
    """Correspondence matrix of one client, estimated from its confident pseudo-labels; a constant for gradients.

    Args:
        probs: class probabilities of the model that the client received.
        observed: observed label of every row, -1 = none.
        num_observed: J, number of observed labels.
        threshold: a pseudo-label is confident above it, not at it.
        fallback: of `normalize_counts`.
        smoothing: of `normalize_counts`.
        mask: rows that are examples, by default all.

    Returns:
        M [J, K], whose columns sum to 1 (but for `fallback="zero"`), and the confident rows of every class [K].

    Raises:
        ValueError: an unknown fallback.
    """
    counts, label_counts = correspondence_counts(probs, observed, num_observed, threshold, mask)
    return normalize_counts(counts, label_counts, fallback=fallback, smoothing=smoothing), jnp.sum(counts, axis=0)
