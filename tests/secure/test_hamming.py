"""SecureHamming: the integers of the plain computation, and views that say nothing more."""

import itertools

import numpy as np
import pytest
from scipy import stats

from fedjax_ssl.secure import SERVER, InconsistentView, MalformedMessage, secure_hamming, wire
from fedjax_ssl.secure.hamming_paillier import PackedBits, PaillierEvaluator, PublicKey
from fedjax_ssl.secure.hamming_transfer import (
    BaseReceiver,
    BaseSender,
    ExtensionReceiver,
    ExtensionSender,
    TransferReceiver,
    TransferSender,
    TransferServer,
    chunks,
)
from fedjax_ssl.secure.network import Network
from tests.secure import printed
from tests.secure.parties import Recorder, codes_of, connected, random_codes

KEY_BITS = 256  # for tests of numbers: no security


def distances(codes, num_bits, **settings):
    return secure_hamming(codes, num_bits, **settings)


def assert_all_levels_agree(codes, num_bits, **settings):
    ideal = distances(codes, num_bits, level="ideal")
    accounted = distances(codes, num_bits, level="accounted", **settings)
    real = distances(codes, num_bits, **settings)
    assert ideal.result.keys() == accounted.result.keys() == real.result.keys()
    for pair, expected in ideal.result.items():
        assert real.result[pair].dtype == np.int32
        np.testing.assert_array_equal(real.result[pair], expected)
        np.testing.assert_array_equal(accounted.result[pair], expected)
    assert real.traffic == accounted.traffic
    return real


SIZES = [((1, 1), 1), ((3, 1, 4), 12), ((2, 0, 5), 255), ((4, 6), 256), ((2, 3), 300)]


@pytest.mark.parametrize("hamming", ["transfer", "paillier"])
@pytest.mark.parametrize("sizes, num_bits", SIZES)
def test_distances_are_exact_and_counted(sizes, num_bits, hamming):
    codes = random_codes(np.random.default_rng(num_bits), sizes, num_bits)
    assert_all_levels_agree(codes, num_bits, hamming=hamming, key_bits=KEY_BITS)


@pytest.mark.thorough
@pytest.mark.parametrize("num_bits", [65535, 65536])
def test_long_codes(num_bits):
    """Two and four bytes for a distance; 0 and num_bits are different numbers."""
    zeros = codes_of(np.zeros((1, num_bits), np.uint8))
    ones = codes_of(np.ones((2, num_bits), np.uint8))
    real = assert_all_levels_agree({0: zeros, 1: ones}, num_bits)
    assert real.result[0, 1].tolist() == [[num_bits, num_bits]]


@pytest.mark.parametrize("hamming", ["transfer", "paillier"])
@pytest.mark.parametrize("num_bits", [15, 16, 255])
def test_equal_and_complementary_codes(num_bits, hamming):
    bits = np.random.default_rng(0).integers(0, 2, (1, num_bits), np.uint8)
    codes = {
        0: codes_of(np.repeat(bits, 2, 0)),
        1: codes_of(np.concatenate([bits, 1 - bits, bits])),
    }
    real = assert_all_levels_agree(codes, num_bits, hamming=hamming, key_bits=KEY_BITS)
    assert real.result[0, 1].tolist() == 2 * [[0, num_bits, 0]]


def test_several_chunks(monkeypatch):
    """What is cut to save memory is put together again, streams going on where they ended."""
    from fedjax_ssl.secure import hamming_transfer

    monkeypatch.setattr(hamming_transfer, "_CHUNK_BYTES", 400)
    codes = random_codes(np.random.default_rng(1), (7, 9), 21)
    assert len(list(chunks(7, 9, 21))) == 4
    real = assert_all_levels_agree(codes, 21)
    assert real.traffic.messages["hamming", 0, 1] == 1 + 4


def test_all_roles_and_the_printed_forms():
    """The worked example's codes, every ordered choice of who is who, against the printed
    protocols.
    """
    from tests.graph import reference

    bits = reference.EXAMPLE_CODES.astype(np.uint8)
    random = np.random.default_rng(2)
    for sizes in ((2, 4), (4, 2), (3, 3)):
        codes = {0: codes_of(bits[: sizes[0]]), 1: codes_of(bits[sizes[0] :])}
        for hamming in ("transfer", "paillier"):
            found = distances(codes, 12, hamming=hamming, key_bits=KEY_BITS).result[0, 1]
            for (a, v), (b, u) in itertools.product(
                enumerate(bits[: sizes[0]]), enumerate(bits[sizes[0] :])
            ):
                *_, rho, tau = printed.shade(
                    v.tolist(), u.tolist(), 16, random.integers(0, 16, 12).tolist()
                )
                assert found[a, b] == (tau - rho) % 16
    key = printed.Textbook(61, 53)
    ciphertexts = [key.encrypt(int(bit), 17 + place) for place, bit in enumerate(bits[0])]
    assert (
        key.decrypt(key.distance(ciphertexts, bits[3].tolist(), 500, 23)) - 500 == found[0, 0] == 6
    )


