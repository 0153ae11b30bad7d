"""`tfds:NAME` and `hf:NAME`: the libraries' rows become a dataset; small stand-ins of the libraries,
and the libraries themselves.
"""

import importlib
import io
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from fedjax_ssl.data import BadData, DatasetUnavailable, load

RNG = np.random.default_rng(0)
ROW = 3
COLUMN = 5


def images(labels, shape=(8, 9, 3)):
    """Images whose marked pixel is 7 * label."""
    found = RNG.integers(0, 256, (len(labels), *shape), np.uint8)
    found[:, ROW, COLUMN, -1] = np.maximum(7 * np.array(labels), 0)
    return found


class Rows(list):
    """Rows of one split, as `datasets` has them."""

    def __init__(self, rows, **features):
        super().__init__(rows)
        self.features = features
        self._fingerprint = str(rows)


def kind(name, names=None):
    return type(name, (), {"names": names})()


@pytest.fixture
def hf(monkeypatch):
    """A library whose `load_dataset` gives what a test puts there."""
    library = SimpleNamespace(here={}, asked=[])

    def load_dataset(name, subset):
        library.asked.append((name, subset))
        return library.here[name]

    library.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", library)
    return library


def split(labels, who=("a",), mode="RGB"):
    arrays = images(labels)
    rows = [
        {"image": Image.fromarray(one).convert(mode), "label": label, "who": who[i % len(who)]}
        for i, (one, label) in enumerate(zip(arrays, labels, strict=True))
    ]
    names = kind("ClassLabel", ["x", "y", "z"])
    return arrays, Rows(rows, image=kind("Image"), label=names, who=kind("Value"))


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    for name, extra in (("tfds:mnist", "tfds"), ("hf:mnist", "huggingface")):
        with pytest.raises(DatasetUnavailable, match=rf"pip install 'fedjax_ssl\[{extra}\]'"):
            load(name, root=tmp_path)
    with pytest.raises(ValueError, match="is written hf:NAME, such as hf:mnist"):
        load("hf", root=tmp_path)


def test_splits_labels_and_clients_are_read_once(tmp_path, hf, caplog):
    train, rows = split([0, 1, -1, 1], ("w1", "w0"))
    test, test_rows = split([2, 0], ("w2",))
    hf.here["me/toy"] = {"train": rows, "test": test_rows}
    options = {"client_key": "who", "subset": "small"}
    for _ in range(2):
        data = load("hf:me/toy", root=tmp_path, **options)
        np.testing.assert_array_equal(data.train.x, train)
        np.testing.assert_array_equal(data.test.x, test)
        assert data.train.y.tolist() == [0, 1, -1, 1] and data.test.y.tolist() == [2, 0]
        assert data.class_names == ("x", "y", "z") and data.client_names == ("w0", "w1", "w2")
        assert data.train.client.tolist() == [1, 0, 1, 0]
        assert data.test.client.tolist() == [2, 2]
        assert data.reading.height == 8
    assert hf.asked[0] == ("me/toy", "small") and isinstance(data.train.x.base, np.memmap)
    assert "hf:me/toy: 1 example has no label" in caplog.text


def test_images_of_two_sizes_or_modes(tmp_path, hf):
    _, colour = split([0, 1])
    _, rows = split([2], mode="L")
    hf.here["mixed"] = Rows([*colour, *rows], **colour.features)
    data = load("hf:mixed", root=tmp_path)
    assert (
        data.input_shape == (8, 9, 3) and (data.train.x[2, ..., 0] == data.train.x[2, ..., 1]).all()
    )
    hf.here["grey"] = rows
    assert load("hf:grey", root=tmp_path).input_shape == (8, 9, 1)
    larger = {**colour[0], "image": Image.fromarray(images([1], (7, 7, 3))[0])}
    hf.here["sizes"] = Rows([*colour, larger], **colour.features)
    with pytest.raises(BadData, match=r"\(8, 9, 3\) and \(7, 7, 3\); give data.size"):
        load("hf:sizes", root=tmp_path)
    assert load("hf:sizes", root=tmp_path, size=4).input_shape == (4, 4, 3)


