"""Keys and channels: who is who, and that a message counts once, in one place, from one sender."""

import subprocess
import sys

import numpy as np
import pytest

from fedjax_ssl.secure import (
    SERVER,
    BadKey,
    InconsistentView,
    MalformedMessage,
    NotAuthentic,
    ProtocolError,
    StaleMessage,
    primitives,
    protocols,
    wire,
)
from fedjax_ssl.secure.network import Endpoint, Network
from fedjax_ssl.secure.session import SessionClient, SessionServer
from fedjax_ssl.secure.wire import HEADER_BYTES, DistanceShare, OwnDistances, Seed
from tests.secure.parties import (
    IDENTITIES,
    PINNED,
    RUN,
    Recorder,
    connected,
    endpoints,
    random_codes,
    record_keys,
)

COUNTS = {0: 2, 3: 0, 5: 4}
SEED = Seed(bytes(range(32)))
ROWS = DistanceShare(3, np.arange(6, dtype=np.uint16).reshape(2, 3))


def session(tamper=lambda sender, receiver, data: data, counts=COUNTS, claimed=None, ends=None):
    """The machines of a session after it ran, and the network with what was refused."""
    ends = ends or endpoints(counts)
    machines = {
        client: SessionClient(ends[client], (claimed or counts)[client]) for client in counts
    }
    machines[SERVER] = SessionServer(ends[SERVER], list(counts))
    network = Network(Recorder(tamper))
    network.run("keys", machines)
    return machines, network


def with_roster(**changes):
    """A session in which the server sends client 3 another roster."""
    ends = endpoints(COUNTS)
    pack = ends[SERVER].pack

    def lying(receiver, message, attempt=0):
        if receiver == 3 and isinstance(message, wire.Roster):
            message = message._replace(
                **{name: change(getattr(message, name)) for name, change in changes.items()}
            )
        return pack(receiver, message, attempt)

    ends[SERVER].pack = lying
    return session(ends=ends)


def refusal(machines, network, party=3):
    ((who, error),) = network.refused
    assert who == party and not machines[party].counts and error.sender is not None
    return error


def test_everybody_has_one_view():
    machines, network = session()
    assert not network.refused
    assert all(machine.counts == COUNTS for machine in machines.values())
    assert len({machine.endpoint.transcript for machine in machines.values()}) == 1


def test_who_does_not_come_stays_out():
    ends = endpoints(COUNTS)
    machines = {client: SessionClient(ends[client], COUNTS[client]) for client in COUNTS}
    machines[SERVER] = SessionServer(ends[SERVER], list(COUNTS))
    Network(leaves={3: wire.SessionKey}).run("keys", machines)
    assert machines[0].counts == machines[SERVER].counts == {0: 2, 5: 4}


def test_channels_carry_messages():
    ends = connected(COUNTS)
    for sender, receiver in ((0, 5), (5, 0), (3, SERVER), (SERVER, 3)):
        for _ in range(3):
            found = ends[receiver].unpack(ends[sender].pack(receiver, ROWS).data)
            assert found[0] == sender
            np.testing.assert_array_equal(found[1].values, ROWS.values)


def test_every_flipped_bit_is_seen():
    """At every byte of a sealed message, header included; the message itself is read afterwards,
    once.
    """
    ends = connected(COUNTS)
    data = ends[0].pack(5, ROWS).data
    for place in range(len(data)):
        for bit in (1, 128):
            changed = data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]
            with pytest.raises(ProtocolError):
                ends[5].unpack(changed)
    assert ends[5].unpack(data)[0] == 0
    with pytest.raises(StaleMessage, match="was there before"):
        ends[5].unpack(data)


@pytest.mark.parametrize("cut", [-1, -16, HEADER_BYTES - 3, 0])
def test_truncated_messages_are_refused(cut):
    ends = connected(COUNTS)
    data = ends[0].pack(5, ROWS).data
    for some in (data[:cut], data + b"\0"):
        with pytest.raises(MalformedMessage):
            ends[5].unpack(some)


