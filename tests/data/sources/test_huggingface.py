"""Folders as `save_to_disk` of Hugging Face's datasets writes them, written here with pyarrow alone."""

import importlib
import io
import json

import numpy as np
import pytest
from PIL import Image

from fedjax_ssl.data import BadData, DatasetUnavailable, check, load, source_of

pa = pytest.importorskip("pyarrow")
RNG = np.random.default_rng(0)
ROW, COLUMN = 3, 5
IMAGE, TEXT = {"_type": "Image"}, {"dtype": "string", "_type": "Value"}
LABEL = {"names": ["a", "b", "c"], "_type": "ClassLabel"}
LIST = {"feature": {"dtype": "float32", "_type": "Value"}, "_type": "List"}
FEATURES = {"image": IMAGE, "label": LABEL, "who": TEXT}


def save(folder, columns, features, shards=1, **state):
    """One split."""
    folder.mkdir(parents=True)
    names = [f"data-{shard:05}-of-{shards:05}.arrow" for shard in range(shards)]
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    files = {"_data_files": [{"filename": name} for name in names]}
    (folder / "state.json").write_text(json.dumps(files | state))
    table = pa.table(columns)
    each = -(-len(table) // shards)
    for shard, name in enumerate(names):
        part = table.slice(shard * each, each)
        with pa.ipc.new_stream(str(folder / name), table.schema) as writer:
            writer.write_table(part)
    return folder


def images(labels):
    found = RNG.integers(0, 256, (len(labels), 8, 9, 3), np.uint8)
    found[:, ROW, COLUMN, 1] = 7 * np.array(labels)
    return found


def encoded(arrays):
    files = [io.BytesIO() for _ in arrays]
    for array, file in zip(arrays, files, strict=True):
        Image.fromarray(array).save(file, "PNG")
    return [{"bytes": file.getvalue(), "path": None} for file in files]


def save_images(folder, labels, who=None, shards=1):
    arrays = images(labels)
    columns = {"image": encoded(arrays), "label": labels, "who": who or [f"w{label}" for label in labels]}
    save(folder, columns, FEATURES, shards)
    return arrays


def save_splits(folder, **labels):
    arrays = {split: save_images(folder / split, some, shards=2) for split, some in labels.items()}
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(labels)}))
    return arrays


def read(path, **options):
    return load("huggingface", root=path.parent / "root", path=path, **options)


def test_images_of_several_splits_and_files(tmp_path, monkeypatch):
    arrays = save_splits(tmp_path / "toy", train=[0, 1, 2, 1], test=[2, 0], rest=[1, 1])
    first = read(tmp_path / "toy", client_key="who")
    monkeypatch.setattr("fedjax_ssl.data.sources.saved_datasets._part", None)
    for data in (first, read(tmp_path / "toy", client_key="who")):
        np.testing.assert_array_equal(data.train.x, arrays["train"])
        np.testing.assert_array_equal(data.test.x, arrays["test"])
        np.testing.assert_array_equal(data.train.x[:, ROW, COLUMN, 1], 7 * data.train.y)
        assert data.class_names == ("a", "b", "c") and data.client_names == ("w0", "w1", "w2")
        assert (data.train.client.tolist(), data.test.client.tolist()) == ([0, 1, 2, 1], [2, 0])


def test_other_splits_and_examples_without_a_label(tmp_path):
    arrays = save_splits(tmp_path / "toy", train=[0, 1], validation=[2, 0], rest=[1, -1])
    data = read(tmp_path / "toy", test_split="validation", unlabelled_split="rest", size=4)
    assert (data.train.y.tolist(), data.test.y.tolist(), data.input_shape) == ([0, 1, -1, -1], [2, 0], (4, 4, 3))
    whole = read(tmp_path / "toy", train_split="rest")
    assert (whole.train.y.tolist(), whole.test) == ([1, -1], None)
    np.testing.assert_array_equal(whole.train.x, arrays["rest"])


def test_numbers_and_labels_as_text(tmp_path):
    values = RNG.random((4, 6), np.float32)
    columns = {"v": pa.array(list(values), pa.list_(pa.float32())), "label": ["u", None, "v", "u"]}
    save(tmp_path / "vectors", columns, {"v": LIST, "label": TEXT})
    data = read(tmp_path / "vectors")
    np.testing.assert_array_equal(data.train.x, values)
    assert (data.train.y.tolist(), data.class_names, data.input_max) == ([0, -1, 1, 0], ("u", "v"), 1.0)
    pixels = RNG.integers(0, 256, (4, 5, 3), np.uint8)
    pixels[:, 2, 1] = 7 * np.array([1, 3, 3, 1])
    nested = pa.array(pixels.tolist(), pa.list_(pa.list_(pa.uint8())))
    features = {"x": {"shape": [5, 3], "dtype": "uint8", "_type": "Array2D"}, "digit": {"_type": "Value"}}
    save(tmp_path / "arrays", {"x": nested, "digit": [1, 3, 3, 1]}, features)
    data = read(tmp_path / "arrays", label_key="digit")
    np.testing.assert_array_equal(data.train.x, pixels[..., None])
    assert (data.train.x.dtype, data.class_names, data.train.y.tolist()) == (np.uint8, ("1", "3"), [0, 1, 1, 0])


