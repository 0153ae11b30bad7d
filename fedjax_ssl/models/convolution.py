"""The convolution layer's function: fast inside `lax.scan` on CPU and under `vmap` over kernels."""

from collections.abc import Callable

import jax
from jaxtyping import Array, Float

from fedjax_ssl.models import lowerings

Padding = str | int

_LOWERINGS: dict[str, Callable] = {
    "lax": lowerings.plain,
    "slices": lowerings.slices,
    "rows": lowerings.rows,
    "blocks": lowerings.blocks,
}


def conv2d(
    inputs: Float[Array, "n h w c"],
    kernel: Float[Array, "kh kw c f"],
    *,
    stride: int = 1,
    padding: Padding = "SAME",
    lowering: str = "auto",
) -> Float[Array, "n h2 w2 f"]:
    """Cross-correlates NHWC images with an HWIO kernel.

    DOC
    Args:
        inputs: images.
        kernel: of the inputs' dtype.
        stride: of both spatial axes.
        padding: "SAME" (output size ceil(input / stride), TensorFlow's rule), "VALID", or the number of zeros on
            every side.
        lowering: see above.

    Returns:
        The responses to the f filters.

    Raises:
        ValueError: shapes that do not fit each other, an unknown lowering or padding, a kernel larger than the
            padded image.
    """
    if inputs.ndim != 4 or kernel.ndim != 4 or inputs.shape[3] != kernel.shape[2]:
        raise ValueError(
            "conv2d needs inputs [n, height, width, channels] and kernel [height, width, channels, filters], "
            f"got {inputs.shape} and {kernel.shape}"
        )
    if lowering != "auto" and lowering not in _LOWERINGS:
        raise ValueError(f"unknown lowering {lowering!r}; allowed: auto, {', '.join(_LOWERINGS)}")
    pads = resolve_padding(inputs.shape[1:3], kernel.shape[:2], stride, padding)
    function = _choose(kernel.shape) if lowering == "auto" else _LOWERINGS[lowering]
    return function(inputs, kernel, stride, pads)


def resolve_padding(
    image: tuple[int, ...], window: tuple[int, ...], stride: int, padding: Padding
) -> lowerings.Pads:
    """Numbers of values before and after each spatial axis; see `conv2d` for the rules and errors."""
    if not isinstance(stride, int) or stride < 1:
        raise ValueError(f"stride must be a positive integer, got {stride!r}")
    if isinstance(padding, int) and padding >= 0:
        before = after = (padding, padding)
    elif padding == "VALID":
        before = after = (0, 0)
    elif padding == "SAME":
        total = [max((-(-size // stride) - 1) * stride + k - size, 0) for size, k in zip(image, window, strict=True)]
        before = (total[0] // 2, total[1] // 2)
        after = (total[0] - before[0], total[1] - before[1])
    else:
        raise ValueError(f"padding must be 'SAME', 'VALID' or an integer >= 0, got {padding!r}")
    pads = ((before[0], after[0]), (before[1], after[1]))
    if any(size + sum(pad) < k for size, pad, k in zip(image, pads, window, strict=True)):
        raise ValueError(
            f"a {window[0]}x{window[1]} window does not fit into a {image[0]}x{image[1]} image with padding "
            f"{padding!r}; use larger images or more padding"
        )
    return pads


def _choose(kernel_shape: tuple[int, ...]) -> Callable:
    height, width, channels, _ = kernel_shape
    if jax.default_backend() == "cpu":
        return lowerings.blocks if channels >= 16 else lowerings.slices
    return lowerings.slices if height == width == 1 else lowerings.plain_or_slices
