"""The three levels of XCLP's protocols, which give the same integers, bit for bit.

| level | what happens | counters |
|---|---|---|
| "ideal" | the plain computation; nothing is hidden | none |
| "accounted" | the plain computation | messages and bytes as the wire formats have them |
| "real" | the parties exchange messages | measured, equal to those of "accounted" |
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Annotated

import numpy as np

from fedjax_ssl.checks import OneOf, Whole, check_choices, checked
from fedjax_ssl.graph import IDEAL, Exchange
from fedjax_ssl.secure import DROPS, HAMMING
from fedjax_ssl.secure import wire as m
from fedjax_ssl.secure.distances import ring, roles
from fedjax_ssl.secure.hamming_paillier import packing
from fedjax_ssl.secure.hamming_transfer import WIDTH, chunks
from fedjax_ssl.secure.network import Traffic
from fedjax_ssl.secure.primitives import KEY_BYTES, POINT_BYTES, SHARE_BYTES, SIGNATURE_BYTES
from fedjax_ssl.secure.protocol_errors import SERVER, TooFewClients
from fedjax_ssl.secure.row_sums import MIN_CLIENTS
from fedjax_ssl.secure.wire import wire_bytes


def add_transfers(
    traffic: Traffic, receiver: int, sender: int, num_chosen: int, num_offered: int, num_bits: int
) -> None:
    """Count the messages for a pair of clients, by oblivious transfer."""
    size = _size(num_bits)
    traffic.add("hamming", receiver, sender, wire_bytes(m.BasePoint))
    traffic.add("hamming", sender, receiver, wire_bytes(m.BaseChoices, (1, (WIDTH, POINT_BYTES))))
    for points, transfers in chunks(num_chosen, num_offered, num_bits):
        columns = (1, (WIDTH, transfers // 8))
        corrections = (size, (points * num_bits, num_offered))
        traffic.add("hamming", receiver, sender, wire_bytes(m.OtColumns, columns))
        traffic.add("hamming", sender, receiver, wire_bytes(m.Corrections, corrections))
    for client in (receiver, sender):
        traffic.add(
            "hamming",
            client,
            SERVER,
            wire_bytes(m.DistanceShare, (size, (num_chosen, num_offered))),
        )


def add_paillier(
    traffic: Traffic,
    owner: int,
    other: int,
    num_packed: int,
    num_other: int,
    num_bits: int,
    key_bits: int,
) -> None:
    """Count the messages for a pair of clients, by Paillier's cryptosystem."""
    size = key_bits // 8
    *_, blocks = packing(num_packed, num_bits, key_bits)
    bits = wire_bytes(m.EncryptedBits, (1, (size,)), (1, (num_bits, blocks, 2 * size)))
    traffic.add("hamming", owner, other, bits)
    traffic.add(
        "hamming",
        other,
        owner,
        wire_bytes(m.EncryptedDistances, (1, (num_other, blocks, 2 * size))),
    )
    for client in (owner, other):
        share = wire_bytes(m.PackedShare, (1, (size,)), (1, (num_other, blocks, size)))
        traffic.add("hamming", client, SERVER, share)


def add_row_sums(
    traffic: Traffic,
    counts: Mapping[int, int],
    num_classes: int,
    itemsize: int,
    drop: Mapping[int, str],
    min_clients: int,
    recovery: bool,
) -> None:
    """Count the messages of all attempts at a sum. Args: rows of every invited client; the rest as
    in `Protocols`.
    """
    invited = sorted(counts)
    while len(invited) >= min_clients:
        for client in invited:
            traffic.add("sums", SERVER, client, wire_bytes(m.SumStart))
        live = [client for client in invited if drop.get(client) != "mask"]
        for client in live:
            traffic.add("sums", client, SERVER, wire_bytes(m.MaskKey))
        if len(live) < min_clients:
            return
        count = len(live)
        num_rows = sum(counts[client] + 1 for client in live)
        tables = (1, (count, KEY_BYTES)), (8, (count,)), (8, (count,)), (1, (count, KEY_BYTES))
        keys = wire_bytes(m.MaskKeys, (4, (count,)), *tables, (1, (count, SIGNATURE_BYTES)))
        for client in live:
            traffic.add("sums", SERVER, client, keys)
        if recovery:
            for client, other in itertools.permutations(live, 2):
                traffic.add("sums", client, other, wire_bytes(m.KeyShare))
        invited = [client for client in live if drop.get(client) != "sums"]
        for client in invited:
            shape = num_rows - counts[client] - 1, num_classes
            traffic.add("sums", client, SERVER, wire_bytes(m.MaskedRows, (itemsize, shape)))
        complete = len(invited) == len(live)
        if recovery and len(invited) >= max(min_clients, threshold(count)):
            complete = True
            gone = len(live) - len(invited)
            for client in invited:
                request = wire_bytes(m.RecoveryRequest, (4, (gone,)), (4, (len(invited),)))
                traffic.add("sums", SERVER, client, request)
                tables_back = (1, (len(invited), KEY_BYTES)), (1, (gone, SHARE_BYTES))
                traffic.add("sums", client, SERVER, wire_bytes(m.Recovery, *tables_back))
        if complete:
            for client in invited:
                totals = wire_bytes(m.RowTotals, (itemsize, (counts[client] + 1, num_classes)))
                traffic.add("sums", SERVER, client, totals)
            return


