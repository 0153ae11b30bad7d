"""Folders as TensorFlow Datasets prepares them, written here without it, and published datasets
read from them.
"""

import importlib
import importlib.util
import io
import json

import numpy as np
import pytest
from PIL import Image

from fedjax_ssl.data import DatasetUnavailable, load
from fedjax_ssl.data.reading.archives import Verified
from fedjax_ssl.data.reading.register import ENTRIES
from fedjax_ssl.data.reading.tfds import read_tfrecord
from fedjax_ssl.data.sources import archive
from fedjax_ssl.data.sources.emnist import PARTS
from tests.data.sources.test_archives import write_mnist
from tests.data.sources.test_tff import example

ROW = 3
COLUMN = 5
RNG = np.random.default_rng(0)
CLASSES = "tensorflow_datasets.core.features"


def image(*shape):
    described = {
        "shape": {"dimensions": [str(size) for size in shape]},
        "dtype": "uint8",
        "encodingFormat": "png",
    }
    return {"pythonClassName": f"{CLASSES}.image_feature.Image", "image": described}


def label(count):
    return {
        "pythonClassName": f"{CLASSES}.class_label_feature.ClassLabel",
        "classLabel": {"numClasses": str(count)},
    }


def tfrecord(records):
    return b"".join(len(one).to_bytes(8, "little") + bytes(4) + one + bytes(4) for one in records)


