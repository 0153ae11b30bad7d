"""SecureHamming by Paillier's cryptosystem, with the least traffic and the most time.

The key owner packs bit l of all its points u into one number, with a slot of w bits for each point,
and encrypts it. For each of its points v, the other client computes the packed sums over l of u_l +
v_l - 2 u_l v_l under encryption, adds a number R that is uniform modulo N, and re-randomizes. The
owner decrypts a uniform number and sends it to the server, which subtracts R.

Re-randomizing is necessary: without it, the owner, which made all ciphertexts, could test every
guess of v.

The arithmetic is gmpy2's (the extra `secure-he`) if it is installed, otherwise Python's own, about
eight times slower. It is not constant-time.

References:
    Paillier, Public-key cryptosystems based on composite degree residuosity classes, Eurocrypt
    1999. Scott, Yeo, Lampert, 2023: appendix, SecureHamming by homomorphic encryption, there bit by
    bit.
"""

import importlib
import math
import secrets
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np

from fedjax_ssl.secure.distances import PairServer, bits_of
from fedjax_ssl.secure.network import Endpoint, Machine, Outgoing
from fedjax_ssl.secure.protocol_errors import SERVER, MalformedMessage
from fedjax_ssl.secure.wire import EncryptedBits, EncryptedDistances, PackedShare, check_array

_ROUNDS = 32  # rounds of the Miller-Rabin test; a composite passes with probability below 2^-64
_SMALL_PRIMES = [n for n in range(3, 2000) if all(n % d for d in range(2, int(n**0.5) + 1))]

gmpy2: ModuleType | None
try:
    gmpy2 = importlib.import_module("gmpy2")
except ImportError:  # Python's own integers do too
    gmpy2 = None


def _integer(value: int) -> Any:
    return value if gmpy2 is None else gmpy2.mpz(value)


def _power(base: Any, exponent: Any, modulus: Any) -> Any:
    return pow(base, exponent, modulus) if gmpy2 is None else gmpy2.powmod(base, exponent, modulus)


def _inverse(value: Any, modulus: Any) -> Any:
    return pow(value, -1, modulus) if gmpy2 is None else gmpy2.invert(value, modulus)


class PublicKey:
    """Public key, which can encrypt, add and re-randomize. Args: the modulus N, a product of two
    primes.
    """

    def __init__(self, modulus: int):
        self.modulus = _integer(modulus)
        self.squared = self.modulus * self.modulus
        self.num_bytes = -(-int(modulus).bit_length() // 8)

    def blind(self) -> Any:
        """Return a fresh N-th power, an encryption of 0: multiplied to a ciphertext, it makes
        another one of the same number.
        """
        return _power(self._unit(), self.modulus, self.squared)

    def encrypt(self, number: int) -> int:
        """Return a ciphertext of a number modulo N."""
        return int((1 + number % self.modulus * self.modulus) * self.blind() % self.squared)

    def add(self, ciphertexts: Iterable[Any]) -> Any:
        """Return a ciphertext of the sum; anyone who knows the summands can recognize it."""
        total = _integer(1)
        for ciphertext in ciphertexts:
            total = total * ciphertext % self.squared
        return total

    def times(self, ciphertext: Any, factor: int) -> Any:
        """Return a ciphertext of `factor` times the number."""
        some = _inverse(ciphertext, self.squared) if factor < 0 else ciphertext
        return _power(some, abs(factor), self.squared)

    def plus(self, ciphertext: Any, number: int) -> Any:
        """Return a ciphertext of the number plus another one, re-randomized: it does not reveal its
        summands.
        """
        return ciphertext * self.encrypt(number) % self.squared

    def is_ciphertext(self, value: int) -> bool:
        """Return whether a number can be a ciphertext, that is, below N^2 and prime to N."""
        if not 0 < value < self.squared:
            return False
        return math.gcd(int(value), int(self.modulus)) == 1

    def _unit(self) -> Any:
        return _integer(1 + secrets.randbelow(int(self.modulus) - 1))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicKey) and self.modulus == other.modulus

    def __repr__(self) -> str:
        return f"PublicKey({8 * self.num_bytes} bits)"


