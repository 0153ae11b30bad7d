"""Convolutions on accelerators: one kernel for all images, or one for the images of every client.

`jax.vmap` over clients hides from a function that it is batched. What it hides here decides the way: under one kernel
XLA's own convolution is fast; with a kernel per client it would be a grouped one, whose gradients are slow (jax#13800).
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array

from fedjax_ssl.backend import backend
from fedjax_ssl.models import implicit, lowerings, ways
from fedjax_ssl.models.lowerings import Pads

_ROWS_OF_A_SUM = 4096  # at most, where one image has no more


def by_cost(inputs: Array, kernel: Array, stride: int, pads: Pads, bias: Array | None = None) -> Array:
    """`plain`, or as soon as `vmap` gives every example of a batch its own kernel what `ways` expects to be fastest.

    Images batched under one kernel (many clients evaluated with shared weights) are folded into one plain
    convolution. Reverse-mode derivatives of any order; the second and later ones go through `slices`.

    Args:
        inputs: images.
        kernel: of the inputs' dtype.
        stride: of both spatial axes.
        pads: zeros around the images.
        bias: [f], is added; then negative results become 0.
    """
    return _convolve(inputs, kernel, stride, pads, bias, ways.fastest)


def plain_or_slices(inputs: Array, kernel: Array, stride: int, pads: Pads, bias: Array | None = None) -> Array:
    """As `by_cost`, with nothing but XLA's own operations: a kernel per client is `slices`."""
    return _convolve(inputs, kernel, stride, pads, bias, lambda *_: "slices")


def products(inputs: Array, kernel: Array, stride: int, pads: Pads, bias: Array | None = None) -> Array:
    """As `by_cost`, with `implicit` for images and kernels of clients' own. Interpreted, and slow, without a GPU."""
    return _convolve(inputs, kernel, stride, pads, bias, lambda *_: "implicit", own_alone=True)


