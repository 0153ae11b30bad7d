"""Cross-entropy with hard targets that may be missing, and with soft ones against clipped probabilities."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

CLIP = 1e-7  # Keras' epsilon


def cross_entropy(logits: Float[Array, "n K"], targets: Int[Array, " n"]) -> Float[Array, " n"]:
    """Cross-entropy of every row in nats; exactly 0 with zero gradient where the target is -1.

    Args:
        logits: unnormalized class scores.
        targets: class of every row, -1 = none.
    """
    chosen = at_target(jax.nn.log_softmax(logits), targets)
    return jnp.where(targets >= 0, -chosen, jnp.zeros_like(chosen))


def at_target(values: Float[Array, "n K"], targets: Int[Array, " n"]) -> Float[Array, " n"]:
    """The value of every row at its target; exactly 0 with zero gradient where the target is -1.

    A selection and a sum, whose gradient is a selection: that of an indexed read is a scatter, which takes kernels of
    its own on accelerators. The bits are the same: everything else that is added is 0.

    Args:
        values: of every class.
        targets: class of every row, -1 = none.
    """
    is_target = targets[:, None] == jnp.arange(values.shape[1], dtype=targets.dtype)
    return jnp.sum(jnp.where(is_target, values, jnp.zeros_like(values)), axis=1)


def batch_cross_entropy(
    logits: Float[Array, "n K"],
    targets: Int[Array, " n"],
    mask: Bool[Array, " n"],
    weights: Float[Array, " n"] | None = None,
) -> Float[Array, ""]:
    """Weighted cross-entropy averaged over the batch: 1/|B| sum_i w_i CE(z_i, y_i), |B| = rows in the mask.

    The weights are not renormalized, and rows without a target count in |B| (XCLP section 5.3).

    Args:
        logits: unnormalized class scores.
        targets: class of every row, -1 = none.
        mask: rows that belong to the batch.
        weights: a factor per row, 1 by default.
    """
    losses = cross_entropy(logits, targets)
    if weights is not None:
        losses = losses * weights
    return _mean_over_batch(losses, mask)


def soft_cross_entropy(
    logits: Float[Array, "n K"], targets: Float[Array, "n K"], mask: Bool[Array, " n"]
) -> Float[Array, ""]:
    """-1/B sum_i sum_k q_ik log p_ik, p = softmax(logits), B = rows in the mask; 0 without any.

    Args:
        logits: unnormalized class scores.
        targets: q, a distribution per row.
        mask: rows that count.
    """
    return _mean_over_batch(-jnp.sum(targets * jax.nn.log_softmax(logits), axis=1), mask)


def clipped_cross_entropy(
    targets: Float[Array, "n K"], log_probs: Float[Array, "n K"], mask: Bool[Array, " n"], epsilon: float = CLIP
) -> Float[Array, ""]:
    """-1/B sum_i sum_k q_ik log clip(p_ik, epsilon, 1 - epsilon), B = rows in the mask; 0 without any.

    This is how Keras computes it. A probability outside the bounds gets no gradient; its target still does.

    Args:
        targets: q, a distribution per row.
        log_probs: log p.
        mask: rows that count.
        epsilon: distance of the bounds from 0 and 1.
    """
    clipped = jnp.log(jnp.clip(jnp.exp(log_probs), epsilon, 1.0 - epsilon))
    return _mean_over_batch(-jnp.sum(targets.astype(clipped.dtype) * clipped, axis=1), mask)


def _mean_over_batch(losses: Float[Array, " n"], mask: Bool[Array, " n"]) -> Float[Array, ""]:
    size = jnp.maximum(jnp.sum(mask, dtype=losses.dtype), 1.0)
    return jnp.sum(jnp.where(mask, losses, jnp.zeros_like(losses))) / size