class SecretKey:
    """Secret key, with its public key.

    Args:
        bits: bits of the modulus; use at least 2048.
        primes: fixed primes, for tests.

    Raises:
        ValueError: primes with which decryption is not unique.
    """

    def __init__(self, bits: int = 2048, primes: tuple[int, int] | None = None):
        p, q = primes or _two_primes(bits)
        phi = (p - 1) * (q - 1)
        if p == q or math.gcd(p * q, phi) != 1:
            raise ValueError(
                "two primes whose product is not prime to (p - 1) (q - 1) make no Paillier key"
            )
        self.public = PublicKey(p * q)
        self._p = _integer(p)
        self._q = _integer(q)
        self._p2 = self._p**2
        self._q2 = self._q**2
        self._p2_inverse = _inverse(self._p2, self._q2)
        self._p_inverse = _inverse(self._p, self._q)
        self._hp = _inverse(self._log(1 + self.public.modulus, self._p, self._p2), self._p)
        self._hq = _inverse(self._log(1 + self.public.modulus, self._q, self._q2), self._q)

    @staticmethod
    def _log(value: Any, prime: Any, squared: Any) -> Any:
        return (_power(value, prime - 1, squared) - 1) // prime

    def encrypt(self, number: int) -> int:
        """Encrypt like the public key, but in half the time: powers modulo p^2 and q^2,
        combined.
        """
        modulus = self.public.modulus
        unit = self.public._unit()
        at_p = _power(unit % self._p2, modulus % (self._p * (self._p - 1)), self._p2)
        at_q = _power(unit % self._q2, modulus % (self._q * (self._q - 1)), self._q2)
        blind = at_p + self._p2 * ((at_q - at_p) * self._p2_inverse % self._q2)
        return int((1 + number % modulus * modulus) * blind % self.public.squared)

    def decrypt(self, ciphertext: int) -> int:
        """Return the number, in 0..N - 1."""
        value = _integer(ciphertext)
        at_p = self._log(value % self._p2, self._p, self._p2) * self._hp % self._p
        at_q = self._log(value % self._q2, self._q, self._q2) * self._hq % self._q
        return int(at_p + self._p * ((at_q - at_p) * self._p_inverse % self._q))

    def __repr__(self) -> str:
        return "SecretKey(...)"


