"""FEMNIST from HDF5 and from LEAF's JSON; a marked pixel carries the label."""

import json
import tarfile

import numpy as np
import pytest

from fedjax_ssl.data import DatasetUnavailable, load, verify
from fedjax_ssl.data.reading.formats import FormatError
from fedjax_ssl.data.sources import archive
from fedjax_ssl.data.sources.femnist import CLASSES as FEMNIST_CLASSES
from fedjax_ssl.data.sources.femnist import HDF5
from fedjax_ssl.data.sources.femnist import HDF5_TAR as TAR

ROW = 3
COLUMN = 5
TRAIN, TEST = {"f1": [61, 0, 10], "f0": [7]}, {"f1": [3]}  # labels of the writers


def shades(labels):
    found = np.random.default_rng(len(labels)).integers(0, 256, (len(labels), 28, 28), np.uint8)
    found[:, ROW, COLUMN] = 4 * np.array(labels)
    return found


def stored(labels):
    return (1 - shades(labels) / 255).astype(np.float32)


def write_hdf5(path, writers, **changes):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for name, labels in writers.items():
            group = file.create_group(f"examples/{name}")
            for key, value in {
                "pixels": stored(labels),
                "label": np.array(labels, np.int32),
                **changes,
            }.items():
                if value is not None:
                    group[key] = value
    return path


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


def test_hdf5_in_its_archive_or_unpacked(tmp_path, caplog):
    paths = [
        write_hdf5(tmp_path / name, part) for name, part in zip(HDF5, (TRAIN, TEST), strict=True)
    ]
    assert_right(load("femnist", path=tmp_path, form="hdf5"))
    assert "femnist has 4 + 1 examples; the published set has 671585 + 77483" in caplog.text
    raw = tmp_path / "femnist" / "raw"
    raw.mkdir(parents=True)
    with tarfile.open(raw / TAR, "w:bz2") as archive:
        for path in paths:
            archive.add(path, f"folder/{path.name}")
    for _ in range(2):
        assert_right(load("femnist", root=tmp_path, form="hdf5", download=False))
        (raw / TAR).write_bytes(b"")  # the second time from the cache
    assert [file.name for file in raw.iterdir()] == [TAR]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pixels": None}, "has no /examples/f1/pixels"),
        ({"pixels": np.ones((3, 28, 27), np.float32)}, "pixels .3, 28, 27. and labels"),
        ({"label": np.array([0, 1, 62])}, "labels outside 0 to 61"),
    ],
)
def test_hdf5_of_another_form(tmp_path, changes, message):
    path = write_hdf5(tmp_path / HDF5[0], {"f1": TRAIN["f1"]}, **changes)
    with pytest.raises(FormatError, match=message):
        archive("femnist", form="hdf5").read(dict.fromkeys(HDF5, path))


def test_hdf5_that_points_elsewhere_or_is_damaged(tmp_path):
    h5py = pytest.importorskip("h5py")
    write_hdf5(tmp_path / "other.h5", TRAIN)
    path = tmp_path / HDF5[0]
    with h5py.File(path, "w") as file:
        file["examples"] = h5py.ExternalLink("other.h5", "/examples")
    with pytest.raises(FormatError, match="no /examples, or it points to another place"):
        archive("femnist", form="hdf5").read(dict.fromkeys(HDF5, path))
    with h5py.File(path, "w") as file:
        layout = h5py.VirtualLayout((3, 28, 28), "f4")
        layout[:] = h5py.VirtualSource("other.h5", "examples/f1/pixels", (3, 28, 28))
        file.create_virtual_dataset("examples/f1/pixels", layout)
    with pytest.raises(FormatError, match="no dataset with content of its own"):
        archive("femnist", form="hdf5").read(dict.fromkeys(HDF5, path))
    for content in (b"", b"no HDF5", (tmp_path / "other.h5").read_bytes()[:3000]):
        path.write_bytes(content)
        with pytest.raises(FormatError, match="cut short, damaged or in another format"):
            archive("femnist", form="hdf5").read(dict.fromkeys(HDF5, path))
    with tarfile.open(tmp_path / TAR, "w:bz2"):
        pass
    with pytest.raises(FormatError, match=r"has no fed_emnist_train.h5, fed_emnist_test.h5"):
        archive("femnist", form="hdf5").read({TAR: tmp_path / TAR})


def test_leaf_in_several_files_is_read_once(tmp_path, monkeypatch):
    write_leaf(tmp_path / "train", {"f1": TRAIN["f1"]}, "all_data_0")
    write_leaf(tmp_path / "train", {"f0": TRAIN["f0"]}, "all_data_1")
    write_leaf(tmp_path / "test", TEST)
    assert_right(load("femnist", root=tmp_path / "root", path=tmp_path, form="leaf"))
    monkeypatch.setattr("fedjax_ssl.data.sources.femnist._leaf_writers", None)
    assert_right(load("femnist", root=tmp_path / "root", path=tmp_path, form="leaf"))


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
        load("femnist", root=tmp_path / "root", path=tmp_path, form="leaf")


def test_leaf_files_that_are_missing_damaged_or_overlap(tmp_path):
    with pytest.raises(DatasetUnavailable, match=r"looked  .*train/\*.json\n(.|\n)*preprocess.sh"):
        load("femnist", root=tmp_path, form="leaf")
    with pytest.raises(ValueError, match="form='leaf' is a folder of your own making"):
        verify("femnist", root=tmp_path, form="leaf")
    for file in ("a", "b"):
        write_leaf(tmp_path / "train", TEST, file)
    with pytest.raises(DatasetUnavailable, match="has the writer f1 twice"):
        load("femnist", root=tmp_path, path=tmp_path, form="leaf")
    (tmp_path / "train" / "a.json").write_bytes((tmp_path / "train" / "a.json").read_bytes()[:50])
    with pytest.raises(DatasetUnavailable, match=r"a\.json is cut short, damaged"):
        load("femnist", root=tmp_path, path=tmp_path, form="leaf")
