"""Oblivious transfer: a receiver gets one of two pads per transfer, and the sender does not learn which.

128 base transfers by public keys are extended to any number by symmetric ones. Secure against parties that follow the
protocol; a receiver that does not needs the consistency check of Keller, Orsini and Scholl (2015), which is not here.

References:
    Chou, Orlandi, The simplest protocol for oblivious transfer, Latincrypt 2015: base transfers.
    Ishai, Kilian, Nissim, Petrank, Extending oblivious transfers efficiently, CRYPTO 2003: the extension.
"""

import secrets

import numpy as np

from fedjax_ssl.secure import messages
from fedjax_ssl.secure.errors import MalformedMessage
from fedjax_ssl.secure.primitives import BLOCK_BYTES, BitStream, BlockHash, Group

WIDTH = 128  # base transfers
_PURPOSE = b"base oblivious transfer"


class BaseSender:
    """Has two seeds per base transfer. Args: context that both parties know, and that no other pair has."""

    def __init__(self, context: bytes, peer: int):
        self._context, self._peer, self._group = context, peer, Group()
        self._secret = self._group.scalar()
        self.point = self._group.base(self._secret)

    def seeds(self, choices: np.ndarray) -> list[tuple[bytes, bytes]]:
        """Both seeds of every base transfer, from the receiver's hidden choices uint8 [128, 32].

        Raises:
            BadKey: a choice is not an element of the group.
        """
        if choices.shape != (WIDTH, len(self.point)):
            raise MalformedMessage(f"base choices of shape {choices.shape}", self._peer)
        pairs = []
        for number, row in enumerate(choices):
            choice = row.tobytes()
            self._group.check(choice, self._peer)
            shifted = self._group.subtract(choice, self.point)
            pair = (self._group.multiply(self._secret, some) for some in (choice, shifted))
            zero, one = (_seed(self._context, number, self.point, choice, shared) for shared in pair)
            pairs.append((zero, one))
        return pairs


class BaseReceiver:
    """Chooses one seed per base transfer."""

    def __init__(self, context: bytes, peer: int, point: bytes):
        """Args: as `BaseSender`, and the sender's point. Raises BadKey if that is no element of the group."""
        group = Group()
        group.check(point, peer)
        self.choices = np.unpackbits(np.frombuffer(secrets.token_bytes(WIDTH // 8), np.uint8), bitorder="little")
        self.seeds: list[bytes] = []
        hidden = []
        for number, choice in enumerate(self.choices.tolist()):
            scalar = group.scalar()
            plain = group.base(scalar)
            point_of = (plain, group.add(plain, point))[choice]
            hidden.append(point_of)
            self.seeds.append(_seed(context, number, point, point_of, group.multiply(scalar, point)))
        self.hidden = np.frombuffer(b"".join(hidden), np.uint8).reshape(WIDTH, -1)


def _seed(context: bytes, number: int, sender: bytes, receiver: bytes, shared: bytes) -> bytes:
    return messages.digest(_PURPOSE, context, number.to_bytes(2, "little"), sender, receiver, shared)[:BLOCK_BYTES]


class ExtensionReceiver:
    """Chooses among extended transfers. Args: the two seeds of every base transfer, in which it was the sender."""

    def __init__(self, seeds: list[tuple[bytes, bytes]]):
        self._streams = [(BitStream(zero), BitStream(one)) for zero, one in seeds]
        self._hash, self._done = BlockHash(), 0

    def extend(self, choices: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
        """More transfers; streams and numbers go on from those before.

        Args:
            choices: uint8 [m] of 0 and 1, m a multiple of 8.

        Returns:
            (number of the first, columns for the sender uint8 [128, m / 8], rows uint64 [m, 2] for `pads`).
        """
        first, width = self._done, len(choices) // 8
        self._done += len(choices)
        kept, columns = np.empty((WIDTH, width), np.uint8), np.empty((WIDTH, width), np.uint8)
        zeros = np.zeros(width, np.uint8)
        for (zero, one), own, sent in zip(self._streams, kept, columns, strict=True):
            zero.fill(own, zeros)
            one.fill(sent, zeros)
        columns ^= kept
        columns ^= np.packbits(choices, bitorder="little")
        return first, columns, transpose_bits(kept)

    def pads(self, rows: np.ndarray, first: int, num_blocks: int) -> np.ndarray:
        """The pad of every choice, uint64 [m, num_blocks, 2]."""
        return self._hash.expand(rows, first, num_blocks)


class ExtensionSender:
    """Has both pads. Args: its choices uint8 [128] in the base transfers, and the seeds that it got."""

    def __init__(self, choices: np.ndarray, seeds: list[bytes]):
        self._choices, self._streams = choices, [BitStream(seed) for seed in seeds]
        self._hash, self._done = BlockHash(), 0
        self._correlation = np.packbits(choices, bitorder="little").view(np.uint64)

    def extend(self, first: int, columns: np.ndarray, peer: int) -> np.ndarray:
        """Rows uint64 [m, 2] for `pads`.

        Raises:
            MalformedMessage: columns that do not follow on those before, so that a stream would come twice.
        """
        if columns.shape[0] != WIDTH or first != self._done:
            raise MalformedMessage(f"columns {columns.shape} from {first} on; {self._done} is next", peer)
        width = columns.shape[1]
        self._done += 8 * width
        rows, zeros = np.empty((WIDTH, width), np.uint8), np.zeros(width, np.uint8)
        for stream, row in zip(self._streams, rows, strict=True):
            stream.fill(row, zeros)
        rows ^= columns * self._choices[:, None]
        return transpose_bits(rows)

    def pads(self, rows: np.ndarray, first: int, num_blocks: int) -> tuple[np.ndarray, np.ndarray]:
        """The pads of choice 0 and of choice 1, each uint64 [m, num_blocks, 2]."""
        zero = self._hash.expand(rows, first, num_blocks)
        return zero, self._hash.expand(rows ^ self._correlation, first, num_blocks)


def transpose_bits(columns: np.ndarray) -> np.ndarray:
    """Bits of 128 columns -> rows of 16 bytes.

    Args:
        columns: uint8 [128, k]; bit j % 8 of byte j // 8 belongs to row j.

    Returns:
        uint64 [8 k, 2], little-endian.
    """
    width = columns.shape[1]
    blocks = np.ascontiguousarray(columns.reshape(16, 8, width).transpose(2, 0, 1)).view(np.uint64)[..., 0]
    # Three exchanges transpose the 8 x 8 bits of every word (Warren, Hacker's Delight, 7-3).
    for shift, mask in ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0)):
        moved = (blocks ^ (blocks >> np.uint64(shift))) & np.uint64(mask)
        blocks ^= moved ^ (moved << np.uint64(shift))
    rows = blocks.view(np.uint8).reshape(width, 16, 8).transpose(0, 2, 1)
    return np.ascontiguousarray(rows).reshape(8 * width, 16).view(np.uint64)
