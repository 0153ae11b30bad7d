"""Level "real", where the parties exchange messages in one process, and the two protocols as
functions of arrays.
"""

import secrets
from collections.abc import Mapping
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import numpy as np

from fedjax_ssl.checks import check_choices
from fedjax_ssl.secure import LEVELS, wire
from fedjax_ssl.secure.distances import OwnClient, OwnServer
from fedjax_ssl.secure.hamming_paillier import (
    PackedBits,
    PaillierEvaluator,
    PaillierOwner,
    PaillierServer,
)
from fedjax_ssl.secure.hamming_transfer import TransferReceiver, TransferSender, TransferServer
from fedjax_ssl.secure.levels import AccountedProtocols, Protocols, threshold
from fedjax_ssl.secure.network import Endpoint, Network, Traffic, Transport
from fedjax_ssl.secure.primitives import Identity, load
from fedjax_ssl.secure.protocol_errors import SERVER, ProtocolError
from fedjax_ssl.secure.row_sums import NOTHING_TOLD, RowSumClient, RowSumServer
from fedjax_ssl.secure.session import (
    ColumnsClient,
    ColumnsServer,
    SeedClient,
    SessionClient,
    SessionServer,
)

# The message at which a client vanishes, by phase; "hamming" is between two pairs.
_LAST: dict[str, type] = {
    "keys": wire.SessionKey,
    "mask": wire.MaskKey,
    "sums": wire.MaskedRows,
}
_LAST["result"] = wire.RowTotals


