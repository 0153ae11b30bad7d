"""Convolutions that are each followed by batch norm and a leaky ReLU, without passes over the images in between.

For many clients on a GPU a norm layer takes as much memory traffic as four convolutions. Here the convolution in front
sums up the moments of what it writes, and the one behind normalises what it reads. Backward, the gradient of a
convolution's inputs goes through the activation and sums up what the norm layer's gradient needs, and the gradients of
the convolution in front make up that gradient as they read it. The last norm layer has passes of its own, and so has
one beside a 1x1 convolution, which is one product.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from fedjax_ssl.models import lowerings, moments
from fedjax_ssl.models.implicit import Results
from fedjax_ssl.models.implicit_parts import (
    ActivationGradient,
    Finish,
    Moments,
    Normalized,
    NormGradient,
    Source,
    Values,
)
from fedjax_ssl.models.lowerings import Pads
from fedjax_ssl.models.passes import Passes, finished


class Layer(NamedTuple):
    """The weights of a convolution and of the norm layer behind it."""

    kernel: Float[Array, "kh kw c f"]
    bias: Float[Array, " f"] | None
    scale: Float[Array, " f"]  # of the normalised values
    shift: Float[Array, " f"]  # is added to them
    near: Float[Array, " f"]  # any numbers; the nearer to the means of the results, the more digits has the variance


class Batch(NamedTuple):
    """The moments of a batch at a norm layer."""

    mean: Float[Array, " f"]
    var: Float[Array, " f"]  # biased
    number: Float[Array, ""]  # values of each


class _Kept(NamedTuple):
    """Of a layer, for the gradients."""

    values: Array  # of the convolution, with its bias
    mean: Array
    root: Array  # one over the root of variance and epsilon
    number: Array  # of values that count

    def factor(self, layer: Layer) -> Array:
        return self.root * layer.scale

    def normalized(self, layer: Layer, slope: float) -> Normalized:
        factor = self.factor(layer)
        return Normalized(self.values, factor, layer.shift - self.mean * factor, slope)


def conv_norms(
    inputs: Float[Array, "n h w c"],
    layers: Sequence[Layer],
    mask: Bool[Array, " n"] | None,
    paddings: Sequence[Pads],
    epsilon: float,
    slope: float,
    make: Callable[..., Passes],
) -> tuple[Float[Array, "n h2 w2 f"], list[Batch]]:
    """Convolution, batch norm and leaky ReLU, once for every layer.

    Reverse-mode derivatives of any order; the second and later ones go through slices.

    Args:
        inputs: images.
        layers: with kernels and biases of the images' dtype; what belongs to norm layers in single or double precision.
        mask: images that count in the moments; None: all.
        paddings: of each convolution, as many as layers: zeros around its images.
        epsilon: is added to the variances.
        slope: of the leaky ReLUs where they are negative, at most 1.
        make: how the convolutions are computed, from sizes: see `Passes`.

    Returns:
        (the last layer's outputs, the moments at every norm layer). Only the outputs have a gradient.
    """
    chain = _Chain(tuple(paddings), epsilon, slope, make)

    @jax.custom_vjp
    def backward(inputs: Array, layers: list[Layer], mask: Array | None, kept: list[_Kept], cotangent: Array) -> tuple:
        return chain.gradients(inputs, layers, mask, kept, cotangent)

    def first_order(inputs: Array, layers: list[Layer], cotangent: Array, mask: Array | None) -> tuple:
        def by_slices(inputs: Array, layers: list[Layer]) -> Array:
            return chain.outputs(inputs, layers, mask, _by_slices)[0]

        return jax.vjp(by_slices, inputs, layers)[1](cotangent)

    def pull_backward(saved: tuple, cotangents: tuple) -> tuple:
        inputs, layers, mask, kept, cotangent = saved
        *found, of_cotangent = jax.vjp(partial(first_order, mask=mask), inputs, layers, cotangent)[1](cotangents)
        return *found, None, jax.tree.map(jnp.zeros_like, kept), of_cotangent

    backward.defvjp(lambda *given: (backward(*given), given), pull_backward)

    @jax.custom_vjp
    def together(inputs: Array, layers: list[Layer], mask: Array | None) -> tuple[Array, list[Batch], list[_Kept]]:
        return chain.outputs(inputs, layers, mask, chain.forward)

    def forward(inputs: Array, layers: list[Layer], mask: Array | None) -> tuple:
        results = together(inputs, layers, mask)  # itself, for second orders
        return results, (inputs, layers, mask, results[2])

    def pull(saved: tuple, cotangents: tuple) -> tuple:
        return *backward(*saved, cotangents[0]), None

    together.defvjp(forward, pull)
    return together(inputs, list(layers), mask)[:2]


class _Chain(NamedTuple):
    """What does not depend on arrays."""

    paddings: tuple[Pads, ...]
    epsilon: float
    slope: float
    make: Callable[..., Passes]

    def passes(self, source: Source, kernel: Array, pads: Pads) -> Passes:
        return self.make(source.values.shape[1:3], kernel.shape[:2], 1, pads)

    def forward(self, source: Source, kernel: Array, pads: Pads, finish: Finish) -> Results:
        return self.passes(source, kernel, pads).forward(source, kernel, finish)

    def outputs(
        self, inputs: Array, layers: list[Layer], mask: Array | None, convolve: Callable
    ) -> tuple[Array, list[Batch], list[_Kept]]:
        """The last outputs, the moments of all layers, and what the gradients need."""
        source: Source = Values(inputs)
        kept, batches = [], []
        for layer, pads in zip(layers, self.paddings, strict=True):
            ending = Moments(layer.bias, layer.near, _weights(mask, layer.near.dtype))
            values, sums = convolve(source, layer.kernel, pads, ending)
            images = values.shape[0] if mask is None else jnp.sum(mask, dtype=layer.near.dtype)
            number = jnp.asarray(images, layer.near.dtype) * (values.shape[1] * values.shape[2])
            mean, var = moments.from_sums(sums, layer.near, number)
            batches.append(Batch(mean, var, number))
            kept.append(_Kept(values, mean, lax.rsqrt(var + self.epsilon), number))
            source = kept[-1].normalized(layer, self.slope)
        return source.array(), batches, kept

    def gradients(
        self, inputs: Array, layers: list[Layer], mask: Array | None, kept: list[_Kept], cotangent: Array
    ) -> tuple[Array, list[Layer]]:
        """The gradients of inputs and layers, from that of the last outputs."""
        last, final = kept[-1], layers[-1]
        wide, above = (x.astype(last.mean.dtype) for x in (last.values, cotangent))
        number = jnp.maximum(last.number, 1)
        slopes, d_scale, d_shift = moments.gradients(
            wide, final.scale, final.shift, last.mean, last.root, number, mask, self.slope, above
        )
        cotangents: Source = Values(slopes.astype(last.values.dtype))
        found: list[Layer] = []
        for index in reversed(range(len(layers))):
            layer, here = layers[index], kept[index]
            below = kept[index - 1].normalized(layers[index - 1], self.slope) if index else None
            source = below or Values(inputs)
            passes = self.passes(source, layer.kernel, self.paddings[index])
            d_kernel = passes.kernel_gradient(source, cotangents)
            # What is added to all values leaves no trace behind a norm layer, but where no image counts.
            d_bias = jnp.where(here.number > 0, 0, here.factor(layer) * d_shift).astype(d_kernel.dtype)
            found.append(
                Layer(d_kernel, None if layer.bias is None else d_bias, d_scale, d_shift, jnp.zeros_like(layer.near))
            )
            if below is None:
                break
            under = kept[index - 1]
            ending = ActivationGradient(below.values, below.factor, below.offset, under.mean, self.slope)
            slopes, (d_shift, centred) = passes.inputs_gradient(layer.kernel, cotangents, ending)
            d_scale = centred * under.root
            cotangents = self._through_norm(slopes, d_scale, d_shift, under, layers[index - 1], mask)
        return passes.inputs_gradient(layer.kernel, cotangents)[0], found[::-1]

    def _through_norm(
        self, slopes: Array, d_scale: Array, d_shift: Array, kept: _Kept, layer: Layer, mask: Array | None
    ) -> NormGradient:
        """The gradient of a norm layer's inputs, from that of its normalised values."""
        factor = kept.factor(layer)
        share = factor / jnp.maximum(kept.number, 1)
        linear = -share * kept.root * d_scale
        constant = -share * d_shift - linear * kept.mean
        return NormGradient(slopes, kept.values, factor, constant, linear, _weights(mask, factor.dtype))


def _by_slices(source: Source, kernel: Array, pads: Pads, finish: Finish) -> Results:
    """A pass forward that has derivatives of any order."""
    return finished(lowerings.slices(source.array(), kernel, 1, pads), finish)


def _weights(mask: Array | None, dtype: jnp.dtype) -> Array | None:
    return None if mask is None else mask.astype(dtype)
