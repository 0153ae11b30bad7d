"""SecureHamming by Paillier's cryptosystem: least traffic, most time.

The key owner packs bit l of all its points u into one number, a slot of w bits for each point, and encrypts it. The
other client forms, for each of its points v, the packed sums over l of u_l + v_l - 2 u_l v_l under encryption, adds one
number R that is uniform modulo N, and re-randomizes. The owner decrypts a uniform number and passes it to the server,
which takes R away.

Re-randomizing is not optional: without it the owner, who made all ciphertexts, can test every guess of v.

References:
    Scott, Yeo, Lampert, 2023: appendix, SecureHamming by homomorphic encryption, there bit by bit.
"""

import secrets

import numpy as np

from fedjax_ssl.secure.bits import bits_of, check_distances
from fedjax_ssl.secure.endpoint import Endpoint, Outgoing
from fedjax_ssl.secure.errors import SERVER, MalformedMessage
from fedjax_ssl.secure.messages import EncryptedBits, EncryptedDistances, PackedShare
from fedjax_ssl.secure.paillier import PublicKey, SecretKey


def packing(num_points: int, num_bits: int, key_bits: int) -> tuple[int, int, int]:
    """(bits of a slot, slots of a plaintext, plaintexts for `num_points` points)."""
    width = num_bits.bit_length()
    slots = (key_bits - 1) // width
    return width, slots, -(-num_points // slots)


class PackedBits:
    """A client's points, encrypted once per session and sent to everybody whose distances it asks for.

    Args:
        codes: uint32 [n, words].
        num_bits: L.
        key_bits: of the modulus.
    """

    def __init__(self, codes: np.ndarray, num_bits: int, key_bits: int = 2048):
        self.key = SecretKey(key_bits)
        self.num_points, self.num_bits, self.key_bits = len(codes), num_bits, key_bits
        width, slots, blocks = packing(len(codes), num_bits, key_bits)
        bits = bits_of(codes, num_bits)
        size = self.key.public.num_bytes
        ciphertexts = [
            self.key.encrypt(_pack(bits[start : start + slots, bit], width))
            for bit in range(num_bits)
            for start in range(0, slots * blocks, slots)
        ]
        self.message = EncryptedBits(
            _to_bytes([int(self.key.public.modulus)], size)[0],
            len(codes),
            _to_bytes(ciphertexts, 2 * size).reshape(num_bits, blocks, 2 * size),
        )

    def __repr__(self) -> str:
        return f"PackedBits({self.num_points} points)"


class PaillierOwner:
    """The client whose key it is. Args: as `TransferReceiver`, with `PackedBits` in place of its codes."""

    def __init__(self, endpoint: Endpoint, peer: int, packed: PackedBits, num_other: int):
        self.endpoint, self._peer, self._packed, self._num_other = endpoint, peer, packed, num_other
        self._done = False

    def start(self) -> list[Outgoing]:
        """Its key and its encrypted bits."""
        return [self.endpoint.pack(self._peer, self._packed.message)]

    def receive(self, data: bytes) -> list[Outgoing]:
        """Decrypts masked distances, for the server."""
        sender, message = self.endpoint.unpack(data)
        if sender != self._peer or not isinstance(message, EncryptedDistances) or self._done:
            raise MalformedMessage("a message that is not due", sender)
        public = self._packed.key.public
        *_, blocks = packing(self._packed.num_points, self._packed.num_bits, self._packed.key_bits)
        shape = (self._num_other, blocks, 2 * public.num_bytes)
        if message.ciphertexts.shape != shape:
            raise MalformedMessage(f"ciphertexts of shape {message.ciphertexts.shape}; due: {shape}", sender)
        ciphertexts = _checked(message.ciphertexts, public, sender)
        self._done = True
        plain = _to_bytes([self._packed.key.decrypt(some) for some in ciphertexts], public.num_bytes)
        values = plain.reshape(self._num_other, blocks, public.num_bytes)
        return [self.endpoint.pack(SERVER, PackedShare(self._peer, self._packed.message.modulus, values))]


class PaillierEvaluator:
    """The other client.

    Args:
        endpoint: with a channel to the key owner.
        peer: the key owner.
        codes: uint32 [n, words] of its own points.
        num_packed: points of the owner, from the roster.
        num_bits: L.
        key_bits: that a modulus must have.
    """

    def __init__(
        self, endpoint: Endpoint, peer: int, codes: np.ndarray, num_packed: int, num_bits: int, key_bits: int = 2048
    ):
        self.endpoint, self._peer, self._bits = endpoint, peer, bits_of(codes, num_bits)
        self._num_packed, self._key_bits, self._done = num_packed, key_bits, False

    def start(self) -> list[Outgoing]:
        """It waits for the owner."""
        return []

    def receive(self, data: bytes) -> list[Outgoing]:
        """Works out the masked distances under encryption; the masks are for the server."""
        sender, message = self.endpoint.unpack(data)
        if sender != self._peer or not isinstance(message, EncryptedBits) or self._done:
            raise MalformedMessage("a message that is not due", sender)
        num_bits, size = self._bits.shape[1], self._key_bits // 8
        width, slots, blocks = packing(self._num_packed, num_bits, self._key_bits)
        modulus = int.from_bytes(message.modulus.tobytes(), "little")
        shape = (num_bits, blocks, 2 * size)
        if message.ciphertexts.shape != shape or message.num_points != self._num_packed:
            raise MalformedMessage(f"ciphertexts of shape {message.ciphertexts.shape}; due: {shape}", sender)
        if modulus.bit_length() != self._key_bits or not modulus % 2:
            raise MalformedMessage(f"a modulus that is no odd number of {self._key_bits} bits", sender)
        public = PublicKey(modulus)
        columns = np.array(_checked(message.ciphertexts, public, sender), object).reshape(num_bits, blocks)
        self._done = True
        ones = [
            _pack(np.ones(min(slots, self._num_packed - start), np.uint8), width)
            for start in range(0, slots * blocks, slots)
        ]
        totals = [public.add(columns[:, block]) for block in range(blocks)]
        results, masks = [], []
        for bits in self._bits.astype(bool):
            for block in range(blocks):
                # sum_l u_l + v_l - 2 u_l v_l: all columns, less twice those where v_l is 1.
                chosen = public.times(public.add(columns[bits, block]), -2)
                mask = secrets.randbelow(modulus)
                shift = ones[block] * int(bits.sum()) + mask
                results.append(int(public.plus(totals[block] * chosen % public.squared, shift)))
                masks.append(mask)
        points = len(self._bits)
        hidden = _to_bytes(results, 2 * size).reshape(points, blocks, 2 * size)
        share = PackedShare(self._peer, message.modulus, _to_bytes(masks, size).reshape(points, blocks, size))
        return [self.endpoint.pack(self._peer, EncryptedDistances(hidden)), self.endpoint.pack(SERVER, share)]


class PaillierServer:
    """The server: takes the masks away. `distances` [owner's points, other's points] when both shares came."""

    def __init__(
        self, endpoint: Endpoint, owner: int, other: int, shape: tuple[int, int], num_bits: int, key_bits: int = 2048
    ):
        self.endpoint, self._peers = endpoint, {owner: other, other: owner}
        self._owner, self._shape, self._num_bits, self._key_bits = owner, shape, num_bits, key_bits
        self._shares: dict[int, PackedShare] = {}
        self.distances: np.ndarray | None = None

    def start(self) -> list[Outgoing]:
        """It waits for the clients."""
        return []

    def receive(self, data: bytes) -> list[Outgoing]:
        """A client's masked plaintexts, or masks."""
        sender, message = self.endpoint.unpack(data)
        due = isinstance(message, PackedShare) and sender not in self._shares
        if not due or message.peer != self._peers.get(sender):
            raise MalformedMessage("a message that is not due", sender)
        width, slots, blocks = packing(self._shape[0], self._num_bits, self._key_bits)
        size = self._key_bits // 8
        if message.values.shape != (self._shape[1], blocks, size) or message.modulus.shape != (size,):
            raise MalformedMessage(f"numbers of shape {message.values.shape}", sender)
        if any(not np.array_equal(message.modulus, other.modulus) for other in self._shares.values()):
            raise MalformedMessage("the two clients name different keys", sender)
        self._shares[sender] = message
        if len(self._shares) == 2:
            modulus = int.from_bytes(message.modulus.tobytes(), "little")
            masked, masks = (self._shares[client].values for client in self._peers)
            found = [
                _unpack((one - other) % modulus, width, slots)
                for one, other in zip(_from_bytes(masked), _from_bytes(masks), strict=True)
            ]
            distances = np.array(found, np.int64).reshape(self._shape[1], blocks * slots)[:, : self._shape[0]].T
            check_distances(distances, self._num_bits, *self._peers)
            self.distances = distances.astype(np.int32)
        return []


def _pack(bits: np.ndarray, width: int) -> int:
    """One bit for each point -> a number with a slot of `width` bits for each."""
    slots = np.zeros((len(bits), width), np.uint8)
    slots[:, 0] = bits
    return int.from_bytes(np.packbits(slots.reshape(-1), bitorder="little").tobytes(), "little")


def _unpack(number: int, width: int, slots: int) -> list[int]:
    return [number >> (slot * width) & ((1 << width) - 1) for slot in range(slots)]


def _to_bytes(numbers: list[int], size: int) -> np.ndarray:
    data = b"".join(number.to_bytes(size, "little") for number in numbers)
    return np.frombuffer(data, np.uint8).reshape(len(numbers), size)


def _from_bytes(values: np.ndarray) -> list[int]:
    return [int.from_bytes(row.tobytes(), "little") for row in values.reshape(-1, values.shape[-1])]


def _checked(values: np.ndarray, public: PublicKey, sender: int) -> list[int]:
    """Ciphertexts. Raises MalformedMessage for a number that is none."""
    numbers = _from_bytes(values)
    if not all(map(public.is_ciphertext, numbers)):
        raise MalformedMessage("a number that is no ciphertext of this key", sender)
    return numbers
