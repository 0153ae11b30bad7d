"""Strong augmentation by name: RandAugment as the papers of the field use it.

Each is a policy of `policies.py`, after a shift and a flip if the paper has them;
`docs/your_data.md` shows their operations and ranges side by side.
"""

import dataclasses
from typing import Annotated

from fedjax_ssl.checks import Whole
from fedjax_ssl.data.images import policies
from fedjax_ssl.data.images.operations import Stored
from fedjax_ssl.data.images.random_augment import random_augment
from fedjax_ssl.data.images.weak import (
    Augmentation,
    FartherShift,
    Shift,
    check_images,
    crop_flip,
    shift,
)
from fedjax_ssl.keys import PRNGKey, named_key

Limited = Annotated[int, Whole(0, 1000)]


@dataclasses.dataclass(frozen=True)
class Before:
    """Changes of images before the operations: shift and flip.

    Attributes:
        pixels: largest shift before the operations, in pixels.
        flip: mirror every second image on average; not for digits and the like.
    """

    pixels: Limited = 4
    flip: bool = True


@dataclasses.dataclass(frozen=True)
class Unmoved(Before):
    """No change of images before the operations."""

    pixels: Limited = 0
    flip: bool = False


def fixmatch(
    before: Before,
    input_max: float = 255.0,
) -> Augmentation:
    """Strong augmentation of FixMatch: operations of uniform strength, then a cutout.

    Args:
        before: view before the operations.
        input_max: largest stored value.
    """
    return _strong(policies.fixmatch(), before, input_max)


def fedmatch(before: Unmoved, input_max: float = 255.0) -> Augmentation:
    """RandAugment of FedMatch's published code: six weak operations, rotation by up to 160 degrees
    among them.

    Args:
        before: view before the operations.
        input_max: largest stored value.
    """
    return _strong(policies.fedmatch(), before, input_max)


def fl2(before: Before, input_max: float = 255.0) -> Augmentation:
    """Strong augmentation of (FL)^2's published code: three operations of uniform strength, then a
    cutout.

    Args:
        before: view before the operations.
        input_max: largest stored value.
    """
    return _strong(policies.fl2(), before, input_max)


def sage(before: Before, input_max: float = 255.0) -> Augmentation:
    """Strong augmentation of SAGE's published code: two operations at nine levels, then a cutout of
    half the side.

    Args:
        before: view before the operations.
        input_max: largest stored value.
    """
    return _strong(policies.levelled(whole_pixels=True), before, input_max)


def fedrgd(before: Before, input_max: float = 255.0) -> Augmentation:
    """Strong augmentation of FedRGD's published code: SAGE's, with translations as shares of the
    side.

    Args:
        before: view before the operations.
        input_max: largest stored value.
    """
    return _strong(policies.levelled(whole_pixels=False), before, input_max)


def _strong(policy: policies.Policy, before: Before, input_max: float) -> Augmentation:
    moved = crop_flip(FartherShift(before.pixels)) if before.flip else shift(Shift(before.pixels))

    def augment(key: PRNGKey, images: Stored) -> Stored:
        check_images(images)
        if before.pixels or before.flip:
            images = moved(key, images)
        return random_augment(named_key(key, "operations"), images, policy, input_max=input_max)

    return augment
