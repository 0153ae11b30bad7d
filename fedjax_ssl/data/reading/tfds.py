"""Datasets of TensorFlow Datasets, read by that library from folders that it has prepared.

A prepared folder is `<data_dir>/NAME[/CONFIG]/VERSION/` with examples in files of TFRecord or
array_record. Reading needs no TensorFlow; preparing does.
"""

import importlib
import importlib.util
import json
import os
import socket
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedjax_ssl.data.dataset import Dataset
from fedjax_ssl.data.reading.cache import facts_of, kept_for
from fedjax_ssl.data.reading.catalogues import Choice, choose_columns, choose_splits
from fedjax_ssl.data.reading.columns import Columns
from fedjax_ssl.data.reading.pictures import ImageReading, Side, shown
from fedjax_ssl.data.reading.problems import BadData, DatasetUnavailable, Place, not_here
from fedjax_ssl.errors import counted, how_to_install

FOLDER_VARIABLE = "TFDS_DATA_DIR"
NEEDED = ("tensorflow", "tensorflow_datasets", "importlib_resources")  # to prepare
LARGEST_RECORD = 1 << 30
TIMEOUT = 5.0  # seconds for a host to accept a connection
# Of these, TensorFlow Datasets stores the images with rows and columns exchanged.
TRANSPOSED = ("emnist",)


def load_tfds(
    dataset: str,
    *,
    root: Place = None,
    path: Place = None,
    download: bool = True,
    choice: Choice,
    size: Side = None,
) -> Dataset:
    """Read a prepared dataset of images or of numbers; it is prepared first where TensorFlow is
    installed.

    Args:
        dataset: NAME, NAME/CONFIG or NAME/CONFIG/VERSION; the newest version by default.
        root: folder of all datasets, which keeps the arrays; default $FEDJAX_SSL_DATA or
            ~/.cache/fedjax_ssl.
        path: the folder of prepared datasets; default $TFDS_DATA_DIR or ~/tensorflow_datasets.
        download: whether it may be downloaded and prepared.
        choice: splits and features.
        size: side of square images, which are cropped in the middle and resized; needed where they
            differ.

    Returns:
        The dataset, in the order of the files, which is not that of the original ones.

    Raises:
        DatasetUnavailable: it is not prepared and cannot be prepared here, is damaged, or
            tensorflow-datasets is not installed; says what to do.
        ValueError: an option that it does not have.
    """
    folders = prepared_folders(path)
    folder = _version_folder(folders, dataset)
    if folder is None and download:
        _prepare(dataset, folders)
        folder = _version_folder(folders, dataset)
    if folder is None:
        raise _not_here(dataset, folders)
    name = dataset.partition("/")[0]
    read = partial(_read, name, folder, choice, size)
    return kept_for(root, "tfds", folder, [choice, size], facts_of(folder.iterdir()), read)


def prepared_folders(path: Place = None) -> Path:
    """Choose the folder of prepared datasets: `path`, else $TFDS_DATA_DIR, else
    ~/tensorflow_datasets.
    """
    return Path(
        path or os.environ.get(FOLDER_VARIABLE) or Path("~") / "tensorflow_datasets"
    ).expanduser()


