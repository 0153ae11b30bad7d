"""Cross-entropy with soft targets against clipped probabilities, as Keras computes it."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

CLIP = 1e-7  # Keras' epsilon


def clipped_cross_entropy(
    targets: Float[Array, "n K"], log_probs: Float[Array, "n K"], mask: Bool[Array, " n"], epsilon: float = CLIP
) -> Float[Array, ""]:
    """-1/B sum_i sum_k q_ik log clip(p_ik, epsilon, 1 - epsilon), B = rows in the mask; 0 without any.

    A probability outside the bounds gets no gradient; its target still does.

    Args:
        targets: q, a distribution per row.
        log_probs: log p.
        mask: rows that count.
        epsilon: distance of the bounds from 0 and 1.
    """
    clipped = jnp.log(jnp.clip(jnp.exp(log_probs), epsilon, 1.0 - epsilon))
    losses = -jnp.sum(targets.astype(clipped.dtype) * clipped, axis=1)
    size = jnp.maximum(jnp.sum(mask, dtype=losses.dtype), 1.0)
    return jnp.sum(jnp.where(mask, losses, jnp.zeros_like(losses))) / size