def threshold(num_clients: int) -> int:
    """Return the number of shares that restore a key in Shamir mode: more than half, so that the
    server cannot ask two separate groups of clients.
    """
    return num_clients // 2 + 1


def _size(num_bits: int) -> int:
    return np.dtype(ring(num_bits)).itemsize


class Protocols:
    """Level "ideal", and the state that all levels share: live clients, and owners of rows.

    Args:
        num_bits: L.
        hamming: "transfer" (oblivious transfer) or "paillier" (least traffic, most time).
        key_bits: bits of Paillier's modulus.
        min_clients: fewest clients of a sum.
        recovery: a sum does not restart if a client vanishes (Shamir mode); shares of more than
            half of the clients restore a key.
        seed: 32 bytes that the first client sends the others, the seed of the codes. None: not
            sent.
        drop: client -> phase in which it vanishes: "keys" before it sent its key, "hamming" with
            half of its distances, "mask" before it agreed on masks, "sums" before it sent its
            masked rows, "result" before it read its rows.

    Raises:
        ValueError: for a setting outside these.
    """

    level = "ideal"

    @checked
    def __init__(
        self,
        num_bits: Annotated[int, Whole(1)],
        *,
        hamming: Annotated[str, OneOf(HAMMING)] = "transfer",
        key_bits: int = 2048,
        min_clients: Annotated[int, Whole(2)] = MIN_CLIENTS,
        recovery: bool = False,
        seed: bytes | None = None,
        drop: Mapping[int, str] | None = None,
    ):
        for phase in (drop or {}).values():
            check_choices(DROPS, drop=phase)
        if hamming == "paillier" and (key_bits % 16 or key_bits < 256):
            raise ValueError(
                f"key_bits is {key_bits}; it must be a multiple of 16 and at least 256"
            )
        self.num_bits = num_bits
        self.hamming = hamming
        self.key_bits = key_bits
        self.seed = seed
        self.min_clients = min_clients
        self.recovery = recovery
        self.drop = dict(drop or {})
        self.traffic = Traffic()
        # Seconds by (phase, party), at level "real".
        self.seconds: defaultdict[tuple[str, int], float] = defaultdict(float)
        self.counts: dict[int, int] = {}  # points of the clients of this session
        self.gone: set[int] = set()
        self.session = 0
        self._pairs: Counter[int] = Counter()
        self._bytes_before = 0, 0  # bytes at the start of this session

    @property
    def exchange(self) -> Exchange:
        """Return the functions that `fedjax_ssl.graph` calls."""
        return Exchange(
            self.distances, self.row_sums, self.begin, self.columns, self.without_distances
        )

    def begin(self, num_points: Mapping[int, int]) -> None:
        """Start a session. Args: the number of points of every invited client."""
        self._bytes_before = self._bytes_of_clients()
        self.session += 1
        self._pairs = Counter()
        self.gone = self._leaving("keys", num_points)
        self.counts = {
            client: count for client, count in sorted(num_points.items()) if client not in self.gone
        }
        self._begin(list(num_points))

    def session_bytes(self) -> tuple[int, int]:
        """Count the bytes to and from clients in this session, as the server relays them."""
        before = self._bytes_before
        now = self._bytes_of_clients()
        return now[0] - before[0], now[1] - before[1]

    def _bytes_of_clients(self) -> tuple[int, int]:
        total = self.traffic.total()
        return total - self.traffic.total(receiver=SERVER), total - self.traffic.total(
            sender=SERVER
        )

    def distances(self, a: int, b: int, codes_a: np.ndarray, codes_b: np.ndarray) -> np.ndarray:
        """Return the distances of all points of a to all of b, int32; num_bits + 1 if one of the
        two clients is gone.
        """
        for client in {a, b}:
            self._pairs[client] += 1
            if client in self._leaving("hamming") and self._pairs[client] > len(self.counts) // 2:
                self.gone.add(client)
        found = None if {a, b} & self.gone else self._distances(a, b, codes_a, codes_b)
        return (
            np.full((len(codes_a), len(codes_b)), self.num_bits + 1, np.int32)
            if found is None
            else found
        )

    def without_distances(self) -> set[int]:
        """Return the clients that vanished before all their distances were known: their points are
        not in the graph.
        """
        return set(self.gone)

    def columns(self, columns: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Return the columns of S as they arrive at the clients."""
        return columns

    def row_sums(self, shares: dict[int, np.ndarray], clients: np.ndarray) -> np.ndarray:
        """Return the sum of the live clients' matrices modulo 2^32 or 2^64; 0 in rows of clients
        that are gone.

        Raises:
            TooFewClients: so few are live that a sum would show single matrices.
        """
        if not self.counts:
            self.begin({client: 0 for client in shares})
        invited = [client for client in sorted(shares) if client not in self.gone]
        total = self._row_sums(invited, shares, clients)
        self.gone |= self._leaving("mask") | self._leaving("sums") | self._leaving("result")
        return total

    def _leaving(self, phase: str, among: Mapping[int, int] | None = None) -> set[int]:
        here = self.counts if among is None else among
        return {client for client, other in self.drop.items() if other == phase and client in here}

    def _pair(self, a: int, b: int) -> tuple[int, int]:
        """Return the pair in the order of its roles: by transfers, the client with fewer points
        first, by Paillier the other one.
        """
        fewer, more = roles(a, b, self.counts)
        return (fewer, more) if self.hamming == "transfer" else (more, fewer)

    def _begin(self, invited: list[int]) -> None:
        pass

    def _distances(
        self, a: int, b: int, codes_a: np.ndarray, codes_b: np.ndarray
    ) -> np.ndarray | None:
        assert IDEAL.distances is not None
        return IDEAL.distances(a, b, codes_a, codes_b)

    def _row_sums(
        self, invited: list[int], shares: dict[int, np.ndarray], clients: np.ndarray
    ) -> np.ndarray:
        live = [client for client in invited if self.drop.get(client) not in ("mask", "sums")]
        if len(live) < self.min_clients:
            raise TooFewClients(
                f"{len(live)} clients are live; a sum needs at least {self.min_clients}"
            )
        total = np.zeros_like(shares[invited[0]])
        for client in live:
            total += shares[client]
        total[
            ~np.isin(clients, [client for client in live if self.drop.get(client) != "result"])
        ] = 0
        return total


class AccountedProtocols(Protocols):
    """Level "accounted", which counts the messages that level "real" would send."""

    level = "accounted"

    def columns(self, columns: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Return the columns, and count their bytes."""
        here = {client: some for client, some in columns.items() if client not in self.gone}
        for client, some in here.items():
            size = wire_bytes(
                m.Columns, (some.dtype.itemsize, some.shape), (1, (len(here), KEY_BYTES))
            )
            self.traffic.add("columns", SERVER, client, size)
        return columns

    def _begin(self, invited: list[int]) -> None:
        count = len(self.counts)
        rows = len(self.counts) + 1
        tables = (1, (rows, KEY_BYTES)), (1, (rows, KEY_BYTES)), (1, (rows, SIGNATURE_BYTES))
        roster = wire_bytes(m.Roster, (4, (count,)), (8, (count,)), (8, (count,)), *tables)
        first = min(self.counts, default=None)
        for client in self.counts:
            self.traffic.add("keys", client, SERVER, wire_bytes(m.SessionKey))
            self.traffic.add("keys", SERVER, client, roster)
            if self.seed is not None and first is not None and client != first:
                self.traffic.add("seed", first, client, wire_bytes(m.Seed))

    def _distances(
        self, a: int, b: int, codes_a: np.ndarray, codes_b: np.ndarray
    ) -> np.ndarray | None:
        if a == b:
            own = wire_bytes(m.OwnDistances, (_size(self.num_bits), (len(codes_a), len(codes_a))))
            self.traffic.add("hamming", a, SERVER, own)
        else:
            pair = self._pair(a, b)
            sizes = self.counts[pair[0]], self.counts[pair[1]]
            if self.hamming == "transfer":
                add_transfers(self.traffic, *pair, *sizes, self.num_bits)
            else:
                add_paillier(self.traffic, *pair, *sizes, self.num_bits, self.key_bits)
        return super()._distances(a, b, codes_a, codes_b)

    def _row_sums(
        self, invited: list[int], shares: dict[int, np.ndarray], clients: np.ndarray
    ) -> np.ndarray:
        counts = {client: int((clients == client).sum()) for client in invited}
        size = shares[invited[0]].shape[1], shares[invited[0]].dtype.itemsize
        add_row_sums(self.traffic, counts, *size, self.drop, self.min_clients, self.recovery)
        return super()._row_sums(invited, shares, clients)
