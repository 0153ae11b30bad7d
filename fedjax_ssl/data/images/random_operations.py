"""Random image operations inside the compiled step: the part of strong augmentation that comes after flip and crop.

Every image of a batch draws its own operations. All operations are worked out for the whole batch and each image keeps
its own, which on a device costs less than branching. Values are those stored, from 0 to `input_max`, grey or colour:
what mixes channels leaves grey images as they are. What an image draws depends on the key and on its place in the batch
only, so padding rows at the end change nothing.

Sources: RandAugment (Cubuk et al., NeurIPS 2020); ranges of FixMatch (Sohn et al., NeurIPS 2020, appendix); fixed
magnitudes of SemiFL's published code (Diao et al., NeurIPS 2022).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, Shaped

from fedjax_ssl.keys import named_key

LARGEST = 255.0  # the scale of the operations; stored values are brought to it and back
OPERATIONS = (
    *("identity", "invert", "autocontrast", "equalize", "brightness", "contrast", "color", "sharpness", "posterize"),
    *("solarize", "rotate", "shear_x", "shear_y", "translate_x", "translate_y", "cutout"),
)


class Strength(NamedTuple):
    """Which operations are drawn and how strong each is."""

    operations: tuple[str, ...]
    chance: float  # that a drawn operation is applied
    fixed: bool  # always the largest magnitude; else uniform up to it
    enhance: tuple[float, float]  # range of the factors of brightness, contrast, color, sharpness
    posterize: int  # fewest bits that are kept
    solarize: float  # lowest threshold, as a share of `input_max`
    rotate: float  # degrees
    shear: float
    translate: float  # share of the side, or pixels if above 1
    cutout: float  # share of the side, or pixels if above 1
    cutout_at_end: bool  # every image gets a cutout after its operations


FIXMATCH = Strength(
    operations=tuple(name for name in OPERATIONS if name not in ("invert", "cutout")),
    chance=1.0,
    fixed=False,
    enhance=(0.05, 0.95),
    posterize=4,
    solarize=0.0,
    rotate=30.0,
    shear=0.3,
    translate=0.3,
    cutout=0.5,
    cutout_at_end=True,
)
# Each operation is applied with a probability that is itself uniform in [0.2, 0.8]: one half, seen from outside.
SEMIFL = FIXMATCH._replace(
    operations=tuple(name for name in OPERATIONS if name != "identity"),
    chance=0.5,
    fixed=True,
    enhance=(1.9, 1.9),
    translate=100.0,
    cutout=40.0,
    cutout_at_end=False,
)


def random_operations(
    key: Key[Array, ""],
    images: Shaped[Array, "n H W C"],
    strength: Strength,
    num_operations: int = 2,
    input_max: float = 255.0,
) -> Shaped[Array, "n H W C"]:
    """Applies `num_operations` random operations, drawn with replacement, to every image.

    Args:
        key: typed PRNG key.
        images: as stored, integer or floating; floating ones are rounded to 256 levels.
        strength: which operations, how strong.
        num_operations: one after the other.
        input_max: largest stored value.

    Returns:
        Images of the same shape and dtype. What comes in at the border is 0, a cutout is mid-grey.
    """
    scale = LARGEST / input_max
    floating = jnp.issubdtype(images.dtype, jnp.floating)
    values = images.astype(jnp.float32) * scale
    values = jnp.round(values) if floating else values
    for number in range(num_operations):
        values = _one_operation(jax.random.fold_in(key, number), values, strength)
    if strength.cutout_at_end:
        magnitude = jax.random.uniform(named_key(key, "side"), values.shape[:1])
        values = _cutout(named_key(key, "cutout"), values, magnitude, strength.cutout)
    stored = jnp.round(values) / scale if floating else jnp.round(values / scale)
    return jnp.clip(stored, 0.0, input_max).astype(images.dtype)


def _one_operation(key: Key[Array, ""], images: Float[Array, "n H W C"], strength: Strength) -> Float[Array, "n H W C"]:
    size = images.shape[0]
    place = jax.random.bits(named_key(key, "operation"), (size,)) % jnp.uint32(len(strength.operations))
    applied = jax.random.uniform(named_key(key, "chance"), (size,)) < strength.chance
    magnitude = jax.random.uniform(named_key(key, "magnitude"), (size,))
    if strength.fixed:
        magnitude = jnp.ones_like(magnitude)
    sign = jnp.where(jax.random.bernoulli(named_key(key, "sign"), shape=(size,)), 1.0, -1.0)
    code = jnp.asarray([OPERATIONS.index(name) for name in strength.operations])[place]
    code = jnp.where(applied, code, OPERATIONS.index("identity"))

    def chosen(name: str) -> Bool[Array, " n"]:
        return code == OPERATIONS.index(name)

    result = _moved(images, chosen, sign * magnitude, strength)
    for name, changed in _colours(images, magnitude, strength).items():
        if name in strength.operations:
            result = jnp.where(_each(chosen(name)), changed, result)
    if "cutout" in strength.operations:
        cut = _cutout(named_key(key, "cutout"), images, magnitude, strength.cutout)
        result = jnp.where(_each(chosen("cutout")), cut, result)
    return result


def _colours(
    images: Float[Array, "n H W C"], magnitude: Float[Array, " n"], strength: Strength
) -> dict[str, Float[Array, "n H W C"]]:
    """Operations that keep pixels where they are."""
    low, high = strength.enhance
    factor = _each(low + magnitude * (high - low))
    luminance = _luminance(images)
    steps = _each(2.0 ** (8 - jnp.round(8 - magnitude * (8 - strength.posterize))))
    threshold = _each(1.0 - magnitude * (1.0 - strength.solarize)) * LARGEST
    return {
        "invert": LARGEST - images,
        "autocontrast": _autocontrast(images),
        "equalize": _equalize(images),
        "brightness": _limited(factor * images),
        "contrast": _blend(jnp.mean(luminance, axis=(1, 2, 3), keepdims=True), images, factor),
        "color": _blend(luminance, images, factor),
        "sharpness": _blend(_smooth(images), images, factor),
        "posterize": jnp.floor(images / steps) * steps,
        "solarize": jnp.where(images < threshold, images, LARGEST - images),
    }


def _moved(
    images: Float[Array, "n H W C"],
    chosen: Callable[[str], Bool[Array, " n"]],
    signed: Float[Array, " n"],
    strength: Strength,
) -> Float[Array, "n H W C"]:
    """Rotation, shear and translation."""
    height, width = images.shape[1:3]

    def amount(name: str, largest: float) -> Float[Array, " n"]:
        return jnp.where(chosen(name), largest * signed, 0.0)

    return fetch_moved(
        images,
        jnp.deg2rad(amount("rotate", strength.rotate)),
        (amount("shear_y", strength.shear), amount("shear_x", strength.shear)),
        (
            amount("translate_y", _pixels(strength.translate, height)),
            amount("translate_x", _pixels(strength.translate, width)),
        ),
    )


def fetch_moved(
    images: Shaped[Array, "n H W C"],
    angle: Float[Array, " n"],
    shear: tuple[Float[Array, " n"], Float[Array, " n"]] | None = None,
    shift: tuple[Float[Array, " n"], Float[Array, " n"]] | None = None,
) -> Shaped[Array, "n H W C"]:
    """Images turned about their centre, sheared and shifted; every pixel is fetched from the nearest place.

    Args:
        images: of any dtype.
        angle: radians, counter-clockwise.
        shear: of rows and of columns, pixels per pixel of distance from the centre.
        shift: of rows and of columns, pixels.

    Returns:
        Images of the same shape and dtype; 0 where the place is outside.
    """
    size, height, width, _ = images.shape
    y = jnp.arange(height, dtype=jnp.float32)[:, None] - (height - 1) / 2
    x = jnp.arange(width, dtype=jnp.float32) - (width - 1) / 2
    cosine, sine = _plane(jnp.cos(angle)), _plane(jnp.sin(angle))
    from_x, from_y = cosine * x - sine * y, sine * x + cosine * y
    if shear is not None:
        from_x, from_y = from_x + _plane(shear[1]) * y, from_y + _plane(shear[0]) * x
    if shift is not None:
        from_x, from_y = from_x + _plane(shift[1]), from_y + _plane(shift[0])
    column = jnp.round(from_x + (width - 1) / 2).astype(jnp.int32)
    row = jnp.round(from_y + (height - 1) / 2).astype(jnp.int32)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    place = jnp.clip(row, 0, height - 1) * width + jnp.clip(column, 0, width - 1)
    flat = images.reshape(size, height * width, -1)
    fetched = jnp.take_along_axis(flat, place.reshape(size, -1, 1), axis=1).reshape(images.shape)
    return jnp.where(inside[..., None], fetched, jnp.zeros((), images.dtype))


def _cutout(
    key: Key[Array, ""], images: Float[Array, "n H W C"], magnitude: Float[Array, " n"], largest: float
) -> Float[Array, "n H W C"]:
    """A mid-grey square around a random pixel, cut off at the border."""
    size, height, width, _ = images.shape
    side = _plane(magnitude * _pixels(largest, min(height, width)))
    middle_y = _plane(height * jax.random.uniform(named_key(key, "y"), (size,)))
    middle_x = _plane(width * jax.random.uniform(named_key(key, "x"), (size,)))
    y, x = jnp.arange(height, dtype=jnp.float32)[:, None] + 0.5, jnp.arange(width, dtype=jnp.float32) + 0.5
    hidden = (jnp.abs(y - middle_y) < side / 2) & (jnp.abs(x - middle_x) < side / 2)
    return jnp.where(hidden[..., None], jnp.round(0.5 * LARGEST), images)


def _autocontrast(images: Float[Array, "n H W C"]) -> Float[Array, "n H W C"]:
    lowest = jnp.min(images, axis=(1, 2), keepdims=True)
    width = jnp.max(images, axis=(1, 2), keepdims=True) - lowest
    return jnp.where(width > 0, (images - lowest) * (LARGEST / jnp.where(width > 0, width, 1.0)), images)


def _equalize(images: Float[Array, "n H W C"]) -> Float[Array, "n H W C"]:
    """Every value becomes the share of its channel's pixels that are not above it, stretched from 0 to the maximum."""
    size, height, width, channels = images.shape
    values = jnp.moveaxis(images, -1, 1).reshape(size * channels, height * width)
    ranks = jax.vmap(lambda one: jnp.searchsorted(jnp.sort(one), one, side="right"))(values).astype(jnp.float32)
    lowest = jnp.min(ranks, axis=1, keepdims=True)
    span = height * width - lowest
    stretched = jnp.where(span > 0, (ranks - lowest) * (LARGEST / jnp.where(span > 0, span, 1.0)), values)
    return jnp.moveaxis(stretched.reshape(size, channels, height, width), 1, -1)


