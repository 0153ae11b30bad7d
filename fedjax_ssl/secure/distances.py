"""Distances in the protocols: codes as bits, numbers modulo a power of two, the roles of a pair,
and distances within one client.
"""

from typing import Any

import numpy as np

from fedjax_ssl.secure.network import Endpoint, Machine, Outgoing, not_due
from fedjax_ssl.secure.protocol_errors import SERVER, InconsistentView, MalformedMessage
from fedjax_ssl.secure.wire import DistanceShare, OwnDistances, check_array


def bits_of(codes: np.ndarray, num_bits: int) -> np.ndarray:
    """Turn codes uint32 [n, words] into uint8 [n, num_bits] of 0 and 1."""
    data = np.ascontiguousarray(codes, "<u4").view(np.uint8)
    return np.unpackbits(data, axis=1, bitorder="little")[:, :num_bits]


def ring(num_bits: int) -> type:
    """Return the smallest of uint8, uint16 and uint32 that can hold the distances 0..num_bits."""
    return next(
        dtype for dtype in (np.uint8, np.uint16, np.uint32) if num_bits <= np.iinfo(dtype).max
    )


def roles(a: int, b: int, counts: dict[int, int]) -> tuple[int, int]:
    """Return (client with fewer points, other client) of a pair; the first receives in oblivious
    transfers.
    """
    one, other = sorted((a, b))
    return (other, one) if counts[other] < counts[one] else (one, other)


def own_distances(codes: np.ndarray, num_bits: int) -> np.ndarray:
    """Return the distances between the points of one client, [n, n] in `ring`, by a matrix product,
    exact below 2^24 bits.
    """
    signs = 1 - 2 * bits_of(codes, num_bits).astype(np.float32)
    return ((num_bits - signs @ signs.T) / 2).astype(ring(num_bits))


class PairServer(Machine):
    """Server that takes a share from each client of a pair and combines them to the distances
    between their points.

    Args:
        endpoint: endpoint of the server.
        first: the client whose points are the rows.
        second: the client whose points are the columns.
        shape: numbers of points of both.
        num_bits: L.
    """

    share: type = DistanceShare

    def __init__(
        self, endpoint: Endpoint, first: int, second: int, shape: tuple[int, int], num_bits: int
    ):
        super().__init__(endpoint)
        self._peers = {first: second, second: first}
        self._shape = shape
        self._num_bits = num_bits
        self._shares: dict[int, Any] = {}
        # int32 [first's points, second's points], once both shares have arrived
        self.distances: np.ndarray | None = None

    def receive(self, data: bytes) -> list[Outgoing]:
        """Check a client's share and keep it."""
        sender, message = self.endpoint.unpack(data)
        due = isinstance(message, self.share) and sender not in self._shares
        if not due or message.peer != self._peers.get(sender):
            raise not_due(sender)
        self._check(message, sender)
        self._shares[sender] = message
        if len(self._shares) == 2:
            found = self._put_together(*(self._shares[client] for client in self._peers))
            # one of the two clients did not follow the protocol
            if found.size and int(found.max()) > self._num_bits:
                pair = " and ".join(map(str, self._peers))
                raise InconsistentView(
                    f"clients {pair} gave a distance above {self._num_bits} bits"
                )
            self.distances = found.astype(np.int32)
        return []

    def _check(self, message: Any, sender: int) -> None:
        """Raise MalformedMessage for a share of an unexpected shape."""
        raise NotImplementedError

    def _put_together(self, first: Any, second: Any) -> np.ndarray:
        raise NotImplementedError


class OwnClient(Machine):
    """Client that computes the distances between its own points."""

    def __init__(self, endpoint: Endpoint, codes: np.ndarray, num_bits: int):
        super().__init__(endpoint)
        self._codes = codes
        self._num_bits = num_bits

    def start(self) -> list[Outgoing]:
        """Send the client's distances."""
        return [
            self.endpoint.pack(SERVER, OwnDistances(own_distances(self._codes, self._num_bits)))
        ]


class OwnServer(Machine):
    """Server that takes the distances between a client's own points."""

    def __init__(self, endpoint: Endpoint, client: int, num_points: int, num_bits: int):
        super().__init__(endpoint)
        self._client = client
        self._num_points = num_points
        self._num_bits = num_bits
        self.distances: np.ndarray | None = None

    def receive(self, data: bytes) -> list[Outgoing]:
        """Check the distances and keep them."""
        found = self.take(data, self._client, OwnDistances, self.distances is None).distances
        shape = (self._num_points, self._num_points)
        check_array("distances", found, shape, ring(self._num_bits), self._client)
        if found.size and int(found.max()) > self._num_bits:
            raise MalformedMessage(f"a distance above {self._num_bits} bits", self._client)
        self.distances = found.astype(np.int32)
        return []
