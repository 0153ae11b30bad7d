"""Batch normalisation of images in few passes over them, for GPUs, whose memory such a layer keeps busy.

Mean and variance are read off one pass forward, their gradients off one backward. Each pass computes again what follows
from the images and a few numbers per channel: normalised values and where they are negative.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def normalized(
    values: Float[Array, "n h w c"],
    scale: Float[Array, " c"],
    bias: Float[Array, " c"],
    near: Float[Array, " c"],
    mask: Bool[Array, " n"] | None,
    epsilon: float,
    slope: float | None,
) -> tuple[Float[Array, "n h w c"], Float[Array, " c"], Float[Array, " c"], Float[Array, ""]]:
    """Values less their mean, over their deviation, times scale plus bias; then a leaky ReLU where there is a slope.

    Args:
        values: in single or double precision.
        scale: of the normalised values.
        bias: of the normalised values.
        near: any numbers; the nearer they are to the means, the more digits has the variance.
        mask: images that count in mean and variance; None: all.
        epsilon: added to the variance.
        slope: of the leaky ReLU where it is negative, at most 1; None: there is none.

    Returns:
        (outputs, mean, biased variance, number of values of each). Only the outputs have a gradient.
    """
    return _forward(values, scale, bias, near, mask, epsilon, slope)[0]


def _forward(
    values: Array, scale: Array, bias: Array, near: Array, mask: Array | None, epsilon: float, slope: float | None
) -> tuple[tuple[Array, Array, Array, Array], tuple]:
    pixels = values.shape[1] * values.shape[2]
    marked = jnp.ones(values.shape[0], bool) if mask is None else mask
    count = jnp.sum(marked, dtype=values.dtype) * pixels
    number = jnp.maximum(count, 1)
    # where, not a product: padding rows may hold anything, NaN included
    centred = values - near if mask is None else jnp.where(_rows(mask), values - near, 0)
    mean, var = from_sums(channel_sums(centred, jnp.square(centred)), near, count)
    root = lax.rsqrt(var + epsilon)
    outputs = scaled(values, root * scale, bias - mean * root * scale, slope)
    return (outputs, mean, var, count), (values, scale, bias, mean, root, number, mask)


def _backward(epsilon: float, slope: float | None, saved: tuple, cotangents: tuple[Array, ...]) -> tuple:
    values, scale, bias, mean, root, number, mask = saved
    found = gradients(values, scale, bias, mean, root, number, mask, slope, cotangents[0])
    return *found, jnp.zeros_like(mean), None


def gradients(
    values: Float[Array, "n h w c"],
    scale: Float[Array, " c"],
    bias: Float[Array, " c"],
    mean: Float[Array, " c"],
    root: Float[Array, " c"],
    number: Float[Array, ""],
    mask: Bool[Array, " n"] | None,
    slope: float | None,
    cotangent: Float[Array, "n h w c"],
) -> tuple[Float[Array, "n h w c"], Float[Array, " c"], Float[Array, " c"]]:
    """The gradients of values, scale and bias of `normalized`.

    Args:
        values: as there.
        scale: as there.
        bias: as there.
        mean: of the values.
        root: one over the root of variance and epsilon.
        number: of values of each mean, at least 1.
        mask: as there.
        slope: as there.
        cotangent: of the outputs.
    """
    factor = root * scale
    # Each pass waits for something of the one before it. With equal values to share, XLA would write what is computed
    # again here, as large as the images.
    factor, offset = _after(cotangent[0, 0, 0], factor, bias - mean * factor)
    gradient = _through_activation(cotangent, values, factor, offset, slope)
    d_bias, d_scale = channel_sums(gradient, gradient * ((values - mean) * root))
    factor, offset = _after(d_bias, factor, offset)
    gradient = _through_activation(cotangent, values, factor, offset, slope)
    through_moments = (d_bias + ((values - mean) * root) * d_scale) / number
    if mask is not None:
        through_moments = jnp.where(_rows(mask), through_moments, 0)
    return (gradient - through_moments) * factor, d_scale, d_bias


def _after(first: Array, *values: Array) -> tuple[Array, ...]:
    """The values, once the first one is there. Where that is NaN so are they, as all gradients are then."""
    return tuple(jnp.where(jnp.isnan(first), first, value) for value in values)


def _through_activation(gradient: Array, values: Array, factor: Array, offset: Array, slope: float | None) -> Array:
    if slope is None:
        return gradient
    # 1 where the output is 0 or more, else 0. Comparisons XLA would write, as many bytes as there are values.
    kept = jnp.minimum(jnp.sign(values * factor + offset) + 1, 1)
    return gradient * (slope + (1 - slope) * kept)


normalized.defvjp(_forward, _backward)


def from_sums(sums: tuple[Array, ...], near: Array, count: Array) -> tuple[Array, Array]:
    """Mean and biased variance of `count` values each, from the sums of them less `near` and of these squared."""
    first, second = (total / jnp.maximum(count, 1) for total in sums)
    return jnp.where(count > 0, near + first, 0), jnp.maximum(second - jnp.square(first), 0)


def scaled(values: Array, factor: Array, offset: Array, slope: float | None) -> Array:
    """Values times a factor plus an offset; then a leaky ReLU where there is a slope."""
    outputs = values * factor + offset
    return outputs if slope is None else jnp.maximum(outputs, slope * outputs)


def channel_sums(*arrays: Array) -> tuple[Array, ...]:
    """Of each array the sum over all axes but the last one."""
    return tuple(jnp.sum(array, (0, 1, 2)) for array in arrays)


def _rows(mask: Array) -> Array:
    return mask[:, None, None, None]
