"""Fed-Heart-Disease from small made-up files in the form of UCI's."""

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from fedjax_ssl.data import BadData, DatasetUnavailable, load
from fedjax_ssl.data.sources.fed_heart_disease import COLUMNS, HOSPITALS, PUBLISHED, _test_rows


def line(i, num):
    """Make a patient; every seventh has no value of chol, and nobody one of slope, ca and thal."""
    chol = "?" if i % 7 == 3 else 200 + i
    return [
        30 + i,
        i % 2,
        1 + i % 4,
        120,
        chol,
        0,
        i % 3,
        150 - i,
        0,
        f"{i / 10:.1f}",
        "?",
        "?",
        "?",
        num,
    ]


@pytest.fixture
def folder(tmp_path):
    for number, name in enumerate(HOSPITALS):
        rows = [line(i, i % 5 if number != 2 else 1) for i in range(12 + number)]
        text = "\n".join(",".join(map(str, row)) for row in rows)
        (tmp_path / f"processed.{name}.data").write_text(text + "\n")
    return tmp_path


def rewrite(folder, name, change):
    file = folder / f"processed.{name}.data"
    file.write_text("\n".join(change(file.read_text().splitlines())) + "\n")


def as_arrays(dataset):
    return [
        getattr(split, name)
        for split in (dataset.train, dataset.test)
        for name in ("x", "y", "client")
    ]


def test_rows_columns_and_levels_are_flambys(folder):
    data = load("fed_heart_disease", path=folder)
    complete = [sum(i % 7 != 3 for i in range(12 + number)) for number in range(4)]
    counts = [np.bincount(split.client, minlength=4) for split in (data.train, data.test)]
    assert (counts[0] + counts[1]).tolist() == complete
    assert counts[0].tolist() == [int(np.floor(0.66 * n)) for n in complete]
    x = data.train.x[0]
    y = data.train.y[0]
    client = data.train.client[0]
    i = int(x[0]) - 30
    assert (client, data.client_names[0], y) == (0, "Cleveland", int(i % 5 > 0))
    levels = [i % 4 == 1, i % 4 == 2, i % 4 == 3, i % 3 == 1, i % 3 == 2]
    np.testing.assert_allclose(
        x, [30 + i, i % 2, 120, 200 + i, 0, 150 - i, 0, i / 10, *levels], rtol=1e-6
    )
    assert len(data.extra["features"]) == 13


def test_the_published_split_is_that_of_scikit_learn():
    """For the hospitals' sizes, and for every small one with all shares of classes."""
    rng = np.random.default_rng(0)
    sizes = [
        (train + test, share) for train, test in PUBLISHED.values() for share in (0.46, 0.64, 0.93)
    ]
    for total, share in (*sizes, *((n, share) for n in range(2, 60) for share in (0.05, 0.4, 0.8))):
        labels = (rng.random(total) < share).astype(int)
        stratify = labels if np.bincount(labels, minlength=2).min() > 2 else None
        _, expected = train_test_split(
            np.arange(total),
            test_size=1 - 0.66,
            train_size=0.66,
            random_state=43,
            stratify=stratify,
        )
        assert np.sort(_test_rows(labels)).tolist() == np.sort(expected).tolist()
        if (total, share) in sizes:
            assert total - len(expected) in [train for train, _ in PUBLISHED.values()]


@pytest.mark.parametrize("form", ["semicolons", "without processed"])
def test_other_forms_are_read(folder, form):
    plain = as_arrays(load("fed_heart_disease", path=folder))
    if form == "without processed":
        (folder / "processed.va.data").rename(folder / "va.data")
    else:
        rewrite(folder, "hungarian", lambda lines: [one.replace(",", ";") for one in lines])
    for found, expected in zip(
        as_arrays(load("fed_heart_disease", path=folder)), plain, strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_missing_files_are_named_and_where_to_get_them(folder):
    (folder / "processed.va.data").unlink()
    with pytest.raises(DatasetUnavailable, match=r"processed\.va\.data is not here") as raised:
        load("fed_heart_disease", path=folder)
    assert "archive.ics.uci.edu" in str(raised.value)
    assert "processed.cleveland.data" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [",".join(COLUMNS), *lines], "line 1: age is 'age'; needed: a number"),
        (
            lambda lines: [lines[0], f"{lines[1]},5", *lines[2:]],
            "the first line has 14 cells, but line 2 has 15",
        ),
        (
            lambda lines: [lines[0], lines[1].replace("120", "12x"), *lines[2:]],
            "line 2: trestbps is '12x'",
        ),
        (
            lambda lines: [*lines[:-1], lines[-1].rpartition(",")[0] + ",9"],
            "num is '9'; needed: one of 0, 1, 2, 3, 4",
        ),
        (lambda lines: lines[:1], "has 1 rows without a missing value; needed: at least 2"),
        (lambda lines: [], "has no rows"),
    ],
)
def test_other_tables_are_named(folder, change, said):
    rewrite(folder, "switzerland", change)
    with pytest.raises(BadData, match=r"processed\.switzerland\.data") as raised:
        load("fed_heart_disease", path=folder)
    assert said in str(raised.value)


def test_another_table_than_the_published_one_is_said(folder, caplog):
    load("fed_heart_disease", path=folder)
    assert "Hungary has" in caplog.text
    assert "(172, 89)" in caplog.text
