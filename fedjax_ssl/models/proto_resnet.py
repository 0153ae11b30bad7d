"""The residual networks of ProtoFSSL: eight convolutions, with or without a dense head."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_ssl.checks import check_choices
from fedjax_ssl.models.layers import Conv, Network, lecun_normal, unit_length
from fedjax_ssl.models.model import Outputs
from fedjax_ssl.models.normalization import NORMS, Mask, Norm
from fedjax_ssl.models.pooling import max_pool

FEATURES = 512
LARGE_SIDE = 96  # from here on the pools are those of 96x96 images
POOLS, LARGE_POOLS = (2, 2, 2), (3, 2, 4)  # after conv2, conv5 and conv6; the last pool takes what is left
EPSILON, MOMENTUM = 1e-3, 0.01  # Keras' defaults; the momentum is the weight of the batch


class ConvBlock(nn.Module):
    """3x3 convolution, norm layer, ReLU, max-pooling."""

    filters: int
    norm: str
    pool: int
    lowering: str
    use_bias: bool = True

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Float[Array, "n h2 w2 f"]:
        bias, lowering = self.use_bias, self.lowering
        x = Conv(self.filters, initializer=lecun_normal, use_bias=bias, lowering=lowering, name="conv")(inputs)
        kind, momentum = ("bn", 1.0) if self.norm == "sbn" else (self.norm, MOMENTUM)
        x = Norm(kind, momentum=momentum, epsilon=EPSILON, name="norm")(x, train, mask)
        # ReLU after the pool is the same function and works on fewer values.
        return nn.relu(max_pool(x, self.pool) if self.pool > 1 else x)


class Trunk(nn.Module):
    """Conv1; Conv2 and pool; x + Conv4(Conv3(x)); Conv5 and pool; Conv6 and pool; x + Conv8(Conv7(x)); pool.

    A residual branch ends in its own ReLU, none follows the sum, so that embeddings are not negative. The last pool is
    the maximum over the whole map: 4x4 for images of 32x32 and of 96x96, the sizes of the paper.
    """

    norm: str
    lowering: str
    use_bias: bool = True
    width: float = 1.0  # of 64 to 512 channels, this share

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Float[Array, "n d"]:
        if inputs.ndim != 4 or inputs.shape[1] != inputs.shape[2] or inputs.shape[1] < 8:
            raise ValueError(
                f"models 'resnet8' and 'resnet9' need square images of 8x8 or more, got {inputs.shape[1:]}; pad or "
                "resize them, or use model 'cnn' or 'mlp'"
            )
        check_choices((*NORMS, "sbn"), norm=self.norm)
        pools = LARGE_POOLS if inputs.shape[1] >= LARGE_SIDE else POOLS

        def block(x: Array, number: int, filters: int, pool: int = 1) -> Array:
            channels = scaled(filters, self.width)
            layer = ConvBlock(channels, self.norm, pool, self.lowering, self.use_bias, name=f"block{number}")
            return layer(x, train, mask)

        x = block(block(inputs, 1, 64), 2, 128, pools[0])
        x = x + block(block(x, 3, 128), 4, 128)
        x = block(block(x, 5, 256, pools[1]), 6, FEATURES, pools[2])
        x = x + block(block(x, 7, FEATURES), 8, FEATURES)
        return max_pool(x, x.shape[1]).reshape(x.shape[0], -1)


def scaled(channels: int, width: float) -> int:
    """So many channels times a factor, at least one."""
    return max(round(channels * width), 1)


class ResNet8(Network):
    """The embedding network of ProtoFSSL: 6,565,760 parameters, 512 features, no class scores.

    For methods that score classes by the distance to prototypes; `Outputs.logits` has no column, no layer depends on
    `num_classes`, and `aux_head` cannot be had. Convolutions start LeCun normal (truncated), biases zero. Batch norm
    has epsilon 1e-3 and running statistics in which a batch weighs 0.01, as Keras has them.

    Images of 8x8 to 95x95 are pooled by 2, 2, 2, larger ones by 3, 2, 4; the last pool always takes the whole map.

    Source: Kim et al., ProtoFSSL, arXiv 2205.13921, appendix, and its public code.
    """

    norm: str = "none"  # or "bn", "gn" or "sbn", batch norm whose running statistics are those of the last batch
    lowering: str = "auto"  # how the convolutions are computed, see `conv2d`

    has_class_scores = False

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Outputs:
        if self.aux_head:
            raise ValueError("aux_head=True, but model 'resnet8' has no head at all; use model 'resnet9'")
        trunk = Trunk(self.norm, self.lowering)
        nn.share_scope(self, trunk)
        features = trunk(inputs, train, mask)
        if self.normalize_features:
            features = unit_length(features)
        return Outputs(jnp.zeros((features.shape[0], 0), features.dtype), features, None)


class ResNet9(Network):
    """`ResNet8` and a dense head: 6,570,890 parameters for ten classes; the network of ProtoFSSL's baselines.

    The head starts Glorot uniform.
    """

    norm: str = "none"  # or "bn", "gn" or "sbn", batch norm whose running statistics are those of the last batch
    lowering: str = "auto"  # how the convolutions are computed, see `conv2d`

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Outputs:
        trunk = Trunk(self.norm, self.lowering)
        nn.share_scope(self, trunk)
        return self.scores(trunk(inputs, train, mask), nn.initializers.glorot_uniform())
