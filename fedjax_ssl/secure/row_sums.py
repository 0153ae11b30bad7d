"""SecureRowSums: every client learns its own rows of a sum of matrices, and the server nothing.

1. The server opens an attempt. Every client answers with a fresh key, signed.
2. The server passes all keys on. Every client adds masks to its matrix that cancel in the sum, and
   sends all rows except its own.
3. The server adds up the rows and returns to every client its sums, to which the client adds its
   own masked rows.

If a client's rows do not arrive, the client and its rows are left out, and a new attempt begins
with fresh keys. With recovery (Shamir mode), the clients that sent their rows instead give the
server the shares and seeds to remove the masks of the others. The sum also has a check row of zeros
for every client: its owner reads 0 there, unless parties got different information.

References:
    Scott, Yeo, Lampert, 2023: appendix, SecureRowSums.
    Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning, CCS 2017:
    recovery. There a client's whole own mask is revealed; here only its masks for rows with a live
    owner, because the other rows would become readable.
"""

import secrets
from typing import Any, NamedTuple

import numpy as np

from fedjax_ssl.secure import wire
from fedjax_ssl.secure.network import Endpoint, Machine, Outgoing, not_due
from fedjax_ssl.secure.primitives import (
    KEY_BYTES,
    SHARE_BYTES,
    SIGNATURE_BYTES,
    ExchangeKey,
    add_key_stream,
    hkdf,
    put_together,
    share_out,
)
from fedjax_ssl.secure.protocol_errors import (
    SERVER,
    BadKey,
    InconsistentView,
    StaleMessage,
    TooFewClients,
)
from fedjax_ssl.secure.session import check_partition, check_table, first_rows, table
from fedjax_ssl.secure.wire import (
    KeyShare,
    MaskedRows,
    MaskKey,
    MaskKeys,
    Recovery,
    RecoveryRequest,
    RowTotals,
    SumStart,
)


class Rows(NamedTuple):
    """The rows of one attempt: the rows of every live client, one client after the other, then a
    check row for each.
    """

    clients: tuple[int, ...]  # in increasing order
    counts: tuple[int, ...]

    @property
    def owner(self) -> np.ndarray:
        """Client that owns each row, int64 [rows]."""
        return np.concatenate([np.repeat(self.clients, self.counts), self.clients]).astype(np.int64)

    def own_count(self, client: int) -> int:
        """Return the rows of a client, its check row included."""
        return self.counts[self.clients.index(client)] + 1


class PairMasks:
    """The masks that a client shares with each other client; of two, the lower number adds and the
    other subtracts.

    The sum of all clients' masks is 0. Keys are bound to protocol, run, round, attempt, modulus and
    all shared information, so they differ if any of these does.
    """

    def __init__(self, endpoint: Endpoint, attempt: int, bits: int, keys: MaskKeys):
        self._context = endpoint.context(b"mask", attempt, bits)
        self._transcript = wire.digest(endpoint.transcript, wire.encode(keys))

    def key(self, one: ExchangeKey, public: bytes) -> bytes:
        """Return the key of a pair's stream."""
        salt = b"".join(sorted((one.public, public)))
        return hkdf(one.agree(public), salt, self._context + self._transcript)

    def add(self, total: np.ndarray, one: int, key: ExchangeKey, other: int, public: bytes) -> None:
        """Add the mask that client `one` shares with client `other` to a matrix."""
        add_key_stream(total, self.key(key, public), 1 if one < other else -1)


def own_seed(secret: bytes, owner: int) -> bytes:
    """Return the seed of a client's own mask for the rows of `owner`, with recovery."""
    return hkdf(secret, b"", b"fedjax_ssl.secure 1 own mask|" + owner.to_bytes(8, "little"))


def add_own_masks(total: np.ndarray, rows: Rows, seeds: dict[int, bytes], sign: int) -> None:
    """Add own masks to the rows, check rows included, of every client with a seed."""
    owner = rows.owner
    for client, seed in seeds.items():
        mine = owner == client
        block = np.zeros((int(mine.sum()), total.shape[1]), total.dtype)
        add_key_stream(block, seed, sign)
        total[mine] += block


