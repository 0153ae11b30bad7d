"""Published datasets in their own formats, on small generated files; one pixel of each image
carries the label.
"""

import dataclasses
import http.server
import io
import threading
from functools import partial

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from fedjax_ssl.data import DatasetUnavailable, load
from fedjax_ssl.data.reading.fetch import RemoteFile, load_archive
from fedjax_ssl.data.reading.formats import FormatError
from fedjax_ssl.data.reading.register import ENTRIES
from fedjax_ssl.data.sources.cifar import CIFAR10_CLASSES
from fedjax_ssl.data.sources.cinic10 import read_cinic10
from fedjax_ssl.data.sources.stl10 import read_stl10
from fedjax_ssl.data.sources.svhn import read_svhn
from tests.data.sources.written import write_tar

ROW = 3
COLUMN = 5
ARCHIVES = {name: entry.archive() for name, entry in ENTRIES.items() if entry.archive is not None}


def noise(labels, shape, seed=0):
    """uint8 images [n, H, W, C] of noise; the marked pixel of the last channel is 4 * label."""
    images = np.random.default_rng(seed).integers(0, 256, (len(labels), *shape), np.uint8)
    images[:, ROW, COLUMN, -1] = 4 * np.asarray(labels)
    return images


def assert_marked(split, seed=0):
    np.testing.assert_array_equal(split.x[:, ROW, COLUMN, -1], 4 * split.y)
    np.testing.assert_array_equal(split.x, noise(split.y, split.x.shape[1:], seed))


def write_svhn(folder, **changes):
    files = {}
    for seed, part in enumerate(("train", "test")):
        labels = (np.arange(12) + seed) % 10
        images = noise(labels, (32, 32, 3), seed).transpose(1, 2, 3, 0)
        content = {
            "X": images,
            "y": np.where(labels == 0, 10, labels)[:, None].astype(np.uint8),
            **changes,
        }
        path = files[f"{part}_32x32.mat"] = folder / f"{part}_32x32.mat"
        savemat(path, {name: values for name, values in content.items() if values is not None})
    return files


def test_svhn(tmp_path):
    data = read_svhn(write_svhn(tmp_path))
    assert_marked(data.train)
    assert_marked(data.test, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, "no variable y"),
        ({"X": np.zeros((12, 32, 32, 3), np.uint8)}, r"X of uint8 .12, 32, 32, 3. and 12 labels"),
        ({"y": np.arange(12)[:, None]}, "labels from 0 to 11"),
    ],
)
def test_svhn_that_cannot_be_right(tmp_path, changes, message):
    with pytest.raises(FormatError, match=message):
        read_svhn(write_svhn(tmp_path, **changes))
    (tmp_path / "train_32x32.mat").write_bytes(b"MATLAB 5.0" * 50)
    with pytest.raises(FormatError, match=r"train_32x32.mat is cut short, damaged"):
        read_svhn(
            {f"{part}_32x32.mat": tmp_path / f"{part}_32x32.mat" for part in ("train", "test")}
        )


def write_stl10(folder, changes=()):
    content = {}
    for seed, split in enumerate(("train", "test", "unlabeled")):
        labels = np.arange(10)
        images = noise(labels, (96, 96, 3), seed)
        content[f"{split}_X.bin"] = images.transpose(0, 3, 2, 1).tobytes()
        content[f"{split}_y.bin"] = (labels + 1).astype(np.uint8).tobytes()
    content.update(changes)
    named = {f"stl10_binary/{name}": values for name, values in content.items()}
    return write_tar(folder / "stl10_binary.tar.gz", named)


