"""Cross-entropy for hard, missing, soft, clipped and mixed targets, and for class proportions of a
set.

Losses are computed in float32 at least. This file also has the L1 norm of the parameters, which
some methods add.
"""

from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int, Key

from fedjax_ssl.checks import In, checked

CLIP = 1e-7  # the epsilon of Keras, and of the public code of FedUL's baselines
# (logits, targets) -> losses, exactly 0 where the target is -1
RowLoss = Callable[[Float[Array, "n K"], Int[Array, " n"]], Float[Array, " n"]]
ATTEMPTS = 64  # tries for a share; each one fails with probability 1/2 at most if alpha <= 1


def cross_entropy(logits: Float[Array, "n K"], targets: Int[Array, " n"]) -> Float[Array, " n"]:
    """Return the cross-entropy of every row in nats, exactly 0 with zero gradient where the target
    is -1.

    Args:
        logits: unnormalized class scores.
        targets: class of every row, -1 = none.
    """
    chosen = at_target(jax.nn.log_softmax(logits), targets)
    return jnp.where(targets >= 0, -chosen, 0)


def batch_mean(
    losses: Float[Array, " n"],
    mask: Bool[Array, " n"],
    counted: Bool[Array, " n"] | Float[Array, " n"] | None = None,
) -> Float[Array, ""]:
    """Average the losses of a batch over its rows, including rows that do not count; 0 for an empty
    batch.

    Args:
        losses: one per row; outside the mask any value, even NaN.
        mask: rows that belong to the batch.
        counted: mask of the rows whose loss is added up, or a factor for each row; by default all.
    """
    size = jnp.maximum(jnp.sum(mask, dtype=losses.dtype), 1.0)
    if counted is None:
        return jnp.sum(jnp.where(mask, losses, 0)) / size
    if counted.dtype != bool:
        losses = losses * counted
    return jnp.sum(jnp.where(mask & counted.astype(bool), losses, 0)) / size


def at_target(values: Float[Array, "n K"], targets: Int[Array, " n"]) -> Float[Array, " n"]:
    """Return the value of every row at its target; exactly 0 with zero gradient where the target is
    -1.

    This is a selection and a sum, whose gradient is a selection. The gradient of an indexed read is
    a scatter, which needs separate kernels on accelerators. The bits are the same, because all
    other terms of the sum are 0.

    Args:
        values: values of every class.
        targets: class of every row, -1 = none.
    """
    is_target = targets[:, None] == jnp.arange(values.shape[1], dtype=targets.dtype)
    return jnp.sum(jnp.where(is_target, values, 0), axis=1)


def batch_cross_entropy(
    logits: Float[Array, "n K"],
    targets: Int[Array, " n"],
    mask: Bool[Array, " n"],
    weights: Float[Array, " n"] | None = None,
    loss: RowLoss = cross_entropy,
) -> Float[Array, ""]:
    """Return the weighted cross-entropy averaged over the batch: 1/|B| sum_i w_i CE(z_i, y_i), |B|
    = rows in the mask.

    The weights are not renormalized, and rows without a target count in |B| (XCLP section 5.3).

    Args:
        logits: unnormalized class scores.
        targets: class of every row, -1 = none.
        mask: rows that belong to the batch.
        weights: a factor per row, 1 by default.
        loss: loss of every row, such as `Setup.loss`.
    """
    losses = loss(logits, targets)
    if weights is not None:
        losses = losses * weights
    return batch_mean(losses, mask)


def soft_cross_entropy(
    logits: Float[Array, "n K"],
    targets: Float[Array, "n K"],
    mask: Bool[Array, " n"],
    counted: Bool[Array, " n"] | Float[Array, " n"] | None = None,
) -> Float[Array, ""]:
    """Return -1/B sum_i sum_k q_ik log p_ik, p = softmax(logits), B = rows in the mask; 0 for an
    empty batch.

    Args:
        logits: unnormalized class scores.
        targets: q, a distribution per row.
        mask: rows that belong to the batch.
        counted: see `batch_mean`.
    """
    return batch_mean(-jnp.sum(targets * jax.nn.log_softmax(logits), axis=1), mask, counted)


def clipped_cross_entropy(
    targets: Float[Array, "n K"],
    log_probs: Float[Array, "n K"],
    mask: Bool[Array, " n"],
    epsilon: float = CLIP,
) -> Float[Array, ""]:
    """Return -1/B sum_i sum_k q_ik log clip(p_ik, epsilon, 1 - epsilon), B = rows in the mask; 0
    for an empty batch.

    This is how Keras computes it. A probability outside the bounds gets no gradient; its target
    still does.

    Args:
        targets: q, a distribution per row.
        log_probs: log p.
        mask: rows that belong to the batch.
        epsilon: distance of the bounds from 0 and 1.
    """
    clipped = jnp.log(jnp.clip(jnp.exp(log_probs), epsilon, 1.0 - epsilon))
    return batch_mean(-jnp.sum(targets.astype(clipped.dtype) * clipped, axis=1), mask)


