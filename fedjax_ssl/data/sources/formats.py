"""Readers of the original archives: bytes of a published format in, arrays out."""

import contextlib
import gzip
import lzma
import math
import sqlite3
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

CIFAR_SHAPE = (3, 32, 32)
FEMNIST_SHAPE = (28, 28)
LARGEST = 1 << 33  # bytes that an array in a file may take: more than any dataset here


# What the standard library says about broken bytes.
DAMAGED = (
    *(EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile, sqlite3.Error),
    *(ValueError, TypeError, KeyError, struct.error),
)


class FormatError(ValueError):
    """A file is not in its format, or is cut short or damaged; the message names it."""


class ClientArrays(NamedTuple):
    """Examples of one split with the client of each."""

    x: np.ndarray  # uint8 [n, 28, 28, 1]
    y: np.ndarray  # int32 [n]
    client: np.ndarray  # int32 [n], positions in `names`
    names: tuple[str, ...]  # client identifiers, sorted


def read_idx(path: Path) -> np.ndarray:
    """Reads a gzipped IDX file of bytes, the format of MNIST and its relatives.

    The format: two zero bytes, type 8 (unsigned byte), the number of axes, big-endian sizes, the bytes.

    Args:
        path: the `.gz` file.

    Returns:
        uint8 array of the shape the file states.

    Raises:
        FormatError: no gzip, no IDX of bytes, or not the length it states.
    """
    with open(path, "rb") as file:
        return read_idx_stream(file, str(path))


def read_idx_stream(file: IO[bytes], name: str) -> np.ndarray:
    """The same from an open file, for example one in an archive; `name` is for messages."""
    with damage(name), gzip.open(file) as content:
        start = content.read(4)
        if len(start) < 4 or start[:3] != b"\0\0\x08":
            raise FormatError(f"{name} is no IDX file of bytes: it starts with {start!r}.")
        sizes = content.read(4 * start[3])
        if len(sizes) < 4 * start[3]:
            raise FormatError(f"{name} ends inside its header, after {4 + len(sizes)} bytes.")
        shape = struct.unpack(f">{start[3]}I", sizes)
        count = math.prod(shape)
        if count > LARGEST:
            raise FormatError(f"{name} states the shape {shape}, {count:,} bytes; more than {LARGEST:,} are not read.")
        values = content.read(count + 1)  # one more, to see that it ends there
    if len(values) != count:
        raise FormatError(
            f"{name} states the shape {shape} but holds {'more' if len(values) > count else len(values)} values."
        )
    return np.frombuffer(values, np.uint8).reshape(shape)


