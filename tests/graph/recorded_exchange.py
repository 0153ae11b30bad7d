"""The ideal exchange, with a record of what each party is asked for."""

from collections import defaultdict

from fedjax_ssl import graph


class RecordedExchange:
    """Stands in for a protocol; what a client gives away is kept."""

    def __init__(self):
        self.pairs = []  # of clients, in the order of the calls
        self.codes = defaultdict(list)  # client -> codes that it gives to a distance
        self.shares = []  # per call
        self.exchange = graph.Exchange(self.distances, self.row_sums)

    def distances(self, a, b, codes_a, codes_b):
        self.pairs.append((a, b))
        self.codes[a].append(codes_a)
        self.codes[b].append(codes_b)
        return graph.IDEAL.distances(a, b, codes_a, codes_b)

    def row_sums(self, shares, clients):
        self.shares.append(shares)
        return graph.IDEAL.row_sums(shares, clients)