def test_images_that_cannot_be_read_are_counted(tmp_path):
    columns = {"image": [*encoded(images([0, 1])), {"bytes": b"no image", "path": None}], "label": [0, 1, 2]}
    data = read(save(tmp_path / "toy", columns, {"image": IMAGE, "label": LABEL}))
    assert data.train.y.tolist() == [0, 1]
    assert data.extra["notes"] == [
        "1 of 3 images cannot be used: 1 no image, whatever its name says, first train, row 2"
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_split": "tain"}, "no split 'tain'. Did you mean 'train'.* Splits: train, test"),
        ({"test_split": "train"}, "train, train are two of one split"),
        ({"input_key": "imag"}, "no column 'imag'. Did you mean 'image'.* Columns: image, label, who"),
        ({"input_key": "who"}, "column 'who' holds string; inputs are images or lists of numbers"),
        ({"label_key": "image"}, "column 'image' holds struct.*; labels and clients are text or numbers"),
    ],
)
def test_options_that_do_not_fit(tmp_path, options, message):
    save_splits(tmp_path / "toy", train=[0, 1], test=[2])
    with pytest.raises(BadData, match=message):
        read(tmp_path / "toy", **options)


@pytest.mark.parametrize(
    ("columns", "features", "message"),
    [
        (
            {"a": [[1.0], [2.0]], "b": [[1.0], [2.0]], "label": [0, 1]},
            {"a": LIST, "b": LIST},
            "2 columns could be the in",
        ),
        ({"a": [[1.0], [2.0]]}, {"a": LIST}, "no columns could be the label; name one with data.label_key"),
        ({"a": [[1.0], [2.0, 3.0]], "label": [0, 1]}, {"a": LIST}, "holds lists of 1 to 2 values"),
        ({"a": [[1.0], [None]], "label": [0, 1]}, {"a": LIST}, "holds double, or gaps"),
        ({"a": [["x"], ["y"]], "label": [0, 1]}, {"a": LIST}, "holds string, or gaps"),
        ({"a": [[1.0], [float("nan")]], "label": [0, 1]}, {"a": LIST}, "NaN or infinite"),
        ({"a": [[1.0], [2.0]], "label": [0, 3]}, {"a": LIST, "label": LABEL}, "'label' is 3 in train, row 1; it has 3"),
        ({"a": [[1.0], [2.0]], "label": [0, 0]}, {"a": LIST}, "only one class"),
        ({"image": [{"bytes": None, "path": "x.png"}] * 2, "label": [0, 1]}, {"image": IMAGE}, "does not hold them"),
    ],
)
def test_content_that_does_not_fit(tmp_path, columns, features, message):
    features = {"label": {"_type": "Value"}} | features if "label" in columns else features
    with pytest.raises(BadData, match=message):
        read(save(tmp_path / "toy", columns, features))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("state.json", "{", "is missing or damaged"),
        ("state.json", "[]", "is not what save_to_disk writes"),
        ("state.json", '{"_data_files": [{"filename": "../other.arrow"}]}', "names no Arrow files of this folder"),
        ("state.json", '{"_data_files": [{"filename": "other.arrow"}]}', "other.arrow: is missing, cut short"),
        ("dataset_info.json", "{}", "describes no features"),
        ("data-00000-of-00001.arrow", "no Arrow", "is missing, cut short or no Arrow file"),
    ],
)
def test_damage(tmp_path, file, content, message):
    save_images(tmp_path / "toy", [0, 1])
    (tmp_path / "toy" / file).write_text(content)
    with pytest.raises(BadData, match=message):
        read(tmp_path / "toy")


def test_what_a_check_says(tmp_path, monkeypatch):
    save_images(tmp_path / "toy", [0, 1])
    assert source_of(tmp_path / "toy") == "huggingface"
    found = check(tmp_path / "toy", root=tmp_path / "root")
    assert found.source == "huggingface" and "class c: no labelled training example" in found.notes
    with pytest.raises(DatasetUnavailable, match=r"no folder that save_to_disk wrote.*load_dataset"):
        load("huggingface", path=tmp_path)
    with pytest.raises(DatasetUnavailable, match="not there"):
        load("huggingface", path=tmp_path / "none")
    with pytest.raises(BadData, match="it has one split and no 'rest'"):
        read(tmp_path / "toy", unlabelled_split="rest")
    real = importlib.import_module

    def missing(name):
        if name == "pyarrow":
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(BadData, match=r"pip install 'fedjax_ssl\[table\]'"):
        read(tmp_path / "toy", size=5)