def prepare(folder, splits, features=None, labels=3, supervised=True, **info):
    """Writes a folder; `splits` maps names to lists of records, which go into two files each."""
    folder.mkdir(parents=True)
    name = folder.parent.name if folder.parent.parent.name != "emnist" else "emnist"
    features = features or {"image": image(8, 9, 3), "label": label(labels)}
    content = {
        "pythonClassName": f"{CLASSES}.features_dict.FeaturesDict",
        "featuresDict": {"features": features},
    }
    (folder / "features.json").write_text(json.dumps(content))
    files = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    described = [
        {
            "name": split,
            "shardLengths": [str(len(records) // 2), str(len(records) - len(records) // 2)],
            "filepathTemplate": files,
        }
        for split, records in splits.items()
    ]
    facts = {
        "name": name,
        "version": folder.name,
        "splits": described,
        "fileFormat": "tfrecord",
        "citation": "Cite",
    }
    if supervised:
        facts["supervisedKeys"] = {
            "tuple": {"items": [{"featureKey": "image"}, {"featureKey": "label"}]}
        }
    (folder / "dataset_info.json").write_text(json.dumps(facts | info))
    (folder / "label.labels.txt").write_text(
        "".join(f"{chr(97 + k) if labels < 27 else k}\n" for k in range(labels))
    )
    for split, records in splits.items():
        half = len(records) // 2
        for shard, part in enumerate((records[:half], records[half:])):
            (folder / f"{name}-{split}.tfrecord-0000{shard}-of-00002").write_bytes(tfrecord(part))
    return folder


def marked(labels, shape=(8, 9, 3), **more):
    """Examples whose marked pixel is 2 * label."""
    images = RNG.integers(0, 256, (len(labels), *shape), np.uint8)
    images[:, ROW, COLUMN, -1] = np.maximum(2 * np.array(labels), 0)
    records = []
    for pixels, one in zip(images, labels, strict=True):
        file = io.BytesIO()
        Image.fromarray(pixels[..., 0] if shape[2] == 1 else pixels).save(file, "PNG")
        records.append(example(image=file.getvalue(), label=[one], **more))
    return images, records


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    return tmp_path / "tfds"


def test_what_is_not_prepared_says_how(tmp_path, monkeypatch):
    with pytest.raises(DatasetUnavailable, match="tfds build toy") as caught:
        load("tfds:toy", path=tmp_path, root=tmp_path, download=False)
    assert "tried" not in str(caught.value)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        DatasetUnavailable,
        match="preparing it needs tensorflow, tensorflow_datasets, importlib_res",
    ):
        load("tfds:toy", path=tmp_path, root=tmp_path)
    with pytest.raises(
        DatasetUnavailable, match=r"tfds:mnist is not prepared here(.|\n)*tfds build mnist"
    ):
        load("mnist", tmp_path, "tfds", download=False)


def test_a_file_of_records_is_read_in_order_or_refused(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(tfrecord([b"a", b"", b"ccc"]))
    assert list(read_tfrecord(path)) == [b"a", b"", b"ccc"]
    for content in (
        b"12345",
        (9).to_bytes(8, "little") + bytes(9),
        (1 << 40).to_bytes(8, "little") + bytes(9),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="no TFRecord file, or cut short"):
            list(read_tfrecord(path))


def test_sources_that_the_other_catalogue_does_not_have(tmp_path):
    for name in ("digits", "omniglot", "femnist", "cifar100_federated"):
        with pytest.raises(ValueError, match="is not in TensorFlow Datasets in this form"):
            load(name, tmp_path, "tfds")
    for name, options in (("svhn", {"extra": True}), ("stl10", {"size": 32})):
        with pytest.raises(ValueError, match="is not in TensorFlow Datasets with these options"):
            load(name, tmp_path, "tfds", **options)
    with pytest.raises(ValueError, match=r"unknown source 'tdfs'. Did you mean 'tfds'"):
        load("mnist", tmp_path, "tdfs")
    published = [name for name, entry in ENTRIES.items() if entry.archive is not None]
    entries = [*map(archive, published), *(archive("emnist", kind=kind) for kind in PARTS)]
    found = {entry.prepared.name for entry in entries if entry.prepared is not None}
    configs = {f"emnist/{kind}" for kind in PARTS}
    assert (
        found
        == {"mnist", "fashion_mnist", "cifar10", "cifar100", "svhn_cropped", "stl10"} | configs
    )


@pytest.fixture
def library():
    pytest.importorskip("tensorflow_datasets")


@pytest.mark.thorough
def test_a_prepared_folder_is_read_and_kept(tmp_path, library, monkeypatch):
    images, records = marked([0, 1, 2, 1])
    prepare(tmp_path / "toy/1.0.0", {"train": records[:2]})
    prepare(
        tmp_path / "toy/1.10.0", {"train": records, "test": records[:2], "extra-train": records[:3]}
    )
    first = load("tfds:toy", path=tmp_path, root=tmp_path / "root", download=False)
    assert len(load("tfds:toy", path=tmp_path, root=tmp_path, train_split="extra-train").train) == 3
    monkeypatch.setattr(importlib, "import_module", None)
    for data in (first, load("tfds", dataset="toy", path=tmp_path, root=tmp_path / "root")):
        np.testing.assert_array_equal(data.train.x, images)
        np.testing.assert_array_equal(data.train.x[:, ROW, COLUMN, 2], 2 * data.train.y)
        assert data.test.y.tolist() == [0, 1] and data.class_names == ("a", "b", "c")
        assert data.extra["terms"] == "Cite"


@pytest.mark.thorough
def test_roles_of_features_and_splits_without_labels(tmp_path, library):
    who = {"pythonClassName": f"{CLASSES}.text_feature.Text", "text": {}}
    features = {"image": image(8, 9, 3), "label": label(3), "coarse": label(2), "who": who}
    splits = {
        name: marked([0, 1], coarse=[1], who=name.encode())[1]
        for name in ("train", "unlabelled", "validation")
    }
    folder = prepare(tmp_path / "toy/1.0.0", splits, features, supervised=False)
    (folder / "coarse.labels.txt").write_text("x\ny\n")
    keys = {"label_key": "label", "coarse_key": "coarse", "client_key": "who"}
    more = {"unlabelled_split": "unlabelled", "test_split": "validation"}
    data = load("tfds:toy", path=tmp_path, root=tmp_path, **keys, **more)
    assert data.train.y.tolist() == [0, 1, -1, -1] and data.coarse_names == ("x", "y")
    assert data.client_names == ("train", "unlabelled", "validation")
    assert data.train.client.tolist() == [0, 0, 1, 1] and data.test.client.tolist() == [2, 2]
    for options, message in (
        ({}, "2 columns could be the label; name one with data.label_key"),
        ({**keys, "client_key": "wo"}, "no column 'wo'. Did you mean 'who'"),
        ({**keys, "test_split": "tain"}, "no split 'tain'. Did you mean 'train'"),
        ({**keys, "test_split": "train"}, "train, train are two of one split"),
        ({**keys, "unlabelled_split": "train"}, "give each a split of its own"),
    ):
        with pytest.raises(ValueError, match=message):
            load("tfds:toy", path=tmp_path, root=tmp_path, **options)


@pytest.mark.thorough
def test_numbers_and_images_of_several_sizes(tmp_path, library):
    tensor = {"shape": {"dimensions": ["2", "3"]}, "dtype": "float32", "encoding": "none"}
    numbers = {
        "input": {"pythonClassName": f"{CLASSES}.tensor_feature.Tensor", "tensor": tensor},
        "label": label(3),
    }
    values = RNG.random((4, 6), np.float32)
    records = [example(input=row, label=[i % 3]) for i, row in enumerate(values)]
    prepare(tmp_path / "flat/1.0.0", {"train": records}, numbers)
    data = load("tfds:flat", path=tmp_path, root=tmp_path, input_key="input")
    np.testing.assert_array_equal(data.train.x, values.reshape(4, 2, 3))
    mixed = [marked([i], shape)[1][0] for i, shape in enumerate([(8, 9, 1), (7, 7, 1)])]
    prepare(
        tmp_path / "mixed/1.0.0", {"train": mixed}, {"image": image(-1, -1, 1), "label": label(3)}
    )
    with pytest.raises(
        ValueError, match=r"several shapes, .8, 9, 1. and .7, 7, 1.; give data.size"
    ):
        load("tfds:mixed", path=tmp_path, root=tmp_path)
    assert load("tfds:mixed", path=tmp_path, root=tmp_path, size=4).input_shape == (4, 4, 1)


@pytest.mark.thorough
def test_array_record_is_read_too(tmp_path, library):
    module = pytest.importorskip("array_record.python.array_record_module")
    images, records = marked([0, 1, 2])
    folder = prepare(tmp_path / "toy/1.0.0", {"train": records}, fileFormat="array_record")
    for shard, part in enumerate((records[:1], records[1:])):
        writer = module.ArrayRecordWriter(
            str(folder / f"toy-train.array_record-0000{shard}-of-00002"), "group_size:1"
        )
        for record in part:
            writer.write(record)
        writer.close()
    np.testing.assert_array_equal(load("tfds:toy", path=tmp_path, root=tmp_path).train.x, images)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("toy-train.tfrecord-00001-of-00002", b"12345", "is no TFRecord file, or cut short"),
        ("toy-train.tfrecord-00001-of-00002", tfrecord([b"\x0f"]), "is damaged"),
        (
            "toy-train.tfrecord-00001-of-00002",
            tfrecord([example(image=b"?", label=[1])]),
            "is damaged",
        ),
        ("toy-train.tfrecord-00001-of-00002", None, "is damaged: .*toy-train.tfrecord-00001"),
        ("features.json", b"{", "is no prepared folder, or damaged"),
        (
            "features.json",
            b'{"pythonClassName": "antigravity.X"}',
            "antigravity.X, which is no class of TensorFlow",
        ),
    ],
)
def test_damage_has_one_name_and_no_foreign_module_is_imported(
    tmp_path, library, file, content, message
):
    folder = prepare(tmp_path / "toy/1.0.0", {"train": marked([0, 1])[1]})
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content)
    with pytest.raises(DatasetUnavailable, match=message):
        load("tfds:toy", path=tmp_path, root=tmp_path)


