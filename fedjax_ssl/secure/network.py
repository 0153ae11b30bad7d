"""Deliver messages between parties: sealed at one endpoint, counted, and opened at the other.

A party is a state machine without I/O: bytes go in, messages come out. Here they travel in memory.
A `Transport` over sockets could replace this, with one machine per process.
"""

import struct
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from fedjax_ssl.secure import primitives, wire
from fedjax_ssl.secure.protocol_errors import (
    SERVER,
    MalformedMessage,
    NotAuthentic,
    ProtocolError,
    StaleMessage,
    party_name,
)
from fedjax_ssl.secure.wire import Header

_NAME = b"fedjax_ssl.secure 1 "


class Outgoing(NamedTuple):
    """A message on its way."""

    receiver: int
    data: bytes
    kind: type


class Endpoint:
    """One party in one session.

    Args:
        party: its number; `SERVER` is -1.
        identity: its long-term key.
        pinned: the public identity keys of all parties, known beforehand.
        run: 16 bytes that no other run has.
        round: round of the run; one session per round.
    """

    def __init__(
        self,
        party: int,
        identity: primitives.Identity,
        pinned: Mapping[int, bytes],
        run: bytes,
        round: int,
    ):
        self.party = party
        self.pinned = pinned
        self.run = run
        self.round = round
        self.key = primitives.ExchangeKey()
        self.transcript = b""  # digest of the roster; empty before it is known
        self.last_attempt = 0  # number of the last attempt at a sum; none repeats in a session
        self._identity = identity
        # (key to send, key to receive) by party; the nonce is the sequence number
        self._channels: dict[int, tuple[bytes, bytes]] = {}
        self._sent: dict[int, int] = {}
        self._next: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"Endpoint({party_name(self.party)}, round {self.round})"

    @property
    def identity(self) -> bytes:
        """Its public identity key."""
        return self._identity.public

    def context(self, name: bytes, *numbers: int) -> bytes:
        """Return the bytes that keys and signatures are bound to: protocol, version, purpose, run,
        round and numbers.
        """
        return (
            _NAME
            + name
            + b"|"
            + self.run
            + struct.pack(f"<{1 + len(numbers)}q", self.round, *numbers)
        )

    def sign(self, name: bytes, *parts: bytes, attempt: int = 0) -> bytes:
        """Return a signature of parts under this party's identity, bound to run, round, attempt and
        sender.
        """
        return self._identity.sign(wire.digest(self.context(name, attempt, self.party), *parts))

    def verify(
        self, sender: int, signature: bytes, name: bytes, *parts: bytes, attempt: int = 0
    ) -> None:
        """Raise NotAuthentic unless `sender`, by its pinned identity, signed these parts."""
        if sender not in self.pinned:
            raise NotAuthentic("no identity key is known", sender)
        data = wire.digest(self.context(name, attempt, sender), *parts)
        primitives.verify(self.pinned[sender], signature, data, sender)

    def connect(self, peer: int, public: bytes) -> None:
        """Open the channel to a party with this session key; `transcript` must be known.

        Raises:
            BadKey: a point of low order.
        """
        secret = self.key.agree(public)
        salt = b"".join(sorted((public, self.key.public)))
        send, receive = (
            primitives.hkdf(secret, salt, self.context(b"channel", *ends) + self.transcript)
            for ends in ((self.party, peer), (peer, self.party))
        )
        self._channels[peer] = send, receive

    def pack(self, receiver: int, message: Any, attempt: int = 0) -> Outgoing:
        """Return an outgoing message: sealed, or in clear if its kind is signed instead."""
        kind = wire.kind_of(type(message))
        sequence = self._sent.get(receiver, 0)
        self._sent[receiver] = sequence + 1
        header = Header(kind, self.run, self.round, attempt, self.party, receiver, sequence)
        body = wire.encode(message)
        if not wire.is_sealed(kind):
            return Outgoing(receiver, wire.pack_header(header, len(body)) + body, type(message))
        if receiver not in self._channels:
            raise NotAuthentic(f"there is no channel to {party_name(receiver)}")
        head = wire.pack_header(header, len(body) + primitives.TAG_BYTES)
        sealed = primitives.seal(self._channels[receiver][0], _nonce(sequence), body, head)
        return Outgoing(receiver, head + sealed, type(message))

    def unpack(self, data: bytes, attempt: int = 0) -> tuple[int, Any]:
        """Return (sender, message).

        A refused message changes nothing.

        Raises:
            ProtocolError: it is no message, not for this party or this point of the protocol, not
                from its claimed sender, or a repetition.
        """
        header, head, body = wire.unpack_header(data)
        sender = header.sender
        if header.receiver != self.party or sender == self.party:
            raise NotAuthentic(f"a message that is not for {party_name(self.party)}", sender)
        if (header.run, header.round, header.attempt) != (self.run, self.round, attempt):
            raise StaleMessage("a message of another run, round or attempt", sender)
        if header.sequence < self._next.get(sender, 0):
            raise StaleMessage("a message that was there before", sender)
        if wire.is_sealed(header.kind):
            if sender not in self._channels:
                raise NotAuthentic("there is no channel to the sender", sender)
            nonce = _nonce(header.sequence)
            key = self._channels[sender][1]
            body = memoryview(primitives.unseal(key, nonce, bytes(body), bytes(head), sender))
            self._next[sender] = header.sequence + 1
        return sender, wire.decode(header.kind, body, sender)


