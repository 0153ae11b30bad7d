"""Published vectors of the primitives, and the tiny numbers of the spec, section 9.2."""

import hashlib
import random

import numpy as np
import pytest

from fedjax_ssl.graph.exchange import from_fixed_point, to_fixed_point
from fedjax_ssl.secure import primitives
from fedjax_ssl.secure.hamming_paillier import SecretKey
from fedjax_ssl.secure.hamming_transfer import transpose_bits
from fedjax_ssl.secure.protocol_errors import BadKey, MissingExtra, NotAuthentic
from tests.secure import parties, printed  # noqa: F401

ALICE = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
LOW_ORDER = [bytes(32), (1).to_bytes(32, "little"), (2**255 - 20).to_bytes(32, "little")]


def test_x25519_is_that_of_rfc_7748():
    alice = primitives.ExchangeKey(ALICE)
    bob = primitives.ExchangeKey(BOB)
    assert alice.public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert bob.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert alice.agree(bob.public).hex() == bob.agree(alice.public).hex() == shared


@pytest.mark.parametrize("point", LOW_ORDER)
def test_keys_of_low_order_are_refused(point):
    with pytest.raises(BadKey, match="low order"):
        primitives.ExchangeKey().agree(point)


def test_hkdf_is_that_of_rfc_5869():
    info = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9")
    found = primitives.hkdf(b"\x0b" * 22, bytes(range(13)), info, 42)
    assert (
        found.hex()
        == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )
    found = primitives.hkdf(b"\x0b" * 22, b"", b"", 42)
    assert (
        found.hex()
        == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    )