class RealProtocols(Protocols):
    """Level "real". Args: as `Protocols`, and the transport of the messages.

    Raises:
        MissingExtra: without `cryptography` or `PyNaCl`.
    """

    level = "real"

    def __init__(self, num_bits: int, *, transport: Transport | None = None, **settings: Any):
        super().__init__(num_bits, **settings)
        for module in ("cryptography", "nacl"):
            load(module)
        self.run = secrets.token_bytes(wire.RUN_BYTES)
        leaves = {client: _LAST[phase] for client, phase in self.drop.items() if phase in _LAST}
        self.network = Network(transport, leaves)
        self.traffic = self.network.traffic
        self.seconds = self.network.seconds
        self._identities: dict[int, Identity] = {SERVER: Identity()}
        self._endpoints: dict[int, Endpoint] = {}
        self._told: dict[int, bytes] = {}
        self._packed: dict[int, PackedBits] = {}

    @property
    def refused(self) -> list[tuple[int, ProtocolError]]:
        """Refused messages, with the party that refused and the reason."""
        return self.network.refused

    def columns(self, columns: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Send every live client its columns."""
        live = [client for client in sorted(columns) if client not in self.gone]
        clients = {client: ColumnsClient(self._endpoints[client], live) for client in live}
        server = ColumnsServer(
            self._endpoints[SERVER], {client: columns[client] for client in live}
        )
        self.network.run("columns", {**clients, SERVER: server})
        self._told = {client: machine.told for client, machine in clients.items()}
        arrived = {
            client: machine.columns
            for client, machine in clients.items()
            if machine.columns is not None
        }
        return {client: arrived.get(client, some) for client, some in columns.items()}

    def _begin(self, invited: list[int]) -> None:
        for client in invited:
            self._identities.setdefault(client, Identity())
        pinned = {party: identity.public for party, identity in self._identities.items()}
        self._endpoints = {
            party: Endpoint(party, self._identities[party], pinned, self.run, self.session)
            for party in [*invited, SERVER]
        }
        self._told = {}
        self._packed = {}
        self.network.gone = set()
        num_points = {**dict.fromkeys(invited, 0), **self.counts}
        machines: dict[int, Any] = {
            client: SessionClient(self._endpoints[client], num_points[client]) for client in invited
        }
        machines[SERVER] = SessionServer(self._endpoints[SERVER], invited)
        self.network.run("keys", machines)
        here = list(self.counts)
        if self.seed is not None and here:
            first = {client: self.seed if client == here[0] else None for client in here}
            seeded = {
                client: SeedClient(self._endpoints[client], here, first[client]) for client in here
            }
            self.network.run("seed", seeded)

    def _distances(
        self, a: int, b: int, codes_a: np.ndarray, codes_b: np.ndarray
    ) -> np.ndarray | None:
        self.network.gone |= self.gone
        codes = {a: codes_a, b: codes_b}
        ends = self._endpoints
        num_bits = self.num_bits
        machines: dict[int, Any]
        if a == b:
            machines = {a: OwnClient(ends[a], codes_a, num_bits)}
            machines[SERVER] = OwnServer(ends[SERVER], a, len(codes_a), num_bits)
            self.network.run("hamming", machines)
            return machines[SERVER].distances
        first, second = self._pair(a, b)
        shape = self.counts[first], self.counts[second]
        if self.hamming == "transfer":
            machines = {
                first: TransferReceiver(ends[first], second, codes[first], shape[1], num_bits),
                second: TransferSender(ends[second], first, codes[second], shape[0], num_bits),
                SERVER: TransferServer(ends[SERVER], first, second, shape, num_bits),
            }
        else:
            sizes = num_bits, self.key_bits
            if first not in self._packed:
                self._packed[first] = PackedBits(codes[first], *sizes)
            machines = {
                first: PaillierOwner(ends[first], second, self._packed[first], shape[1]),
                second: PaillierEvaluator(ends[second], first, codes[second], shape[0], *sizes),
                SERVER: PaillierServer(ends[SERVER], first, second, shape, *sizes),
            }
        self.network.run("hamming", machines)
        self.gone |= self.network.gone
        found = machines[SERVER].distances
        return found if found is None or first == a else np.ascontiguousarray(found.T)

    def _row_sums(
        self, invited: list[int], shares: dict[int, np.ndarray], clients: np.ndarray
    ) -> np.ndarray:
        self.network.gone |= self.gone
        places = {client: np.flatnonzero(clients == client) for client in sorted(shares)}
        example = shares[invited[0]]
        live = sum(self.drop.get(client) != "mask" for client in invited)
        needed = threshold(live) if self.recovery else None
        machines: dict[int, Any] = {
            client: RowSumClient(
                self._endpoints[client],
                {other: shares[client][rows] for other, rows in places.items()},
                self._told.get(client, NOTHING_TOLD),
                self.min_clients,
                needed,
            )
            for client in invited
        }
        limits = self.min_clients, needed
        server = RowSumServer(
            self._endpoints[SERVER], invited, example.shape[1], example.dtype.type, *limits
        )
        self.network.run("sums", {**machines, SERVER: server})
        total = np.zeros_like(example)
        for client, machine in machines.items():
            if machine.result is not None:
                total[places[client]] = machine.result
        return total


class Secured(NamedTuple):
    """Result and cost of a protocol."""

    result: Any
    traffic: Traffic
    seconds: dict[tuple[str, int], float]  # seconds by (phase, party), at level "real"


def protocols(level: str, num_bits: int, **settings: object) -> Protocols:
    """Return the protocols at a level.

    Args:
        level: "ideal", "accounted" or "real".
        num_bits: L.
        **settings: settings of `Protocols`.

    Raises:
        ValueError: for a setting outside these.
        MissingExtra: level "real" without the packages that it needs.
    """
    check_choices(LEVELS, protocol=level)
    classes = {"ideal": Protocols, "accounted": AccountedProtocols, "real": RealProtocols}
    return classes[level](num_bits, **settings)  # type: ignore[arg-type]


def secure_hamming(
    codes: Mapping[int, np.ndarray],
    num_bits: int,
    *,
    level: str = "real",
    hamming: str = "transfer",
    **settings: Any,
) -> Secured:
    """Return Hamming distances between all points of all clients; the server learns them, and
    clients learn nothing.

    Args:
        codes: client -> uint32 [n, ceil(num_bits / 32)], from `fedjax_ssl.graph.lsh_codes`.
        num_bits: L.
        level: "real", "accounted" or "ideal".
        hamming: "transfer" or "paillier".
        **settings: see `fedjax_ssl.secure.Protocols`.

    Returns:
        Secured; result: {(a, b): int32 [n_a, n_b]} for all a <= b, num_bits + 1 if a client dropped
        out.

    Raises:
        ValueError: codes of another type or width, a setting that does not exist.
        MissingExtra: level "real" without the extra `secure`.
    """
    words = -(-num_bits // 32)
    for client, some in codes.items():
        if some.ndim != 2 or some.dtype != np.uint32 or some.shape[1] != words:
            raise ValueError(
                f"codes of client {client} are {some.dtype} {some.shape}; allowed: uint32 [n, "
                f"{words}]"
            )
    chosen = protocols(level, num_bits, hamming=hamming, **settings)
    chosen.begin({client: len(some) for client, some in codes.items()})
    with_points = [client for client in sorted(codes) if len(codes[client])]
    pairs = combinations_with_replacement(with_points, 2)
    result = {(a, b): chosen.distances(a, b, codes[a], codes[b]) for a, b in pairs}
    return Secured(result, chosen.traffic, dict(chosen.seconds))


def secure_row_sums(
    shares: Mapping[int, np.ndarray],
    clients: np.ndarray,
    *,
    level: str = "real",
    largest_sum: int | None = None,
    **settings: Any,
) -> Secured:
    """Return the sum of all clients' matrices; a client learns its own rows of the sum, and the
    server nothing.

    Args:
        shares: client -> uint32 or uint64 [n, K], the same shape and type for all.
        clients: [n], the owner of each row.
        level: "real", "accounted" or "ideal".
        largest_sum: largest possible sum, from public numbers; None: the sum may wrap around.
        **settings: see `fedjax_ssl.secure.Protocols`.

    Returns:
        Secured; result: [n, K] modulo 2^32 or 2^64, 0 in rows of clients that dropped out.

    Raises:
        ValueError: matrices that differ in shape or type, rows without an owner, a sum that does
            not fit.
        MissingExtra: level "real" without the extra `secure`.
    """
    kinds = {(some.dtype, some.shape) for some in shares.values()}
    if (
        len(kinds) != 1
        or next(iter(kinds))[0] not in (np.uint32, np.uint64)
        or len(next(iter(kinds))[1]) != 2
    ):
        raise ValueError(
            f"shares are {sorted(map(str, kinds))}; they must be uint32 or uint64 [n, K], all alike"
        )
    ((dtype, shape),) = kinds
    clients = np.asarray(clients)
    if clients.shape != shape[:1] or not set(clients.tolist()) <= set(shares):
        raise ValueError(
            f"clients has shape {clients.shape} for {shape[0]} rows, or names somebody without a "
            "matrix"
        )
    if largest_sum is not None:
        modulus = 2 ** (8 * dtype.itemsize)
        largest = max((int(some.max()) for some in shares.values() if some.size), default=0)
        if largest_sum >= modulus or largest > largest_sum:
            raise ValueError(
                f"the sum can reach {max(largest_sum, largest)}; allowed: below "
                f"{min(modulus, largest_sum + 1)}"
            )
    chosen = protocols(level, 1, **settings)
    chosen.begin({client: 0 for client in shares})
    result = chosen.row_sums(dict(shares), clients)
    return Secured(result, chosen.traffic, dict(chosen.seconds))
