"""Readers and the search for files, on small files in the true formats.

Images are noise, except that one pixel of each carries the label, so that a reader which mixes up
planes, order or transposition fails.
"""

import dataclasses
import gzip
import io
import sqlite3
import struct
import zlib

import numpy as np
import pytest
from flax import serialization

from fedjax_ssl.data import DatasetUnavailable, load
from fedjax_ssl.data.correspondence import CIFAR100_SUPERCLASS_OF
from fedjax_ssl.data.reading import fetch as fetching
from fedjax_ssl.data.reading.fetch import RemoteFile, load_archive
from fedjax_ssl.data.reading.formats import FormatError
from fedjax_ssl.data.reading.register import ENTRIES
from fedjax_ssl.data.sources.femnist import read_sqlite
from fedjax_ssl.data.sources.mnist import read_idx
from tests.data.sources.written import idx, write_tar

ROW = 3
COLUMN = 5
CHANNEL = 1
MNIST, CIFAR10, CIFAR100, FEMNIST = (
    ENTRIES[name].archive() for name in ("mnist", "cifar10", "cifar100", "femnist")
)


def noise(rng, labels, shape):
    """uint8 images [n, H, W, C] of noise; the marked pixel is 7 * label (as a byte)."""
    images = rng.integers(0, 256, (len(labels), *shape), np.uint8)
    images[:, ROW, COLUMN, min(CHANNEL, shape[2] - 1)] = 7 * labels.astype(int) % 256
    return images


def write_mnist(folder):
    rng = np.random.default_rng(0)
    labels = np.arange(20, dtype=np.uint8) % 10
    test_labels = np.arange(10, dtype=np.uint8)
    arrays = (noise(rng, labels, (28, 28, 1))[..., 0], labels)
    arrays += (noise(rng, test_labels, (28, 28, 1))[..., 0], test_labels)
    for file, array in zip(MNIST.files, arrays, strict=True):
        (folder / file.name).write_bytes(idx(array))


def rows(rng, labels, *columns):
    """Rows of label bytes and marked images."""
    planes = noise(rng, labels, (32, 32, 3)).transpose(0, 3, 1, 2).reshape(len(labels), -1)
    return np.concatenate([*(column[:, None] for column in columns), planes], axis=1).tobytes()


def write_cifar10(folder, batches=5):
    rng = np.random.default_rng(0)
    names = [*(f"data_batch_{i}" for i in range(1, batches + 1)), "test_batch"]
    labels = {name: rng.integers(0, 10, 6, np.uint8) for name in names}
    contents = {
        f"cifar-10-batches-bin/{name}.bin": rows(rng, some, some) for name, some in labels.items()
    }
    write_tar(folder / CIFAR10.files[0].name, contents)


def write_cifar100(folder, superclass_of=CIFAR100_SUPERCLASS_OF, splits=("train", "test")):
    rng = np.random.default_rng(0)
    fine = {name: rng.permutation(100).astype(np.uint8) for name in splits}
    coarse = {name: np.array(superclass_of, np.uint8)[some] for name, some in fine.items()}
    contents = {
        f"cifar-100-binary/{name}.bin": rows(rng, fine[name], coarse[name], fine[name])
        for name in splits
    }
    write_tar(folder / CIFAR100.files[0].name, contents)


def write_writers(path, writers, seed=0, **changes):
    """One split in fedjax's form; `writers` maps identifiers to numbers of examples."""
    rng = np.random.default_rng(seed)
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE federated_data (client_id BLOB NOT NULL PRIMARY KEY, data BLOB NOT NULL,"
            " num_examples INTEGER NOT NULL)"
        )
        for name, count in writers.items():
            label = rng.integers(0, 62, count).astype(np.int32)
            ink = rng.random((count, 28, 28), np.float32)
            ink[:, ROW, COLUMN] = label / 62
            content = {"pixels": 1 - ink, "label": label, **changes}
            data = zlib.compress(serialization.msgpack_serialize(content))
            database.execute(
                "INSERT INTO federated_data VALUES (?, ?, ?)", (name.encode(), data, count)
            )
    database.close()


def write_femnist(folder):
    write_writers(
        folder / FEMNIST.files[0].name, {"b:f2100_01": 7, "a:f0000_14": 3, "c:f3999_02": 4}
    )
    write_writers(folder / FEMNIST.files[1].name, {"a:f0000_14": 2, "c:f3999_02": 1}, seed=1)