def read_cifar10_binary(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Reads `cifar-10-binary.tar.gz`: rows of one label byte and 3,072 bytes, planes red, green, blue.

    Args:
        path: the archive.

    Returns:
        train images uint8 [n, 32, 32, 3], train labels uint8 [n], test images, test labels.

    Raises:
        FormatError: not a gzipped tar, batches missing, or rows that do not fit.
    """
    train_names = [f"data_batch_{i}.bin" for i in range(1, 6)]
    parts = _read_cifar(path, [*train_names, "test_batch.bin"], {"label": 10})
    train, (test_x, test_y) = parts[:-1], parts[-1]
    return np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train])[:, 0], test_x, test_y[:, 0]


def read_cifar100_binary(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Reads `cifar-100-binary.tar.gz`: rows of a coarse and a fine label byte and 3,072 bytes, planes red, green, blue.

    Args:
        path: the archive.

    Returns:
        train images uint8 [n, 32, 32, 3], train labels uint8 [n, 2] (superclass, class), test images, test labels.

    Raises:
        FormatError: not a gzipped tar, a split missing, or rows that do not fit.
    """
    parts = _read_cifar(path, ["train.bin", "test.bin"], {"superclass": 20, "class": 100})
    return *parts[0], *parts[1]


def _read_cifar(path: Path, names: list[str], num_labels: dict[str, int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Images and label bytes [n, labels] of the named files of an archive; `num_labels` counts the values of each."""
    content = {}
    with damage(path), tarfile.open(path, "r:gz") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(".bin") else None
            if file is not None:
                content[Path(member.name).name] = file.read()
    missing = [name for name in names if name not in content]
    if missing:
        raise FormatError(f"{path} has no {', '.join(missing)}; found: {', '.join(sorted(content)) or 'nothing'}.")
    return [_cifar_rows(path, name, content[name], num_labels) for name in names]


def _cifar_rows(path: Path, name: str, content: bytes, num_labels: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    row = len(num_labels) + math.prod(CIFAR_SHAPE)
    if not content or len(content) % row:
        raise FormatError(f"{path}: {name} has {len(content):,} bytes, which is no whole number of rows of {row:,}.")
    rows = np.frombuffer(content, np.uint8).reshape(-1, row)
    labels, planes = np.split(rows, [len(num_labels)], axis=1)
    for (kind, count), values in zip(num_labels.items(), labels.T, strict=True):
        if values.max() >= count:
            raise FormatError(f"{path}: {name} has the {kind} {values.max()}; there are 0 to {count - 1}.")
    return np.ascontiguousarray(planes.reshape(-1, *CIFAR_SHAPE).transpose(0, 2, 3, 1)), labels.copy()


def read_fedjax_sqlite(path: Path, num_classes: int) -> ClientArrays:
    """Reads one split of federated EMNIST in fedjax's form.

    Table `federated_data(client_id, data, num_examples)`; `data` is zlib-compressed msgpack of `pixels`
    float32 [n, 28, 28] with background 1 and ink 0, and `label` int32 [n]. Ink comes out high:
    round(255 * (1 - pixel)).

    Args:
        path: the `.sqlite` file.
        num_classes: labels must lie below it.

    Returns:
        All examples, clients in the order of their identifiers.

    Raises:
        FormatError: no SQLite file of this form, cut short, or with content out of range; names the client.
    """
    # Only this reader needs flax, which takes a moment to import.
    from flax import serialization

    with damage(path), contextlib.closing(_open_read_only(path)) as database:
        columns = {row[1] for row in database.execute("PRAGMA table_info(federated_data)")}
        if not columns >= {"client_id", "data", "num_examples"}:
            raise FormatError(
                f"{path} is not in fedjax's form: it has no table federated_data(client_id, data, num_examples)."
            )
        total = database.execute("SELECT coalesce(sum(num_examples), 0) FROM federated_data").fetchone()[0]
        if not 0 < total <= LARGEST // math.prod(FEMNIST_SHAPE):
            raise FormatError(f"{path} holds {'no' if not total else f'{total:,}'} examples.")
        x = np.empty((total, *FEMNIST_SHAPE, 1), np.uint8)
        y, client = np.empty(total, np.int32), np.empty(total, np.int32)
        names, start = [], 0
        query = "SELECT client_id, data, num_examples FROM federated_data ORDER BY client_id"
        for number, (client_id, data, num_examples) in enumerate(database.execute(query)):
            name = client_id.decode("ascii", "replace") if isinstance(client_id, bytes) else str(client_id)
            with damage(path, f" (client {name})"):
                example = serialization.msgpack_restore(_unpacked(data, num_examples))
            check_client(path, name, example, num_examples, num_classes)
            stop = start + num_examples
            x[start:stop, ..., 0] = np.rint(255.0 * (1.0 - example["pixels"]))
            y[start:stop], client[start:stop] = example["label"], number
            names.append(name)
            start = stop
    return ClientArrays(x, y, client, tuple(names))


def _unpacked(data: bytes, num_examples: int) -> bytes:
    """The content of a client, up to twice what its examples take."""
    unpacker = zlib.decompressobj()
    content = unpacker.decompress(data, 4096 + 8 * num_examples * (math.prod(FEMNIST_SHAPE) + 1))
    if not unpacker.eof:
        raise ValueError(f"incomplete, or more than {num_examples} examples")
    return content


def _open_read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


def check_client(path: Path, name: str, example: object, num_examples: int, num_classes: int) -> None:
    """Raises FormatError unless an example of a client has pixels from 0 to 1 and labels in range."""
    if not isinstance(example, dict) or not {"pixels", "label"} <= example.keys():
        raise FormatError(f"{path}: client {name} has no `pixels` and `label`.")
    pixels, labels = np.asarray(example["pixels"]), np.asarray(example["label"])
    if pixels.shape != (num_examples, *FEMNIST_SHAPE) or labels.shape != (num_examples,):
        raise FormatError(
            f"{path}: client {name} has pixels {pixels.shape} and labels {labels.shape} for {num_examples} "
            f"examples of {FEMNIST_SHAPE}."
        )
    if num_examples and not (pixels.min() >= 0 and pixels.max() <= 1):
        raise FormatError(f"{path}: client {name} has pixels outside 0 to 1, or NaN.")
    if labels.dtype.kind not in "iu":
        raise FormatError(f"{path}: client {name} has labels of the type {labels.dtype}; whole numbers are expected.")
    if num_examples and not (labels.min() >= 0 and labels.max() < num_classes):
        raise FormatError(f"{path}: client {name} has labels outside 0 to {num_classes - 1}.")


@contextlib.contextmanager
def damage(path: Path | str, where: str = "") -> Iterator[None]:
    """Turns what the standard library says about broken bytes into one error that names the file."""
    try:
        yield
    except FormatError:
        raise
    except DAMAGED as error:
        raise FormatError(f"{path}{where} is cut short, damaged or in another format: {error}") from error