@checked
def mixup_share(
    key: Key[Array, ""], alpha: Annotated[float | Array, In("(0, inf)")]
) -> Float[Array, ""]:
    """Return the share of the first input in a mix, drawn from Beta(alpha, alpha).

    For a known alpha <= 1 it uses Johnk's method with a fixed number of tries: a few operations in
    place of the loops of a general sampler, which cost every program seconds to compile.

    Raises:
        ValueError: a known alpha that is not positive.
    """
    if not isinstance(alpha, (int, float)) or alpha > 1:
        return jax.random.beta(key, alpha, alpha, dtype=jnp.result_type(float))
    tries = jax.random.uniform(key, (ATTEMPTS, 2), minval=float(jnp.finfo(jnp.float32).tiny)) ** (
        1.0 / alpha
    )
    total = jnp.sum(tries, axis=1)
    first = jnp.argmax((total > 0) & (total <= 1))
    return tries[first, 0] / jnp.maximum(total[first], float(jnp.finfo(total.dtype).tiny))


def mixup(
    x_a: Float[Array, "..."], x_b: Float[Array, "..."], lam: float | Float[Array, ""]
) -> Float[Array, "..."]:
    """Return lam * x_a + (1 - lam) * x_b, with one weight for the whole batch.

    Raises:
        ValueError: inputs that are not floating; normalize images before mixing.
    """
    if not (jnp.issubdtype(x_a.dtype, jnp.floating) and jnp.issubdtype(x_b.dtype, jnp.floating)):
        raise ValueError(
            f"mixup got dtypes {x_a.dtype} and {x_b.dtype}; inputs must be floating: normalize "
            "images before mixing."
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
    """Return lam * CE(z, y_a) + (1 - lam) * CE(z, y_b), each averaged over the rows in the mask
    (SemiFL section 4).

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


def proportion_loss(
    logits: Float[Array, "n K"], proportions: Float[Array, " K"], mask: Bool[Array, " n"]
) -> Float[Array, ""]:
    """Return the cross-entropy between a set's known class proportions and the mean of its
    predictions, in nats.

    -sum_k clip(pi_k) log(1/n sum_i p_ik), the logarithm as a logsumexp of log-probabilities (FedUL
    section 5). A set without rows in the mask costs exactly 0 with zero gradient.

    Args:
        logits: class scores of one whole set.
        proportions: class proportions of the set, clipped to [1e-7, 1 - 1e-7].
        mask: rows that belong to the set.
    """
    logits = at_least_float32(logits)
    # Padding may have any value, even NaN, and must not reach the gradient.
    log_probs = jax.nn.log_softmax(jnp.where(mask[:, None], logits, 0))
    size = jnp.sum(mask, dtype=log_probs.dtype)
    totals = jax.nn.logsumexp(jnp.where(mask[:, None], log_probs, most_negative(log_probs)), axis=0)
    wanted = jnp.clip(proportions.astype(logits.dtype), CLIP, 1.0 - CLIP)
    loss = -jnp.sum(wanted * (totals - jnp.log(jnp.maximum(size, 1.0))))
    return jnp.where(size > 0, loss, 0)


def l1_norm(params: Any) -> Float[Array, ""]:
    """Return the sum of absolute values over all leaves of a pytree, biases and normalization
    scales included (FedUL section 3).

    The gradient at 0 is 0. Leaves in half precision are summed in float32.
    """
    leaves = [at_least_float32(leaf) for leaf in jax.tree.leaves(params)]
    # jnp.abs has gradient 1 at 0, which would move fresh biases away from 0.
    sums = [jnp.sum(leaf * jax.lax.stop_gradient(jnp.sign(leaf))) for leaf in leaves]
    return sum(sums, start=jnp.zeros((), sums[0].dtype if sums else jnp.float32))


def at_least_float32(values: ArrayLike) -> Float[Array, "..."]:
    """Return the values as floats of 32 bits or more; half precision and integers become
    float32.
    """
    values = jnp.asarray(values)
    wide = jnp.issubdtype(values.dtype, jnp.floating) and jnp.finfo(values.dtype).bits >= 32
    return values if wide else values.astype(jnp.float32)


def most_negative(values: Float[Array, "..."]) -> float:
    """Return the most negative finite number of the values' type, in place of log 0: -inf would
    give NaN gradients.
    """
    return float(jnp.finfo(values.dtype).min)
