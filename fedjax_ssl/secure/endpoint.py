"""What a party holds in one session: its identity, its channels, and how messages are sealed and opened."""

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedjax_ssl.secure import messages, primitives
from fedjax_ssl.secure.errors import NotAuthentic, StaleMessage, party_name
from fedjax_ssl.secure.messages import Header

_NAME = b"fedjax_ssl.secure 1 "


class Outgoing(NamedTuple):
    """A message on its way."""

    receiver: int
    data: bytes
    kind: type


class _Channel:
    """Two keys with one other party, one for each direction; the sequence number is the nonce."""

    def __init__(self, send_key: bytes, receive_key: bytes):
        self.send_key, self.receive_key = send_key, receive_key


class Endpoint:
    """One party in one session.

    Args:
        party: its number; `SERVER` is -1.
        identity: its long-term key.
        pinned: the public identity keys of all parties, known beforehand.
        run: 16 bytes that no other run has.
        round: of the run; one session per round.
    """

    def __init__(self, party: int, identity: primitives.Identity, pinned: Mapping[int, bytes], run: bytes, round: int):
        self.party, self.pinned, self.run, self.round = party, pinned, run, round
        self.key = primitives.ExchangeKey()
        self.transcript = b""  # digest of the roster; empty before it is known
        self.last_attempt = 0  # at a sum; none comes twice in a session
        self._identity = identity
        self._channels: dict[int, _Channel] = {}
        self._sent: dict[int, int] = {}
        self._next: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"Endpoint({party_name(self.party)}, round {self.round})"

    @property
    def identity(self) -> bytes:
        """Its public identity key."""
        return self._identity.public

    def context(self, name: bytes, *numbers: int) -> bytes:
        """What keys and signatures are bound to: protocol, version, purpose, run, round and numbers."""
        return _NAME + name + b"|" + self.run + struct.pack(f"<{1 + len(numbers)}q", self.round, *numbers)

    def sign(self, name: bytes, *parts: bytes, attempt: int = 0) -> bytes:
        """A signature of parts under this party's identity, bound to run, round, attempt and sender."""
        return self._identity.sign(messages.digest(self.context(name, attempt, self.party), *parts))

    def verify(self, sender: int, signature: bytes, name: bytes, *parts: bytes, attempt: int = 0) -> None:
        """Raises NotAuthentic unless `sender`, by its pinned identity, signed these parts."""
        if sender not in self.pinned:
            raise NotAuthentic("no identity key is known", sender)
        data = messages.digest(self.context(name, attempt, sender), *parts)
        primitives.verify(self.pinned[sender], signature, data, sender)

    def connect(self, peer: int, public: bytes) -> None:
        """Opens the channel to a party with this session key; `transcript` has to be known.

        Raises:
            BadKey: a point of low order.
        """
        secret, salt = self.key.agree(public), b"".join(sorted((public, self.key.public)))
        keys = [
            primitives.hkdf(secret, salt, self.context(b"channel", *ends) + self.transcript)
            for ends in ((self.party, peer), (peer, self.party))
        ]
        self._channels[peer] = _Channel(*keys)

    def pack(self, receiver: int, message: Any, attempt: int = 0) -> Outgoing:
        """A message on its way: sealed, or in clear where its kind is signed instead."""
        kind, sequence = messages.kind_of(type(message)), self._sent.get(receiver, 0)
        self._sent[receiver] = sequence + 1
        header = Header(kind, self.run, self.round, attempt, self.party, receiver, sequence)
        body = messages.encode(message)
        if not messages.is_sealed(kind):
            return Outgoing(receiver, messages.pack_header(header, len(body)) + body, type(message))
        if receiver not in self._channels:
            raise NotAuthentic(f"there is no channel to {party_name(receiver)}")
        head = messages.pack_header(header, len(body) + primitives.TAG_BYTES)
        sealed = primitives.seal(self._channels[receiver].send_key, _nonce(sequence), body, head)
        return Outgoing(receiver, head + sealed, type(message))

    def unpack(self, data: bytes, attempt: int = 0) -> tuple[int, Any]:
        """(sender, message).

        Nothing is remembered of a message that is refused.

        Raises:
            ProtocolError: no message, not for this party or this place, not from whom it says, or not the first time.
        """
        header, head, body = messages.unpack_header(data)
        sender = header.sender
        if header.receiver != self.party or sender == self.party:
            raise NotAuthentic(f"a message that is not for {party_name(self.party)}", sender)
        if (header.run, header.round, header.attempt) != (self.run, self.round, attempt):
            raise StaleMessage("a message of another run, round or attempt", sender)
        if header.sequence < self._next.get(sender, 0):
            raise StaleMessage("a message that was there before", sender)
        if messages.is_sealed(header.kind):
            if sender not in self._channels:
                raise NotAuthentic("there is no channel to the sender", sender)
            nonce, key = _nonce(header.sequence), self._channels[sender].receive_key
            body = memoryview(primitives.unseal(key, nonce, bytes(body), bytes(head), sender))
            self._next[sender] = header.sequence + 1
        return sender, messages.decode(header.kind, body, sender)


def _nonce(sequence: int) -> bytes:
    return struct.pack("<QI", sequence, 0)
