"""The wire format: a header of fixed size, and a body of typed fields whose lengths are checked
first.

Numbers are little-endian. A message of another version, kind or length is refused with
`MalformedMessage`, even for a single byte too few or too many. Decoding makes views of the bytes,
never copies, and runs no code.
"""

import hashlib
import math
import struct
from typing import Annotated, Any, NamedTuple, get_type_hints

import numpy as np

from fedjax_ssl.secure.primitives import (
    KEY_BYTES,
    POINT_BYTES,
    SHARE_BYTES,
    SIGNATURE_BYTES,
    TAG_BYTES,
)
from fedjax_ssl.secure.protocol_errors import MalformedMessage

VERSION = 1
_MAGIC = b"XCLP"
_HEADER = struct.Struct("<4sBBH16sIIiiQQ")
HEADER_BYTES = _HEADER.size
RUN_BYTES = 16


class Header(NamedTuple):
    """Address of a message, authenticated together with the body."""

    kind: int  # kind of the message
    run: bytes  # 16 random bytes
    round: int
    attempt: int
    sender: int
    receiver: int
    sequence: int  # number among the messages from this sender to this receiver


class Blob(NamedTuple):
    """A field of `length` bytes."""

    length: int


class Whole(NamedTuple):
    """A field that is a whole number below 2^64."""


class Numbers(NamedTuple):
    """A field that is an array, with its allowed types and its number of axes."""

    dtypes: tuple[type, ...]
    axes: int


_DTYPES: tuple[type, ...] = (np.uint8, np.uint16, np.uint32, np.uint64, np.float32, np.float64)

# Types of fields, by which they are written and read.
_Key = Annotated[bytes, Blob(KEY_BYTES)]
_Signature = Annotated[bytes, Blob(SIGNATURE_BYTES)]
_Share = Annotated[bytes, Blob(SHARE_BYTES)]
_Point = Annotated[bytes, Blob(POINT_BYTES)]
_Number = Annotated[int, Whole()]
_Ids = Annotated[np.ndarray, Numbers((np.uint32,), 1)]
_Counts = Annotated[np.ndarray, Numbers((np.uint64,), 1)]
_Bytes1 = Annotated[np.ndarray, Numbers((np.uint8,), 1)]
_Bytes2 = Annotated[np.ndarray, Numbers((np.uint8,), 2)]
_Bytes3 = Annotated[np.ndarray, Numbers((np.uint8,), 3)]
_Ring = Annotated[np.ndarray, Numbers((np.uint8, np.uint16, np.uint32), 2)]
_Sums = Annotated[np.ndarray, Numbers((np.uint32, np.uint64), 2)]
_Reals = Annotated[np.ndarray, Numbers((np.float32, np.float64), 2)]


class SessionKey(NamedTuple):
    """Client -> server: its identity, a fresh key and its number of points, signed."""

    identity: _Key
    public: _Key
    num_points: _Number
    signature: _Signature


class Roster(NamedTuple):
    """Server -> client: all session keys, the server's own last; `first` has the clients' first
    rows.
    """

    clients: _Ids  # uint32 [C]
    num_points: _Counts  # uint64 [C]
    first: _Counts  # uint64 [C]
    identities: _Bytes2  # uint8 [C + 1, 32]
    publics: _Bytes2  # uint8 [C + 1, 32]
    signatures: _Bytes2  # uint8 [C + 1, 64]


class Seed(NamedTuple):
    """First client -> every other client: the seed of the random hyperplanes."""

    seed: _Key


class OwnDistances(NamedTuple):
    """Client -> server: the distances between its own points."""

    distances: _Ring  # uint8, uint16 or uint32 [n, n]


class BasePoint(NamedTuple):
    """Receiver -> sender: the first message of the base oblivious transfers."""

    point: _Point


class BaseChoices(NamedTuple):
    """Sender -> receiver: its choices among the base oblivious transfers, hidden."""

    points: _Bytes2  # uint8 [128, 32]


class OtColumns(NamedTuple):
    """Receiver -> sender: columns of the extension, which hide the receiver's bits."""

    first: _Number  # number of the first transfer
    columns: _Bytes2  # uint8 [128, bytes]


class Corrections(NamedTuple):
    """Sender -> receiver: for every transfer, the second message minus the pads."""

    first: _Number
    values: _Ring  # uint8, uint16 or uint32 [transfers, points]


class DistanceShare(NamedTuple):
    """Client -> server: its half of the distances to another client's points."""

    peer: _Number
    values: _Ring  # uint8, uint16 or uint32 [n, m]


class EncryptedBits(NamedTuple):
    """Key owner -> other client: the key, and every bit of its points, packed and encrypted."""

    modulus: _Bytes1  # uint8 [bytes], little-endian
    num_points: _Number
    ciphertexts: _Bytes3  # uint8 [L, blocks, 2 * bytes]


