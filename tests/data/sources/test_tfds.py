"""Folders as TensorFlow Datasets prepares them, written here without it."""

import importlib.util
import io
import json
import types

import numpy as np
import pytest
from PIL import Image

from fedjax_ssl.data import DatasetUnavailable, load
from fedjax_ssl.data.sources import tfds
from fedjax_ssl.data.sources.formats import FormatError
from fedjax_ssl.data.sources.tfexample import parse_example, read_tfrecord

ROW, COLUMN = 3, 5
RNG = np.random.default_rng(0)


def varint(value):
    value, content = value & (1 << 64) - 1, b""
    while value > 0x7F:
        content, value = content + bytes([value & 0x7F | 0x80]), value >> 7
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
            inner = field(3, field(1, b"".join(numbers)) if packed else b"".join(b"\x08" + one for one in numbers))
        entries += field(1, field(1, key.encode()) + field(2, inner))
    return field(1, entries)


@pytest.mark.parametrize("packed", [True, False])
def test_an_example_in_both_spellings(packed):
    found = parse_example(example(packed, a=b"\x00bytes", b=np.float32([1.5, -2]), c=[-1, 0, 300, 2**40]))
    assert found["a"] == [b"\x00bytes"]
    np.testing.assert_array_equal(found["b"], np.float32([1.5, -2]))
    np.testing.assert_array_equal(found["c"], [-1, 0, 300, 2**40])


@pytest.mark.parametrize("broken", [b"\x0a\x50", b"\x0a\x02\x0a\x01", b"\x0f", b"\xff" * 12, b"\x0a\x02\x0a\x00"])
def test_bytes_that_are_no_example(broken):
    with pytest.raises(FormatError, match="is no Example"):
        parse_example(broken)


def png(image):
    file = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(file, "PNG")
    return file.getvalue()


def tfrecord(records):
    return b"".join(len(one).to_bytes(8, "little") + bytes(4) + one + bytes(4) for one in records)


IMAGE = {"image": {"shape": {"dimensions": ["8", "9", "3"]}, "dtype": "uint8"}, "pythonClassName": "x.Image"}
LABEL = {"classLabel": {"numClasses": "3"}, "pythonClassName": "x.ClassLabel"}
SUPERVISED = {"tuple": {"items": [{"featureKey": "image"}, {"featureKey": "label"}]}}


def prepare(folder, splits, features=None, labels=("a", "b", "c"), **info):
    """Writes a folder; `splits` maps names to lists of records."""
    folder.mkdir(parents=True)
    features = features or {"image": IMAGE, "label": LABEL}
    (folder / "features.json").write_text(json.dumps({"featuresDict": {"features": features}}))
    facts = {"splits": [{"name": name} for name in splits], "fileFormat": "tfrecord", "citation": "Somebody", **info}
    (folder / "dataset_info.json").write_text(json.dumps(facts))
    (folder / "label.labels.txt").write_text("\n".join(labels) + "\n")
    for name, records in splits.items():
        half = len(records) // 2
        for shard, part in enumerate((records[:half], records[half:])):
            (folder / f"toy-{name}.tfrecord-0000{shard}-of-00002").write_bytes(tfrecord(part))
    return folder


def marked(labels, **more):
    """Examples whose marked pixel is 7 * label."""
    images = RNG.integers(0, 256, (len(labels), 8, 9, 3), np.uint8)
    images[:, ROW, COLUMN, 1] = 7 * np.array(labels)
    return images, [example(image=png(x), label=[y], **more) for x, y in zip(images, labels, strict=True)]


def test_a_prepared_folder_is_read_and_kept(tmp_path, monkeypatch):
    images, records = marked([0, 1, 2, 1])
    prepare(tmp_path / "toy/1.0.0", {"train": records[:1]})
    prepare(tmp_path / "toy/1.10.0", {"train": records, "test": records[:2]}, supervisedKeys=SUPERVISED)
    first = load("tfds:toy", path=tmp_path, root=tmp_path / "root", download=False)
    monkeypatch.setattr(tfds, "read_tfrecord", None)
    for data in (first, load("tfds", dataset="toy/1.10.0", path=tmp_path, root=tmp_path / "root")):
        np.testing.assert_array_equal(data.train.x, images)
        np.testing.assert_array_equal(data.train.x[:, ROW, COLUMN, 1], 7 * data.train.y)
        assert data.test.y.tolist() == [0, 1] and data.class_names == ("a", "b", "c")
        assert data.extra["terms"] == "Somebody"


