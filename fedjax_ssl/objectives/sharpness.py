"""Sharpness-aware minimization: where to perturb weights to, and agreement of the predictions there and here.

References:
    Foret, Kleiner, Mobahi, Neyshabur, Sharpness-aware minimization for efficiently improving generalization, ICLR 2021.
    Kwon, Kim, Park, Choi, ASAM: adaptive sharpness-aware minimization, ICML 2021.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

PyTree = Any
SMALLEST_NORM = 1e-16  # so that a gradient of 0 moves nothing


def sharpness_ascent(
    params: PyTree, gradient: PyTree, radius: float | Array, adaptive: bool = True, eta: float | Array = 0.01
) -> PyTree:
    """Where the loss rises fastest within a distance: radius T^2 g / ||T g||, with one norm over all parameters.

    Args:
        params: w.
        gradient: g, of the loss at w.
        radius: of the ball, rho.
        adaptive: T is |w| + eta for weights, the scales of norm layers among them, and 1 for biases (ASAM); else it is
            1 for all (SAM). A bias is a leaf of the name "bias".
        eta: added to |w|.

    Returns:
        What is to be added to w, a tree like `params`.
    """

    def scale(path: tuple[Any, ...], weight: Array) -> Array:
        bias = bool(path) and getattr(path[-1], "key", None) == "bias"
        return jnp.ones_like(weight) if bias or not adaptive else jnp.abs(weight) + eta

    scales = jax.tree_util.tree_map_with_path(scale, params)
    scaled = jax.tree.map(jnp.multiply, scales, gradient)
    length = jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(scaled))) + SMALLEST_NORM
    return jax.tree.map(lambda t, tg: radius * (t * tg) / length, scales, scaled)


def divergence_from(
    before: Float[Array, "n K"], after: Float[Array, "n K"], counted: Bool[Array, " n"], mask: Bool[Array, " n"]
) -> Float[Array, ""]:
    """1/B sum over counted rows of KL[softmax(before) || softmax(after)], B = rows in the mask.

    No gradient reaches `before`.

    Args:
        before: class scores that are held fixed.
        after: class scores that are moved towards them.
        counted: rows that have a loss.
        mask: rows that belong to the batch.
    """
    held, moved = jax.nn.log_softmax(jax.lax.stop_gradient(before)), jax.nn.log_softmax(after)
    rows = jnp.sum(jnp.exp(held) * (held - moved), axis=1)
    size = jnp.maximum(jnp.sum(mask, dtype=rows.dtype), 1.0)
    return jnp.sum(jnp.where(mask & counted, rows, jnp.zeros_like(rows))) / size
