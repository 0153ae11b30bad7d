"""The cryptographic primitives: the few that are used of `cryptography` and libsodium, and Shamir's
secret sharing.

Random bytes come from the operating system only, so that a fork or a resumed run never repeats
them.

References:
    Shamir, How to share a secret, Communications of the ACM 1979.
"""

import functools
import importlib
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_ssl.errors import how_to_install
from fedjax_ssl.secure.protocol_errors import BadKey, MissingExtra, NotAuthentic

KEY_BYTES = 32
POINT_BYTES = 32
TAG_BYTES = 16
SIGNATURE_BYTES = 64
SHARE_BYTES = 33  # a number modulo `PRIME`
BLOCK_BYTES = 16  # an AES block
_STREAM_BYTES = 2**18  # bytes of key stream at once: stays in the processor's cache
# The fixed key of the hash; any public constant will do.
_HASH_KEY = bytes.fromhex("243f6a8885a308d313198a2e03707344")


def load(module: str, extra: str = "secure") -> Any:
    """Return an optional module.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(
            f"the protocols need the package {module.partition('.')[0]!r}, which is not installed: "
            f"{how_to_install(extra)}"
        ) from error


_load = functools.cache(load)


def _asymmetric(name: str) -> Any:
    return _load(f"cryptography.hazmat.primitives.asymmetric.{name}")


def _invalid_signature() -> type[Exception]:
    return _load("cryptography.exceptions").InvalidSignature


class ExchangeKey:
    """A fresh X25519 key pair (RFC 7748)."""

    def __init__(self, private: bytes | None = None):
        keys = _asymmetric("x25519").X25519PrivateKey
        self._private = keys.generate() if private is None else keys.from_private_bytes(private)
        self.public: bytes = self._private.public_key().public_bytes_raw()

    def agree(self, public: bytes) -> bytes:
        """Return the 32 bytes shared with the owner of `public`.

        Raises:
            BadKey: a point of low order, which would make the secret public.
        """
        try:
            return self._private.exchange(
                _asymmetric("x25519").X25519PublicKey.from_public_bytes(public)
            )
        except ValueError as error:
            raise BadKey("a public key is a point of low order") from error

    def private_bytes(self) -> bytes:
        """Return the private key, which Shamir mode splits into shares."""
        return self._private.private_bytes_raw()

    def __repr__(self) -> str:
        return "ExchangeKey(...)"


class Identity:
    """A party's long-term Ed25519 key pair; other parties pin its public key."""

    def __init__(self) -> None:
        self._private = _asymmetric("ed25519").Ed25519PrivateKey.generate()
        self.public: bytes = self._private.public_key().public_bytes_raw()

    def sign(self, data: bytes) -> bytes:
        """Return the signature, 64 bytes."""
        return self._private.sign(data)

    def __repr__(self) -> str:
        return "Identity(...)"


def verify(public: bytes, signature: bytes, data: bytes, sender: int) -> None:
    """Raise NotAuthentic for a wrong signature."""
    try:
        _asymmetric("ed25519").Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except _invalid_signature() as error:
        raise NotAuthentic("a signature does not fit", sender) from error


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int = KEY_BYTES) -> bytes:
    """Derive bytes by HKDF-SHA256 (RFC 5869)."""
    hashes = _load("cryptography.hazmat.primitives.hashes")
    derive = _load("cryptography.hazmat.primitives.kdf.hkdf").HKDF
    return derive(algorithm=hashes.SHA256(), length=length, salt=salt, info=info).derive(secret)


def seal(key: bytes, nonce: bytes, plain: bytes, associated: bytes) -> bytes:
    """Encrypt by ChaCha20-Poly1305 (RFC 8439); the result is 16 bytes longer."""
    return (
        _load("cryptography.hazmat.primitives.ciphers.aead")
        .ChaCha20Poly1305(key)
        .encrypt(nonce, plain, associated)
    )


def unseal(key: bytes, nonce: bytes, sealed: bytes, associated: bytes, sender: int) -> bytes:
    """Return the plaintext of a sealed message.

    Raises:
        NotAuthentic: a bit of the message, the nonce or the associated data was changed.
    """
    aead = _load("cryptography.hazmat.primitives.ciphers.aead").ChaCha20Poly1305(key)
    try:
        return aead.decrypt(nonce, sealed, associated)
    except _load("cryptography.exceptions").InvalidTag as error:
        raise NotAuthentic("a seal does not fit", sender) from error


def _encryptor(algorithm: str, key: bytes, mode: Any, *more: bytes) -> Any:
    algorithms = _load("cryptography.hazmat.primitives.ciphers.algorithms")
    ciphers = _load("cryptography.hazmat.primitives.ciphers")
    return ciphers.Cipher(getattr(algorithms, algorithm)(key, *more), mode).encryptor()


def add_key_stream(total: np.ndarray, key: bytes, sign: int) -> None:
    """Add a ChaCha20 key stream to a matrix in place, or subtract it, modulo 2^32 or 2^64.

    Args:
        total: contiguous uint32 or uint64, little-endian as the stream is read.
        key: 32 bytes that are used only once; the nonce is 0.
        sign: +1 or -1.
    """
    cipher = _encryptor("ChaCha20", key, None, bytes(16))
    flat = total.reshape(-1)
    step = _STREAM_BYTES // flat.itemsize
    zeros, stream = _buffers()
    words = stream.view(flat.dtype.newbyteorder("<"))
    for start in range(0, flat.size, step):
        part = flat[start : start + step]
        cipher.update_into(zeros[: part.nbytes], stream[: part.nbytes])
        (np.add if sign > 0 else np.subtract)(part, words[: part.size], out=part)


