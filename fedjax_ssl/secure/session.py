"""Messages that give all parties the same information.

A session begins with all parties' fresh keys and numbers of points, signed, in one roster for all.
The first client sends the seed of the hyperplanes to the others. Every client gets its columns of
the influence matrix together with the digests of all columns: a client with other digests than the
rest also gets other mask keys.
"""

import itertools

import numpy as np

from fedjax_ssl.secure import wire
from fedjax_ssl.secure.network import Endpoint, Machine, Outgoing, not_due
from fedjax_ssl.secure.primitives import KEY_BYTES, SIGNATURE_BYTES
from fedjax_ssl.secure.protocol_errors import (
    SERVER,
    BadKey,
    InconsistentView,
    NotAuthentic,
)
from fedjax_ssl.secure.wire import Columns, Roster, SessionKey

_PURPOSE = b"session key"


def first_rows(counts: np.ndarray) -> np.ndarray:
    """Return the first row of every client, uint64; rows are ordered by client."""
    return (np.cumsum(counts) - counts).astype(np.uint64)


def table(keys: list[bytes], width: int) -> np.ndarray:
    """Return keys or signatures as uint8 [C, width]."""
    return np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), width)


def check_table(values: np.ndarray, rows: int, width: int, sender: int) -> list[bytes]:
    """Return the rows of a table of this size, as bytes. Raise MalformedMessage for another
    size.
    """
    wire.check_array("a table", values, (rows, width), np.uint8, sender)
    return [row.tobytes() for row in values]


def check_partition(clients: np.ndarray, counts: np.ndarray, first: np.ndarray) -> None:
    """Raise InconsistentView unless clients differ and their rows follow each other, without gaps
    or overlaps.
    """
    if not len(clients) == len(counts) == len(first):
        raise InconsistentView("lists of clients and of their rows differ in length", SERVER)
    if any(one >= other for one, other in itertools.pairwise(clients.tolist())):
        raise InconsistentView(
            "a list of clients is not in order, or names one of them twice", SERVER
        )
    if (counts > 2**40).any() or not np.array_equal(first, first_rows(counts)):
        raise InconsistentView("the rows of the clients overlap or leave gaps", SERVER)


def _signed(endpoint: Endpoint, num_points: int) -> SessionKey:
    public = endpoint.key.public
    signature = endpoint.sign(_PURPOSE, endpoint.identity, public, _number(num_points))
    return SessionKey(endpoint.identity, public, num_points, signature)


def _check(endpoint: Endpoint, sender: int, key: SessionKey) -> None:
    if endpoint.pinned.get(sender) != key.identity:
        raise BadKey("an identity key is not the pinned one", sender)
    endpoint.verify(
        sender, key.signature, _PURPOSE, key.identity, key.public, _number(key.num_points)
    )


def _number(value: int) -> bytes:
    return value.to_bytes(8, "little")


class SessionClient(Machine):
    """Client of a session: sends its key, checks all keys, and opens its channels."""

    def __init__(self, endpoint: Endpoint, num_points: int):
        super().__init__(endpoint)
        self.num_points = num_points
        self.counts: dict[int, int] = {}  # client -> points, once the roster has arrived

    def start(self) -> list[Outgoing]:
        """Send the session key."""
        return [self.endpoint.pack(SERVER, _signed(self.endpoint, self.num_points))]

    def receive(self, data: bytes) -> list[Outgoing]:
        """Check the roster."""
        message = self.take(data, SERVER, Roster, not self.counts)
        keys = self._keys(message)
        self.endpoint.transcript = wire.digest(b"roster", wire.encode(message))
        for party, key in keys.items():
            if party != self.endpoint.party:
                self.endpoint.connect(party, key.public)
        self.counts = {party: key.num_points for party, key in keys.items() if party != SERVER}
        return []

    def _keys(self, roster: Roster) -> dict[int, SessionKey]:
        check_partition(roster.clients, roster.num_points, roster.first)
        rows = len(roster.clients) + 1
        identities = check_table(roster.identities, rows, KEY_BYTES, SERVER)
        publics = check_table(roster.publics, rows, KEY_BYTES, SERVER)
        signatures = check_table(roster.signatures, rows, SIGNATURE_BYTES, SERVER)
        parties = [*roster.clients.tolist(), SERVER]
        counts = [*roster.num_points.tolist(), 0]
        entries = zip(identities, publics, counts, signatures, strict=True)
        keys = {party: SessionKey(*entry) for party, entry in zip(parties, entries, strict=True)}
        own = keys.get(self.endpoint.party)
        due = self.endpoint.key.public, self.num_points
        if own is None or (own.public, own.num_points) != due:
            raise InconsistentView("the roster has no or another entry for its reader", SERVER)
        if min(len(set(publics)), len(set(identities))) < rows:
            raise BadKey("a key is there twice", SERVER)
        for party, key in keys.items():
            _check(self.endpoint, party, key)
        return keys