def _two_primes(bits: int) -> tuple[int, int]:
    """Return two different primes of half the bits each; their top two bits are set, so the product
    has exactly `bits`.
    """
    if bits < 64 or bits % 16:
        raise ValueError(f"key_bits is {bits}; it must be a multiple of 16 and at least 64")
    p = _prime(bits // 2)
    q = _prime(bits // 2)
    return (p, q) if p != q else _two_primes(bits)


def _prime(bits: int) -> int:
    while True:
        candidate = secrets.randbits(bits) | (3 << (bits - 2)) | 1
        if all(candidate % prime for prime in _SMALL_PRIMES) and _is_prime(candidate):
            return candidate


def _is_prime(number: int) -> bool:
    odd = number - 1
    twos = (odd & -odd).bit_length() - 1
    odd >>= twos
    for _ in range(_ROUNDS):
        power = int(_power(_integer(2 + secrets.randbelow(number - 3)), odd, number))
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True


def packing(num_points: int, num_bits: int, key_bits: int) -> tuple[int, int, int]:
    """Return (bits of a slot, slots of a plaintext, plaintexts for `num_points` points)."""
    width = num_bits.bit_length()
    slots = (key_bits - 1) // width
    return width, slots, -(-num_points // slots)


class PackedBits:
    """A client's points, encrypted once per session and sent to every client that helps with its
    distances.

    Args:
        codes: uint32 [n, words].
        num_bits: L.
        key_bits: bits of the modulus.
    """

    def __init__(self, codes: np.ndarray, num_bits: int, key_bits: int = 2048):
        self.key = SecretKey(key_bits)
        self.num_points = len(codes)
        self.num_bits = num_bits
        self.key_bits = key_bits
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


class PaillierOwner(Machine):
    """Client that owns the key. Args: as `TransferReceiver`, with `PackedBits` in place of its
    codes.
    """

    def __init__(self, endpoint: Endpoint, peer: int, packed: PackedBits, num_other: int):
        super().__init__(endpoint)
        self._peer = peer
        self._packed = packed
        self._num_other = num_other
        self._done = False

    def start(self) -> list[Outgoing]:
        """Send the key and the encrypted bits."""
        return [self.endpoint.pack(self._peer, self._packed.message)]

    def receive(self, data: bytes) -> list[Outgoing]:
        """Decrypt masked distances, and send them to the server."""
        message = self.take(data, self._peer, EncryptedDistances, not self._done)
        public = self._packed.key.public
        *_, blocks = packing(self._packed.num_points, self._packed.num_bits, self._packed.key_bits)
        shape = (self._num_other, blocks, 2 * public.num_bytes)
        ciphertexts = _checked(message.ciphertexts, shape, public, self._peer)
        self._done = True
        plain = _to_bytes(
            [self._packed.key.decrypt(some) for some in ciphertexts], public.num_bytes
        )
        values = plain.reshape(self._num_other, blocks, public.num_bytes)
        share = PackedShare(self._peer, self._packed.message.modulus, values)
        return [self.endpoint.pack(SERVER, share)]


class PaillierEvaluator(Machine):
    """Client that does not own the key.

    Args:
        endpoint: with a channel to the key owner.
        peer: the key owner.
        codes: uint32 [n, words] of its own points.
        num_packed: points of the owner, from the roster.
        num_bits: L.
        key_bits: required bits of a modulus.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        peer: int,
        codes: np.ndarray,
        num_packed: int,
        num_bits: int,
        key_bits: int = 2048,
    ):
        super().__init__(endpoint)
        self._peer = peer
        self._bits = bits_of(codes, num_bits)
        self._num_packed = num_packed
        self._key_bits = key_bits
        self._done = False

    def receive(self, data: bytes) -> list[Outgoing]:
        """Compute the masked distances under encryption, and send the masks to the server."""
        message = self.take(data, self._peer, EncryptedBits, not self._done)
        num_bits = self._bits.shape[1]
        size = self._key_bits // 8
        width, slots, blocks = packing(self._num_packed, num_bits, self._key_bits)
        modulus = int.from_bytes(message.modulus.tobytes(), "little")
        shape = (num_bits, blocks, 2 * size)
        if message.num_points != self._num_packed:
            raise MalformedMessage(
                f"bits of {message.num_points} points; due: {self._num_packed}", self._peer
            )
        if modulus.bit_length() != self._key_bits or not modulus % 2:
            raise MalformedMessage(
                f"a modulus that is no odd number of {self._key_bits} bits", self._peer
            )
        public = PublicKey(modulus)
        ciphertexts = _checked(message.ciphertexts, shape, public, self._peer)
        columns = np.array(ciphertexts, object).reshape(num_bits, blocks)
        self._done = True
        ones = [
            _pack(np.ones(min(slots, self._num_packed - start), np.uint8), width)
            for start in range(0, slots * blocks, slots)
        ]
        totals = [public.add(columns[:, block]) for block in range(blocks)]
        results = []
        masks = []
        for bits in self._bits.astype(bool):
            for block in range(blocks):
                # sum_l u_l + v_l - 2 u_l v_l: the sum of all columns, minus twice those with v_l =
                # 1.
                chosen = public.times(public.add(columns[bits, block]), -2)
                mask = secrets.randbelow(modulus)
                shift = ones[block] * int(bits.sum()) + mask
                results.append(int(public.plus(totals[block] * chosen % public.squared, shift)))
                masks.append(mask)
        points = len(self._bits)
        hidden = _to_bytes(results, 2 * size).reshape(points, blocks, 2 * size)
        share = PackedShare(
            self._peer, message.modulus, _to_bytes(masks, size).reshape(points, blocks, size)
        )
        return [
            self.endpoint.pack(self._peer, EncryptedDistances(hidden)),
            self.endpoint.pack(SERVER, share),
        ]


class PaillierServer(PairServer):
    """Server that subtracts the masks."""

    share = PackedShare

    def __init__(
        self,
        endpoint: Endpoint,
        owner: int,
        other: int,
        shape: tuple[int, int],
        num_bits: int,
        key_bits: int = 2048,
    ):
        super().__init__(endpoint, owner, other, shape, num_bits)
        self._width, self._slots, self._blocks = packing(shape[0], num_bits, key_bits)
        self._size = key_bits // 8

    def _check(self, message: PackedShare, sender: int) -> None:
        shape = (self._shape[1], self._blocks, self._size)
        check_array("numbers", message.values, shape, np.uint8, sender)
        check_array("a modulus", message.modulus, shape[2:], np.uint8, sender)
        if any(
            not np.array_equal(message.modulus, other.modulus) for other in self._shares.values()
        ):
            raise MalformedMessage("the two clients name different keys", sender)

    def _put_together(self, first: PackedShare, second: PackedShare) -> np.ndarray:
        modulus = int.from_bytes(first.modulus.tobytes(), "little")
        pairs = zip(_from_bytes(first.values), _from_bytes(second.values), strict=True)
        found = [
            _unpack((masked - mask) % modulus, self._width, self._slots) for masked, mask in pairs
        ]
        return np.array(found, np.int64).reshape(self._shape[1], -1)[:, : self._shape[0]].T


def _pack(bits: np.ndarray, width: int) -> int:
    """Pack one bit of each point into a number with a slot of `width` bits for each."""
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


def _checked(
    values: np.ndarray, shape: tuple[int, ...], public: PublicKey, sender: int
) -> list[int]:
    """Return the ciphertexts; raise MalformedMessage for another number or shape."""
    check_array("ciphertexts", values, shape, np.uint8, sender)
    numbers = _from_bytes(values)
    if not all(map(public.is_ciphertext, numbers)):
        raise MalformedMessage("a number that is no ciphertext of this key", sender)
    return numbers