class EncryptedDistances(NamedTuple):
    """Other client -> key owner: distances of its points, packed, masked and re-randomized."""

    ciphertexts: _Bytes3  # uint8 [points, blocks, 2 * bytes]


class PackedShare(NamedTuple):
    """Client -> server: masked plaintexts of the key owner, or masks of the other client."""

    peer: _Number
    modulus: _Bytes1  # uint8 [bytes]
    values: _Bytes3  # uint8 [points, blocks, bytes]


class Columns(NamedTuple):
    """Server -> client: the columns of S for its labelled points, and the digests of all clients'
    columns.
    """

    columns: _Reals  # float32 or float64 [n, labelled]
    digests: _Bytes2  # uint8 [C, 32]


class SumStart(NamedTuple):
    """Server -> client: a sum begins."""

    num_classes: _Number
    modulus_bits: _Number  # 32 or 64


class MaskKey(NamedTuple):
    """Client -> server: a fresh key for the masks of this attempt, its rows, and the facts it got,
    signed.
    """

    public: _Key
    num_rows: _Number
    told: _Key  # digest of the facts that the server sent it
    signature: _Signature


class MaskKeys(NamedTuple):
    """Server -> client: the mask keys of all clients in this attempt."""

    clients: _Ids  # uint32 [C]
    publics: _Bytes2  # uint8 [C, 32]
    num_rows: _Counts  # uint64 [C]
    first: _Counts  # uint64 [C]
    told: _Bytes2  # uint8 [C, 32]
    signatures: _Bytes2  # uint8 [C, 64]


class MaskedRows(NamedTuple):
    """Client -> server: its masked part of the other clients' rows and check rows."""

    rows: _Sums  # uint32 or uint64 [rows, K]


class RowTotals(NamedTuple):
    """Server -> client: the masked sums of its rows, and of its check row."""

    rows: _Sums  # uint32 or uint64 [rows + 1, K]


class KeyShare(NamedTuple):
    """Client -> client with recovery: a Shamir share of the sender's mask key."""

    share: _Share


class RecoveryRequest(NamedTuple):
    """Server -> client with recovery: clients that are gone, and clients whose rows arrived."""

    gone: _Ids  # uint32
    uploaded: _Ids  # uint32


class Recovery(NamedTuple):
    """Client -> server with recovery: its own masks for the others' rows, and its shares of the
    gone clients' keys.
    """

    seeds: _Bytes2  # uint8 [uploaded, 32], zeros in its own place
    shares: _Bytes2  # uint8 [gone, 33]


_SIGNED = (SessionKey, Roster)  # sent in clear; all others are sealed
# A message's kind on the wire is its place in this list, from 1 on.
MESSAGES: tuple[type, ...] = (
    SessionKey,
    Roster,
    Seed,
    OwnDistances,
    BasePoint,
    BaseChoices,
    OtColumns,
    Corrections,
    DistanceShare,
    EncryptedBits,
    EncryptedDistances,
    PackedShare,
    Columns,
    SumStart,
    MaskKey,
    MaskKeys,
    MaskedRows,
    RowTotals,
    KeyShare,
    RecoveryRequest,
    Recovery,
)
_LAYOUTS = {
    message: tuple(
        hint.__metadata__[0] for hint in get_type_hints(message, include_extras=True).values()
    )
    for message in MESSAGES
}
_KINDS = {message: kind for kind, message in enumerate(MESSAGES, 1)}
_MOST_EMPTY = 2**20  # bound of an axis of an array without elements
_COUNT = struct.Struct("<Q")
_ARRAY = struct.Struct("<B")
_AXIS = struct.Struct("<I")


def kind_of(message: type) -> int:
    """Return the number of a message type on the wire."""
    return _KINDS[message]


def layout_of(message: type) -> tuple[Blob | Whole | Numbers, ...]:
    """Return the types of a message's fields."""
    return _LAYOUTS[message]


def is_sealed(kind: int) -> bool:
    """Return whether messages of this kind are encrypted; the others are signed."""
    return MESSAGES[kind - 1] not in _SIGNED


def pack_header(header: Header, body_bytes: int) -> bytes:
    """Return the header of a message; `body_bytes` counts the tag of a sealed one."""
    _, run, *numbers = header
    return _HEADER.pack(_MAGIC, VERSION, header.kind, 0, run, *numbers, body_bytes)


