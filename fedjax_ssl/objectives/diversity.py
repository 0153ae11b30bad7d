"""Gradient diversity: how far the updates of several clients point in different directions.

Source: FedRGD (Zhang et al., IEEE Big Data 2021, arXiv 2008.11364), read from its public code.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def check_norm_order(norm_ord: int) -> None:
    """Raises ValueError for an order that is neither 1 nor 2."""
    if norm_ord not in (1, 2):
        raise ValueError(f"norm_ord is {norm_ord!r}; allowed: 1, 2")


def vector_norm(vector: Float[Array, " d"], norm_ord: int = 2, squared: bool = True) -> Float[Array, ""]:
    """The L1 or L2 norm, or its square."""
    if norm_ord == 1:
        norm = jnp.sum(jnp.abs(vector))
        return norm**2 if squared else norm
    total = jnp.sum(jnp.square(vector))
    return total if squared else jnp.sqrt(total)


def gradient_diversity(
    vectors: Float[Array, "n d"],
    mask: Bool[Array, " n"] | None = None,
    norm_ord: int = 2,
    squared: bool = True,
) -> Float[Array, ""]:
    """1/n sum_i ||v_i||^2 / ||mean v||^2: at least 1 for the squared L2 norm, and 1 only where all are equal.

    Args:
        vectors: one per client.
        mask: which count; those with a value that is not finite never do.
        norm_ord: 2 or 1.
        squared: False: norms in place of their squares.

    Returns:
        inf where the mean is 0; NaN where nothing counts.

    Raises:
        ValueError: another `norm_ord`.
    """
    check_norm_order(norm_ord)
    counted = jnp.all(jnp.isfinite(vectors), axis=1)
    if mask is not None:
        counted = counted & mask
    kept = jnp.where(counted[:, None], vectors, jnp.zeros_like(vectors))
    number = jnp.sum(counted, dtype=vectors.dtype)
    mean = jnp.sum(kept, axis=0) / jnp.maximum(number, 1.0)
    norms = jax.vmap(lambda vector: vector_norm(vector, norm_ord, squared))(jnp.concatenate([kept, mean[None]]))
    return diversity_of_groups(jnp.sum(norms[:-1])[None], norms[-1:], number[None])


def diversity_of_groups(
    sums_of_norms: Float[Array, " S"], norms_of_means: Float[Array, " S"], sizes: Float[Array, " S"]
) -> Float[Array, ""]:
    """The diversity of every member within its group, mean over all members.

    Args:
        sums_of_norms: sum of (squared) norms over the members of each group.
        norms_of_means: (squared) norm of each group's mean.
        sizes: members of each group.

    Returns:
        inf where the mean of a group with members is 0; NaN without any member.
    """
    nothing, standstill = sizes == 0, norms_of_means == 0
    ratios = sums_of_norms / jnp.where(standstill, jnp.ones_like(norms_of_means), norms_of_means)
    ratios = jnp.where(standstill, jnp.inf, ratios)
    total = jnp.sum(sizes)
    mean = jnp.sum(jnp.where(nothing, 0.0, ratios)) / jnp.maximum(total, 1.0)
    return jnp.where(total > 0, mean, jnp.nan)
