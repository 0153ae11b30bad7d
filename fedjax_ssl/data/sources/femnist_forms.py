"""FEMNIST in the forms that other libraries read: HDF5 of TensorFlow Federated and FedML, JSON of LEAF.

Both have pixels from 0 (ink) to 1 (background) and the labels 0 to 61; ink comes out high, as uint8.
"""

import contextlib
import importlib
import json
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_ssl.data.sources.fetch import DatasetUnavailable
from fedjax_ssl.data.sources.formats import FEMNIST_SHAPE, LARGEST, ClientArrays, FormatError, check_client, damage

SPLITS = ("train", "test")
TAR = "fed_emnist.tar.bz2"
HDF5 = tuple(f"fed_emnist_{split}.h5" for split in SPLITS)
TAR_URLS = (
    f"https://storage.googleapis.com/tff-datasets-public/{TAR}",
    f"https://fedml.s3-us-west-1.amazonaws.com/{TAR}",
)
LARGEST_JSON = 1 << 30  # bytes of one file; LEAF writes 100 writers into one, some 100 MB
VALUES = FEMNIST_SHAPE[0] * FEMNIST_SHAPE[1]


def read_hdf5(files: Mapping[str, Path], num_classes: int) -> dict[str, ClientArrays]:
    """Both splits from `fed_emnist_train.h5` and `fed_emnist_test.h5`, or the archive of the two.

    Groups `examples/<writer>/` with `pixels` float32 [n, 28, 28] and `label` int32 [n].

    Raises:
        DatasetUnavailable: h5py is not installed.
        FormatError: a file is not in this form, or damaged, or points to other files.
    """
    with _unpacked(files) as paths:
        return {split: _read_file(paths[name], num_classes) for split, name in zip(SPLITS, HDF5, strict=True)}


@contextlib.contextmanager
def _unpacked(files: Mapping[str, Path]) -> Iterator[Mapping[str, Path]]:
    """The two files; those of an archive in a temporary folder beside it."""
    if TAR not in files:
        yield files
        return
    path = files[TAR]
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        found = {}
        with damage(path), tarfile.open(path, "r:bz2") as archive:
            for member in archive:
                name = Path(member.name).name
                if name not in HDF5 or not member.isfile() or (content := archive.extractfile(member)) is None:
                    continue
                if member.size > LARGEST:
                    raise FormatError(f"{path}: {name} has {member.size:,} bytes; more than {LARGEST:,} are not read.")
                found[name] = Path(folder) / name
                with found[name].open("wb") as file:
                    while chunk := content.read(1 << 24):
                        file.write(chunk)
        if missing := [name for name in HDF5 if name not in found]:
            raise FormatError(f"{path} has no {', '.join(missing)}.")
        yield found


def _read_file(path: Path, num_classes: int) -> ClientArrays:
    try:
        h5py: Any = importlib.import_module("h5py")
    except ImportError as error:
        raise DatasetUnavailable(
            f"{path} is an HDF5 file, which needs: pip install 'fedjax_ssl[h5]'. Or leave form='hdf5' out: the default "
            "form needs nothing more and has the same examples."
        ) from error
    try:
        with h5py.File(path, "r") as file:
            group = _inside(path, h5py, file, "examples", h5py.Group)
            return _joined(path, ((name, _example(path, h5py, group, name)) for name in sorted(group)), num_classes)
    except FormatError:
        raise
    except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        raise FormatError(f"{path} is cut short, damaged or no HDF5 file: {error}") from error


def _example(path: Path, h5py: Any, group: Any, name: str) -> dict[str, np.ndarray]:
    writer = _inside(path, h5py, group, name, h5py.Group)
    found = {}
    for part in ("pixels", "label"):
        stored = _inside(path, h5py, writer, part, h5py.Dataset)
        if stored.size > LARGEST // VALUES:
            raise FormatError(f"{path}: {stored.name} states {stored.size:,} values, which are not read.")
        found[part] = stored[()]
    return found


def _inside(path: Path, h5py: Any, group: Any, name: str, kind: Any) -> Any:
    """A member of a group, which lies in this file: HDF5 could have any file of the machine read in its place."""
    link = group.get(name, getlink=True)
    if not isinstance(link, h5py.HardLink):
        raise FormatError(f"{path} has no {group.name.rstrip('/')}/{name}, or it points to another place.")
    found: Any = group[name]
    if not isinstance(found, kind) or (kind is h5py.Dataset and (found.external or found.is_virtual)):
        raise FormatError(f"{path}: {found.name} is no {kind.__name__.lower()} with content of its own.")
    return found


def leaf_files(folder: Path) -> dict[str, list[Path]]:
    """The JSON files of both splits below a folder, by split."""
    return {split: sorted((folder / split).glob("*.json")) for split in SPLITS}


def read_leaf(files: Mapping[str, list[Path]], num_classes: int) -> dict[str, ClientArrays]:
    """The splits from LEAF's files: `users`, `num_samples`, and `user_data` with `x` (rows of 784) and `y` of each.

    Raises:
        FormatError: a file is not in this form, or damaged, or a writer is in two files of a split.
    """
    return {
        split: _joined(paths[0].parent, (pair for path in paths for pair in _leaf_writers(path)), num_classes)
        for split, paths in files.items()
        if paths
    }


def _leaf_writers(path: Path) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    length = path.stat().st_size
    if length > LARGEST_JSON:
        raise FormatError(f"{path} has {length:,} bytes; more than {LARGEST_JSON:,} are not read.")
    try:
        content = json.loads(path.read_bytes())
        users = content["user_data"]
        if not isinstance(users, dict) or set(users) != set(content["users"]):
            raise ValueError("users and user_data do not name the same writers")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"{path} is cut short, damaged or not in LEAF's form: {error}") from error
    for name in sorted(users):
        try:
            user = users.pop(name)  # so that the lists of a writer go when the arrays are there
            labels = np.array(user["y"])
            pixels = np.array(user["x"], np.float32).reshape(len(labels), *FEMNIST_SHAPE)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise FormatError(f"{path}: writer {name} has no x of rows of {VALUES} numbers, and y: {error}") from error
        yield name, {"pixels": pixels, "label": labels}


def _joined(path: Path, writers: Iterator[tuple[str, dict[str, np.ndarray]]], num_classes: int) -> ClientArrays:
    """The examples of all writers, in the order of their names."""
    inks: dict[str, np.ndarray] = {}
    labels: dict[str, np.ndarray] = {}
    total = 0
    for name, example in writers:
        count = len(example["label"])
        check_client(path, name, example, count, num_classes)
        if name in inks:
            raise FormatError(f"{path} has the writer {name} twice.")
        total += count
        if total > LARGEST // VALUES:
            raise FormatError(f"{path} has more than {LARGEST // VALUES:,} examples, which are not read.")
        inks[name] = np.rint(255.0 * (1.0 - example["pixels"])).astype(np.uint8)[..., None]
        labels[name] = example["label"].astype(np.int32)
    if not total:
        raise FormatError(f"{path} has no examples.")
    names = tuple(sorted(inks))
    client = np.repeat(np.arange(len(names), dtype=np.int32), [len(labels[name]) for name in names])
    return ClientArrays(
        np.concatenate([inks[name] for name in names]),
        np.concatenate([labels[name] for name in names]),
        client,
        names,
    )