def test_chacha20_is_that_of_rfc_8439():
    """Appendix A.1, vector 1: key, nonce and counter 0, which is how masks are made."""
    total = np.zeros(16, np.uint32)
    primitives.add_key_stream(total, bytes(32), 1)
    zero = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert total.tobytes().hex() == zero
    primitives.add_key_stream(total, bytes(32), -1)
    assert not total.any()


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_masks_go_on_over_the_buffer(dtype):
    """A long stream is one stream: what is added piece by piece is the cipher's own output."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    key = bytes(range(32))
    total = np.zeros((1001, 150), dtype)
    primitives.add_key_stream(total, key, 1)
    stream = (
        Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(total.nbytes))
    )
    assert total.tobytes() == stream


def test_seal_is_that_of_rfc_8439():
    plain = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for "
    plain += b"the future, sunscreen would be it."
    key = bytes(range(0x80, 0xA0))
    nonce = bytes.fromhex("070000004041424344454647")
    associated = bytes.fromhex("50515253c0c1c2c3c4c5c6c7")
    sealed = primitives.seal(key, nonce, plain, associated)
    assert sealed.hex() == (
        "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d63dbea45e8ca9671282fafb69da92728b1a71de0a9e060b"
        "2905d6a5b67ecd3b3692ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc3ff4def08e4b7a9de576d26586ce"
        "c64b61161ae10b594f09e26a7e902ecbd0600691"
    )
    assert primitives.unseal(key, nonce, sealed, associated, 1) == plain
    with pytest.raises(NotAuthentic, match="client 1"):
        primitives.unseal(key, nonce, sealed, associated + b"x", 1)


def test_aes_streams_are_those_of_nist():
    """SP 800-38A, F.5.1, and our own streams: block c is the encryption of c, from 0 on."""
    key = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    counter = Cipher(
        algorithms.AES(key), modes.CTR(bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"))
    ).encryptor()
    plain = bytes.fromhex("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51")
    assert (
        counter.update(plain).hex()
        == "874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff"
    )
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    stream = primitives.BitStream(key)
    out = np.empty(48, np.uint8)
    stream.fill(out[:20], np.zeros(20, np.uint8))
    stream.fill(out[20:], np.zeros(28, np.uint8))
    assert out.tobytes() == b"".join(
        block.update(number.to_bytes(16, "big")) for number in range(3)
    )


def test_the_hash_is_the_printed_form():
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    permute = Cipher(algorithms.AES(primitives._HASH_KEY), modes.ECB()).encryptor().update
    rows = np.random.default_rng(0).integers(0, 2**63, (3, 2)).astype(np.uint64)
    found = primitives.BlockHash().expand(rows, 7, 2)
    for row in range(3):
        inner = permute(rows[row].tobytes())
        for block in range(2):
            tweak = (7 + row).to_bytes(8, "little") + block.to_bytes(8, "little")
            outer = permute(bytes(a ^ b for a, b in zip(inner, tweak, strict=True)))
            assert found[row, block].tobytes() == bytes(
                a ^ b for a, b in zip(outer, inner, strict=True)
            )


def test_the_group_is_that_of_rfc_8032():
    """Test 1: the public key is the clamped hash of the secret times the generator."""
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    scalar = bytearray(hashlib.sha512(seed).digest()[:32])
    scalar[0] &= 248
    scalar[31] = scalar[31] & 127 | 64
    group = primitives.Group()
    assert (
        group.base(bytes(scalar)).hex()
        == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    )
    a = group.scalar()
    b = group.scalar()
    assert group.multiply(a, group.base(b)) == group.multiply(b, group.base(a))
    assert group.subtract(group.add(group.base(a), group.base(b)), group.base(b)) == group.base(a)


# The identity, a point of order 4, one of order 8, a number that is no field element, one that is
# no point.
BAD_POINTS = [
    (1).to_bytes(32, "little"),
    bytes(32),
    bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa"),
    (2**255 - 19 + 3).to_bytes(32, "little"),
    b"\xff" * 32,
    (2).to_bytes(32, "little"),
]


@pytest.mark.parametrize("point", BAD_POINTS)
def test_what_is_no_group_element_is_refused(point):
    with pytest.raises(BadKey, match="client 4"):
        primitives.Group().check(point, 4)


def test_bits_are_transposed():
    bits = np.random.default_rng(0).integers(0, 2, (128, 24), np.uint8)
    rows = transpose_bits(np.packbits(bits, axis=1, bitorder="little"))
    np.testing.assert_array_equal(
        np.unpackbits(rows.view(np.uint8), axis=1, bitorder="little"), bits.T
    )


def test_printed_transfer():
    v = [0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 1]
    u = [0, 1, 0, 1, 1, 0, 0, 1, 0, 0, 0, 1]
    m0, m1, t, rho, tau = printed.shade(v, u, 16, [3, 15, 7, 0, 12, 9, 1, 14, 5, 8, 2, 11])
    assert m0 == [3, 0, 8, 0, 12, 10, 1, 14, 5, 8, 3, 12]
    assert m1 == [4, 15, 7, 1, 13, 9, 2, 15, 6, 9, 2, 11]
    assert t == [3, 15, 8, 1, 13, 10, 1, 15, 5, 8, 3, 11]
    assert (rho, tau, (tau - rho) % 16) == (7, 13, 6)


def test_printed_paillier():
    key = printed.Textbook(61, 53)
    own = SecretKey(primes=(61, 53))
    assert (key.n, key.lam, key.mu) == (3233, 780, 1173)
    ciphertexts = [
        key.encrypt(bit, rho) for bit, rho in zip([1, 0, 1, 1], [2, 3, 5, 7], strict=True)
    ]
    assert ciphertexts == [2065816, 2393606, 5865108, 3568056]
    assert key.encrypt(1236, 11) == 4912097
    result = key.distance(ciphertexts, [0, 1, 1, 0], 1234, 11)
    assert result == 6185304 and key.decrypt(result) == own.decrypt(result) == 1237
    wrapped = key.distance(ciphertexts, [0, 1, 1, 0], 3232, 11)
    assert own.decrypt(wrapped) == 2 and (2 - 3232) % 3233 == 3


def test_paillier_is_that_of_the_textbook():
    own = SecretKey(256)
    other = printed.Textbook(int(own._p), int(own._q))
    for number in (0, 1, own.public.modulus - 1, random.Random(0).randrange(2**200)):
        for ciphertext in (
            own.encrypt(number),
            own.public.encrypt(number),
            other.encrypt(int(number), 12345),
        ):
            assert own.decrypt(ciphertext) == other.decrypt(ciphertext) == number
    three = own.public.times(own.encrypt(3), -2)
    assert own.decrypt(int(own.public.plus(three, 10))) == 4
    assert own.public.encrypt(5) != own.public.encrypt(5) and "2" not in repr(own)


@pytest.mark.parametrize("primes", [(7, 7), (3, 7)])
def test_primes_that_make_no_key_are_refused(primes):
    with pytest.raises(ValueError, match="no Paillier key"):
        SecretKey(primes=primes)


def test_printed_row_sums():
    """Fixed point with 8 bits modulo 2^16, the printed masks, uploads and totals."""
    first = [1.1805011236, 0.4743213017, 0.0815743918, 0.0250930410, 0.1333791096, 0.0216502902]
    second = [0.0467433312, 0.0315286691, 0.6540885127, 1.6471131572, 0.0525611702, 1.6195081247]
    encoded = [to_fixed_point(np.array(some), 8, 2.0).astype(np.uint16) for some in (first, second)]
    assert encoded[0].tolist() == [302, 121, 21, 6, 34, 6] and encoded[1].tolist() == [
        12,
        8,
        167,
        422,
        13,
        415,
    ]
    clients = np.array([1, 1, 1, 2, 2, 2])
    zeros = np.zeros(6, np.uint16)
    shares = {1: np.stack([encoded[0], zeros], 1), 2: np.stack([zeros, encoded[1]], 1)}
    place = 2 * np.arange(6)[:, None] + np.arange(2) + 1
    mask = ((7919 * place**2 + 12345) % 2**16).astype(np.uint16)
    uploads, read = printed.row_sums(shares, clients, {1: mask, 2: -mask})
    assert uploads[2][:3].tolist() == [[45272, 21527], [47456, 57567], [51824, 30418]]
    assert uploads[1][3:].tolist() == [[7166, 60409], [63994, 17813], [53046, 38569]]
    assert read[1][0].tolist() == [302, 12]
    found = from_fixed_point(np.concatenate([read[1], read[2]]), 8)
    assert np.abs(found - np.stack([first, second], 1)).max() == pytest.approx(0.0017872, abs=1e-7)


def test_shares_of_a_secret():
    secret = bytes(range(224, 256))
    holders = [0, 3, 4, 7]
    shares = primitives.share_out(secret, holders, 3)
    for missing in holders:
        assert (
            primitives.put_together({some: shares[some] for some in holders if some != missing})
            == secret
        )
    assert primitives.put_together({some: shares[some] for some in holders[:2]}) != secret
    assert primitives.share_out(secret, holders, 3) != shares
    with pytest.raises(ValueError, match=r"must be 1\.\.4"):
        primitives.share_out(secret, holders, 5)


def test_a_missing_package_is_named_with_its_extra():
    with pytest.raises(MissingExtra, match=r"'no_such_package'.*pip install '\.\[secure\]'"):
        primitives.load("no_such_package.module")
