"""Rows of a classifier as proxies of classes: contrast with an example's possible classes, and
tuning by the rows of many clients (ProxyFL).
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl.objectives import at_least_float32, most_negative

SIMILAR = 1e-6  # rows with less similarity are not negatives
_SHORTEST = 1e-12  # shorter vectors are not divided by their length


class Candidates(NamedTuple):
    """Possible classes of examples, without gradient."""

    sets: Bool[Array, "n K"]
    weights: Float[Array, "n K"]
    # ^ weights of the classes' proxies in the positive; they need not sum to 1


class Tuning(NamedTuple):
    """Settings of the server's tuning of proxies."""

    epochs: int  # passes over the rows of all clients; 0: none
    rate: float | Array = 0.005  # learning rate of plain SGD
    batch_size: int = 4
    cap: float | Array = 100.0  # upper bound of the margin


def candidate_classes(
    probabilities: Float[Array, "n K"],
    prior: Float[Array, " K"],
    confident: Bool[Array, " n"],
) -> Candidates:
    """Return the likeliest class for confident rows, and all classes above their prior for others.

    Args:
        probabilities: q, class probabilities.
        prior: classes with q > prior are possible.
        confident: mask of confident rows.

    Example:
        >>> q = jnp.array([[0.45, 0.30, 0.25]])
        >>> prior = jnp.array([0.5, 0.28, 0.22])
        >>> found = candidate_classes(q, prior, jnp.array([False]))
        >>> found.sets.tolist(), [round(float(w), 2) for w in found.weights[0]]
        ([[False, True, True]], [0.0, 0.3, 0.25])
    """
    q = jax.lax.stop_gradient(probabilities)
    likeliest = jax.nn.one_hot(jnp.argmax(q, axis=1), q.shape[1], dtype=q.dtype)
    possible = q > prior
    sure = confident[:, None]
    return Candidates(
        jnp.where(sure, likeliest > 0, possible),
        jnp.where(sure, likeliest, jnp.where(possible, q, 0.0)),
    )


def proxy_contrast(
    features: Float[Array, "n d"],
    proxies: Float[Array, "K d"],
    candidates: Candidates,
    mask: Bool[Array, " n"],
) -> Float[Array, " n"]:
    """Return -s_i + log(e^(s_i) + sum_j e^(z_i z_j)) of every row i.

    z are the features and w the proxies, both of unit length; s_i = z_i sum_c weight_ic w_c; j are
    rows that share no candidate with i, with z_i z_j >= `SIMILAR`. A row without a candidate has
    loss 0 and is no negative, like rows outside of the mask.

    Args:
        features: a row per view.
        proxies: a row per class.
        candidates: of the rows.
        mask: rows that are real.

    Example:
        >>> z = jnp.array([[1.0, 0.0], [0.6, 0.8]])
        >>> one_each = Candidates(jnp.eye(2, dtype=bool), jnp.eye(2))
        >>> proxy_contrast(z, jnp.eye(2), one_each, jnp.array([True, True])).round(4).tolist()
        [0.513, 0.5981]
    """
    z = _unit(at_least_float32(features))
    w = _unit(at_least_float32(proxies))
    highest = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    positive = jnp.sum(z * highest(candidates.weights.astype(z.dtype), w), axis=1)
    similarity = highest(z, z.T)
    sets = candidates.sets.astype(z.dtype)
    some = mask & jnp.any(candidates.sets, axis=1)
    negative = (highest(sets, sets.T) == 0) & some[None, :] & (similarity >= SIMILAR)
    others = jnp.where(negative, similarity, most_negative(similarity))
    # The positive is always finite, so every row has an entry.
    logits = jnp.concatenate([positive[:, None], others], axis=1)
    losses = jax.nn.logsumexp(logits, axis=1) - positive
    return jnp.where(some, losses, 0.0)


def _unit(rows: Float[Array, "n d"]) -> Float[Array, "n d"]:
    return rows / jnp.maximum(_root(jnp.sum(rows**2, axis=1)), _SHORTEST)[:, None]


def _root(squares: Array) -> Array:
    """Return the square root, with gradient 0 at 0."""
    some = squares > 0
    return jnp.where(some, jnp.sqrt(jnp.where(some, squares, 1.0)), 0.0)


def _distances(ones: Float[Array, "*m d"], others: Float[Array, "*k d"]) -> Float[Array, "..."]:
    return _root(jnp.sum((ones - others) ** 2, axis=-1))


