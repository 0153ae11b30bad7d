"""Residual networks: ResNet-18, the small one of three stages, and the wide one of
the semi-supervised literature.
"""

from typing import Annotated, Literal

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_ssl.checks import Whole
from fedjax_ssl.models.layers import (
    Conv,
    ConvNetwork,
    Dropout,
    Rate,
    kaiming_fan_out,
    torch_uniform,
)
from fedjax_ssl.models.model import Outputs
from fedjax_ssl.models.normalization import Mask, Norm, NormName
from fedjax_ssl.models.pooling import max_pool

Widen = Annotated[int, Whole(1, 1000)]
# blocks of each stage
RESNET18_BLOCKS = (2, 2, 2, 2)


def residual_conv(
    filters: int,
    size: int,
    stride: int,
    norm: str,
    lowering: str,
    name: str,
) -> Conv:
    """Make a convolution of a residual network, with a bias only where there are no norm layers."""
    use_bias = norm == "none"
    return Conv(
        filters, size, stride, size // 2, kaiming_fan_out, use_bias, lowering=lowering, name=name
    )


class ConvNorm(nn.Module):
    """Convolution and norm layer; the convolution has a bias only where no norm layer follows."""

    filters: int
    size: int
    stride: int
    norm: str
    lowering: str

    @nn.compact
    def __call__(
        self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask
    ) -> Float[Array, "n h2 w2 f"]:
        how = self.norm, self.lowering, "conv"
        x = residual_conv(self.filters, self.size, self.stride, *how)(inputs)
        return Norm(self.norm, name="norm")(x, train, mask)


class Block(nn.Module):
    """Base of residual blocks; the input is added to the output, where the shape stays."""

    filters: int
    stride: int
    norm: str
    lowering: str

    def keeps_shape(self, inputs: Array) -> bool:
        """Return whether the output can be added to the input."""
        return self.stride == 1 and inputs.shape[-1] == self.filters


class BasicBlock(Block):
    """Two 3x3 convolutions around an identity, which a 1x1 convolution replaces where the shape
    changes.
    """

    @nn.compact
    def __call__(
        self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask
    ) -> Float[Array, "n h2 w2 f"]:
        def layer(x: Array, size: int, stride: int, name: str) -> Array:
            return ConvNorm(self.filters, size, stride, self.norm, self.lowering, name=name)(
                x, train, mask
            )

        x = nn.relu(layer(inputs, 3, self.stride, "layer1"))
        x = layer(x, 3, 1, "layer2")
        if not self.keeps_shape(inputs):
            inputs = layer(inputs, 1, self.stride, "shortcut")
        return nn.relu(x + inputs)


class ResNet18(ConvNetwork):
    """ResNet-18: stem, four stages of two basic blocks with 64 to 512 channels, global average, one
    affine map.

    The feature has 512 values. 11,227,812 parameters with the ImageNet stem and 100 classes,
    11,173,962 with the CIFAR stem and 10 classes (three input channels, batch norm). Convolutions
    start Kaiming normal (fan-out), the head as PyTorch's default.

    Source: He et al., Deep Residual Learning for Image Recognition, CVPR 2016.

    Attributes:
        stem: "cifar" (3x3), "imagenet" (7x7 with stride 2, then 3x3 max-pooling with stride 2) or
            "imagenet_unpooled" (without the max-pooling, as in FedUL).
        weights: path of a file with the arrays of torchvision's or timm's state dict to start from,
            see `pretrained.pretrained`; takes an ImageNet stem and batch norm. None or "" starts at
            random.
        norm: "bn", "gn" or "none".
        dropout_rate: rate after the stem and after each stage, 0 turns it off.
    """

    stem: Literal["cifar", "imagenet", "imagenet_unpooled"] = "cifar"
    weights: str | None = None
    norm: NormName = "bn"
    dropout_rate: Rate = 0.0

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Outputs:
        size, stride = (3, 1) if self.stem == "cifar" else (7, 2)
        x = nn.relu(
            ConvNorm(self.width(64), size, stride, self.norm, self.lowering, name="stem")(
                inputs, train, mask
            )
        )
        if self.stem == "imagenet":
            x = max_pool(x, 3, stride=2, padding=1)
        x = Dropout(self.dropout_rate, name="dropout_stem")(x, train)
        for stage, (filters, count) in enumerate(
            zip((64, 128, 256, 512), RESNET18_BLOCKS, strict=True), 1
        ):
            for number in range(1, count + 1):
                stride = 2 if stage > 1 and number == 1 else 1
                name = f"block{stage}_{number}"
                block = BasicBlock(self.width(filters), stride, self.norm, self.lowering, name=name)
                x = block(x, train, mask)
            x = Dropout(self.dropout_rate, name=f"dropout{stage}")(x, train)
        return self.scores(jnp.mean(x, (1, 2)))