def _read(dataset: str, folder: Path, choice: Choice, size: int | None) -> Dataset:
    name = f"tfds:{dataset}"
    library, builder = _opened(name, folder)
    features = dict(builder.info.features.items())
    kinds = {"input": library.features.Image, "label": library.features.ClassLabel}
    fitting = {
        role: [key for key, one in features.items() if isinstance(one, kind)]
        for role, kind in kinds.items()
    }
    for role, key in zip(kinds, builder.info.supervised_keys or (), strict=False):
        if isinstance(key, str):
            fitting[role] = [key]
    chosen = choose_columns(name, choice, features, fitting)
    wanted, test = choose_splits(name, choice, list(builder.info.splits))
    rows: dict[str, list] = {role: [] for role in (*chosen, "split")}
    try:
        for split in wanted:
            for example in _examples(builder, split):
                for role, key in chosen.items():
                    value = example[key]
                    rows[role].append(_input(value, size, dataset) if role == "input" else value)
                rows["split"].append(split)
            if split not in rows["split"]:
                raise ValueError(f"split {split} is empty")
    except Exception as error:  # whatever the library raises, a user needs the same message
        raise _damaged(name, folder, error) from error
    shapes = list(dict.fromkeys(one.shape for one in rows["input"]))
    if len(shapes) > 1:
        raise BadData(
            name, f"has images of several shapes, {shapes[0]} and {shapes[1]}; give data.size"
        )
    named = np.array(rows["split"])
    y = np.where(named == choice.unlabelled_split, -1, np.array(rows["label"]))
    texts = [
        client.decode() if isinstance(client, bytes) else str(client)
        for client in rows.get("client", ())
    ]
    clients, client = np.unique(texts, return_inverse=True) if texts else (None, None)
    class_names = getattr(features[chosen["label"]], "names", None)
    columns = Columns(
        y,
        tuple(class_names or map(str, range(int(y.max()) + 1))),
        client,
        None if clients is None else tuple(clients.tolist()),
        named == (test or ""),
        coarse=np.array(rows["coarse"]) if "coarse" in chosen else None,
        coarse_names=tuple(features[chosen["coarse"]].names) if "coarse" in chosen else None,
    )
    notes = []
    if without := int(((y < 0) & (named != choice.unlabelled_split)).sum()):
        notes.append(f"{counted(without, 'label is', 'labels are')} -1, taken as no label")
    x = np.stack(rows["input"])
    reading = ImageReading(*x.shape[1:]) if x.ndim == 4 and x.dtype == np.uint8 else None
    return columns.dataset(name, name, x, None, notes, reading, terms=builder.info.citation)


def _opened(name: str, folder: Path) -> tuple[Any, Any]:
    """Open a prepared folder with TensorFlow Datasets."""
    try:
        library: Any = importlib.import_module("tensorflow_datasets")
    except ImportError as error:
        raise DatasetUnavailable(
            f"{name}: reading {folder} needs: {how_to_install('tfds')}"
        ) from error
    try:
        # The library imports the modules of these classes.
        for named in _classes(json.loads((folder / "features.json").read_text(encoding="utf-8"))):
            if not named.startswith("tensorflow_datasets."):
                raise ValueError(
                    f"its features are of {named}, which is no class of TensorFlow Datasets"
                )
        return library, library.builder_from_directory(folder)
    except Exception as error:  # as above
        raise _damaged(name, folder, error, "no prepared folder, or damaged") from error


def _damaged(name: str, folder: Path, error: Exception, how: str = "damaged") -> DatasetUnavailable:
    said = " ".join(str(error).split())[:300] or type(error).__name__
    return DatasetUnavailable(f"{name}: {folder} is {how}: {said}")


def _examples(builder: Any, split: str) -> Iterator[Mapping[str, Any]]:
    if builder.info.file_format.value != "tfrecord":
        yield from builder.as_data_source(split)
        return
    # which the library itself reads with TensorFlow alone
    for file in builder.info.splits[split].filepaths:
        yield from map(builder.info.features.deserialize_example_np, read_tfrecord(Path(file)))


def _input(value: np.ndarray, size: int | None, name: str) -> np.ndarray:
    """Take an image as uint8 [H, W, C], or numbers as float32."""
    if value.dtype != np.uint8 or value.ndim != 3:
        return np.asarray(value, np.float32)
    height, width, channels = value.shape
    if size is not None or channels not in (1, 3):
        image = Image.fromarray(value[..., 0] if channels == 1 else value)
        value = shown(image, (size or height, size or width, 1 if channels == 1 else 3))
    return value.transpose(1, 0, 2) if name in TRANSPOSED else value


