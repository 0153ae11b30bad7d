"""The convolutional network for MNIST of learning from label proportions and from unlabelled sets."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_ssl.models.layers import Conv, Dense, Dropout, Network
from fedjax_ssl.models.model import Outputs
from fedjax_ssl.models.normalization import Mask, Norm
from fedjax_ssl.models.pooling import max_pool


class MnistCNN(Network):
    """Three 5x5 convolutions (64, 64 and 128 channels), the first two with 2x2 max-pooling, 2048 and 512 hidden units.

    A norm layer and ReLU follow every convolution and hidden layer. Grey images are shown in three equal channels.
    14,219,210 parameters for 28x28 and 10 classes, nine tenths of them in the first hidden layer. The feature is the
    last hidden layer. Weights and biases start as PyTorch's defaults.

    Source: FedUL's network for MNIST.

    Attributes:
        norm: "bn", "gn" or "none".
        dropout_rate: after each of the five hidden blocks, 0 turns it off.
        lowering: how the convolutions are computed, see `conv2d`.
    """

    norm: str = "bn"
    dropout_rate: float = 0.0
    lowering: str = "auto"

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Outputs:
        x = inputs
        if x.ndim != 4 or min(x.shape[1:3]) < 4:
            raise ValueError(
                f"model 'mnist_cnn' needs input_shape (height, width, channels) of 4x4 or more, got {x.shape[1:]}"
            )
        if x.shape[-1] == 1:
            x = jnp.broadcast_to(x, (*x.shape[:-1], 3))
        for block, filters in enumerate((64, 64, 128), 1):
            x = Conv(filters, 5, padding=2, lowering=self.lowering, name=f"conv{block}")(x)
            x = Norm(self.norm, name=f"norm{block}")(x, train, mask)
            x = max_pool(x, 2, relu=True) if block < 3 else nn.relu(x)
            x = Dropout(self.dropout_rate, name=f"dropout{block}")(x, train)
        x = x.reshape(x.shape[0], -1)
        for block, width in ((4, 2048), (5, 512)):
            x = Dense(width, name=f"dense{block - 3}")(x)
            x = nn.relu(Norm(self.norm, name=f"norm{block}")(x, train, mask))
            x = Dropout(self.dropout_rate, name=f"dropout{block}")(x, train)
        return self.scores(x)
