"""Named correspondences between the classes and the labels of another, mostly coarser space.

A correspondence is a matrix M [J, K] with M[j, k] = P(coarse label j | class k); its columns sum to
1. Source of the setting: FedMT, federated learning with mixed-type labels, in which M is known or
estimated. The splits of the ten digits are our choice.
"""

import string
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fedjax_ssl.checks import check_numbers
from fedjax_ssl.registry import check_known

# CIFAR-100's superclasses and the classes of each; labels number both in alphabetical order.
_CIFAR100 = """
aquatic_mammals: beaver dolphin otter seal whale
fish: aquarium_fish flatfish ray shark trout
flowers: orchid poppy rose sunflower tulip
food_containers: bottle bowl can cup plate
fruit_and_vegetables: apple mushroom orange pear sweet_pepper
household_electrical_devices: clock keyboard lamp telephone television
household_furniture: bed chair couch table wardrobe
insects: bee beetle butterfly caterpillar cockroach
large_carnivores: bear leopard lion tiger wolf
large_man-made_outdoor_things: bridge castle house road skyscraper
large_natural_outdoor_scenes: cloud forest mountain plain sea
large_omnivores_and_herbivores: camel cattle chimpanzee elephant kangaroo
medium_mammals: fox porcupine possum raccoon skunk
non-insect_invertebrates: crab lobster snail spider worm
people: baby boy girl man woman
reptiles: crocodile dinosaur lizard snake turtle
small_mammals: hamster mouse rabbit shrew squirrel
trees: maple_tree oak_tree palm_tree pine_tree willow_tree
vehicles_1: bicycle bus motorcycle pickup_truck train
vehicles_2: lawn_mower rocket streetcar tank tractor
"""
_MEMBERS = dict(line.split(": ") for line in _CIFAR100.strip().splitlines())
_SUPERCLASS = {
    name: number for number, names in enumerate(_MEMBERS.values()) for name in names.split()
}
CIFAR100_SUPERCLASSES = tuple(_MEMBERS)
CIFAR100_CLASSES = tuple(sorted(_SUPERCLASS))
CIFAR100_SUPERCLASS_OF = tuple(_SUPERCLASS[name] for name in CIFAR100_CLASSES)


class Correspondence(NamedTuple):
    """A matrix M, and the names of its rows."""

    matrix: Float[np.ndarray, "J K"]  # float64, columns sum to 1
    names: tuple[str, ...]  # names of the J coarse classes


_LETTERS = len(string.ascii_uppercase)
# Names of the coarse classes, and the coarse class of every class; "identity" works for any number
# of classes.
_TABLE: dict[str, tuple[Sequence[str], Sequence[int]]] = {
    "parity": (("even", "odd"), [label % 2 for label in range(10)]),
    # By the strokes of the printed digit: 1, 4, 7 are straight, 2 and 5 have strokes of both kinds.
    "shape": (("curved", "straight", "both"), (0, 1, 2, 0, 1, 2, 0, 1, 0, 0)),
    "halves": (("0-4", "5-9"), [label // 5 for label in range(10)]),
    "case": (
        string.digits + string.ascii_uppercase,
        (*range(10 + _LETTERS), *range(10, 10 + _LETTERS)),
    ),
    "kind": (("digit", "upper", "lower"), [0] * 10 + [1] * _LETTERS + [2] * _LETTERS),
    "superclass": (CIFAR100_SUPERCLASSES, CIFAR100_SUPERCLASS_OF),
}
CORRESPONDENCES = ("identity", *_TABLE)


def correspondence(name: str, num_classes: int) -> Correspondence:
    """Return the correspondence `name`, each class in one coarse class.

    Args:
        name: "identity" (any number of classes); for the ten digits "parity" (even, odd), "shape"
            (curved 0, 3, 6, 8, 9; straight 1, 4, 7; both 2, 5) or "halves" (0 to 4, 5 to 9); for
            the 62 classes of FEMNIST and of the glyphs "case" (36, upper and lower case are one) or
            "kind" (digit, upper, lower); for CIFAR-100 "superclass" (20).
        num_classes: K.

    Returns:
        Matrix [J, K] of 0 and 1, and J names.

    Raises:
        ValueError: an unknown name, or a number of classes that does not fit the correspondence.
    """
    check_known("correspondence", name, CORRESPONDENCES)
    table = {
        "identity": ([str(label) for label in range(num_classes)], range(num_classes)),
        **_TABLE,
    }
    names, coarse_of = table[name]
    if num_classes < 1 or num_classes != len(coarse_of):
        fitting = [other for other, (_, classes) in table.items() if len(classes) == num_classes]
        raise ValueError(
            f"correspondence {name!r} is for {len(coarse_of) or 'one or more'} classes, the data "
            f"has {num_classes}; for {num_classes} there are: {', '.join(fitting)}"
        )
    matrix = np.zeros((len(names), num_classes))
    matrix[np.asarray(coarse_of), np.arange(num_classes)] = 1.0
    return Correspondence(matrix, tuple(names))


def overlapping(matrix: Float[np.ndarray, "J K"], epsilon: float) -> Float[np.ndarray, "J K"]:
    """Return overlapping coarse classes, (1 - epsilon) M + epsilon / J, so that every label is
    possible for every class.

    Args:
        matrix: M, columns sum to 1.
        epsilon: share of the labels that is uniform, in [0, 1].

    Raises:
        ValueError: epsilon outside [0, 1].
    """
    check_numbers("[0, 1]", overlap=epsilon)
    return (1 - epsilon) * matrix + epsilon / matrix.shape[0]
