"""Named correspondences: which classes share a coarse label, and what is refused."""

import numpy as np
import pytest

from fedjax_ssl.data.correspondence import CORRESPONDENCES, correspondence, overlapping

SIZES = {"parity": 10, "shape": 10, "halves": 10, "case": 62, "kind": 62, "superclass": 100, "identity": 7}


@pytest.mark.parametrize("name", CORRESPONDENCES)
def test_every_class_has_one_coarse_label_and_every_coarse_label_a_class(name: str) -> None:
    matrix, names = correspondence(name, SIZES[name])
    assert matrix.dtype == np.float64 and matrix.shape == (len(names), SIZES[name])
    np.testing.assert_array_equal(matrix.sum(axis=0), 1)
    assert set(np.unique(matrix)) <= {0.0, 1.0}
    assert (matrix.sum(axis=1) > 0).all()


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