def unlocked(archive):
    """The catalogue entry without the original's digests and addresses."""
    files = tuple(RemoteFile(f"http://name.invalid/{file.name}") for file in archive.files)
    return dataclasses.replace(archive, files=files)


def assert_marked(split):
    marked = split.x[:, ROW, COLUMN, min(CHANNEL, split.x.shape[3] - 1)]
    np.testing.assert_array_equal(marked, 7 * split.y % 256)


@pytest.mark.parametrize(
    ("entry", "write", "count", "shape", "last"),
    [
        (MNIST, write_mnist, (20, 10), (28, 28, 1), "9"),
        (CIFAR10, write_cifar10, (30, 6), (32, 32, 3), "truck"),
    ],
    ids=["mnist", "cifar10"],
)
def test_images_and_labels(tmp_path, entry, write, count, shape, last):
    write(tmp_path)
    data = load_archive(unlocked(entry), path=tmp_path)
    assert (len(data.train), len(data.test), data.input_shape, data.class_names[9]) == (
        *count,
        shape,
        last,
    )
    assert_marked(data.train)
    assert_marked(data.test)


def test_cifar100_has_both_labels(tmp_path):
    raw = tmp_path / "cifar100" / "raw"
    raw.mkdir(parents=True)
    write_cifar100(raw)
    first = load_archive(unlocked(CIFAR100), root=tmp_path, download=False)
    (raw / CIFAR100.files[0].name).unlink()
    again = load_archive(unlocked(CIFAR100), root=tmp_path, download=False)
    assert isinstance(again.train.x.base, np.memmap) and again.mean == first.mean
    for data in (first, again):
        assert data.extra["terms"] == CIFAR100.terms
        assert (data.num_classes, len(data.coarse_names)) == (100, 20)
        for split in (data.train, data.test):
            assert split.x.shape == (100, 32, 32, 3)
            assert_marked(split)
            np.testing.assert_array_equal(split.coarse, np.array(CIFAR100_SUPERCLASS_OF)[split.y])
        np.testing.assert_array_equal(
            np.argmax(data.correspondence, axis=0), CIFAR100_SUPERCLASS_OF
        )
    assert data.class_names[::33] == ("apple", "forest", "raccoon", "worm")
    people = [
        name
        for name, coarse in zip(data.class_names, CIFAR100_SUPERCLASS_OF, strict=True)
        if coarse == 14
    ]
    assert people == ["baby", "boy", "girl", "man", "woman"]
    assert data.coarse_names[14] == "people"


def test_cifar100_damage(tmp_path):
    path = tmp_path / CIFAR100.files[0].name
    write_cifar100(tmp_path, splits=("train",))
    with pytest.raises(FormatError, match=r"has no test\.bin; found: train\.bin"):
        CIFAR100.read({path.name: path})
    write_cifar100(tmp_path, superclass_of=np.arange(100) // 5 + 1)
    with pytest.raises(FormatError, match=r"train\.bin has the superclass 20; there are 0 to 19"):
        CIFAR100.read({path.name: path})
    write_cifar100(tmp_path, superclass_of=np.arange(100) // 5)
    with pytest.raises(
        DatasetUnavailable, match="examples are not in the superclass of their class; the first has"
    ):
        load_archive(unlocked(CIFAR100), path=tmp_path)


def test_femnist(tmp_path, caplog):
    write_femnist(tmp_path)
    data = load_archive(unlocked(FEMNIST), path=tmp_path)
    assert data.client_names == ("a:f0000_14", "b:f2100_01", "c:f3999_02")
    np.testing.assert_array_equal(np.bincount(data.train.client), [3, 7, 4])
    np.testing.assert_array_equal(data.test.client, [0, 0, 2])
    for split in (data.train, data.test):
        np.testing.assert_array_equal(split.x[:, ROW, COLUMN, 0], np.rint(255 * split.y / 62))
    assert "femnist has 14 + 3 examples; the published set has 671585 + 77483" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pixels": np.zeros((3, 28, 27), np.float32)}, r"client a has pixels \(3, 28, 27\)"),
        ({"pixels": np.full((3, 28, 28), 2.0, np.float32)}, "pixels outside 0 to 1"),
        ({"label": np.array([0, 62, 1])}, "client a has labels outside 0 to 61"),
    ],
)
def test_femnist_bad_content(tmp_path, changes, message):
    write_writers(tmp_path / "w.sqlite", {"a": 3}, **changes)
    with pytest.raises(FormatError, match=message):
        read_sqlite(tmp_path / "w.sqlite")


