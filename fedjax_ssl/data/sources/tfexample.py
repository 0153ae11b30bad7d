"""Records of TensorFlow without TensorFlow: the TFRecord file and the Example message.

A TFRecord file is a row of records, each a length (8 bytes, little-endian), its check (4), the content, its check (4).
An Example is three nested protocol buffers: features { feature { key, value } }, where a value is a list of bytes (1),
floats (2) or whole numbers (3).
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedjax_ssl.data.sources.formats import FormatError

Value = list[bytes] | np.ndarray  # bytes, float32 [n] or int64 [n]
LARGEST_RECORD = 1 << 30
_WORD, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5  # wire types


def read_tfrecord(path: Path) -> Iterator[bytes]:
    """The records of a file, one after another; the checks beside them are not computed.

    Raises:
        FormatError: the file ends inside a record, or states a length of more than 1 GiB.
    """
    with open(path, "rb") as file:
        while head := file.read(12):
            length = int.from_bytes(head[:8], "little")
            if len(head) < 12 or length > LARGEST_RECORD:
                raise FormatError(f"{path} is no TFRecord file, or cut short: a record of {length:,} bytes.")
            content = file.read(length + 4)
            if len(content) < length + 4:
                raise FormatError(f"{path} is cut short: its last record has {len(content):,} of {length:,} bytes.")
            yield content[:length]


def parse_example(record: bytes) -> dict[str, Value]:
    """The features of a serialized Example by name.

    Raises:
        FormatError: the bytes are no Example.
    """
    found: dict[str, Value] = {}
    try:
        for _, features in _messages(record, 1):
            for _, entry in _messages(features, 1):
                parts = dict(_messages(entry, None))
                found[parts[1].decode()] = _value(parts.get(2, b""))
    except (IndexError, KeyError, ValueError) as error:
        raise FormatError(f"a record of {len(record):,} bytes is no Example: {error}") from error
    return found


def _messages(data: bytes, wanted: int | None) -> Iterator[tuple[int, bytes]]:
    """Number and content of the fields that have a length; of one number, or all."""
    place, end = 0, len(data)
    while place < end:
        tag, place = _varint(data, place)
        number, wire = tag >> 3, tag & 7
        if wire == _DELIMITED:
            length, place = _varint(data, place)
            if place + length > end:
                raise ValueError("a field is longer than its message")
            if wanted is None or number == wanted:
                yield number, data[place : place + length]
            place += length
        elif wire == _WORD:
            _, place = _varint(data, place)
        elif wire in (_FIXED32, _FIXED64):
            place += 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"a field of the wire type {wire}")


def _value(feature: bytes) -> Value:
    for kind, values in _messages(feature, None):
        if kind == 1:
            return [content for _, content in _messages(values, 1)]
        if kind == 2:
            return _floats(values)
        if kind == 3:
            return _integers(values)
    return []


def _floats(data: bytes) -> np.ndarray:
    packed = [content for _, content in _messages(data, 1)]
    if packed:
        return np.frombuffer(b"".join(packed), "<f4")
    # One by one: a tag of one byte before each number.
    return np.frombuffer(np.frombuffer(data, np.uint8).reshape(-1, 5)[:, 1:].tobytes(), "<f4")


def _integers(data: bytes) -> np.ndarray:
    packed = [content for _, content in _messages(data, 1)]
    values, content, step = [], b"".join(packed) if packed else data, 0 if packed else 1
    place = 0
    while place < len(content):
        value, place = _varint(content, place + step)  # one by one: a tag of one byte before each number
        values.append(value - (1 << 64) if value >> 63 else value)
    return np.array(values, np.int64)


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """A number of seven bits a byte, lowest first, and the place behind it."""
    value = data[place]
    if value < 0x80:
        return value, place + 1
    value, shift = value & 0x7F, 7
    while True:
        place += 1
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
