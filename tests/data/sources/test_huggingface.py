"""Folders that `save_to_disk` of Hugging Face's datasets wrote."""

import importlib

import numpy as np
import pytest
from PIL import Image

from fedjax_ssl.data import BadData, DatasetUnavailable, load, source_of

RNG = np.random.default_rng(0)
ROW = 3
COLUMN = 5


@pytest.fixture(scope="module")
def hf():
    library = pytest.importorskip("datasets")
    library.disable_progress_bars()
    return library


def split(labels, who=None):
    """Images whose marked pixel is 7 * label, and a split with them."""
    library = pytest.importorskip("datasets")
    arrays = RNG.integers(0, 256, (len(labels), 8, 9, 3), np.uint8)
    arrays[:, ROW, COLUMN, 1] = np.maximum(7 * np.array(labels), 0)
    features = {"image": library.Image(), "label": library.ClassLabel(names=["a", "b", "c"])}
    columns = {"image": [Image.fromarray(one) for one in arrays], "label": labels}
    columns["who"] = who or [f"w{label}" for label in labels]
    features["who"] = library.Value("string")
    return arrays, library.Dataset.from_dict(columns, features=library.Features(features))


def save_images(folder, labels, who=None):
    arrays, part = split(labels, who)
    part.save_to_disk(str(folder))
    return arrays


def save_splits(hf, folder, **labels):
    found = {name: split(some) for name, some in labels.items()}
    whole = hf.DatasetDict({name: part for name, (_, part) in found.items()})
    whole.save_to_disk(str(folder), num_shards=dict.fromkeys(labels, 2))
    return {name: arrays for name, (arrays, _) in found.items()}


def read(path, **options):
    return load("huggingface", root=path.parent / "root", path=path, **options)


def test_the_library_is_named_where_it_is_missing(tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(name)

    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "state.json").write_text("{}")
    monkeypatch.setattr(importlib, "import_module", missing)
    assert source_of(tmp_path / "toy") == "huggingface"
    with pytest.raises(DatasetUnavailable, match=r"pip install 'fedjax_ssl\[huggingface\]'"):
        read(tmp_path / "toy")
    with pytest.raises(
        DatasetUnavailable, match=r"no folder that save_to_disk wrote.*load_dataset"
    ):
        load("huggingface", path=tmp_path)
    with pytest.raises(DatasetUnavailable, match="not there"):
        load("huggingface", path=tmp_path / "none")


@pytest.mark.thorough
def test_images_of_several_splits_and_files_are_read_once(tmp_path, hf, monkeypatch):
    arrays = save_splits(hf, tmp_path / "toy", train=[0, 1, 2, 1], test=[2, 0], rest=[1, 1])
    first = read(tmp_path / "toy", client_key="who")
    monkeypatch.setattr(hf, "load_from_disk", None)
    for data in (first, read(tmp_path / "toy", client_key="who")):
        np.testing.assert_array_equal(data.train.x, arrays["train"])
        np.testing.assert_array_equal(data.test.x, arrays["test"])
        np.testing.assert_array_equal(data.train.x[:, ROW, COLUMN, 1], 7 * data.train.y)
        assert data.class_names == ("a", "b", "c") and data.client_names == ("w0", "w1", "w2")
        assert (data.train.client.tolist(), data.test.client.tolist()) == ([0, 1, 2, 1], [2, 0])


@pytest.mark.thorough
def test_other_splits_and_examples_without_a_label(tmp_path, hf):
    arrays = save_splits(hf, tmp_path / "toy", train=[0, 1], validation=[2, 0], rest=[1, -1])
    data = read(tmp_path / "toy", test_split="validation", unlabelled_split="rest", size=4)
    assert (data.train.y.tolist(), data.test.y.tolist(), data.input_shape) == (
        [0, 1, -1, -1],
        [2, 0],
        (4, 4, 3),
    )
    whole = read(tmp_path / "toy", train_split="rest")
    assert (whole.train.y.tolist(), whole.test) == ([1, -1], None)
    np.testing.assert_array_equal(whole.train.x, arrays["rest"])