def test_numbers_and_labels_as_text(tmp_path, hf):
    values = RNG.random((4, 6), np.float32)
    rows = [{"v": row.tolist(), "label": y} for row, y in zip(values, ["u", "v"] * 2, strict=True)]
    rows[1]["label"] = None
    hf.here["flat"] = Rows(rows, v=kind("List"), label=kind("Value"))
    data = load("hf:flat", root=tmp_path, input_key="v")
    np.testing.assert_array_equal(data.train.x, values)
    assert (data.train.y.tolist(), data.class_names, data.input_max) == (
        [0, -1, 0, 1],
        ("u", "v"),
        1.0,
    )
    assert data.test is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"train_split": "tain"},
            "no split 'tain'. Did you mean 'train'.* There are: train, test, rest",
        ),
        ({"test_split": "train"}, "train is the training split and the test split"),
        ({"input_key": "imag"}, "no column 'imag', .* Did you mean 'image'.* are: image, label"),
        ({"input_key": "who"}, "an input is 'a'; inputs are images or numbers"),
        ({"label_key": "image"}, "is no label or client; they are text or whole numbers"),
        ({"client_key": "who", "test_split": "rest"}, "1 example has no client .rest, row 1."),
    ],
)
def test_options_that_do_not_fit(tmp_path, hf, options, message):
    hf.here["toy"] = {"train": split([0, 1])[1], "test": split([2])[1]}
    hf.here["toy"]["rest"] = split([2, 1], ("b", None))[1]
    with pytest.raises(BadData, match=message):
        load("hf:toy", root=tmp_path, **options)


def test_columns_that_have_to_be_named(tmp_path, hf):
    hf.here["toy"] = Rows([{"a": [1.0]}], a=kind("List"))
    with pytest.raises(BadData, match=r"no column 'image', which data\.input_key names.*are: a"):
        load("hf:toy", root=tmp_path)
    with pytest.raises(BadData, match=r"no column 'label', which data\.label_key names"):
        load("hf:toy", root=tmp_path, input_key="a")
    with pytest.raises(DatasetUnavailable, match="forbids to ask the hub"):
        load("hf:toy", root=tmp_path, download=False)
    with pytest.raises(DatasetUnavailable, match="hf:none: its library says: KeyError: 'none'"):
        load("hf:none", root=tmp_path)


@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.thorough
def test_a_folder_that_save_to_disk_wrote(tmp_path):
    library = pytest.importorskip("datasets")
    library.disable_progress_bars()
    arrays, rows = split([0, 1, 2], ("a", "b"))
    features = {"image": library.Image(), "label": library.ClassLabel(names=["x", "y", "z"])}
    features["who"] = library.Value("string")
    columns = {key: [row[key] for row in rows] for key in features}
    part = library.Dataset.from_dict(columns, features=library.Features(features))
    library.DatasetDict({"train": part}).save_to_disk(str(tmp_path / "toy"))
    part.save_to_disk(str(tmp_path / "single"))
    for folder in ("toy", "single"):
        data = load(f"hf:{tmp_path / folder}", root=tmp_path / "root", client_key="who")
        np.testing.assert_array_equal(data.train.x, arrays)
        assert data.train.y.tolist() == [0, 1, 2] and data.client_names == ("a", "b")
    (tmp_path / "toy" / "train" / "state.json").write_text("{")
    with pytest.raises(DatasetUnavailable, match="its library says"):
        load(f"hf:{tmp_path / 'toy'}", root=tmp_path / "root")


def png(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    file.seek(0)
    return file


@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.thorough
def test_a_dataset_that_tfds_prepares(tmp_path):
    library = pytest.importorskip("tensorflow_datasets")
    parts = {"train": images([0, 1, 2, 1]), "test": images([2])}

    class Toy(library.core.GeneratorBasedBuilder):
        VERSION = library.core.Version("1.0.0")

        def _info(self):
            features = {
                "image": library.features.Image(shape=(8, 9, 3)),
                "label": library.features.ClassLabel(names=["x", "y", "z"]),
                "who": library.features.Text(),
            }
            features = library.features.FeaturesDict(features)
            pair = ("image", "label")
            return library.core.DatasetInfo(builder=self, features=features, supervised_keys=pair)

        def _split_generators(self, _):
            return {name: self._generate_examples(arrays) for name, arrays in parts.items()}

        def _generate_examples(self, arrays):
            for i, one in enumerate(arrays):
                label = int(one[ROW, COLUMN, 2]) // 7
                yield i, {"image": png(one), "label": label, "who": f"w{i % 2}"}

    Toy(data_dir=str(tmp_path)).download_and_prepare(file_format="array_record")
    for download in (True, False):
        where = {"path": tmp_path, "root": tmp_path / "root", "download": download}
        data = load("tfds:toy", **where, client_key="who")
        np.testing.assert_array_equal(data.train.x[:, ROW, COLUMN, 2], 7 * data.train.y)
        np.testing.assert_array_equal(data.test.x, parts["test"])
        assert sorted(data.train.y) == [0, 1, 1, 2] and data.client_names == ("w0", "w1")
    with pytest.raises(DatasetUnavailable, match="tfds:toyy: its library says"):
        load("tfds:toyy", **where)
