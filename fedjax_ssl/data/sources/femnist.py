"""`femnist` and `femnist_leaf`: handwritten characters by writer.

The first is fedjax's two SQLite files, which are downloaded; the second the JSON files that LEAF's
scripts make, with more writers. Both have pixels from 0 (ink) to 1 (background); ink comes out
high, as uint8.

Source: Caldas et al., LEAF: A Benchmark for Federated Settings, 2018; Cohen et al., EMNIST, IJCNN
2017.
"""

import contextlib
import itertools
import json
import math
import sqlite3
import string
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.reading.cache import facts_of, kept_for, raw_folder
from fedjax_ssl.data.reading.fetch import Facts, Files, RemoteFile
from fedjax_ssl.data.reading.formats import FormatError, damage
from fedjax_ssl.data.reading.own import DatasetUnavailable, Place, not_here
from fedjax_ssl.data.reading.register import dataset, published

CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
SHAPE = (28, 28)
VALUES = math.prod(SHAPE)
SPLITS = ("train", "test")
SQLITE = tuple(f"federated_emnist_{split}.sqlite" for split in SPLITS)
TERMS = (
    "from NIST Special Database 19; cite Cohen et al. (2017), EMNIST, and Caldas et al. (2018), "
    "LEAF"
)
SUBSTITUTE = (
    'run the same experiment on the embedded stand-in, load("glyphs"): --config '
    "configs/femnist_xclp.py:glyphs"
)


class Part(NamedTuple):
    """Examples of one split with the writer of each."""

    x: np.ndarray  # uint8 [n, 28, 28, 1]
    y: np.ndarray  # int32 [n]
    client: np.ndarray  # int32 [n], positions in `names`
    names: Sequence[str]  # writers


Writer = tuple[str, Any, int]  # name, {"pixels": [n, 28, 28] from 0 to 1, "label": [n]}, and n


@dataset(
    "femnist_leaf",
    "817,851 handwritten characters by 3,597 writers in XCLP, 28x28x1, 62 classes; you place the "
    "files of LEAF's scripts at path=",
    terms=TERMS,
    kind="placed",
    facts=Facts(817_851, 0, (*SHAPE, 1), 62, clients=3597),
)
def load_leaf(*, root: Place = None, path: Place = None) -> Dataset:
    """Read LEAF's JSON files in `train/` and `test/` of a folder, once."""
    folder = raw_folder("femnist_leaf", root, path)
    files = {split: sorted((folder / split).glob("*.json")) for split in SPLITS}
    if not files["train"]:
        remedies = [
            "get LEAF (https://github.com/TalwalkarLab/leaf), run data/femnist/preprocess.sh "
            "with the options of your paper and Pillow 9,\n    and give path= the folder "
            "data/femnist/data, which has train/ and test/, or copy both into "
            f"{raw_folder('femnist', root, None)}",
            "take the dataset femnist, which is downloaded, with 3,400 writers",
        ]
        looked = [f"{folder / 'train'}/*.json"]
        raise not_here(
            "femnist_leaf", looked, remedies, instead=SUBSTITUTE, state="here as LEAF's JSON files"
        )

    def make() -> Dataset:
        try:
            parts = []
            for paths in files.values():
                if paths:
                    writers = itertools.chain.from_iterable(map(_leaf_writers, paths))
                    parts.append(_joined(paths[0].parent, writers))
            return replace(_dataset("femnist_leaf", parts), extra={"terms": TERMS})
        except (FormatError, OSError) as error:
            raise DatasetUnavailable(
                f"femnist_leaf: {error}\nTo go on, let LEAF's preprocess.sh make the files again, "
                f"or {SUBSTITUTE}"
            ) from error

    every = [file for paths in files.values() for file in paths]
    return kept_for(root, "femnist_leaf", folder, "leaf", facts_of(every), make)


@published(
    "femnist",
    "749,068 handwritten characters by 3,400 writers, 28x28x1, 62 classes; downloaded",
    terms=TERMS,
    files=tuple(
        RemoteFile(f"https://storage.googleapis.com/gresearch/fedjax/emnist/{name}")
        for name in SQLITE
    ),
    facts=Facts(671_585, 77_483, (*SHAPE, 1), 62, clients=3400),
    substitute=SUBSTITUTE,
    version=2,
)
def read_femnist(files: Files) -> Dataset:
    """Read federated EMNIST, by writer: inputs uint8 [n, 28, 28, 1], ink high.

    Raises:
        FormatError: a file is not in its form, or damaged.
    """
    return _dataset("femnist", [read_sqlite(files[name]) for name in SQLITE])


