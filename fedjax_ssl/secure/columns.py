"""The server sends every client its columns of the influence matrix, bound to what it sends to the others.

The digests of all columns go to everybody. Who was sent other digests than the rest has other mask keys too.
"""

import numpy as np

from fedjax_ssl.secure import messages
from fedjax_ssl.secure.endpoint import Endpoint, Outgoing
from fedjax_ssl.secure.errors import SERVER, InconsistentView, MalformedMessage
from fedjax_ssl.secure.messages import Columns
from fedjax_ssl.secure.primitives import KEY_BYTES
from fedjax_ssl.secure.session import check_table, table


def columns_digest(columns: np.ndarray) -> bytes:
    """SHA-256 of columns, their type and shape."""
    return messages.digest(str(columns.dtype).encode(), str(columns.shape).encode(), columns.tobytes())


class ColumnsClient:
    """A client. Args: its endpoint, and the clients that take part, in order."""

    def __init__(self, endpoint: Endpoint, clients: list[int]):
        self.endpoint, self._clients = endpoint, clients
        self.columns: np.ndarray | None = None
        self.told = b""

    def start(self) -> list[Outgoing]:
        """It waits for the server."""
        return []

    def receive(self, data: bytes) -> list[Outgoing]:
        """Its columns."""
        sender, message = self.endpoint.unpack(data)
        if sender != SERVER or not isinstance(message, Columns) or self.columns is not None:
            raise MalformedMessage("a message that is not due", sender)
        digests = check_table(message.digests, len(self._clients), KEY_BYTES, SERVER)
        if digests[self._clients.index(self.endpoint.party)] != columns_digest(message.columns):
            raise InconsistentView("columns that do not fit the digest that all clients were sent", SERVER)
        self.columns, self.told = message.columns, messages.digest(*digests)
        return []


class ColumnsServer:
    """The server. Args: its endpoint, and the columns float32 or float64 [n, labelled] of every client."""

    def __init__(self, endpoint: Endpoint, columns: dict[int, np.ndarray]):
        self.endpoint, self._columns = endpoint, columns

    def start(self) -> list[Outgoing]:
        """Sends everybody its columns."""
        digests = table([columns_digest(self._columns[client]) for client in sorted(self._columns)], KEY_BYTES)
        return [self.endpoint.pack(client, Columns(some, digests)) for client, some in sorted(self._columns.items())]

    def receive(self, data: bytes) -> list[Outgoing]:
        """It expects nothing."""
        sender, _ = self.endpoint.unpack(data)
        raise MalformedMessage("a message that is not due", sender)


class SeedClient:
    """A client; the first of all sends the seed of the hyperplanes to the others, which the server must not know."""

    def __init__(self, endpoint: Endpoint, clients: list[int], seed: bytes | None = None):
        self.endpoint, self._clients, self.seed = endpoint, clients, seed

    def start(self) -> list[Outgoing]:
        """The first client sends the seed."""
        if self.seed is None:
            return []
        others = [client for client in self._clients if client != self.endpoint.party]
        return [self.endpoint.pack(client, messages.Seed(self.seed)) for client in others]

    def receive(self, data: bytes) -> list[Outgoing]:
        """The others take it."""
        sender, message = self.endpoint.unpack(data)
        if sender != self._clients[0] or not isinstance(message, messages.Seed) or self.seed is not None:
            raise MalformedMessage("a message that is not due", sender)
        self.seed = message.seed
        return []

    def __repr__(self) -> str:
        return f"SeedClient({self.endpoint.party})"