@pytest.mark.thorough
def test_the_search_order_of_a_published_dataset(tmp_path, library, folders, monkeypatch, caplog):
    images, train = marked([7, 0, 9, 4], (28, 28, 1))
    folder = prepare(
        folders / "mnist/3.0.1",
        {"train": train, "test": train[:2]},
        {"image": image(28, 28, 1), "label": label(10)},
        10,
    )
    for source in ("auto", "tfds"):
        data = load("mnist", tmp_path, source, False)
        np.testing.assert_array_equal(data.train.x, images)
        assert (data.name, data.mean, data.class_names[9]) == ("mnist", (0.1307,), "9")
        assert data.extra["terms"] == archive("mnist").terms
    assert (
        "mnist is read from" in caplog.text
        and "has 4 + 2 examples; the published set has 60000" in caplog.text
    )
    with pytest.raises(DatasetUnavailable) as caught:
        load("mnist", tmp_path, "original", download=False)
    assert str(folders) not in str(caught.value)
    (folder / "mnist-train.tfrecord-00000-of-00002").unlink()  # passed over and named
    with pytest.raises(DatasetUnavailable, match=f"looked .*{folders}/mnist"):
        load("mnist", tmp_path, download=False)
    assert "mnist/3.0.1 is damaged" in caplog.text
    raw = tmp_path / "mnist" / "raw"
    raw.mkdir(parents=True)
    write_mnist(raw)
    monkeypatch.setattr(
        "fedjax_ssl.data.reading.archives._verified", lambda _, path: Verified(path, None, "")
    )  # small files
    assert len(load("mnist", tmp_path, download=False).train) == 20  # the original comes first,
    for file in raw.iterdir():
        file.unlink()
    # and what was made of it before that
    assert len(load("mnist", tmp_path, download=False).train) == 20


