"""Virtual adversarial training (Miyato et al., TPAMI 2019), as FedLLP-VAT uses it (FedUL section 5)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl.objectives.mean_teacher import consistency_ramp

EPSILON = 1e-8


def vat_direction(
    predict: Callable[[Float[Array, "n ..."]], Float[Array, "n K"]],
    inputs: Float[Array, "n ..."],
    key: Key[Array, ""],
    radius: float | Float[Array, ""],
    *,
    mask: Bool[Array, " n"] | None = None,
    finite_difference: float | None = None,
) -> Float[Array, "n ..."]:
    """The perturbation of length `radius` per example that changes the predictions most, after one power iteration.

    g = H u with H the Hessian of KL(p(x) || p(x + d)) at d = 0 and u a random unit vector per example; the result is
    radius * g / (||g|| + 1e-8), a constant for gradients. With batch norm a row also moves the others'
    predictions, and g is that of the sum over all rows in the mask.

    Args:
        predict: logits of inputs; the same randomness (dropout) and frozen running statistics in every call, else the
            direction is noise.
        inputs: floating inputs of one batch.
        key: of the random start u.
        radius: length of the perturbation over all pixels and channels of an example.
        mask: rows that belong to the batch, and get a perturbation; None: all.
        finite_difference: None for the exact Hessian-vector product; a number xi for the gradient at d = xi u as in the
            paper, which with xi = 1e-6 in float32 is lost in rounding for most pixels.
    """
    target = jax.lax.stop_gradient(jax.nn.log_softmax(predict(inputs)))
    start = _unit_rows(jax.random.normal(key, inputs.shape, inputs.dtype))

    def slope(perturbation: Array) -> Array:
        return jax.grad(lambda d: jnp.sum(_divergence(target, predict(inputs + d)), where=mask))(perturbation)

    if finite_difference is None:
        # In reverse mode twice, as H is symmetric: convolutions of accelerators have no forward mode.
        gradient = jax.grad(lambda d: jnp.vdot(slope(d), start))(jnp.zeros_like(inputs))
    else:
        gradient = slope(finite_difference * start)
    return jax.lax.stop_gradient(radius * _unit_rows(gradient))


def vat_loss(
    logits: Float[Array, "n K"], perturbed_logits: Float[Array, "n K"], mask: Bool[Array, " n"]
) -> Float[Array, ""]:
    """KL(p(x) || p(x + r)) summed over classes and averaged over the rows in the mask; p(x) is a constant.

    Args:
        logits: of the inputs.
        perturbed_logits: of the inputs plus `vat_direction`.
        mask: rows that belong to the batch.
    """
    target = jax.lax.stop_gradient(jax.nn.log_softmax(logits))
    rows = _divergence(target, perturbed_logits)
    return jnp.sum(jnp.where(mask, rows, jnp.zeros_like(rows))) / jnp.maximum(jnp.sum(mask, dtype=rows.dtype), 1.0)


def mean_entropy(logits: Float[Array, "n K"], mask: Bool[Array, " n"]) -> Float[Array, ""]:
    """Entropy of the predictions in nats, averaged over the rows in the mask: entropy minimization beside VAT.

    Grandvalet and Bengio, NeurIPS 2004.

    Args:
        logits: unnormalized class scores.
        mask: rows that belong to the batch.
    """
    log_probs = jax.nn.log_softmax(logits)
    rows = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=1)
    return jnp.sum(jnp.where(mask, rows, jnp.zeros_like(rows))) / jnp.maximum(jnp.sum(mask, dtype=rows.dtype), 1.0)


def vat_rampup(step: Int[Array, ""], total: int, max_weight: float | Array) -> Float[Array, ""]:
    """Weight of the VAT loss: max_weight * exp(-5 (1 - min(t, T)/T)^2) at local step t = 0, 1, .. with T = `total`."""
    return consistency_ramp(step, max_weight, total)


def _divergence(target_log_probs: Float[Array, "n K"], logits: Float[Array, "n K"]) -> Float[Array, " n"]:
    return jnp.sum(jnp.exp(target_log_probs) * (target_log_probs - jax.nn.log_softmax(logits)), axis=-1)


def _unit_rows(vectors: Float[Array, "n ..."]) -> Float[Array, "n ..."]:
    norms = jnp.sqrt(jnp.sum(vectors**2, axis=tuple(range(1, vectors.ndim)), keepdims=True))
    return vectors / (norms + EPSILON)
