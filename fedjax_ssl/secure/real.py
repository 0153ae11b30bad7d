"""Level "real": the parties of XCLP's protocols in one process, each a state machine, with messages between them."""

import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_ssl.secure import messages
from fedjax_ssl.secure.accounting import threshold
from fedjax_ssl.secure.bits import own_distances, ring, roles
from fedjax_ssl.secure.columns import ColumnsClient, ColumnsServer, SeedClient
from fedjax_ssl.secure.endpoint import Endpoint, Outgoing
from fedjax_ssl.secure.errors import SERVER, MalformedMessage, ProtocolError
from fedjax_ssl.secure.hamming_paillier import PackedBits, PaillierEvaluator, PaillierOwner, PaillierServer
from fedjax_ssl.secure.hamming_transfer import TransferReceiver, TransferSender, TransferServer
from fedjax_ssl.secure.levels import Protocols
from fedjax_ssl.secure.network import Machine, Network, Transport
from fedjax_ssl.secure.primitives import Identity, load
from fedjax_ssl.secure.row_sums import NOTHING_TOLD, RowSumClient, RowSumServer
from fedjax_ssl.secure.session import SessionClient, SessionServer

# In which message a client vanishes; "hamming" is between two pairs.
_LAST: dict[str, type] = {"keys": messages.SessionKey, "mask": messages.MaskKey, "sums": messages.MaskedRows}
_LAST["result"] = messages.RowTotals


