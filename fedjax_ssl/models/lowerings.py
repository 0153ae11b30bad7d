"""Ways to compute one convolution: the plain one, and matrix products over shifted slices.

Every function takes (inputs NHWC, kernel HWIO, stride, pads) and returns the same values up to the
order of additions. `conv2d` chooses among them and says when which one is fast.
"""

import functools
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array

from fedjax_ssl.backend import backend
from fedjax_ssl.checks import check_whole_numbers

Padding = str | int
Pads = tuple[tuple[int, int], tuple[int, int]]


def resolve_padding(
    image: tuple[int, ...], window: tuple[int, ...], stride: int, padding: Padding
) -> Pads:
    """Count the values before and after each spatial axis.

    Args:
        image: height and width.
        window: height and width.
        stride: step of both axes, at least 1.
        padding: "SAME" (output size ceil(image / stride), TensorFlow's rule), "VALID", or the
            number of zeros on every side.

    Raises:
        ValueError: an unknown padding, or a window larger than the padded image.
    """
    check_whole_numbers(stride=stride)
    if isinstance(padding, int) and padding >= 0:
        before = after = (padding, padding)
    elif padding == "VALID":
        before = after = (0, 0)
    elif padding == "SAME":
        total = [
            max((-(-size // stride) - 1) * stride + k - size, 0)
            for size, k in zip(image, window, strict=True)
        ]
        before = (total[0] // 2, total[1] // 2)
        after = (total[0] - before[0], total[1] - before[1])
    else:
        raise ValueError(f"padding must be 'SAME', 'VALID' or an integer >= 0, got {padding!r}")
    pads = ((before[0], after[0]), (before[1], after[1]))
    if any(size + sum(pad) < k for size, pad, k in zip(image, pads, window, strict=True)):
        raise ValueError(
            f"a {window[0]}x{window[1]} window does not fit into a {image[0]}x{image[1]} image "
            f"with padding {padding!r}; use larger images or more padding"
        )
    return pads


def plain(inputs: Array, kernel: Array, stride: int, pads: Pads, groups: int = 1) -> Array:
    """Call XLA's own convolution, with which all others have to agree."""
    return lax.conv_general_dilated(
        inputs,
        kernel,
        (stride, stride),
        pads,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def slices(inputs: Array, kernel: Array, stride: int, pads: Pads) -> Array:
    """Put all kh*kw shifted slices side by side, for one product. The slices are kept for the
    gradient.
    """
    height, width, channels, filters = kernel.shape
    count, out_rows, out_columns = positions(inputs, kernel, stride, pads)
    inputs = padded(inputs, pads)
    if backend() == "cpu" and height * width > 1:
        # In two turns there are 6 slices for a 3x3 kernel and not 9. Without the barrier, what was
        # done to the images before, as augmentation, is computed once more for every slice, and
        # compiled as often.
        wide = _side_by_side(lax.optimization_barrier(inputs), 2, width, out_columns, stride)
        patches = _side_by_side(wide, 1, height, out_rows, stride)
    else:
        rows = (_shifted(inputs, 1, i, out_rows, stride) for i in range(height))
        shifted = [_shifted(row, 2, j, out_columns, stride) for row in rows for j in range(width)]
        patches = jnp.concatenate(shifted, -1)
    # Two-dimensional: with the image axes kept, the products and their gradients are slower on CPU.
    products = patches.reshape(-1, height * width * channels) @ kernel.reshape(-1, filters)
    return products.reshape(count, out_rows, out_columns, filters)


def rows(inputs: Array, kernel: Array, stride: int, pads: Pads) -> Array:
    """Put kw shifted slices side by side, for one product per kernel row: a third of the memory
    for 3x3.
    """
    height, width, channels, filters = kernel.shape
    count, out_rows, out_columns = positions(inputs, kernel, stride, pads)
    wide = _side_by_side(padded(inputs, pads), 2, width, out_columns, stride)
    products = (
        _shifted(wide, 1, i, out_rows, stride).reshape(-1, width * channels)
        @ kernel[i].reshape(-1, filters)
        for i in range(height)
    )
    return functools.reduce(jnp.add, products).reshape(count, out_rows, out_columns, filters)


def plain_or_slices(inputs: Array, kernel: Array, stride: int, pads: Pads) -> Array:
    """Compute `plain`, or `slices` as soon as `vmap` gives every example of a batch its own kernel.

    With a kernel per client XLA's convolution becomes a grouped one, whose gradients are slow
    (jax#13800). Images that are batched under one kernel are folded into one plain convolution.
    Reverse-mode derivatives of any order; the second and later ones go through `slices`.
    """
    # Three layers, because each of jax's tools lacks what the next one adds. `custom_vmap` sees
    # whether `vmap` batches the kernel, but has no reverse-mode derivative. So the pass forward and
    # its gradients are one such function each, and `custom_vjp` ties them together (`convolve`).
    # The gradients need a derivative of their own for second orders (`backward`); there speed does
    # not matter, and the slices' derivatives serve any order.
    way = {function: partial(function, stride=stride, pads=pads) for function in (plain, slices)}

    def gradients(
        function: functools.partial, inputs: Array, kernel: Array, cotangent: Array
    ) -> tuple[Array, Array]:
        return jax.vjp(function, inputs, kernel)[1](cotangent)

    @custom_vmap
    def forward(inputs: Array, kernel: Array) -> Array:
        return way[plain](inputs, kernel)

    @forward.def_vmap
    def _(size: int, batched: list[bool], inputs: Array, kernel: Array) -> tuple[Array, bool]:
        if batched[1]:
            return jax.vmap(way[slices], _axes(batched))(inputs, kernel), True
        # `forward` again, which sees whether an outer `vmap` batches the kernel.
        results = forward(inputs.reshape(-1, *inputs.shape[2:]), kernel)
        return results.reshape(size, -1, *results.shape[1:]), True

    @custom_vmap
    def pull(inputs: Array, kernel: Array, cotangent: Array) -> tuple[Array, Array]:
        return gradients(way[plain], inputs, kernel, cotangent)

    @pull.def_vmap
    def _(
        _: int, batched: list[bool], *arguments: Array
    ) -> tuple[tuple[Array, Array], tuple[bool, bool]]:
        return jax.vmap(partial(gradients, way[slices]), _axes(batched))(*arguments), (True, True)

    @jax.custom_vjp
    def backward(inputs: Array, kernel: Array, cotangent: Array) -> tuple[Array, Array]:
        return pull(inputs, kernel, cotangent)

    backward.defvjp(
        lambda *arguments: (backward(*arguments), arguments),
        lambda arguments, cotangents: jax.vjp(partial(gradients, way[slices]), *arguments)[1](
            cotangents
        ),
    )

    @jax.custom_vjp
    def convolve(inputs: Array, kernel: Array) -> Array:
        return forward(inputs, kernel)

    convolve.defvjp(
        lambda *arguments: (convolve(*arguments), arguments),
        lambda arguments, cotangent: backward(*arguments, cotangent),
    )
    return convolve(inputs, kernel)


def _axes(batched: list[bool]) -> tuple[int | None, ...]:
    return tuple(0 if one else None for one in batched)


def padded(inputs: Array, pads: Pads) -> Array:
    """Put zeros around the images. Unlike `jnp.pad` no function of its own, which a program
    would keep as such.
    """
    if not any(map(any, pads)):
        return inputs
    return lax.pad(
        inputs, jnp.zeros((), inputs.dtype), [(0, 0, 0), *((*pad, 0) for pad in pads), (0, 0, 0)]
    )


def positions(inputs: Array, kernel: Array, stride: int, pads: Pads) -> tuple[int, int, int]:
    """Return the number of images, height and width of the output."""
    sizes = zip(inputs.shape[1:3], pads, kernel.shape[:2], strict=True)
    height, width = ((size + sum(pad) - k) // stride + 1 for size, pad, k in sizes)
    return inputs.shape[0], height, width


def _shifted(values: Array, axis: int, start: int, count: int, stride: int) -> Array:
    return lax.slice_in_dim(values, start, start + (count - 1) * stride + 1, stride, axis)


def _side_by_side(values: Array, axis: int, number: int, count: int, stride: int) -> Array:
    """Stack slices of `count` entries in the channels, each of which begins one further along
    the axis.
    """
    return jnp.concatenate([_shifted(values, axis, i, count, stride) for i in range(number)], -1)
