"""The layers with weights, dropout, and the class scores that every network ends in."""

import math
import operator
from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedjax_ssl.backend import backend
from fedjax_ssl.checks import In, Whole
from fedjax_ssl.models.convolution import conv2d
from fedjax_ssl.models.model import Outputs
from fedjax_ssl.models.normalization import statistics_dtype

Initializer = nn.initializers.Initializer
SOFTMAX_OPERATIONS = 5  # per class
Rate = Annotated[float, In("[0, 1)")]
Count = Annotated[int, Whole()]

lecun_normal = nn.initializers.lecun_normal()
kaiming_fan_out = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


def torch_uniform(fan_in: int) -> Initializer:
    """Return a uniform initializer on +-1/sqrt(fan_in): PyTorch's default for weights and biases of
    linear and conv layers.
    """
    bound = 1 / math.sqrt(fan_in)
    return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)


def count_operations(module: nn.Module, operations: int) -> None:
    """Note what a part of a network does with one example, when the network starts; see
    `Model.forward_operations`.
    """
    module.sow("operations", "count", operations, init_fn=lambda: 0, reduce_fn=operator.add)


class Kernel(nn.Module):
    """A weight array and its bias.

    With `weight_norm` the weight is g * v / ||v||, one g and one norm per output channel, and
    starts as v (Salimans and Kingma, Weight Normalization, NeurIPS 2016). With an initializer the
    bias starts at zero.
    """

    shape: tuple[int, ...]  # shape of the weight, [..., inputs, outputs]
    initializer: Initializer | None
    # ^ start of the weight; None takes PyTorch's default for weight and bias
    use_bias: bool  # whether there is a bias
    weight_norm: bool  # whether the weight is kept as direction and length
    outputs_first: bool = False  # keep and return the weight as [outputs, ..., inputs]

    @nn.compact
    def __call__(self) -> tuple[Array, Array | None]:
        dtype = jnp.result_type(float)
        default = torch_uniform(math.prod(self.shape[:-1]))
        weight_init = self.initializer or default
        bias_init = nn.initializers.zeros if self.initializer else default
        bias = self.param("bias", bias_init, self.shape[-1:], dtype) if self.use_bias else None
        if not self.weight_norm:
            return self.param(
                "kernel", lambda key: self._stored(weight_init(key, self.shape, dtype))
            ), bias
        v = self.param("v", lambda key: self._stored(weight_init(key, self.shape, dtype)))
        others = tuple(range(1, v.ndim)) if self.outputs_first else tuple(range(v.ndim - 1))
        length = jnp.sqrt(jnp.sum(jnp.square(v), others, keepdims=True))
        g = self.param("g", lambda _: length.reshape(-1))
        return v * (g.reshape(length.shape) / length), bias

    def _stored(self, weight: Array) -> Array:
        return jnp.moveaxis(weight, -1, 0) if self.outputs_first else weight


class Conv(nn.Module):
    """Convolution of NHWC images by `conv2d`, with bias and optional weight normalisation (see
    `Kernel`).
    """

    filters: int
    size: int = 3
    stride: int = 1
    padding: str | int = "SAME"
    initializer: Initializer | None = None
    use_bias: bool = True
    weight_norm: bool = False
    lowering: str = "auto"

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"]) -> Float[Array, "n h2 w2 f"]:
        shape = (self.size, self.size, inputs.shape[-1], self.filters)
        kernel = Kernel(shape, self.initializer, self.use_bias, self.weight_norm, name="weights")
        nn.share_scope(self, kernel)
        weight, bias = kernel()
        outputs = conv2d(
            inputs, weight, stride=self.stride, padding=self.padding, lowering=self.lowering
        )
        size = math.prod(outputs.shape[1:])
        count_operations(self, size * (2 * math.prod(shape[:-1]) + (bias is not None)))
        return outputs if bias is None else outputs + bias


class Dense(nn.Module):
    """Affine map of the last axis, with optional weight normalisation (see `Kernel`).

    The weight is kept as [outputs, inputs]: the gradient of small batches is then written row by
    row, which makes a step of softmax regression on a CPU a third faster than [inputs, outputs]
    does (docs/speed.md).
    """

    features: int
    initializer: Initializer | None = None
    weight_norm: bool = False
    use_bias: bool = True

    @nn.compact
    def __call__(self, inputs: Float[Array, "n d"]) -> Float[Array, "n f"]:
        shape = (inputs.shape[-1], self.features)
        how = self.initializer, self.use_bias, self.weight_norm
        kernel = Kernel(shape, *how, outputs_first=True, name="weights")
        nn.share_scope(self, kernel)
        weight, bias = kernel()
        outputs = lax.dot_general(inputs, weight, (((inputs.ndim - 1,), (1,)), ((), ())))
        count_operations(
            self, math.prod(outputs.shape[1:]) * (2 * inputs.shape[-1] + (bias is not None))
        )
        return outputs if bias is None else outputs + bias


