"""SecureRowSums: exact sums, dropouts at every point, and what the server sees."""

import collections
import functools
import itertools

import numpy as np
import pytest
from scipy import stats

from fedjax_ssl.graph.exchange import from_fixed_point, spare_bits, to_fixed_point
from fedjax_ssl.secure import (
    SERVER,
    InconsistentView,
    MalformedMessage,
    NotAuthentic,
    StaleMessage,
    TooFewClients,
    secure_row_sums,
    wire,
)
from fedjax_ssl.secure.network import Network
from fedjax_ssl.secure.primitives import ExchangeKey, add_key_stream, hkdf
from fedjax_ssl.secure.row_sums import PairMasks, RowSumClient, RowSumServer
from fedjax_ssl.secure.wire import MaskedRows, MaskKeys, RecoveryRequest, RowTotals, SumStart
from tests.secure import printed
from tests.secure.parties import Recorder, connected

CLIENTS = (0, 2, 3, 5)
CLASSES = 3
COUNTS = dict(zip(CLIENTS, (4, 1, 0, 3), strict=True))
OWNER = np.array([0, 5, 0, 0, 2, 5, 5, 0])
DTYPES = [np.uint32, np.uint64]


def shares_of(dtype=np.uint32, seed=0):
    random = np.random.default_rng(seed)
    return {
        client: random.integers(0, np.iinfo(dtype).max, (len(OWNER), CLASSES), dtype)
        for client in CLIENTS
    }


SHARES = shares_of()


def plain(shares, live=CLIENTS, readers=None):
    total = sum(shares[client] for client in live)
    return np.where(np.isin(OWNER, live if readers is None else readers)[:, None], total, 0)


class Sum:
    """One sum with all its parts: machines, network, recorded messages."""

    def __init__(
        self,
        shares=SHARES,
        threshold=None,
        leaves=None,
        told=None,
        tamper=None,
        min_clients=3,
        ends=None,
    ):
        self.ends = ends or connected(COUNTS)
        places = {client: np.flatnonzero(client == OWNER) for client in CLIENTS}
        given = dict(min_clients=min_clients, threshold=threshold)
        self.clients = {
            client: RowSumClient(
                self.ends[client],
                {other: shares[client][rows] for other, rows in places.items()},
                (told or {}).get(client, bytes(32)),
                **given,
            )
            for client in CLIENTS
        }
        dtype = shares[0].dtype.type
        self.server = RowSumServer(self.ends[SERVER], list(CLIENTS), CLASSES, dtype, **given)
        self.transport = Recorder(tamper or (lambda sender, receiver, data: data))
        self.network = Network(self.transport, leaves)
        self.shares = shares

    def run(self):
        self.network.run("sums", {**self.clients, SERVER: self.server})
        return self

    @property
    def results(self):
        return {client: machine.result for client, machine in self.clients.items()}

    def check(self, live, readers=None):
        expected = plain(self.shares, live)
        for client, found in self.results.items():
            if client in (live if readers is None else readers):
                np.testing.assert_array_equal(found, expected[client == OWNER])
            else:
                assert found is None


