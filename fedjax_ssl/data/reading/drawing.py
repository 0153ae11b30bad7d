"""Draw characters for `glyphs`: our own strokes, written by random writers.

`sources/glyph_strokes.txt` has the forms of digits, capitals and small letters, as a pen writes
them, some in several forms. A form is a string of strokes separated by `|`; a stroke is a list of
points `x,y` that a smooth curve runs through. A point marked `!` is a corner; between two corners
without points in between the curve is a straight line. A stroke that ends in `@` is closed. The
baseline is y = 0, small letters reach 7, capitals and digits 12, descenders -4.
"""

import itertools
from functools import cache, partial
from importlib import resources

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import ndtr
from jaxtyping import Array, Float, Int, UInt8

from fedjax_ssl.data.dataset import Split
from fedjax_ssl.keys import PRNGKey, named_key

SIZE = 28
BLOCK = 256
PIXELS_PER_UNIT = 1.5
UNITS_PER_HALF_HEIGHT = 8.0
MIDDLE_HEIGHT = 4.0
EDGE_SOFTNESS = 1.2
WARP_NUMBERS = 15
DIGIT_SHARE = 0.51
CAPITAL_SHARE = 0.25
TRAIN_SHARE = 0.9
# FEMNIST's spread, 85 of 227, and the most deviations of a writer from the mean.
RELATIVE_DEVIATION = 85 / 227
MAX_DEVIATIONS = 2.3
# About three pixels at the usual size: chords of this length differ from the curve by a fraction of
# a pixel.
CHORD = 2.2
# How often the letters a to z come in English text, in percent.
# fmt: off
LETTER_PERCENT = (
    8.2, 1.5, 2.8, 4.3, 12.7, 2.2, 2.0, 6.1, 7.0, 0.15, 0.8, 4.0, 2.4,
    6.7, 7.5, 1.9, 0.1, 6.0, 6.3, 9.1, 2.8, 1.0, 2.4, 0.15, 2.0, 0.1,
)
# fmt: on


def _read_forms() -> dict[str, tuple[str, ...]]:
    lines = (
        resources.files("fedjax_ssl.data.sources")
        .joinpath("glyph_strokes.txt")
        .read_text(encoding="utf-8")
        .splitlines()[1:]
    )
    pairs = [line.split(" ", 1) for line in lines]
    return {
        character: tuple(form for other, form in pairs if other == character)
        for character, _ in pairs
    }


Number = Int[Array, ""]
FORMS = _read_forms()
CHARACTERS = tuple(FORMS)


