"""Folders of datasets, and their converted form, which opens without decoding."""

import dataclasses
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_ssl.data.dataset import Dataset, Reading, Split
from fedjax_ssl.data.fingerprint import of_files
from fedjax_ssl.data.reading.own import Place
from fedjax_ssl.data.reading.pictures import ImageReading
from fedjax_ssl.data.reading.table_reading import TableReading

ROOT_VARIABLE = "FEDJAX_SSL_DATA"
FACTS = ("name", "class_names", "client_names", "input_max", "mean", "std", "coarse_names", "extra")
ARRAYS = ("correspondence", "set_shares")
COLUMNS = tuple(field.name for field in dataclasses.fields(Split)[1:])  # columns besides the inputs
# version of the converted form of a user's own data; data in another version are read again
FORM = 5
# by `Reading.as_json`'s kind
READINGS = {"ImageReading": ImageReading, "TableReading": TableReading}

logger = logging.getLogger(__name__)


def data_root(root: Place = None) -> Path:
    """Return the folder of all datasets: `root`, otherwise $FEDJAX_SSL_DATA, otherwise
    ~/.cache/fedjax_ssl.
    """
    return Path(
        root or os.environ.get(ROOT_VARIABLE) or Path("~") / ".cache" / "fedjax_ssl"
    ).expanduser()


def raw_folder(name: str, root: Place, path: Place) -> Path:
    """Return the folder of a dataset's original files: `path`, otherwise `<root>/NAME/raw`."""
    return data_root(root) / name / "raw" if path is None else Path(path).expanduser()


def load_converted(folder: Path) -> Dataset | None:
    """Open a dataset that `kept` wrote, with inputs memory-mapped.

    Args:
        folder: the folder that it was kept in.

    Returns:
        The dataset, or None if the folder is not there or is damaged (which is logged).
    """
    if not folder.is_dir():
        return None
    try:
        stored = json.loads((folder / "dataset.json").read_text())
        facts: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in stored.items()
        }
        facts |= {name: _array(folder / f"{name}.npy") for name in ARRAYS}
        facts["reading"] = reading_from_json(stored.get("reading"))
        for split in facts.pop("splits"):
            columns: Any = {name: _array(folder / f"{split}_{name}.npy") for name in COLUMNS}
            facts[split] = Split(np.load(folder / f"{split}_x.npy", mmap_mode="r"), **columns)
        return Dataset(**{"test": None, **facts})
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        logger.warning(
            "the converted data in %s is damaged and will be made again: %s", folder, error
        )
        return None


def reading_from_json(stored: Mapping[str, Any] | None) -> Reading | None:
    """Make a reading from the value of `Reading.as_json`, whose lists become tuples again; None if
    there is none.
    """
    facts = {} if stored is None else _frozen(stored)
    # Earlier versions stored these; at the values that are dropped, they change no input.
    facts.pop("max_levels", None)
    if not facts.get("fills"):
        facts.pop("fills", None)
    for feature in facts.get("features", ()):
        if not feature.get("center"):
            feature.pop("center", None)
    return READINGS[facts.pop("kind")](**facts) if facts else None


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _frozen(inner) for name, inner in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _array(path: Path) -> np.ndarray | None:
    return np.load(path) if path.exists() else None


def kept(folder: Path, make: Callable[[], Dataset], replaces: str | None = None) -> Dataset:
    """Open the dataset that is kept in a folder, or make it and keep it there.

    The folder is written under another name and then renamed. If it cannot be written, this is
    logged and ignored: only the next start is slower.

    Args:
        folder: its name depends on the content that the dataset is made from.
        make: makes the dataset; `extra` must fit into JSON.
        replaces: pattern of neighbouring folders with earlier content, which are removed.

    Returns:
        The dataset.
    """
    if (cached := load_converted(folder)) is not None:
        return cached
    dataset = make()
    for older in folder.parent.glob(replaces) if replaces else ():
        shutil.rmtree(older, ignore_errors=True)
    temporary = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        save(dataset, temporary)
        if folder.exists() and load_converted(folder) is None:
            shutil.rmtree(folder)
        if not folder.exists():  # otherwise another process was faster
            temporary.rename(folder)
    except OSError as error:
        logger.warning("%s was not kept in %s: %s", dataset.name, folder, error)
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return dataset


def save(dataset: Dataset, folder: Path) -> None:
    """Write a dataset for `load_converted`; `extra` must fit into JSON."""
    splits = dataset.splits()
    arrays = {name: getattr(dataset, name) for name in ARRAYS}
    for name, split in splits.items():
        arrays |= {f"{name}_{column}": getattr(split, column) for column in ("x", *COLUMNS)}
    for name, values in arrays.items():
        if values is not None:
            plain = values.astype(str) if values.dtype == object else values
            np.save(folder / f"{name}.npy", plain)
    facts = {name: getattr(dataset, name) for name in FACTS} | {"splits": list(splits)}
    facts["reading"] = dataset.reading and dataset.reading.as_json()
    (folder / "dataset.json").write_text(json.dumps(facts))


def kept_for(
    root: Place,
    source: str,
    place: Path,
    told: object,
    content: object,
    make: Callable[[], Dataset],
) -> Dataset:
    """Make a dataset from a user's own files once, until their content changes.

    Args:
        root: folder of all datasets.
        source: folder of this source in it.
        place: file or folder that is read.
        told: options, which fit into JSON; datasets of an earlier content and the same options are
            removed.
        content: a value that fits into JSON and differs where the arrays may differ.
        make: makes the dataset.
    """
    place = place.resolve()
    home = data_root(root) / source / f"{place.stem}-{fingerprint([str(place), told])}"
    return kept(home / f"converted-{fingerprint([FORM, content])}", make, replaces="converted-*")


def facts_of(files: Iterable[Path]) -> list[Any]:
    """List names, lengths, modification times and a digest of files, because a copy may have the
    time of another file.
    """
    there = sorted(files)
    facts = [(file, file.stat()) for file in there]
    return [
        *((str(file), status.st_size, status.st_mtime_ns) for file, status in facts),
        of_files(there),
    ]


def fingerprint(value: object) -> str:
    """Compute a short digest of something that fits into JSON; equal values have equal digests."""
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:12]