def _convolve(
    inputs: Array,
    kernel: Array,
    stride: int,
    pads: Pads,
    bias: Array | None,
    choose: Callable[..., str],
    own_alone: bool = False,
) -> Array:
    # Three layers, because each of jax's tools lacks what the next one adds. `custom_vmap` sees whether `vmap` batches
    # the kernel, but has no reverse-mode derivative. So the pass forward and its gradients are one such function each,
    # and `custom_vjp` ties them together (`convolve`). The gradients need a derivative of their own for second orders
    # (`backward`); there speed does not matter, and the slices' derivatives serve any order.
    plain = functools.partial(lowerings.plain, stride=stride, pads=pads)
    separate = functools.partial(lowerings.slices, stride=stride, pads=pads)

    def separate_gradients(inputs: Array, kernel: Array, cotangent: Array) -> tuple[Array, Array]:
        if backend() == "tpu":
            return jax.vjp(separate, inputs, kernel)[1](cotangent)
        return lowerings.gradients_in_pieces(inputs, kernel, cotangent, stride, pads)

    def many_forward(inputs: Array, kernels: Array, *bias: Array) -> Array:
        way = choose(ways.Sizes.of(inputs, kernels, stride, pads), "forward")
        if way == "implicit":
            return implicit.convolve(inputs, kernels, stride, pads, *bias)
        one = plain if way == "native" else separate
        return jax.vmap(lambda x, k, *b: _active(one(x, k), *b))(inputs, kernels, *bias)

    def many_gradients(inputs: Array, kernels: Array, cotangents: Array) -> tuple[Array, Array]:
        sizes = ways.Sizes.of(inputs, kernels, stride, pads)
        if choose(sizes, "inputs") == "native":
            return jax.vmap(lambda x, k, c: jax.vjp(plain, x, k)[1](c))(inputs, kernels, cotangents)
        images, weights = jax.vmap(separate_gradients)(inputs, kernels, cotangents)  # what is not used is not computed
        if choose(sizes, "inputs") == "implicit":
            images = implicit.gradient_of_inputs(inputs, kernels, cotangents, stride, pads)
        if choose(sizes, "kernel") == "implicit":
            weights = implicit.gradient_of_kernels(inputs, kernels, cotangents, stride, pads)
        return images, weights

    @custom_vmap
    def forward(inputs: Array, kernel: Array, *bias: Array) -> Array:
        if own_alone:
            return many_forward(*(x[None] for x in (inputs, kernel, *bias)))[0]
        return _active(plain(inputs, kernel), *bias)

    @forward.def_vmap
    def _(size: int, batched: list[bool], *arguments: Array) -> tuple[Array, bool]:
        if all(batched):
            return many_forward(*arguments), True
        if any(batched[1:]):
            one = jax.vmap(lambda x, k, *b: _active(separate(x, k), *b), _axes(batched))
            return one(*arguments), True
        inputs, *shared = arguments
        outputs = forward(inputs.reshape(-1, *inputs.shape[2:]), *shared)
        return outputs.reshape(size, -1, *outputs.shape[1:]), True

    @custom_vmap
    def gradients(inputs: Array, kernel: Array, cotangent: Array) -> tuple[Array, Array]:
        if own_alone:
            images, weights = many_gradients(inputs[None], kernel[None], cotangent[None])
            return images[0], weights[0]
        return jax.vjp(plain, inputs, kernel)[1](cotangent)

    @gradients.def_vmap
    def _(size: int, batched: list[bool], *arguments: Array) -> tuple[tuple[Array, Array], tuple[bool, bool]]:
        if all(batched):
            return many_gradients(*arguments), (True, True)
        return jax.vmap(separate_gradients, _axes(batched))(*arguments), (True, True)

    @jax.custom_vjp
    def backward(inputs: Array, kernel: Array, cotangent: Array) -> tuple[Array, Array]:
        return gradients(inputs, kernel, cotangent)

    backward.defvjp(
        lambda *arguments: (backward(*arguments), arguments),
        lambda arguments, cotangents: jax.vjp(separate_gradients, *arguments)[1](cotangents),
    )

    @jax.custom_vjp
    def convolve(inputs: Array, kernel: Array, *bias: Array) -> Array:
        return forward(inputs, kernel, *bias)

    def saved(inputs: Array, kernel: Array, *bias: Array) -> tuple[Array, tuple[Array, ...]]:
        outputs = convolve(inputs, kernel, *bias)
        return outputs, (inputs, kernel, *((outputs,) if bias else ()))

    def pull(saved: tuple[Array, ...], cotangent: Array) -> tuple[Array, ...]:
        inputs, kernel, *outputs = saved
        if not outputs:
            return backward(inputs, kernel, cotangent)
        cotangent = jnp.where(outputs[0] > 0, cotangent, 0)
        return *backward(inputs, kernel, cotangent), _sum_of_positions(cotangent)

    convolve.defvjp(saved, pull)
    return convolve(inputs, kernel, *(() if bias is None else (bias,)))


def _active(outputs: Array, *bias: Array) -> Array:
    """ReLU of the outputs plus a bias, where there is one."""
    return jax.nn.relu(outputs + bias[0]) if bias else outputs


def _sum_of_positions(values: Array) -> Array:
    """The sum over all axes but the last one, in a few parts that are added where the sum is used.

    XLA would take two kernels, and would put both sums together but for the barrier.
    """
    count = values.shape[0]
    most = _ROWS_OF_A_SUM * values.shape[-1] * count // values.size  # images
    groups = next(number for number in range(1, count + 1) if count % number == 0 and count // number <= max(most, 1))
    parts = jnp.sum(values.reshape(groups, -1, values.shape[-1]), 1)
    return jnp.sum(lax.optimization_barrier(parts), 0)


def _axes(batched: list[bool]) -> tuple[int | None, ...]:
    return tuple(0 if b else None for b in batched)
