"""Sessions for tests: parties with open channels, and recorded messages."""

import numpy as np
import pytest

pytest.importorskip("cryptography")
pytest.importorskip("nacl")

from fedjax_ssl.secure import SERVER, primitives
from fedjax_ssl.secure.network import Endpoint, InMemory, Network
from fedjax_ssl.secure.primitives import Identity
from fedjax_ssl.secure.session import SessionClient, SessionServer

RUN = bytes(range(16))
IDENTITIES = {party: Identity() for party in (SERVER, *range(8))}
PINNED = {party: identity.public for party, identity in IDENTITIES.items()}


def endpoints(parties, run=RUN, round=1):
    return {
        party: Endpoint(party, IDENTITIES[party], PINNED, run, round)
        for party in (*parties, SERVER)
    }


def connected(counts, run=RUN, round=1):
    """Endpoints of clients with these numbers of points, and of the server, after the keys."""
    ends = endpoints(counts, run, round)
    machines = {client: SessionClient(ends[client], count) for client, count in counts.items()}
    machines[SERVER] = SessionServer(ends[SERVER], list(counts))
    Network().run("keys", machines)
    assert all(ends[party].transcript == ends[SERVER].transcript for party in ends)
    return ends


class Recorder(InMemory):
    """Keeps everything that is sent; `tamper(sender, receiver, data)` may replace it."""

    def __init__(self, tamper=lambda sender, receiver, data: data):
        super().__init__()
        self.sent = []
        self._tamper = tamper

    def send(self, sender, receiver, data):
        self.sent.append((sender, receiver, data))
        super().send(sender, receiver, self._tamper(sender, receiver, data))


def record_keys(monkeypatch):
    """Lists that fill with every (key, nonce) of a seal, and every (cipher, key, nonce) of a
    stream, from here on.
    """
    seals = []
    streams = []
    seal = primitives.seal
    encryptor = primitives._encryptor

    def recording_seal(key, nonce, plain, associated):
        seals.append((key, nonce))
        return seal(key, nonce, plain, associated)

    def recording_encryptor(algorithm, key, mode, *more):
        if key != primitives._HASH_KEY:  # a public constant
            streams.append((algorithm, key, *more))
        return encryptor(algorithm, key, mode, *more)

    monkeypatch.setattr(primitives, "seal", recording_seal)
    monkeypatch.setattr(primitives, "_encryptor", recording_encryptor)
    return seals, streams


def codes_of(bits):
    """uint8 [n, L] of 0 and 1 -> uint32 [n, words]."""
    padded = np.zeros((len(bits), -(-bits.shape[1] // 32) * 32), np.uint8)
    padded[:, : bits.shape[1]] = bits
    return np.packbits(padded, axis=1, bitorder="little").view("<u4")


def random_codes(random, sizes, num_bits):
    return {
        client: codes_of(random.integers(0, 2, (n, num_bits), np.uint8))
        for client, n in enumerate(sizes)
    }
