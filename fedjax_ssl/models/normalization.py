"""Normalisation layers: batch normalisation that ignores padding rows, group normalisation,
none.
"""

from functools import partial
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

Mask = Bool[Array, " n"] | None  # rows that count in the statistics of a batch; None: all

NormName = Literal["none", "bn", "gn"]
GROUPS = 32
MOMENTUM = 0.1  # weight of a batch in the running statistics
EPSILON = 1e-5  # is added to variances


def statistics_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """Choose the type for sums over values of `dtype`: float32 for the shorter ones."""
    return jnp.dtype(jnp.float32) if jnp.finfo(dtype).bits < 32 else dtype


# Traced once for all layers of a shape.
@partial(jax.jit, static_argnames="epsilon")
def _by_moments(
    values: Array, scale: Array, bias: Array, mask: Array | None, epsilon: float
) -> tuple[Array, Array, Array, Array]:
    """Return the values normalised with their own moments, and these: mean, biased variance,
    number.
    """
    mean, var, count = _moments(values, mask)
    return _scaled(values, mean, var, scale, bias, epsilon), mean, var, count


def _scaled(
    values: Array, mean: Array, var: Array, scale: Array, bias: Array, epsilon: float
) -> Array:
    factor = lax.rsqrt(var + epsilon) * scale
    return values * factor + (bias - mean * factor)


def _moments(values: Array, mask: Array | None) -> tuple[Array, Array, Array]:
    """Return mean, biased variance and number of the marked positions, per channel."""
    axes = tuple(range(values.ndim - 1))
    positions = values.size // values.shape[-1]
    if mask is None:
        mean = jnp.mean(values, axes)
        return mean, jnp.mean(jnp.square(values - mean), axes), jnp.asarray(positions, values.dtype)
    marked = mask.reshape(mask.shape + (1,) * (values.ndim - 1))
    count = jnp.sum(mask, dtype=values.dtype) * (positions // max(values.shape[0], 1))
    divisor = jnp.maximum(count, 1)
    # where, not a product: padding rows may hold anything, NaN included
    mean = jnp.sum(jnp.where(marked, values, 0), axes) / divisor
    var = jnp.sum(jnp.where(marked, jnp.square(values - mean), 0), axes) / divisor
    return mean, var, count


def _blend(running: Array, batch: Array, weight: Array) -> Array:
    return running * (1 - weight) + lax.stop_gradient(batch).astype(running.dtype) * weight


class Norm(nn.Module):
    """The normalisation layer named `kind`: "none", "bn" (batch) or "gn" (32 groups of channels).

    "bn" is batch normalisation with PyTorch's conventions, over the rows that `mask` marks: the
    batch is normalised with its biased variance and the running variance follows the unbiased one.
    A batch of one value, or without any, leaves the running statistics as they are. With "gn" every
    example is normalised on its own.

    Sources: Ioffe and Szegedy, Batch Normalization, ICML 2015. Wu and He, Group Normalization, ECCV
    2018.
    """

    kind: str
    momentum: float = MOMENTUM  # weight of a batch in the running statistics of "bn"
    epsilon: float = EPSILON

    @nn.compact
    def __call__(
        self, inputs: Float[Array, "n ... c"], train: bool, mask: Mask
    ) -> Float[Array, "n ... c"]:
        if self.kind == "none":
            return inputs
        dtype = statistics_dtype(inputs.dtype)
        channels = inputs.shape[-1]
        default = jnp.result_type(float)
        scale = self.param("scale", nn.initializers.ones, (channels,), default).astype(dtype)
        bias = self.param("bias", nn.initializers.zeros, (channels,), default).astype(dtype)
        values = inputs.astype(dtype)
        outputs = (
            self._batch(values, scale, bias, train, mask)
            if self.kind == "bn"
            else self._group(values, scale, bias)
        )
        return outputs.astype(inputs.dtype)

    def _batch(self, values: Array, scale: Array, bias: Array, train: bool, mask: Mask) -> Array:
        default = jnp.result_type(float)
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, scale.shape, default)
        running_var = self.variable("batch_stats", "var", jnp.ones, scale.shape, default)
        for name in ("mean", "var"):
            self.sow(
                "batch_weights",
                name,
                self.momentum,
                init_fn=lambda: None,
                reduce_fn=lambda _, weight: weight,
            )
        if not train:
            mean = running_mean.value.astype(values.dtype)
            var = running_var.value.astype(values.dtype)
            return _scaled(values, mean, var, scale, bias, self.epsilon)
        outputs, mean, var, count = _by_moments(values, scale, bias, mask, self.epsilon)
        if not self.is_initializing():
            weight = jnp.where(count > 1, self.momentum, 0.0).astype(running_mean.value.dtype)
            running_mean.value = _blend(running_mean.value, mean, weight)
            running_var.value = _blend(
                running_var.value, var * (count / jnp.maximum(count - 1, 1)), weight
            )
        return outputs

    def _group(self, values: Array, scale: Array, bias: Array) -> Array:
        channels = values.shape[-1]
        if channels % GROUPS:
            raise ValueError(
                f"norm='gn' needs channels divisible by {GROUPS}, layer {'/'.join(self.path)!r} "
                f"has {channels}; use norm='bn' or norm='none', or change the width"
            )
        groups = values.reshape(values.shape[0], -1, GROUPS, channels // GROUPS)
        centred = groups - jnp.mean(groups, (1, 3), keepdims=True)
        factor = lax.rsqrt(jnp.mean(jnp.square(centred), (1, 3), keepdims=True) + self.epsilon)
        return (centred * factor).reshape(values.shape) * scale + bias
