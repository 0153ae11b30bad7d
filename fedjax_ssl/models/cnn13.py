"""The 13-layer network of the semi-supervised CIFAR literature, weight-normalised."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_ssl.models.layers import Conv, Dropout, Network
from fedjax_ssl.models.model import Outputs
from fedjax_ssl.models.normalization import Mask, Norm
from fedjax_ssl.models.pooling import max_pool

# (filters, kernel side, padding) of the convolutions between two pools
_STAGES = (
    ((128, 3, 1), (128, 3, 1), (128, 3, 1)),
    ((256, 3, 1), (256, 3, 1), (256, 3, 1)),
    ((512, 3, 0), (256, 1, 0), (128, 1, 0)),
)


class CNN13(Network):
    """Nine convolutions in three stages, two 2x2 max-pools with dropout, global average, one affine map.

    Each convolution has a bias and weight normalisation and is followed by the norm layer and LeakyReLU(0.1);
    the heads are weight-normalised too. The feature has 128 values. 3,125,908 parameters for 32x32x3 and 10 classes
    with batch norm. Images of 12x12 or more. Weights and biases start as PyTorch's defaults, lengths g as ||v||.

    Source: XCLP section 5, "FedAvg+XCLP", CIFAR network.

    Attributes:
        norm: "bn", "gn" or "none".
        dropout_rate: after each max-pool, 0 turns it off.
        lowering: how the convolutions are computed, see `conv2d`.
    """

    norm: str = "bn"
    dropout_rate: float = 0.5
    normalize_features: bool = True
    lowering: str = "auto"

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Outputs:
        x = inputs
        for stage, layers in enumerate(_STAGES, 1):
            if stage > 1:
                x = max_pool(x, 2)
                x = Dropout(self.dropout_rate, name=f"dropout{stage - 1}")(x, train)
            for i, (filters, size, padding) in enumerate(layers, 1):
                name = f"conv{stage}_{i}"
                x = Conv(filters, size, 1, padding, weight_norm=True, lowering=self.lowering, name=name)(x)
                x = nn.leaky_relu(Norm(self.norm, name=f"norm{stage}_{i}")(x, train, mask), 0.1)
        return self.scores(jnp.mean(x, (1, 2)), weight_norm=True)
