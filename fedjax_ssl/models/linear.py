"""Softmax regression."""

import flax.linen as nn
from jaxtyping import Array, Bool, Float

from fedjax_ssl.models.layers import Head, lecun_normal
from fedjax_ssl.models.model import Outputs


class Linear(nn.Module):
    """One affine map of the flattened input, which is also the feature. Weights LeCun normal, bias zero.

    Attributes:
        num_classes: K.
        normalize_features: scale each flattened input to unit length.
        aux_head: add a second affine map.
    """

    num_classes: int
    normalize_features: bool = False
    aux_head: bool = False

    @nn.compact
    def __call__(self, inputs: Float[Array, "n ..."], train: bool, mask: Bool[Array, " n"] | None) -> Outputs:
        features = inputs.reshape(inputs.shape[0], -1)
        head = Head(self.num_classes, self.normalize_features, self.aux_head, lecun_normal)
        nn.share_scope(self, head)
        return head(features)