def test_roles_of_features_and_splits_without_labels(tmp_path):
    features = {"image": IMAGE, "label": LABEL, "coarse": LABEL, "who": {"text": {}}}
    splits = {name: marked([0, 1], coarse=[1], who=name.encode())[1] for name in ("train", "unlabelled", "validation")}
    folder = prepare(tmp_path / "toy/1.0.0", splits, features)
    (folder / "coarse.labels.txt").write_text("x\ny\n")
    keys = {"label_key": "label", "coarse_key": "coarse", "client_key": "who"}
    more = {"unlabelled_split": "unlabelled", "test_split": "validation"}
    data = load("tfds:toy", path=tmp_path, root=tmp_path, **keys, **more)
    assert data.train.y.tolist() == [0, 1, -1, -1] and data.coarse_names == ("x", "y")
    assert data.client_names == ("train", "unlabelled", "validation")
    assert data.train.client.tolist() == [0, 0, 1, 1] and data.test.client.tolist() == [2, 2]
    for options, message in (
        ({}, "has 2 features that could be the label; name one with data.label_key"),
        ({**keys, "client_key": "wo"}, "no feature 'wo'. Did you mean 'who'"),
        ({**keys, "test_split": "tain"}, "no split 'tain'. Did you mean 'train'"),
        ({**keys, "test_split": "train"}, "two of the training, unlabelled and test examples are of one split"),
        ({**keys, "unlabelled_split": "train"}, "give each a split of its own"),
    ):
        with pytest.raises(ValueError, match=message):
            load("tfds:toy", path=tmp_path, root=tmp_path, **options)


def test_numbers_and_images_of_several_sizes(tmp_path):
    numbers = {"input": {"tensor": {"shape": {"dimensions": ["2", "3"]}, "dtype": "float32"}}, "label": LABEL}
    values = RNG.random((4, 6), np.float32)
    records = [example(input=row, label=[i % 3]) for i, row in enumerate(values)]
    prepare(tmp_path / "flat/1.0.0", {"train": records}, numbers)
    data = load("tfds:flat", path=tmp_path, root=tmp_path, input_key="input")
    np.testing.assert_array_equal(data.train.x, values.reshape(4, 2, 3))
    mixed = [example(image=png(np.zeros(shape, np.uint8)), label=[i]) for i, shape in enumerate([(8, 9, 1), (5, 5, 1)])]
    prepare(tmp_path / "mixed/1.0.0", {"train": mixed})
    with pytest.raises(ValueError, match=r"several shapes, .8, 9, 1. and .5, 5, 1.; give data.size"):
        load("tfds:mixed", path=tmp_path, root=tmp_path)
    assert load("tfds:mixed", path=tmp_path, root=tmp_path, size=4).input_shape == (4, 4, 1)


def test_emnist_is_turned_upright_and_its_configurations_have_names(tmp_path):
    images, records = marked([0, 1])
    prepare(tmp_path / "emnist/byclass/3.1.0", {"train": records})
    data = load("tfds:emnist", path=tmp_path, root=tmp_path)
    np.testing.assert_array_equal(data.train.x, images.transpose(0, 2, 1, 3))
    prepare(tmp_path / "emnist/letters/3.1.0", {"train": records})
    with pytest.raises(ValueError, match="name one: tfds:emnist/byclass, tfds:emnist/letters"):
        load("tfds:emnist", path=tmp_path, root=tmp_path)