class RealProtocols(Protocols):
    """Level "real". Args: as `Protocols`, and what carries the messages.

    Raises:
        MissingExtra: without `cryptography` or `PyNaCl`.
    """

    level = "real"

    def __init__(self, num_bits: int, *, transport: Transport | None = None, **settings: Any):
        super().__init__(num_bits, **settings)
        for module in ("cryptography", "nacl"):
            load(module)
        self.run = secrets.token_bytes(messages.RUN_BYTES)
        leaves = {client: _LAST[phase] for client, phase in self.drop.items() if phase in _LAST}
        self.network = Network(transport, leaves)
        self.traffic, self.seconds = self.network.traffic, self.network.seconds
        self._identities: dict[int, Identity] = {SERVER: Identity()}
        self._endpoints: dict[int, Endpoint] = {}
        self._told: dict[int, bytes] = {}
        self._packed: dict[int, PackedBits] = {}

    @property
    def refused(self) -> list[tuple[int, ProtocolError]]:
        """Messages that were refused: by whom, and why."""
        return self.network.refused

    def columns(self, columns: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
        """Sends every live client its columns."""
        live = [client for client in sorted(columns) if client not in self.gone]
        clients = {client: ColumnsClient(self._endpoints[client], live) for client in live}
        server = ColumnsServer(self._endpoints[SERVER], {client: columns[client] for client in live})
        self.network.run("columns", {**clients, SERVER: server})
        self._told = {client: machine.told for client, machine in clients.items()}
        arrived = {client: machine.columns for client, machine in clients.items() if machine.columns is not None}
        return {client: arrived.get(client, some) for client, some in columns.items()}

    def _begin(self, invited: list[int]) -> None:
        for client in invited:
            self._identities.setdefault(client, Identity())
        pinned = {party: identity.public for party, identity in self._identities.items()}
        self._endpoints = {
            party: Endpoint(party, self._identities[party], pinned, self.run, self.session)
            for party in [*invited, SERVER]
        }
        self._told, self._packed, self.network.gone = {}, {}, set()
        num_points = {**dict.fromkeys(invited, 0), **self.counts}
        machines: dict[int, Any] = {
            client: SessionClient(self._endpoints[client], num_points[client]) for client in invited
        }
        machines[SERVER] = SessionServer(self._endpoints[SERVER], invited)
        self.network.run("keys", machines)
        here = list(self.counts)
        if self.seed is not None and here:
            first = {client: self.seed if client == here[0] else None for client in here}
            self.network.run(
                "seed", {client: SeedClient(self._endpoints[client], here, first[client]) for client in here}
            )

    def _distances(self, a: int, b: int, codes_a: np.ndarray, codes_b: np.ndarray) -> np.ndarray | None:
        self.network.gone |= self.gone
        server: Any
        machines: dict[int, Machine]
        if a == b:
            server = _OwnServer(self._endpoints[SERVER], a, len(codes_a), self.num_bits)
            machines = {a: _OwnClient(self._endpoints[a], codes_a, self.num_bits)}
            self.network.run("hamming", {**machines, SERVER: server})
            return server.distances
        codes, (chosen, offered) = {a: codes_a, b: codes_b}, roles(a, b, self.counts)
        shape = self.counts[chosen], self.counts[offered]
        if self.hamming == "transfer":
            server = TransferServer(self._endpoints[SERVER], chosen, offered, shape, self.num_bits)
            machines = {
                chosen: TransferReceiver(self._endpoints[chosen], offered, codes[chosen], shape[1], self.num_bits),
                offered: TransferSender(self._endpoints[offered], chosen, codes[offered], shape[0], self.num_bits),
            }
        else:
            machines, server = self._paillier(offered, chosen, codes)
        self.network.run("hamming", {**machines, SERVER: server})
        self.gone |= self.network.gone
        if server.distances is None:
            return None
        first = chosen if self.hamming == "transfer" else offered
        return server.distances if first == a else np.ascontiguousarray(server.distances.T)

    def _paillier(self, owner: int, other: int, codes: Mapping[int, np.ndarray]) -> tuple[dict[int, Machine], Any]:
        sizes = self.num_bits, self.key_bits
        if owner not in self._packed:
            self._packed[owner] = PackedBits(codes[owner], *sizes)
        shape = self.counts[owner], self.counts[other]
        ends = self._endpoints
        machines: dict[int, Machine] = {
            owner: PaillierOwner(ends[owner], other, self._packed[owner], shape[1]),
            other: PaillierEvaluator(ends[other], owner, codes[other], shape[0], *sizes),
        }
        return machines, PaillierServer(ends[SERVER], owner, other, shape, *sizes)

    def _row_sums(self, invited: list[int], shares: dict[int, np.ndarray], clients: np.ndarray) -> np.ndarray:
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
        server = RowSumServer(
            self._endpoints[SERVER],
            invited,
            example.shape[1],
            example.dtype.type,
            self.min_clients,
            needed,
        )
        self.network.run("sums", {**machines, SERVER: server})
        total = np.zeros_like(example)
        for client, machine in machines.items():
            if machine.result is not None:
                total[places[client]] = machine.result
        return total


class _OwnClient:
    """A client that works out the distances between its own points."""

    def __init__(self, endpoint: Endpoint, codes: np.ndarray, num_bits: int):
        self.endpoint, self._codes, self._num_bits = endpoint, codes, num_bits

    def start(self) -> list[Outgoing]:
        """Its distances."""
        found = own_distances(self._codes, self._num_bits)
        return [self.endpoint.pack(SERVER, messages.OwnDistances(found))]

    def receive(self, data: bytes) -> list[Outgoing]:
        """It expects nothing."""
        raise MalformedMessage("a message that is not due", self.endpoint.unpack(data)[0])


class _OwnServer:
    """The server takes them."""

    def __init__(self, endpoint: Endpoint, client: int, num_points: int, num_bits: int):
        self.endpoint, self._client, self._num_points, self._num_bits = endpoint, client, num_points, num_bits
        self.distances: np.ndarray | None = None

    def start(self) -> list[Outgoing]:
        """It waits."""
        return []

    def receive(self, data: bytes) -> list[Outgoing]:
        """The distances between a client's own points."""
        sender, message = self.endpoint.unpack(data)
        if sender != self._client or not isinstance(message, messages.OwnDistances) or self.distances is not None:
            raise MalformedMessage("a message that is not due", sender)
        found, dtype = message.distances, ring(self._num_bits)
        if found.shape != (self._num_points, self._num_points) or found.dtype != dtype:
            raise MalformedMessage(f"{found.dtype} distances of shape {found.shape}", sender)
        if found.size and int(found.max()) > self._num_bits:
            raise MalformedMessage(f"a distance above {self._num_bits} bits", sender)
        self.distances = found.astype(np.int32)
        return []
