"""Thresholds of pseudo-labels that follow training: FlexMatch's, FreeMatch's and SoftMatch's.

Probabilities q [n, K] are a batch's, m their largest values; rows outside `mask` do not count.

References:
    Zhang et al., FlexMatch: boosting semi-supervised learning with curriculum pseudo labeling,
    NeurIPS 2021, arXiv 2110.08263. Wang et al., FreeMatch: self-adaptive thresholding for
    semi-supervised learning, ICLR 2023, arXiv 2205.07246. Chen et al., SoftMatch: addressing the
    quantity-quality trade-off in semi-supervised learning, ICLR 2023, arXiv 2301.10921. All three
    after the code of the USB benchmark (microsoft/Semi-supervised-learning).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

DEVIATIONS = 2.0  # n_sigma of SoftMatch
_SMALLEST = 1e-6  # added to what is divided in an alignment
_EPSILON = 1e-12  # added before a logarithm


def flexmatch_rates(counts: Float[Array, " K+1"], before: Float[Array, " K"]) -> Float[Array, " K"]:
    """Return how well each class is learned, beta: its examples by those of the class with most, or
    by those without a confident prediction where they are more.

    Args:
        counts: examples by the class of their last confident prediction, and those without one.
        before: beta so far, which stays while all examples are in one place.
    """
    largest = jnp.maximum(jnp.max(counts[:-1]), counts[-1])
    rates = counts[:-1] / jnp.maximum(largest, 1.0)
    return jnp.where(largest < jnp.sum(counts), rates, before)


def flexmatch_thresholds(
    rates: Float[Array, " K"], threshold: float | Array = 0.95
) -> Float[Array, " K"]:
    """Return the thresholds of the classes, tau beta / (2 - beta); 0 for one that is not learned.

    Args:
        rates: beta, from `flexmatch_rates`.
        threshold: tau.
    """
    return threshold * rates / (2.0 - rates)


class FreeMatch(NamedTuple):
    """Moving averages over batches."""

    confidence: Float[Array, ""]  # t, of the mean largest probability
    classes: Float[Array, " K"]  # of the mean prediction
    labels: Float[Array, " K"]  # of the shares of the likeliest classes


def freematch_start(num_classes: int) -> FreeMatch:
    """Return the averages before the first batch: everything uniform."""
    uniform = jnp.ones((num_classes,)) / num_classes
    return FreeMatch(uniform[0], uniform, uniform)


def freematch_update(
    state: FreeMatch,
    probabilities: Float[Array, "n K"],
    mask: Bool[Array, " n"],
    decay: float | Array = 0.999,
) -> FreeMatch:
    """Move the averages towards a batch.

    Args:
        state: before it.
        probabilities: q.
        mask: rows that belong to the batch; without any, nothing moves.
        decay: of the averages.
    """
    labels = jax.nn.one_hot(
        jnp.argmax(probabilities, axis=1), probabilities.shape[1], dtype=probabilities.dtype
    )
    batch = FreeMatch(
        _row_mean(jnp.max(probabilities, axis=1), mask),
        _row_mean(probabilities, mask),
        _row_mean(labels, mask),
    )
    return _moved(state, batch, jnp.any(mask), decay)


def freematch_thresholds(state: FreeMatch) -> Float[Array, " K"]:
    """Return the thresholds of the classes: t times the class's share of the largest average."""
    return state.confidence * state.classes / jnp.max(state.classes)


def class_fairness(
    logits: Float[Array, "n K"], counted: Bool[Array, " n"], state: FreeMatch
) -> Float[Array, ""]:
    """Return FreeMatch's self-adaptive fairness, sum_c SN(p / h)_c ln(SN(P / g)_c + 1e-12), SN(x) =
    x / sum x and 1/0 = 0; 0 where no row counts.

    P is the mean prediction and g the shares of the likeliest classes, of the rows that count, and
    p and h the averages of both. It has no minus sign: the gradient, through P alone, makes
    predictions more even than they were.

    Args:
        logits: scores that learn.
        counted: rows that count.
        state: the averages.
    """
    probabilities = jax.nn.softmax(logits)
    votes = jax.nn.one_hot(
        jnp.argmax(logits, axis=1), probabilities.shape[1], dtype=probabilities.dtype
    )
    wanted = _shares(state.classes, state.labels)
    found = _shares(_row_mean(probabilities, counted), _row_mean(votes, counted))
    value = jnp.sum(jax.lax.stop_gradient(wanted) * jnp.log(found + _EPSILON))
    return jnp.where(jnp.any(counted), value, 0.0)


