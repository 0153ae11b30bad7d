"""Policies of random augmentation as data: the operations drawn, their number and their strength.

A strength is an entry of a table; a range is a table of `LEVELS` evenly spaced strengths. Sources:
the papers and their published code, which each policy names.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

LEVELS = 1024  # entries of a table that stands for a range

Table = Float[np.ndarray, " L"]
Amounts = Table | Sequence[float]
Fill = float | tuple[float, ...]  # value on the scale 0..255, for all channels or for each

MOVEMENTS = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
ENHANCERS = ("brightness", "color", "contrast", "sharpness")
BLACK = 0.0
GREY = 128.0
CIFAR_MEAN = (125.0, 123.0, 114.0)


class Choice(NamedTuple):
    """An operation that may be drawn, with its strengths."""

    operation: str  # operation of `random_augment.OPERATIONS`
    # One per level, or a single one for all levels; none if the operation has no strength. Degrees
    # (rotate), pixels per pixel (shear), factors (enhancers), bits kept (posterize), threshold
    # (solarize), shares of the side (translate, cutout) or pixels (translate).
    amounts: tuple[float, ...] = ()
    signed: bool = False
    # ^ a fair coin decides the sign: of a movement, or of an enhancer's factor minus 1
    pixels: bool = False  # the amounts of translate are pixels
    fill: Fill = BLACK  # value of pixels that come in or are hidden
    smooth: bool = False  # shear by cubic interpolation, not by the nearest pixel
    full: bool = True  # a cutout that would begin outside keeps its full side


class Policy(NamedTuple):
    """A policy of random augmentation."""

    choices: tuple[Choice, ...]
    number: int  # operations one after the other, drawn with replacement
    chance: float = 1.0  # probability that a drawn operation is applied
    # An image draws one of these once; every operation's level is then uniform below it.
    levels: tuple[int, ...] = (LEVELS,)
    cutout: Choice | None = None  # applied after the operations


def fedmatch() -> Policy:
    """FedMatch's published code: 13 operations, six of them per image, the weakest half of ten
    levels.
    """
    places = np.linspace(0.0, 1.0, 10)[:5]

    def table(largest: float) -> tuple[float, ...]:
        return tuple(largest * places)

    return Policy(
        (
            Choice("autocontrast"),
            Choice("identity"),  # the code's equalize does nothing
            Choice("rotate", table(360.0), fill=GREY),
            Choice("solarize", tuple(256.0 - 25.0 * places)),
            Choice("color", table(0.9), signed=True),
            Choice("posterize", tuple(np.round(8.0 - 4.0 * places))),
            Choice("contrast", table(0.5), signed=True),
            Choice("brightness", table(0.3), signed=True),
            Choice("sharpness", table(0.9), signed=True),
            Choice("shear_x", table(0.3), signed=True, smooth=True),
            Choice("shear_y", table(0.3), signed=True, smooth=True),
            Choice("translate_x", table(0.2), signed=True),
            Choice("translate_y", table(0.2), signed=True),
        ),
        6,
        levels=(2, 3, 4, 5),
    )


def fixmatch() -> Policy:
    """FixMatch: 14 operations of uniform strength, then a cutout of a uniform share of
    the side.
    """
    return Policy(
        _uniform(bits=(4, 5, 6, 7, 8)),
        2,
        cutout=Choice("cutout", _range(0.0, 0.5), fill=GREY, full=False),
    )


def fl2() -> Policy:
    """(FL)^2's published code: as `fixmatch`, with 4 to 7 bits and a cutout in the mean colour."""
    return Policy(
        _uniform(bits=(4, 5, 6, 7)),
        3,
        cutout=Choice("cutout", _range(0.0, 0.5), fill=CIFAR_MEAN),
    )


def levelled(whole_pixels: bool) -> Policy:
    """SAGE's and FedRGD's published code: 14 operations at whole levels 1 to 9, then a grey cutout
    of half the side.

    Args:
        whole_pixels: translation by whole pixels, as for sides of 32 (SAGE), or by shares of the
            side (FedRGD).
    """
    level = np.arange(1, 10)
    shift = _floor(0.96 * level) if whole_pixels else 0.03 * level
    choices = (
        *_moved(3.0 * level, 0.03 * level, shift, pixels=whole_pixels),
        *_recoloured(0.09 * level + 0.05, 4 + _floor(0.4 * level), 256 - _floor(25.6 * level)),
    )
    return Policy(choices, 2, chance=0.5, levels=(9,), cutout=Choice("cutout", (0.5,), fill=127.0))


def _uniform(bits: tuple[int, ...]) -> tuple[Choice, ...]:
    """Return the 14 operations of FixMatch with the strengths of its appendix."""
    kept = [float(bits[len(bits) * place // LEVELS]) for place in range(LEVELS)]
    return (
        *_recoloured(_range(0.05, 0.95), kept, _range(0.0, 256.0)),
        Choice("rotate", _range(-30.0, 30.0)),
        *(Choice(name, _range(-0.3, 0.3)) for name in MOVEMENTS[1:]),
    )


def _recoloured(
    factors: Amounts,
    bits: Amounts,
    thresholds: Amounts,
) -> tuple[Choice, ...]:
    """Return the operations that move no pixel: identity, autocontrast, equalize, enhancers,
    posterize and solarize.
    """
    return (
        *(Choice(name) for name in ("identity", "autocontrast", "equalize")),
        *(Choice(name, tuple(factors)) for name in ENHANCERS),
        Choice("posterize", tuple(bits)),
        Choice("solarize", tuple(thresholds)),
    )


def _moved(degrees: Table, shear: Table, shift: Table, pixels: bool = False) -> tuple[Choice, ...]:
    """Return the five movements, each in both directions."""
    amounts = (degrees, shear, shear, shift, shift)
    return tuple(
        Choice(
            name,
            tuple(map(float, values)),
            signed=True,
            pixels=pixels and name.startswith("translate"),
        )
        for name, values in zip(MOVEMENTS, amounts, strict=True)
    )


def _range(low: float, high: float) -> tuple[float, ...]:
    """Return the middles of equal parts of a range."""
    return tuple(low + (high - low) * (np.arange(LEVELS) + 0.5) / LEVELS)


def _floor(values: Table) -> Table:
    """Return the largest whole numbers not above; 25.6 * 5 is 128, despite its last binary
    place.
    """
    return np.floor(values + 1e-9)