@pytest.mark.thorough
def test_numbers_and_labels_as_text(tmp_path, hf):
    values = RNG.random((4, 6), np.float32)
    hf.Dataset.from_dict({"v": values.tolist(), "label": ["u", None, "v", "u"]}).save_to_disk(
        str(tmp_path / "vectors")
    )
    data = read(tmp_path / "vectors")
    np.testing.assert_array_equal(data.train.x, values)
    assert (data.train.y.tolist(), data.class_names, data.input_max) == (
        [0, -1, 1, 0],
        ("u", "v"),
        1.0,
    )
    pixels = RNG.integers(0, 256, (4, 5, 3), np.uint8)
    features = hf.Features({"x": hf.Array2D((5, 3), "uint8"), "digit": hf.Value("int64")})
    part = hf.Dataset.from_dict({"x": pixels.tolist(), "digit": [1, 3, 3, 1]}, features=features)
    part.save_to_disk(str(tmp_path / "arrays"))
    data = read(tmp_path / "arrays", label_key="digit")
    np.testing.assert_array_equal(data.train.x, pixels[..., None])
    assert (data.train.x.dtype, data.class_names, data.train.y.tolist()) == (
        np.uint8,
        ("1", "3"),
        [0, 1, 1, 0],
    )


@pytest.mark.thorough
def test_large_numbers_beside_a_gap_stay_exact_and_minus_one_is_said(tmp_path, hf):
    columns = {"v": [[1.0]] * 4, "label": [0, 1, -1, 1], "who": [2**60, 2**60 + 1, 2**60, 2**60]}
    features = hf.Features(
        {
            "v": hf.List(hf.Value("float32")),
            "label": hf.ClassLabel(names=["a", "b"]),
            "who": hf.Value("int64"),
        }
    )
    hf.Dataset.from_dict(columns, features=features).save_to_disk(str(tmp_path / "toy"))
    data = read(tmp_path / "toy", client_key="who")
    assert data.client_names == (str(2**60), str(2**60 + 1))
    assert "1 label is -1, taken as no label" in data.extra["notes"]
    gap = {**columns, "who": [*columns["who"][:3], None]}
    hf.Dataset.from_dict(gap, features=features).save_to_disk(str(tmp_path / "gap"))
    with pytest.raises(BadData, match="1 example has no client"):
        read(tmp_path / "gap", client_key="who")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_split": "tain"}, "no split 'tain'. Did you mean 'train'.* Splits: train, test"),
        ({"test_split": "train"}, "train, train are two of one split"),
        (
            {"input_key": "imag"},
            "no column 'imag'. Did you mean 'image'.* Columns: image, label, who",
        ),
        (
            {"input_key": "who"},
            "column 'who' holds .*string.*; inputs are images or lists of numbers",
        ),
        (
            {"label_key": "image"},
            "column 'image' holds Image.*; labels and clients are text or numbers",
        ),
    ],
)
def test_options_that_do_not_fit(tmp_path, hf, options, message):
    save_splits(hf, tmp_path / "toy", train=[0, 1], test=[2, 0])
    with pytest.raises(BadData, match=message):
        read(tmp_path / "toy", **options)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [[1.0], [2.0]], "b": [[1.0], [2.0]], "label": [0, 1]}, "2 columns could be the in"),
        ({"a": [[1.0], [2.0]]}, "no columns could be the label; name one with data.label_key"),
        (
            {"a": [[1.0], [2.0, 3.0]], "label": [0, 1]},
            "holds text, gaps, or lists of several shapes",
        ),
        ({"a": [[1.0], [None]], "label": [0, 1]}, "NaN or infinite"),
    ],
)
def test_content_that_does_not_fit(tmp_path, hf, columns, message):
    hf.Dataset.from_dict(columns).save_to_disk(str(tmp_path / "toy"))
    with pytest.raises(BadData, match=message):
        read(tmp_path / "toy")


@pytest.mark.thorough
@pytest.mark.parametrize("file", ["state.json", "dataset_info.json", "data-00000-of-00001.arrow"])
def test_damage_has_one_name(tmp_path, hf, file):
    save_images(tmp_path / "toy", [0, 1])
    (tmp_path / "toy" / file).write_text("{")
    with pytest.raises(BadData, match=r"toy: is damaged: .*; save the dataset again"):
        read(tmp_path / "toy")
