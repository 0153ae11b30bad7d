"""A toy protocol for the seam of `fedjax_ssl.graph.Exchange`: additive masks, and a record of who
saw what.

The server and every client are entries of `seen`; what a party is sent goes there. The masks come
from a generator that is not secure, and the distances from a client that is trusted with both
codes: this shows the seam, not a protocol.
"""

from collections import defaultdict

import numpy as np

from fedjax_ssl import graph


class MaskedExchange:
    """Clients i < j share a mask, which i adds and j subtracts; a client's own rows never leave
    it.
    """

    def __init__(self, seed=0, dropped=None):
        self.seed = seed
        self.dropped = dropped
        self.calls = 0
        self.seen = defaultdict(list)  # party -> arrays
        self.pairs = []  # of clients, in the order of the calls
        self.exchange = graph.Exchange(self.distances, self.row_sums)

    def distances(self, a, b, codes_a, codes_b):
        self.pairs.append((a, b))
        self.seen[a].append(codes_a)
        self.seen[b].append(codes_b)
        found = graph.IDEAL.distances(a, b, codes_a, codes_b)
        self.seen["server"].append(found)
        return found

    def row_sums(self, shares, clients):
        self.calls += 1
        alive = [client for client in shares if client != self.dropped]
        total = np.zeros_like(next(iter(shares.values())))
        for client in alive:
            message = shares[client] + self._mask(client, alive, total.shape)
            message[(clients == client) | (clients == self.dropped)] = 0
            self.seen["server"].append(message)
            total += message
        for client in alive:
            own = clients == client
            self.seen[client].append(total[own])
            total[own] += shares[client][own] + self._mask(client, alive, total.shape)[own]
        return total

    def _mask(self, client, alive, shape):
        mask = np.zeros(shape, np.uint32)
        for other in alive:
            seeds = (self.seed, self.calls, *sorted((client, other)))
            pair = np.random.default_rng(seeds).integers(2**32, size=shape, dtype=np.uint32)
            mask += pair * np.uint32(np.sign(other - client) % 2**32)
        return mask
