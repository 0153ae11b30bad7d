"""`tfds:NAME` and `hf:NAME`: any dataset of TensorFlow Datasets or of Hugging Face's `datasets`,
read by these libraries.
"""

import contextlib
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from fedjax_ssl.data.dataset import Dataset
from fedjax_ssl.data.reading.cache import data_root, fingerprint, kept
from fedjax_ssl.data.reading.columns import read_columns
from fedjax_ssl.data.reading.own import BadData, DatasetUnavailable, Findings, Place
from fedjax_ssl.data.reading.pictures import ImageReading, Side, shown
from fedjax_ssl.data.reading.register import dataset as register
from fedjax_ssl.errors import counted, did_you_mean, how_to_install

TERMS = "of the dataset; its page at the library has them"
GREY = ("1", "L", "LA", "I;16")  # modes of images


@dataclass(frozen=True)
class Choice:
    """Splits and columns that are read.

    Attributes:
        train_split: the split that is trained on.
        test_split: the split that is tested on; by default "test", if there is one.
        input_key: the column that is the input.
        label_key: the column that is the class.
        client_key: a column that says whose example it is.
        size: side of square images, which are cropped in the middle and resized; needed where they
            differ.
    """

    train_split: str = "train"
    test_split: str | None = None
    input_key: str = "image"
    label_key: str = "label"
    client_key: str | None = None
    size: Side = None


class _Opened(NamedTuple):
    """A dataset, opened by its library."""

    splits: Mapping[str, Iterable[Mapping[str, Any]]]  # rows, as values by column
    columns: Sequence[str]
    class_names: Mapping[str, Sequence[str]]  # class names by column, for columns that have them
    content: object  # fits into JSON, and differs where rows may differ


@register(
    "tfds",
    "tfds:NAME or tfds:NAME/CONFIG, any dataset of TensorFlow Datasets, by that library",
    terms=TERMS,
    kind="library",
)
def load_tfds(
    dataset: str,
    *,
    root: Place = None,
    path: Place = None,
    download: bool = True,
    choice: Choice,
) -> Dataset:
    """Read a dataset of TensorFlow Datasets, which is prepared first if necessary.

    Args:
        dataset: NAME, NAME/CONFIG or NAME/CONFIG:VERSION.
        root: folder of all datasets, which keeps the arrays; default $FEDJAX_SSL_DATA or
            ~/.cache/fedjax_ssl.
        path: the folder of prepared datasets; by default the library's.
        download: whether it may be downloaded and prepared.
        choice: splits and columns.

    Returns:
        The dataset, in the library's order.

    Raises:
        DatasetUnavailable: the library is not installed, or cannot give the dataset.
        BadData: a column or split that it does not have, or inputs that do not fit.
    """
    name = f"tfds:{dataset}"
    library = _library(name, "tensorflow_datasets", "tfds")
    with _named(name):
        builder = library.builder(dataset, data_dir=path and str(Path(path).expanduser()))
        if download:
            builder.download_and_prepare(file_format="array_record")
        info = builder.info
        features = dict(info.features.items())
        labels = {
            key: one.names
            for key, one in features.items()
            if isinstance(one, library.features.ClassLabel)
        }
        opened = _Opened(
            splits=builder.as_data_source(),
            columns=list(features),
            class_names=labels,
            content=[
                info.full_name,
                str(builder.data_path),
                {split: one.num_examples for split, one in info.splits.items()},
            ],
        )
    return _kept(name, opened, choice, data_root(root) / "tfds")


@register(
    "hf",
    "hf:NAME, any dataset of Hugging Face, or hf:FOLDER that save_to_disk wrote, by that library",
    terms=TERMS,
    kind="library",
)
def load_hf(
    dataset: str,
    *,
    root: Place = None,
    download: bool = True,
    subset: str | None = None,
    choice: Choice,
) -> Dataset:
    """Read a dataset of Hugging Face with the library `datasets`.

    Args:
        dataset: its name on the hub ("ylecun/mnist"), or a folder written by `save_to_disk`.
        root: folder of all datasets, which keeps the arrays; default $FEDJAX_SSL_DATA or
            ~/.cache/fedjax_ssl.
        download: whether the hub may be used.
        subset: its configuration on the hub, if it has several.
        choice: splits and columns; a folder of one split is the training split.

    Returns:
        The dataset, in the library's order.

    Raises:
        DatasetUnavailable: the library is not installed, or cannot give the dataset.
        BadData: a column or split that it does not have, or inputs that do not fit.
    """
    name = f"hf:{dataset}"
    library = _library(name, "datasets", "huggingface")
    folder = Path(dataset).expanduser()
    if not download and not folder.is_dir():
        raise DatasetUnavailable(
            f"{name}: {folder} is no folder, and data.download=False forbids to ask the hub; "
            "name a folder that save_to_disk wrote"
        )
    with _named(name):
        found = (
            library.load_from_disk(str(folder))
            if folder.is_dir()
            else library.load_dataset(dataset, subset)
        )
        splits = found if isinstance(found, dict) else {choice.train_split: found}
        features = next(iter(splits.values())).features
        labels = {
            key: one.names for key, one in features.items() if type(one).__name__ == "ClassLabel"
        }
        opened = _Opened(
            splits=splits,
            columns=list(features),
            class_names=labels,
            content={split: rows._fingerprint for split, rows in splits.items()},
        )
    return _kept(name, opened, choice, data_root(root) / "hf")


