"""Softmax regression."""

import flax.linen as nn
from jaxtyping import Array, Bool, Float

from fedjax_ssl.models.layers import Network, lecun_normal
from fedjax_ssl.models.model import Outputs


class Linear(Network):
    """One affine map of the flattened input, which is also the feature. Weights LeCun normal, bias zero."""

    @nn.compact
    def __call__(self, inputs: Float[Array, "n ..."], train: bool, mask: Bool[Array, " n"] | None) -> Outputs:
        features = inputs.reshape(inputs.shape[0], -1)
        return self.scores(features, lecun_normal)
