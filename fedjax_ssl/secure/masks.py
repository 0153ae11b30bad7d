"""Which row of a sum is whose, and the masks that hide a client's part of the others' rows."""

from typing import NamedTuple

import numpy as np

from fedjax_ssl.secure import messages
from fedjax_ssl.secure.endpoint import Endpoint
from fedjax_ssl.secure.messages import MaskKeys
from fedjax_ssl.secure.primitives import ExchangeKey, add_key_stream, hkdf


class Rows(NamedTuple):
    """The rows of one attempt: those of every live client, one after another, then a check row for each."""

    clients: tuple[int, ...]  # in increasing order
    counts: tuple[int, ...]

    @property
    def owner(self) -> np.ndarray:
        """int64 [rows], the client that a row belongs to."""
        return np.concatenate([np.repeat(self.clients, self.counts), self.clients]).astype(np.int64)

    def own_count(self, client: int) -> int:
        """Rows of a client, its check row included."""
        return self.counts[self.clients.index(client)] + 1


class PairMasks:
    """The masks that a client shares with each other one; of two, the lower number adds and the other one subtracts.

    The sum of all clients' masks is 0. Keys are bound to protocol, run, round, attempt, modulus and to all that
    everybody was told, so that they differ where any of it does.
    """

    def __init__(self, endpoint: Endpoint, attempt: int, bits: int, keys: MaskKeys):
        self._context = endpoint.context(b"mask", attempt, bits)
        self._transcript = messages.digest(endpoint.transcript, messages.encode(keys))

    def key(self, one: ExchangeKey, public: bytes) -> bytes:
        """The key of a pair's stream."""
        salt = b"".join(sorted((one.public, public)))
        return hkdf(one.agree(public), salt, self._context + self._transcript)

    def add(self, total: np.ndarray, one: int, key: ExchangeKey, other: int, public: bytes) -> None:
        """Adds to a matrix what client `one` shares with client `other`."""
        add_key_stream(total, self.key(key, public), 1 if one < other else -1)


def own_seed(secret: bytes, owner: int) -> bytes:
    """The seed of a client's own mask of the rows of `owner`, where there is recovery."""
    return hkdf(secret, b"", b"fedjax_ssl.secure 1 own mask|" + owner.to_bytes(8, "little"))


def add_own_masks(total: np.ndarray, rows: Rows, seeds: dict[int, bytes], sign: int) -> None:
    """Adds own masks to the rows, check rows included, of every client that there is a seed for."""
    owner = rows.owner
    for client, seed in seeds.items():
        mine = owner == client
        block = np.zeros((int(mine.sum()), total.shape[1]), total.dtype)
        add_key_stream(block, seed, sign)
        total[mine] += block
