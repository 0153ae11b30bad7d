"""Sums of uploads that a few false ones cannot move far, as `config.sum.name` names them.

References:
    Coordinate median and trimmed mean: Yin, Chen, Kannan, Bartlett, Byzantine-robust distributed
    learning, ICML 2018. Geometric median: Pillutla, Kakade, Harchaoui, Robust aggregation for
    federated learning, IEEE Transactions on Signal Processing 2022. Norm bound: Sun, Kairouz,
    Suresh, McMahan, Can you really backdoor federated learning?, arXiv 1911.07963.
"""

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from fedjax_ssl.checks import In, Whole, checked
from fedjax_ssl.federated import PyTree, mean_scale
from fedjax_ssl.federated.uploads import Combine


def median() -> Combine:
    """Take the median of every coordinate; all clients count alike, regardless of weights."""
    return lambda updates, weights: _of_the_middle(updates, weights, None)


def trimmed_mean(trim: float = 0.2) -> Combine:
    """Take the mean of every coordinate without the largest and smallest; clients count alike.

    Args:
        trim: share of the clients that is left out at either end, rounded down.

    Raises:
        ValueError: nobody would be left.
    """
    if not 0 <= trim < 0.5:
        raise ValueError(
            f"trim is {trim}, a share of the clients at either end; it must be at least 0 and "
            "below 0.5, or nobody is left"
        )
    return lambda updates, weights: _of_the_middle(updates, weights, trim)


@checked
def geometric_median(
    iterations: Annotated[int, Whole(1)] = 8, smoothing: Annotated[float, In("(0, inf)")] = 1e-6
) -> Combine:
    """Take the point with the least weighted sum of distances to the uploads.

    Args:
        iterations: of Weiszfeld's algorithm.
        smoothing: least distance that an upload is weighted by.
    """

    def combine(updates: PyTree, weights: Float[Array, " p"]) -> PyTree:
        def nearer(_: Any, point: PyTree) -> PyTree:
            apart = jax.tree.map(lambda each, one: each - one, updates, point)
            return _weighted(updates, weights / jnp.maximum(_norms(apart), smoothing))

        return jax.lax.fori_loop(0, iterations, nearer, _weighted(updates, weights))

    return combine


@checked
def norm_bound(bound: Annotated[float, In("(0, inf)")] = 1.0) -> Combine:
    """Take the weighted mean of the uploads, each scaled to at most this norm.

    Args:
        bound: largest Euclidean norm of a client's change of a parameter group, and of its batch
            statistics.
    """

    def combine(updates: PyTree, weights: Float[Array, " p"]) -> PyTree:
        scale = jnp.minimum(1.0, bound / jnp.maximum(_norms(updates), bound))
        shorter = jax.tree.map(lambda x: _along(scale, x) * x, updates)
        return _weighted(shorter, weights)

    return combine


def _of_the_middle(updates: PyTree, weights: Float[Array, " p"], trim: float | None) -> PyTree:
    """Return the mean of the middle values of every coordinate, over clients that count alike.

    Args:
        updates: leading axis p.
        weights: 0 for clients that do not count.
        trim: share that is left out at either end; None: all but the middle one or two.
    """
    there = weights > 0
    number = jnp.sum(there, dtype=jnp.int32)
    if trim is None:
        cut = jnp.maximum(number - 1, 0) // 2
    else:
        # In floating point, 0.3 times 10 is slightly below 3.
        cut = jnp.floor(trim * number.astype(weights.dtype) + 1e-4).astype(jnp.int32)
    rank = jnp.arange(weights.shape[0], dtype=jnp.int32)
    inside = (rank >= cut) & (rank < number - cut)
    left = jnp.maximum(number - 2 * cut, 1)

    def of(values: Array) -> Array:
        in_order = jnp.sort(jnp.where(_along(there, values), values, jnp.inf), axis=0)
        total = jnp.sum(jnp.where(_along(inside, values), in_order, 0.0), axis=0)
        return (total / left.astype(values.dtype)).astype(values.dtype)

    return jax.tree.map(of, updates)


def _weighted(updates: PyTree, weights: Float[Array, " p"]) -> PyTree:
    shares = weights * mean_scale(jnp.sum(weights))
    return jax.tree.map(lambda x: jnp.sum(_along(shares, x).astype(x.dtype) * x, axis=0), updates)


def _norms(updates: PyTree) -> Float[Array, " p"]:
    return jax.vmap(optax.tree.norm)(updates)


def _along(by_client: Array, values: Array) -> Array:
    """Broadcast numbers by client to the shape of the arrays they belong to."""
    return by_client.reshape(-1, *[1] * (values.ndim - 1))
