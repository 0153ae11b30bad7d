"""Residual network with 18 layers."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_ssl.checks import check_choices
from fedjax_ssl.models.layers import Conv, Dropout, Network, kaiming_fan_out
from fedjax_ssl.models.model import Outputs
from fedjax_ssl.models.normalization import Mask, Norm
from fedjax_ssl.models.pooling import max_pool

STEMS = ("cifar", "imagenet", "imagenet_unpooled")


def residual_conv(filters: int, size: int, stride: int, norm: str, lowering: str, name: str) -> Conv:
    """A convolution of a residual network, with a bias only where there are no norm layers."""
    padding, use_bias = size // 2, norm == "none"
    return Conv(filters, size, stride, padding, kaiming_fan_out, use_bias, lowering=lowering, name=name)


class ConvNorm(nn.Module):
    """Convolution and norm layer; the convolution has a bias only where no norm layer follows."""

    filters: int
    size: int
    stride: int
    norm: str
    lowering: str

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Float[Array, "n h2 w2 f"]:
        x = residual_conv(self.filters, self.size, self.stride, self.norm, self.lowering, "conv")(inputs)
        return Norm(self.norm, name="norm")(x, train, mask)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around an identity, which a 1x1 convolution replaces where the shape changes."""

    filters: int
    stride: int
    norm: str
    lowering: str

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Float[Array, "n h2 w2 f"]:
        def layer(x: Array, size: int, stride: int, name: str) -> Array:
            return ConvNorm(self.filters, size, stride, self.norm, self.lowering, name=name)(x, train, mask)

        x = nn.relu(layer(inputs, 3, self.stride, "layer1"))
        x = layer(x, 3, 1, "layer2")
        changed = self.stride > 1 or inputs.shape[-1] != self.filters
        return nn.relu(x + (layer(inputs, 1, self.stride, "shortcut") if changed else inputs))


class ResNet18(Network):
    """ResNet-18: stem, four stages of two basic blocks with 64 to 512 channels, global average, one affine map.

    The feature has 512 values. 11,227,812 parameters with the ImageNet stem and 100 classes, 11,173,962 with the
    CIFAR stem and 10 classes (three input channels, batch norm). Convolutions start Kaiming normal (fan-out), the
    head as PyTorch's default.

    Source: He et al., Deep Residual Learning for Image Recognition, CVPR 2016.

    Attributes:
        stem: "cifar" (3x3), "imagenet" (7x7 with stride 2, then 3x3 max-pooling with stride 2) or "imagenet_unpooled"
            (without the max-pooling, as in FedUL).
        norm: "bn", "gn" or "none".
        dropout_rate: after the stem and after each stage, 0 turns it off.
        lowering: how the convolutions are computed, see `conv2d`.
    """

    stem: str = "cifar"
    norm: str = "bn"
    dropout_rate: float = 0.0
    lowering: str = "auto"

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Outputs:
        check_choices(STEMS, stem=self.stem)
        size, stride = (3, 1) if self.stem == "cifar" else (7, 2)
        x = nn.relu(ConvNorm(64, size, stride, self.norm, self.lowering, name="stem")(inputs, train, mask))
        if self.stem == "imagenet":
            x = max_pool(x, 3, stride=2, padding=1)
        x = Dropout(self.dropout_rate, name="dropout_stem")(x, train)
        for stage, filters in enumerate((64, 128, 256, 512), 1):
            for block in (1, 2):
                stride = 2 if stage > 1 and block == 1 else 1
                name = f"block{stage}_{block}"
                x = BasicBlock(filters, stride, self.norm, self.lowering, name=name)(x, train, mask)
            x = Dropout(self.dropout_rate, name=f"dropout{stage}")(x, train)
        return self.scores(jnp.mean(x, (1, 2)))