def _nonce(sequence: int) -> bytes:
    return struct.pack("<QI", sequence, 0)


class Machine:
    """Base of the parties of a protocol; it waits, and refuses every message.

    Args:
        endpoint: endpoint of the party.
    """

    def __init__(self, endpoint: Endpoint):
        self.endpoint = endpoint

    def __repr__(self) -> str:  # no key, code or mask in a log
        return f"{type(self).__name__}({self.endpoint.party})"

    def start(self) -> list[Outgoing]:
        """Return the messages that the party sends first."""
        return []

    def receive(self, data: bytes) -> list[Outgoing]:
        """Return the messages in answer. Raise ProtocolError for a refused message, which changes
        nothing.
        """
        sender, _ = self.endpoint.unpack(data)
        raise not_due(sender)

    def take(self, data: bytes, sender: int, kind: type, due: bool = True) -> Any:
        """Open a message of the expected kind from one party. Raise ProtocolError for every other
        one.
        """
        found, message = self.endpoint.unpack(data)
        if found != sender or not isinstance(message, kind) or not due:
            raise not_due(found)
        return message

    def expire(self) -> list[Outgoing] | None:
        """Return the messages if nothing more arrives; None: the party waits for nothing."""
        return None


def not_due(sender: int) -> MalformedMessage:
    """Make the error for an unexpected message."""
    return MalformedMessage("a message that is not due", sender)


class Transport(Protocol):
    """Base of the carriers of bytes between parties."""

    def send(self, sender: int, receiver: int, data: bytes) -> None:
        """Accept a message for delivery."""

    def receive(self, receiver: int) -> bytes | None:
        """Return the next message for a party, None if there is none."""


class InMemory:
    """Queues in this process."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[bytes]] = defaultdict(deque)

    def send(self, sender: int, receiver: int, data: bytes) -> None:
        """Put a message into the receiver's queue."""
        self._queues[receiver].append(data)

    def receive(self, receiver: int) -> bytes | None:
        """Return the next message of the receiver's queue."""
        queue = self._queues[receiver]
        return queue.popleft() if queue else None


class Traffic:
    """Messages and bytes by (phase, sender, receiver); a message between clients is counted once,
    not at the server.
    """

    def __init__(self) -> None:
        self.messages: Counter[tuple[str, int, int]] = Counter()
        self.bytes: Counter[tuple[str, int, int]] = Counter()

    def add(self, phase: str, sender: int, receiver: int, num_bytes: int, count: int = 1) -> None:
        """Count `count` messages of `num_bytes` each."""
        self.messages[phase, sender, receiver] += count
        self.bytes[phase, sender, receiver] += num_bytes * count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Traffic) and (self.messages, self.bytes) == (
            other.messages,
            other.bytes,
        )

    def total(
        self, phase: str | None = None, sender: int | None = None, receiver: int | None = None
    ) -> int:
        """Count the bytes by phase, sender and receiver; None stands for all."""
        wanted = (phase, sender, receiver)
        return sum(
            size
            for place, size in self.bytes.items()
            if all(one in (None, other) for one, other in zip(wanted, place, strict=True))
        )


class Network:
    """Runs the machines of a phase until no message is left.

    Args:
        transport: carries the messages.
        leaves: client -> the message that it does not send or read any more, because it vanishes
            there.
    """

    def __init__(
        self, transport: Transport | None = None, leaves: Mapping[int, type] | None = None
    ):
        self.transport: Transport = transport or InMemory()
        self.leaves = dict(leaves or {})
        self.gone: set[int] = set()
        self.traffic = Traffic()
        self.seconds: defaultdict[tuple[str, int], float] = defaultdict(float)  # by (phase, party)
        # (party that refused, reason), for the log
        self.refused: list[tuple[int, ProtocolError]] = []

    def run(self, phase: str, machines: Mapping[int, Machine]) -> None:
        """Deliver until no party sends anything; a refused message counts as one that never
        came.
        """
        for party, machine in machines.items():
            self._act(phase, party, machine.start)
        server = machines.get(SERVER)
        while True:
            while self._deliver(phase, machines):
                pass
            if server is None or not self._act(phase, SERVER, server.expire):
                return

    def _deliver(self, phase: str, machines: Mapping[int, Machine]) -> bool:
        busy = False
        for party, machine in machines.items():
            while (data := self.transport.receive(party)) is not None:
                busy = True
                self._act(phase, party, machine.receive, data)
        return busy

    def _act(
        self, phase: str, party: int, act: Callable[..., list[Outgoing] | None], *data: bytes
    ) -> bool:
        """Let a party act; return whether it did anything."""
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