@pytest.mark.parametrize("threshold", [None, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_are_exact(dtype, threshold):
    some = Sum(shares_of(dtype), threshold).run()
    some.check(CLIENTS)
    assert not some.network.refused and some.server.attempts == 1


@pytest.mark.parametrize("recovery", [False, True])
@pytest.mark.parametrize(
    "drop, live, readers",
    [
        ({}, CLIENTS, None),
        ({3: "keys"}, (0, 2, 5), None),
        ({2: "mask"}, (0, 3, 5), None),
        ({0: "sums"}, (2, 3, 5), None),
        ({5: "result"}, CLIENTS, (0, 2, 3)),
    ],
)
def test_dropouts(drop, live, readers, recovery):
    """Who is gone before it sent its rows is left out, rows and all; who does not read has only
    no result.
    """
    found = {
        level: secure_row_sums(SHARES, OWNER, level=level, drop=drop, recovery=recovery)
        for level in ("ideal", "accounted", "real")
    }
    for some in found.values():
        np.testing.assert_array_equal(some.result, plain(SHARES, live, readers))
    assert found["real"].traffic == found["accounted"].traffic


def uploads(some):
    """(attempt, sender) -> the masked rows that the server was sent; opened with the server's
    keys.
    """
    found = {}
    for sender, receiver, data in some.transport.sent:
        header, head, body = wire.unpack_header(data)
        if receiver == SERVER and wire.MESSAGES[header.kind - 1] is MaskedRows:
            from fedjax_ssl.secure import primitives

            key = some.ends[SERVER]._channels[sender][1]
            plain_body = primitives.unseal(
                key, header.sequence.to_bytes(12, "little"), body, head, sender
            )
            found[header.attempt, sender] = wire.decode(header.kind, plain_body, sender).rows
    return found


def test_a_restart_has_fresh_masks_and_omits_rows():
    some = Sum(leaves={3: MaskedRows}).run()
    some.check((0, 2, 5))
    seen = uploads(some)
    assert some.server.attempts == 2 and {attempt for attempt, _ in seen} == {1, 2}
    for client in (0, 2, 5):
        first = seen[1, client]
        second = seen[2, client]
        assert len(first) == len(OWNER) - COUNTS[client] + 3 and len(second) == len(first) - 1
        # Of 64 random bits none is expected to agree by more than chance.
        assert (first[:3] - second[:3] != 0).all()


def test_a_late_message_is_refused():
    """The rows of the attempt before, after the restart: stale, and what they would have shown
    stays hidden.
    """
    held = []

    def hold(sender, receiver, data):
        kind = wire.MESSAGES[wire.unpack_header(data)[0].kind - 1]
        if sender == 3 and kind is MaskedRows and not held:
            held.append(data)
            return data[:-1]  # arrives damaged, so it counts as not arrived
        return data

    some = Sum(tamper=hold).run()
    some.check((0, 2, 5))
    with pytest.raises(StaleMessage, match="client 3"):
        some.server.receive(held[0])
    with pytest.raises(StaleMessage):
        some.clients[0].receive(some.ends[SERVER].pack(0, SumStart(CLASSES, 32), 1).data)


@pytest.fixture
def one_stream_for_a_pair(monkeypatch):
    """The deliberately broken variant: masks depend on the pair, and on no run, round, attempt
    or roster.
    """

    def add(self, total, one, key, other, public):
        add_key_stream(
            total, hkdf(bytes(sorted((one, other))), b"", b"pair"), 1 if one < other else -1
        )

    return lambda: monkeypatch.setattr(PairMasks, "add", add)


@pytest.mark.parametrize("broken", [False, True])
def test_a_stream_in_two_transcripts_would_show_a_matrix(one_stream_for_a_pair, broken):
    """One attempt twice, the second time without labels at client 3: streams used twice cancel, and
    the server alone reads all rows that client 3 sends.
    """
    if broken:
        one_stream_for_a_pair()
    first = Sum().run()
    second = Sum({**SHARES, 3: np.zeros_like(SHARES[3])}).run()
    difference = uploads(first)[1, 3] - uploads(second)[1, 3]
    in_order = np.concatenate([SHARES[3][client == OWNER] for client in CLIENTS])
    assert COUNTS[3] == 0 and len(difference) == len(in_order) + len(CLIENTS) - 1
    found = difference[: len(in_order)] == in_order
    assert found.all() if broken else not found.any()


@pytest.mark.parametrize(
    "leaves, attempts",
    [
        ({3: MaskedRows}, 1),
        ({0: MaskedRows}, 1),
        ({5: wire.Recovery}, 2),
        ({5: wire.KeyShare}, 2),
    ],
)
def test_recovery(leaves, attempts):
    """Who vanishes with its rows costs no new attempt; who vanishes elsewhere does."""
    some = Sum(threshold=3, leaves=leaves).run()
    (gone,) = leaves
    some.check(tuple(client for client in CLIENTS if client != gone))
    assert some.server.attempts == attempts


def test_recovery_reveals_one_mask_of_a_client():
    """A client that is told somebody is both gone and there, or that is asked twice, says
    nothing.
    """
    some = Sum(threshold=3, leaves={3: MaskedRows})
    asked = []
    answer = some.clients[0]._recover

    def record(request):
        asked.append(request)
        return answer(request)

    some.clients[0]._recover = record
    some.run()
    (request,) = asked
    assert request.gone.tolist() == [3] and request.uploaded.tolist() == [0, 2, 5]
    for gone, uploaded in (
        ([3], [0, 2, 3, 5]),
        ([0], [2, 3, 5]),
        ([], [0, 2, 5]),
        ([2, 3, 5], [0]),
    ):
        other = Sum(threshold=3)
        client = other.clients[0]
        client._rows = some.server._rows
        client._sent = True
        with pytest.raises((InconsistentView, TooFewClients)):
            client._recover(
                RecoveryRequest(np.array(gone, np.uint32), np.array(uploaded, np.uint32))
            )


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_clients(count):
    """One client alone, or two, who would read each other's share."""
    shares = {client: np.ones((2, 1), np.uint32) for client in range(count)}
    for level in ("ideal", "accounted", "real"):
        with pytest.raises(ValueError):
            secure_row_sums(shares, np.zeros(2, int), level=level)
    if count == 2:
        found = secure_row_sums(shares, np.array([0, 1]), min_clients=2)
        assert found.result.tolist() == [[2], [2]]


@pytest.mark.parametrize("phase", ["keys", "mask", "sums"])
def test_too_few_are_left(phase):
    for level in ("ideal", "real"):
        with pytest.raises(TooFewClients, match="2 clients are live; a sum needs at least 3"):
            secure_row_sums(SHARES, OWNER, level=level, drop={0: phase, 2: phase})


def test_a_client_refuses_a_sum_of_two():
    """Also where the server would go on."""
    some = Sum()
    some.server._min_clients = 1
    some.network.leaves = {0: wire.MaskKey, 2: wire.MaskKey}
    with pytest.raises(TooFewClients):
        some.server._min_clients = 2
        some.run()
    assert {type(error) for _, error in some.network.refused} == {TooFewClients}


BAD_ROWS = [
    np.zeros((8, CLASSES), np.uint32),
    np.zeros((6, CLASSES), np.uint32),
    np.zeros((7, CLASSES + 1), np.uint32),
    np.zeros((7, CLASSES), np.uint64),
    np.zeros((0, CLASSES), np.uint32),
]


@pytest.mark.parametrize("rows", BAD_ROWS)
def test_rows_of_another_shape_are_refused(rows):
    """Typed, named, and no harm to the others: the sum goes on without the sender."""
    some = Sum()
    client = some.clients[0]
    client._upload = lambda: [
        client.endpoint.pack(SERVER, MaskedRows(rows), client.endpoint.last_attempt)
    ]
    some.run()
    assert some.network.refused[0][1].sender == 0 and isinstance(
        some.network.refused[0][1], MalformedMessage
    )
    some.check((2, 3, 5))


def changed_keys(change, receiver=2):
    """A sum in which the server sends one client another list of mask keys."""
    some = Sum()
    pack = some.ends[SERVER].pack

    def lying(to, message, attempt=0):
        if isinstance(message, MaskKeys) and to == receiver:
            message = change(message)
        return pack(to, message, attempt)

    some.ends[SERVER].pack = lying
    return some.run()


def other_key(keys):
    publics = keys.publics.copy()
    publics[0] = np.frombuffer(ExchangeKey().public, np.uint8)
    return keys._replace(publics=publics)


@pytest.mark.parametrize(
    "change, error",
    [
        (other_key, NotAuthentic),
        (lambda keys: keys._replace(publics=keys.publics[[1, 1, 2, 3]]), Exception),
        (
            lambda keys: keys._replace(publics=keys.publics * np.uint8([[0], [1], [1], [1]])),
            NotAuthentic,
        ),
        (
            lambda keys: keys._replace(num_rows=keys.num_rows + np.uint64([0, 0, 0, 1])),
            InconsistentView,
        ),
        (lambda keys: keys._replace(first=keys.first - np.uint64([0, 1, 0, 0])), InconsistentView),
        (lambda keys: MaskKeys(*(some[[0, 2, 3]] for some in keys)), InconsistentView),
        (
            lambda keys: keys._replace(told=keys.told + np.uint8([[1], [0], [0], [0]])),
            InconsistentView,
        ),
    ],
)
def test_another_list_of_keys_is_refused(change, error):
    """Keys, rows and what was told: nothing is masked for who sees it; the others do without
    that client.
    """
    some = changed_keys(change)
    who, found = some.network.refused[0]
    assert who == 2 and isinstance(found, error) and found.sender is not None
    some.check((0, 3, 5))


def test_a_lie_about_rows_is_seen():
    some = Sum()
    some.clients[5]._shares = {**some.clients[5]._shares, 5: np.zeros((4, CLASSES), np.uint32)}
    with pytest.raises(TooFewClients):
        some.run()
    assert {who for who, error in some.network.refused if isinstance(error, InconsistentView)} == {
        0,
        2,
        3,
    }


def test_equivocation_does_not_cancel(monkeypatch):
    """Clients that were told different things: each says so. One that does not look has masks
    that do not cancel.
    """
    told = dict.fromkeys(CLIENTS, b"a" * 32) | {2: b"b" * 32}
    some = Sum(told=told)
    with pytest.raises(TooFewClients):
        some.run()
    assert all(isinstance(error, InconsistentView) for _, error in some.network.refused)
    # Another list of clients to one of them, by a server that could forge signatures: the check row
    # is not 0.
    monkeypatch.setattr(RowSumClient, "_check", lambda self, keys: None)
    some = changed_keys(lambda keys: keys._replace(told=keys.told ^ np.uint8(1)))
    errors = [error for _, error in some.network.refused]
    assert len(errors) == 4 and all("check row is not 0" in str(error) for error in errors)
    assert not any(result is not None for result in some.results.values())


def test_totals_that_were_changed_are_seen_in_the_check_row():
    some = Sum()
    finish = some.server._send

    def lying():
        some.server._total += np.uint32(1)
        return finish()

    some.server._send = lying
    some.run()
    assert len(some.network.refused) == 4 and all(
        result is None for result in some.results.values()
    )
    other = Sum().run()
    with pytest.raises(MalformedMessage, match="not due"):
        message = RowTotals(np.zeros((5, CLASSES), np.uint32))
        other.clients[0].receive(other.ends[SERVER].pack(0, message, 1).data)


# Fixed point.
CHECKS = dict(fraction_bits=18, largest=10000.0)


@pytest.mark.parametrize("num_clients", [3, 72])
def test_sums_are_exact_at_the_bound(num_clients):
    """The largest sum that public numbers allow fits, one bit more does not; the bound counts
    all clients' rounding.
    """
    largest = 7071.0
    fraction = spare_bits(largest, num_clients)
    worst = np.full(num_clients, largest / num_clients)
    shares = [to_fixed_point(np.array([[value]]), fraction, largest) for value in worst]
    total = functools.reduce(np.add, shares)[0, 0]
    assert int(total) == sum(int(share[0, 0]) for share in shares) < 2**32
    assert (
        abs(from_fixed_point(np.array(total), fraction) - largest)
        <= num_clients * 2.0 ** -(fraction + 1) + 1e-9
    )
    assert 2.0 ** (fraction + 1) * largest + num_clients / 2 > 2**32 * (1 - 1e-9)
    with pytest.raises(ValueError, match="do not fit 32 bits"):
        to_fixed_point(worst, fraction + 1, largest)
    with pytest.raises(ValueError, match="above the bound"):
        to_fixed_point(np.array([np.nextafter(largest, np.inf)]), fraction, largest)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1e-9, 5e-324, 2.2e-308, 10000.1])
