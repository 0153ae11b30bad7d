"""Strong augmentation by name: RandAugment as the papers of the field use it.

Each is a policy of `policies.py`, after a shift and a flip where the paper has them; `docs/data.md` shows their
operations and ranges side by side.
"""

from collections.abc import Sequence
from typing import Annotated

from jaxtyping import Array, Key, Shaped

from fedjax_ssl.checks import In, Whole
from fedjax_ssl.data.images import policies
from fedjax_ssl.data.images.operations import LARGEST
from fedjax_ssl.data.images.random_augment import GROUPS, random_augment
from fedjax_ssl.data.images.weak import Augmentation, check_images, crop_flip, shift
from fedjax_ssl.keys import named_key

Limited = Annotated[int, Whole(0, 1000)]
Groups = Annotated[int, Whole(0)]


def fixmatch(
    pixels: Limited = 4,
    flip: bool = True,
    operations: Limited = 2,
    cutout: Annotated[float, In("[0, 1]")] = 0.5,
    fixed_cutout: bool = False,
    groups: Groups = GROUPS,
    input_max: float = 255.0,
) -> Augmentation:
    """Strong augmentation of FixMatch: operations of uniform strength, then a cutout.

    Args:
        pixels: largest shift in front.
        flip: whether every second image on average is mirrored; not for digits and the like.
        operations: random operations per image.
        cutout: largest side of the cutout, as a share of the images'.
        fixed_cutout: always this side; otherwise uniform up to it.
        groups: parts of a batch that draw operations of their own; 0: every image does, which is slower on CPUs.
        input_max: largest stored value.
    """
    return _strong(policies.fixmatch(operations, cutout, fixed_cutout), pixels, flip, groups, input_max)


def semifl(
    pixels: Limited = 4, flip: bool = True, operations: Limited = 2, groups: Groups = 0, input_max: float = 255.0
) -> Augmentation:
    """Strong augmentation of SemiFL's published code: every operation at its largest magnitude.

    Translation by 100 and a cutout of 40 pixels leave nothing of many small images: this is for reproduction.

    Args:
        pixels: largest shift in front.
        flip: whether every second image on average is mirrored; not for digits and the like.
        operations: random operations per image.
        groups: parts of a batch that draw operations of their own; 0: every image does, which is slower on CPUs.
        input_max: largest stored value.
    """
    return _strong(policies.semifl(operations), pixels, flip, groups, input_max)


def randaugment(
    operations: Limited = 3,
    magnitude: Annotated[float, In("[0, 10]")] = 4.0,
    pixels: Limited = 0,
    flip: bool = False,
    groups: Groups = GROUPS,
    input_max: float = 255.0,
) -> Augmentation:
    """RandAugment as published: operations of one magnitude; the defaults are those for CIFAR-10 and WRN-28-2.

    Args:
        operations: the paper's N.
        magnitude: the paper's M, from 0 to 10.
        pixels: largest shift in front.
        flip: whether every second image on average is mirrored; not for digits and the like.
        groups: parts of a batch that draw operations of their own; 0: every image does, which is slower on CPUs.
        input_max: largest stored value.
    """
    return _strong(policies.original(operations, magnitude), pixels, flip, groups, input_max)


def fedmatch(
    operations: Limited = 6, pixels: Limited = 0, flip: bool = False, groups: Groups = GROUPS, input_max: float = 255.0
) -> Augmentation:
    """RandAugment of FedMatch's published code: six weak operations, rotation by up to 160 degrees among them.

    Args:
        operations: random operations per image.
        pixels: largest shift in front.
        flip: whether every second image on average is mirrored; not for digits and the like.
        groups: parts of a batch that draw operations of their own; 0: every image does, which is slower on CPUs.
        input_max: largest stored value.
    """
    return _strong(policies.fedmatch(operations), pixels, flip, groups, input_max)


def uda(
    operations: Limited = 2,
    pixels: Limited = 0,
    flip: bool = False,
    groups: Groups = GROUPS,
    input_max: float = 255.0,
    input_mean: Sequence[float] | None = None,
) -> Augmentation:
    """RandAugment of UDA's published code: two operations of random level, each applied half of the time.

    Args:
        operations: random operations per image.
        pixels: largest shift in front.
        flip: whether every second image on average is mirrored; not for digits and the like.
        groups: parts of a batch that draw operations of their own; 0: every image does, which is slower on CPUs.
        input_max: largest stored value.
        input_mean: of the dataset per channel, as shares of `input_max`: what comes in at the border and in cutouts.
            None: CIFAR-10's.
    """
    fill = policies.CIFAR_MEAN if input_mean is None else tuple(LARGEST * float(mean) for mean in input_mean)
    return _strong(policies.uda(operations, fill), pixels, flip, groups, input_max)


def fl2(
    pixels: Limited = 4, flip: bool = True, operations: Limited = 3, groups: Groups = GROUPS, input_max: float = 255.0
) -> Augmentation:
    """Strong augmentation of (FL)^2's published code: three operations of uniform strength, then a cutout.

    Args:
        pixels: largest shift in front.
        flip: whether every second image on average is mirrored; not for digits and the like.
        operations: random operations per image.
        groups: parts of a batch that draw operations of their own; 0: every image does, which is slower on CPUs.
        input_max: largest stored value.
    """
    return _strong(policies.fl2(operations), pixels, flip, groups, input_max)


def sage(
    pixels: Limited = 4, flip: bool = True, operations: Limited = 2, groups: Groups = GROUPS, input_max: float = 255.0
) -> Augmentation:
    """Strong augmentation of SAGE's published code: two operations at nine levels, then a cutout of half the side.

    Args:
        pixels: largest shift in front.
        flip: whether every second image on average is mirrored; not for digits and the like.
        operations: random operations per image.
        groups: parts of a batch that draw operations of their own; 0: every image does, which is slower on CPUs.
        input_max: largest stored value.
    """
    return _strong(policies.levelled(operations, whole_pixels=True), pixels, flip, groups, input_max)


def fedrgd(
    pixels: Limited = 4, flip: bool = True, operations: Limited = 2, groups: Groups = GROUPS, input_max: float = 255.0
) -> Augmentation:
    """Strong augmentation of FedRGD's published code: that of SAGE, translated by shares of the side.

    Args:
        pixels: largest shift in front.
        flip: whether every second image on average is mirrored; not for digits and the like.
        operations: random operations per image.
        groups: parts of a batch that draw operations of their own; 0: every image does, which is slower on CPUs.
        input_max: largest stored value.
    """
    return _strong(policies.levelled(operations, whole_pixels=False), pixels, flip, groups, input_max)


def _strong(policy: policies.Policy, pixels: int, flip: bool, groups: int, input_max: float) -> Augmentation:
    moved = crop_flip(pixels) if flip else shift(pixels)

    def augment(key: Key[Array, ""], images: Shaped[Array, "n H W C"]) -> Shaped[Array, "n H W C"]:
        check_images(images)
        if pixels or flip:
            images = moved(key, images)
        return random_augment(named_key(key, "operations"), images, policy, groups, input_max)

    return augment
