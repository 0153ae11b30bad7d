"""Augmentation inside the compiled step, before inputs are standardized.

An augmentation works on images as stored (uint8 or float), one key for the whole batch. What happens to an
image depends on the key and on its place in the batch only, so padding rows at the end change nothing.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, Shaped

from fedjax_ssl.checks import check_choices, check_numbers, check_whole_numbers
from fedjax_ssl.data.images.random_operations import FIXMATCH, SEMIFL, Strength, fetch_moved, random_operations
from fedjax_ssl.keys import named_key
from fedjax_ssl.registry import Registry

Augmentation = Callable[[Key[Array, ""], Shaped[Array, "n H W C"]], Shaped[Array, "n H W C"]]


def no_augmentation() -> Augmentation:
    """Images as they are."""
    return lambda key, images: images


def shift(pixels: int = 2, fill: Literal["reflect", "constant"] = "reflect", value: float = 0.0) -> Augmentation:
    """Translation by whole pixels, uniform in [-pixels, pixels] in each direction.

    Args:
        pixels: largest shift, >= 0 and smaller than the images.
        fill: what comes in at the border: the image mirrored about its edge pixels, or `value`.
        value: stored value for `fill="constant"`.
    """
    return _shifted(pixels, fill, value, mirrored=False)


def crop_flip(pixels: int = 4, fill: Literal["reflect", "constant"] = "reflect", value: float = 0.0) -> Augmentation:
    """`shift`, then a horizontal flip of every second image on average: the CIFAR augmentation of FedAvg+XCLP.

    Args:
        pixels: largest shift, >= 0 and smaller than the images.
        fill: what comes in at the border: the image mirrored about its edge pixels, or `value`.
        value: stored value for `fill="constant"`.
    """
    return _shifted(pixels, fill, value, mirrored=True)


def rotate(degrees: float = 20.0) -> Augmentation:
    """Rotation about the centre by an angle uniform in [-degrees, degrees], nearest pixel, 0 outside.

    FedUL's augmentation of MNIST (its released code).

    Args:
        degrees: largest angle, in [0, 180].
    """
    check_numbers("[0, 180]", degrees=degrees)

    def augment(key: Key[Array, ""], images: Shaped[Array, "n H W C"]) -> Shaped[Array, "n H W C"]:
        _check_images(images)
        drawn = jax.random.uniform(named_key(key, "angle"), images.shape[:1], jnp.float32, -1.0, 1.0)
        return fetch_moved(images, jnp.deg2rad(degrees) * drawn)

    return augment


def fixmatch(pixels: int = 4, flip: bool = True, operations: int = 2, input_max: float = 255.0) -> Augmentation:
    """Strong augmentation of FixMatch: shift, flip, then random operations of random strength and a cutout.

    Args:
        pixels: largest shift, >= 0 and smaller than the images.
        flip: mirror every second image on average; not for images that mean something else then, such as digits.
        operations: random operations per image, see `random_operations`; moved by at most 30 % of the
            side, cut out at most 50 %.
        input_max: largest stored value.
    """
    return _strong(FIXMATCH, pixels, flip, operations, input_max)


def semifl(pixels: int = 4, flip: bool = True, operations: int = 2, input_max: float = 255.0) -> Augmentation:
    """Strong augmentation of SemiFL's published code: as `fixmatch`, but always at the largest magnitude.

    Translation by 100 and a cutout of 40 pixels leave nothing of many small images: this is for reproduction.

    Args:
        pixels: largest shift, >= 0 and smaller than the images.
        flip: mirror every second image on average.
        operations: random operations per image, each applied with probability one half.
        input_max: largest stored value.
    """
    return _strong(SEMIFL, pixels, flip, operations, input_max)


def _strong(strength: Strength, pixels: int, flip: bool, operations: int, input_max: float) -> Augmentation:
    check_whole_numbers(0, operations=operations)
    check_numbers("(0, inf)", input_max=input_max)
    moved = crop_flip(pixels) if flip else shift(pixels)

    def augment(key: Key[Array, ""], images: Shaped[Array, "n H W C"]) -> Shaped[Array, "n H W C"]:
        return random_operations(named_key(key, "operations"), moved(key, images), strength, operations, input_max)

    return augment


AUGMENTATIONS: Registry[Augmentation] = Registry(
    "augmentation",
    {
        "none": no_augmentation,
        "shift": shift,
        "crop_flip": crop_flip,
        "rotate": rotate,
        "fixmatch": fixmatch,
        "semifl": semifl,
    },
    given=("input_max",),
)
augmentation = AUGMENTATIONS.build  # (name, **options) -> Augmentation, which works under jit and vmap


def _shifted(pixels: int, fill: str, value: float, mirrored: bool) -> Augmentation:
    check_whole_numbers(0, pixels=pixels)
    check_choices(("reflect", "constant"), fill=fill)

    def augment(key: Key[Array, ""], images: Shaped[Array, "n H W C"]) -> Shaped[Array, "n H W C"]:
        flip = (_bits(key, "flip", images.shape[0]) % 2).astype(bool) if mirrored else None
        return _crop(key, images, pixels, fill, value, flip)

    return augment


def _check_images(images: Shaped[Array, "n H W C"]) -> None:
    if images.ndim != 4:
        raise ValueError(f"augmentation needs images [n, H, W, C], got shape {images.shape}; use 'none' for features")


def _bits(key: Key[Array, ""], name: str, size: int) -> Int[Array, " size"]:
    return jax.random.bits(named_key(key, name), (size,), jnp.uint32)


def _crop(
    key: Key[Array, ""], images: Shaped[Array, "n H W C"], pixels: int, fill: str, value: float, flip: Array | None
) -> Shaped[Array, "n H W C"]:
    """Shifts every image and mirrors those with `flip`, by two gathers: rows, then columns."""
    _check_images(images)
    size, height, width, _ = images.shape
    if pixels >= min(height, width):
        raise ValueError(f"pixels={pixels} must be smaller than the images, which are {height} x {width}")
    steps = jnp.uint32(2 * pixels + 1)
    down = (_bits(key, "down", size) % steps).astype(jnp.int32) - pixels
    right = (_bits(key, "right", size) % steps).astype(jnp.int32) - pixels
    rows = jnp.arange(height, dtype=jnp.int32) - down[:, None]
    columns = jnp.arange(width, dtype=jnp.int32) - right[:, None]
    if flip is not None:
        columns = jnp.where(flip[:, None], columns[:, ::-1], columns)
    moved = jnp.take_along_axis(images, _reflect(rows, height)[:, :, None, None], axis=1)
    moved = jnp.take_along_axis(moved, _reflect(columns, width)[:, None, :, None], axis=2)
    if fill == "reflect":
        return moved
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    return jnp.where(inside[..., None], moved, jnp.asarray(value, images.dtype))


def _reflect(position: Int[Array, "n s"], size: int) -> Int[Array, "n s"]:
    """Positions beyond the border, mirrored about the border pixel."""
    return (size - 1) - jnp.abs((size - 1) - jnp.abs(position))