def unpack_header(data: bytes) -> tuple[Header, memoryview, memoryview]:
    """Return (header, its bytes, the bytes of the body).

    Raises:
        MalformedMessage: not a message of this version, or not of the length in its header.
    """
    view = memoryview(data)
    if len(view) < HEADER_BYTES:
        raise MalformedMessage(
            f"{len(view)} bytes are no message; the header alone has {HEADER_BYTES}"
        )
    magic, version, kind, reserved, run, round, attempt, sender, receiver, sequence, length = (
        _HEADER.unpack_from(view)
    )
    if magic != _MAGIC or reserved:
        raise MalformedMessage("bytes that are no message of this protocol")
    if version != VERSION:
        raise MalformedMessage(f"a message of version {version}; this is version {VERSION}", sender)
    if not 1 <= kind <= len(MESSAGES):
        raise MalformedMessage(f"a message of the unknown kind {kind}", sender)
    if length != len(view) - HEADER_BYTES:
        raise MalformedMessage(
            f"a message claims {length} bytes and has {len(view) - HEADER_BYTES}", sender
        )
    header = Header(kind, bytes(run), round, attempt, sender, receiver, sequence)
    return header, view[:HEADER_BYTES], view[HEADER_BYTES:]


def encode(message: Any) -> bytes:
    """Return the body of a message."""
    parts: list[Any] = []
    for field, value in zip(layout_of(type(message)), message, strict=True):
        if isinstance(field, Blob):
            if len(value) != field.length:
                raise MalformedMessage(
                    f"a field of {len(value)} bytes; it must have {field.length}"
                )
            parts.append(bytes(value))
        elif isinstance(field, Whole):
            parts.append(_COUNT.pack(value))
        else:
            if value.dtype.type not in field.dtypes or value.ndim != field.axes:
                raise MalformedMessage(
                    f"an array of {value.dtype} with {value.ndim} axes; allowed: {field}"
                )
            code = _ARRAY.pack(_DTYPES.index(value.dtype.type))
            parts += [code, *map(_AXIS.pack, value.shape)]
            parts.append(np.ascontiguousarray(value, value.dtype.newbyteorder("<")).tobytes())
    return b"".join(parts)


def decode(kind: int, body: bytes | memoryview, sender: int) -> Any:
    """Return the message that a body holds; arrays are read-only views of it.

    Raises:
        MalformedMessage: naming the sender.
    """
    message = MESSAGES[kind - 1]
    view = memoryview(body)
    place = 0
    values: list[Any] = []

    def take(length: int) -> memoryview:
        nonlocal place
        if length > len(view) - place:
            raise MalformedMessage(
                f"a field of {message.__name__} claims {length} bytes of {len(view) - place}",
                sender,
            )
        place += length
        return view[place - length : place]

    for field in layout_of(message):
        if isinstance(field, Blob):
            values.append(bytes(take(field.length)))
        elif isinstance(field, Whole):
            values.append(_COUNT.unpack(take(_COUNT.size))[0])
        else:
            code = _ARRAY.unpack(take(_ARRAY.size))[0]
            if code >= len(_DTYPES) or _DTYPES[code] not in field.dtypes:
                raise MalformedMessage(
                    f"an array of {message.__name__} has a type that is not allowed", sender
                )
            dtype = np.dtype(_DTYPES[code]).newbyteorder("<")
            shape = [_AXIS.unpack(take(_AXIS.size))[0] for _ in range(field.axes)]
            data = take(math.prod(shape) * dtype.itemsize)
            if not data and max(shape) > _MOST_EMPTY:
                raise MalformedMessage(
                    f"an empty array of {message.__name__} claims the shape {shape}", sender
                )
            values.append(
                np.frombuffer(data, dtype).reshape(shape) if data else np.empty(shape, dtype)
            )
    if place != len(view):
        raise MalformedMessage(
            f"{len(view) - place} bytes too many behind {message.__name__}", sender
        )
    return message(*values)


def check_array(
    what: str, values: np.ndarray, shape: tuple[int, ...], dtype: Any, sender: int
) -> None:
    """Raise MalformedMessage for an array of an unexpected shape or type."""
    if values.shape != shape or values.dtype != dtype:
        raise MalformedMessage(
            f"{what} of shape {values.shape}, {values.dtype}; due: {shape}, {np.dtype(dtype)}",
            sender,
        )


def wire_bytes(message: type, *shapes: tuple[int, tuple[int, ...]] | int) -> int:
    """Count the bytes of a message on the wire, header and seal included, without making it.

    Args:
        message: type of the message.
        *shapes: for every array in it (bytes per number, shape).
    """
    total = HEADER_BYTES + TAG_BYTES * (message not in _SIGNED)
    arrays = iter(shapes)
    for field in layout_of(message):
        if isinstance(field, Blob):
            total += field.length
        elif isinstance(field, Whole):
            total += _COUNT.size
        else:
            itemsize, shape = next(arrays)  # type: ignore[misc]
            total += _ARRAY.size + _AXIS.size * field.axes + itemsize * math.prod(shape)
    return total


def digest(*parts: bytes) -> bytes:
    """Return the SHA-256 of parts, each with its length."""
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(_COUNT.pack(len(part)))
        hasher.update(part)
    return hasher.digest()