def _library(name: str, module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DatasetUnavailable(f"{name} needs: {how_to_install(extra)}") from error


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Turn any error of a library into one that names the dataset."""
    try:
        yield
    except BadData:
        raise
    except Exception as error:
        words = " ".join(str(error).split())[:300]
        raise DatasetUnavailable(
            f"{name}: its library says: {type(error).__name__}: {words}"
        ) from error


def _kept(name: str, opened: _Opened, choice: Choice, folder: Path) -> Dataset:
    """Read a dataset, or open the arrays kept for the same content and choice."""
    known = fingerprint([name, opened.content, vars(choice)])
    return kept(folder / known, lambda: _read(name, opened, choice))


def _read(name: str, opened: _Opened, choice: Choice) -> Dataset:
    import pandas

    test = choice.test_split or ("test" if "test" in opened.splits else None)
    roles = {choice.train_split: "train"}
    if test is not None:
        roles[test] = "test"
    for split in roles:
        _check_there(name, "split", split, list(opened.splits))
    if test == choice.train_split:
        raise BadData(name, f"{test} is the training split and the test split; name another one")
    keys = {"input": choice.input_key, "label": choice.label_key}
    if choice.client_key is not None:
        keys["client"] = choice.client_key
    for role, key in keys.items():
        _check_there(name, "column", key, opened.columns, f", which data.{role}_key names")
    inputs = []
    texts = []
    places = []
    with _named(name):
        for split, role in roles.items():
            for number, row in enumerate(opened.splits[split]):
                inputs.append(_array(name, row[keys["input"]], choice.size))
                cells = {
                    column: _text(name, row[key], opened.class_names.get(key))
                    for column, key in keys.items()
                    if column != "input"
                }
                texts.append({"split": role, **cells})
                places.append(f"{split}, row {number}")
    x, is_image = _stacked(name, inputs)
    findings = Findings()
    classes = opened.class_names.get(keys["label"])
    table = pandas.DataFrame(texts, index=places, dtype=object)
    columns = read_columns(table, classes, findings, ())
    findings.stop(name)
    lost = int((columns.y < 0).sum())
    notes = [f"{counted(lost, 'example has', 'examples have')} no label"] if lost else []
    reading = ImageReading(*x.shape[1:]) if is_image else None
    return columns.dataset(name, name, x, None, notes, reading, terms=TERMS)


def _check_there(name: str, kind: str, given: str, there: Sequence[str], named: str = "") -> None:
    if given not in there:
        raise BadData(
            name,
            f"there is no {kind} {given!r}{named}.{did_you_mean(given, there)} There are: "
            f"{', '.join(there)}",
        )


def _array(name: str, value: Any, size: int | None) -> np.ndarray:
    """Return an image as uint8 [H, W, C], and anything else as float32."""
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 3:
        value = Image.fromarray(value[..., 0] if value.shape[2] == 1 else value)
    if not isinstance(value, Image.Image):
        try:
            return np.asarray(value, np.float32)
        except (TypeError, ValueError) as error:
            raise BadData(
                name, f"an input is {str(value)[:40]!r}; inputs are images or numbers"
            ) from error
    width, height = (size, size) if size else value.size
    return shown(value, (height, width, 1 if value.mode in GREY else 3))


def _stacked(name: str, values: list[np.ndarray]) -> tuple[np.ndarray, bool]:
    """Stack inputs, and return whether they are images; grey images among colour ones become
    colour.
    """
    is_image = values[0].dtype == np.uint8
    if is_image and len({one.shape[2] for one in values}) > 1:
        values = [np.broadcast_to(one, (*one.shape[:2], 3)) for one in values]
    shapes = list(dict.fromkeys(one.shape for one in values))
    if len(shapes) > 1:
        how = "; give data.size" if is_image else ""
        raise BadData(name, f"has inputs of several shapes, {shapes[0]} and {shapes[1]}{how}")
    return np.stack(values), is_image


def _text(name: str, value: Any, names: Sequence[str] | None) -> str:
    """Write a label or a client as text; "" for None and -1."""
    if isinstance(value, bytes):
        value = value.decode()
    if not isinstance(value, int | np.integer | str | None):
        raise BadData(
            name, f"{str(value)[:40]!r} is no label or client; they are text or whole numbers"
        )
    if value is None or value == -1:
        return ""
    return str(value) if names is None else names[int(value)]