def test_what_is_no_score_is_refused(value):
    with pytest.raises(ValueError, match="1 numbers cannot be put into fixed point"):
        to_fixed_point(np.array([[0.0, value, 1.0]]), **CHECKS)


def test_a_sum_that_may_not_fit_is_refused():
    shares = {client: np.full((3, 1), 2**30, np.uint32) for client in range(3)}
    found = secure_row_sums(shares, np.arange(3), largest_sum=3 * 2**30)
    assert found.result.tolist() == [[3 * 2**30]] * 3
    for largest in (2**32, 2**30 - 1):
        with pytest.raises(ValueError, match="the sum can reach"):
            secure_row_sums(shares, np.arange(3), largest_sum=largest)
    with pytest.raises(ValueError, match="all alike"):
        secure_row_sums({**shares, 3: np.zeros((3, 2), np.uint32)}, np.arange(3))
    with pytest.raises(ValueError, match="without a matrix"):
        secure_row_sums(shares, np.arange(1, 4))


# What the server sees.


def server_views(shares, count, size=64):
    """Numbers that the server is sent in sums of three clients, whatever the shares: [count,
    rows, classes].
    """
    owner = np.repeat([0, 1, 2], size)
    views = []
    ends = connected({0: 0, 1: 0, 2: 0})
    for _ in range(count):
        parts = {c: {o: shares[c][owner == o] for o in range(3)} for c in range(3)}
        machines = {c: RowSumClient(ends[c], parts[c]) for c in range(3)}
        server = RowSumServer(ends[SERVER], [0, 1, 2], shares[0].shape[1], np.uint32)
        seen = []
        receive = server.receive

        def look(data, server=server, seen=seen, receive=receive):
            out = receive(data)
            if server._phase == "done":
                seen += [server._uploads[c] for c in range(3)]
            return out

        server.receive = look
        Network().run("sums", {**machines, SERVER: server})
        views.append(np.concatenate(seen))
    return np.stack(views)