class SessionServer(Machine):
    """Server of a session: collects the keys and sends all of them to all clients."""

    def __init__(self, endpoint: Endpoint, invited: list[int]):
        super().__init__(endpoint)
        self._invited = set(invited)
        self._keys: dict[int, SessionKey] = {}
        self.counts: dict[int, int] = {}

    def receive(self, data: bytes) -> list[Outgoing]:
        """Check a client's key; the last one completes the list."""
        sender, key = self.endpoint.unpack(data)
        if (
            not isinstance(key, SessionKey)
            or sender not in self._invited
            or sender in self._keys
            or self.counts
        ):
            raise not_due(sender)
        _check(self.endpoint, sender, key)
        if key.public in {other.public for other in self._keys.values()} | {
            self.endpoint.key.public
        }:
            raise BadKey("a key is there twice", sender)
        self._keys[sender] = key
        return self._close() if len(self._keys) == len(self._invited) else []

    def expire(self) -> list[Outgoing] | None:
        """Leave out the clients that have not answered."""
        return None if self.counts else self._close()

    def _close(self) -> list[Outgoing]:
        clients = sorted(self._keys)
        if not clients:
            raise NotAuthentic("no client came to the session")
        keys = [self._keys[client] for client in clients]
        self.counts = {client: key.num_points for client, key in zip(clients, keys, strict=True)}
        counts = np.array([key.num_points for key in keys], np.uint64)
        all_keys = [*keys, _signed(self.endpoint, 0)]
        roster = Roster(
            np.array(clients, np.uint32),
            counts,
            first_rows(counts),
            table([key.identity for key in all_keys], KEY_BYTES),
            table([key.public for key in all_keys], KEY_BYTES),
            table([key.signature for key in all_keys], SIGNATURE_BYTES),
        )
        self.endpoint.transcript = wire.digest(b"roster", wire.encode(roster))
        outgoing = [self.endpoint.pack(client, roster) for client in clients]
        for client, key in zip(clients, keys, strict=True):
            self.endpoint.connect(client, key.public)
        return outgoing


def columns_digest(columns: np.ndarray) -> bytes:
    """Return the SHA-256 of columns, their type and shape."""
    return wire.digest(str(columns.dtype).encode(), str(columns.shape).encode(), columns.tobytes())


class ColumnsClient(Machine):
    """Client that takes its columns. Args: its endpoint, and the participating clients, in
    order.
    """

    def __init__(self, endpoint: Endpoint, clients: list[int]):
        super().__init__(endpoint)
        self._clients = clients
        self.columns: np.ndarray | None = None
        self.told = b""

    def receive(self, data: bytes) -> list[Outgoing]:
        """Take the columns."""
        message = self.take(data, SERVER, Columns, self.columns is None)
        digests = check_table(message.digests, len(self._clients), KEY_BYTES, SERVER)
        if digests[self._clients.index(self.endpoint.party)] != columns_digest(message.columns):
            raise InconsistentView(
                "columns that do not fit the digest that all clients were sent", SERVER
            )
        self.columns = message.columns
        self.told = wire.digest(*digests)
        return []


class ColumnsServer(Machine):
    """Server that sends columns. Args: its endpoint, and the columns of every client, float32 or
    float64 [n, labelled].
    """

    def __init__(self, endpoint: Endpoint, columns: dict[int, np.ndarray]):
        super().__init__(endpoint)
        self._columns = columns

    def start(self) -> list[Outgoing]:
        """Send every client its columns."""
        digests = table(
            [columns_digest(self._columns[client]) for client in sorted(self._columns)], KEY_BYTES
        )
        return [
            self.endpoint.pack(client, Columns(some, digests))
            for client, some in sorted(self._columns.items())
        ]


class SeedClient(Machine):
    """Client that takes or sends the seed of the hyperplanes: the first one sends it to the others,
    and the server must not know it.
    """

    def __init__(self, endpoint: Endpoint, clients: list[int], seed: bytes | None = None):
        super().__init__(endpoint)
        self._clients = clients
        self.seed = seed

    def start(self) -> list[Outgoing]:
        """Send the seed, if this is the first client."""
        if self.seed is None:
            return []
        others = [client for client in self._clients if client != self.endpoint.party]
        return [self.endpoint.pack(client, wire.Seed(self.seed)) for client in others]

    def receive(self, data: bytes) -> list[Outgoing]:
        """Take the seed, if this is another client."""
        self.seed = self.take(data, self._clients[0], wire.Seed, self.seed is None).seed
        return []
