"""Convolutions on accelerators: one kernel for all images, or one for the images of every client."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from fedjax_ssl.models import ways
from fedjax_ssl.models.implicit_parts import BiasReLU, Values
from fedjax_ssl.models.lowerings import Pads
from fedjax_ssl.models.passes import Passes

_ROWS_OF_A_SUM = 4096  # at most, where one image has no more

BY_COST = partial(Passes, choose=ways.fastest)
PLAIN_OR_SLICES = partial(Passes, choose=lambda *_: "slices")
PRODUCTS = partial(Passes, choose=lambda *_: "implicit", own_alone=True)


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
    return _convolve(inputs, kernel, stride, pads, bias, BY_COST)


def plain_or_slices(inputs: Array, kernel: Array, stride: int, pads: Pads, bias: Array | None = None) -> Array:
    """As `by_cost`, with nothing but XLA's own operations: a kernel per client is `slices`."""
    return _convolve(inputs, kernel, stride, pads, bias, PLAIN_OR_SLICES)


def products(inputs: Array, kernel: Array, stride: int, pads: Pads, bias: Array | None = None) -> Array:
    """As `by_cost`, with `implicit` for images and kernels of clients' own. Interpreted, and slow, without a GPU."""
    return _convolve(inputs, kernel, stride, pads, bias, PRODUCTS)


def _convolve(
    inputs: Array,
    kernel: Array,
    stride: int,
    pads: Pads,
    bias: Array | None,
    make: Callable[..., Passes],
) -> Array:
    # Three layers, because each of jax's tools lacks what the next one adds. `custom_vmap` sees whether `vmap` batches
    # the kernel, but has no reverse-mode derivative. So the pass forward and its gradients are one such function each
    # (`Passes`), and `custom_vjp` ties them together (`convolve`). The gradients need a derivative of their own for
    # second orders (`backward`); there speed does not matter, and the slices' derivatives serve any order.
    passes = make(inputs.shape[1:3], kernel.shape[:2], stride, pads)

    @jax.custom_vjp
    def backward(inputs: Array, kernel: Array, cotangent: Array) -> tuple[Array, Array]:
        slopes = Values(cotangent)
        weights = passes.kernel_gradient(Values(inputs), slopes)  # first: it reads patches, which are gone then
        return passes.inputs_gradient(kernel, slopes)[0], weights

    backward.defvjp(
        lambda *arguments: (backward(*arguments), arguments),
        lambda arguments, cotangents: jax.vjp(partial(passes.gradients, "slices"), *arguments)[1](cotangents),
    )

    @jax.custom_vjp
    def convolve(inputs: Array, kernel: Array, *bias: Array) -> Array:
        return passes.forward(Values(inputs), kernel, BiasReLU(*bias) if bias else None)[0]

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


def _sum_of_positions(values: Array) -> Array:
    """The sum over all axes but the last one, in a few parts that are added where the sum is used.

    XLA would take two kernels, and would put both sums together but for the barrier.
    """
    count = values.shape[0]
    most = _ROWS_OF_A_SUM * values.shape[-1] * count // values.size  # images
    groups = next(number for number in range(1, count + 1) if count % number == 0 and count // number <= max(most, 1))
    parts = jnp.sum(values.reshape(groups, -1, values.shape[-1]), 1)
    return jnp.sum(lax.optimization_barrier(parts), 0)