def _dataset(name: str, parts: Sequence[Part]) -> Dataset:
    writers = sorted({writer for part in parts for writer in part.names})
    number = {writer: place for place, writer in enumerate(writers)}
    splits = []
    for part in parts:
        client = np.array([number[writer] for writer in part.names], np.int32)[part.client]
        splits.append(Split(part.x, part.y, client))
    return Dataset(
        name,
        splits[0],
        splits[1] if len(splits) > 1 else None,
        class_names=CLASSES,
        client_names=tuple(writers),
        mean=(0.0,),  # by convention values stay in 0 .. 1
        std=(1.0,),
    )


def read_sqlite(path: Path) -> Part:
    """Read one split in fedjax's form.

    Table `federated_data(client_id, data, num_examples)`; `data` is zlib-compressed msgpack of
    `pixels` float32 [n, 28, 28] and `label` int32 [n].

    Raises:
        FormatError: no SQLite file of this form, cut short, or with content out of range; names the
            client.
    """
    return _joined(path, _sqlite_writers(path))


def _sqlite_writers(path: Path) -> Iterator[Writer]:
    from flax import serialization  # slow to import

    uri = f"{path.resolve().as_uri()}?mode=ro"
    with damage(path), contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
        columns = {row[1] for row in database.execute("PRAGMA table_info(federated_data)")}
        if not columns >= {"client_id", "data", "num_examples"}:
            raise FormatError(
                f"{path} is not in fedjax's form: it has no table federated_data(client_id, data, "
                "num_examples)."
            )
        for client_id, data, count in database.execute(
            "SELECT client_id, data, num_examples FROM federated_data"
        ):
            named = isinstance(client_id, bytes)
            name = client_id.decode("ascii", "replace") if named else str(client_id)
            with damage(path, f" (client {name})"):
                example = serialization.msgpack_restore(zlib.decompress(data))
            yield name, example, count


def _leaf_writers(path: Path) -> Iterator[Writer]:
    """Read one of LEAF's files: `users`, `num_samples`, and `user_data` with `x` (rows of 784) and
    `y` for each.
    """
    with damage(path):
        content = json.loads(path.read_bytes())
        users = content["user_data"]
        if not isinstance(users, dict) or set(users) != set(content["users"]):
            raise ValueError("users and user_data do not name the same writers")
    for name in sorted(users):
        try:
            # popped, so that the lists of a writer are freed once the arrays exist
            user = users.pop(name)
            labels = np.array(user["y"])
            pixels = np.array(user["x"], np.float32).reshape(len(labels), *SHAPE)
        except Exception as error:
            raise FormatError(
                f"{path}: writer {name} has no x of rows of {VALUES} numbers, and y: {error}"
            ) from error
        yield name, {"pixels": pixels, "label": labels}, len(labels)


def _joined(path: Path, writers: Iterator[Writer]) -> Part:
    """Join the examples of all writers, in the order of their names."""
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, example, count in writers:
        if not isinstance(example, dict) or not {"pixels", "label"} <= example.keys():
            raise FormatError(f"{path}: client {name} has no `pixels` and `label`.")
        pixels = np.asarray(example["pixels"])
        labels = np.asarray(example["label"])
        if pixels.shape != (count, *SHAPE) or labels.shape != (count,):
            raise FormatError(
                f"{path}: client {name} has pixels {pixels.shape} and labels {labels.shape} for "
                f"{count} examples of {SHAPE}."
            )
        if count and not (pixels.min() >= 0 and pixels.max() <= 1):
            raise FormatError(f"{path}: client {name} has pixels outside 0 to 1, or NaN.")
        if labels.dtype.kind not in "iu":
            raise FormatError(
                f"{path}: client {name} has labels of the type {labels.dtype}; they are whole "
                "numbers."
            )
        if count and not (labels.min() >= 0 and labels.max() < len(CLASSES)):
            raise FormatError(f"{path}: client {name} has labels outside 0 to {len(CLASSES) - 1}.")
        if name in found:
            raise FormatError(f"{path} has the writer {name} twice.")
        ink = np.rint(255.0 * (1.0 - pixels)).astype(np.uint8)
        found[name] = ink[..., None], labels.astype(np.int32)
    if not any(len(labels) for _, labels in found.values()):
        raise FormatError(f"{path} holds no examples.")
    names = sorted(found)
    images, labels = zip(*(found[name] for name in names), strict=True)
    client = np.repeat(np.arange(len(names)), [len(one) for one in labels])
    return Part(np.concatenate(images), np.concatenate(labels), client, names)