def byte_tests(view):
    """p-values of: byte counts, bits, serial correlation, and a Kolmogorov-Smirnov test."""
    counts = np.bincount(view, minlength=256)
    bits = np.unpackbits(view)
    correlation = np.corrcoef(view[:-1], view[1:])[0, 1] * np.sqrt(len(view) - 1)
    return {
        "bytes": stats.chisquare(counts).pvalue,
        "bits": stats.binomtest(int(bits.sum()), len(bits)).pvalue,
        "serial": 2 * stats.norm.sf(abs(correlation)),
        "uniform": stats.kstest(
            view.astype(float) + np.random.default_rng(0).random(len(view)), "uniform", (0, 256)
        ).pvalue,
    }


def test_the_servers_view_is_noise():
    """For shares of zeros and for shares of structure; biased masks are seen by the same tests
    (power).
    """
    zeros = {c: np.zeros((192, 8), np.uint32) for c in range(3)}
    ramp = {c: np.arange(192 * 8, dtype=np.uint32).reshape(192, 8) for c in range(3)}
    for shares in (zeros, ramp):
        view = server_views(shares, 6).reshape(-1).view(np.uint8)
        assert all(value > 1e-6 for value in byte_tests(view).values())
    random = np.random.default_rng(0)
    # The known bug of a range that excludes the top value, here of a byte; low entropy; a mask that
    # repeats.
    excluded = random.integers(0, 255, 200_000).astype(np.uint8)
    assert byte_tests(excluded)["bytes"] < 1e-9
    assert byte_tests(ramp[0].view(np.uint8).reshape(-1))["bytes"] < 1e-9
    assert (
        byte_tests(np.repeat(random.integers(0, 256, 20_000), 2).astype(np.uint8))["serial"] < 1e-9
    )


def test_keys_are_of_256_bits_and_differ():
    keys = {ExchangeKey().private_bytes() for _ in range(100)}
    assert len(keys) == 100 and {len(key) for key in keys} == {32}


@pytest.mark.thorough
def test_printed_masks_show_the_server_nothing():
    """l = 4, three clients, one row each, one class: all 4^6 views are seen equally often,
    whatever the shares are.
    """
    clients = np.arange(3)
    seen = []
    for values in ((0, 0, 0), (1, 2, 3), (3, 3, 0)):
        shares = {client: np.full((3, 1), values[client]) for client in range(3)}
        views = collections.Counter()
        for pads in itertools.product(range(4), repeat=6):
            masks = np.array([*pads]).reshape(2, 3, 1)
            sent, read = printed.row_sums(
                shares, clients, {0: masks[0], 1: masks[1], 2: -masks[0] - masks[1]}
            )
            views[
                tuple(np.concatenate([sent[client] % 4 for client in range(3)])[:, 0].tolist())
            ] += 1
            assert all(read[client] == sum(values) for client in range(3))
        seen.append(views)
    assert seen[0] == seen[1] == seen[2] and len(seen[0]) == 4**6 and set(seen[0].values()) == {1}
