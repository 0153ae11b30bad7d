"""The passes of a convolution, forward and both gradients, which choose their way once `vmap` shows them all clients.

`jax.vmap` over clients hides from a function that it is batched. What it hides here decides the way: under one kernel
XLA's own convolution is fast; with a kernel per client it would be a grouped one, whose gradients are slow (jax#13800).
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float

from fedjax_ssl.backend import backend
from fedjax_ssl.models import implicit, lowerings, ways
from fedjax_ssl.models.implicit_parts import Finish, Source, Values
from fedjax_ssl.models.lowerings import Pads


@dataclasses.dataclass(frozen=True)
class Passes:
    """Of images and kernels of given sizes; every argument is of one client. They have no derivatives of their own."""

    image: tuple[int, int]  # height and width
    window: tuple[int, int]  # of a kernel
    stride: int
    pads: Pads
    choose: Callable[[ways.Sizes, ways.Pass], str]  # "slices", "native" or "implicit", with a kernel per client
    own_alone: bool = False  # whether it is asked also for one client by itself

    def forward(
        self, inputs: Source, kernel: Float[Array, "kh kw c f"], finish: Finish | None = None
    ) -> implicit.Results:
        """The responses [n, h2, w2, f], and the sums [f] that `finish` has."""

        def one(way: str, inputs: Source, kernel: Array, finish: Finish | None) -> implicit.Results:
            return finished(self._way(way)(inputs.array(), kernel), finish)

        def many(inputs: Source, kernels: Array, finish: Finish | None) -> implicit.Results:
            return implicit.convolve(inputs, kernels, self.stride, self.pads, finish)

        return self._vectorized("forward", one, many)(inputs, kernel, finish)

    def inputs_gradient(
        self, kernel: Float[Array, "kh kw c f"], cotangents: Source, finish: Finish | None = None
    ) -> implicit.Results:
        """The gradient of the images [n, h, w, c], and the sums [c] that `finish` has."""

        def one(way: str, kernel: Array, cotangents: Source, finish: Finish | None) -> implicit.Results:
            slopes = cotangents.array()
            images = jnp.zeros((slopes.shape[0], *self.image, kernel.shape[2]), slopes.dtype)  # none is read
            return finished(self.gradients(way, images, kernel, slopes)[0], finish)

        def many(kernels: Array, cotangents: Source, finish: Finish | None) -> implicit.Results:
            return implicit.gradient_of_inputs(self.image, kernels, cotangents, self.stride, self.pads, finish)

        return self._vectorized("inputs", one, many)(kernel, cotangents, finish)

    def kernel_gradient(self, inputs: Source, cotangents: Source) -> Float[Array, "kh kw c f"]:
        """The gradient of the kernel."""

        def one(way: str, inputs: Source, cotangents: Source) -> Array:
            images, slopes = inputs.array(), cotangents.array()
            kernel = jnp.zeros((*self.window, images.shape[3], slopes.shape[3]), slopes.dtype)  # is not read
            return self.gradients(way, images, kernel, slopes)[1]

        def many(inputs: Source, cotangents: Source) -> Array:
            return implicit.gradient_of_kernels(inputs, self.window, cotangents, self.stride, self.pads)

        return self._vectorized("kernel", one, many)(inputs, cotangents)

    @property
    def _shared(self) -> str:
        """The way with one kernel for all images: with 1x1, XLA's own convolution is no better than a product."""
        return "slices" if self.window == (1, 1) and self.stride == 1 else "native"

    def _way(self, way: str) -> Callable[[Array, Array], Array]:
        function = lowerings.plain if way == "native" else lowerings.slices
        return partial(function, stride=self.stride, pads=self.pads)

    def gradients(self, way: str, inputs: Array, kernel: Array, cotangent: Array) -> tuple[Array, Array]:
        """Of the images and of the kernel, by "slices" or "native"; both have derivatives of any order."""
        if way == "slices" and backend() != "tpu":
            return lowerings.gradients_in_pieces(inputs, kernel, cotangent, self.stride, self.pads)
        return jax.vjp(self._way(way), inputs, kernel)[1](cotangent)

    def _sizes(self, one: ways.Pass, first: Any, second: Any) -> ways.Sizes:
        """From the first two arguments of a pass, with all clients in front."""
        if one == "inputs":
            count, itemsize = second.values.shape[1], first.dtype.itemsize
            channels, filters = first.shape[3:]
        else:
            _, count, *_, channels = first.values.shape
            filters, itemsize = _main(second).shape[4], first.values.dtype.itemsize
        result = lowerings.result_size(self.image, self.window, self.stride, self.pads)
        return ways.Sizes((count, *self.image, channels), self.window, filters, result, self.stride, itemsize)

    def _vectorized(self, name: ways.Pass, one: Callable, implicitly: Callable) -> Callable:
        """A pass of one client that chooses its way where both factors, its first arguments, are batched."""

        def many(*arguments: Any) -> Any:
            way = self.choose(self._sizes(name, *arguments[:2]), name)
            return implicitly(*arguments) if way == "implicit" else jax.vmap(partial(one, way))(*arguments)

        @custom_vmap
        def alone(*arguments: Any) -> Any:
            if not self.own_alone:
                return one(self._shared, *arguments)
            return jax.tree.map(lambda x: x[0], many(*jax.tree.map(lambda x: x[None], arguments)))

        def folded(size: int, batched: list, inputs: Source, kernel: Array, finish: Finish | None) -> implicit.Results:
            """All images in one convolution; what is done before and after is each batch's own."""
            images = jax.vmap(lambda source: source.array(), (jax.tree.map(_axis, batched[0]),), axis_size=size)(inputs)
            results, _ = alone(Values(images.reshape(-1, *images.shape[2:])), kernel, None)
            results = results.reshape(size, -1, *results.shape[1:])
            return jax.vmap(finished, (0, jax.tree.map(_axis, batched[2])))(results, finish)

        @alone.def_vmap
        def _(size: int, batched: list, *arguments: Any) -> tuple[Any, Any]:
            if all(_main(factor) for factor in batched[:2]):
                results = many(*implicit.all_batched(size, arguments, batched))
            elif name == "forward" and not batched[1]:
                results = folded(size, batched, *arguments)
            else:
                axes = jax.tree.map(_axis, tuple(batched))
                results = jax.vmap(partial(one, "slices"), axes)(*arguments)
            return results, jax.tree.map(lambda _: True, results)

        return alone


def finished(results: Array, finish: Finish | None) -> implicit.Results:
    """Results as a pass returns them, with arrays of one client."""
    return (results, ()) if finish is None else finish.applied(results)


def _main(factor: Any) -> Any:
    """The images of a source, or the kernel itself; or whether they are batched."""
    return getattr(factor, "values", factor)


def _axis(batched: bool) -> int | None:
    return 0 if batched else None
