"""Losses at perturbed inputs or weights: virtual adversarial training, and sharpness-aware
minimization.

References:
    Miyato et al., Virtual adversarial training, TPAMI 2019, as FedLLP-VAT uses it (FedUL section
    5). Foret, Kleiner, Mobahi, Neyshabur, Sharpness-aware minimization for efficiently improving
    generalization, ICLR 2021. Kwon, Kim, Park, Choi, ASAM: adaptive sharpness-aware minimization,
    ICML 2021.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from fedjax_ssl.objectives.cross_entropy import batch_mean

EPSILON = 1e-8


def vat_direction(
    predict: Callable[[Float[Array, "n ..."]], Float[Array, "n K"]],
    inputs: Float[Array, "n ..."],
    key: Key[Array, ""],
    radius: float | Float[Array, ""],
    *,
    mask: Bool[Array, " n"] | None = None,
) -> Float[Array, "n ..."]:
    """Return the perturbation of length `radius` for each example that changes the predictions
    most, after one power iteration.

    g = H u with H the Hessian of KL(p(x) || p(x + d)) at d = 0 and u a random unit vector per
    example; the result is radius * g / (||g|| + 1e-8), a constant for gradients. With batch norm a
    row also moves the others' predictions, and g is that of the sum over all rows in the mask.

    Args:
        predict: inputs -> logits; every call must use the same randomness (dropout) and frozen
            running statistics, otherwise the direction is noise.
        inputs: floating inputs of one batch.
        key: key of the random start u.
        radius: length of the perturbation over all pixels and channels of an example.
        mask: rows that belong to the batch, and get a perturbation; None: all.
    """
    target = jax.lax.stop_gradient(jax.nn.log_softmax(predict(inputs)))
    start = _unit_rows(jax.random.normal(key, inputs.shape, inputs.dtype))

    def slope(perturbation: Array) -> Array:
        return jax.grad(lambda d: jnp.sum(_divergence(target, predict(inputs + d)), where=mask))(
            perturbation
        )

    # Reverse mode twice, because H is symmetric, and convolutions on accelerators have no forward
    # mode. The paper's gradient at d = 1e-6 u would be lost in rounding for most pixels.
    gradient = jax.grad(lambda d: jnp.vdot(slope(d), start))(jnp.zeros_like(inputs))
    return jax.lax.stop_gradient(radius * _unit_rows(gradient))


def divergence_from(
    before: Float[Array, "n K"],
    after: Float[Array, "n K"],
    mask: Bool[Array, " n"],
    counted: Bool[Array, " n"] | Float[Array, " n"] | None = None,
) -> Float[Array, ""]:
    """Return 1/B sum over counted rows of KL[softmax(before) || softmax(after)], B = rows in the
    mask.

    With `after` at the inputs plus `vat_direction` it is the loss of virtual adversarial training.
    No gradient reaches `before`.

    Args:
        before: class scores that are held fixed.
        after: class scores that are moved towards them.
        mask: rows that belong to the batch.
        counted: mask of the rows whose loss is added up, or a factor for each row; by default all.
    """
    rows = _divergence(jax.nn.log_softmax(jax.lax.stop_gradient(before)), after)
    return batch_mean(rows, mask, counted)


def mean_entropy(logits: Float[Array, "n K"], mask: Bool[Array, " n"]) -> Float[Array, ""]:
    """Return the entropy of the predictions in nats, averaged over the rows in the mask, for
    entropy minimization beside VAT.

    Grandvalet and Bengio, NeurIPS 2004.

    Args:
        logits: unnormalized class scores.
        mask: rows that belong to the batch.
    """
    log_probs = jax.nn.log_softmax(logits)
    rows = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=1)
    return batch_mean(rows, mask)


def _divergence(
    target_log_probs: Float[Array, "n K"], logits: Float[Array, "n K"]
) -> Float[Array, " n"]:
    return jnp.sum(
        jnp.exp(target_log_probs) * (target_log_probs - jax.nn.log_softmax(logits)), axis=-1
    )


def _unit_rows(vectors: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
    norms = jnp.sqrt(jnp.sum(vectors**2, axis=tuple(range(1, vectors.ndim)), keepdims=True))
    return vectors / (norms + EPSILON)


PyTree = Any
SMALLEST_NORM = 1e-16  # makes a gradient of 0 move nothing


def sharpness_ascent(
    params: PyTree,
    gradient: PyTree,
    radius: float | Array,
    adaptive: bool = True,
    eta: float | Array = 0.01,
) -> PyTree:
    """Return a step up the loss within a distance: radius T^2 g / ||T g||, with one norm over all
    parameters.

    Args:
        params: w.
        gradient: g, gradient of the loss at w.
        radius: radius of the ball, rho.
        adaptive: True: T is |w| + eta for weights, including scales of norm layers, and 1 for
            biases (ASAM); False: T is 1 for all (SAM). A bias is a leaf named "bias".
        eta: added to |w|.

    Returns:
        The change to add to w, a tree like `params`.
    """

    def scale(path: tuple[Any, ...], weight: Array) -> Array:
        bias = bool(path) and getattr(path[-1], "key", None) == "bias"
        return jnp.ones_like(weight) if bias or not adaptive else jnp.abs(weight) + eta

    scales = jax.tree_util.tree_map_with_path(scale, params)
    scaled = jax.tree.map(jnp.multiply, scales, gradient)
    length = (
        jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(scaled))) + SMALLEST_NORM
    )
    return jax.tree.map(lambda t, tg: radius * (t * tg) / length, scales, scaled)
