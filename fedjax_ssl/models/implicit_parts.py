"""What a product over images reads as their values, and what it does with its results before they are written.

Each part says it twice: with arrays of one client, and as a block of a GPU's kernel (`implicit_kernels`) does it, where
the fields are references to a client's values in a row. With parts a norm layer needs no pass over the images of its
own: the convolution before it sums up its moments, the one after it normalises what it reads.

A `Source` is read: `array()` is the images as a product reads them, `read(places)` a block of them. A `Finish` changes
results: `applied(results)` returns them [n, h, w, c] and `sums` arrays [c], `last(found, places, dtype)` a block and
its part of these sums, over the block's rows; `dtype` is what the block is written in.
"""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from fedjax_ssl.models.moments import channel_sums, scaled


class Places(NamedTuple):
    """Of a block: which values it is about."""

    at: Array  # [rows, columns], among all values of the client's images; valid where they are there
    there: Array  # [rows, columns], whether there are any
    channel: Array  # [columns], always valid
    image: Array  # [rows, 1], always valid


@struct.dataclass
class Values:
    """The images themselves."""

    values: Float[Array, "n h w c"]

    def array(self) -> Array:
        return self.values

    def read(self, places: Places) -> Array:
        return load(self.values, places.at, places.there)


@struct.dataclass
class Normalized:
    """Leaky ReLU of the images times a factor plus an offset: a norm layer, once its moments are known."""

    values: Float[Array, "n h w c"]
    factor: Float[Array, " c"]
    offset: Float[Array, " c"]
    slope: float = struct.field(pytree_node=False)  # of the leaky ReLU where it is negative, at most 1

    def array(self) -> Array:
        outputs = scaled(self.values.astype(self.factor.dtype), self.factor, self.offset, self.slope)
        return outputs.astype(self.values.dtype)

    def read(self, places: Places) -> Array:
        factor, offset = (load(x, places.channel) for x in (self.factor, self.offset))
        values = load(self.values, places.at, places.there)
        outputs = values.astype(factor.dtype) * factor + offset
        outputs = jnp.where(outputs < 0, self.slope * outputs, outputs)  # Triton's maximum would turn NaN into 0
        return jnp.where(places.there, outputs, 0).astype(values.dtype)


@struct.dataclass
class NormGradient:
    """The gradient of the inputs of a norm layer: of its normalised values, and through its moments.

    gradient * factor, plus constant + linear * inputs for the images that count in the moments.
    """

    values: Float[Array, "n h w c"]  # the gradient of the normalised values, times scale plus bias
    inputs: Float[Array, "n h w c"]  # of the norm layer
    factor: Float[Array, " c"]
    constant: Float[Array, " c"]
    linear: Float[Array, " c"]
    marked: Float[Array, " n"] | None  # 1 for images that count, else 0; None: all count

    def array(self) -> Array:
        through = self.constant + self.linear * self.inputs.astype(self.factor.dtype)
        if self.marked is not None:
            through = jnp.where(self.marked[:, None, None, None] > 0, through, 0)
        return (self.values.astype(self.factor.dtype) * self.factor + through).astype(self.values.dtype)

    def read(self, places: Places) -> Array:
        factor, constant, linear = (load(x, places.channel) for x in (self.factor, self.constant, self.linear))
        values = load(self.values, places.at, places.there)
        through = constant + linear * load(self.inputs, places.at, places.there).astype(factor.dtype)
        if self.marked is not None:
            through = jnp.where(load(self.marked, places.image) > 0, through, 0)
        found = values.astype(factor.dtype) * factor + through
        return jnp.where(places.there, found, 0).astype(values.dtype)


Source = Values | Normalized | NormGradient


@struct.dataclass
class BiasReLU:
    """Adds a bias; then negative results become 0."""

    bias: Float[Array, " f"]
    sums: ClassVar[int] = 0  # arrays of one number per filter

    def applied(self, results: Array) -> tuple[Array, tuple[Array, ...]]:
        return jax.nn.relu(results + self.bias), ()

    def last(self, found: Array, places: Places, dtype: jnp.dtype) -> tuple[Array, tuple[Array, ...]]:
        found += load(self.bias, places.channel).astype(found.dtype)
        return jnp.where(found < 0, 0, found), ()  # Triton's maximum would turn NaN into 0


@struct.dataclass
class Moments:
    """Adds a bias; and sums up the results less some numbers near their means, and these squared."""

    bias: Float[Array, " f"] | None
    near: Float[Array, " f"]
    marked: Float[Array, " n"] | None  # 1 for images that are summed up, else 0; None: all are
    sums: ClassVar[int] = 2

    def applied(self, results: Array) -> tuple[Array, tuple[Array, ...]]:
        results = results if self.bias is None else results + self.bias
        centred = results.astype(self.near.dtype) - self.near
        if self.marked is not None:  # where, not a product: padding rows may hold anything, NaN included
            centred = jnp.where(self.marked[:, None, None, None] > 0, centred, 0)
        return results, channel_sums(centred, jnp.square(centred))

    def last(self, found: Array, places: Places, dtype: jnp.dtype) -> tuple[Array, tuple[Array, ...]]:
        if self.bias is not None:
            found += load(self.bias, places.channel).astype(found.dtype)
        counted = places.there
        if self.marked is not None:
            counted = counted & (load(self.marked, places.image) > 0)
        # As they are written, so that the moments are those of what is read again.
        centred = jnp.where(counted, found.astype(dtype).astype(found.dtype) - load(self.near, places.channel), 0)
        return found, (jnp.sum(centred, 0), jnp.sum(centred * centred, 0))


@struct.dataclass
class ActivationGradient:
    """From the gradient of a `Normalized` array to that of what the leaky ReLU is of; and its sums.

    The sums are of this gradient, and of it times the norm layer's inputs less some numbers near their means.
    """

    inputs: Float[Array, "n h w c"]  # of the norm layer
    factor: Float[Array, " c"]
    offset: Float[Array, " c"]
    near: Float[Array, " c"]
    slope: float = struct.field(pytree_node=False)
    sums: ClassVar[int] = 2

    def applied(self, results: Array) -> tuple[Array, tuple[Array, ...]]:
        inputs = self.inputs.astype(self.near.dtype)
        results = jnp.where(inputs * self.factor + self.offset < 0, self.slope * results, results)
        wide = results.astype(inputs.dtype)
        return results, channel_sums(wide, wide * (inputs - self.near))

    def last(self, found: Array, places: Places, dtype: jnp.dtype) -> tuple[Array, tuple[Array, ...]]:
        inputs = load(self.inputs, places.at, places.there).astype(found.dtype)
        factor, offset, near = (load(x, places.channel) for x in (self.factor, self.offset, self.near))
        found = jnp.where(inputs * factor + offset < 0, self.slope * found, found)
        wide = jnp.where(places.there, found.astype(dtype).astype(found.dtype), 0)
        return found, (jnp.sum(wide, 0), jnp.sum(wide * (inputs - near), 0))


Finish = BiasReLU | Moments | ActivationGradient


def load(values: Any, at: Array, there: Array | None = None) -> Array:
    """Values of a reference of a kernel; 0 where there are none."""
    from jax.experimental.pallas import triton

    return triton.load(values.at[at], mask=there, other=None if there is None else 0.0)