MIN_CLIENTS = 3
_PURPOSE = b"mask key"
NOTHING_TOLD = bytes(KEY_BYTES)


class _Party(Machine):
    """Base of both kinds of parties: the agreed sum, and its attempts."""

    _num_classes: int
    _dtype: np.dtype
    _min_clients: int
    _threshold: int | None

    @property
    def _bits(self) -> int:
        return 8 * self._dtype.itemsize

    def _pack(self, receiver: int, message: Any) -> Outgoing:
        return self.endpoint.pack(receiver, message, self.endpoint.last_attempt)

    def _masks(self, keys: MaskKeys) -> PairMasks:
        return PairMasks(self.endpoint, self.endpoint.last_attempt, self._bits, keys)

    def _signed_parts(self, key: MaskKey) -> tuple[bytes, ...]:
        return (
            key.public,
            *(n.to_bytes(8, "little") for n in (key.num_rows, self._num_classes, self._bits)),
            key.told,
        )

    def _verify(self, client: int, key: MaskKey) -> None:
        parts = self._signed_parts(key)
        attempt = self.endpoint.last_attempt
        self.endpoint.verify(client, key.signature, _PURPOSE, *parts, attempt=attempt)

    def _check_live(self, count: int) -> None:
        if count < self._min_clients:
            raise TooFewClients(
                f"{count} clients are live; a sum needs at least {self._min_clients}"
            )


