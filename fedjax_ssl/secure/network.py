"""Delivers messages between parties, counts and times them, and lets parties vanish.

A party is a state machine without input or output of its own: bytes go in, messages come out. Here they travel in
memory. A `Transport` over sockets can take this one's place, with one machine to a process.
"""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from fedjax_ssl.secure.endpoint import Outgoing
from fedjax_ssl.secure.errors import SERVER, ProtocolError


class Machine(Protocol):
    """One party in one protocol."""

    def start(self) -> list[Outgoing]:
        """What it sends of its own accord."""

    def receive(self, data: bytes) -> list[Outgoing]:
        """What it sends in answer. Raises ProtocolError for a message that it refuses, and is as it was before."""


class ServerMachine(Machine, Protocol):
    """The server, who does not wait for ever."""

    def expire(self) -> list[Outgoing] | None:
        """What it sends when nothing more arrives; None: it waits for nothing."""


class Transport(Protocol):
    """Carries bytes to a party."""

    def send(self, sender: int, receiver: int, data: bytes) -> None:
        """Takes a message along."""

    def receive(self, receiver: int) -> bytes | None:
        """The next message for a party, None if there is none."""


class InMemory:
    """Queues in this process."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[bytes]] = defaultdict(deque)

    def send(self, sender: int, receiver: int, data: bytes) -> None:
        """Puts a message into the receiver's queue."""
        self._queues[receiver].append(data)

    def receive(self, receiver: int) -> bytes | None:
        """The next message of the receiver's queue."""
        queue = self._queues[receiver]
        return queue.popleft() if queue else None


class Traffic:
    """Messages and bytes by (phase, sender, receiver); messages between clients are counted once, not at the server."""

    def __init__(self) -> None:
        self.messages: Counter[tuple[str, int, int]] = Counter()
        self.bytes: Counter[tuple[str, int, int]] = Counter()

    def add(self, phase: str, sender: int, receiver: int, num_bytes: int, count: int = 1) -> None:
        """Counts `count` messages of `num_bytes` each."""
        self.messages[phase, sender, receiver] += count
        self.bytes[phase, sender, receiver] += num_bytes * count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Traffic) and (self.messages, self.bytes) == (other.messages, other.bytes)

    def total(self, phase: str | None = None, sender: int | None = None, receiver: int | None = None) -> int:
        """Bytes of a phase, from a party or to a party; None: of all."""
        wanted = (phase, sender, receiver)
        return sum(
            size
            for place, size in self.bytes.items()
            if all(one in (None, other) for one, other in zip(wanted, place, strict=True))
        )


class Network:
    """Runs the machines of a phase until all is quiet.

    Args:
        transport: carries the messages.
        leaves: client -> the message that it no longer sends, or no longer reads: there it vanishes.
    """

    def __init__(self, transport: Transport | None = None, leaves: Mapping[int, type] | None = None):
        self.transport: Transport = transport or InMemory()
        self.leaves = dict(leaves or {})
        self.gone: set[int] = set()
        self.traffic = Traffic()
        self.seconds: defaultdict[tuple[str, int], float] = defaultdict(float)  # by (phase, party)
        self.refused: list[tuple[int, ProtocolError]] = []  # (who refused, why), for the log

    def run(self, phase: str, machines: Mapping[int, Machine]) -> None:
        """Delivers until nobody has anything to say; a message that is refused counts as one that never came."""
        for party, machine in machines.items():
            self._act(phase, party, machine.start)
        server = machines.get(SERVER)
        while True:
            while self._deliver(phase, machines):
                pass
            expire = getattr(server, "expire", None)
            if expire is None or not self._act(phase, SERVER, expire):
                return

    def _deliver(self, phase: str, machines: Mapping[int, Machine]) -> bool:
        busy = False
        for party, machine in machines.items():
            while (data := self.transport.receive(party)) is not None:
                busy = True
                self._act(phase, party, machine.receive, data)
        return busy

    def _act(self, phase: str, party: int, act: Callable[..., list[Outgoing] | None], *data: bytes) -> bool:
        """Lets a party act; whether it did anything."""
        if party in self.gone:
            return False
        begin = time.perf_counter()
        try:
            outgoing = act(*data)
        except ProtocolError as error:
            if not data:
                raise
            self.refused.append((party, error))
            outgoing = []
        self.seconds[phase, party] += time.perf_counter() - begin
        self._send(phase, party, outgoing or [])
        return outgoing is not None

    def _send(self, phase: str, sender: int, outgoing: Iterable[Outgoing]) -> None:
        for receiver, data, kind in outgoing:
            for party in (sender, receiver):
                if self.leaves.get(party) is kind:
                    self.gone.add(party)
            if sender in self.gone:
                return
            self.traffic.add(phase, sender, receiver, len(data))
            if receiver not in self.gone:
                self.transport.send(sender, receiver, data)
