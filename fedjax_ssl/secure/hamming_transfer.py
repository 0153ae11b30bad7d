"""SecureHamming by oblivious transfer: all distances between two clients' points, revealed to the
server alone.

In an oblivious transfer a receiver gets one of two pads, and the sender does not learn which. 128
base transfers by public-key operations are extended to any number by symmetric ones. This is secure
against parties that follow the protocol; against others it would need the consistency check of
Keller, Orsini and Scholl (2015), which is not implemented.

The receiver chooses with every bit of every point u; the sender offers, for all its points v at
once, the vectors r + v_l and r + 1 - v_l. The receiver gets t = r + (u_l xor v_l). Summed over the
bits, t at one client and r at the other are each uniform, and their difference is the distance. In
correlated transfers r is the pad of choice 0, so only one vector per transfer is sent.

References:
    Chou, Orlandi, The simplest protocol for oblivious transfer, Latincrypt 2015: base transfers.
    Ishai, Kilian, Nissim, Petrank, Extending oblivious transfers efficiently, CRYPTO 2003: the
    extension. Bringer, Chabanne, Patey, SHADE: secure Hamming distance computation from oblivious
    transfer, 2013. Scott, Yeo, Lampert, 2023: appendix, SecureHamming.
"""

import secrets
from collections.abc import Iterator

import numpy as np

from fedjax_ssl.secure import wire
from fedjax_ssl.secure.distances import PairServer, bits_of, ring
from fedjax_ssl.secure.network import Endpoint, Machine, Outgoing, not_due
from fedjax_ssl.secure.primitives import BLOCK_BYTES, BitStream, BlockHash, Group
from fedjax_ssl.secure.protocol_errors import SERVER, MalformedMessage
from fedjax_ssl.secure.wire import BaseChoices, BasePoint, Corrections, DistanceShare, OtColumns

WIDTH = 128  # base transfers
_PURPOSE = b"base oblivious transfer"


class BaseSender:
    """Sender of the base transfers, with two seeds for each. Args: a context that both parties know
    and no other pair has.
    """

    def __init__(self, context: bytes, peer: int):
        self._context = context
        self._peer = peer
        self._group = Group()
        self._secret = self._group.scalar()
        self.point = self._group.base(self._secret)

    def seeds(self, choices: np.ndarray) -> list[tuple[bytes, bytes]]:
        """Return both seeds of every base transfer, from the receiver's hidden choices uint8 [128,
        32].

        Raises:
            BadKey: a choice is not an element of the group.
        """
        due = (WIDTH, len(self.point))
        wire.check_array("base choices", choices, due, np.uint8, self._peer)
        pairs = []
        for number, row in enumerate(choices):
            choice = row.tobytes()
            self._group.check(choice, self._peer)
            shifted = self._group.subtract(choice, self.point)
            zero, one = (
                _seed(self._context, number, self.point, choice, shared)
                for shared in (
                    self._group.multiply(self._secret, choice),
                    self._group.multiply(self._secret, shifted),
                )
            )
            pairs.append((zero, one))
        return pairs