def test_stl10_has_what_has_no_label_behind_the_others(tmp_path):
    files = write_stl10(tmp_path)
    data = read_stl10(files, size=96)
    assert_marked(data.test, 1)
    np.testing.assert_array_equal(data.train.x[:10], noise(range(10), (96, 96, 3), 0))
    assert data.train.y.tolist() == [*range(10), *[-1] * 10]
    np.testing.assert_array_equal(data.train.x[10:], noise(range(10), (96, 96, 3), 2))
    small = read_stl10(files, size=32)
    blocks = data.train.x.reshape(20, 32, 3, 32, 3, 3).mean(axis=(2, 4))
    assert small.input_shape == (32, 32, 3) and np.abs(small.train.x - blocks).max() <= 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_y.bin": bytes(10)}, "labels outside 1 to 10"),
        ({"train_y.bin": bytes(range(1, 10))}, "10 images and 9 labels"),
        ({"unlabeled_X.bin": b"123"}, "3 bytes, no whole number of images"),
    ],
)
def test_stl10_that_cannot_be_right(tmp_path, changes, message):
    with pytest.raises(FormatError, match=message):
        read_stl10(write_stl10(tmp_path, changes), size=8)


def write_cinic10(folder, top="./", changes=()):
    """An archive of two images of each of ten classes and of three parts, in an odd order."""
    content = {}
    for seed, part in enumerate(("valid", "test", "train")):
        for label, name in reversed(list(enumerate(CIFAR10_CLASSES))):
            for place, kind in enumerate(("n02_7", "cifar10-train-3")):
                content[f"{part}/{name}/{kind}.png"] = png(
                    noise([label], (32, 32, 3), 2 * seed + place)[0]
                )
    content["train/airplane/n02_7.png"] = png(np.full((32, 32), 77, np.uint8))
    content |= {
        "train/airplane/._n02_7.png": b"of another system",
        "README.md": b"text",
        **dict(changes),
    }
    named = {f"{top}{name}": values for name, values in content.items()}
    return write_tar(folder / "CINIC-10.tar.gz", named)


def png(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def test_cinic10_in_the_order_of_classes_and_names(tmp_path):
    data = read_cinic10(write_cinic10(tmp_path))
    assert data.train.y.tolist() == np.repeat(np.arange(10), 2).tolist()
    assert (data.train.x[1] == 77).all() and data.class_names == CIFAR10_CLASSES
    np.testing.assert_array_equal(data.train.x[2], noise([1], (32, 32, 3), 5)[0])
    np.testing.assert_array_equal(data.test.x[3], noise([1], (32, 32, 3), 2)[0])
    again = read_cinic10(write_cinic10(tmp_path, "CINIC-10/"))
    np.testing.assert_array_equal(again.train.x, data.train.x)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test/cat/n02_7.png": b"no image"}, "test/cat/n02_7.png is cut short, damaged"),
        ({"test/cat/n02_7.png": png(np.zeros((8, 9, 3), np.uint8))}, "9x8 pixels; expected are"),
    ],
)
def test_cinic10_that_cannot_be_right(tmp_path, changes, message):
    with pytest.raises(FormatError, match=message):
        read_cinic10(write_cinic10(tmp_path, changes=changes))
    path = tmp_path / "CINIC-10.tar.gz"
    path.write_bytes(b"no archive")
    with pytest.raises(FormatError, match=r"CINIC-10.tar.gz is cut short, damaged or in another"):
        read_cinic10({path.name: path})


def test_cinic10_is_fetched_once_and_kept(tmp_path, caplog):
    write_cinic10(tmp_path)
    serve = partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}/CINIC-10.tar.gz"
    here = dataclasses.replace(ARCHIVES["cinic10"], files=(RemoteFile(address),))
    data = load_archive(here, root=tmp_path / "root")
    server.shutdown()
    thread.join()
    server.server_close()
    assert "20 + 20 examples; the published set has 90000 + 90000" in caplog.text
    again = load_archive(here, root=tmp_path / "root", download=False)
    np.testing.assert_array_equal(again.train.x, data.train.x)
    assert again.std == (0.24205776, 0.23828046, 0.25874835)


def test_what_is_not_here_says_what_belongs_where(tmp_path):
    for name, entry in ARCHIVES.items():
        with pytest.raises(DatasetUnavailable) as caught:
            load(name, root=tmp_path, download=False)
        assert all(f"put {file.name}" in str(caught.value) for file in entry.files)
        assert all(file.url in str(caught.value) for file in entry.files)


def test_options_have_bounds(tmp_path):
    with pytest.raises(ValueError, match="size"):
        load("stl10", root=tmp_path, download=False, size=97)