def test_printed_transfers_show_the_distance_alone():
    """L = 2, l = 3, over all r: t is alike for every a; (rho, tau) depends on (a, b) through
    their distance only.
    """
    views = {}
    received = {}
    for v in itertools.product((0, 1), repeat=2):
        for u in itertools.product((0, 1), repeat=2):
            both = [printed.shade(v, u, 3, r)[2:] for r in itertools.product(range(3), repeat=2)]
            received[v, u] = sorted(tuple(t) for t, *_ in both)
            distance = sum(a != b for a, b in zip(v, u, strict=True))
            views.setdefault(distance, set()).add(tuple(sorted((rho, tau) for _, rho, tau in both)))
    assert len({tuple(some) for some in received.values()}) == 1
    assert all(len(some) == 1 for some in views.values())


def extension(context=b"test"):
    base = BaseSender(context, 1)
    chosen = BaseReceiver(context, 0, base.point)
    seeds = base.seeds(chosen.hidden)
    for number, choice in enumerate(chosen.choices):
        assert seeds[number][choice] == chosen.seeds[number] != seeds[number][1 - choice]
    return ExtensionReceiver(seeds), ExtensionSender(chosen.choices, chosen.seeds)


def test_an_extension_goes_on():
    """Two calls on one set of base transfers: other columns for the same choices, other pads,
    other numbers.
    """
    receiver, sender = extension()
    choices = np.random.default_rng(0).integers(0, 2, 64, np.uint8)
    seen = []
    for call in range(3):
        first, columns, rows = receiver.extend(choices)
        assert first == 64 * call
        pads = receiver.pads(rows, first, 3)
        zero, one = sender.pads(sender.extend(first, columns, 0), first, 3)
        np.testing.assert_array_equal(np.where(choices[:, None, None] == 1, one, zero), pads)
        assert not (np.where(choices[:, None, None] == 1, zero, one) == pads).any()
        seen.append((columns, zero, one))
    for mine, yours in itertools.combinations(seen, 2):
        for some, other in zip(mine, yours, strict=True):
            assert (some == other).mean() < 0.05
    # A sender does not go back: the same columns again would be a stream used twice.
    with pytest.raises(MalformedMessage, match="192 is next"):
        sender.extend(0, seen[0][0], 0)


def test_another_context_has_other_seeds():
    """Base transfers are bound to the session and to the pair."""
    base = BaseSender(b"one", 1)
    chosen = BaseReceiver(b"other", 0, base.point)
    seeds = base.seeds(chosen.hidden)
    assert not any(seed in pair for seed, pair in zip(chosen.seeds, seeds, strict=True))


def run_transfer(tamper=lambda sender, receiver, data: data, codes=None, num_bits=40, claimed=None):
    codes = codes or random_codes(np.random.default_rng(3), (3, 4), num_bits)
    ends = connected({0: 3, 1: 4})
    machines = {
        0: TransferReceiver(ends[0], 1, codes[0], claimed or 4, num_bits),
        1: TransferSender(ends[1], 0, codes[1], 3, num_bits),
        SERVER: TransferServer(ends[SERVER], 0, 1, (3, 4), num_bits),
    }
    network = Network(Recorder(tamper))
    network.run("hamming", machines)
    return machines, network


def transfer_views(bits_of_0, bits_of_1):
    """What the server is sent, by client, and the corrections that the receiver is sent; many
    copies of one pair.
    """
    codes = {0: codes_of(np.repeat([bits_of_0], 40, 0)), 1: codes_of(np.repeat([bits_of_1], 41, 0))}
    ends = connected({0: 40, 1: 41})
    seen = {}
    num_bits = len(bits_of_0)
    machines = {
        0: TransferReceiver(ends[0], 1, codes[0], 41, num_bits),
        1: TransferSender(ends[1], 0, codes[1], 40, num_bits),
        SERVER: TransferServer(ends[SERVER], 0, 1, (40, 41), num_bits),
    }
    for party in (0, SERVER):
        unpack = ends[party].unpack

        def look(data, attempt=0, unpack=unpack):
            sender, message = unpack(data, attempt)
            if isinstance(message, wire.DistanceShare | wire.Corrections):
                seen[type(message), sender] = message.values.astype(int)
            return sender, message

        ends[party].unpack = look
    Network().run("hamming", machines)
    share = seen[wire.DistanceShare, 0]
    half = seen[wire.DistanceShare, 1]
    return share, half, seen[wire.Corrections, 1]


