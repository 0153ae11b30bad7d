"""Which way to compute a convolution with a kernel per client: bytes, launches and arithmetic of each, from shapes.

The numbers of the device are those of an H100. Ratios of bandwidth, arithmetic and launches decide, which are alike in
other GPUs.
"""

import math
from typing import Literal, NamedTuple

from fedjax_ssl.backend import backend, compiles_kernels
from fedjax_ssl.models import implicit

Pass = Literal["forward", "inputs", "kernel"]  # the results, or the gradient of the inputs or of the kernel

# Clients at once that are reckoned with. The same for any number, so that it does not change their bits.
_CLIENTS = 8
_LANES = 128  # of a TPU's tiles, and of its matrix units
_LAUNCH = 3e-6  # seconds between two kernels, at least
_BANDWIDTH = 3.35e12  # bytes per second
_PEAK = {2: 990e12, 4: 495e12, 8: 67e12}  # floating-point operations per second of products, by bytes of a value


class Sizes(NamedTuple):
    """A convolution of each of many clients."""

    images: tuple[int, ...]  # of a client: number, height, width, channels
    window: tuple[int, int]  # height and width of a kernel
    filters: int
    result: tuple[int, int]  # height and width
    stride: int
    itemsize: int  # bytes of a value

    @property
    def rows(self) -> int:
        """Positions of all results of a client."""
        return self.images[0] * math.prod(self.result)

    @property
    def values(self) -> tuple[int, int, int, int]:
        """How many a client has: of its images, its patches, its kernel and its results."""
        depth = math.prod(self.window) * self.images[3]
        return math.prod(self.images), self.rows * depth, depth * self.filters, self.rows * self.filters

    @property
    def operations(self) -> float:
        """In the product over patches, of a client."""
        return 2.0 * self.values[1] * self.filters


def fastest(sizes: Sizes, one: Pass) -> str:
    """The way that takes the least, of those that keep the order of sums: "slices", "implicit" or "native".

    On a TPU XLA's own grouped convolution where channels fill its tiles, for a sixth of the bytes of slices
    (docs/accelerators.md): it pads those of every group. On a GPU it is none of them: gradients by cuDNN may add in
    another order at the next run, and images are copied.
    """
    if backend() == "tpu":
        return "native" if sizes.images[3] % _LANES == sizes.filters % _LANES == 0 else "slices"
    if not compiles_kernels() or not implicit.applies(sizes.images, sizes.filters, sizes.result, sizes.itemsize):
        return "slices"
    return "implicit" if products_seconds(sizes, one) < slices_seconds(sizes, one) else "slices"


def slices_seconds(sizes: Sizes, one: Pass) -> float:
    """Of a product over shifted slices, which are written and read."""
    images, patches, kernel, results = sizes.values
    product = _seconds(sizes, patches + kernel + results, sizes.operations)
    if math.prod(sizes.window) == 1 and sizes.stride == 1:  # the images are the slices
        return product
    # What the pass forward wrote is there for the gradient of the kernel.
    kept = one == "kernel" and fastest(sizes, "forward") == "slices"
    return product + (0.0 if kept else _seconds(sizes, images + patches))


def products_seconds(sizes: Sizes, one: Pass) -> float:
    """Of the kernel that reads its factors where they lie, in whole tiles."""
    images, _, kernel, results = sizes.values
    places, channels = math.prod(sizes.window), sizes.images[3]
    shape = (sizes.rows, places, channels, sizes.filters, sizes.itemsize)
    operations = implicit.operations(*shape)
    if one == "forward":
        turned = _seconds(sizes, 2 * kernel) if implicit.turns(*shape) else 0.0
        return turned + _seconds(sizes, images + kernel + results, operations)
    if one == "inputs":  # between results that lie apart there are zeros
        return _seconds(sizes, images + kernel + results, operations * sizes.stride**2)
    sums = kernel * implicit.parts(*shape)
    added = _seconds(sizes, sums + kernel) if sums > kernel else 0.0
    return _seconds(sizes, images + sums + results, operations) + added


def _seconds(sizes: Sizes, values: float, operations: float = 0.0) -> float:
    """Of one kernel for all clients, at least."""
    moved, computed = (_CLIENTS * x for x in (values * sizes.itemsize, operations))
    return max(_LAUNCH, moved / _BANDWIDTH, computed / _PEAK[sizes.itemsize])