class ThreeStageResNet8(ConvNetwork):
    """ResNet-8: a 3x3 convolution, three basic blocks with 16k, 32k and 64k channels, global
    average, one affine map.

    The first convolution has 16k channels. The feature has 64k values. 1,227,594 parameters with 10
    classes and k = 4, 1,250,724 with 100 classes (three input channels, batch norm). Convolutions
    start Kaiming normal (fan-out), the head as PyTorch's default. Where the shape changes, a 1x1
    convolution and a norm layer take the place of the identity.

    Source: He et al., Deep Residual Learning for Image Recognition, CVPR 2016, section 4.2, with n
    = 1 and k times the width, as the code of SAGE has it.

    Attributes:
        widen: the factor k on all widths.
        norm: "bn" or "none"; "gn" where all channels divide by 32.
    """

    widen: Widen = 4
    norm: NormName = "bn"

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Outputs:
        x = ConvNorm(self.width(16 * self.widen), 3, 1, self.norm, self.lowering, name="stem")(
            inputs, train, mask
        )
        x = nn.relu(x)
        for stage, filters in enumerate((16, 32, 64), 1):
            width = self.width(self.widen * filters)
            stride = 1 if stage == 1 else 2
            block = BasicBlock(width, stride, self.norm, self.lowering, name=f"block{stage}")
            x = block(x, train, mask)
        return self.scores(jnp.mean(x, (1, 2)))


_BLOCKS_PER_GROUP = 4  # (28 - 4) / 6


class PreActivationBlock(Block):
    """Twice norm, ReLU and 3x3 convolution around the raw input.

    Where the width changes, a 1x1 convolution of what the first ReLU gave takes the place of the
    input.
    """

    @nn.compact
    def __call__(
        self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask
    ) -> Float[Array, "n h2 w2 f"]:
        active = nn.relu(Norm(self.norm, name="norm1")(inputs, train, mask))
        x = self._conv(active, 3, self.stride, "conv1")
        x = self._conv(nn.relu(Norm(self.norm, name="norm2")(x, train, mask)), 3, 1, "conv2")
        return x + (
            inputs if self.keeps_shape(inputs) else self._conv(active, 1, self.stride, "shortcut")
        )

    def _conv(self, inputs: Array, size: int, stride: int, name: str) -> Array:
        return residual_conv(self.filters, size, stride, self.norm, self.lowering, name)(inputs)


class WideResNet28(ConvNetwork):
    """WRN-28-k: 3x3 convolution with 16 channels, three groups of four blocks with 16k, 32k and
    64k, global average.

    The feature has 64k values. 1,467,610 parameters with 10 classes and k = 2, 23,401,012 with 100
    classes and k = 8 (three input channels, batch norm). Convolutions start Kaiming normal
    (fan-out) and have no bias where there are norm layers; the head's weight starts uniform on
    +-1/sqrt(64k), its bias at 0.

    Source: Zagoruyko and Komodakis, Wide Residual Networks, BMVC 2016, without dropout, as SemiFL
    uses it.

    Attributes:
        widen: the factor k on all widths.
        norm: "bn" or "none"; "gn" cannot be had, as the first norm layer has 16 channels.
    """

    widen: Widen = 2
    norm: NormName = "bn"

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Outputs:
        x = residual_conv(self.width(16), 3, 1, self.norm, self.lowering, "stem")(inputs)
        for group, filters in enumerate((16, 32, 64), 1):
            for block in range(1, _BLOCKS_PER_GROUP + 1):
                stride = 2 if group > 1 and block == 1 else 1
                name = f"block{group}_{block}"
                width = self.width(self.widen * filters)
                x = PreActivationBlock(width, stride, self.norm, self.lowering, name=name)(
                    x, train, mask
                )
        x = nn.relu(Norm(self.norm, name="norm")(x, train, mask))
        return self.scores(jnp.mean(x, (1, 2)), torch_uniform(x.shape[-1]))
