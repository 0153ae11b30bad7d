"""Agreement between models of several clients: a vote on the class, and how far a prediction is from the others'.

Source: Jeong, Yoon, Yang, Hwang, Federated semi-supervised learning with inter-client consistency and disjoint
learning, ICLR 2021, arXiv 2006.12097: equations 3 and 4. Shapes: n examples, H helpers, K classes.
"""

import jax.numpy as jnp
from jax.scipy.special import xlogy
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.checks import check_choices

TIES = ("lowest_index", "local")


def agreement_vote(
    local_probs: Float[Array, "n K"],
    helper_probs: Float[Array, "H n K"],
    available: Bool[Array, " H"] | None = None,
    tie: str = "lowest_index",
) -> Int[Array, " n"]:
    """The class that most models predict; every model has one vote, for its most probable class (the lowest if equal).

    Args:
        local_probs: of the model that asks; any increasing function of them gives the same votes.
        helper_probs: of the helpers; H may be 0.
        available: helpers that are there; all by default.
        tie: between classes with as many votes: "lowest_index", or "local": the class of the model that asks, if it is
            among them.

    Returns:
        int32.

    Raises:
        ValueError: for another rule.
    """
    check_choices(TIES, tie=tie)
    classes = jnp.arange(local_probs.shape[-1], dtype=jnp.int32)

    def votes(probs: Float[Array, "*more n K"]) -> Bool[Array, "*more n K"]:
        return jnp.argmax(probs, axis=-1)[..., None].astype(jnp.int32) == classes

    own, others = votes(local_probs).astype(jnp.int32), votes(helper_probs)
    if available is not None:
        others = others & available[:, None, None]
    # Half a vote more decides among equals and never against more votes.
    count = 2 * (own + jnp.sum(others, axis=0, dtype=jnp.int32))
    return jnp.argmax(count + own if tie == "local" else count, axis=-1).astype(jnp.int32)


def inter_client_kl(
    local_log_probs: Float[Array, "n K"],
    helper_probs: Float[Array, "H n K"],
    available: Bool[Array, " H"] | None = None,
) -> Float[Array, " n"]:
    """Mean over the helpers of KL[p_helper || p_local] in nats; 0 without any.

    Args:
        local_log_probs: of the model that learns.
        helper_probs: of the helpers, constants for the caller to stop gradients at; H may be 0.
        available: helpers that are there; all by default.
    """
    there = jnp.ones(helper_probs.shape[0], bool) if available is None else available
    divergence = jnp.sum(xlogy(helper_probs, helper_probs) - helper_probs * local_log_probs, axis=-1)
    total = jnp.sum(jnp.where(there[:, None], divergence, jnp.zeros_like(divergence)), axis=0)
    return total / jnp.maximum(jnp.sum(there, dtype=total.dtype), 1.0)
