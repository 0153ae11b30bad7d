"""EfficientNet-B0: inverted residual blocks with depthwise convolutions and
squeeze-and-excitation.
"""

import math
from typing import Annotated, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_ssl.checks import Whole
from fedjax_ssl.models.convolution import depthwise_conv2d
from fedjax_ssl.models.layers import (
    Conv,
    ConvNetwork,
    Dropout,
    Kernel,
    Rate,
    count_operations,
    kaiming_fan_out,
    keep_mask,
)
from fedjax_ssl.models.model import Outputs
from fedjax_ssl.models.normalization import Mask, Norm
from fedjax_ssl.models.residual import ConvNorm


class StageShape(NamedTuple):
    """Blocks of one width; the first of them has the stride."""

    expansion: int  # channels inside a block per channel of its input
    size: int  # side of the depthwise kernels
    stride: int
    filters: int
    blocks: int


STEM_FILTERS = 32
LAST_FILTERS = 1280
STAGES = (
    StageShape(1, 3, 1, 16, 1),
    StageShape(6, 3, 2, 24, 2),
    StageShape(6, 5, 2, 40, 2),
    StageShape(6, 3, 2, 80, 3),
    StageShape(6, 5, 1, 112, 3),
    StageShape(6, 5, 2, 192, 4),
    StageShape(6, 3, 1, 320, 1),
)


class DepthwiseNorm(nn.Module):
    """One kernel per channel, then batch norm."""

    size: int
    stride: int
    lowering: str

    @nn.compact
    def __call__(
        self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask
    ) -> Float[Array, "n h2 w2 c"]:
        shape = (self.size, self.size, 1, inputs.shape[-1])
        kernel, _ = Kernel(shape, kaiming_fan_out, use_bias=False, weight_norm=False, name="conv")()
        x = depthwise_conv2d(
            inputs, kernel, stride=self.stride, padding=self.size // 2, lowering=self.lowering
        )
        count_operations(self, 2 * self.size**2 * math.prod(x.shape[1:]))
        return Norm("bn", name="norm")(x, train, mask)


class StochasticDepth(nn.Module):
    """Replaces whole examples by zero with probability `rate` in training and scales the rest to
    keep the mean.

    Source: Huang et al., Deep Networks with Stochastic Depth, ECCV 2016.
    """

    rate: float

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool) -> Float[Array, "n h w c"]:
        if not train or self.rate == 0:
            return inputs
        keep = keep_mask(self.make_rng("dropout"), (inputs.shape[0], 1, 1, 1), self.rate)
        return jnp.where(keep, inputs / (1 - self.rate), 0)


class InvertedResidual(nn.Module):
    """Expand to more channels, filter each of them, reweight them, project; around an identity
    where shapes agree.
    """

    stage: StageShape  # the widths and the kernel side
    stride: int  # step of the depthwise convolution
    drop_rate: float  # rate of stochastic depth
    lowering: str  # see `conv2d`

    @nn.compact
    def __call__(
        self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask
    ) -> Float[Array, "n h2 w2 f"]:
        channels = inputs.shape[-1]

        def point(filters: int, name: str) -> ConvNorm:
            return ConvNorm(filters, 1, 1, "bn", self.lowering, name=name)

        x = inputs
        if self.stage.expansion > 1:
            x = nn.silu(point(channels * self.stage.expansion, "expand")(x, train, mask))
        depthwise = DepthwiseNorm(self.stage.size, self.stride, self.lowering, name="depthwise")
        x = nn.silu(depthwise(x, train, mask))
        x = x * self._channel_weights(x, max(channels // 4, 1))
        x = point(self.stage.filters, "project")(x, train, mask)
        if self.stride > 1 or channels != self.stage.filters:
            return x
        return inputs + StochasticDepth(self.drop_rate, name="drop")(x, train)

    def _channel_weights(self, x: jax.Array, squeezed: int) -> jax.Array:
        """Squeeze-and-excitation (Hu et al., CVPR 2018): a number in (0, 1) per example and
        channel.
        """
        pooled = jnp.mean(x, (1, 2), keepdims=True)
        squeeze, excite = (
            Conv(filters, 1, initializer=kaiming_fan_out, lowering=self.lowering, name=name)
            for filters, name in ((squeezed, "squeeze"), (x.shape[-1], "excite"))
        )
        return nn.sigmoid(excite(nn.silu(squeeze(pooled))))


class EfficientNetB0(ConvNetwork):
    """EfficientNet-B0: 16 inverted residual blocks in seven stages, 1x1 convolution, global
    average, one affine map.

    The feature has 1280 values. 5,288,548 parameters for three input channels and 1000 classes,
    4,007,548 without the head. Layers, paddings and batch norm (epsilon 1e-5, momentum 0.1) are
    torchvision's `efficientnet_b0`, whose weights it can start from. Convolutions start Kaiming
    normal (fan-out), the head as PyTorch's default.

    Source: Tan and Le, EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks,
    ICML 2019.

    Attributes:
        weights: path of an `.npz` file with the arrays of torchvision's state dict to start from,
            see `pretrained.pretrained`; None or "" starts at random.
        dropout_rate: rate before the head, 0 turns it off.
        stochastic_depth: rate that the blocks' rates rise to, 0 turns it off.
        crop: side of the middle part of an image that is looked at; None: all of it. With a shift
            of training images it is a random crop.
    """

    weights: str | None = None
    dropout_rate: Rate = 0.2
    stochastic_depth: Rate = 0.2
    crop: Annotated[int | None, Whole(1)] = None

    @property
    def needs_key(self) -> bool:
        return self.dropout_rate > 0 or self.stochastic_depth > 0

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Outputs:
        if self.crop is not None:
            top, left = ((side - self.crop) // 2 for side in inputs.shape[1:3])
            if min(top, left) < 0:
                raise ValueError(
                    f"crop is {self.crop}; images are {inputs.shape[1]} x {inputs.shape[2]}"
                )
            inputs = inputs[:, top : top + self.crop, left : left + self.crop]
        stem = ConvNorm(self.width(STEM_FILTERS), 3, 2, "bn", self.lowering, name="stem")
        x = nn.silu(stem(inputs, train, mask))
        total = sum(stage.blocks for stage in STAGES)
        done = 0
        for i, stage in enumerate(STAGES, 1):
            stage = stage._replace(filters=self.width(stage.filters))
            for block in range(1, stage.blocks + 1):
                stride = stage.stride if block == 1 else 1
                drop_rate = self.stochastic_depth * done / total
                name = f"block{i}_{block}"
                block_of = InvertedResidual(stage, stride, drop_rate, self.lowering, name=name)
                x = block_of(x, train, mask)
                done += 1
        last = ConvNorm(self.width(LAST_FILTERS), 1, 1, "bn", self.lowering, name="last")
        x = nn.silu(last(x, train, mask))
        x = Dropout(self.dropout_rate, name="dropout")(jnp.mean(x, (1, 2)), train)
        return self.scores(x)
