import numpy as np
import pytest

from fedjax_ssl.objectives import (
    check_correspondence,
    check_observed,
    check_set_priors,
    check_test_prior,
)
from tests.objectives.fedul_fixture import SET_PRIORS, TEST_PRIOR

NESTED = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])


def test_small_deviations_are_divided_out() -> None:
    found = check_set_priors(SET_PRIORS * [[1.0005], [1], [0.9995], [1]])
    np.testing.assert_allclose(found, SET_PRIORS, rtol=1e-14)
    np.testing.assert_allclose(
        check_test_prior(np.float32([0.3333, 0.3333, 0.3333]), 3), 1 / 3, rtol=1e-12
    )


def test_rows_of_empty_sets_are_not_looked_at() -> None:
    found = check_set_priors([[0.4, 0.6], [np.nan, 7.0]], [12, 0])
    np.testing.assert_array_equal(found, [[0.4, 0.6], [0.0, 0.0]])


@pytest.mark.parametrize(
    ("priors", "options", "message"),
    [
        ([[0.5, 0.5], [0.5, np.nan]], {}, "Row 1 of set_priors of client 7 holds nan for class 1"),
        ([[-0.1, 1.1]], {}, "Row 0 of set_priors of client 7 holds -0.1 for class 0"),
        ([[0.5, 0.5], [0.5, 0.6]], {}, "Row 1 of set_priors of client 7 sums to 1.1"),
        ([0.5, 0.5], {}, r"set_priors of client 7 have shape \(2,\)"),
        (
            [[0.5, 0.5]],
            {"num_classes": 3},
            r"shape \(1, 2\); the shape must be \[sets, classes\] with 3 classes",
        ),
        ([[0.5, 0.5]], {"set_shares": [-1]}, r"set_shares of client 7 are \[-1.0\]"),
        ([[0.5, 0.5]], {"set_shares": [1, 2]}, "they must be 1 finite numbers"),
    ],
)
def test_bad_set_priors_are_refused(priors: list, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_set_priors(priors, client=7, **options)


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        ([0.5, 0.5, 0.0], "test_prior is 0 for class 2; every entry must be positive"),
        ([0.5, np.nan, 0.5], "test_prior is nan for class 1"),
        ([0.5, 0.3, 0.3], "test_prior sums to 1.1"),
        ([0.5, 0.5], r"test_prior has shape \(2,\); it must have one entry for each of 3 classes"),
    ],
)
def test_bad_test_priors_are_refused(prior: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_test_prior(prior, 3)
    np.testing.assert_array_equal(check_test_prior(TEST_PRIOR, 3), TEST_PRIOR)


def test_good_correspondences_pass() -> None:
    np.testing.assert_array_equal(check_correspondence(NESTED, [3, 0], num_classes=3), NESTED)
    more_labels_than_classes = np.array([[0.5, 0.0], [0.5, 0.1], [0.0, 0.9], [0.0, 0.0]])
    found = check_correspondence(more_labels_than_classes, [1, 1, 1, 0])
    np.testing.assert_allclose(found, more_labels_than_classes, rtol=1e-15)
    counts = np.array([[3, 0], [1, 5]])
    np.testing.assert_allclose(
        check_correspondence(counts, normalize_columns=True), [[0.75, 0], [0.25, 1]]
    )


@pytest.mark.parametrize(
    ("matrix", "options", "message"),
    [
        (
            [[1.0, np.inf]],
            {},
            "Row 0 of the correspondence matrix of client b holds inf for class 1",
        ),
        (
            [[1.2, 1.0], [-0.2, 0.0]],
            {},
            "Row 1 of the correspondence matrix of client b holds -0.2 for class 0",
        ),
        (
            [[1.0, 0.0], [0.0, 0.0]],
            {},
            "Column 1 of the correspondence matrix of client b is all 0",
        ),
        ([[1.0, 0.9]], {}, "Column 1 .* sums to 0.9; .*divide columns by their sums"),
        (NESTED.T, {}, "all rows sum to 1, so the matrix looks transposed"),
        (NESTED, {"num_classes": 4}, r"has shape \(2, 3\); .* with 4 classes"),
        ([1.0, 0.0], {}, r"has shape \(2,\)"),
        (
            [[1.0, 1.0], [0, 0]],
            {"observed_counts": [4, 2]},
            "Row 1 .* is all 0, yet 2 examples carry this label",
        ),
        (NESTED, {"observed_counts": [1, 1, 1]}, r"observed_counts of client b have shape \(3,\)"),
    ],
)
def test_bad_correspondences_are_refused(matrix: object, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_correspondence(matrix, client="b", **options)


def test_observed_labels_are_counted_or_refused() -> None:
    np.testing.assert_array_equal(check_observed([0, 2, -1, 2], 4), [1, 0, 2, 0])
    np.testing.assert_array_equal(check_observed([], 2), [0, 0])
    with pytest.raises(
        ValueError,
        match="Observed label 3 of example 1 of client 0 does not exist; labels are 0 to 2",
    ):
        check_observed([0, 3], 3, client=0)
    with pytest.raises(ValueError, match="Observed label -2 of example 0 does not exist"):
        check_observed([-2], 3)
    with pytest.raises(ValueError, match="dtype float64; they must be integers"):
        check_observed([0.0, 1.0], 3)