@cache
def form_table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return all forms as line segments of equal number.

    Returns:
        segments float32 [forms, segments, 2 ends, 2 coordinates] (short forms repeat their last
        segment, which does not change what is drawn), centred on x = 0; first_form int32 [62];
        num_forms int32 [62].
    """
    drawn = [_segments(form) for forms in FORMS.values() for form in forms]
    longest = max(len(segments) for segments in drawn)
    table = np.stack(
        [np.pad(s, ((0, longest - len(s)), (0, 0), (0, 0)), mode="edge") for s in drawn]
    )
    table[..., 0] -= (
        table[..., 0].max((1, 2), keepdims=True) + table[..., 0].min((1, 2), keepdims=True)
    ) / 2
    num_forms = np.array([len(forms) for forms in FORMS.values()], np.int32)
    first_form = np.concatenate([[0], np.cumsum(num_forms)[:-1]]).astype(np.int32)
    return table.astype(np.float32), first_form, num_forms


def _segments(form: str) -> np.ndarray:
    lines = [_polyline(stroke.split()) for stroke in form.split("|")]
    return np.concatenate([np.stack([line[:-1], line[1:]], axis=1) for line in lines])


def _polyline(tokens: list[str]) -> np.ndarray:
    """Return points along one stroke: Catmull-Rom curves between corners, in chords of about
    equal length.
    """
    closed = tokens[-1] == "@"
    tokens = tokens[:-1] if closed else tokens
    points = np.array(
        [[float(value) for value in token.rstrip("!").split(",")] for token in tokens]
    )
    if closed:
        return _thin(_curve(np.concatenate([points[-1:], points, points[:2]])))
    corners = [0, *(i for i, token in enumerate(tokens) if token.endswith("!")), len(tokens) - 1]
    pieces = []
    for start, stop in itertools.pairwise(corners):
        piece = points[start : stop + 1]
        pieces.append(
            _thin(
                _curve(
                    np.concatenate(
                        [2 * piece[:1] - piece[1:2], piece, 2 * piece[-1:] - piece[-2:-1]]
                    )
                )
            )
        )
    return np.concatenate([pieces[0], *(piece[1:] for piece in pieces[1:])])


def _curve(controls: np.ndarray) -> np.ndarray:
    """Return dense points of the Catmull-Rom curve through controls[1:-1]; the outer two only
    set directions.
    """
    t = np.linspace(0, 1, 16, endpoint=False)[:, None]
    before, start, stop, after = (controls[i : len(controls) - 3 + i, None] for i in range(4))
    dense = 0.5 * (
        2 * start
        + (stop - before) * t
        + (2 * before - 5 * start + 4 * stop - after) * t**2
        + (3 * start - before - 3 * stop + after) * t**3
    )
    return np.concatenate([dense.reshape(-1, 2), controls[-2:-1]])


def _thin(dense: np.ndarray) -> np.ndarray:
    along = np.concatenate([[0], np.cumsum(np.hypot(*np.diff(dense, axis=0).T))])
    places = np.linspace(0, along[-1], max(1, round(along[-1] / CHORD)) + 1)
    return np.stack([np.interp(places, along, dense[:, axis]) for axis in (0, 1)], axis=1)


def draw(writers: int, seed: int, examples: int) -> tuple[Split, Split]:
    """Draw the set of `glyphs`.

    Args:
        writers: number of natural clients.
        seed: the writers and everything they write.
        examples: mean number of images per writer.

    Returns:
        Training and test examples in the order of their writers: uint8 [n, 28, 28, 1], ink high.
    """
    key = named_key(jax.random.key(seed), "glyphs")
    most = round(examples * (1 + MAX_DEVIATIONS * RELATIVE_DEVIATION))
    counts, labels = jax.device_get(
        _texts(key, jnp.arange(writers, dtype=jnp.int32), examples, most)
    )
    written = np.arange(most) < counts[:, None]
    writer, position = (index.astype(np.int32) for index in np.nonzero(written))
    label = labels[written]
    images = np.empty((len(label), SIZE, SIZE, 1), np.uint8)
    for start in range(0, len(label), BLOCK):
        # Every block has the same size, so one program draws them all; the last one wraps around.
        rows = np.arange(start, start + BLOCK) % len(label)
        block = _render(key, writer[rows], position[rows], label[rows])
        images[start : start + BLOCK, ..., 0] = np.asarray(block)[: len(label) - start]
    # Positions are exchangeable, so the first nine tenths are a random choice.
    is_train = position < np.rint(TRAIN_SHARE * counts)[writer]
    train, test = (
        Split(images[chosen], label[chosen], writer[chosen]) for chosen in (is_train, ~is_train)
    )
    return train, test


def _class_bounds() -> np.ndarray:
    """Return upper bounds of the classes' shares in 0 .. 1, without the last one, which is 1."""
    letters = np.array(LETTER_PERCENT)
    letters = 0.5 * letters / letters.sum() + 0.5 / len(letters)
    small_share = 1 - DIGIT_SHARE - CAPITAL_SHARE
    shares = np.concatenate(
        [np.full(10, DIGIT_SHARE / 10), CAPITAL_SHARE * letters, small_share * letters]
    )
    return np.cumsum(shares)[:-1].astype(np.float32)


@partial(jax.jit, static_argnums=(2, 3))
def _texts(
    key: PRNGKey, writers: Int[Array, "w"], examples: int, most: int
) -> tuple[Int[Array, "w"], Int[Array, "w most"]]:
    """Draw the number of characters of each writer, and the characters."""

    def text(writer: Number) -> tuple[Number, Int[Array, "most"]]:
        stream = named_key(jax.random.fold_in(key, writer), "text")
        deviation = jnp.clip(
            _normal(named_key(stream, "count"), 1)[0], -MAX_DEVIATIONS, MAX_DEVIATIONS
        )
        count = jnp.rint(examples * (1 + RELATIVE_DEVIATION * deviation)).astype(jnp.int32)
        # A one-dimensional draw keeps its first values when it gets longer: `most` does not change
        # the text.
        place = jax.random.uniform(named_key(stream, "labels"), (most,), jnp.float32)
        return count, jnp.searchsorted(jnp.asarray(_class_bounds()), place, side="right").astype(
            jnp.int32
        )

    return jax.vmap(text)(writers)


