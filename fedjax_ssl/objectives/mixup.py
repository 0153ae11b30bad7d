"""Mixup of two batches (Zhang et al., ICLR 2018) with hard targets, as SemiFL, FedMT and FedPL use it."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.objectives.cross_entropy import batch_cross_entropy


def mixup(x_a: Float[Array, "..."], x_b: Float[Array, "..."], lam: float | Float[Array, ""]) -> Float[Array, "..."]:
    """lam * x_a + (1 - lam) * x_b, with one weight for the whole batch.

    Raises:
        ValueError: inputs that are not floating; mix images after they were normalized.
    """
    if not (jnp.issubdtype(x_a.dtype, jnp.floating) and jnp.issubdtype(x_b.dtype, jnp.floating)):
        raise ValueError(
            f"mixup got dtypes {x_a.dtype} and {x_b.dtype}; inputs must be floating: normalize images before mixing."
        )
    weight = jnp.asarray(lam).astype(x_a.dtype)
    return weight * x_a + (1.0 - weight) * x_b


def mixup_cross_entropy(
    logits: Float[Array, "n K"],
    targets_a: Int[Array, " n"],
    targets_b: Int[Array, " n"],
    lam: float | Float[Array, ""],
    mask: Bool[Array, " n"],
) -> Float[Array, ""]:
    """lam * CE(z, y_a) + (1 - lam) * CE(z, y_b), each averaged over the rows in the mask (SemiFL section 4).

    Args:
        logits: class scores of the mixed inputs.
        targets_a: class of the first input of every row, -1 = none.
        targets_b: class of the second input of every row, -1 = none.
        lam: share of the first input.
        mask: rows that belong to the batch.
    """
    weight = jnp.asarray(lam).astype(logits.dtype)
    first = batch_cross_entropy(logits, targets_a, mask)
    return weight * first + (1.0 - weight) * batch_cross_entropy(logits, targets_b, mask)