def test_array_record_needs_its_library_alone(tmp_path):
    module = pytest.importorskip("array_record.python.array_record_module")
    images, records = marked([0, 1, 2])
    folder = prepare(tmp_path / "toy/1.0.0", {"train": []}, fileFormat="array_record")
    writer = module.ArrayRecordWriter(str(folder / "toy-train.array_record-00000-of-00001"), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    data = load("tfds:toy", path=tmp_path, root=tmp_path)
    np.testing.assert_array_equal(data.train.x, images)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("toy-train.tfrecord-00001-of-00002", b"12345", "is no TFRecord file, or cut short"),
        ("toy-train.tfrecord-00001-of-00002", (9).to_bytes(8, "little") + bytes(9), "cut short: its last record"),
        ("toy-train.tfrecord-00001-of-00002", tfrecord([b"\x0f"]), "is no Example"),
        ("toy-train.tfrecord-00001-of-00002", tfrecord([example(label=[1])]), "has no 'image'"),
        ("toy-train.tfrecord-00001-of-00002", tfrecord([example(image=b"?", label=[1])]), "an image is damaged"),
        ("features.json", b"{", "is no prepared folder, or damaged"),
    ],
)
def test_damage_has_one_name(tmp_path, file, content, message):
    folder = prepare(tmp_path / "toy/1.0.0", {"train": marked([0, 1])[1]})
    (folder / file).write_bytes(content)
    with pytest.raises(DatasetUnavailable, match=message):
        load("tfds:toy", path=tmp_path, root=tmp_path)


def test_a_file_that_is_gone_is_missed(tmp_path):
    folder = prepare(tmp_path / "toy/1.0.0", {"train": marked([0, 1])[1]})
    (folder / "toy-train.tfrecord-00000-of-00002").unlink()
    with pytest.raises(DatasetUnavailable, match="split 'train' has 1 of its 2 files"):
        load("tfds:toy", path=tmp_path, root=tmp_path)


def test_what_is_not_prepared_says_how(tmp_path, monkeypatch):
    with pytest.raises(DatasetUnavailable, match="tfds build toy") as caught:
        load("tfds:toy", path=tmp_path, root=tmp_path, download=False)
    assert "tried" not in str(caught.value)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DatasetUnavailable, match="preparing it needs tensorflow, tensorflow_datasets, importlib_res"):
        load("tfds:toy", path=tmp_path, root=tmp_path)


def test_preparing_asks_the_hosts_first_and_ends_in_one_error(tmp_path, monkeypatch):
    asked = []

    class Builder:
        url_infos = {"http://127.0.0.1:1/x": None}  # noqa: RUF012

        def download_and_prepare(self, file_format):
            asked.append(file_format)
            if not self.url_infos:
                raise KeyError("checksum")

    library = types.SimpleNamespace(builder=lambda name, data_dir: Builder())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(importlib, "import_module", lambda name: library)
    with pytest.raises(DatasetUnavailable, match=r"127.0.0.1: Connection refused"):
        load("tfds:toy", path=tmp_path, root=tmp_path)
    assert asked == []
    Builder.url_infos = {}
    with pytest.raises(DatasetUnavailable, match="TensorFlow Datasets: KeyError: 'checksum'"):
        load("tfds:toy", path=tmp_path, root=tmp_path)
    assert asked == ["array_record"]


def test_a_file_of_records_is_read_in_order(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(tfrecord([b"a", b"", b"ccc"]))
    assert list(read_tfrecord(path)) == [b"a", b"", b"ccc"]


def test_a_split_whose_name_ends_alike_is_another_one(tmp_path):
    images, records = marked([0, 1, 2, 1])
    prepare(tmp_path / "toy/1.0.0", {"extra-train": records[:2], "train": records[2:]})
    data = load("tfds:toy", path=tmp_path, root=tmp_path)
    np.testing.assert_array_equal(data.train.x, images[2:])
    more = load("tfds:toy", path=tmp_path, root=tmp_path, train_split="extra-train")
    np.testing.assert_array_equal(more.train.x, images[:2])


def test_what_stands_before_the_kind_of_a_feature_is_no_kind(tmp_path):
    features = {"image": {"description": "ä", **IMAGE}, "label": {"optional": True, **LABEL}}
    images, records = marked([0, 1])
    folder = prepare(tmp_path / "toy/1.0.0", {"train": records}, features)
    text = json.dumps({"featuresDict": {"features": features}}, ensure_ascii=False)
    (folder / "features.json").write_text(text, encoding="utf-8")
    np.testing.assert_array_equal(load("tfds:toy", path=tmp_path, root=tmp_path).train.x, images)