class RowSumClient(_Party):
    """Client of a sum.

    Args:
        endpoint: endpoint of its session.
        shares: this client's matrix, as {client of the session -> rows of that client, uint32 or
            uint64 [n_p, K]}.
        told: digest of the server's facts about this sum.
        min_clients: fewest clients of a sum in which it takes part.
        threshold: with recovery, number of shares that restore a key; None: no recovery.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        shares: dict[int, np.ndarray],
        told: bytes = NOTHING_TOLD,
        min_clients: int = MIN_CLIENTS,
        threshold: int | None = None,
    ):
        super().__init__(endpoint)
        self._shares = shares
        self._told = told
        self._min_clients = min_clients
        self._threshold = threshold
        own = shares[endpoint.party]
        self._dtype = own.dtype
        self._num_classes = own.shape[1]
        self.result: np.ndarray | None = None  # its rows of the sum
        self._forget()

    def receive(self, data: bytes) -> list[Outgoing]:
        """Answer start, keys, shares, a request for recovery, and totals."""
        header = wire.unpack_header(data)[0]
        attempt = self.endpoint.last_attempt
        if wire.MESSAGES[header.kind - 1] is SumStart:
            if header.attempt <= attempt:
                raise StaleMessage("the start of an attempt that was there before", header.sender)
            attempt = header.attempt
        sender, message = self.endpoint.unpack(data, attempt)
        if isinstance(message, KeyShare):
            if self._threshold is not None and sender not in self._received:
                self._received[sender] = message.share
                return self._upload()
        elif sender == SERVER:
            if isinstance(message, SumStart):
                return self._begin(message, attempt)
            if isinstance(message, MaskKeys) and self._key is not None and self._keys is None:
                return self._mask(message)
            if isinstance(message, RecoveryRequest) and self._sent and self._gone is None:
                return self._recover(message)
            if isinstance(message, RowTotals) and self._sent:
                return self._read(message)
        raise not_due(sender)

    def _forget(self) -> None:
        """Delete the keys and masks of an attempt, which the next one must not use."""
        self._key: ExchangeKey | None = None
        self._keys: MaskKeys | None = None
        self._own_secret = b""
        self._own_rows: np.ndarray | None = None
        self._received: dict[int, bytes] = {}
        self._gone: list[int] | None = None
        self._sent = False

    def _begin(self, start: SumStart, attempt: int) -> list[Outgoing]:
        if (start.num_classes, start.modulus_bits) != (self._num_classes, self._bits):
            raise InconsistentView(
                f"a sum of {start.num_classes} columns modulo 2^{start.modulus_bits}", SERVER
            )
        self._forget()
        self.endpoint.last_attempt = attempt
        self._key = ExchangeKey()
        self._own_secret = secrets.token_bytes(KEY_BYTES)
        key = MaskKey(
            self._key.public,
            len(self._shares[self.endpoint.party]),
            self._told,
            bytes(SIGNATURE_BYTES),
        )
        signature = self.endpoint.sign(_PURPOSE, *self._signed_parts(key), attempt=attempt)
        return [self._pack(SERVER, key._replace(signature=signature))]

    def _mask(self, keys: MaskKeys) -> list[Outgoing]:
        """Check all keys and rows; send the masked rows, or first the shares."""
        self._check(keys)
        self._keys = keys
        self._publics = dict(zip(keys.clients.tolist(), map(bytes, keys.publics), strict=True))
        self._rows = Rows(tuple(keys.clients.tolist()), tuple(keys.num_rows.tolist()))
        if self._threshold is None:
            return self._upload()
        assert self._key is not None
        others = [client for client in self._rows.clients if client != self.endpoint.party]
        shares = share_out(self._key.private_bytes(), list(self._rows.clients), self._threshold)
        self._received[self.endpoint.party] = shares[self.endpoint.party]
        return [self._pack(other, KeyShare(shares[other])) for other in others] + self._upload()

    def _check(self, keys: MaskKeys) -> None:
        me = self.endpoint.party
        count = len(keys.clients)
        check_partition(keys.clients, keys.num_rows, keys.first)
        self._check_live(count)
        publics, told = (
            check_table(some, count, KEY_BYTES, SERVER) for some in (keys.publics, keys.told)
        )
        signatures = check_table(keys.signatures, count, SIGNATURE_BYTES, SERVER)
        assert self._key is not None
        entries = dict(zip(keys.clients.tolist(), publics, strict=True))
        if entries.get(me) != self._key.public:
            raise InconsistentView(
                "the list of keys has no or another entry for its reader", SERVER
            )
        if len(set(publics)) < count:
            raise BadKey("a mask key is there twice", SERVER)
        counts = dict(zip(entries, keys.num_rows.tolist(), strict=True))
        expected = {client: len(rows) for client, rows in self._shares.items()}
        if any(expected.get(client) != rows for client, rows in counts.items()):
            raise InconsistentView("clients claim other rows than the matrix has for them", SERVER)
        if set(told) != {self._told}:
            raise InconsistentView("clients were told different things", SERVER)
        for client, signature, rows in zip(
            entries, signatures, keys.num_rows.tolist(), strict=True
        ):
            self._verify(client, MaskKey(entries[client], rows, self._told, signature))

    def _upload(self) -> list[Outgoing]:
        """Send the masked rows of the other clients; with recovery, once all shares have
        arrived.
        """
        if self._keys is None or self._sent:
            return []
        if self._threshold is not None and set(self._received) != set(self._rows.clients):
            return []
        me = self.endpoint.party
        masks = self._masks(self._keys)
        assert self._key is not None
        check_rows = np.zeros((len(self._rows.clients), self._num_classes), self._dtype)
        total = np.concatenate(
            [*(self._shares[client] for client in self._rows.clients), check_rows]
        )
        for other, public in self._publics.items():
            if other != me:
                masks.add(total, me, self._key, other, public)
        own = self._rows.owner == me
        self._own_rows = total[own]
        if self._threshold is not None:
            seeds = {
                other: own_seed(self._own_secret, other) for other in self._publics if other != me
            }
            add_own_masks(total, self._rows, seeds, 1)
        self._sent = True
        return [self._pack(SERVER, MaskedRows(total[~own]))]

    def _recover(self, request: RecoveryRequest) -> list[Outgoing]:
        me = self.endpoint.party
        threshold = self._threshold
        gone = request.gone.tolist()
        uploaded = request.uploaded.tolist()
        # The server never gets both secrets of a client: the key of its pair masks, and its own
        # mask.
        if (
            threshold is None
            or sorted(gone + uploaded) != list(self._rows.clients)
            or me not in uploaded
        ):
            raise InconsistentView(
                "a request for recovery that does not name every client once", SERVER
            )
        needed = max(self._min_clients, threshold)
        if len(uploaded) < needed:
            raise TooFewClients(f"{len(uploaded)} clients are left; recovery needs {needed}")
        self._gone = gone
        assert self._own_rows is not None and self._keys is not None and self._key is not None
        # Its own rows leave out the masks shared with clients that are gone.
        masks = self._masks(self._keys)
        for client in gone:
            stream = np.zeros((len(self._rows.owner), self._num_classes), self._dtype)
            masks.add(stream, me, self._key, client, self._publics[client])
            self._own_rows -= stream[self._rows.owner == me]
        seeds = [
            bytes(KEY_BYTES) if client == me else own_seed(self._own_secret, client)
            for client in uploaded
        ]
        shares = table([self._received[client] for client in gone], SHARE_BYTES)
        return [self._pack(SERVER, Recovery(table(seeds, KEY_BYTES), shares))]

    def _read(self, totals: RowTotals) -> list[Outgoing]:
        assert self._own_rows is not None
        wire.check_array("totals", totals.rows, self._own_rows.shape, self._dtype, SERVER)
        found = totals.rows + self._own_rows
        if found[-1].any():
            raise InconsistentView(
                "the check row is not 0: the masks of this attempt do not cancel", SERVER
            )
        self.result = found[:-1]
        self._forget()
        return []


class RowSumServer(_Party):
    """Server of a sum.

    Args:
        endpoint: endpoint of its session.
        invited: the invited clients.
        num_classes: K.
        dtype: uint32 or uint64.
        min_clients: fewest clients; with fewer it gives up.
        threshold: with recovery, number of shares that restore a key; None: no recovery.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        invited: list[int],
        num_classes: int,
        dtype: type,
        min_clients: int = MIN_CLIENTS,
        threshold: int | None = None,
    ):
        super().__init__(endpoint)
        self.live = list(invited)
        self._dtype = np.dtype(dtype)
        self._num_classes = num_classes
        self._min_clients = min_clients
        self._threshold = threshold
        self.attempts = 0  # attempts so far
        self._phase = "keys"
        self._keys: dict[int, MaskKey] = {}
        self._uploads: dict[int, np.ndarray] = {}
        self._recoveries: dict[int, Recovery] = {}

    def start(self) -> list[Outgoing]:
        """Open an attempt."""
        self._check_live(len(self.live))
        self._phase = "keys"
        self._keys = {}
        self._uploads = {}
        self._recoveries = {}
        self.attempts += 1
        self.endpoint.last_attempt += 1
        message = SumStart(self._num_classes, self._bits)
        return [self._pack(client, message) for client in self.live]

    def receive(self, data: bytes) -> list[Outgoing]:
        """Take keys, masked rows and recoveries."""
        sender, message = self.endpoint.unpack(data, self.endpoint.last_attempt)
        kind, waited_for = self._due()
        if type(message) is not kind or sender not in waited_for:
            raise not_due(sender)
        if isinstance(message, MaskKey):
            self._verify(sender, message)
            self._keys[sender] = message
            return self._pass_on() if len(waited_for) == 1 else []
        if isinstance(message, MaskedRows):
            shape = (len(self._rows.owner) - self._rows.own_count(sender), self._num_classes)
            wire.check_array("rows", message.rows, shape, self._dtype, sender)
            self._uploads[sender] = message.rows
            return self._finish() if len(waited_for) == 1 else []
        check_table(message.seeds, len(self._uploads), KEY_BYTES, sender)
        check_table(message.shares, len(self._gone()), SHARE_BYTES, sender)
        self._recoveries[sender] = message
        return self._unmask() if len(waited_for) == 1 else []

    def _due(self) -> tuple[Any, set[int]]:
        """Return the next expected message, and the clients that have not sent it."""
        if self._phase == "keys":
            return MaskKey, set(self.live) - set(self._keys)
        if self._phase == "rows":
            return MaskedRows, set(self._keys) - set(self._uploads)
        return Recovery, set(self._uploads) - set(self._recoveries)

    def expire(self) -> list[Outgoing] | None:
        """Continue without the clients that did not answer."""
        if self._phase == "keys":
            return self._pass_on()
        if self._phase == "rows" and self._threshold is not None:
            if len(self._uploads) >= max(self._min_clients, self._threshold):
                return self._finish()
            # No client sends rows before all shares have arrived; the one that stopped them will
            # not answer the next start either.
            if self.attempts > len(self.live):
                raise TooFewClients(f"no sum after {self.attempts} attempts")
            return self.start()
        if self._phase in ("rows", "recovery"):
            answers = self._uploads if self._phase == "rows" else self._recoveries
            self.live = [client for client in self.live if client in answers]
            return self.start()
        return None

    def _gone(self) -> list[int]:
        return [client for client in self._rows.clients if client not in self._uploads]

    def _pass_on(self) -> list[Outgoing]:
        self.live = sorted(self._keys)
        self._check_live(len(self.live))
        keys = [self._keys[client] for client in self.live]
        counts = np.array([key.num_rows for key in keys], np.uint64)
        self._message = MaskKeys(
            np.array(self.live, np.uint32),
            table([key.public for key in keys], KEY_BYTES),
            counts,
            first_rows(counts),
            table([key.told for key in keys], KEY_BYTES),
            table([key.signature for key in keys], SIGNATURE_BYTES),
        )
        self._rows = Rows(tuple(self.live), tuple(counts.tolist()))
        self._phase = "rows"
        return [self._pack(client, self._message) for client in self.live]

    def _finish(self) -> list[Outgoing]:
        owner = self._rows.owner
        self._total = np.zeros((len(owner), self._num_classes), self._dtype)
        for client, rows in self._uploads.items():
            self._total[owner != client] += rows
        if self._threshold is None:
            return self._send()
        self._phase = "recovery"
        request = RecoveryRequest(
            np.array(self._gone(), np.uint32), np.array(sorted(self._uploads), np.uint32)
        )
        return [self._pack(client, request) for client in sorted(self._uploads)]

    def _unmask(self) -> list[Outgoing]:
        """Remove the own masks of live clients, and the pair masks of clients that are gone."""
        uploaded = sorted(self._uploads)
        owner = self._rows.owner
        masks = self._masks(self._message)
        for client, recovery in self._recoveries.items():
            seeds = {
                other: seed.tobytes() for other, seed in zip(uploaded, recovery.seeds, strict=True)
            }
            del seeds[client]
            add_own_masks(self._total, self._rows, seeds, -1)
        for place, client in enumerate(self._gone()):
            some = list(self._recoveries)[: self._threshold]
            shares = {holder: self._recoveries[holder].shares[place].tobytes() for holder in some}
            key = ExchangeKey(put_together(shares))
            if key.public != self._keys[client].public:
                raise InconsistentView(
                    f"the shares of the mask key of client {client} do not fit together"
                )
            for other in uploaded:
                stream = np.zeros_like(self._total)
                masks.add(stream, other, key, client, self._keys[other].public)
                self._total[owner != other] -= stream[owner != other]
        self.live = uploaded
        return self._send()

    def _send(self) -> list[Outgoing]:
        self._phase = "done"
        owner = self._rows.owner
        return [
            self._pack(client, RowTotals(self._total[owner == client]))
            for client in sorted(self._uploads)
        ]