def test_replays_are_refused():
    ends = connected(COUNTS)
    later = connected(COUNTS, round=2)
    other = connected(COUNTS, run=bytes(16))
    data = ends[0].pack(5, SEED).data
    for party, error in (
        (ends[3], NotAuthentic),
        (ends[0], NotAuthentic),
        (later[5], StaleMessage),
    ):
        with pytest.raises(error):
            party.unpack(data)
    with pytest.raises(StaleMessage, match="another run"):
        other[5].unpack(data)
    with pytest.raises(StaleMessage, match="attempt"):
        ends[5].unpack(data, attempt=1)
    # Headers can be forged, seals cannot: the sender's message given back to it, or as another
    # round's.
    reflected = forge(data, sender=5, receiver=0)
    for party, some in (
        (ends[0], reflected),
        (later[5], forge(data, round=2)),
        (ends[5], forge(data, sequence=9)),
    ):
        with pytest.raises(NotAuthentic, match="seal"):
            party.unpack(some)
    assert ends[5].unpack(data) == (0, SEED)


def forge(data, **changes):
    header, _, body = wire.unpack_header(data)
    return wire.pack_header(header._replace(**changes), len(body)) + bytes(body)


def test_a_message_without_a_channel_is_refused():
    ends = endpoints(COUNTS)
    with pytest.raises(NotAuthentic, match="no channel to client 5"):
        ends[0].pack(5, SEED)
    with pytest.raises(NotAuthentic, match="no channel to the sender"):
        ends[5].unpack(connected(COUNTS)[0].pack(5, SEED).data)


def test_a_key_of_somebody_else_is_refused():
    """A client that signs with another identity than the pinned one does not get in; the others
    do.
    """
    ends = endpoints(COUNTS)
    ends[3] = Endpoint(3, primitives.Identity(), PINNED, RUN, 1)
    machines, network = session(ends=ends)
    (who, error), *_ = network.refused
    assert who == SERVER and isinstance(error, BadKey) and error.sender == 3
    assert machines[0].counts == {0: 2, 5: 4}


def substituted(table):
    changed = table.copy()
    changed[0] = np.frombuffer(primitives.ExchangeKey().public, np.uint8)
    return changed


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"publics": substituted}, NotAuthentic, "signature"),
        ({"identities": substituted}, BadKey, "not the pinned one"),
        ({"publics": lambda table: table[[0, 1, 0, 3]]}, BadKey, "twice"),
        (
            {"publics": lambda table: table * np.uint8([[1], [1], [0], [1]])},
            NotAuthentic,
            "signature",
        ),
        ({"publics": lambda table: table[:3]}, MalformedMessage, "shape"),
        (
            {"num_points": lambda counts: counts * 2, "first": lambda first: first * 2},
            NotAuthentic,
            "client 0",
        ),
        (
            {"num_points": lambda counts: counts + np.uint64([1, 0, 0])},
            InconsistentView,
            "overlap or leave gaps",
        ),
        (
            {"first": lambda first: first - np.uint64([0, 0, 1])},
            InconsistentView,
            "overlap or leave gaps",
        ),
        ({"clients": lambda clients: clients[[0, 0, 2]]}, InconsistentView, "twice"),
        (
            {"clients": lambda clients: clients + np.uint32([0, 1, 0])},
            InconsistentView,
            "its reader",
        ),
        ({"clients": lambda clients: clients[:2]}, InconsistentView, "differ in length"),
    ],
)
def test_another_roster_is_refused(changes, error, message):
    found = refusal(*with_roster(**changes))
    assert isinstance(found, error) and message in str(found)


def test_a_session_key_of_low_order_is_refused():
    """Even where it is signed: the client that uses it is malicious."""
    ends = endpoints(COUNTS)
    ends[5].key.public = bytes(32)
    machines, network = session(ends=ends)
    assert {who for who, _ in network.refused} >= {SERVER} or not machines[0].counts
    assert any(isinstance(error, BadKey) for _, error in network.refused)