def proxy_margin(proxies: Float[Array, "K d"], cap: float | Array = 100.0) -> Float[Array, ""]:
    """Return max_c min_c' ||proxy_c - proxy_c'||, c' another class, at most `cap`."""
    apart = _distances(proxies[:, None], proxies[None])
    itself = jnp.eye(proxies.shape[0], dtype=bool)
    nearest = jnp.min(jnp.where(itself, jnp.inf, apart), axis=1)
    return jnp.minimum(jnp.max(nearest), cap)


def tuning_loss(
    proxies: Float[Array, "K d"],
    uploads: Float[Array, "p K d"],
    pairs: Int[Array, " m"],
    mask: Bool[Array, " m"],
    margin: Float[Array, ""] | float = 0.0,
) -> Float[Array, ""]:
    """Return the mean over pairs of a client k and a class c of -log softmax_c(-D - margin [c]).

    D_c' is the distance of the client's row of c to the proxy of c'.

    Args:
        proxies: proxies to tune.
        uploads: the clients' rows.
        pairs: k K + c.
        mask: pairs that count.
        margin: added to the distance of the own class.
    """
    num_classes = proxies.shape[0]
    own = pairs % num_classes
    rows = uploads[pairs // num_classes]
    apart = _distances(rows[jnp.arange(pairs.shape[0]), own][:, None], proxies[None])
    mine = jax.nn.one_hot(own, num_classes, dtype=apart.dtype)
    losses = -jnp.sum(mine * jax.nn.log_softmax(-(apart + margin * mine), axis=1), axis=1)
    count = jnp.maximum(jnp.sum(mask, dtype=losses.dtype), 1.0)
    return jnp.sum(jnp.where(mask, losses, 0.0)) / count


def tuned_proxies(
    key: Key[Array, ""],
    averaged: Float[Array, "K d"],
    uploads: Float[Array, "p K d"],
    counts: Bool[Array, " p"],
    clients: Int[Array, " p"],
    how: Tuning,
) -> Float[Array, "K d"]:
    """Tune averaged proxies by SGD on the proxies of clients, each used once in an epoch.

    The margin is that of the averaged proxies. Pairs have a new order in every epoch; the last
    batch may be smaller.

    Args:
        key: random key of the orders.
        averaged: start of the tuning.
        uploads: the clients' proxies.
        counts: clients that count; without any, nothing moves.
        clients: client ids, which decide the places of their rows in an order.
        how: epochs, rate, batches, margin.
    """
    start = at_least_float32(averaged)
    num_pairs = uploads.shape[0] * uploads.shape[1]
    size = min(how.batch_size, num_pairs)
    there = jnp.repeat(counts, uploads.shape[1])
    rows = jnp.where(counts[:, None, None], uploads, 0.0).astype(start.dtype)
    margin = proxy_margin(start, how.cap)

    def order(number: Int[Array, ""]) -> Int[Array, "s b"]:
        keys = jax.vmap(partial(jax.random.fold_in, jax.random.fold_in(key, number)))(clients)
        drawn = jax.vmap(lambda own: jax.random.bits(own, uploads.shape[1:2]))(keys)
        # Pairs that do not count come last, so that batches are full as long as possible.
        placed = jnp.lexsort((drawn.reshape(-1), ~there)).astype(jnp.int32)
        return jnp.pad(placed, (0, -num_pairs % size), constant_values=-1).reshape(-1, size)

    def step(proxies: Array, pairs: Array) -> tuple[Array, None]:
        real = (pairs >= 0) & there[pairs]
        slope = jax.grad(tuning_loss)(proxies, rows, pairs, real, margin)
        return proxies - how.rate * slope, None

    def epoch(proxies: Array, number: Array) -> tuple[Array, None]:
        return jax.lax.scan(step, proxies, order(number))

    tuned, _ = jax.lax.scan(epoch, start, jnp.arange(how.epochs, dtype=jnp.int32))
    return tuned


def pooled_prior(
    prior: Float[Array, " K"], counts: Float[Array, "p K"], decay: float | Array
) -> Float[Array, " K"]:
    """Return decay prior + (1 - decay) share of each class in all counts; the prior itself if all
    counts are 0.

    Example:
        >>> counts = jnp.array([[30.0, 10.0, 0.0], [5.0, 5.0, 50.0]])
        >>> pooled_prior(jnp.ones(3) / 3, counts, 0.99).round(4).tolist()
        [0.3335, 0.3315, 0.335]
    """
    total = jnp.sum(counts)
    share = jnp.sum(counts, axis=0) / jnp.maximum(total, 1.0)
    return jnp.where(total > 0, decay * prior + (1.0 - decay) * share, prior)
