"""TensorFlow Federated's files, in small."""

import lzma
import sqlite3

import numpy as np
import pytest

from fedjax_ssl.data.correspondence import CIFAR100_SUPERCLASS_OF
from fedjax_ssl.data.sources import tff
from fedjax_ssl.data.sources.catalog import CIFAR100_CLASSES
from fedjax_ssl.data.sources.femnist import FEMNIST_CLASSES, femnist
from fedjax_ssl.data.sources.formats import FormatError
from tests.data.sources.test_tfds import example

RNG = np.random.default_rng(0)
ROW, COLUMN = 3, 5


def write(path, rows, table="examples"):
    """Rows of (split, client, record)."""
    plain = path.with_suffix("")
    with sqlite3.connect(plain) as database:
        columns = "split_name TEXT, client_id TEXT, serialized_example_proto BLOB"
        database.execute(f"CREATE TABLE {table} ({columns})")
        database.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", rows)
    database.close()
    path.write_bytes(lzma.compress(plain.read_bytes(), preset=0))
    plain.unlink()
    return {path.name: path}


def test_cifar100_by_client(tmp_path):
    images, rows = [], []
    for place, (split, client, label) in enumerate(
        [("train", "7", 0), ("train", "10", 99), ("train", "7", 5), ("test", "7", 8)]
    ):
        image = RNG.integers(0, 256, (32, 32, 3))
        image[ROW, COLUMN, 1] = 2 * label
        features = {"image": image.reshape(-1), "label": [label], "coarse_label": [CIFAR100_SUPERCLASS_OF[label]]}
        rows.append((split, client, example(packed=place != 1, **features)))
        images.append(image)
    data = tff.read_cifar100(write(tmp_path / tff.CIFAR100_FILE, rows), CIFAR100_CLASSES)
    np.testing.assert_array_equal(np.concatenate([data.train.x, data.test.x]), images)
    np.testing.assert_array_equal(data.train.x[:, ROW, COLUMN, 1], 2 * data.train.y)
    np.testing.assert_array_equal(data.train.coarse, np.array(CIFAR100_SUPERCLASS_OF)[data.train.y])
    assert data.client_names == ("train 10", "train 7", "test 7")
    assert (data.train.client.tolist(), data.test.client.tolist()) == ([1, 0, 1], [2])
    assert [file.name for file in tmp_path.iterdir()] == [tff.CIFAR100_FILE]


def test_emnist_by_writer_with_ink_high(tmp_path):
    rows, shades = [], []
    for split, client, label in [
        ("all_train", "f1", 61),
        ("all_test", "f1", 3),
        ("all_train", "f0", 10),
        ("digits_only_train", "f2", 1),
    ]:
        shade = RNG.integers(0, 256, 784)
        shade[28 * ROW + COLUMN] = 4 * label
        rows.append((split, client, example(pixels=(1 - shade / 255).astype(np.float32), label=[label])))
        shades.append(shade.reshape(28, 28, 1))
    data = femnist("tff").read(write(tmp_path / tff.EMNIST_FILE, rows))
    np.testing.assert_array_equal(data.train.x, [shades[0], shades[2]])
    np.testing.assert_array_equal(data.test.x, [shades[1]])
    np.testing.assert_array_equal(data.train.x[:, ROW, COLUMN, 0], 4 * data.train.y)
    assert (data.client_names, data.train.client.tolist(), data.test.client.tolist()) == (("f0", "f1"), [1, 0], [1])


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"pixels": np.zeros(783, np.float32), "label": [1]}, "example 0 of all_train, client f1, has no pixels of"),
        ({"pixels": np.full(784, 2, np.float32), "label": [1]}, "pixels outside 0 to 1"),
        ({"pixels": np.full(784, np.nan, np.float32), "label": [1]}, "pixels outside 0 to 1"),
        ({"pixels": np.zeros(784, np.float32), "label": [62]}, "no label of 0 to 61"),
        ({"pixels": np.zeros(784, np.float32)}, "no label of 0 to 61"),
    ],
)
def test_examples_that_cannot_be_right(tmp_path, features, message):
    with pytest.raises(FormatError, match=message):
        tff.read_emnist(write(tmp_path / tff.EMNIST_FILE, [("all_train", "f1", example(**features))]), FEMNIST_CLASSES)


def test_files_of_another_kind(tmp_path):
    path = tmp_path / tff.EMNIST_FILE
    with pytest.raises(FormatError, match="no table examples"):
        tff.read_emnist(write(path, [], table="other"), FEMNIST_CLASSES)
    with pytest.raises(FormatError, match="no examples of the split 'all_train'"):
        tff.read_emnist(write(path, []), FEMNIST_CLASSES)
    for content in (path.read_bytes()[:60], b"no lzma"):
        path.write_bytes(content)
        with pytest.raises(FormatError, match="is cut short, damaged"):
            tff.read_emnist({path.name: path}, FEMNIST_CLASSES)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