def test_femnist_other_files(tmp_path):
    path = tmp_path / "w.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE examples (split_name TEXT)")
    database.close()
    with pytest.raises(FormatError, match="no table federated_data"):
        read_sqlite(path)
    path.unlink()
    write_writers(path, {})
    with pytest.raises(FormatError, match="holds no examples"):
        read_sqlite(path)
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO federated_data VALUES (?, ?, ?)", (b"w7", b"no zlib", 3))
    database.close()
    with pytest.raises(FormatError, match=r"\(client w7\) is cut short, damaged"):
        read_sqlite(path)
    path.unlink()
    write_writers(path, {f"w{i}": 5 for i in range(8)})
    content = path.read_bytes()
    for damaged in (
        content[: int(0.3 * len(content))],
        content[: int(0.9 * len(content))],
        b"<html>moved" * 100,
    ):
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match=r"w\.sqlite.* is cut short, damaged"):
            read_sqlite(path)


def test_idx_damage():
    content = idx(np.zeros((4, 5), np.uint8))
    cases = {
        content[:-9]: "cut short, damaged",
        b"plain": "cut short, damaged",
        gzip.compress(b"\0\0\x0d\1\0\0\0\0"): "no IDX file of bytes",
        gzip.compress(b"\0\0\x08\2\0\0"): "ends inside its header",
        gzip.compress(
            struct.pack(">HBBI", 0, 8, 1, 9) + b"12345678"
        ): r"states the shape \(9,\) but holds 8",
    }
    for damaged, message in cases.items():
        with pytest.raises(FormatError, match=message):
            read_idx(io.BytesIO(damaged), "a.gz")


def test_root_from_the_environment(tmp_path, monkeypatch):
    (tmp_path / "cifar10" / "raw").mkdir(parents=True)
    write_cifar10(tmp_path / "cifar10" / "raw")
    monkeypatch.setenv("FEDJAX_SSL_DATA", str(tmp_path))
    assert len(load_archive(unlocked(CIFAR10), download=False).train) == 30


def test_wrong_original_is_refused(tmp_path):
    write_cifar10(tmp_path)
    with pytest.raises(
        DatasetUnavailable,
        match=r"expected 170,052,171\), sha256 \w{64}, expected c4a38c50a1bc5f3a",
    ):
        load("cifar10", path=tmp_path)


def test_damaged_file_says_what_to_do(tmp_path):
    write_femnist(tmp_path)
    file = tmp_path / FEMNIST.files[1].name
    file.write_bytes(file.read_bytes()[:9000])
    with pytest.raises(
        DatasetUnavailable, match=r"delete that file and start again, or .*femnist_xclp\.py:glyphs"
    ) as caught:
        load("femnist", path=tmp_path)
    assert str(file) in str(caught.value)
    assert isinstance(caught.value.__cause__, FormatError)


def test_message_without_download(tmp_path):
    with pytest.raises(DatasetUnavailable) as caught:
        load("cifar10", root=tmp_path, download=False)
    lines = str(caught.value).splitlines()
    raw = tmp_path / "cifar10" / "raw"
    digest = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
    assert lines[0] == "cifar10 is not here."
    assert lines[1] == f"  looked  {tmp_path / 'cifar10' / 'converted-v1'}, {raw}"
    assert (
        lines[3] == f"  - put cifar-10-binary.tar.gz (170,052,171 bytes, sha256 {digest}) in {raw}/"
    )
    assert "FEDJAX_SSL_DATA" in lines[5]
    assert 'load("digits") or load("glyphs")' in lines[6]


def test_message_without_network(tmp_path, monkeypatch):
    def unresolved(urls, dest, **options):
        raise fetching.FetchFailed([(url, "Name or service not known") for url in urls])

    monkeypatch.setattr(fetching, "fetch", unresolved)
    with pytest.raises(DatasetUnavailable) as caught:
        load("femnist", root=tmp_path)
    message = str(caught.value)
    train, test = (file.name for file in FEMNIST.files)
    assert message.startswith(
        "femnist is not here and could not be downloaded.\n  tried   https://storage."
    )
    assert f"{train}: Name or service not known\n" in message
    assert f"put {train} in {tmp_path}/femnist/raw/" in message
    assert f"put {test} in {tmp_path}/femnist/raw/" in message
    assert message.endswith("--config configs/femnist_xclp.py:glyphs")
    assert isinstance(caught.value.__cause__, fetching.FetchFailed)


def test_message_when_nothing_can_be_stored(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DatasetUnavailable, match="cannot store a download here"):
        load("femnist", root=tmp_path / "file")
