"""Published datasets where the original files are not: the search order, and folders of TensorFlow Datasets."""

import logging

import numpy as np
import pytest

from fedjax_ssl.data import DatasetUnavailable, load
from fedjax_ssl.data.sources.catalog import ARCHIVES, MNIST
from fedjax_ssl.data.sources.emnist import PARTS, emnist
from fedjax_ssl.data.sources.stl10 import stl10
from fedjax_ssl.data.sources.svhn import svhn
from tests.data.sources.test_archives import write_mnist
from tests.data.sources.test_tfds import LABEL, example, png, prepare

ROW, COLUMN = 3, 5
IMAGE = {"image": {"shape": {"dimensions": ["28", "28", "1"]}, "dtype": "uint8"}, "pythonClassName": "x.Image"}


def records(labels, shape=(28, 28, 1), **more):
    found = np.random.default_rng(1).integers(0, 256, (len(labels), *shape), np.uint8)
    found[:, ROW, COLUMN] = np.array(labels)[:, None]
    return found, [example(image=png(x), label=[y], **more) for x, y in zip(found, labels, strict=True)]


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    return tmp_path / "tfds"


def prepare_mnist(folders):
    images, train = records([7, 0, 9, 4])
    splits, features = {"train": train, "test": train[:2]}, {"image": IMAGE, "label": LABEL}
    return images, prepare(folders / "mnist/3.0.1", splits, features, [str(k) for k in range(10)])


def test_the_search_order(tmp_path, folders, monkeypatch, caplog):
    images, _ = prepare_mnist(folders)
    for source in ("auto", "tfds"):
        data = load("mnist", tmp_path, source, False)
        np.testing.assert_array_equal(data.train.x, images)
        np.testing.assert_array_equal(data.train.x[:, ROW, COLUMN, 0], data.train.y)
        assert (data.name, data.mean, len(data.class_names)) == ("mnist", (0.1307,), 10)
        assert data.extra["terms"] == MNIST.terms
    assert "mnist is read from" in caplog.text and "has 4 + 2 examples; the published set has 60000" in caplog.text
    with pytest.raises(DatasetUnavailable) as caught:
        load("mnist", tmp_path, "original", download=False)
    assert str(folders) not in str(caught.value)
    raw = tmp_path / "mnist" / "raw"
    raw.mkdir(parents=True)
    write_mnist(raw)
    monkeypatch.setattr("fedjax_ssl.data.sources.archives._verify", lambda *_: None)  # small files
    assert len(load("mnist", tmp_path, download=False).train) == 20  # the original comes first,
    for file in raw.iterdir():
        file.unlink()
    assert len(load("mnist", tmp_path, download=False).train) == 20  # and what was made of it before that
    assert len(load("mnist", tmp_path, "tfds").train) == 4


def test_a_damaged_folder_is_passed_over_and_named(tmp_path, folders, caplog):
    _, folder = prepare_mnist(folders)
    (folder / "toy-train.tfrecord-00000-of-00002").unlink()
    with caplog.at_level(logging.WARNING), pytest.raises(DatasetUnavailable, match=f"looked .*{folders}/mnist"):
        load("mnist", tmp_path, download=False)
    assert "is damaged: split 'train' has 1 of its 2 files" in caplog.text
    with pytest.raises(DatasetUnavailable, match="has 1 of its 2 files"):
        load("mnist", tmp_path, "tfds")
    labels = records([3, 11])[1]
    prepare(folders / "cifar10/1.0.0", {"train": labels}, {"image": IMAGE, "label": LABEL}, [str(k) for k in range(12)])
    with pytest.raises(
        DatasetUnavailable, match=r"cifar10: tfds:cifar10 is not what is expected: .*labels out of range"
    ):
        load("cifar10", tmp_path, "tfds")


def test_what_is_not_prepared_and_sources_that_nobody_has(tmp_path, folders):
    with pytest.raises(DatasetUnavailable, match=r"tfds:mnist is not prepared here(.|\n)*tfds build mnist"):
        load("mnist", tmp_path, "tfds", download=False)
    for name in ("digits", "omniglot", "femnist"):
        with pytest.raises(ValueError, match="is not in TensorFlow Datasets in this form"):
            load(name, tmp_path, "tfds")
    for name, options in (("svhn", {"extra": True}), ("stl10", {"size": 32}), ("cifar100_federated", {})):
        with pytest.raises(ValueError, match="is not in TensorFlow Datasets with these options"):
            load(name, tmp_path, "tfds", **options)
    with pytest.raises(ValueError, match=r"unknown source 'tdfs'. Did you mean 'tfds'"):
        load("mnist", tmp_path, "tdfs")


def test_labels_that_begin_with_one_and_images_without_any(tmp_path, folders):
    images, train = records([1, 26])
    features = {"image": IMAGE, "label": LABEL}
    prepare(folders / "emnist/letters/3.1.0", {"train": train}, features, [str(k) for k in range(37)])
    data = load("emnist", tmp_path, "tfds", kind="letters")
    assert (data.train.y.tolist(), data.class_names[25]) == ([0, 25], "z")
    np.testing.assert_array_equal(data.train.x, images.transpose(0, 2, 1, 3))
    splits = {split: records(labels)[1] for split, labels in (("train", [9, 0]), ("unlabelled", [-1]), ("test", [2]))}
    prepare(folders / "stl10/1.0.0", splits, features, [str(k) for k in range(10)])
    assert load("stl10", tmp_path, "tfds").train.y.tolist() == [9, 0, -1]
    assert load("stl10", tmp_path, "tfds", unlabelled=False).train.y.tolist() == [9, 0]


def test_superclasses_come_along(tmp_path, folders):
    train = records([99, 0], (32, 32, 3), coarse_label=[13])[1]
    features = {"image": IMAGE, "label": LABEL, "coarse_label": LABEL}
    folder = prepare(folders / "cifar100/3.0.2", {"train": train}, features, [str(k) for k in range(100)])
    (folder / "coarse_label.labels.txt").write_text("\n".join(map(str, range(20))))
    data = load("cifar100", tmp_path, "tfds", download=False)
    assert (data.train.y.tolist(), data.train.coarse.tolist()) == ([99, 0], [13, 13])
    assert (data.coarse_names[13], data.correspondence.shape) == ("non-insect_invertebrates", (20, 100))


def test_names_in_the_other_catalogue():
    entries = [*ARCHIVES.values(), *map(emnist, PARTS), svhn(True), stl10(size=32)]
    found = {entry.prepared.name for entry in entries if entry.prepared is not None}
    configs = {f"emnist/{kind}" for kind in PARTS}
    assert found == {"mnist", "fashion_mnist", "cifar10", "cifar100", "svhn_cropped", "stl10"} | configs
