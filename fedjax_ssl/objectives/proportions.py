"""Loss of the class proportions of one unlabelled set (the empirical proportion risk of FedLLP)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_ssl.objectives.float_range import at_least_float32, most_negative

CLIP = 1e-7  # as in the public code of FedUL's baselines


def proportion_loss(
    logits: Float[Array, "n K"], proportions: Float[Array, " K"], mask: Bool[Array, " n"]
) -> Float[Array, ""]:
    """Cross-entropy between a set's known class proportions and the mean of its predictions, in nats.

    -sum_k clip(pi_k) log(1/n sum_i p_ik), the logarithm as a logsumexp of log-probabilities (FedUL section 5).
    A set without rows in the mask costs exactly 0 with zero gradient.

    Args:
        logits: class scores of one whole set.
        proportions: class proportions of the set, clipped to [1e-7, 1 - 1e-7].
        mask: rows that belong to the set.
    """
    logits = at_least_float32(logits)
    # Padding may be anything, NaN too, and must not come back through the gradient.
    log_probs = jax.nn.log_softmax(jnp.where(mask[:, None], logits, jnp.zeros_like(logits)))
    size = jnp.sum(mask, dtype=log_probs.dtype)
    totals = jax.nn.logsumexp(jnp.where(mask[:, None], log_probs, most_negative(log_probs)), axis=0)
    wanted = jnp.clip(proportions.astype(logits.dtype), CLIP, 1.0 - CLIP)
    loss = -jnp.sum(wanted * (totals - jnp.log(jnp.maximum(size, 1.0))))
    return jnp.where(size > 0, loss, jnp.zeros_like(loss))