def test_views_depend_on_the_distance_alone():
    """Two inputs with equal distance: the server's shares are uniform, their difference is the
    distance, and nothing tells the inputs apart; what the receiver is sent is uniform as well.
    """
    random = np.random.default_rng(0)
    u, other = random.integers(0, 2, (2, 40), np.uint8)
    flip = random.permutation(40) < 17
    views = []
    for v, w in ((u, u ^ flip), (other, other ^ flip[::-1])):
        share, half, corrections = transfer_views(v, w)
        assert ((share - half) % 256 == 17).all()
        views.append((share.reshape(-1), corrections.reshape(-1)))
    for one, two in zip(*views, strict=True):
        for some in (one, two):
            assert stats.chisquare(np.bincount(some, minlength=256)).pvalue > 1e-6
        assert (
            stats.chi2_contingency([np.bincount(some, minlength=256) for some in (one, two)]).pvalue
            > 1e-6
        )
    # Power: halves that are not masked show the input at once.
    assert stats.chisquare(np.bincount(np.repeat(u, 40), minlength=256)).pvalue < 1e-9


def test_a_changed_message_gives_no_distances():
    """A message that is damaged on its way counts as one that never came; nobody gets a wrong
    number.
    """

    def damage(sender, receiver, data):
        return data[:-1] + bytes([data[-1] ^ 1]) if (sender, receiver) == (1, 0) else data

    machines, network = run_transfer(damage)
    assert machines[SERVER].distances is None
    ((who, error),) = network.refused
    assert who == 0 and error.sender == 1


def test_a_lie_about_points_gives_no_distances():
    machines, network = run_transfer(claimed=5)
    assert machines[SERVER].distances is None and network.refused


@pytest.mark.parametrize(
    "message",
    [
        wire.DistanceShare(1, np.zeros((4, 4), np.uint8)),
        wire.DistanceShare(1, np.zeros((2, 4), np.uint8)),
        wire.DistanceShare(1, np.zeros((3, 4), np.uint16)),
        wire.DistanceShare(1, np.zeros((0, 0), np.uint8)),
        wire.DistanceShare(7, np.zeros((3, 4), np.uint8)),
        wire.OwnDistances(np.zeros((3, 3), np.uint8)),
    ],
)
def test_the_server_refuses_other_shares(message):
    ends = connected({0: 3, 1: 4})
    server = TransferServer(ends[SERVER], 0, 1, (3, 4), 40)
    with pytest.raises(MalformedMessage, match="client 0"):
        server.receive(ends[0].pack(SERVER, message).data)
    good = (
        wire.DistanceShare(1, np.full((3, 4), 45, np.uint8)),
        wire.DistanceShare(0, np.full((3, 4), 5, np.uint8)),
    )
    server.receive(ends[0].pack(SERVER, good[0]).data)
    server.receive(ends[1].pack(SERVER, good[1]).data)
    assert (server.distances == 40).all()


def test_a_share_that_gives_no_distance_is_refused():
    ends = connected({0: 1, 1: 1})
    server = TransferServer(ends[SERVER], 0, 1, (1, 1), 40)
    server.receive(ends[0].pack(SERVER, wire.DistanceShare(1, np.full((1, 1), 41, np.uint8))).data)
    with pytest.raises(InconsistentView, match="above 40 bits"):
        server.receive(ends[1].pack(SERVER, wire.DistanceShare(0, np.zeros((1, 1), np.uint8))).data)


def evaluated(codes, num_bits, packed, rerandomize=True):
    """What the other client sends the key owner, and the masks that it sends the server."""
    ends = connected({0: packed.num_points, 1: len(codes)})
    machine = PaillierEvaluator(ends[1], 0, codes, packed.num_points, num_bits, packed.key_bits)
    hidden, share = machine.receive(ends[0].pack(1, packed.message).data)
    return ends[0].unpack(hidden.data)[1], ends[SERVER].unpack(share.data)[1]


def as_numbers(values):
    return [int.from_bytes(row.tobytes(), "little") for row in values.reshape(-1, values.shape[-1])]