@functools.cache
def _buffers() -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(_STREAM_BYTES, np.uint8), np.empty(_STREAM_BYTES, np.uint8)


class BitStream:
    """AES-128-CTR key stream of one seed; every call continues where the last one ended, so no byte
    repeats.
    """

    def __init__(self, seed: bytes):
        modes = _load("cryptography.hazmat.primitives.ciphers.modes")
        self._cipher = _encryptor("AES", seed, modes.CTR(bytes(BLOCK_BYTES)))

    def fill(self, out: np.ndarray, zeros: np.ndarray) -> None:
        """Write the next bytes to `out`; `zeros` has as many bytes, all 0."""
        self._cipher.update_into(zeros, out)

    def __repr__(self) -> str:
        return "BitStream(...)"


class BlockHash:
    """The correlation-robust hash H(tweak, x) = P(P(x) ^ tweak) ^ P(x), with P = AES-128 of a fixed
    key.

    References:
        Guo, Katz, Wang, Yu, Efficient and secure multiparty computation from fixed-key block
        ciphers, IEEE S&P 2020: the tweakable form TMMO.
    """

    def __init__(self) -> None:
        self._cipher = _encryptor(
            "AES", _HASH_KEY, _load("cryptography.hazmat.primitives.ciphers.modes").ECB()
        )

    def _permute(self, blocks: np.ndarray) -> np.ndarray:
        out = np.empty(blocks.nbytes + BLOCK_BYTES - 1, np.uint8)  # the library needs this length
        self._cipher.update_into(blocks.reshape(-1).view(np.uint8), out)
        return out[: blocks.nbytes].view(np.uint64).reshape(blocks.shape)

    def expand(self, rows: np.ndarray, first: int, num_blocks: int) -> np.ndarray:
        """Return the pad of every row.

        Args:
            rows: uint64 [m, 2], 16 bytes each.
            first: number of the first row, among all rows hashed with one correlation.
            num_blocks: 16-byte blocks per row; tweaks are (row number, block number).

        Returns:
            uint64 [m, num_blocks, 2].
        """
        inner = self._permute(np.ascontiguousarray(rows))
        blocks = np.repeat(inner[:, None], num_blocks, axis=1)
        blocks[:, :, 0] ^= np.arange(first, first + len(rows), dtype=np.uint64)[:, None]
        blocks[:, :, 1] ^= np.arange(num_blocks, dtype=np.uint64)
        outer = self._permute(blocks)
        outer ^= inner[:, None]
        return outer


class Group:
    """The prime-order group of Ed25519, by libsodium; points are 32 bytes."""

    def __init__(self) -> None:
        self._sodium = _load("nacl.bindings")
        self._errors = (_load("nacl.exceptions").CryptoError, ValueError, TypeError)

    def scalar(self) -> bytes:
        """Return a random scalar."""
        return self._sodium.crypto_core_ed25519_scalar_reduce(secrets.token_bytes(64))

    def base(self, scalar: bytes) -> bytes:
        """Return scalar * generator."""
        return self._sodium.crypto_scalarmult_ed25519_base_noclamp(scalar)

    def multiply(self, scalar: bytes, point: bytes) -> bytes:
        """Return scalar * point.

        Raises:
            BadKey: the product is the identity element.
        """
        try:
            return self._sodium.crypto_scalarmult_ed25519_noclamp(scalar, point)
        except self._errors as error:
            raise BadKey("a product of group elements is the identity element") from error

    def add(self, one: bytes, other: bytes) -> bytes:
        """Return the sum of two points."""
        return self._sodium.crypto_core_ed25519_add(one, other)

    def subtract(self, one: bytes, other: bytes) -> bytes:
        """Return the difference of two points."""
        return self._sodium.crypto_core_ed25519_sub(one, other)

    def check(self, point: bytes, sender: int) -> None:
        """Raise BadKey for bytes that are not a canonical group element, or are the identity
        element.
        """
        if not self._sodium.crypto_core_ed25519_is_valid_point(point):
            raise BadKey("a group element is not valid", sender)


PRIME = 2**256 + 297  # the first prime above 2^256


def share_out(secret: bytes, holders: list[int], threshold: int) -> dict[int, bytes]:
    """Return a share of a 32-byte secret for every holder; holder i gets the polynomial's value at
    i + 1.

    Raises:
        ValueError: a threshold above the number of holders, or below 1.
    """
    if not 1 <= threshold <= len(set(holders)):
        raise ValueError(
            f"threshold is {threshold}; with {len(holders)} holders it must be 1..{len(holders)}"
        )
    coefficients = [
        int.from_bytes(secret, "little"),
        *(secrets.randbelow(PRIME) for _ in range(threshold - 1)),
    ]
    shares = {}
    for holder in holders:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * (holder + 1) + coefficient) % PRIME
        shares[holder] = value.to_bytes(SHARE_BYTES, "little")
    return shares


def put_together(shares: Mapping[int, bytes]) -> bytes:
    """Restore the secret of 32 bytes from shares by holder, as many as the threshold; fewer give a
    wrong result.
    """
    total = 0
    for holder, share in shares.items():
        above = 1
        below = 1
        for other in shares:
            if other != holder:
                above = above * (other + 1) % PRIME
                below = below * (other - holder) % PRIME
        total += int.from_bytes(share, "little") * above * pow(below, -1, PRIME)
    return (total % PRIME).to_bytes(SHARE_BYTES, "little")[:32]
