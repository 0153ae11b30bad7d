"""FEMNIST from LEAF's JSON; a marked pixel carries the label."""

import json

import numpy as np
import pytest

from fedjax_ssl.data import DatasetUnavailable, load
from fedjax_ssl.data.sources.femnist import CLASSES as FEMNIST_CLASSES

ROW = 3
COLUMN = 5
TRAIN, TEST = {"f1": [61, 0, 10], "f0": [7]}, {"f1": [3]}  # labels of the writers


def shades(labels):
    found = np.random.default_rng(len(labels)).integers(0, 256, (len(labels), 28, 28), np.uint8)
    found[:, ROW, COLUMN] = 4 * np.array(labels)
    return found


def stored(labels):
    return (1 - shades(labels) / 255).astype(np.float32)


def write_leaf(folder, writers, file="all_data_0", **changes):
    folder.mkdir(exist_ok=True)
    users = {
        name: {"x": stored(labels).reshape(-1, 784).tolist(), "y": labels}
        for name, labels in writers.items()
    }
    content = {
        "users": list(users),
        "num_samples": [len(one["y"]) for one in users.values()],
        "user_data": users,
    }
    (folder / f"{file}.json").write_text(json.dumps(content | changes))
    return folder


def assert_right(data):
    assert (data.client_names, data.class_names) == (("f0", "f1"), FEMNIST_CLASSES)
    assert (data.train.y.tolist(), data.train.client.tolist()) == ([7, 61, 0, 10], [0, 1, 1, 1])
    assert (data.test.y.tolist(), data.test.client.tolist()) == ([3], [1])
    expected = np.concatenate([shades(TRAIN["f0"]), shades(TRAIN["f1"])])
    np.testing.assert_array_equal(data.train.x[..., 0], expected)
    np.testing.assert_array_equal(data.train.x[:, ROW, COLUMN, 0], 4 * data.train.y)


def test_leaf_in_several_files_is_read_once(tmp_path, monkeypatch):
    write_leaf(tmp_path / "train", {"f1": TRAIN["f1"]}, "all_data_0")
    write_leaf(tmp_path / "train", {"f0": TRAIN["f0"]}, "all_data_1")
    write_leaf(tmp_path / "test", TEST)
    assert_right(load("femnist_leaf", root=tmp_path / "root", path=tmp_path))
    monkeypatch.setattr("fedjax_ssl.data.sources.femnist._leaf_writers", None)
    assert_right(load("femnist_leaf", root=tmp_path / "root", path=tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"user_data": []}, "all_data_0.json is cut short, damaged or in another format"),
        ({"users": ["f2"]}, "users and user_data do not name the same writers"),
        (
            {"users": ["f2"], "user_data": {"f2": {"x": [[1] * 783], "y": [1]}}},
            "f2 has no x of rows of 784 numbers",
        ),
        (
            {"users": ["f2"], "user_data": {"f2": {"x": [[1e400] * 784], "y": [1]}}},
            "pixels outside 0 to 1",
        ),
        (
            {"users": ["f2"], "user_data": {"f2": {"x": [[1] * 784], "y": [62]}}},
            "labels outside 0 to 61",
        ),
    ],
)
def test_leaf_files_of_another_form(tmp_path, changes, message):
    write_leaf(tmp_path / "train", {}, **changes)
    with pytest.raises(DatasetUnavailable, match=message):
        load("femnist_leaf", root=tmp_path / "root", path=tmp_path)


def test_leaf_files_that_are_missing_damaged_or_overlap(tmp_path):
    with pytest.raises(DatasetUnavailable, match=r"looked  .*train/\*.json\n(.|\n)*preprocess.sh"):
        load("femnist_leaf", root=tmp_path)
    for file in ("a", "b"):
        write_leaf(tmp_path / "train", TEST, file)
    with pytest.raises(DatasetUnavailable, match="has the writer f1 twice"):
        load("femnist_leaf", root=tmp_path, path=tmp_path)
    (tmp_path / "train" / "a.json").write_bytes((tmp_path / "train" / "a.json").read_bytes()[:50])
    with pytest.raises(DatasetUnavailable, match=r"a\.json is cut short, damaged"):
        load("femnist_leaf", root=tmp_path, path=tmp_path)