def _luminance(images: Float[Array, "n H W C"]) -> Float[Array, "n H W 1"]:
    if images.shape[-1] == 3:
        return jnp.sum(images * jnp.asarray([0.299, 0.587, 0.114], images.dtype), axis=-1, keepdims=True)
    return jnp.mean(images, axis=-1, keepdims=True)


def _smooth(images: Float[Array, "n H W C"]) -> Float[Array, "n H W C"]:
    """Mean of the 3 x 3 neighbourhood in which the pixel itself counts five times; the border stays."""
    height, width = images.shape[1:3]
    if min(height, width) < 3:
        return images
    around = sum(images[:, i : height - 2 + i, j : width - 2 + j] for i in range(3) for j in range(3))
    return images.at[:, 1:-1, 1:-1].set((around + 4.0 * images[:, 1:-1, 1:-1]) / 13.0)


def _blend(other: Array, images: Array, factor: Array) -> Float[Array, "n H W C"]:
    return _limited(other + factor * (images - other))


def _limited(images: Array) -> Array:
    return jnp.clip(images, 0.0, LARGEST)


def _pixels(amount: float, side: int) -> float:
    return amount if amount > 1 else amount * side


def _each(values: Shaped[Array, " n"]) -> Shaped[Array, "n 1 1 1"]:
    return values[:, None, None, None]


def _plane(values: Shaped[Array, " n"]) -> Shaped[Array, "n 1 1"]:
    return values[:, None, None]
