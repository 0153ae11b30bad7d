"""Weak augmentation by name: flips, shifts, rotation, enlargement."""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.checks import In, Whole
from fedjax_ssl.data.images.operations import Stored
from fedjax_ssl.keys import PRNGKey, named_key

# (key, images) -> images, as stored (uint8 or float), of the same shape and type; one key for the
# whole batch. The change of an image depends on the key and its place only, so padding rows at the
# end change nothing.
Augmentation = Callable[[PRNGKey, Stored], Stored]


def check_images(images: Stored) -> None:
    """Raise ValueError unless the shape is that of images."""
    if images.ndim != 4:
        raise ValueError(
            f"augmentation needs images [n, H, W, C], got shape {images.shape}; use 'none' for "
            "features"
        )


def no_augmentation() -> Augmentation:
    """Return the images unchanged."""
    return lambda key, images: images


@dataclasses.dataclass(frozen=True)
class Shift:
    """Translation by whole pixels, uniform in [-pixels, pixels] in each direction.

    Attributes:
        pixels: largest shift, >= 0 and smaller than the images.
        fill: what comes in at the border: the image mirrored about its edge pixels, or 0.
    """

    pixels: Annotated[int, Whole(0, 1000)] = 2
    fill: Literal["reflect", "constant"] = "reflect"


@dataclasses.dataclass(frozen=True)
class FartherShift(Shift):
    """The same shift, by up to 4 pixels."""

    pixels: Annotated[int, Whole(0, 1000)] = 4


def shift(by: Shift) -> Augmentation:
    """Translate by whole pixels, uniform in [-pixels, pixels] in each direction.

    Args:
        by: distance, and pixels at the border.
    """
    return lambda key, images: _crop(key, images, by)


def crop_flip(by: FartherShift) -> Augmentation:
    """`shift`, then a horizontal flip of every second image on average: the CIFAR augmentation of
    FedAvg+XCLP.

    Args:
        by: distance, and pixels at the border.
    """
    return lambda key, images: _crop(key, images, by, _mirrored(key, images))


def flip() -> Augmentation:
    """Flip every second image horizontally, on average."""

    def augment(key: PRNGKey, images: Stored) -> Stored:
        check_images(images)
        return _flipped(key, images)

    return augment


def rotate(degrees: Annotated[float, In("[0, 180]")] = 20.0) -> Augmentation:
    """Rotation about the centre by an angle uniform in [-degrees, degrees], nearest pixel, 0
    outside.

    FedUL's augmentation of MNIST (its released code).

    Args:
        degrees: largest angle, in [0, 180].
    """

    def augment(key: PRNGKey, images: Stored) -> Stored:
        check_images(images)
        return turn(images, jnp.deg2rad(degrees) * _uniform(key, "angle", len(images)))

    return augment


def translate(
    flip: bool = True,
    input_max: float = 255.0,
) -> Augmentation:
    """Translate by any part of an eighth of the side in each direction, linear between pixels, and
    flip; grey comes in at the border.

    This is the weak view of FixMatch in ProtoFSSL's baselines.

    Args:
        flip: mirror every second image on average.
        input_max: largest stored value.
    """

    def augment(key: PRNGKey, images: Stored) -> Stored:
        check_images(images)
        moved = images.astype(jnp.float32)
        if flip:
            moved = _flipped(key, moved)
        for axis, name in ((1, "down"), (2, "right")):
            offset = _uniform(key, name, len(images), 0.125 * images.shape[axis])
            moved = slide(moved, offset, axis, 0.5 * input_max)
        return rounded(moved, images.dtype)

    return augment


def resize_crop(size: Annotated[int, Whole(1, 10_000)] = 40, flip: bool = True) -> Augmentation:
    """Enlarge to `size` pixels, cut out a random window of the image's own size, and flip.

    This is CBAFed's augmentation. It is bilinear and equal to Pillow's up to one stored level:
    along rows first, rounded to whole values after each direction.

    Args:
        size: height and width of the enlarged image, at least those of the images.
        flip: mirror every second image on average.
    """

    def augment(key: PRNGKey, images: Stored) -> Stored:
        check_images(images)
        count, height, width, _ = images.shape
        if size < max(height, width):
            raise ValueError(
                f"size={size} must be at least the images' size, which is {height} x {width}"
            )
        whole = not jnp.issubdtype(images.dtype, jnp.floating)
        enlarged = images.astype(jnp.float32)
        for axis, side in ((2, width), (1, height)):
            enlarged = jnp.tensordot(enlarged, _enlarging(side, size), ((axis,), (1,)))
            enlarged = jnp.moveaxis(enlarged, -1, axis)
            if whole:
                enlarged = jnp.floor(enlarged + 0.5)
        rows = _places(key, "down", count, size, height)
        columns = _places(key, "right", count, size, width)
        if flip:
            columns = jnp.where(_mirrored(key, images)[:, None], columns[:, ::-1], columns)
        cut = jnp.take_along_axis(enlarged, rows[:, :, None, None], axis=1)
        return jnp.take_along_axis(cut, columns[:, None, :, None], axis=2).astype(images.dtype)

    return augment


