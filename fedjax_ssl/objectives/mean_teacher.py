"""Mean-teacher consistency (Tarvainen and Valpola, NeurIPS 2017), as FedSiam uses it."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def consistency(
    probabilities: Float[Array, "n K"], targets: Float[Array, "n K"], mask: Bool[Array, " n"]
) -> Float[Array, ""]:
    """Squared distance averaged over rows and classes: 1/(BK) sum_i ||p_i - q_i||^2, B = rows in the mask."""
    squares = jnp.where(mask[:, None], (probabilities - targets) ** 2, jnp.zeros_like(probabilities))
    return jnp.sum(squares) / (jnp.maximum(jnp.sum(mask, dtype=squares.dtype), 1.0) * squares.shape[1])


def consistency_ramp(round_number: Int[Array, ""], max_weight: float | Array, ramp_rounds: int) -> Float[Array, ""]:
    """Weight of the consistency loss: max_weight * exp(-5 (1 - min(r, ramp)/ramp)^2), r counted from 1."""
    progress = jnp.minimum(round_number, ramp_rounds).astype(jnp.result_type(float)) / ramp_rounds
    return max_weight * jnp.exp(-5.0 * (1.0 - progress) ** 2)


def teacher_decay(step: Float[Array, ""], decay: float | Array) -> Float[Array, ""]:
    """Decay of the teacher's moving average at step t = 1, 2, ...: min(1 - 1/(t + 1), decay)."""
    return jnp.minimum(1.0 - 1.0 / (step + 1.0), decay)