def _classes(features: Any) -> Iterator[str]:
    """Find the names of all classes in `features.json`."""
    for key, value in features.items() if isinstance(features, dict) else ():
        if isinstance(value, str) and key in ("pythonClassName", "type"):
            yield value
        yield from _classes(value)
    for value in features if isinstance(features, list) else ():
        yield from _classes(value)


def read_tfrecord(path: Path) -> Iterator[bytes]:
    """Read the records of a file: each a length (8 bytes, little-endian), its check (4), the
    content, its check (4).

    Raises:
        ValueError: the file ends inside a record, or states a length of more than 1 GiB.
    """
    with open(path, "rb") as file:
        while head := file.read(12):
            length = int.from_bytes(head[:8], "little")
            fits = len(head) == 12 and length <= LARGEST_RECORD
            content = file.read(length + 4) if fits else b""
            if len(content) < length + 4:
                raise ValueError(
                    f"{path.name} is no TFRecord file, or cut short: a record of {length:,} bytes"
                )
            yield content[:length]


def _version_folder(folders: Path, dataset: str) -> Path | None:
    """Find the prepared folder, of the newest version where none is named; of the only
    configuration likewise.
    """
    place = folders / dataset
    if (place / "dataset_info.json").is_file():
        return place
    found = [*place.glob("*/dataset_info.json"), *place.glob("*/*/dataset_info.json")]
    configs = {file.parent.parent for file in found}
    if len(configs) > 1:
        names = ", ".join(sorted(f"tfds:{folder.relative_to(folders)}" for folder in configs))
        raise ValueError(f"tfds:{dataset} is prepared in several configurations; name one: {names}")

    def version(folder: Path) -> tuple[int, ...]:
        return tuple(int(part) if part.isdigit() else -1 for part in folder.name.split("."))

    return max((file.parent for file in found), key=version, default=None)


def _prepare(dataset: str, folders: Path) -> None:
    """Download and prepare it with TensorFlow, if that is installed and the hosts answer.

    TensorFlow Datasets tries a host without a name for minutes, and one that is silent without end:
    so they are asked first.
    """
    missing = [module for module in NEEDED if importlib.util.find_spec(module) is None]
    if missing:
        raise _not_here(dataset, folders, [f"preparing it needs {', '.join(missing)}"])
    try:
        builder: Any = importlib.import_module("tensorflow_datasets").builder(
            dataset, data_dir=str(folders)
        )
        silent = _silent_hosts(builder.url_infos)
        if not silent:
            builder.download_and_prepare(file_format="array_record")
            return
    except Exception as error:  # as above
        silent = [
            f"TensorFlow Datasets: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        ]
    raise _not_here(dataset, folders, silent)


def _silent_hosts(addresses: Mapping[str, Any]) -> list[str]:
    """Say what is wrong with the hosts of some addresses, a line each."""
    reasons = []
    for url in sorted({urllib.parse.urlsplit(address) for address in addresses}):
        try:
            port = url.port or (443 if url.scheme == "https" else 80)
            socket.create_connection((url.hostname or "", port), timeout=TIMEOUT).close()
        except OSError as error:
            reasons.append(f"{url.hostname}: {error.strerror or error}")
    return list(dict.fromkeys(reasons))


def _not_here(dataset: str, folders: Path, tried: Sequence[str] = ()) -> DatasetUnavailable:
    """Say what was tried, where it was looked for, and what to do."""
    remedies = [
        "prepare it where TensorFlow is installed, `pip install tensorflow tensorflow-datasets "
        f"importlib_resources; tfds build {dataset}`,\n    and copy the folder to "
        f"{folders / dataset}; reading it needs no TensorFlow",
        f"point {FOLDER_VARIABLE} or path= at the folder of prepared datasets",
    ]
    looked = [folders / dataset]
    return not_here(
        f"tfds:{dataset}", looked, remedies, tried, state="prepared here", how="prepared"
    )
