"""Mixup of two batches (Zhang et al., ICLR 2018) with hard targets, as SemiFL, FedMT and FedPL use it."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl.checks import check_numbers
from fedjax_ssl.objectives.cross_entropy import batch_cross_entropy

ATTEMPTS = 64  # a try fails with a chance of 1/2 at most where alpha <= 1


def mixup_share(key: Key[Array, ""], alpha: float | Float[Array, ""]) -> Float[Array, ""]:
    """The share of the first input in a mix, drawn from Beta(alpha, alpha).

    A known alpha <= 1 takes Johnk's method with a fixed number of tries: a few operations in place of the loops of a
    general sampler, which take seconds to compile in every program they are in.

    Raises:
        ValueError: a known alpha that is not positive.
    """
    check_numbers("(0, inf)", alpha=alpha)
    if not isinstance(alpha, (int, float)) or alpha > 1:
        return jax.random.beta(key, alpha, alpha, dtype=jnp.result_type(float))
    tries = jax.random.uniform(key, (ATTEMPTS, 2), minval=float(jnp.finfo(jnp.float32).tiny)) ** (1.0 / alpha)
    total = jnp.sum(tries, axis=1)
    first = jnp.argmax((total > 0) & (total <= 1))
    return tries[first, 0] / jnp.maximum(total[first], float(jnp.finfo(total.dtype).tiny))


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