class BaseReceiver:
    """Receiver of the base transfers, which chooses one seed for each."""

    def __init__(self, context: bytes, peer: int, point: bytes):
        """Args: as `BaseSender`, and the sender's point. Raise BadKey if the point is not in the
        group.
        """
        group = Group()
        group.check(point, peer)
        self.choices = np.unpackbits(
            np.frombuffer(secrets.token_bytes(WIDTH // 8), np.uint8), bitorder="little"
        )
        self.seeds: list[bytes] = []
        hidden = []
        for number, choice in enumerate(self.choices.tolist()):
            scalar = group.scalar()
            plain = group.base(scalar)
            point_of = (plain, group.add(plain, point))[choice]
            hidden.append(point_of)
            self.seeds.append(
                _seed(context, number, point, point_of, group.multiply(scalar, point))
            )
        self.hidden = np.frombuffer(b"".join(hidden), np.uint8).reshape(WIDTH, -1)


def _seed(context: bytes, number: int, sender: bytes, receiver: bytes, shared: bytes) -> bytes:
    return wire.digest(_PURPOSE, context, number.to_bytes(2, "little"), sender, receiver, shared)[
        :BLOCK_BYTES
    ]


class ExtensionReceiver:
    """Receiver of extended transfers. Args: the two seeds of every base transfer, in which it was
    the sender.
    """

    def __init__(self, seeds: list[tuple[bytes, bytes]]):
        self._streams = [(BitStream(zero), BitStream(one)) for zero, one in seeds]
        self._hash = BlockHash()
        self._done = 0

    def extend(self, choices: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
        """Make further transfers; streams and numbers continue from earlier ones.

        Args:
            choices: uint8 [m] of 0 and 1, m a multiple of 8.

        Returns:
            (number of the first, columns for the sender uint8 [128, m / 8], rows uint64 [m, 2] for
            `pads`).
        """
        first = self._done
        width = len(choices) // 8
        self._done += len(choices)
        kept = np.empty((WIDTH, width), np.uint8)
        columns = np.empty((WIDTH, width), np.uint8)
        zeros = np.zeros(width, np.uint8)
        for (zero, one), own, sent in zip(self._streams, kept, columns, strict=True):
            zero.fill(own, zeros)
            one.fill(sent, zeros)
        columns ^= kept
        columns ^= np.packbits(choices, bitorder="little")
        return first, columns, transpose_bits(kept)

    def pads(self, rows: np.ndarray, first: int, num_blocks: int) -> np.ndarray:
        """Return the pad of every choice, uint64 [m, num_blocks, 2]."""
        return self._hash.expand(rows, first, num_blocks)


class ExtensionSender:
    """Sender of extended transfers, with both pads. Args: its choices uint8 [128] in the base
    transfers, and the seeds that it got.
    """

    def __init__(self, choices: np.ndarray, seeds: list[bytes]):
        self._choices = choices
        self._streams = [BitStream(seed) for seed in seeds]
        self._hash = BlockHash()
        self._done = 0
        self._correlation = np.packbits(choices, bitorder="little").view(np.uint64)

    def extend(self, first: int, columns: np.ndarray, peer: int) -> np.ndarray:
        """Return rows uint64 [m, 2] for `pads`.

        Raises:
            MalformedMessage: columns do not follow the earlier ones, so that a stream would repeat.
        """
        if columns.shape[0] != WIDTH or first != self._done:
            raise MalformedMessage(
                f"columns {columns.shape} from {first} on; {self._done} is next", peer
            )
        width = columns.shape[1]
        self._done += 8 * width
        rows = np.empty((WIDTH, width), np.uint8)
        zeros = np.zeros(width, np.uint8)
        for stream, row in zip(self._streams, rows, strict=True):
            stream.fill(row, zeros)
        rows ^= columns * self._choices[:, None]
        return transpose_bits(rows)

    def pads(self, rows: np.ndarray, first: int, num_blocks: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the pads of choice 0 and of choice 1, each uint64 [m, num_blocks, 2]."""
        zero = self._hash.expand(rows, first, num_blocks)
        return zero, self._hash.expand(rows ^ self._correlation, first, num_blocks)


def transpose_bits(columns: np.ndarray) -> np.ndarray:
    """Turn bits of 128 columns into rows of 16 bytes.

    Args:
        columns: uint8 [128, k]; bit j % 8 of byte j // 8 belongs to row j.

    Returns:
        uint64 [8 k, 2], little-endian.
    """
    width = columns.shape[1]
    blocks = np.ascontiguousarray(columns.reshape(16, 8, width).transpose(2, 0, 1)).view(np.uint64)[
        ..., 0
    ]
    # Three exchanges transpose the 8 x 8 bits of every word (Warren, Hacker's Delight, 7-3).
    for shift, mask in (
        (7, 0x00AA00AA00AA00AA),
        (14, 0x0000CCCC0000CCCC),
        (28, 0x00000000F0F0F0F0),
    ):
        moved = (blocks ^ (blocks >> np.uint64(shift))) & np.uint64(mask)
        blocks ^= moved ^ (moved << np.uint64(shift))
    rows = blocks.view(np.uint8).reshape(width, 16, 8).transpose(0, 2, 1)
    return np.ascontiguousarray(rows).reshape(8 * width, 16).view(np.uint64)


# Bytes of pads at once: bounds memory, and is fastest while they fit into the processor's cache.
_CHUNK_BYTES = 2**21


def chunks(num_chosen: int, num_offered: int, num_bits: int) -> Iterator[tuple[int, int]]:
    """Return the chunks of the receiver's points: (points, transfers) of every message, the same at
    both sides.
    """
    width = np.dtype(ring(num_bits)).itemsize * num_offered * num_bits
    step = max(1, _CHUNK_BYTES // max(width, 1))
    for start in range(0, num_chosen, step):
        points = min(step, num_chosen - start)
        yield points, -(-points * num_bits // 8) * 8


def _context(endpoint: Endpoint, receiver: int, sender: int) -> bytes:
    return endpoint.context(b"base transfers", receiver, sender) + endpoint.transcript


class TransferReceiver(Machine):
    """Client with fewer points.

    Args:
        endpoint: with a channel to the sender.
        peer: the sender.
        codes: uint32 [n, words] of its own points.
        num_offered: points of the sender, from the roster.
        num_bits: L.
    """

    def __init__(
        self, endpoint: Endpoint, peer: int, codes: np.ndarray, num_offered: int, num_bits: int
    ):
        super().__init__(endpoint)
        self._peer = peer
        self._dtype = ring(num_bits)
        self._bits = bits_of(codes, num_bits)
        self._num_offered = num_offered
        self._num_bits = num_bits
        self._base = BaseSender(_context(endpoint, endpoint.party, peer), peer)
        self._extension: ExtensionReceiver | None = None
        self._chunks = chunks(len(codes), num_offered, num_bits)
        # points, first transfer, choices, rows
        self._waiting: tuple[int, int, np.ndarray, np.ndarray] | None = None
        self._share: np.ndarray = np.zeros((len(codes), num_offered), self._dtype)
        self._done = 0

    def start(self) -> list[Outgoing]:
        """Return the first message of the base transfers."""
        return [self.endpoint.pack(self._peer, BasePoint(self._base.point))]

    def receive(self, data: bytes) -> list[Outgoing]:
        """Answer with choices of the base transfers, then with corrections chunk by chunk."""
        sender, message = self.endpoint.unpack(data)
        if sender == self._peer and isinstance(message, BaseChoices) and self._extension is None:
            self._extension = ExtensionReceiver(self._base.seeds(message.points))
            return self._ask()
        if sender == self._peer and isinstance(message, Corrections) and self._waiting is not None:
            self._take(message)
            return self._ask()
        raise not_due(sender)

    def _ask(self) -> list[Outgoing]:
        assert self._extension is not None
        points, transfers = next(self._chunks, (0, 0))
        if not points:
            self._waiting = None
            return [self.endpoint.pack(SERVER, DistanceShare(self._peer, self._share))]
        own = self._bits[self._done : self._done + points].reshape(-1)
        # Transfers come in whole bytes: the last ones may belong to no point.
        choices = np.pad(own, (0, transfers - len(own)))
        first, columns, rows = self._extension.extend(choices)
        self._waiting = points, first, own, rows[: len(own)]
        return [self.endpoint.pack(self._peer, OtColumns(first, columns))]

    def _take(self, message: Corrections) -> None:
        assert self._waiting is not None and self._extension is not None
        points, first, choices, rows = self._waiting
        shape = (len(choices), self._num_offered)
        wire.check_array("corrections", message.values, shape, self._dtype, self._peer)
        if message.first != first:
            raise MalformedMessage(f"corrections from {message.first} on; due: {first}", self._peer)
        pads = self._extension.pads(rows, first, _blocks(self._num_offered, self._dtype))
        values = _as_numbers(pads, self._num_offered, self._dtype)
        values += message.values * choices.astype(self._dtype)[:, None]
        self._share[self._done : self._done + points] = values.reshape(
            points, self._num_bits, -1
        ).sum(axis=1, dtype=self._dtype)
        self._done += points


class TransferSender(Machine):
    """Client with more points. Args: as `TransferReceiver`, with the receiver's number of
    points.
    """

    def __init__(
        self, endpoint: Endpoint, peer: int, codes: np.ndarray, num_chosen: int, num_bits: int
    ):
        super().__init__(endpoint)
        self._peer = peer
        self._dtype = ring(num_bits)
        # [L, n]
        self._by_bit: np.ndarray = np.ascontiguousarray(bits_of(codes, num_bits).T).astype(
            self._dtype
        )
        self._num_bits = num_bits
        self._extension: ExtensionSender | None = None
        self._plan = list(chunks(num_chosen, len(codes), num_bits))
        self._share: np.ndarray = np.zeros((num_chosen, len(codes)), self._dtype)
        self._done = 0

    def receive(self, data: bytes) -> list[Outgoing]:
        """Answer with the point of the base transfers, then with columns chunk by chunk."""
        sender, message = self.endpoint.unpack(data)
        if sender == self._peer and isinstance(message, BasePoint) and self._extension is None:
            context = _context(self.endpoint, self._peer, self.endpoint.party)
            base = BaseReceiver(context, self._peer, message.point)
            self._extension = ExtensionSender(base.choices, base.seeds)
            return [self.endpoint.pack(self._peer, BaseChoices(base.hidden))]
        if (
            sender == self._peer
            and isinstance(message, OtColumns)
            and self._extension is not None
            and self._plan
        ):
            return self._answer(message)
        raise not_due(sender)

    def _answer(self, message: OtColumns) -> list[Outgoing]:
        assert self._extension is not None
        points, transfers = self._plan[0]
        shape = (WIDTH, transfers // 8)
        wire.check_array("columns", message.columns, shape, np.uint8, self._peer)
        rows = self._extension.extend(message.first, message.columns, self._peer)[
            : points * self._num_bits
        ]
        del self._plan[0]
        num_offered = self._by_bit.shape[1]
        pads = self._extension.pads(rows, message.first, _blocks(num_offered, self._dtype))
        offered, other = (
            _as_numbers(pad, num_offered, self._dtype).reshape(points, self._num_bits, num_offered)
            for pad in pads
        )
        offered -= self._by_bit  # r
        self._share[self._done : self._done + points] = offered.sum(axis=1, dtype=self._dtype)
        self._done += points
        # The second message is r + 1 - v; the receiver knows the pad of choice 1.
        offered += 1 - self._by_bit
        offered -= other
        outgoing = [
            self.endpoint.pack(
                self._peer, Corrections(message.first, offered.reshape(-1, num_offered))
            )
        ]
        if not self._plan:
            outgoing.append(self.endpoint.pack(SERVER, DistanceShare(self._peer, self._share)))
        return outgoing


class TransferServer(PairServer):
    """Server that subtracts the sender's half from the receiver's."""

    def _check(self, message: DistanceShare, sender: int) -> None:
        dtype = ring(self._num_bits)
        wire.check_array("distances", message.values, self._shape, dtype, sender)

    def _put_together(self, first: DistanceShare, second: DistanceShare) -> np.ndarray:
        return first.values - second.values


def _blocks(num_offered: int, dtype: type) -> int:
    return -(-num_offered * np.dtype(dtype).itemsize // BLOCK_BYTES)


def _as_numbers(pads: np.ndarray, count: int, dtype: type) -> np.ndarray:
    """Turn a pad uint64 [m, blocks, 2] into numbers [m, count]."""
    return np.ascontiguousarray(pads.reshape(len(pads), -1).view(dtype)[:, :count])