class Dropout(nn.Module):
    """Zeroes each value with probability `rate` in training and scales the rest to keep the mean.

    The bits of a row depend on the key and the row's position only, so padding rows change nothing.
    A draw takes as few bits of the generator as its rate needs (1 for a half, 2 for a quarter, 16
    in general, the rate then rounded to a multiple of 2**-16): on CPU the generator is a sizeable
    part of a small network's step.
    """

    rate: float
    whole_channels: bool = False  # a channel of an image [h, w, c] is dropped as a whole

    @nn.compact
    def __call__(self, inputs: Float[Array, "n ..."], train: bool) -> Float[Array, "n ..."]:
        if not train or self.rate == 0:
            return inputs
        shape = (inputs.shape[0], 1, 1, inputs.shape[-1]) if self.whole_channels else inputs.shape
        keep = keep_mask(self.make_rng("dropout"), shape, self.rate)
        if backend() == "cpu":
            # else drawn again wherever it is read, value by value
            keep = lax.optimization_barrier(keep)
        return jnp.where(keep, inputs / (1 - self.rate), 0)


def keep_mask(key: jax.Array, shape: tuple[int, ...], rate: float) -> jax.Array:
    """Independent bools, false with probability `rate`; row i does not depend on the number of
    rows.
    """
    bits = next((b for b in (1, 2, 4, 8) if (rate * 2**b).is_integer()), 16)
    threshold = round(rate * 2**bits)
    per_word = 32 // bits
    width = math.prod(shape[1:])
    words_per_row = -(-width // per_word)
    words = jax.random.bits(key, (shape[0] * words_per_row,), jnp.uint32).reshape(
        shape[0], words_per_row, 1
    )
    shifts = jnp.arange(per_word, dtype=jnp.uint32) * bits
    draws = lax.shift_right_logical(
        words, jnp.broadcast_to(shifts, (*words.shape[:2], per_word))
    ) & (2**bits - 1)
    return (draws >= threshold).reshape(shape[0], -1)[:, :width].reshape(shape)


class Network(nn.Module):
    """The options of all networks, and last layers that score the classes.

    Attributes:
        num_classes: K.
        normalize_features: divide each feature vector by its Euclidean length (a zero vector stays
            zero).
        aux_head: add a second affine map of the same features, `Outputs.aux_logits`.
    """

    num_classes: int
    normalize_features: bool = False
    aux_head: bool = False

    @property
    def needs_key(self) -> bool:
        """Returns whether training draws random bits: where there is dropout."""
        return getattr(self, "dropout_rate", 0.0) > 0

    def width(self, channels: int) -> int:
        """Return the number of channels or units that a layer has here, given the paper's."""
        return channels

    def scores(
        self,
        features: Float[Array, "n d"],
        initializer: Initializer | None = None,
        weight_norm: bool = False,
        use_bias: bool = True,
    ) -> Outputs:
        """Return the last layers; the arguments are those of `Dense`."""
        if self.normalize_features:
            features = unit_length(features)
        heads = ("head", "aux_head") if self.aux_head else ("head",)
        count_operations(self, SOFTMAX_OPERATIONS * self.num_classes)
        logits = [
            Dense(self.num_classes, initializer, weight_norm, use_bias, name=name)(features)
            for name in heads
        ]
        return Outputs(logits[0], features, logits[1] if self.aux_head else None)


class ConvNetwork(Network):
    """The options of all networks with convolutions.

    Attributes:
        lowering: how the convolutions are computed, see `conv2d`.
        width_factor: factor on all channels and hidden units, for a network that is narrower than
            the paper's.
    """

    lowering: str = "auto"
    width_factor: Annotated[float, In("(0, inf)")] = 1.0

    def width(self, channels: int) -> int:
        """Multiply a number of channels or units by the factor; rounded, at least one."""
        return max(round(channels * self.width_factor), 1)


def unit_length(features: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """Divides each row by its Euclidean length; rows shorter than 1e-12 stay as they are,
    gradients are finite.
    """
    values = features.astype(statistics_dtype(features.dtype))
    squared = jnp.sum(jnp.square(values), -1, keepdims=True)
    return (values * lax.rsqrt(jnp.where(squared > 1e-24, squared, 1))).astype(features.dtype)
