"""The residual networks of ProtoFSSL and FedMatch: eight or seventeen convolutions, with or
without a dense head.
"""

import math
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_ssl.models.convnets import FedMatchNetwork, bordered
from fedjax_ssl.models.layers import Conv, ConvNetwork, count_operations, lecun_normal, unit_length
from fedjax_ssl.models.model import Outputs
from fedjax_ssl.models.normalization import Mask, Norm
from fedjax_ssl.models.pooling import max_pool

FEATURES = 512
LARGE_SIDE = 96  # from here on the pools are those of 96x96 images
# One after another; the last pool takes what is left.
POOLS = (2, 2, 2)
LARGE_POOLS = (3, 2, 4)
# Keras' defaults; the momentum is the weight of the batch.
EPSILON = 1e-3
MOMENTUM = 0.01


ProtoNorm = Literal["none", "bn", "gn", "sbn"]


class Part(NamedTuple):
    """Blocks of one width."""

    filters: int
    blocks: int = 1
    residual: bool = False  # their input is added to what comes out
    pool: bool = False


EIGHT = (
    Part(64),
    Part(128, pool=True),
    Part(128, 2, residual=True),
    Part(256, pool=True),
    Part(FEATURES, pool=True),
    Part(FEATURES, 2, residual=True),
)
SEVENTEEN = (
    Part(64),
    Part(64, 2, residual=True),
    Part(64, 2, residual=True),
    Part(128, pool=True),
    Part(128, residual=True),
    Part(128, 2, residual=True),
    Part(256, pool=True),
    Part(256, residual=True),
    Part(256, 2, residual=True),
    Part(FEATURES, pool=True),
    Part(FEATURES, residual=True),
    Part(FEATURES, 2, residual=True),
)


class ConvBlock(nn.Module):
    """3x3 convolution, norm layer, ReLU, max-pooling."""

    filters: int
    norm: str
    pool: int
    lowering: str
    use_bias: bool = True

    @nn.compact
    def __call__(
        self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask
    ) -> Float[Array, "n h2 w2 f"]:
        conv = partial(Conv, self.filters, initializer=lecun_normal, use_bias=self.use_bias)
        x = conv(lowering=self.lowering, name="conv")(inputs)
        kind, momentum = ("bn", 1.0) if self.norm == "sbn" else (self.norm, MOMENTUM)
        x = Norm(kind, momentum=momentum, epsilon=EPSILON, name="norm")(x, train, mask)
        if self.pool > 1:
            x = max_pool(x, self.pool, relu=True)
            count_operations(self, math.prod(x.shape[1:]) * self.pool**2)
            return x
        return nn.relu(x)


class Trunk(nn.Module):
    """Blocks one after another, with residual branches around some, and a pool over the whole map.

    A residual branch ends in its own ReLU, none follows the sum, so that embeddings are not
    negative. The last pool takes 4x4 values for images of 32x32 and of 96x96, the sizes of the
    paper.
    """

    norm: str
    lowering: str
    layout: tuple[Part, ...] = EIGHT
    use_bias: bool = True

    @nn.compact
    def __call__(
        self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask
    ) -> Float[Array, "n d"]:
        if inputs.ndim != 4 or inputs.shape[1] != inputs.shape[2] or inputs.shape[1] < 8:
            raise ValueError(
                "the residual networks of ProtoFSSL and FedMatch need square images of 8x8 or "
                f"more, got {inputs.shape[1:]}; pad or resize them, or use model 'cnn' or 'mlp'"
            )
        pools = iter(LARGE_POOLS if inputs.shape[1] >= LARGE_SIDE else POOLS)
        x = inputs
        number = 0
        for part in self.layout:
            before = x
            for _ in range(part.blocks):
                number += 1
                pool = next(pools) if part.pool else 1
                how = self.norm, pool, self.lowering, self.use_bias
                x = ConvBlock(part.filters, *how, name=f"block{number}")(x, train, mask)
            if part.residual:
                x = before + x
                count_operations(self, math.prod(x.shape[1:]))
        count_operations(self, math.prod(x.shape[1:]))
        return max_pool(x, x.shape[1]).reshape(x.shape[0], -1)


class ProtoNetwork(ConvNetwork):
    """A trunk and a dense head, which starts Glorot uniform, or a trunk alone: `Outputs.logits`
    then has no column.

    Attributes:
        norm: "none", "bn", "gn" or "sbn", batch norm whose running statistics are those of the last
            batch.
    """

    norm: ProtoNorm = "none"

    has_class_scores: ClassVar[bool] = True  # whether there is a head
    layout: ClassVar[tuple[Part, ...]] = EIGHT

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Outputs:
        if self.aux_head and not self.has_class_scores:
            raise ValueError(
                f"aux_head=True, but model {type(self).__name__.lower()!r} has no head at all; "
                "use model 'resnet9' or 'proto_resnet18'"
            )
        layout = tuple(part._replace(filters=self.width(part.filters)) for part in self.layout)
        trunk = Trunk(self.norm, self.lowering, layout)
        nn.share_scope(self, trunk)
        features = trunk(inputs, train, mask)
        if self.has_class_scores:
            return self.scores(features, nn.initializers.glorot_uniform())
        features = unit_length(features) if self.normalize_features else features
        return Outputs(jnp.zeros((features.shape[0], 0), features.dtype), features, None)


class ResNet8(ProtoNetwork):
    """The embedding network of ProtoFSSL: 6,565,760 parameters, 512 features, no class scores.

    For methods that score classes by the distance to prototypes; no layer depends on `num_classes`,
    and `aux_head` cannot be had. Convolutions start LeCun normal (truncated), biases zero. Batch
    norm has epsilon 1e-3 and running statistics in which a batch weighs 0.01, as Keras has them.

    Images of 8x8 to 95x95 are pooled by 2, 2, 2, larger ones by 3, 2, 4; the last pool always takes
    the whole map.

    Source: Kim et al., ProtoFSSL, arXiv 2205.13921, appendix, and its public code.
    """

    has_class_scores: ClassVar[bool] = False


class ResNet9(ProtoNetwork):
    """`ResNet8` and a dense head: 6,570,890 parameters for ten classes; the network of
    ProtoFSSL's baselines.
    """


class ResNet17(ProtoNetwork):
    """The large embedding network of ProtoFSSL's Table 4: 10,991,104 parameters, otherwise as
    `ResNet8`.
    """

    has_class_scores: ClassVar[bool] = False
    layout: ClassVar[tuple[Part, ...]] = SEVENTEEN


class ProtoResNet18(ProtoNetwork):
    """`ResNet17` and a dense head: 10,996,234 parameters for ten classes; not torchvision's
    ResNet-18.
    """

    layout: ClassVar[tuple[Part, ...]] = SEVENTEEN


class FedMatchResNet9(FedMatchNetwork):
    """`ResNet9` without biases: 6,568,640 parameters for images of 32x32x3 and ten classes."""

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Outputs:
        layout = tuple(part._replace(filters=self.width(part.filters)) for part in EIGHT)
        trunk = Trunk("none", self.lowering, layout, use_bias=False)
        nn.share_scope(self, trunk)
        features = trunk(bordered(inputs, self.pad, self.colours), train, mask)
        return self.scores(features, lecun_normal, use_bias=False)
