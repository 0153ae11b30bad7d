"""Networks without branches, as tables of layers: the dense ones, and the small convolutional
ones of the papers.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_ssl.checks import Whole
from fedjax_ssl.models.layers import (
    Conv,
    ConvNetwork,
    Count,
    Dense,
    Dropout,
    Network,
    Rate,
    lecun_normal,
    unit_length,
)
from fedjax_ssl.models.model import Outputs
from fedjax_ssl.models.normalization import Mask, Norm, NormName
from fedjax_ssl.models.pooling import max_pool


class Layer(NamedTuple):
    """A convolution or a dense layer, and what follows it: norm, activation, max-pooling,
    dropout.
    """

    name: str
    width: int  # filters or units
    size: int = 0  # side of the kernel; 0: a dense layer
    padding: int | str = "VALID"
    norm: str = ""  # name of the norm layer; "": there is none
    pool: int = 1  # side of the windows
    dropout: str = ""  # name of the dropout; "": there is none
    rate: float = 1.0  # factor on the network's rate of dropout
    whole_channels: bool = False  # whether dropout takes a channel of an image as a whole


def run_layers(
    network: Network,
    table: tuple[Layer, ...],
    x: Float[Array, "n ..."],
    train: bool,
    mask: Mask,
    activation: Callable[[Array], Array] = nn.relu,
    **weights: Any,
) -> Float[Array, "n ..."]:
    """Run the layers of a table one after another; called by a network's `__call__`, whose layers
    they become.

    Args:
        network: has the kind of the norm layers, the rate of the dropouts before their factors, how
            convolutions are computed, and what widths of the table become, where it has any.
        table: the layers.
        x: examples; images for a convolution.
        train: see `Model.apply`.
        mask: see `Model.apply`.
        activation: follows every norm layer, or the layer without one.
        **weights: fields of all `Conv` and `Dense`: `initializer`, `use_bias`, `weight_norm`.
    """
    norm = getattr(network, "norm", "none")
    dropout_rate = getattr(network, "dropout_rate", 0.0)
    for layer in table:
        width = network.width(layer.width)
        if layer.size:
            kernel = {"size": layer.size, "padding": layer.padding, "lowering": network.lowering}
            x = Conv(width, **kernel, name=layer.name, **weights)(x)
        else:
            x = Dense(width, name=layer.name, **weights)(x.reshape(x.shape[0], -1))
        if layer.norm:
            x = Norm(norm, name=layer.norm)(x, train, mask)
        if layer.pool > 1 and activation is nn.relu:
            x = max_pool(x, layer.pool, relu=True)
        else:
            x = activation(x)
            x = max_pool(x, layer.pool) if layer.pool > 1 else x
        if layer.dropout:
            rate = layer.rate * dropout_rate
            x = Dropout(rate, layer.whole_channels, name=layer.dropout)(x, train)
    return x


def check_images(model: str, inputs: Array, least: int, hint: str = "") -> None:
    """Raise ValueError for what is no image, or one with a side below `least`."""
    if inputs.ndim != 4 or min(inputs.shape[1:3]) < least:
        raise ValueError(
            f"model {model!r} needs images of {least}x{least} or more, input_shape (height, "
            f"width, channels), got {inputs.shape[1:]}{hint}"
        )


class Linear(Network):
    """One affine map of the flattened input, which is also the feature. Bias zero.

    Attributes:
        start: of the weights, "lecun_normal" or "zero". Where few labels say little of the inputs,
            what is random at the start stays in the scores.
    """

    start: Literal["lecun_normal", "zero"] = "lecun_normal"

    @nn.compact
    def __call__(self, inputs: Float[Array, "n ..."], train: bool, mask: Mask) -> Outputs:
        start = nn.initializers.zeros if self.start == "zero" else lecun_normal
        return self.scores(inputs.reshape(inputs.shape[0], -1), start)


class Logistic(Network):
    """Logistic regression of two classes: one affine map z of the flattened input, with the scores
    0 and z.

    Cross-entropy is then that of a sigmoid on z, in its gradients too. Weights and bias uniform in
    +-1/sqrt(inputs), as PyTorch's linear layer starts.
    """

    @nn.compact
    def __call__(self, inputs: Float[Array, "n ..."], train: bool, mask: Mask) -> Outputs:
        if self.num_classes != 2 or self.aux_head:
            raise ValueError(
                f"model 'logistic' tells 2 classes apart, with one head, not {self.num_classes}; "
                "use linear"
            )
        features = inputs.reshape(inputs.shape[0], -1)
        features = unit_length(features) if self.normalize_features else features
        bound = features.shape[-1] ** -0.5
        start = partial(
            jax.random.uniform, dtype=jnp.result_type(float), minval=-bound, maxval=bound
        )
        score = features @ self.param("kernel", start, (features.shape[-1], 1)) + self.param(
            "bias", start, (1,)
        )
        return Outputs(jnp.concatenate([jnp.zeros_like(score), score], axis=1), features, None)


class MLP(Network):
    """Hidden layers of (affine, norm, activation, dropout); the feature is the last hidden layer.

    Weights LeCun normal, biases zero.

    Attributes:
        hidden: widths of the hidden layers, at least one.
        activation: "relu", or "none": a linear network, whose first layer XCLP's FEMNIST appendix
            takes as feature.
        norm: "none", "bn" or "gn".
        dropout_rate: rate after every hidden layer, 0 turns it off.
    """

    hidden: tuple[Count, ...] = (128,)
    activation: Literal["relu", "none"] = "relu"
    norm: NormName = "none"
    dropout_rate: Rate = 0.0

    @nn.compact
    def __call__(self, inputs: Float[Array, "n ..."], train: bool, mask: Mask) -> Outputs:
        if not self.hidden:
            raise ValueError("hidden is (); it must be one or more positive integers")
        table = tuple(
            Layer(f"dense{i}", width, norm=f"norm{i}", dropout=f"dropout{i}")
            for i, width in enumerate(self.hidden, 1)
        )
        activation = nn.relu if self.activation == "relu" else lambda x: x
        x = run_layers(self, table, inputs, train, mask, activation, initializer=lecun_normal)
        return self.scores(x, lecun_normal)


_CNN = (
    Layer("conv1", 32, 3, norm="norm1"),
    Layer("conv2", 64, 3, norm="norm2", pool=2, dropout="dropout1", rate=0.25),
    Layer("dense", 128, dropout="dropout2", rate=0.5),
)


class CNN(ConvNetwork):
    """Two 3x3 convolutions (32 and 64 channels, no padding), 2x2 max-pooling, 128 hidden units.

    The shape of LEAF's successor benchmarks (TFF's and fedjax's EMNIST network): 1,206,590
    parameters for 28x28x1 and 62 classes. The feature is the hidden layer, after dropout in
    training. Weights LeCun normal, biases zero.

    Attributes:
        dropout: drop 1/4 of the pooled values and 1/2 of the hidden units in training.
        norm: "none", "bn" or "gn", after each convolution.
    """

    dropout: bool = True
    norm: NormName = "none"

    @property
    def dropout_rate(self) -> float:
        """Whether there is dropout, before the factors of the table."""
        return float(self.dropout)

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Outputs:
        check_images("cnn", inputs, 6)
        x = run_layers(self, _CNN, inputs, train, mask, initializer=lecun_normal)
        return self.scores(x, lecun_normal)


_CNN13 = (
    Layer("conv1_1", 128, 3, 1, "norm1_1"),
    Layer("conv1_2", 128, 3, 1, "norm1_2"),
    Layer("conv1_3", 128, 3, 1, "norm1_3", 2, "dropout1"),
    Layer("conv2_1", 256, 3, 1, "norm2_1"),
    Layer("conv2_2", 256, 3, 1, "norm2_2"),
    Layer("conv2_3", 256, 3, 1, "norm2_3", 2, "dropout2"),
    Layer("conv3_1", 512, 3, 0, "norm3_1"),
    Layer("conv3_2", 256, 1, 0, "norm3_2"),
    Layer("conv3_3", 128, 1, 0, "norm3_3"),
)


class CNN13(ConvNetwork):
    """Nine convolutions in three stages, two 2x2 max-pools with dropout, global average, one affine
    map.

    Each convolution has a bias and weight normalisation and is followed by the norm layer and
    LeakyReLU(0.1); the heads are weight-normalised too. The feature has 128 values. 3,125,908
    parameters for 32x32x3 and 10 classes with batch norm. Images of 12x12 or more. Weights and
    biases start as PyTorch's defaults, lengths g as ||v||.

    Source: XCLP section 5, "FedAvg+XCLP", CIFAR network.

    Attributes:
        norm: "bn", "gn" or "none".
        dropout_rate: rate after each max-pool, 0 turns it off.
    """

    norm: NormName = "bn"
    dropout_rate: Rate = 0.5
    normalize_features: bool = True

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Outputs:
        activation = partial(nn.leaky_relu, negative_slope=0.1)
        x = run_layers(self, _CNN13, inputs, train, mask, activation, weight_norm=True)
        return self.scores(jnp.mean(x, (1, 2)), weight_norm=True)


_MNIST_CNN = (
    Layer("conv1", 64, 5, 2, "norm1", 2, "dropout1"),
    Layer("conv2", 64, 5, 2, "norm2", 2, "dropout2"),
    Layer("conv3", 128, 5, 2, "norm3", 1, "dropout3"),
    Layer("dense1", 2048, norm="norm4", dropout="dropout4"),
    Layer("dense2", 512, norm="norm5", dropout="dropout5"),
)


class MnistCNN(ConvNetwork):
    """Three 5x5 convolutions (64, 64 and 128 channels), the first two with 2x2 max-pooling, 2048
    and 512 hidden units.

    A norm layer and ReLU follow every convolution and hidden layer. Grey images are shown in three
    equal channels. 14,219,210 parameters for 28x28 and 10 classes, nine tenths of them in the first
    hidden layer. The feature is the last hidden layer. Weights and biases start as PyTorch's
    defaults.

    Source: FedUL's network for MNIST.

    Attributes:
        norm: "bn", "gn" or "none".
        dropout_rate: rate after each of the five hidden blocks, 0 turns it off.
    """

    norm: NormName = "bn"
    dropout_rate: Rate = 0.0

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Outputs:
        check_images("mnist_cnn", inputs, 4)
        x = jnp.broadcast_to(inputs, (*inputs.shape[:-1], 3)) if inputs.shape[-1] == 1 else inputs
        return self.scores(run_layers(self, _MNIST_CNN, x, train, mask))


_EMNIST_CNN = (
    Layer("conv1", 32, 3),
    Layer("conv2", 64, 3, pool=2, dropout="dropout", whole_channels=True),
    Layer("dense", 128),
)


class EmnistCNN(ConvNetwork):
    """Two 3x3 convolutions (32 and 64 channels, no padding), 2x2 max-pooling, 128 hidden units; no
    norm layers.

    1,204,655 parameters for 28x28x1 and 47 classes. Dropout takes whole channels after the pooling.
    The feature is the hidden layer. Weights and biases start as PyTorch's defaults. The authors'
    class declares two group norms that it never calls.

    Source: the public code of FedRGD, arXiv 2008.11364.

    Attributes:
        dropout_rate: share of the pooled channels, 0 turns it off.
    """

    dropout_rate: Rate = 0.25

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Outputs:
        check_images("emnist_cnn", inputs, 6)
        return self.scores(run_layers(self, _EMNIST_CNN, inputs, train, mask))


def bordered(
    inputs: Float[Array, "n h w c"], pad: int, colours: bool
) -> Float[Array, "n h2 w2 c2"]:
    """Put a border of zeros around FedMatch's images, and show grey ones in three equal channels if
    wished.

    Raises:
        ValueError: not images, or images of another number of channels than 1 where three are to be
            made of it.
    """
    if inputs.ndim != 4 or (colours and inputs.shape[-1] != 1):
        wanted = "(height, width, 1) with colours=True" if colours else "(height, width, channels)"
        raise ValueError(f"FedMatch's networks need input_shape {wanted}, got {inputs.shape[1:]}")
    padded = jnp.pad(inputs, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    return jnp.repeat(padded, 3, axis=-1) if colours else padded


class FedMatchNetwork(ConvNetwork):
    """The options of both networks of FedMatch, which have neither biases nor norm layers.

    Weights start truncated normal with variance 1 / fan-in.

    Source: Jeong et al., FedMatch, ICLR 2021, arXiv 2006.12097, appendix A, and the authors' code.

    Attributes:
        pad: border of zeros, for 28x28 images 2.
        colours: show grey images in three equal channels.
    """

    pad: Annotated[int, Whole(0, 1000)] = 0
    colours: bool = False


_ALEXNET = (
    Layer("conv1", 64, 4, pool=2),
    Layer("conv2", 128, 3, pool=2),
    Layer("conv3", 256, 2, pool=2),
    Layer("dense1", 2048),
    Layer("dense2", 2048),
)


class FedMatchAlexNet(FedMatchNetwork):
    """Convolutions of 64 (4x4), 128 (3x3), 256 (2x2) channels, 2x2 max-pooling after each, two
    hidden layers of 2048.

    No padding; 6,519,808 parameters for images of 32x32x3 and ten classes. The feature is the last
    hidden layer.
    """

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Outputs:
        x = bordered(inputs, self.pad, self.colours)
        check_images("fedmatch_alexnet", x, 19, "; use pad")
        x = run_layers(self, _ALEXNET, x, train, mask, initializer=lecun_normal, use_bias=False)
        return self.scores(x, lecun_normal, use_bias=False)