def test_views_that_differ_open_no_channel():
    """Two groups with rosters of their own share no keys: every roster is part of them."""
    ends = connected(COUNTS)
    other = Endpoint(5, IDENTITIES[5], PINNED, RUN, 1)
    other.key = ends[5].key
    other.transcript = b"another view"
    other.connect(0, ends[0].key.public)
    with pytest.raises(NotAuthentic, match="seal"):
        other.unpack(ends[0].pack(5, SEED).data)


def test_keys_and_nonces_are_used_once(monkeypatch):
    """Across rounds and runs, with the same identities, every sealing key and nonce, and every
    stream, is new.
    """
    seals, streams = record_keys(monkeypatch)
    codes = random_codes(np.random.default_rng(0), (3, 2, 4), 20)
    shares = {client: np.full((9, 2), 7, np.uint32) for client in codes}
    for _ in range(2):
        real = protocols("real", 20, recovery=True, drop={})
        for _ in range(2):
            real.begin({client: len(some) for client, some in codes.items()})
            real.distances(0, 1, codes[0], codes[1])
            for _ in range(2):
                real.row_sums(shares, np.repeat([0, 1, 2], [3, 2, 4]))
    masks = [stream for stream in streams if stream[0] == "ChaCha20"]
    columns = [stream for stream in streams if stream[0] == "AES"]
    assert len(seals) == len(set(seals)) > 100
    # Each of 2 runs, 2 rounds, 2 sums: of 3 pairs the two ends, and 6 own masks at client and
    # server.
    assert len(masks) == 8 * (6 + 12) and len(set(masks)) == 8 * (3 + 6)
    # Of 128 pairs of seeds the receiver has both, the sender one of each.
    assert len(columns) == 4 * 3 * 128 and len(set(columns)) == 4 * 2 * 128


@pytest.mark.thorough
def test_a_fork_draws_other_keys():
    """In a process of its own: JAX does not like forks."""
    code = """
import os, warnings
warnings.simplefilter("ignore")
from fedjax_ssl.secure import primitives
primitives.ExchangeKey(), primitives.Group().scalar()  # whatever is seeded is seeded before the fork
child = os.fork()
drawn = primitives.ExchangeKey().public.hex(), primitives.Group().scalar().hex(), primitives.secrets.token_hex(32)
os.write(1, (" ".join(drawn) + "\\n").encode())  # in one piece: both processes write to one pipe
if child:
    os.waitpid(child, 0)
else:
    os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    drawn = done.stdout.split()
    assert len(drawn) == len(set(drawn)) == 6


def test_text_shows_no_secret():
    """Names, not contents, in what objects and errors say of themselves."""
    ends = connected(COUNTS)
    secret = ends[0].key.private_bytes()
    objects = [ends[0], ends[0].key, IDENTITIES[0], primitives.BitStream(secret[:16])]
    objects += [SessionClient(ends[0], 2), Network()]
    text = " ".join([*map(repr, objects), *map(str, objects)])
    for key in [secret, *(channel[0] for channel in ends[0]._channels.values())]:
        assert key.hex() not in text and repr(key)[2:-1] not in text
    try:
        ends[5].unpack(forge(ends[0].pack(5, SEED).data, sequence=7))
    except NotAuthentic as error:
        assert SEED.seed.hex() not in str(error) and repr(SEED.seed) not in str(error)


def test_a_message_that_is_not_due_changes_nothing():
    ends = connected(COUNTS)
    server = SessionServer(ends[SERVER], list(COUNTS))
    with pytest.raises(MalformedMessage, match=r"not due \(from client 0\)"):
        server.receive(ends[0].pack(SERVER, OwnDistances(np.zeros((1, 1), np.uint8))).data)
