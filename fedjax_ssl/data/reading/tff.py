"""TensorFlow Federated's SQLite files, read without TensorFlow.

Table `examples(split_name, client_id, serialized_example_proto)`, a row per example, the whole file
compressed by LZMA. An Example is three nested protocol buffers: features { feature { key, value }
}, where a value is a list of bytes (1), floats (2) or whole numbers (3).
"""

import contextlib
import lzma
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ssl.data.reading.formats import LARGEST, FormatError, damage

HOST = "https://storage.googleapis.com/tff-datasets-public"
CHUNK_BYTES = 1 << 24
COLUMNS = {"split_name", "client_id", "serialized_example_proto"}
# Wire types of protocol buffers: a number, content with its length, and numbers of so many bytes.
WORD = 0
DELIMITED = 2
FIXED = {1: 8, 5: 4}


class Rows(NamedTuple):
    """The examples of one split, in the order of the file."""

    x: np.ndarray  # uint8 [n, H, W, C]
    labels: dict[str, np.ndarray]  # int32 [n] each
    client: np.ndarray  # text [n]


def read_splits(
    path: Path,
    splits: Sequence[str],
    key: str,
    shape: tuple[int, int, int],
    limits: Mapping[str, int],
) -> dict[str, Rows]:
    """Read splits of a file.

    Args:
        path: the compressed file; it is unpacked into a temporary file beside it.
        splits: values of `split_name`.
        key: feature with the image: whole numbers 0 to 255, or floats with ink 0 and background 1.
        shape: height, width and channels.
        limits: features with labels, and the number of values of each.

    Returns:
        The examples by split.

    Raises:
        FormatError: the file is not in this form, or damaged, a split is empty, or an example is
            not as described.
    """

    def read(database: sqlite3.Connection, split: str) -> Rows:
        (count,) = database.execute(
            "SELECT count(*) FROM examples WHERE split_name = ?", (split,)
        ).fetchone()
        if not count:
            raise FormatError(f"{path} has no examples of the split {split!r}.")
        x = np.empty((count, *shape), np.uint8)
        clients = []
        labels = {name: np.empty(count, np.int32) for name in limits}
        rows = database.execute(
            "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = ?",
            (split,),
        )
        for row, (client, record) in enumerate(rows):
            clients.append(as_name(client))
            where = f"{path}: example {row} of {split}, client {clients[-1]}, has"
            example = parse_example(record)
            image = example.get(key)
            if not isinstance(image, np.ndarray) or image.size != x[row].size:
                raise FormatError(f"{where} no {key} of {shape}.")
            highest = 1 if image.dtype == np.float32 else 255
            if not (image.min() >= 0 and image.max() <= highest):
                raise FormatError(f"{where} {key} outside 0 to {highest}.")
            x[row] = (np.rint(255.0 * (1.0 - image)) if highest == 1 else image).reshape(shape)
            for name, limit in limits.items():
                value = example.get(name)
                number = value[0] if isinstance(value, np.ndarray) and value.size == 1 else -1
                if not 0 <= number < limit:
                    raise FormatError(f"{where} no {name} of 0 to {limit - 1}.")
                labels[name][row] = number
        return Rows(x, labels, np.array(clients))

    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        unpacked = Path(folder) / "examples.sqlite"
        written = 0
        with damage(path), lzma.open(path) as source, unpacked.open("wb") as file:
            while chunk := source.read(CHUNK_BYTES):
                written += len(chunk)
                if written > LARGEST:
                    raise FormatError(
                        f"{path} unpacks to more than {LARGEST:,} bytes, which are not read."
                    )
                file.write(chunk)
        with (
            damage(path),
            contextlib.closing(
                sqlite3.connect(f"{unpacked.as_uri()}?mode=ro", uri=True)
            ) as database,
        ):
            if not {row[1] for row in database.execute("PRAGMA table_info(examples)")} >= COLUMNS:
                raise FormatError(
                    f"{path} is not in TensorFlow Federated's form: it has no table "
                    "examples(split_name, client_id, serialized_example_proto)."
                )
            return {split: read(database, split) for split in splits}


def as_name(client: bytes | str) -> str:
    """Take a name in a database as text."""
    return client.decode("ascii", "replace") if isinstance(client, bytes) else str(client)


def parse_example(record: bytes) -> dict[str, list[bytes] | np.ndarray]:
    """Read a serialized Example.

    Returns:
        Its features by name: a list of bytes, float32 [n] or int64 [n].

    Raises:
        FormatError: the bytes are no Example.
    """
    found: dict[str, list[bytes] | np.ndarray] = {}
    try:
        for features in _contents(record):
            for entry in _contents(features):
                parts = dict(_fields(entry))
                found[parts[1].decode()] = _value(parts.get(2, b""))
    except (IndexError, KeyError, ValueError) as error:
        raise FormatError(f"a record of {len(record):,} bytes is no Example: {error}") from error
    return found


def _contents(data: bytes) -> list[bytes]:
    """List the contents of all fields with the number 1."""
    return [content for number, content in _fields(data) if number == 1]


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of each field."""
    place = 0
    while place < len(data):
        tag, start = _varint(data, place)
        wire = tag & 7
        place = start
        if wire == DELIMITED:
            length, start = _varint(data, place)
            place = start + length
        elif wire == WORD:
            _, place = _varint(data, place)
        elif wire in FIXED:
            place += FIXED[wire]
        else:
            raise ValueError(f"a field of the wire type {wire}")
        if place > len(data):
            raise ValueError("a field is longer than its message")
        yield tag >> 3, data[start:place]


def _value(feature: bytes) -> list[bytes] | np.ndarray:
    for kind, values in _fields(feature):
        content = _contents(values)  # all numbers packed into one field, or one field for each
        if kind == 1:
            return content
        if kind in (2, 3):
            packed = b"".join(content)
            return np.frombuffer(packed, "<f4") if kind == 2 else _varints(packed)
    return []


def _varints(data: bytes) -> np.ndarray:
    """Read a row of numbers of seven bits a byte, int64."""
    groups = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(groups < 0x80)
    if not len(groups):
        return np.empty(0, np.int64)
    if not len(ends) or ends[-1] != len(groups) - 1:
        raise ValueError("a number is cut short")
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    if lengths.max() > 10:
        raise ValueError("a number of more than 64 bits")
    shifts = (7 * (np.arange(len(groups)) - np.repeat(starts, lengths))).astype(np.uint64)
    return np.add.reduceat((groups & np.uint8(0x7F)).astype(np.uint64) << shifts, starts).view(
        np.int64
    )


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Read a number of seven bits a byte, lowest first, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place = place + 1
        shift = shift + 7
        if byte < 0x80:
            return value, place
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
