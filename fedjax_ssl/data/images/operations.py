"""Image operations of RandAugment with Pillow's arithmetic.

Images are planes [n, C, H, W] of whole numbers from 0 to 255 in float32, grey (C = 1) or colour (C
= 3), and stay so. Every function changes a batch, each image with its own strength, and works under
`jit` and `vmap`. Results equal Pillow 13's to the bit, except for `autocontrast`, where Pillow's
double precision may be one level lower, and `shear_smoothly`, which rounds in single precision.

Source: Pillow (`ImageOps`, `ImageEnhance`, `Image.rotate`, `Image.transform`).
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

Images = Float[Array, "n C H W"]
Strengths = Float[Array, " n"]  # one strength for each image
Stored = Shaped[Array, "n H W C"]  # images as in a dataset, uint8 or float

LARGEST = 255.0
_LEVELS = 256
_POINT = 16  # binary places of the fixed-point coordinates in Pillow's affine transform


def identity(images: Images) -> Images:
    """Return the images unchanged."""
    return images


def autocontrast(images: Images) -> Images:
    """Stretch every channel to 0..255; a constant channel is unchanged."""
    lowest = jnp.min(images, axis=(2, 3), keepdims=True)
    width = jnp.max(images, axis=(2, 3), keepdims=True) - lowest
    # Adding one half keeps a quotient of whole numbers on its side of the next one, whatever the
    # rounding.
    stretched = jnp.floor(((images - lowest) * LARGEST + 0.5) / jnp.maximum(width, 1.0))
    return jnp.where(width > 0, stretched, images)


def equalize(images: Images) -> Images:
    """Spread the values of every channel evenly, by the number of its pixels below each value."""
    count, channels, height, width = images.shape
    rows = count * channels
    # Within the table even where a value is NaN.
    values = jnp.clip(images.reshape(rows, height * width).astype(jnp.int32), 0, 255)
    places = (values + _LEVELS * jnp.arange(rows, dtype=jnp.int32)[:, None]).reshape(-1)
    histogram = jnp.zeros(rows * _LEVELS, jnp.int32).at[places].add(1, mode="promise_in_bounds")
    histogram = histogram.reshape(rows, _LEVELS)
    below = (jnp.cumsum(histogram, axis=1) - histogram).astype(jnp.float32)
    step = jnp.floor(jnp.max(jnp.where(histogram > 0, below, 0.0), axis=1, keepdims=True) / LARGEST)
    # Adding one half keeps a quotient of whole numbers on its side of the next one, as above.
    table = jnp.floor((jnp.floor(step / 2.0) + below + 0.5) / jnp.maximum(step, 1.0))
    kept = jnp.arange(_LEVELS, dtype=jnp.float32)
    table = jnp.where(step > 0, jnp.minimum(table, LARGEST), kept)
    return _fetched(table, values, images.shape)


def posterize(images: Images, step: Strengths) -> Images:
    """Round down to multiples of a step: 2^(8 - bits) keeps the highest bits."""
    step = _each(step)
    return jnp.floor(images / step) * step


def solarize(images: Images, threshold: Strengths) -> Images:
    """Invert values from a threshold on."""
    return jnp.where(images < _each(threshold), images, LARGEST - images)


def brightness(images: Images, factor: Strengths) -> Images:
    """Move from black (factor 0) to the image (1) and beyond."""
    return _blend(jnp.zeros_like(images), images, factor)


def color(images: Images, factor: Strengths) -> Images:
    """Move from the image without colour to the image and beyond."""
    return images if images.shape[1] == 1 else _blend(_luminance(images), images, factor)


def contrast(images: Images, factor: Strengths) -> Images:
    """Move from the mean luminance, a whole number, to the image and beyond."""
    luminance = _luminance(images).astype(jnp.int32)
    pixels = luminance.shape[2] * luminance.shape[3]
    mean = (2 * jnp.sum(luminance, axis=(1, 2, 3), keepdims=True) + pixels) // (2 * pixels)
    return _blend(mean.astype(jnp.float32), images, factor)


def sharpness(images: Images, factor: Strengths) -> Images:
    """Move from the smoothed image to the image and beyond.

    The smoothed image is the mean of the 3 x 3 neighbourhood, in which the pixel itself counts five
    times; the border is unchanged.
    """
    height, width = images.shape[2:]
    if min(height, width) < 3:
        return images
    around = sum(
        images[:, :, i : height - 2 + i, j : width - 2 + j] for i in range(3) for j in range(3)
    )
    smooth = jnp.floor((around + 4.0 * images[:, :, 1:-1, 1:-1]) / 13.0 + 0.5)
    return _blend(jnp.asarray(images).at[:, :, 1:-1, 1:-1].set(smooth), images, factor)


def move(images: Images, coefficients: Int[Array, "n 6"], fill: Float[np.ndarray, " C"]) -> Images:
    """Fetch every pixel from the nearest pixel of an affine map.

    Args:
        images: planes.
        coefficients: coefficients of `rotation`, `shear` or `translation`.
        fill: value per channel of pixels whose place is outside.
    """
    count, channels, height, width = images.shape
    y = jnp.arange(height, dtype=jnp.int32)[:, None]
    x = jnp.arange(width, dtype=jnp.int32)
    x_x, x_y, x_1, y_x, y_y, y_1 = (coefficients[:, i, None, None] for i in range(6))
    column = (x_x * x + x_y * y + x_1) >> _POINT
    row = (y_x * x + y_y * y + y_1) >> _POINT
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    place = jnp.where(inside, row * width + column, 0).reshape(count, 1, height * width)
    flat = images.reshape(count, channels, height * width)
    fetched = _fetched(flat, place, images.shape)
    return jnp.where(inside[:, None], fetched, fill[:, None, None])


def rotation(degrees: Float[np.ndarray, " L"], height: int, width: int) -> Int[np.ndarray, "L 6"]:
    """Return the coefficients of `move` for a turn about the centre, counter-clockwise."""
    angle = -np.radians(degrees)
    cosine = np.round(np.cos(angle), 15)
    sine = np.round(np.sin(angle), 15)
    from_x = width / 2 - cosine * (width / 2) - sine * (height / 2)
    from_y = height / 2 + sine * (width / 2) - cosine * (height / 2)
    return _fixed_point(cosine, sine, from_x, -sine, cosine, from_y)


def shear(amount: Float[np.ndarray, " L"], axis: int) -> Int[np.ndarray, "L 6"]:
    """Return the coefficients of `move` for a shear that keeps the top left corner; axis 1: x, axis
    0: y.
    """
    one = np.ones_like(amount)
    zero = np.zeros_like(amount)
    return _fixed_point(one, amount * (axis == 1), zero, amount * (axis == 0), one, zero)


def translation(pixels: Float[np.ndarray, " L"], axis: int) -> Int[np.ndarray, "L 6"]:
    """Return the coefficients of `move` for a shift, to the left or up where positive; axis 1:
    x, axis 0: y.
    """
    one = np.ones_like(pixels)
    zero = np.zeros_like(pixels)
    whole = np.floor(pixels + 0.5)
    return _fixed_point(one, zero, whole * (axis == 1), zero, one, whole * (axis == 0))


def shear_smoothly(
    images: Images, offset: Float[Array, "n H 2"], fill: Float[np.ndarray, " C"], axis: int = 1
) -> Images:
    """Shear with cubic interpolation along the rows (axis 1: x) or the columns (axis 0: y).

    Args:
        images: planes.
        offset: offset of `shear_offsets`, per row; per column for axis 0.
        fill: value per channel of pixels whose place is outside.
        axis: along which pixels move.
    """
    count, channels, height, width = images.shape
    rows = jnp.arange(height, dtype=jnp.int32)[:, None]
    columns = jnp.arange(width, dtype=jnp.int32)
    offset = offset[:, None] if axis == 0 else offset[:, :, None]
    whole = offset[..., 0].astype(jnp.int32)
    part = offset[..., 1]
    length, along = (height, rows + whole) if axis == 0 else (width, columns + whole)
    flat = images.reshape(count, channels, height * width)

    # Four fetches by one flat place each: XLA would repeat a wider fetch for every use of its
    # slices.
    def fetched(step: int) -> Images:
        near = jnp.clip(along + step, 0, length - 1)
        place = near * width + columns if axis == 0 else rows * width + near
        return _fetched(flat, place.reshape(count, 1, height * width), images.shape)

    before, left, right, after = map(fetched, (-1, 0, 1, 2))
    # Weights of the differences to one neighbour, so constant parts stay constant under rounding.
    square = part * part
    cube = part * part * part
    weights = 2.0 * square - part - cube, part + square - cube, cube - square
    pairs = zip(weights, (before, right, after), strict=True)
    value = left + sum(weight[:, None] * (other - left) for weight, other in pairs)
    middle = along + (part >= 0.5).astype(jnp.int32)  # the pixel in whose area the place lies
    inside = ((middle >= 0) & (middle < length))[:, None]
    return jnp.where(inside, jnp.floor(jnp.clip(value, 0.0, LARGEST)), fill[:, None, None])


def shear_offsets(amount: Float[np.ndarray, " L"], rows: int) -> Float[np.ndarray, "L H 2"]:
    """Return the offset of each row in `shear_smoothly`: whole pixels and the part above them."""
    offset = amount[:, None] * (np.arange(rows) + 0.5)
    return np.stack([np.floor(offset), offset - np.floor(offset)], axis=-1).astype(np.float32)


def cutout(
    images: Images,
    side: Strengths,
    spot: Float[Array, "n 2"],
    fill: Float[np.ndarray, " C"],
    full: bool = True,
) -> Images:
    """Hide a square.

    Args:
        images: planes.
        side: pixels.
        spot: the square's middle, row and column as shares of height and width.
        fill: value per channel in the square.
        full: a square that would begin above or left of the image begins at the border with its
            full side; otherwise it is cut off there, as at the other borders.
    """
    hidden = jnp.ones((), bool)
    for axis, length in enumerate(images.shape[2:]):
        middle = spot[:, axis] * length
        start = jnp.floor(middle) - jnp.floor(side / 2)
        if full:
            start = jnp.floor(jnp.maximum(middle - side / 2, 0.0))
        along = jnp.arange(length, dtype=jnp.float32) - start[:, None]
        covered = (along >= 0) & (along < jnp.floor(side)[:, None])
        hidden = hidden & (covered[:, None, :, None] if axis == 0 else covered[:, None, None, :])
    return jnp.where(hidden, fill[:, None, None], images)


def _fetched(table: Array, place: Array, shape: tuple[int, ...]) -> Array:
    """Fetch entries along the last axis, from places that are all within it."""
    found = jnp.take_along_axis(table, place, axis=-1, mode="promise_in_bounds")
    return found.reshape(shape)


def _luminance(images: Images) -> Float[Array, "n 1 H W"]:
    if images.shape[1] != 3:
        return jnp.floor(jnp.mean(images, axis=1, keepdims=True) + 0.5)
    red, green, blue = (images[:, i : i + 1] for i in range(3))
    # The weights are 0.299, 0.587 and 0.114 with 16 binary places: all sums are whole numbers below
    # 2^24, thus exact.
    return jnp.floor((19595.0 * red + 38470.0 * green + 7471.0 * blue + 32768.0) / 65536.0)


def _blend(other: Array, images: Images, factor: Strengths) -> Images:
    # Pillow rounds the product and the sum separately. A compiler's fused multiply-add would round
    # once, and values near a whole number would be one level off; the maximum between the two
    # changes nothing and prevents it.
    product = jnp.maximum(_each(factor) * (images - other), -1e6)
    return jnp.floor(jnp.clip(other + product, 0.0, LARGEST))


def _fixed_point(*coefficients: Float[np.ndarray, " L"]) -> Int[np.ndarray, "L 6"]:
    """Return the coefficients in fixed point; those of the constant include the middle of the
    pixel.
    """
    x_x, x_y, x_1, y_x, y_y, y_1 = coefficients
    terms = x_x, x_y, x_1 + x_x * 0.5 + x_y * 0.5, y_x, y_y, y_1 + y_x * 0.5 + y_y * 0.5
    fixed = [np.floor(term * 2.0**_POINT + 0.5) for term in terms]
    return np.stack(fixed, axis=-1).astype(np.int32)


def _each(values: Strengths) -> Float[Array, "n 1 1 1"]:
    return values[:, None, None, None]
