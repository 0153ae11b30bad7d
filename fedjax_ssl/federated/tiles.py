"""What arrays take of memory, plain and in the tiles in which a TPU keeps them."""

import math
from typing import Any

LANES, SUBLANES = 128, 8  # of a tile of a TPU: two axes are padded to multiples of it, by default the last two
_ALIGNMENT = 1 << 14  # of a buffer of a TPU
_MOST_PADDING = 5  # a layout that pads more is not chosen


def array_bytes(array: Any) -> int:
    """Bytes of an array, of which only shape and type are used."""
    dtype = getattr(array, "dtype", None)  # tokens have none
    return 0 if dtype is None else math.prod(array.shape) * dtype.itemsize


def padded_bytes(aval: Any, minor: tuple[int, ...] = (-1, -2)) -> int:
    """Bytes of an array in tiles.

    Args:
        aval: its shape and type.
        minor: the axis that lies along a tile's lanes, and the one along its sublanes.
    """
    shape = list(aval.shape)
    for axis, tile in zip(minor, (LANES, SUBLANES), strict=False):
        if -len(shape) <= axis < len(shape):
            shape[axis] = _multiple(shape[axis], tile)
    return math.prod(shape) * aval.dtype.itemsize


def grouped_bytes(aval: Any, axis: int, groups: int) -> int:
    """Bytes of an operand or a result of a grouped convolution: each group's channels lie along the lanes.

    Args:
        aval: its shape and type.
        axis: of the channels.
        groups: that these are divided into.
    """
    channels = aval.shape[axis]
    padded = _multiple(groups, SUBLANES) * _multiple(channels // groups, LANES)
    return array_bytes(aval) // max(channels, 1) * padded


def moved_bytes(aval: Any) -> int:
    """Bytes of an array of which parts along the last axis are wanted: another axis lies along the lanes."""
    rank = len(aval.shape)
    return min((padded_bytes(aval, (axis, axis - 1)) for axis in range(rank - 1)), default=padded_bytes(aval))


def tiled_bytes(aval: Any) -> int:
    """Bytes of a buffer on a TPU."""
    plain = array_bytes(aval)
    if not plain:
        return 0
    least = min(padded_bytes(aval), _MOST_PADDING * plain)
    if len(aval.shape) == 4 and aval.shape[0] % LANES == 0:
        least = min(least, padded_bytes(aval, (0, 3)))  # images lie along the lanes where they fill them
    return _multiple(least, _ALIGNMENT)


def _multiple(number: int, of: int) -> int:
    return -(-number // of) * of
