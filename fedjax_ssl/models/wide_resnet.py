"""Wide residual network with 28 layers, the network of the semi-supervised CIFAR and SVHN literature."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_ssl.checks import check_whole_numbers
from fedjax_ssl.models.layers import Network, torch_uniform
from fedjax_ssl.models.model import Outputs
from fedjax_ssl.models.normalization import Mask, Norm
from fedjax_ssl.models.resnet import residual_conv

_BLOCKS_PER_GROUP = 4  # (28 - 4) / 6


class PreActivationBlock(nn.Module):
    """Twice norm, ReLU and 3x3 convolution around the raw input.

    Where the width changes, a 1x1 convolution of what the first ReLU gave takes the place of the input.
    """

    filters: int
    stride: int
    norm: str
    lowering: str

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Float[Array, "n h2 w2 f"]:
        active = nn.relu(Norm(self.norm, name="norm1")(inputs, train, mask))
        x = self._conv(active, 3, self.stride, "conv1")
        x = self._conv(nn.relu(Norm(self.norm, name="norm2")(x, train, mask)), 3, 1, "conv2")
        changed = self.stride > 1 or inputs.shape[-1] != self.filters
        return x + (self._conv(active, 1, self.stride, "shortcut") if changed else inputs)

    def _conv(self, inputs: Array, size: int, stride: int, name: str) -> Array:
        return residual_conv(self.filters, size, stride, self.norm, self.lowering, name)(inputs)


class WideResNet28(Network):
    """WRN-28-k: 3x3 convolution with 16 channels, three groups of four blocks with 16k, 32k and 64k, global average.

    The feature has 64k values. 1,467,610 parameters with 10 classes and k = 2, 23,401,012 with 100 classes and k = 8
    (three input channels, batch norm). Convolutions start Kaiming normal (fan-out) and have no bias where there are
    norm layers; the head's weight starts uniform on +-1/sqrt(64k), its bias at 0.

    Source: Zagoruyko and Komodakis, Wide Residual Networks, BMVC 2016, without dropout, as SemiFL uses it.

    Attributes:
        widen: the factor k on all widths.
        norm: "bn" or "none"; "gn" cannot be had, as the first norm layer has 16 channels.
        lowering: how the convolutions are computed, see `conv2d`.
    """

    widen: int = 2
    norm: str = "bn"
    lowering: str = "auto"

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Outputs:
        check_whole_numbers(widen=self.widen)
        x = residual_conv(16, 3, 1, self.norm, self.lowering, "stem")(inputs)
        for group, filters in enumerate((16, 32, 64), 1):
            for block in range(1, _BLOCKS_PER_GROUP + 1):
                stride = 2 if group > 1 and block == 1 else 1
                name = f"block{group}_{block}"
                x = PreActivationBlock(self.widen * filters, stride, self.norm, self.lowering, name=name)(
                    x, train, mask
                )
        x = nn.relu(Norm(self.norm, name="norm")(x, train, mask))
        return self.scores(jnp.mean(x, (1, 2)), torch_uniform(x.shape[-1]))
