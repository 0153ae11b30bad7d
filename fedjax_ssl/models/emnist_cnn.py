"""The small convolutional network of FedRGD's EMNIST experiments."""

import flax.linen as nn
from jaxtyping import Array, Float

from fedjax_ssl.models.layers import Conv, Dense, Dropout, Network
from fedjax_ssl.models.model import Outputs
from fedjax_ssl.models.normalization import Mask
from fedjax_ssl.models.pooling import max_pool


class EmnistCNN(Network):
    """Two 3x3 convolutions (32 and 64 channels, no padding), 2x2 max-pooling, 128 hidden units; no norm layers.

    1,204,655 parameters for 28x28x1 and 47 classes. Dropout takes whole channels after the pooling. The feature is the
    hidden layer. Weights and biases start as PyTorch's defaults. The authors' class declares two group norms that it
    never calls.

    Source: the public code of FedRGD, arXiv 2008.11364.

    Attributes:
        dropout_rate: of the pooled channels, 0 turns it off.
        lowering: how the convolutions are computed, see `conv2d`.
    """

    dropout_rate: float = 0.25
    lowering: str = "auto"

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Outputs:
        x = inputs
        if x.ndim != 4 or min(x.shape[1:3]) < 6:
            raise ValueError(
                f"model 'emnist_cnn' needs input_shape (height, width, channels) of 6x6 or more, got {x.shape[1:]}"
            )
        x = nn.relu(Conv(32, padding="VALID", lowering=self.lowering, name="conv1")(x))
        x = max_pool(Conv(64, padding="VALID", lowering=self.lowering, name="conv2")(x), 2)
        x = nn.relu(Dropout(self.dropout_rate, whole_channels=True, name="dropout")(x, train))
        x = nn.relu(Dense(128, name="dense")(x.reshape(x.shape[0], -1)))
        return self.scores(x)