def guesses(packed, result, mask, num_bits):
    """Which codes v the key owner cannot exclude, given the mask: those whose product has the
    same ciphertext bytes.
    """
    public = packed.key.public
    columns = as_numbers(packed.message.ciphertexts)
    ones = sum(1 << (slot * num_bits.bit_length()) for slot in range(packed.num_points))
    possible = []
    for guess in itertools.product((0, 1), repeat=num_bits):
        product = public.add(columns) * public.times(
            public.add([c for c, bit in zip(columns, guess, strict=True) if bit]), -2
        )
        shifted = product * (1 + (ones * sum(guess) + mask) * public.modulus) % public.squared
        if int(shifted) == result:
            possible.append(guess)
    return possible


def test_results_are_rerandomized(monkeypatch):
    """Guess-and-compare finds the code where the last factor is missing (4 bits), and never
    where it is there.
    """
    bits = np.array([[1, 0, 1, 1]], np.uint8)
    packed = PackedBits(codes_of(np.eye(3, 4, dtype=np.uint8)), 4, KEY_BITS)
    hidden, share = evaluated(codes_of(bits), 4, packed)
    again, _ = evaluated(codes_of(bits), 4, packed)
    (result,) = as_numbers(hidden.ciphertexts)
    (mask,) = as_numbers(share.values)
    assert guesses(packed, result, mask, 4) == [] and as_numbers(again.ciphertexts) != [result]
    monkeypatch.setattr(PublicKey, "blind", lambda self: 1)
    hidden, share = evaluated(codes_of(bits), 4, packed)
    (result,) = as_numbers(hidden.ciphertexts)
    (mask,) = as_numbers(share.values)
    assert guesses(packed, result, mask, 4) == [(1, 0, 1, 1)]


def test_the_key_owner_decrypts_uniform_numbers():
    """The mask covers the whole plaintext: no slot of it stands out, whatever the codes are."""
    packed = PackedBits(codes_of(np.eye(3, 4, dtype=np.uint8)), 4, KEY_BITS)
    modulus = int(packed.key.public.modulus)
    for bits in (np.zeros((40, 4), np.uint8), np.ones((40, 4), np.uint8)):
        hidden, _ = evaluated(codes_of(bits), 4, packed)
        shares = [packed.key.decrypt(number) / modulus for number in as_numbers(hidden.ciphertexts)]
        assert (
            len(set(shares)) == 40
            and 0.3 < np.mean(shares) < 0.7
            and max(shares) > 0.8
            and min(shares) < 0.2
        )


@pytest.mark.parametrize("bad", [0, "modulus", "squared"])
def test_what_is_no_ciphertext_is_refused(bad):
    packed = PackedBits(codes_of(np.eye(3, 4, dtype=np.uint8)), 4, KEY_BITS)
    number = {0: 0, "modulus": int(packed.key.public.modulus), "squared": 2 ** (2 * KEY_BITS) - 1}[
        bad
    ]
    values = packed.message.ciphertexts.copy()
    values[0, 0] = np.frombuffer(number.to_bytes(values.shape[-1], "little"), np.uint8)
    ends = connected({0: 3, 1: 1})
    machine = PaillierEvaluator(ends[1], 0, codes_of(np.ones((1, 4), np.uint8)), 3, 4, KEY_BITS)
    with pytest.raises(MalformedMessage, match=r"no ciphertext of this key \(from client 0\)"):
        machine.receive(ends[0].pack(1, packed.message._replace(ciphertexts=values)).data)


def test_python_integers_will_do(monkeypatch):
    """Without gmpy2 the same numbers come out, later."""
    from fedjax_ssl.secure import hamming_paillier as paillier

    monkeypatch.setattr(paillier, "gmpy2", None)
    codes = random_codes(np.random.default_rng(5), (2, 3), 20)
    assert_all_levels_agree(codes, 20, hamming="paillier", key_bits=KEY_BITS)


@pytest.mark.parametrize(
    "codes, settings, message",
    [
        ({0: np.zeros((1, 1), np.int64)}, {}, "allowed: uint32"),
        ({0: np.zeros((1, 2), np.uint32)}, {}, r"allowed: uint32 \[n, 1\]"),
        (
            {0: np.zeros((1, 1), np.uint32)},
            {"hamming": "paillier", "key_bits": 1000},
            "multiple of 16",
        ),
        ({0: np.zeros((1, 1), np.uint32)}, {"drop": {0: "later"}}, "drop is 'later'"),
    ],
)
def test_bad_arguments_are_refused(codes, settings, message):
    with pytest.raises(ValueError, match=message):
        secure_hamming(codes, 20, **settings)
