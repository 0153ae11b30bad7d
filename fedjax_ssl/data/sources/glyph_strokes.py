"""Our own stroke alphabet: digits, capitals and small letters as a pen writes them, some in several forms.

`glyph_strokes.txt` has the forms. A form is a string of strokes separated by `|`; a stroke is a list of points `x,y`
that a smooth curve runs through. A point marked `!` is a corner, and between two corners without points in between the
curve is a straight line. A stroke that ends in `@` is closed. The baseline is y = 0, small letters reach 7, capitals
and digits 12, descenders -4.
"""

import itertools
from functools import cache
from importlib import resources

import numpy as np


def _read_forms() -> dict[str, tuple[str, ...]]:
    lines = resources.files(__package__).joinpath("glyph_strokes.txt").read_text(encoding="utf-8").splitlines()[1:]
    pairs = [line.split(" ", 1) for line in lines]
    return {character: tuple(form for other, form in pairs if other == character) for character, _ in pairs}


FORMS = _read_forms()
CHARACTERS = tuple(FORMS)
# About three pixels at the usual size: chords this long leave a curve by a fraction of a pixel.
CHORD = 2.2


@cache
def form_table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All forms as line segments of equal number.

    Returns:
        segments float32 [forms, segments, 2 ends, 2 coordinates] (short forms repeat their last segment,
        which does not change what is drawn), centred on x = 0; first_form int32 [62]; num_forms int32 [62].
    """
    drawn = [_segments(form) for forms in FORMS.values() for form in forms]
    longest = max(len(segments) for segments in drawn)
    table = np.stack([np.pad(s, ((0, longest - len(s)), (0, 0), (0, 0)), mode="edge") for s in drawn])
    table[..., 0] -= (table[..., 0].max((1, 2), keepdims=True) + table[..., 0].min((1, 2), keepdims=True)) / 2
    num_forms = np.array([len(forms) for forms in FORMS.values()], np.int32)
    first_form = np.concatenate([[0], np.cumsum(num_forms)[:-1]]).astype(np.int32)
    return table.astype(np.float32), first_form, num_forms


def _segments(form: str) -> np.ndarray:
    lines = [_polyline(stroke.split()) for stroke in form.split("|")]
    return np.concatenate([np.stack([line[:-1], line[1:]], axis=1) for line in lines])


def _polyline(tokens: list[str]) -> np.ndarray:
    """Points along one stroke: Catmull-Rom curves between corners, in chords of about equal length."""
    closed = tokens[-1] == "@"
    tokens = tokens[:-1] if closed else tokens
    points = np.array([[float(value) for value in token.rstrip("!").split(",")] for token in tokens])
    if closed:
        return _thin(_curve(np.concatenate([points[-1:], points, points[:2]])))
    corners = [0, *(i for i, token in enumerate(tokens) if token.endswith("!")), len(tokens) - 1]
    pieces = []
    for start, stop in itertools.pairwise(corners):
        piece = points[start : stop + 1]
        pieces.append(_thin(_curve(np.concatenate([2 * piece[:1] - piece[1:2], piece, 2 * piece[-1:] - piece[-2:-1]]))))
    return np.concatenate([pieces[0], *(piece[1:] for piece in pieces[1:])])


def _curve(controls: np.ndarray) -> np.ndarray:
    """Dense points of the Catmull-Rom curve through controls[1:-1]; the outer two only set directions."""
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
