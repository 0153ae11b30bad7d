"""Mini-ImageNet from small pickles; a marked pixel carries the label."""

import os
import pickle

import numpy as np
import pytest

from fedjax_ssl.data import DatasetUnavailable, load
from fedjax_ssl.data.reading.formats import FormatError
from fedjax_ssl.data.sources.mini_imagenet import PICKLES, read_pickle

ROW = 3
COLUMN = 5
# of the four, in their files
CLASSES = {"train": ("n2", "n0"), "validation": ("n3",), "test": ("n1",)}
EACH = 12


def images(labels, seed=0):
    found = np.random.default_rng(seed).integers(0, 256, (len(labels), 84, 84, 3), np.uint8)
    found[:, ROW, COLUMN, 1] = 7 * np.array(labels)
    found[:, 0, 0, 0] = np.arange(len(labels))
    return found


def write(folder, protocol=2, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    for name, (part, classes) in zip(PICKLES, CLASSES.items(), strict=True):
        labels = [int(name[1]) for name in classes for _ in range(EACH)]
        rows = {
            name: list(range(place * EACH, (place + 1) * EACH))
            for place, name in enumerate(classes)
        }
        content = {"image_data": images(labels), "class_dict": rows, **changes}
        (folder / f"mini-imagenet-cache-{part}.pkl").write_bytes(pickle.dumps(content, protocol))
    return folder


def test_pickles_are_put_together_and_cut_inside_each_class(tmp_path):
    write(tmp_path / "mini_imagenet" / "raw")
    data = load("mini_imagenet", root=tmp_path, download=False)
    assert data.class_names == ("n0", "n1", "n2", "n3") and data.input_shape == (84, 84, 3)
    for split, count in ((data.train, 10), (data.test, 2)):
        assert np.bincount(split.y).tolist() == [count] * 4
        np.testing.assert_array_equal(split.x[:, ROW, COLUMN, 1], 7 * split.y)
    together = np.concatenate([data.train.x[data.train.y == 2], data.test.x[data.test.y == 2]])
    order = np.argsort(together[:, 0, 0, 0])
    np.testing.assert_array_equal(together[order], images([2] * EACH + [0] * EACH)[:EACH])
    # the same ones, without the cache
    again = load("mini_imagenet", path=tmp_path / "mini_imagenet" / "raw")
    np.testing.assert_array_equal(again.test.x, data.test.x)


def test_what_is_missing_says_what_to_do(tmp_path):
    write(tmp_path / "mini_imagenet" / "raw")
    (tmp_path / "mini_imagenet" / "raw" / PICKLES[2]).unlink()
    with pytest.raises(
        DatasetUnavailable, match=r"put mini-imagenet-cache-test.pkl in .*\n.*zenodo"
    ):
        load("mini_imagenet", root=tmp_path, download=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"image_data": np.zeros((12, 84, 84), np.uint8)},
            "image_data is uint8 .12, 84, 84.; expected is uint8",
        ),
        ({"class_dict": {"n0": [99]}}, "rows of class 'n0' are no list of numbers below 24"),
        ({"class_dict": [1]}, "rows of class 'class_dict'"),
        ({"class_dict": {"n0": [1]}}, "has the class n0, which another file has too"),
    ],
)
def test_pickles_of_another_form(tmp_path, changes, message):
    with pytest.raises(DatasetUnavailable, match=message):
        load("mini_imagenet", path=write(tmp_path, **changes))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_in_pickles_of_every_protocol(tmp_path, protocol):
    arrays = {
        "a": np.arange(6, dtype=np.uint8).reshape(2, 3),
        "f": np.asfortranarray(np.ones((2, 3))),
    }
    file = tmp_path / "x"
    file.write_bytes(pickle.dumps({**arrays, "b": b"\xff", "s": np.int64(4), "t": "é"}, protocol))
    found = read_pickle(file)
    assert (found["b"], found["s"], found["t"]) == (b"\xff", 4, "é")
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


class Calls:
    """Pickles as the call of a function."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (Calls(os.system, "touch here"), "calls posix.system"),
        (Calls(eval, "1"), "calls builtins.eval"),
        (np.array([object], object), "array of Python objects"),
        (Calls(np._core.multiarray._reconstruct, np.ndarray, (1 << 50,), b"b"), "starts an array"),
        (Calls(np.ndarray, (1 << 50,)), "cut short, damaged or no pickle"),
        # objects of raw bytes
        (Calls(np.ndarray, (1,), "O", bytes(8)), "cut short, damaged or no pickle"),
    ],
)
def test_pickles_that_would_do_more_than_hold_arrays(tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").write_bytes(pickle.dumps(content))
    with pytest.raises(FormatError, match=message):
        read_pickle(tmp_path / "x")
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps({"a": np.ones(9)})[:40]])
def test_bytes_that_are_no_pickle(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(FormatError, match="cut short, damaged or no pickle"):
        read_pickle(tmp_path / "x")
