"""Data sets and splits, and named correspondences: what is kept and what is refused."""

import numpy as np
import pytest

from fedjax_ssl.data import Dataset, Split
from fedjax_ssl.data.correspondence import CORRESPONDENCES, correspondence, overlapping


def images(n=4, shape=(3, 3, 1)):
    return np.zeros((n, *shape), np.uint8)


def dataset(**changes):
    train = Split(images(), np.array([0, 1, 2, -1]), np.array([0, 0, 1, 1]))
    return Dataset(
        **{"name": "toy", "train": train, "test": None, "class_names": ("a", "b", "c"), **changes}
    )


def test_split_converts_widths_and_keeps_values():
    split = Split(np.full((2, 3), 0.5), np.array([1, -1], np.int64), np.array([7, 8], np.uint8))
    assert (split.x.dtype, split.y.dtype, split.client.dtype) == (np.float32, np.int32, np.int32)
    np.testing.assert_array_equal(split.x, 0.5)
    np.testing.assert_array_equal(split.y, [1, -1])
    np.testing.assert_array_equal(split.client, [7, 8])
    assert len(split) == 2


def test_split_does_not_copy_what_fits():
    x = images()
    assert np.shares_memory(Split(x, np.zeros(4, np.int32)).x, x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((images(), np.zeros(3, int)), r"Split\.y has shape \(3,\), Split\.x has 4 rows"),
        ((images(), np.zeros(4)), r"Split\.y has dtype float64; it must hold integers"),
        (
            (images().astype(np.int64), np.zeros(4, int)),
            r"Split\.x has dtype int64; allowed are uint8",
        ),
        ((np.zeros(4, np.float32), np.zeros(4, int)), r"Split\.x has shape \(4,\)"),
        ((images(), np.array([0, 2**40, 0, 0])), r"Split\.y has values from 0 to 1099511627776"),
    ],
)
def test_split_refuses_what_does_not_fit(arguments, message):
    with pytest.raises(ValueError, match=message):
        Split(*arguments)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_split_names_field_count_and_first_row_of_bad_values(bad):
    x = np.zeros((5, 2, 2, 1), np.float32)
    x[3, 0, 0], x[4] = bad, bad
    with pytest.raises(
        ValueError,
        match=r"Split\.x has 5 values that are NaN or infinite, in 2 of 5 rows, first in row 3",
    ):
        Split(x, np.zeros(5, int))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"coarse": np.zeros(3, int)}, r"Split\.coarse has shape \(3,\)"),
        ({"coarse": np.zeros(4)}, r"Split\.coarse has dtype float64"),
        (
            {"set": np.array([0, 1, -2, 0])},
            r"Split\.set is -2 in row 2; sets are numbered from 0 on",
        ),
    ],
)
def test_split_refuses_weak_labels_that_do_not_fit(fields, message):
    with pytest.raises(ValueError, match=message):
        Split(images(), np.zeros(4, int), **fields)


def weakly_labelled(**changes):
    clients = np.array([3, 3, 7, 7])
    sets = np.array([0, 1, 0, -1])
    train = Split(images(), np.full(4, -1), clients, np.array([0, 1, -1, 1]), sets)
    shares = np.array([[[0.5, 0.25, 0.25], [0, 0, 1]], [[1, 0, 0], [0, 0, 0]]])
    facts = {
        "coarse_names": ("low", "high"),
        "correspondence": np.array([[1, 1, 0], [0, 0, 1]]),
        "set_shares": shares,
    }
    return dataset(**{"train": train, **facts, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"coarse_names": None}, r"train\.coarse is there but coarse_names is not"),
        ({"coarse_names": ("low",)}, r"train\.coarse has 2 labels out of range, first in row 1: 1"),
        (
            {"coarse_names": ("a", "b", "c")},
            "correspondence has 2 rows; coarse_names must name each",
        ),
        (
            {"correspondence": np.array([[1, 1, 0.5], [0, 0, 0.25]])},
            "Column 2 of the correspondence matrix sums to 0.75",
        ),
        (
            {"set_shares": np.ones((3, 2, 3)) / 3},
            r"set_shares has shape \(3, 2, 3\).* with 2 clients and 3 classes",
        ),
        (
            {"set_shares": np.ones((2, 2, 3)) / 2},
            "the shares of every set must be at least 0 and sum to 1",
        ),
    ],
)
def test_dataset_refuses_weak_labels_that_do_not_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        weakly_labelled(**changes)


def test_set_shares_need_sets():
    with pytest.raises(
        ValueError, match=r"set_shares is there but train\.set or train\.client is not"
    ):
        dataset(set_shares=np.ones((2, 2, 3)) / 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"class_names": ("a", "b")},
            r"train\.y has 1 labels out of range, first in row 2: 2\. Allowed are 0 to 1",
        ),
        ({"train": Split(images(0), np.zeros(0, int))}, "train has no examples"),
        ({"test": Split(images(0), np.zeros(0, int))}, "use test=None"),
        (
            {"test": Split(images(2, (4, 4, 1)), np.zeros(2, int))},
            r"test inputs are uint8 \(4, 4, 1\)",
        ),
        (
            {"client_names": ("only",)},
            r"train\.client has 2 values out of range, first in row 2: 1\. Allowed are 0 to 0",
        ),
        ({"input_max": 0.0}, "input_max is 0"),
        ({"std": (0.0,)}, "every value must be positive"),
        ({"mean": (float("nan"),)}, r"mean is \(nan,\); every value must be finite"),
    ],
)
def test_dataset_refuses_what_does_not_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        dataset(**changes)


# Which classes share a coarse label.


SIZES = {
    "parity": 10,
    "shape": 10,
    "halves": 10,
    "case": 62,
    "kind": 62,
    "superclass": 100,
    "identity": 7,
}


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
        (
            "paritty",
            10,
            "unknown correspondence 'paritty'. Did you mean 'parity'.*Available: identity, parity",
        ),
        (
            "parity",
            62,
            "'parity' is for 10 classes, the data has 62; for 62 there are: identity, case, kind",
        ),
        (
            "superclass",
            10,
            "'superclass' is for 100 classes, the data has 10; for 10 .* parity, shape, halves",
        ),
        ("identity", 0, "'identity' is for one or more classes, the data has 0"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, num_classes: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        correspondence(name, num_classes)
