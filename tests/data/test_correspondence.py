"""Named correspondences: which classes share a coarse label, and what is refused."""

import numpy as np
import pytest

from fedjax_ssl.data.correspondence import (
    CIFAR100_SUPERCLASSES,
    CORRESPONDENCES,
    correspondence,
    overlapping,
)
from fedjax_ssl.data.sources.cifar import CIFAR100_CLASSES
from fedjax_ssl.data.sources.femnist import CLASSES as FEMNIST_CLASSES

SIZES = {"parity": 10, "shape": 10, "halves": 10, "case": 62, "kind": 62, "superclass": 100, "identity": 7}


def groups(name: str) -> dict[str, list[int]]:
    matrix, names = correspondence(name, SIZES[name])
    return {names[j]: np.flatnonzero(row).tolist() for j, row in enumerate(matrix)}


@pytest.mark.parametrize("name", CORRESPONDENCES)
def test_every_class_has_one_coarse_label_and_every_coarse_label_a_class(name: str) -> None:
    matrix, names = correspondence(name, SIZES[name])
    assert matrix.dtype == np.float64 and matrix.shape == (len(names), SIZES[name])
    np.testing.assert_array_equal(matrix.sum(axis=0), 1)
    assert set(np.unique(matrix)) <= {0.0, 1.0}
    assert (matrix.sum(axis=1) > 0).all()


def test_digits() -> None:
    assert groups("parity") == {"even": [0, 2, 4, 6, 8], "odd": [1, 3, 5, 7, 9]}
    assert groups("shape") == {"curved": [0, 3, 6, 8, 9], "straight": [1, 4, 7], "both": [2, 5]}
    assert groups("halves") == {"0-4": [0, 1, 2, 3, 4], "5-9": [5, 6, 7, 8, 9]}


def test_characters() -> None:
    for name, members in groups("case").items():
        assert {FEMNIST_CLASSES[k].upper() for k in members} == {name}
    kinds = groups("kind")
    assert all(FEMNIST_CLASSES[k].isdigit() for k in kinds["digit"]) and len(kinds["digit"]) == 10
    assert all(FEMNIST_CLASSES[k].isupper() for k in kinds["upper"]) and len(kinds["upper"]) == 26
    assert all(FEMNIST_CLASSES[k].islower() for k in kinds["lower"]) and len(kinds["lower"]) == 26


def test_cifar100_superclasses() -> None:
    members = {name: [CIFAR100_CLASSES[k] for k in found] for name, found in groups("superclass").items()}
    assert list(members) == list(CIFAR100_SUPERCLASSES)
    assert {len(found) for found in members.values()} == {5}
    assert members["trees"] == ["maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"]
    assert members["fish"] == ["aquarium_fish", "flatfish", "ray", "shark", "trout"]
    assert members["vehicles_2"] == ["lawn_mower", "rocket", "streetcar", "tank", "tractor"]
    assert list(CIFAR100_CLASSES) == sorted(CIFAR100_CLASSES) and len(CIFAR100_CLASSES) == 100


def test_overlap_mixes_with_the_uniform_distribution() -> None:
    matrix = correspondence("parity", 10).matrix
    np.testing.assert_array_equal(overlapping(matrix, 0.0), matrix)
    np.testing.assert_allclose(overlapping(matrix, 0.2)[:, 3], [0.1, 0.9])
    np.testing.assert_allclose(overlapping(correspondence("case", 62).matrix, 1.0), 1 / 36)
    with pytest.raises(ValueError, match=r"overlap is 1\.5; it must be a number in \[0, 1\]"):
        overlapping(matrix, 1.5)


@pytest.mark.parametrize(
    ("name", "num_classes", "message"),
    [
        ("paritty", 10, "unknown correspondence 'paritty'. Did you mean 'parity'.*Available: identity, parity"),
        ("parity", 62, "'parity' is for 10 classes, the data has 62; for 62 there are: identity, case, kind"),
        ("superclass", 10, "'superclass' is for 100 classes, the data has 10; for 10 .* parity, shape, halves"),
        ("identity", 0, "'identity' is for one or more classes, the data has 0"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, num_classes: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        correspondence(name, num_classes)