@jax.jit
def _render(
    key: PRNGKey, writer: Int[Array, "b"], position: Int[Array, "b"], label: Int[Array, "b"]
) -> UInt8[Array, "b 28 28"]:
    """Draw one image per row; a row's image depends on nothing but the key and its own three
    numbers.
    """
    segments, radius, ink = jax.vmap(partial(_written, key))(writer, position, label)
    centres = jnp.arange(SIZE, dtype=jnp.float32) - (SIZE - 1) / 2
    x = centres[None, None, :]
    y = -centres[None, :, None]

    def nearer(squared: Float[Array, "b 28 28"], segment: Float[Array, "b 2 2"]):
        start = segment[:, 0]
        along = segment[:, 1] - segment[:, 0]
        along_x = along[:, 0, None, None]
        along_y = along[:, 1, None, None]
        from_x = x - start[:, 0, None, None]
        from_y = y - start[:, 1, None, None]
        length = along_x**2 + along_y**2
        place = jnp.clip((from_x * along_x + from_y * along_y) / jnp.maximum(length, 1e-12), 0, 1)
        return jnp.minimum(
            squared, (from_x - place * along_x) ** 2 + (from_y - place * along_y) ** 2
        ), None

    farthest = jnp.full((len(writer), SIZE, SIZE), float(SIZE * SIZE), jnp.float32)
    squared, _ = lax.scan(nearer, farthest, jnp.moveaxis(segments, 1, 0))
    coverage = jnp.clip((radius[:, None, None] - jnp.sqrt(squared)) / EDGE_SOFTNESS + 0.5, 0, 1)
    return jnp.rint(255 * ink[:, None, None] * coverage).astype(jnp.uint8)


def _written(
    key: PRNGKey, writer: Number, position: Number, label: Number
) -> tuple[Float[Array, "s 2 2"], Float[Array, ""], Float[Array, ""]]:
    """Write one character once in this writer's hand: segments and pen radius in pixels, and
    darkness.

    The strengths were chosen by eye on contact sheets, for as much variety as possible with
    readable characters.
    """
    hand = jax.random.fold_in(key, writer)
    style = _normal(named_key(hand, "style"), 6)
    letter = _normal(jax.random.fold_in(named_key(hand, "letter"), label), 1 + WARP_NUMBERS)
    chance = _normal(jax.random.fold_in(named_key(hand, "sample"), position), 7 + WARP_NUMBERS)

    table, first_form, num_forms = (jnp.asarray(part) for part in form_table())
    # The distribution function makes a normal number uniform, so all forms are equally likely.
    choice = jnp.floor(ndtr(letter[0]) * num_forms[label].astype(jnp.float32)).astype(jnp.int32)
    form = first_form[label] + jnp.minimum(choice, num_forms[label] - 1)
    points = (table[form] - jnp.array([0.0, MIDDLE_HEIGHT], jnp.float32)) / UNITS_PER_HALF_HEIGHT
    points = points + _warp(letter[1:], points, 0.07)
    points = points + _warp(chance[7:], points, 0.042)

    angle = 0.03 * style[0] + 0.07 * chance[0]
    slant = 0.1 + 0.2 * style[1] + 0.07 * chance[1]
    height = jnp.exp(0.1 * style[2] + 0.08 * chance[2])
    width = height * jnp.exp(0.14 * style[3] + 0.07 * chance[3])
    cos = jnp.cos(angle)
    sin = jnp.sin(angle)
    x = points[..., 0] * width + points[..., 1] * height * slant
    y = points[..., 1] * height
    points = (
        PIXELS_PER_UNIT
        * UNITS_PER_HALF_HEIGHT
        * jnp.stack([cos * x - sin * y, sin * x + cos * y], axis=-1)
    )

    radius = jnp.clip(1.15 * jnp.exp(0.25 * style[4] + 0.08 * chance[4]), 0.7, 1.85)
    ink = jnp.clip(0.97 + 0.06 * style[5], 0.8, 1.0)
    return _placed(points, radius, chance[5:7]), radius, ink


def _placed(
    points: Float[Array, "s 2 2"], radius: Float[Array, ""], shift: Float[Array, "2"]
) -> Float[Array, "s 2 2"]:
    """Centre a character, shrink it if it is too large for the image, and shift it within the
    image.
    """
    low = points.min((0, 1))
    high = points.max((0, 1))
    room = (SIZE - 1) / 2 - radius - EDGE_SOFTNESS / 2
    half = (high - low) / 2
    scale = jnp.minimum(1, room / jnp.maximum(half.max(), 1e-6))
    slack = room - scale * half
    return scale * (points - (low + high) / 2) + jnp.clip(shift, -slack, slack)


def _warp(
    numbers: Float[Array, "15"], points: Float[Array, "*s 2"], strength: float
) -> Float[Array, "*s 2"]:
    """Make a smooth displacement from normal numbers: three plane waves longer than strokes are
    apart.
    """
    numbers = numbers.reshape(3, 5)
    waves = 1.7 * numbers[:, :2]
    phases = 3 * numbers[:, 2]
    amplitudes = strength * numbers[:, 3:]
    return jnp.sin(jnp.einsum("...d,kd->...k", points, waves) + phases) @ amplitudes


def _normal(key: PRNGKey, count: int) -> Float[Array, "count"]:
    return jax.random.normal(key, (count,), jnp.float32)
