"""TensorFlow Federated's files, in small."""

import lzma
import sqlite3

import numpy as np
import pytest

from fedjax_ssl.data.correspondence import CIFAR100_SUPERCLASS_OF
from fedjax_ssl.data.reading.formats import FormatError
from fedjax_ssl.data.reading.tff import parse_example
from fedjax_ssl.data.sources import archive

CIFAR100 = archive("cifar100_federated")
EMNIST = archive("femnist", form="tff")
RNG = np.random.default_rng(0)
ROW = 3
COLUMN = 5


def varint(value):
    value = value & (1 << 64) - 1
    content = b""
    while value > 0x7F:
        content = content + bytes([value & 0x7F | 0x80])
        value = value >> 7
    return content + bytes([value])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(packed=True, **features):
    """A serialized Example; features are bytes, floats [n] or whole numbers [n]."""
    entries = b""
    for key, value in features.items():
        if isinstance(value, bytes):
            inner = field(1, field(1, value))
        elif np.asarray(value).dtype.kind == "f":
            numbers = np.asarray(value, "<f4")
            one_by_one = b"".join(b"\x0d" + number.tobytes() for number in numbers)
            inner = field(2, field(1, numbers.tobytes()) if packed else one_by_one)
        else:
            numbers = [varint(int(number)) for number in value]
            inner = field(
                3,
                field(1, b"".join(numbers))
                if packed
                else b"".join(b"\x08" + one for one in numbers),
            )
        entries += field(1, field(1, key.encode()) + field(2, inner))
    return field(1, entries)


@pytest.mark.parametrize("packed", [True, False])
def test_an_example_in_both_spellings(packed):
    found = parse_example(
        example(packed, a=b"\x00bytes", b=np.float32([1.5, -2]), c=[-1, 0, 300, 2**40])
    )
    assert found["a"] == [b"\x00bytes"]
    np.testing.assert_array_equal(found["b"], np.float32([1.5, -2]))
    np.testing.assert_array_equal(found["c"], [-1, 0, 300, 2**40])


@pytest.mark.parametrize(
    "broken", [b"\x0a\x50", b"\x0a\x02\x0a\x01", b"\x0f", b"\xff" * 12, b"\x0a\x02\x0a\x00"]
)
def test_bytes_that_are_no_example(broken):
    with pytest.raises(FormatError, match="is no Example"):
        parse_example(broken)


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
    images = []
    rows = []
    for place, (split, client, label) in enumerate(
        [("train", "7", 0), ("train", "10", 99), ("train", "7", 5), ("test", "7", 8)]
    ):
        image = RNG.integers(0, 256, (32, 32, 3))
        image[ROW, COLUMN, 1] = 2 * label
        features = {
            "image": image.reshape(-1),
            "label": [label],
            "coarse_label": [CIFAR100_SUPERCLASS_OF[label]],
        }
        rows.append((split, client, example(packed=place != 1, **features)))
        images.append(image)
    data = CIFAR100.read(write(tmp_path / CIFAR100.files[0].name, rows))
    np.testing.assert_array_equal(np.concatenate([data.train.x, data.test.x]), images)
    np.testing.assert_array_equal(data.train.x[:, ROW, COLUMN, 1], 2 * data.train.y)
    np.testing.assert_array_equal(data.train.coarse, np.array(CIFAR100_SUPERCLASS_OF)[data.train.y])
    assert data.client_names == ("train 10", "train 7", "test 7")
    assert (data.train.client.tolist(), data.test.client.tolist()) == ([1, 0, 1], [2])
    assert [file.name for file in tmp_path.iterdir()] == [CIFAR100.files[0].name]


def test_emnist_by_writer_with_ink_high(tmp_path):
    rows = []
    shades = []
    for split, client, label in [
        ("all_train", "f1", 61),
        ("all_test", "f1", 3),
        ("all_train", "f0", 10),
        ("digits_only_train", "f2", 1),
    ]:
        shade = RNG.integers(0, 256, 784)
        shade[28 * ROW + COLUMN] = 4 * label
        rows.append(
            (split, client, example(pixels=(1 - shade / 255).astype(np.float32), label=[label]))
        )
        shades.append(shade.reshape(28, 28, 1))
    data = EMNIST.read(write(tmp_path / EMNIST.files[0].name, rows))
    np.testing.assert_array_equal(data.train.x, [shades[0], shades[2]])
    np.testing.assert_array_equal(data.test.x, [shades[1]])
    np.testing.assert_array_equal(data.train.x[:, ROW, COLUMN, 0], 4 * data.train.y)
    assert (data.client_names, data.train.client.tolist(), data.test.client.tolist()) == (
        ("f0", "f1"),
        [1, 0],
        [1],
    )


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (
            {"pixels": np.zeros(783, np.float32), "label": [1]},
            "example 0 of all_train, client f1, has no pixels of",
        ),
        ({"pixels": np.full(784, 2, np.float32), "label": [1]}, "pixels outside 0 to 1"),
        ({"pixels": np.zeros(784, np.float32), "label": [62]}, "no label of 0 to 61"),
    ],
)
def test_examples_that_cannot_be_right(tmp_path, features, message):
    with pytest.raises(FormatError, match=message):
        EMNIST.read(
            write(tmp_path / EMNIST.files[0].name, [("all_train", "f1", example(**features))])
        )


def test_files_of_another_kind(tmp_path):
    path = tmp_path / EMNIST.files[0].name
    with pytest.raises(FormatError, match="no table examples"):
        EMNIST.read(write(path, [], table="other"))
    with pytest.raises(FormatError, match="no examples of the split 'all_train'"):
        EMNIST.read(write(path, []))
    for content in (path.read_bytes()[:60], b"no lzma"):
        path.write_bytes(content)
        with pytest.raises(FormatError, match="is cut short, damaged"):
            EMNIST.read({path.name: path})
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
