"""Label channels: labels, coarse labels and set memberships as the class seen through a known
matrix.

A client that sees observation o instead of class k has a matrix A [O, K] of weights >= 0. With
class logits z,

    log q_o = LSE_k(log A_ok + z_k) - LSE_o'(LSE_k(log A_o'k + z_k)),

and the loss of an observation is -log q_o. The class posterior is softmax(z) in every case: the
channel is dropped at test time. Everything stays in log space; products of probabilities underflow
(FedUL section 14, check 9). An unknown correspondence is estimated from pseudo-labels (FedMT,
equation 4).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from fedjax_ssl.objectives.cross_entropy import at_least_float32, at_target, most_negative


class Channel(NamedTuple):
    """Label channel of a client; stack channels of several clients, padded to equal rows, for
    `vmap`.

    A weight of 0 is stored as the most negative finite number, not as -inf: every leaf stays
    finite.
    """

    log_weights: Float[Array, "O K"]  # log A; rows outside `valid` are never read
    valid: Bool[Array, " O"]
    # ^ rows with a positive weight; padding and impossible observations are False


def identity_channel(num_classes: int) -> Channel:
    """Return the channel of a labelled client: it observes the class itself, and the loss is plain
    cross-entropy.
    """
    return _channel_of_weights(jnp.eye(num_classes))


def correspondence_channel(matrix: Float[ArrayLike, "J K"]) -> Channel:
    """Return the channel of a client with labels of another label space (FedMT, equation 3).

    If all columns sum to 1, the normalization changes nothing and q = M softmax(z). This is not
    checked here, so that matrices may be traced; `check_correspondence` checks it on the host.

    Args:
        matrix: M_jk = P(observed label j | class k); columns sum to 1.
    """
    return _channel_of_weights(at_least_float32(matrix))


def set_channel(
    set_priors: Float[ArrayLike, "M K"],
    set_shares: Float[ArrayLike, " M"],
    test_prior: Float[ArrayLike, " K"],
) -> Channel:
    """Return the channel of a client with unlabelled sets of known class proportions (FedUL,
    theorem 1).

    A = diag(set shares) * set priors * diag(1 / test prior). A set without examples, that is with
    share 0, is padding. Values are not checked here; `check_set_priors` and `check_test_prior`
    check them on the host.

    Args:
        set_priors: class proportions of every set; rows sum to 1.
        set_shares: share of the client's examples in every set, up to a common factor.
        test_prior: class proportions at test time, all positive; a uniform prior has no effect.
    """
    priors = at_least_float32(set_priors)
    shares = jnp.asarray(set_shares).astype(priors.dtype)
    # Shares and test prior first: for pure sets with shares equal to the test prior, the sum is
    # then exactly 0.
    offsets = _safe_log(shares)[:, None] - jnp.log(jnp.asarray(test_prior).astype(priors.dtype))
    positive = (priors > 0) & (shares > 0)[:, None]
    log_weights = jnp.where(positive, _safe_log(priors) + offsets, most_negative(priors))
    return Channel(log_weights, jnp.any(positive, axis=1))


def pad_channel(channel: Channel, num_rows: int) -> Channel:
    """Return the same channel with rows of padding at the end, `num_rows` in total.

    Raises:
        ValueError: the channel has more rows already.
    """
    missing = num_rows - channel.valid.shape[-1]
    if missing < 0:
        raise ValueError(
            f"num_rows is {num_rows}; the channel has {channel.valid.shape[-1]} rows already."
        )
    return Channel(
        jnp.pad(channel.log_weights, ((0, missing), (0, 0))), jnp.pad(channel.valid, (0, missing))
    )


def channel_log_probs(logits: Float[Array, "n K"], channel: Channel) -> Float[Array, "n O"]:
    """Return log-probabilities of the observations, in float32 or more; rows outside `valid` get
    the most negative number.

    The channel of the identity matrix returns exactly `log_softmax(logits)`. Memory: n * O * K
    floats.

    Args:
        logits: class scores; a common shift of a row changes nothing.
        channel: channel of the client.
    """
    logits = at_least_float32(logits)
    # A shift changes only the rounding; log_softmax shifts in the same way, so the identity channel
    # stays exact.
    logits = logits - jax.lax.stop_gradient(jnp.max(logits, axis=1, keepdims=True))
    lowest = most_negative(logits)
    # Masked before the sum, so that a row of zero weights has no gradient, and after it, so that it
    # has no probability.
    log_weights = jnp.where(channel.valid[:, None], channel.log_weights.astype(logits.dtype), 0.0)
    scores = jax.nn.logsumexp(log_weights + logits[:, None, :], axis=-1)
    log_probs = jax.nn.log_softmax(jnp.where(channel.valid, scores, lowest))
    return jnp.where(channel.valid, log_probs, lowest)


def is_observable(observed: Int[Array, " n"], channel: Channel) -> Bool[Array, " n"]:
    """Return the mask of rows with an observation (not -1) of positive probability under the
    channel.
    """
    return (observed >= 0) & channel.valid[jnp.maximum(observed, 0)]


def channel_cross_entropy(
    logits: Float[Array, "n K"], observed: Int[Array, " n"], channel: Channel
) -> Float[Array, " n"]:
    """Return -log q of the observations, in nats for every row.

    The loss is exactly 0 with zero gradient if `is_observable` is False: without an observation, or
    for one that is impossible under the channel, whose loss would be infinite. With the identity
    channel, the bits are those of `cross_entropy`.

    Args:
        logits: class scores.
        observed: observation of every row, -1 = none.
        channel: channel of the client.
    """
    return _observed_loss(channel_log_probs(logits, channel), observed, channel)


def channel_cross_entropy_on_probs(
    logits: Float[Array, "n K"], observed: Int[Array, " n"], channel: Channel
) -> Float[Array, " n"]:
    """Return -log softmax(q) of the observations: a second softmax on probabilities, as in FedUL's
    public code.

    NOT A PROPER LOSS: its minimizer is not the class posterior, it is over-confident and can name
    another class (FedUL section 14, check 7), and it never falls below log(e + O - 1) - 1 for O
    observations. It only serves to reproduce published numbers; use `channel_cross_entropy`.

    Args:
        logits: class scores.
        observed: observation of every row, -1 = none.
        channel: channel of the client.
    """
    probs = jnp.exp(channel_log_probs(logits, channel))
    again = jax.nn.log_softmax(jnp.where(channel.valid, probs, most_negative(probs)))
    return _observed_loss(again, observed, channel)


def _observed_loss(
    log_probs: Float[Array, "n O"], observed: Int[Array, " n"], channel: Channel
) -> Float[Array, " n"]:
    chosen = at_target(log_probs, observed)
    return jnp.where(is_observable(observed, channel), -chosen, 0)


def _channel_of_weights(weights: Float[Array, "O K"]) -> Channel:
    positive = weights > 0
    return Channel(
        jnp.where(positive, _safe_log(weights), most_negative(weights)), jnp.any(positive, axis=1)
    )


def _safe_log(values: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the logarithm of positive values, 0 elsewhere; the gradient has no 0/0."""
    return jnp.log(jnp.where(values > 0, values, 1))


