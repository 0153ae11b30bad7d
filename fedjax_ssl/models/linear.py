"""Softmax regression."""

import flax.linen as nn
from jaxtyping import Array, Float

from fedjax_ssl.models.layers import Network, lecun_normal
from fedjax_ssl.models.model import Outputs
from fedjax_ssl.models.normalization import Mask


class Linear(Network):
    """One affine map of the flattened input, which is also the feature. Weights LeCun normal, bias zero."""

    @nn.compact
    def __call__(self, inputs: Float[Array, "n ..."], train: bool, mask: Mask) -> Outputs:
        features = inputs.reshape(inputs.shape[0], -1)
        return self.scores(features, lecun_normal)
