"""Sharpening of soft pseudo-labels."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_ssl.checks import check_numbers
from fedjax_ssl.objectives.float_range import most_negative


def sharpen(probs: Float[Array, "n K"], temperature: float | Float[Array, ""]) -> Float[Array, "n K"]:
    """p_k^(1/T) / sum_k' p_k'^(1/T): T = 1 changes nothing, T -> 0 is the arg max.

    Computed in log space, so that small T does not underflow; a probability of 0 stays 0 and gets no gradient.

    Args:
        probs: probabilities, a row per example; rows need not sum to 1.
        temperature: T, positive.

    Raises:
        ValueError: a known temperature that is not positive.
    """
    check_numbers("(0, inf)", temperature=temperature)
    positive = probs > 0
    log_probs = jnp.log(jnp.where(positive, probs, jnp.ones_like(probs)))
    return jax.nn.softmax(jnp.where(positive, log_probs / temperature, most_negative(probs)))
