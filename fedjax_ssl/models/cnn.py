"""The small convolutional network of the FEMNIST benchmarks."""

import flax.linen as nn
from jaxtyping import Array, Float

from fedjax_ssl.models.layers import Conv, Dense, Dropout, Network, lecun_normal
from fedjax_ssl.models.model import Outputs
from fedjax_ssl.models.normalization import Mask, Norm
from fedjax_ssl.models.pooling import max_pool


class CNN(Network):
    """Two 3x3 convolutions (32 and 64 channels, no padding), 2x2 max-pooling, 128 hidden units.

    The shape of LEAF's successor benchmarks (TFF's and fedjax's EMNIST network): 1,206,590 parameters for 28x28x1 and
    62 classes. The feature is the hidden layer, after dropout in training. Weights LeCun normal, biases zero.

    Attributes:
        dropout: drop 1/4 of the pooled values and 1/2 of the hidden units in training.
        norm: "none", "bn" or "gn", after each convolution.
        lowering: how the convolutions are computed, see `conv2d`.
    """

    dropout: bool = True
    norm: str = "none"
    lowering: str = "auto"

    @property
    def needs_key(self) -> bool:
        return self.dropout

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Outputs:
        x = inputs
        if x.ndim != 4 or min(x.shape[1:3]) < 6:
            raise ValueError(
                f"model 'cnn' needs input_shape (height, width, channels) of 6x6 or more, got {x.shape[1:]}"
            )
        for i, filters in enumerate((32, 64), 1):
            conv = Conv(filters, padding="VALID", initializer=lecun_normal, lowering=self.lowering, name=f"conv{i}")
            x = Norm(self.norm, name=f"norm{i}")(conv(x), train, mask)
            x = nn.relu(x) if i == 1 else max_pool(x, 2, relu=True)
        x = Dropout(0.25 * self.dropout, name="dropout1")(x, train)
        x = nn.relu(Dense(128, lecun_normal, name="dense")(x.reshape(x.shape[0], -1)))
        x = Dropout(0.5 * self.dropout, name="dropout2")(x, train)
        return self.scores(x, lecun_normal)
