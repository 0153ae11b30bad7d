"""Layers of convolution, norm and leaky ReLU, several in a row."""

import flax.linen as nn
from jaxtyping import Array, Float

from fedjax_ssl.backend import backend, compiles_kernels
from fedjax_ssl.models.chained import Layer, conv_norms
from fedjax_ssl.models.convolution import resolve_padding
from fedjax_ssl.models.layers import Conv, Kernel
from fedjax_ssl.models.normalization import EPSILON, MOMENTUM, BatchNormWeights, Mask, Norm, statistics_dtype
from fedjax_ssl.models.separate import BY_COST, PRODUCTS


class ConvNorms(nn.Module):
    """Weight-normalised convolutions with bias, each followed by a norm layer and a leaky ReLU.

    Layer i of place "2" has its weights in "conv2_i" and "norm2_i". In training on a GPU whose compiler takes kernels,
    batch norm becomes part of the convolutions, see `conv_norms`: with "auto", where a cost model takes kernels for
    clients' own convolutions, else XLA's stay; with "implicit" always, and anywhere.
    """

    place: str
    layers: tuple[tuple[int, int, int], ...]  # (filters, kernel side, padding)
    norm: str  # "bn", "gn" or "none"
    slope: float  # of the leaky ReLU where it is negative
    lowering: str  # how the convolutions are computed, see `conv2d`

    @nn.compact
    def __call__(self, inputs: Float[Array, "n h w c"], train: bool, mask: Mask) -> Float[Array, "n h2 w2 f"]:
        wanted = self.lowering == "implicit" or (self.lowering == "auto" and backend() == "gpu" and compiles_kernels())
        if wanted and train and self.norm == "bn" and inputs.size and not self.is_initializing():
            return self._together(inputs, mask)
        for index, (filters, size, padding) in enumerate(self.layers, 1):
            conv, norm = self._names(index)
            inputs = Conv(filters, size, 1, padding, weight_norm=True, lowering=self.lowering, name=conv)(inputs)
            inputs = Norm(self.norm, slope=self.slope, name=norm)(inputs, train, mask)
        return inputs

    def _names(self, index: int) -> tuple[str, str]:
        return f"conv{self.place}_{index}", f"norm{self.place}_{index}"

    def _together(self, inputs: Array, mask: Mask) -> Array:
        layers, paddings, statistics = [], [], []
        dtype, image, channels = statistics_dtype(inputs.dtype), inputs.shape[1:3], inputs.shape[3]
        for index, (filters, size, padding) in enumerate(self.layers, 1):
            conv, norm = self._names(index)
            kernel, bias = Kernel(
                (size, size, channels, filters), initializer=None, use_bias=True, weight_norm=True, name=conv
            )()
            scale, shift, running = BatchNormWeights(MOMENTUM, name=norm)(filters)
            layers.append(Layer(kernel, bias, *(x.astype(dtype) for x in (scale, shift, running.mean.value))))
            statistics.append(running)
            paddings.append(resolve_padding(image, (size, size), 1, padding))
            image = tuple(side + 2 * padding - size + 1 for side in image)
            channels = filters
        make = PRODUCTS if self.lowering == "implicit" else BY_COST
        outputs, batches = conv_norms(inputs, layers, mask, paddings, EPSILON, self.slope, make)
        for running, batch in zip(statistics, batches, strict=True):
            running.follow(*batch)
        return outputs
