"""The convolution layer's function: fast inside `lax.scan` on CPU and under `vmap` over kernels."""

from collections.abc import Callable

import jax
from jaxtyping import Array, Float

from fedjax_ssl.backend import backend, compiles_kernels
from fedjax_ssl.checks import check_whole_numbers
from fedjax_ssl.models import lowerings, separate
from fedjax_ssl.models.winograd import winograd

Padding = str | int

# Input channels from which on the products that Winograd's algorithm saves outweigh its transforms.
_WINOGRAD_CHANNELS = 16

_LOWERINGS: dict[str, Callable] = {
    "lax": lowerings.plain,
    "slices": lowerings.slices,
    "rows": lowerings.rows,
    "winograd": winograd,
    "implicit": separate.products,
    "xla": separate.plain_or_slices,
}

_WITH_BIAS_AND_RELU = (separate.by_cost, separate.products)


def conv2d(
    inputs: Float[Array, "n h w c"],
    kernel: Float[Array, "kh kw c f"],
    *,
    stride: int = 1,
    padding: Padding = "SAME",
    lowering: str = "auto",
    bias: Float[Array, " f"] | None = None,
    relu: bool = False,
) -> Float[Array, "n h2 w2 f"]:
    """Cross-correlates NHWC images with an HWIO kernel.

    XLA's own convolution is not fast everywhere: in a loop on CPU its two gradients leave the fast path, and under
    `vmap` over kernels it becomes a grouped convolution, slow on CPU and, in its backward pass, on GPU (jax#13800).
    Matrix products over shifted slices stay fast in both places, and on a GPU a product that reads the images
    themselves moves a fraction of their bytes. All lowerings give the same values and gradients up to rounding;
    "winograd" loses about two thirds of a decimal digit more than the others:

    | lowering | how | derivatives |
    |---|---|---|
    | "lax" | `lax.conv_general_dilated`, the oracle | any |
    | "slices" | kh*kw shifted slices side by side, one product | any |
    | "rows" | kw shifted slices side by side, kh products | any |
    | "winograd" | a transform of tiles, (7 - kh)(7 - kw) outputs for 36 products, see `winograd` | any |
    | "implicit" | one product that reads the images, for GPUs (elsewhere interpreted), see `implicit` | reverse mode |
    | "xla" | "lax", or "slices" where `vmap` gives every client a kernel | reverse mode |
    | "auto" | chosen by backend and shape | any on cpu, reverse mode elsewhere |

    What "auto" takes, and under `vmap` over kernels (which makes the products batched ones):

    | backend | shape | shared kernel | kernels under `vmap` |
    |---|---|---|---|
    | cpu | 16 input channels or more | "winograd" | "winograd" |
    | cpu | otherwise | "slices" | "slices" |
    | gpu, NVIDIA's from Ampere on | larger than 1x1 | "lax" | for each pass what takes least, see `ways` |
    | tpu | larger than 1x1 | "lax" | "lax", a grouped convolution, for multiples of 128 channels, else "slices" |
    | other gpus | larger than 1x1 | "lax" | "slices" |
    | all of these | 1x1 | "slices", which is one product | "slices" |

    Measured for one core (experiments/benchmarks/conv.py --threads 1 --clock cpu --repeats 8 --steps 3; one core of an
    Intel Xeon with AVX-512, jax 0.10.2, torch 2.13.0, float32, in `lax.scan`): GFLOP/s of output and both gradients,
    counted as the plain convolution's for all, and examples/s of SGD steps of model "cnn". Column "lax" is from another
    machine (--repeats 2 --steps 1 --lax). Column "auto" is from before Winograd's tiles had two dimensions, with twice
    as many products; a step of "cnn" has become 1.2 times as fast since (docs/design-notes.md).

    | layer, 3x3 | "auto" | "slices" | "rows" | "lax" | PyTorch, faster format |
    |---|---|---|---|---|---|
    | 20x26x26x32 -> 64 | 103 | 65 | 70 | 3 | 114 |
    | 20x16x16x128 -> 256 | 185 | 105 | 96 | 3 | 150 |
    | 64x32x32x64 -> 128 | 121 | 67 | 66 | not run | 114 |
    | 20x28x28x1 -> 32 | "slices" | 25 | 15 | not run | 9 |
    | 20x32x32x3 -> 128 | "slices" | 70 | 30 | not run | 40 |
    | 20x32x32x16 -> 16 | 51 | 30 | 33 | not run | 92 |
    | "cnn", 20x28x28x1, 62 classes | 1,089 | 807 | 610 | not run | 955 |

    Two cores (--threads 2 --repeats 10 --steps 4, wall time), first three layers: "auto" 178, 303, 248, "slices" 115,
    194, 136, PyTorch 190, 300, 228.

    For GPUs and TPUs, programs of all ways were compiled and read (docs/accelerators.md); none of them has been timed.

    Args:
        inputs: images.
        kernel: of the inputs' dtype.
        stride: of both spatial axes.
        padding: "SAME" (output size ceil(input / stride), TensorFlow's rule), "VALID", or the number of zeros on
            every side.
        lowering: see above.
        bias: is added to the responses.
        relu: whether negative results become 0; a GPU does both before it writes the responses.

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
    if lowering == "implicit" and backend() == "gpu" and not compiles_kernels():
        raise ValueError(
            "lowering 'implicit' needs an NVIDIA GPU from Ampere on, and a JAX whose Pallas has Triton; take 'auto'"
        )
    if bias is not None and relu and inputs.size and function in _WITH_BIAS_AND_RELU and backend() == "gpu":
        return function(inputs, kernel, stride, pads, bias.astype(inputs.dtype))
    outputs = function(inputs, kernel, stride, pads)
    outputs = outputs if bias is None else outputs + bias
    return jax.nn.relu(outputs) if relu else outputs


def resolve_padding(image: tuple[int, ...], window: tuple[int, ...], stride: int, padding: Padding) -> lowerings.Pads:
    """Numbers of values before and after each spatial axis; see `conv2d` for the rules and errors."""
    check_whole_numbers(stride=stride)
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
    if backend() == "cpu":
        return winograd if channels >= _WINOGRAD_CHANNELS else lowerings.slices
    return lowerings.slices if height == width == 1 else separate.by_cost
