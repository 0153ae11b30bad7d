"""The convolution layers' functions: fast inside `lax.scan` on CPU and under `vmap` over
kernels.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from fedjax_ssl.backend import backend
from fedjax_ssl.models import lowerings
from fedjax_ssl.models.lowerings import Padding, Pads, resolve_padding
from fedjax_ssl.models.normalization import statistics_dtype
from fedjax_ssl.models.winograd import winograd

# Input channels from which on the products that Winograd's algorithm saves outweigh its transforms.
_WINOGRAD_CHANNELS = 16

_LOWERINGS: dict[str, Callable] = {
    "lax": lowerings.plain,
    "slices": lowerings.slices,
    "rows": lowerings.rows,
    "winograd": winograd,
    "xla": lowerings.plain_or_slices,
}


def conv2d(
    inputs: Float[Array, "n h w c"],
    kernel: Float[Array, "kh kw c f"],
    *,
    stride: int = 1,
    padding: Padding = "SAME",
    lowering: str = "auto",
) -> Float[Array, "n h2 w2 f"]:
    """Cross-correlate NHWC images with an HWIO kernel.

    XLA's own convolution is not fast everywhere: in a loop on CPU its two gradients leave the fast
    path, and under `vmap` over kernels it becomes a grouped convolution, slow on CPU and, in its
    backward pass, on GPU (jax#13800). Matrix products over shifted slices stay fast in both places.
    All lowerings give the same values and gradients up to rounding; "winograd" loses about two
    thirds of a decimal digit more than the others:

    | lowering | how | derivatives |
    |---|---|---|
    | "lax" | `lax.conv_general_dilated`, the oracle | any |
    | "slices" | kh*kw shifted slices side by side, one product | any |
    | "rows" | kw shifted slices side by side, kh products | any |
    | "winograd" | transforms of tiles, (7 - kh)(7 - kw) outputs for 36 products | any |
    | "xla" | "lax", or "slices" where `vmap` gives every client a kernel | reverse mode |

    "auto" takes on a CPU "winograd" from 16 input channels on and else "slices" (rates:
    docs/speed.md); elsewhere it takes "xla", but "slices" for a 1x1 kernel. The choice was not
    measured on a GPU or TPU.

    Args:
        inputs: images.
        kernel: filters of the inputs' dtype.
        stride: step along both spatial axes.
        padding: "SAME" (output size ceil(input / stride), TensorFlow's rule), "VALID", or the
            number of zeros on every side.
        lowering: see above.

    Returns:
        The responses to the f filters.

    Raises:
        ValueError: shapes that do not fit each other, an unknown lowering or padding, a kernel
            larger than the padded image.

    Example:
        >>> import jax.numpy as jnp
        >>> conv2d(jnp.ones((1, 4, 4, 1)), jnp.ones((3, 3, 1, 2)), padding="VALID").shape
        (1, 2, 2, 2)
    """
    if inputs.ndim != 4 or kernel.ndim != 4 or inputs.shape[3] != kernel.shape[2]:
        raise ValueError(
            "conv2d needs inputs [n, height, width, channels] and kernel [height, width, "
            f"channels, filters], got {inputs.shape} and {kernel.shape}"
        )
    if lowering != "auto" and lowering not in _LOWERINGS:
        raise ValueError(f"unknown lowering {lowering!r}; allowed: auto, {', '.join(_LOWERINGS)}")
    pads = resolve_padding(inputs.shape[1:3], kernel.shape[:2], stride, padding)
    function = _choose(kernel.shape) if lowering == "auto" else _LOWERINGS[lowering]
    return function(inputs, kernel, stride, pads)


def _choose(kernel_shape: tuple[int, ...]) -> Callable:
    height, width, channels, _ = kernel_shape
    if backend() == "cpu":
        return winograd if channels >= _WINOGRAD_CHANNELS else lowerings.slices
    return lowerings.slices if height == width == 1 else lowerings.plain_or_slices


def conv_general_dilated(
    inputs: Array,
    kernel: Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    **more: Any,
) -> Array:
    """Convolve as `conv2d` in place of `lax.conv_general_dilated`, where that can be; the arguments
    are those of lax.

    Example:
        >>> import flax.linen as nn
        >>> layer = nn.Conv(8, (3, 3), conv_general_dilated=fs.models.conv_general_dilated)
    """
    layout = more.pop("dimension_numbers", None)
    numbers = [
        lax.conv_dimension_numbers(inputs.shape, kernel.shape, one)
        for one in (layout, ("NHWC", "HWIO", "NHWC"))
    ]
    usual = (
        not any(value not in (None, 1, (1, 1)) for value in more.values())
        and padding != "SAME_LOWER"
    )
    if inputs.ndim == 4 and usual and numbers[0] == numbers[1] and len(set(window_strides)) == 1:
        stride = window_strides[0]
        window = kernel.shape[:2]
        pads = (
            resolve_padding(inputs.shape[1:3], window, stride, padding)
            if isinstance(padding, str)
            else padding
        )
        return _choose(kernel.shape)(inputs, kernel, stride, tuple(map(tuple, pads)))
    return lax.conv_general_dilated(
        inputs, kernel, window_strides, padding, dimension_numbers=layout, **more
    )


def depthwise_conv2d(
    inputs: Float[Array, "n h w c"],
    kernel: Float[Array, "kh kw 1 c"],
    *,
    stride: int = 1,
    padding: Padding = "SAME",
    lowering: str = "auto",
) -> Float[Array, "n h2 w2 c"]:
    """Cross-correlate every channel of NHWC images with its own kernel.

    XLA's grouped convolution ("lax") has no fast path on CPU. There "auto" adds up shifted slices,
    each times one number per channel, which fuses into one loop (rates in docs/speed.md);
    elsewhere it takes "lax". Values and gradients are the same up to the order of additions, and
    both have derivatives of any order.

    Args:
        inputs: images.
        kernel: one filter per channel, of the inputs' dtype.
        stride: step along both spatial axes.
        padding: see `conv2d`.
        lowering: as in `conv2d`; "xla" means "auto", all others but "lax" mean slices.

    Returns:
        The responses.

    Raises:
        ValueError: shapes that do not fit each other, an unknown padding, a kernel larger than the
            padded image.
    """
    if inputs.ndim != 4 or kernel.ndim != 4 or kernel.shape[2:] != (1, inputs.shape[3]):
        raise ValueError(
            "depthwise_conv2d needs inputs [n, height, width, channels] and kernel [height, "
            f"width, 1, channels], got {inputs.shape} and {kernel.shape}"
        )
    pads = resolve_padding(inputs.shape[1:3], kernel.shape[:2], stride, padding)
    if lowering != "lax" and (backend() == "cpu" or lowering not in ("auto", "xla")):
        return _depthwise_slices(inputs, kernel, stride, pads)
    return lowerings.plain(inputs, kernel, stride, pads, groups=inputs.shape[3])


def _depthwise_slices(inputs: Array, kernel: Array, stride: int, pads: Pads) -> Array:
    height, width = kernel.shape[:2]
    # No matrix product here: channels do not mix, so every slice is scaled by one number per
    # channel. XLA fuses the products and sums into one loop over the output. A sum has up to 25
    # terms, so the types shorter than float32 are summed in float32, as a convolution does.
    dtype = statistics_dtype(inputs.dtype)
    padded = jnp.pad(inputs, ((0, 0), *pads, (0, 0))).astype(dtype)
    weights = kernel.astype(dtype)
    rows, columns = (
        (size - k) // stride for size, k in zip(padded.shape[1:3], (height, width), strict=True)
    )
    terms = (
        padded[:, i : i + rows * stride + 1 : stride, j : j + columns * stride + 1 : stride]
        * weights[i, j, 0]
        for i in range(height)
        for j in range(width)
    )
    return functools.reduce(jnp.add, terms).astype(inputs.dtype)