@pytest.mark.thorough
def test_published_datasets_in_the_form_of_the_other_catalogue(tmp_path, library, folders):
    images, train = marked([1, 26], (28, 28, 1))
    prepare(
        folders / "emnist/letters/3.1.0",
        {"train": train},
        {"image": image(28, 28, 1), "label": label(37)},
        37,
    )
    data = load("emnist", tmp_path, "tfds", kind="letters")
    assert (data.train.y.tolist(), data.class_names[25]) == ([0, 25], "z")
    np.testing.assert_array_equal(data.train.x, images.transpose(0, 2, 1, 3))
    prepare(
        folders / "emnist/byclass/3.1.0",
        {"train": train},
        {"image": image(28, 28, 1), "label": label(62)},
        62,
    )
    with pytest.raises(ValueError, match="name one: tfds:emnist/byclass, tfds:emnist/letters"):
        load("tfds:emnist", root=tmp_path)
    splits = {
        split: marked(some)[1]
        for split, some in (("train", [9, 0]), ("unlabelled", [-1, -1]), ("test", [2, 3]))
    }
    prepare(folders / "stl10/1.0.0", splits, labels=10)
    assert load("stl10", tmp_path, "tfds").train.y.tolist() == [9, 0, -1, -1]
    assert load("stl10", tmp_path, "tfds", unlabelled=False).train.y.tolist() == [9, 0]
    train = marked([99, 0], coarse_label=[13])[1]
    features = {"image": image(8, 9, 3), "label": label(100), "coarse_label": label(20)}
    folder = prepare(folders / "cifar100/3.0.2", {"train": train}, features, 100)
    (folder / "coarse_label.labels.txt").write_text("\n".join(map(str, range(20))))
    data = load("cifar100", tmp_path, "tfds", download=False)
    assert (data.train.y.tolist(), data.train.coarse.tolist()) == ([99, 0], [13, 13])
    assert (data.coarse_names[13], data.correspondence.shape) == (
        "non-insect_invertebrates",
        (20, 100),
    )
    prepare(folders / "cifar10/1.0.0", {"train": marked([3, 11])[1]}, labels=12)
    with pytest.raises(
        DatasetUnavailable, match=r"cifar10: tfds:cifar10 is not what .*labels out of range"
    ):
        load("cifar10", tmp_path, "tfds")