def flamby(input_max: float = 255.0) -> Augmentation:
    """FLamby's augmentation of Fed-ISIC2019, in its order; a part changes every second image on
    average.

    A scaling by 0.93 to 1.07; a rotation by up to 50 degrees; contrast by up to 10 % and brightness
    by up to 15 % of the range; a flip along rows, columns or both; a shift of all images by up to
    12 of 224 pixels, so that their middle is a random crop; one to eight black squares of 16
    pixels.

    Source: github.com/owkin/FLamby. Its shear by 0.1 degrees, less than half a pixel, is left out.
    Pixels that a smaller or rotated image does not cover are black here; FLamby's crop of a scaled
    image lies within it.

    Args:
        input_max: largest stored value.
    """

    def augment(key: PRNGKey, images: Stored) -> Stored:
        check_images(images)
        count, height, width, _ = images.shape

        def drawn(name: str, part: str) -> Float[Array, "n 1 1 1"]:
            """Draw from [-1, 1] if the part changes the image, otherwise 0."""
            value = jnp.where(_bits(key, part, count) % 2 == 0, _uniform(key, name, count), 0.0)
            return value[:, None, None, None]

        def covered(corner: Float[Array, "n h"], length: int) -> Bool[Array, "n h length"]:
            start = jnp.floor(corner * (max(length - 16, 0) + 1))[..., None]
            along = jnp.arange(length, dtype=jnp.float32) - start
            return (along >= 0) & (along < 16)

        changed = turn(
            images,
            jnp.deg2rad(50.0) * drawn("angle", "turned").ravel(),
            1.0 + 0.07 * drawn("zoom", "zoomed").ravel(),
        ).astype(jnp.float32)
        light = 0.15 * input_max * drawn("brightness", "light")
        changed = changed * (1.0 + 0.1 * drawn("contrast", "light")) + light
        changed = rounded(jnp.clip(changed, 0.0, input_max), images.dtype)
        way = (_bits(key, "flip", count) % 6)[:, None, None, None]  # 0 to 2: none
        changed = jnp.where((way == 3) | (way == 5), changed[:, ::-1], changed)
        changed = jnp.where(way >= 4, changed[:, :, ::-1], changed)
        changed = _crop(key, changed, Shift(min(height, width) * 12 // 224))
        number = 1 + _bits(key, "squares", count) % 8
        squares = jnp.where(_bits(key, "hidden", count) % 2 == 0, number, jnp.uint32(0))
        corner = jax.random.uniform(named_key(key, "corner"), (count, 2, 8), jnp.float32)
        drawn_ones = (jnp.arange(8, dtype=jnp.uint32) < squares[:, None])[..., None]
        there = covered(corner[:, 0], height) & drawn_ones
        hidden = jnp.any(there[..., None] & covered(corner[:, 1], width)[:, :, None], axis=1)
        return jnp.where(hidden[..., None], jnp.zeros((), images.dtype), changed)

    return augment


def _enlarging(side: int, size: int) -> Float[Array, "size side"]:
    """Return the weights of stored pixels in an enlarged line: linear between centres, with the
    edge repeated.
    """
    centre = (jnp.arange(size, dtype=jnp.float32) + 0.5) * (side / size) - 0.5
    weight = jnp.maximum(1.0 - jnp.abs(centre[:, None] - jnp.arange(side, dtype=jnp.float32)), 0.0)
    return weight / jnp.sum(weight, axis=1, keepdims=True)


def _places(key: PRNGKey, name: str, count: int, size: int, side: int) -> Int[Array, "count side"]:
    """Draw a window of `side` neighbouring places among `size` for every image, uniformly."""
    first = (_bits(key, name, count) % jnp.uint32(size - side + 1)).astype(jnp.int32)
    return first[:, None] + jnp.arange(side, dtype=jnp.int32)


def _flipped(key: PRNGKey, images: Stored) -> Stored:
    return jnp.where(_mirrored(key, images)[:, None, None, None], images[:, :, ::-1], images)


def _mirrored(key: PRNGKey, images: Stored) -> Bool[Array, " n"]:
    """Draw a mask of every second image on average."""
    return (_bits(key, "flip", images.shape[0]) % 2).astype(bool)


def _bits(key: PRNGKey, name: str, size: int) -> Int[Array, " size"]:
    return jax.random.bits(named_key(key, name), (size,), jnp.uint32)


def _uniform(key: PRNGKey, name: str, size: int, most: float = 1.0) -> Float[Array, " size"]:
    return jax.random.uniform(named_key(key, name), (size,), jnp.float32, -most, most)


def rounded(values: Array, dtype: Any) -> Array:
    """Round values if their stored type is an integer type."""
    whole = not jnp.issubdtype(dtype, jnp.floating)
    return (jnp.round(values) if whole else values).astype(dtype)


def _crop(key: PRNGKey, images: Stored, by: Shift, flip: Array | None = None) -> Stored:
    """Shift every image and mirror those with `flip`, by two gathers: rows, then columns."""
    check_images(images)
    _, height, width, _ = images.shape
    if by.pixels >= min(height, width):
        raise ValueError(
            f"pixels={by.pixels} must be smaller than the images, which are {height} x {width}"
        )

    def places(name: str, side: int) -> Int[Array, "n side"]:
        drawn = _bits(key, name, len(images)) % jnp.uint32(2 * by.pixels + 1)
        offset = drawn.astype(jnp.int32) - by.pixels
        return jnp.arange(side, dtype=jnp.int32) - offset[:, None]

    rows = places("down", height)
    columns = places("right", width)
    if flip is not None:
        columns = jnp.where(flip[:, None], columns[:, ::-1], columns)
    moved = jnp.take_along_axis(images, _reflect(rows, height)[:, :, None, None], axis=1)
    moved = jnp.take_along_axis(moved, _reflect(columns, width)[:, None, :, None], axis=2)
    if by.fill == "reflect":
        return moved
    inside_rows = (rows >= 0) & (rows < height)
    inside = inside_rows[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    return jnp.where(inside[..., None], moved, jnp.zeros((), images.dtype))


def _reflect(position: Int[Array, "n s"], size: int) -> Int[Array, "n s"]:
    """Mirror positions beyond the border about the border pixel."""
    return (size - 1) - jnp.abs((size - 1) - jnp.abs(position))


def turn(
    images: Stored,
    angle: Float[Array, " n"],
    factor: float | Float[Array, " n"] = 1.0,
) -> Stored:
    """Rotate images about their centre by an angle in radians, counter-clockwise, and enlarge them
    by a factor.

    Nearest pixel, 0 outside.
    """
    size, height, width, _ = images.shape
    y = jnp.arange(height, dtype=jnp.float32)[:, None] - (height - 1) / 2
    x = jnp.arange(width, dtype=jnp.float32) - (width - 1) / 2
    cosine, sine = (
        function(angle)[:, None, None] / jnp.reshape(factor, (-1, 1, 1))
        for function in (jnp.cos, jnp.sin)
    )
    column = jnp.round(cosine * x - sine * y + (width - 1) / 2).astype(jnp.int32)
    row = jnp.round(sine * x + cosine * y + (height - 1) / 2).astype(jnp.int32)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    place = jnp.clip(row, 0, height - 1) * width + jnp.clip(column, 0, width - 1)
    flat = images.reshape(size, height * width, -1)
    fetched = jnp.take_along_axis(flat, place.reshape(size, -1, 1), axis=1).reshape(images.shape)
    return jnp.where(inside[..., None], fetched, jnp.zeros((), images.dtype))


def slide(
    images: Float[Array, "n H W C"], offset: Float[Array, " n"], axis: int, value: float
) -> Float[Array, "n H W C"]:
    """Move images along axis 1 (down) or 2 (right), linear between two neighbours, with `value`
    outside.

    Args:
        images: floating.
        offset: pixels, any real number.
        axis: 1 or 2.
        value: value of pixels that come in at the border.
    """
    length = images.shape[axis]
    whole = jnp.floor(offset)
    share = (offset - whole)[:, None, None, None]
    first = jnp.arange(length, dtype=jnp.int32) - whole.astype(jnp.int32)[:, None]

    def fetched(place: Int[Array, "n length"]) -> Float[Array, "n H W C"]:
        inside = (place >= 0) & (place < length)
        shape = (-1, length, 1, 1) if axis == 1 else (-1, 1, length, 1)
        found = jnp.take_along_axis(
            images, jnp.clip(place, 0, length - 1).reshape(shape), axis=axis
        )
        return jnp.where(inside.reshape(shape), found, value)

    return (1.0 - share) * fetched(first) + share * fetched(first - 1)