def correspondence_counts(
    probs: Float[Array, "n K"],
    observed: Int[Array, " n"],
    num_observed: int,
    threshold: float | Float[Array, ""],
    mask: Bool[Array, " n"] | None = None,
) -> tuple[Float[Array, "J K"], Float[Array, " J"]]:
    """Count pairs of observed label and confident pseudo-label, and count the observed labels.

    Counts of several clients may be added, then normalized. They are exact up to 2^24 examples in
    float32.

    Args:
        probs: class probabilities; the pseudo-label is the most probable class, the first one among
            equals.
        observed: observed label of every row, -1 = none, which is not counted.
        num_observed: J, number of observed labels.
        threshold: a pseudo-label is confident above this probability, not at it.
        mask: mask of rows that are examples, by default all.

    Returns:
        counts of (observed label, pseudo-label) among confident rows, counts of observed labels
        among all rows.
    """
    probs = at_least_float32(probs)
    known = observed >= 0 if mask is None else (observed >= 0) & mask
    confident = known & (jnp.max(probs, axis=1) > threshold)
    # one_hot is all 0 where the index is -1.
    labels = jax.nn.one_hot(jnp.where(known, observed, -1), num_observed, dtype=probs.dtype)
    pseudo_labels = jnp.where(confident, jnp.argmax(probs, axis=1), -1)
    counts = jnp.matmul(
        labels.T,
        jax.nn.one_hot(pseudo_labels, probs.shape[1], dtype=probs.dtype),
        precision=jax.lax.Precision.HIGHEST,
    )
    return jax.lax.stop_gradient((counts, jnp.sum(labels, axis=0)))


def normalize_counts(
    counts: Float[Array, "J K"], label_counts: Float[Array, " J"]
) -> Float[Array, "J K"]:
    """Return the correspondence matrix n_jk / n_k from counts; for a class without counts, the
    frequencies of the observed labels.

    Args:
        counts: counts of observed label j with pseudo-label k.
        label_counts: counts of observed label j; if all are 0, the frequencies are uniform.
    """
    total = jnp.sum(label_counts)
    uniform = jnp.full_like(label_counts, 1.0 / label_counts.shape[0])
    prior = jnp.where(total > 0, label_counts / jnp.maximum(total, 1.0), uniform)
    support = jnp.sum(counts, axis=0)
    columns = counts / jnp.where(support > 0, support, 1)
    return jax.lax.stop_gradient(jnp.where(support > 0, columns, prior[:, None]))
