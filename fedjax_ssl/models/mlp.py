"""Fully connected network."""

from collections.abc import Callable

import flax.linen as nn
from jaxtyping import Array, Float

from fedjax_ssl.checks import check_choices
from fedjax_ssl.models.layers import Dense, Dropout, Network, lecun_normal
from fedjax_ssl.models.model import Outputs
from fedjax_ssl.models.normalization import Mask, Norm

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"relu": nn.relu, "none": lambda x: x}


class MLP(Network):
    """Hidden layers of (affine, norm, activation, dropout); the feature is the last hidden layer.

    Weights LeCun normal, biases zero.

    Attributes:
        hidden: widths of the hidden layers, at least one.
        activation: "relu", or "none": a linear network, whose first layer XCLP's FEMNIST appendix takes as feature.
        norm: "none", "bn" or "gn".
        dropout_rate: after every hidden layer, 0 turns it off.
    """

    hidden: tuple[int, ...] = (128,)
    activation: str = "relu"
    norm: str = "none"
    dropout_rate: float = 0.0

    @nn.compact
    def __call__(self, inputs: Float[Array, "n ..."], train: bool, mask: Mask) -> Outputs:
        if not self.hidden or any(not isinstance(width, int) or width < 1 for width in self.hidden):
            raise ValueError(f"hidden must be one or more positive integers, got {self.hidden!r}")
        check_choices(ACTIVATIONS, activation=self.activation)
        activation = ACTIVATIONS[self.activation]
        x = inputs.reshape(inputs.shape[0], -1)
        for i, width in enumerate(self.hidden, 1):
            x = Dense(width, lecun_normal, name=f"dense{i}")(x)
            x = activation(Norm(self.norm, name=f"norm{i}")(x, train, mask))
            x = Dropout(self.dropout_rate, name=f"dropout{i}")(x, train)
        return self.scores(x, lecun_normal)