class SoftMatch(NamedTuple):
    """Moving averages over batches."""

    mean: Float[Array, ""]  # of the mean of the largest aligned probabilities
    variance: Float[Array, ""]  # of their variance
    classes: Float[Array, " K"]  # of the mean prediction; 0 before the first batch


def softmatch_start(num_classes: int) -> SoftMatch:
    """Return the averages before the first batch."""
    one = jnp.ones(())
    return SoftMatch(one / num_classes, one, jnp.zeros((num_classes,)))


def softmatch_update(
    state: SoftMatch,
    probabilities: Float[Array, "n K"],
    mask: Bool[Array, " n"],
    target: Float[Array, " K"],
    decay: float | Array = 0.999,
) -> SoftMatch:
    """Move the averages towards a batch.

    Args:
        state: before it.
        probabilities: q.
        mask: rows that belong to the batch; without any, nothing moves, and with one the variance
            does not.
        target: distribution that predictions are aligned with.
        decay: of the averages.
    """
    seen = _row_mean(probabilities, mask)
    total = jnp.sum(state.classes)
    started = total > 0
    # means over clients of which some had not begun do not add up to 1
    before = jnp.where(started, state.classes / jnp.where(started, total, 1.0), seen)
    classes = _moved(before, seen, jnp.any(mask), decay)
    largest = jnp.max(aligned(probabilities, classes, target), axis=1)
    rows = jnp.sum(mask, dtype=probabilities.dtype)
    mean = _row_mean(largest, mask)
    spread = jnp.sum(jnp.where(mask, (largest - mean) ** 2, 0)) / jnp.maximum(rows - 1.0, 1.0)
    return SoftMatch(
        _moved(state.mean, mean, rows > 0, decay),
        _moved(state.variance, spread, rows > 1, decay),
        classes,
    )


def softmatch_weights(
    state: SoftMatch,
    probabilities: Float[Array, "n K"],
    target: Float[Array, " K"],
) -> Float[Array, " n"]:
    """Return exp(-min(m - mean, 0)^2 / (2 variance / 2^2)), m the largest aligned
    probability of each row.

    Args:
        state: the averages.
        probabilities: q.
        target: as in `softmatch_update`.
    """
    below = jnp.minimum(
        jnp.max(aligned(probabilities, state.classes, target), axis=1) - state.mean, 0.0
    )
    return jnp.exp(-(below**2) / (2.0 * state.variance / DEVIATIONS**2))


def aligned(
    probabilities: Float[Array, "n K"],
    average: Float[Array, " K"],
    target: Float[Array, " K"],
) -> Float[Array, "n K"]:
    """Return SN(q (target + 1e-6) / (average + 1e-6)).

    Args:
        probabilities: q.
        average: what predictions are on average.
        target: what they should be.
    """
    scaled = probabilities * (target + _SMALLEST) / (average + _SMALLEST)
    return scaled / jnp.sum(scaled, axis=1, keepdims=True)


def last_labels(
    labels: Int[Array, " m"],
    place: Int[Array, " n"],
    new: Int[Array, " n"],
    counted: Bool[Array, " n"],
) -> Int[Array, " m"]:
    """Write a batch's labels into a table; of several rows of one example the last one counts, on
    every device.

    Args:
        labels: the table.
        place: row of the table, by row of the batch.
        new: labels, not negative.
        counted: rows that are written.
    """
    size = labels.shape[0]
    most = jnp.max(new) + 1
    order = jnp.arange(1, new.shape[0] + 1, dtype=jnp.int32)
    codes = order * most + new
    found = jnp.zeros_like(labels).at[jnp.where(counted, place, size)].max(codes, mode="drop")
    return jnp.where(found > 0, found % most, labels)


def _row_mean(values: Float[Array, "n *more"], mask: Bool[Array, " n"]) -> Float[Array, "*more"]:
    """Average the rows in the mask; 0 without any."""
    real = mask.reshape(-1, *[1] * (values.ndim - 1))
    rows = jnp.maximum(jnp.sum(mask, dtype=values.dtype), 1.0)
    return jnp.sum(jnp.where(real, values, 0), axis=0) / rows


def _moved(old, new, there: Bool[Array, ""], decay: float | Array):
    """Move averages, a tree, towards new values, if these are there."""
    return jax.tree.map(
        lambda one, other: jnp.where(there, decay * one + (1.0 - decay) * other, one), old, new
    )


def _shares(values: Float[Array, " K"], counts: Float[Array, " K"]) -> Float[Array, " K"]:
    """Return values / counts, 0 where there are none, divided by their sum."""
    some = counts > 0
    ratio = jnp.where(some, values / jnp.where(some, counts, 1.0), 0.0)
    total = jnp.sum(ratio)
    return ratio / jnp.where(total > 0, total, 1.0)
