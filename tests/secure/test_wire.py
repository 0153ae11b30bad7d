"""The wire format: every message comes back as it was, and no bytes do anything but give a
message or a typed error.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedjax_ssl.secure import MalformedMessage, ProtocolError, wire
from fedjax_ssl.secure.wire import MESSAGES, Blob, Header, Whole, decode, encode, kind_of
from tests.secure import parties

FEW = settings(max_examples=8, deadline=None, derandomize=True, database=None)
MANY = settings(max_examples=100, deadline=None, database=None)


def fields_of(message):
    return wire.layout_of(message)


def instances(message):
    """Messages of a type, with arrays of any allowed type and small shape."""

    def value(field):
        if isinstance(field, Blob):
            return st.binary(min_size=field.length, max_size=field.length)
        if isinstance(field, Whole):
            return st.integers(0, 2**64 - 1)
        shapes = st.lists(st.integers(0, 5), min_size=field.axes, max_size=field.axes).map(tuple)
        return st.sampled_from(field.dtypes).flatmap(lambda dtype: arrays.arrays(dtype, shapes))

    return st.tuples(*map(value, fields_of(message))).map(lambda values: message(*values))


def same(one, other):
    """Equal types, shapes and bits; NaN is NaN."""
    assert type(one) is type(other)
    for mine, yours in zip(one, other, strict=True):
        if isinstance(mine, np.ndarray):
            assert (
                mine.dtype == yours.dtype
                and mine.shape == yours.shape
                and mine.tobytes() == yours.tobytes()
            )
        else:
            assert mine == yours


def check_round_trip(data, message):
    given_message = data.draw(instances(message))
    body = encode(given_message)
    found = decode(kind_of(message), body, 3)
    same(found, given_message)
    shapes = [
        (some.dtype.itemsize, some.shape) for some in given_message if isinstance(some, np.ndarray)
    ]
    sealed = wire.is_sealed(kind_of(message))
    assert wire.wire_bytes(message, *shapes) == wire.HEADER_BYTES + len(body) + 16 * sealed
    assert all(
        not some.flags.writeable for some in found if isinstance(some, np.ndarray) and some.size
    )


def check_mutation(data, message):
    """Bytes cut off, added, changed, or taken for another kind: a typed error that names the
    sender, or a message.
    """
    body = bytearray(encode(data.draw(instances(message))))
    for _ in range(data.draw(st.integers(0, 3))):
        if body:
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    body = bytes(body[: data.draw(st.integers(0, len(body)))]) + data.draw(st.binary(max_size=9))
    kind = data.draw(st.integers(1, len(MESSAGES)))
    try:
        found = decode(kind, body, 3)
    except MalformedMessage as error:
        assert error.sender == 3 and "client 3" in str(error)
    else:
        assert encode(found) == body


@pytest.mark.parametrize("message", MESSAGES)
@FEW
@given(data=st.data())
def test_messages_come_back(message, data):
    check_round_trip(data, message)


@pytest.mark.parametrize("message", MESSAGES)
@FEW
@given(data=st.data())
def test_mutated_messages(message, data):
    check_mutation(data, message)


@FEW
@given(data=st.binary(max_size=200))
def test_any_bytes_are_refused(data):
    with pytest.raises(MalformedMessage):
        wire.unpack_header(data)


def header_of(length, **changes):
    header = Header(kind_of(wire.MaskedRows), parties.RUN, 1, 0, 2, -1, 0)._replace(**changes)
    return wire.pack_header(header, length)


@pytest.mark.parametrize("length", [10 * 2**30, 2**64 - 1, 0, 3])
def test_a_claimed_length_is_not_believed(length):
    with pytest.raises(
        MalformedMessage, match=rf"claims {length} bytes and has 4 \(from client 2\)"
    ):
        wire.unpack_header(header_of(length) + b"1234")


@pytest.mark.parametrize("shape", [(2**32 - 1, 2**32 - 1), (2**20, 2560), (0, 2**32 - 1), (1, 3)])
def test_a_claimed_shape_is_not_believed(shape):
    """10 GB in 9 bytes: refused before there is an array."""
    body = b"\x02" + b"".join(axis.to_bytes(4, "little") for axis in shape)
    with pytest.raises(MalformedMessage, match="client 2"):
        decode(kind_of(wire.MaskedRows), body, 2)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda data: b"PCLX" + data[4:], "no message of this protocol"),
        (
            lambda data: data[:4] + b"\x02" + data[5:],
            r"version 2; this is version 1 \(from client 2\)",
        ),
        (lambda data: data[:5] + b"\xff" + data[6:], "unknown kind 255"),
        (lambda data: data[:5] + b"\x00" + data[6:], "unknown kind 0"),
        (lambda data: data[:20], "20 bytes are no message"),
    ],
)
def test_another_header_is_refused(change, message):
    with pytest.raises(MalformedMessage, match=message):
        wire.unpack_header(change(header_of(0)))


@pytest.mark.parametrize(
    "message",
    [
        wire.MaskedRows(np.zeros((2, 3))),
        wire.MaskedRows(np.zeros(3, np.uint32)),
        wire.Seed(b"short"),
    ],
)
def test_what_is_no_message_is_not_sent(message):
    with pytest.raises(ProtocolError):
        encode(message)
