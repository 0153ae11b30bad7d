"""The networks of FedMatch: convolutions and dense layers without bias and without norm layers.

Weights start truncated normal with variance 1 / fan-in.

Source: Jeong et al., FedMatch, ICLR 2021, arXiv 2006.12097, appendix A, and the authors' code.
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_ssl.checks import check_numbers, check_whole_numbers
from fedjax_ssl.models.layers import Conv, Dense, Network, lecun_normal
from fedjax_ssl.models.model import Outputs
from fedjax_ssl.models.normalization import Mask
from fedjax_ssl.models.pooling import max_pool
from fedjax_ssl.models.proto_resnet import EIGHT, Trunk


def scaled(channels: int, width: float) -> int:
    """A number of channels times a factor, rounded, at least one."""
    return max(round(channels * width), 1)


def prepared(inputs: Float[Array, "n h w c"], pad: int, colours: bool) -> Float[Array, "n h2 w2 c2"]:
    """Images with a border of zeros, and grey ones in three equal channels if wished.

    Args:
        inputs: images.
        pad: width of the border on each side.
        colours: show one channel in three.

    Raises:
        ValueError: not images, or images of another number of channels than 1 where three are to be made of it.
    """
    check_whole_numbers(0, pad=pad)
    if inputs.ndim != 4 or (colours and inputs.shape[-1] != 1):
        wanted = "(height, width, 1) with colours=True" if colours else "(height, width, channels)"
        raise ValueError(f"FedMatch's networks need input_shape {wanted}, got {inputs.shape[1:]}")
    padded = jnp.pad(inputs, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    return jnp.repeat(padded, 3, axis=-1) if colours else padded


class FedMatchResNet9(Network):
    """`ResNet9` without biases: 6,568,640 parameters for images of 32x32x3 and ten classes.

    Attributes:
        width_factor: of 64 to 512 channels, this share.
        pad: border of zeros, for 28x28 images 2.
        colours: grey images in three equal channels.
        lowering: how the convolutions are computed, see `conv2d`.
    """

    width_factor: float = 1.0
    pad: int = 0
    colours: bool = False
    lowering: str = "auto"

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Outputs:
        check_numbers("(0, inf)", width_factor=self.width_factor)
        layout = tuple(part._replace(filters=scaled(part.filters, self.width_factor)) for part in EIGHT)
        trunk = Trunk("none", self.lowering, layout, use_bias=False)
        nn.share_scope(self, trunk)
        features = trunk(prepared(inputs, self.pad, self.colours), train, mask)
        return self.scores(features, lecun_normal, use_bias=False)


class FedMatchAlexNet(Network):
    """Convolutions of 64 (4x4), 128 (3x3), 256 (2x2) channels, 2x2 max-pooling after each, two hidden layers of 2048.

    No padding; 6,519,808 parameters for images of 32x32x3 and ten classes. The feature is the last hidden layer.

    Attributes:
        width_factor: of all channels and hidden units, this share.
        pad: border of zeros, for 28x28 images 2.
        colours: grey images in three equal channels.
        lowering: how the convolutions are computed, see `conv2d`.
    """

    width_factor: float = 1.0
    pad: int = 0
    colours: bool = False
    lowering: str = "auto"

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Outputs:
        check_numbers("(0, inf)", width_factor=self.width_factor)
        x = prepared(inputs, self.pad, self.colours)
        if min(x.shape[1:3]) < 19:
            raise ValueError(f"model 'fedmatch_alexnet' needs images of 19x19 or more, got {x.shape[1:]}; use pad")
        for layer, (filters, size) in enumerate(((64, 4), (128, 3), (256, 2)), 1):
            channels, given = scaled(filters, self.width_factor), (1, "VALID", lecun_normal, False)
            x = Conv(channels, size, *given, lowering=self.lowering, name=f"conv{layer}")(x)
            x = max_pool(x, 2, relu=True)
        x = x.reshape(x.shape[0], -1)
        for layer in (1, 2):
            x = nn.relu(Dense(scaled(2048, self.width_factor), lecun_normal, use_bias=False, name=f"dense{layer}")(x))
        return self.scores(x, lecun_normal, use_bias=False)
