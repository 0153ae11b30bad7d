"""TensorFlow Federated's SQLite files: federated CIFAR-100, and federated EMNIST in another form than fedjax's.

Table `examples(split_name, client_id, serialized_example_proto)`, a row per example, the whole file compressed by LZMA.
"""

import contextlib
import lzma
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ssl.data.correspondence import CIFAR100_SUPERCLASSES, correspondence
from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.sources.entries import Archive, RemoteFile
from fedjax_ssl.data.sources.formats import LARGEST, FormatError, damage
from fedjax_ssl.data.sources.tfexample import parse_example

HOST = "https://storage.googleapis.com/tff-datasets-public"
CIFAR100_FILE, EMNIST_FILE = "cifar100.sqlite.lzma", "emnist_all.sqlite.lzma"
CHUNK_BYTES = 1 << 24


class Rows(NamedTuple):
    """The examples of one split, in the order of the file."""

    x: np.ndarray  # uint8 [n, H, W, C]
    labels: dict[str, np.ndarray]  # int32 [n] each
    client: np.ndarray  # text [n]


def cifar100_federated(class_names: tuple[str, ...]) -> Archive:
    """The catalogue entry of CIFAR-100 by client (Reddi et al., Adaptive Federated Optimization, ICLR 2021)."""

    def read(files: Mapping[str, Path]) -> Dataset:
        return read_cifar100(files, class_names)

    return Archive(
        name="cifar100_federated",
        description="CIFAR-100 as TensorFlow Federated deals it: 500 training and 100 test clients; downloaded, 153 MB",
        files=(
            RemoteFile(
                CIFAR100_FILE,
                (f"{HOST}/{CIFAR100_FILE}",),
                153_019_920,
                "23d3916c9caa33395737ee560cc7cb77bbd05fc7b73647ee7be3a7e764172939",
            ),
        ),
        read=read,
        terms="no licence stated; cite Krizhevsky (2009), and Reddi et al. (2021) for the clients",
        examples=(50_000, 10_000),
    )


def read_cifar100(files: Mapping[str, Path], class_names: tuple[str, ...]) -> Dataset:
    """Federated CIFAR-100; clients of the two splits are different ones, whatever their numbers.

    Raises:
        FormatError: the file is not in this form, or damaged.
    """
    path = files[CIFAR100_FILE]
    limits = {"label": len(class_names), "coarse_label": len(CIFAR100_SUPERCLASSES)}
    with _opened(path) as database:
        parts = {split: read_rows(path, database, split, "image", (32, 32, 3), limits) for split in ("train", "test")}
    names: list[str] = []
    splits = {}
    for split, part in parts.items():
        ids, client = np.unique(part.client, return_inverse=True)
        splits[split] = Split(part.x, part.labels["label"], client + len(names), part.labels["coarse_label"])
        names += [f"{split} {name}" for name in ids]
    return Dataset(
        name="cifar100_federated",
        train=splits["train"],
        test=splits["test"],
        class_names=class_names,
        client_names=tuple(names),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        coarse_names=CIFAR100_SUPERCLASSES,
        correspondence=correspondence("superclass", len(class_names)).matrix,
    )


def read_emnist(files: Mapping[str, Path], class_names: tuple[str, ...]) -> Dataset:
    """Federated EMNIST; writers are the same in both splits, ink comes out high.

    Raises:
        FormatError: the file is not in this form, or damaged.
    """
    path = files[EMNIST_FILE]
    with _opened(path) as database:
        parts = {
            split: read_rows(path, database, f"all_{split}", "pixels", (28, 28, 1), {"label": len(class_names)})
            for split in ("train", "test")
        }
    names = np.unique(np.concatenate([part.client for part in parts.values()]))
    train, test = (Split(part.x, part.labels["label"], np.searchsorted(names, part.client)) for part in parts.values())
    return Dataset(
        name="femnist",
        train=train,
        test=test,
        class_names=class_names,
        client_names=tuple(names.tolist()),
        mean=(0.0,),  # by convention values stay in 0 .. 1
        std=(1.0,),
    )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """The database, unpacked into a temporary file beside the original one."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        unpacked = Path(folder) / "examples.sqlite"
        written = 0
        with damage(path), lzma.open(path) as source, unpacked.open("wb") as file:
            while chunk := source.read(CHUNK_BYTES):
                written += len(chunk)
                if written > LARGEST:
                    raise FormatError(f"{path} unpacks to more than {LARGEST:,} bytes, which are not read.")
                file.write(chunk)
        with damage(path), contextlib.closing(sqlite3.connect(f"{unpacked.as_uri()}?mode=ro", uri=True)) as database:
            columns = {row[1] for row in database.execute("PRAGMA table_info(examples)")}
            if not columns >= {"split_name", "client_id", "serialized_example_proto"}:
                raise FormatError(
                    f"{path} is not in TensorFlow Federated's form: it has no table examples(split_name, client_id, "
                    "serialized_example_proto)."
                )
            yield database


def read_rows(
    path: Path,
    database: sqlite3.Connection,
    split: str,
    key: str,
    shape: tuple[int, int, int],
    limits: Mapping[str, int],
) -> Rows:
    """The examples of a split.

    Args:
        path: for messages.
        database: as described above.
        split: value of `split_name`.
        key: feature with the image: whole numbers 0 to 255, or floats with ink 0 and background 1.
        shape: height, width and channels.
        limits: features with labels, and the number of values of each.

    Raises:
        FormatError: the split is empty, or an example is not as described.
    """
    (count,) = database.execute("SELECT count(*) FROM examples WHERE split_name = ?", (split,)).fetchone()
    if not count:
        raise FormatError(f"{path} has no examples of the split {split!r}.")
    x, clients = np.empty((count, *shape), np.uint8), []
    labels = {name: np.empty(count, np.int32) for name in limits}
    rows = database.execute("SELECT client_id, serialized_example_proto FROM examples WHERE split_name = ?", (split,))
    for row, (client, record) in enumerate(rows):
        clients.append(client.decode("ascii", "replace") if isinstance(client, bytes) else str(client))
        example = parse_example(record)
        image = example.get(key)
        if not isinstance(image, np.ndarray) or image.size != x[row].size:
            raise FormatError(f"{path}: example {row} of {split}, client {clients[-1]}, has no {key} of {shape}.")
        highest = 1 if image.dtype == np.float32 else 255
        if not (image.min() >= 0 and image.max() <= highest):
            raise FormatError(
                f"{path}: example {row} of {split}, client {clients[-1]}, has {key} outside 0 to {highest}."
            )
        x[row] = (np.rint(255.0 * (1.0 - image)) if highest == 1 else image).reshape(shape)
        for name, limit in limits.items():
            value = example.get(name)
            if not isinstance(value, np.ndarray) or value.size != 1 or not 0 <= value[0] < limit:
                raise FormatError(
                    f"{path}: example {row} of {split}, client {clients[-1]}, has no {name} of 0 to {limit - 1}."
                )
            labels[name][row] = value[0]
    return Rows(x, labels, np.array(clients))
