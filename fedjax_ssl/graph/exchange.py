"""The two steps of Algorithm 1 that combine data of different clients; protocols can replace them
(XCLP, steps 4 and 9 to 12).

Data of different clients are combined twice: in the distances between points, and in the sums that
are the scores. The kernels of this room do both in one compiled program. With an `Exchange`, server
and clients each do their own part, and the joint steps are calls of host functions, which run a
protocol or stand in for one. Host functions run between rounds, never inside a compiled one.
"""

import math
from collections.abc import Callable
from itertools import combinations_with_replacement
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedjax_ssl.graph.graph import Graph
from fedjax_ssl.graph.graph_settings import GraphSettings
from fedjax_ssl.graph.neighbors import Neighbors, neighbors_from_matrix
from fedjax_ssl.graph.propagation import influence_columns

# With fewer fractional bits, rounding would change labels.
_LEAST_FRACTION_BITS = 8


class Exchange(NamedTuple):
    """The two joint steps of clients and server, on NumPy arrays of exact integers. A step that is
    None is done by the kernels.

    `distances(a, b, codes_a, codes_b)` gets uint32 [n_a, words] and [n_b, words] and returns int32
    [n_a, n_b]: the number of different bits between points of client a and of client b. It is
    called once for every pair a <= b; with a == b the client computes the distances alone. The
    server learns the distances, clients learn nothing. A distance of `num_bits + 1` means unknown
    because a client dropped out; it makes no edge. With exact distances, the neighbours are those
    of the kernels, bit for bit.

    `row_sums(shares, clients)` gets a uint32 [n, C] from every client, also from those without
    labels: its part of the scores of all n points, in fixed point. `clients` [n] has the owner of
    each row's point. It returns uint32 [n, C], the sum modulo 2^32. A client learns its own rows of
    it, the server learns nothing. Rows that no client learns are 0: no label. With exact sums,
    labels, confidences and scores are those of `IDEAL`, bit for bit. They differ from the kernels'
    by rounding, at most 2^-(f + 1) for each client with labels, see `fraction_bits`.

    `begin(num_points)` is called ahead of these with every client and the number of
    its points that have a code; `columns(columns)` sends every client the columns [n, labelled] of
    S of its labelled points and returns them as they arrive; `without_distances()` says who dropped
    out of the distances: no point of theirs stays in the graph.

    Not covered: the counts of label_norm "class" and the maximum of confidence_scale "max", which
    the server learns.
    """

    distances: Callable[[int, int, np.ndarray, np.ndarray], np.ndarray] | None = None
    row_sums: Callable[[dict[int, np.ndarray], np.ndarray], np.ndarray] | None = None
    begin: Callable[[dict[int, int]], None] = lambda num_points: None
    columns: Callable[[dict[int, np.ndarray]], dict[int, np.ndarray]] = lambda columns: columns
    without_distances: Callable[[], set[int]] = set


def _count_differing_bits(a: int, b: int, codes_a: np.ndarray, codes_b: np.ndarray) -> np.ndarray:
    distance = np.zeros((len(codes_a), len(codes_b)), np.int32)
    for words_a, words_b in zip(codes_a.T, codes_b.T, strict=True):
        distance += np.bitwise_count(words_a[:, None] ^ words_b)
    return distance


def _add_up(shares: dict[int, np.ndarray], clients: np.ndarray) -> np.ndarray:
    return np.stack(list(shares.values())).sum(axis=0, dtype=np.uint32)


# Reference result for every protocol; it hides nothing.
IDEAL = Exchange(_count_differing_bits, _add_up)


def begin_exchange(exchange: Exchange, clients: Array, valid: Array, usable: Array) -> None:
    """Tell the protocols which clients take part: owners [n] of valid rows, and the usable ones
    among them.
    """
    owner = np.asarray(clients)
    there = np.asarray(usable)
    everybody = np.unique(owner[np.asarray(valid)]).tolist()
    exchange.begin({client: int((owner[there] == client).sum()) for client in everybody})


def exchanged_neighbors(
    exchange: Exchange, codes: Array, clients: Array, usable: Array, settings: GraphSettings
) -> Neighbors:
    """Run steps 4 to 6: the server gets all distances, 4 n^2 bytes, and keeps the nearest; rows
    that are not usable send nothing.
    """
    assert exchange.distances is not None
    all_codes = np.asarray(codes)
    owner = np.asarray(clients)
    there = np.asarray(usable)
    unknown = settings.num_bits + 1
    matrix = np.full((len(owner), len(owner)), unknown, np.int32)
    rows = {
        client: np.flatnonzero(there & (owner == client))
        for client in np.unique(owner[there]).tolist()
    }
    for a, b in combinations_with_replacement(rows, 2):
        block = exchange.distances(a, b, all_codes[rows[a]], all_codes[rows[b]])
        _check("distances", block, (len(rows[a]), len(rows[b])), np.int32)
        if ((block < 0) | (block > unknown)).any():
            raise ValueError(
                f"exchange.distances returned {block.min()}..{block.max()}; allowed: 0..{unknown}"
            )
        matrix[np.ix_(rows[a], rows[b])] = block
        matrix[np.ix_(rows[b], rows[a])] = block.T
    for client in exchange.without_distances():
        matrix[owner == client] = unknown
        matrix[:, owner == client] = unknown
    return neighbors_from_matrix(
        jnp.asarray(matrix), jnp.asarray(there), settings.num_bits, settings.num_neighbors
    )


def exchanged_scores(
    exchange: Exchange,
    graph: Graph,
    label_matrix: Array,
    clients: Array,
    valid: Array,
    settings: GraphSettings,
) -> Array:
    """Run steps 9 to 12: the scores Z = S Y, to which every client adds its part; rows that are not
    valid belong to no client.
    """
    rows = np.flatnonzero(np.asarray(valid))
    owner = np.asarray(clients)
    targets = np.asarray(label_matrix)
    labelled = np.flatnonzero(targets.any(axis=1))
    scores = np.zeros_like(targets)
    if not labelled.size:
        return jnp.asarray(scores)
    # The server computes the columns of S, and sends a client those of its labelled points (steps 9
    # and 10).
    all_columns = np.asarray(
        influence_columns(graph, settings.alpha, jnp.asarray(labelled), settings.solver)
    )[rows]
    everybody = np.unique(owner[rows]).tolist()
    columns = {
        client: np.ascontiguousarray(all_columns[:, owner[labelled] == client])
        for client in everybody
    }
    columns = exchange.columns(columns)
    largest = largest_score(labelled.size, settings)
    bits = fraction_bits(labelled.size, len(everybody), settings)
    shares = {}
    for client in everybody:
        # The client multiplies them by its labels (step 11). Rounding happens here, before any
        # protocol.
        own = labelled[owner[labelled] == client]
        share = columns[client].astype(float) @ targets[own].astype(float)
        # An iterative solver may leave values just below 0.
        shares[client] = to_fixed_point(np.where(share < 0, 0, share), bits, largest)
    assert exchange.row_sums is not None
    total = exchange.row_sums(shares, owner[rows])
    _check("row_sums", total, (rows.size, targets.shape[1]), np.uint32)
    scores[rows] = from_fixed_point(total, bits)
    return jnp.asarray(scores)


def fraction_bits(num_labelled: int, num_clients: int, settings: GraphSettings) -> int:
    """Return the fractional bits f of row sums: the largest number that keeps the largest possible
    score below 2^32.

    It depends on public numbers only: labelled points of all clients, and clients, each of which
    rounds once. ValueError if fewer than 8 bits are left.
    """
    largest = largest_score(num_labelled, settings)
    bits = spare_bits(largest, num_clients)
    if bits < _LEAST_FRACTION_BITS:
        raise ValueError(
            f"alpha is {settings.alpha}; with {num_labelled} labels scores can reach "
            f"{largest:.3g}, which leaves sums modulo 2^32 {bits} bits behind the point, fewer "
            f"than {_LEAST_FRACTION_BITS}. Lower alpha."
        )
    return bits


def largest_score(num_labelled: int, settings: GraphSettings) -> float:
    """Return an upper bound of all scores, known from public numbers.

    Eigenvalues of S are at most 1 / (1 - alpha), so scores are at most |y_c| / (1 - alpha). The
    length |y_c| of a column of Y is at most sqrt(num_labelled), and 1 where labels are divided by
    their number.
    """
    length = math.sqrt(num_labelled) if settings.label_norm == "none" else 1.0
    # 1 % more, for the error of an iterative solver
    return 1.01 * length / (1 - float(settings.alpha))


def _check(name: str, found: np.ndarray, shape: tuple[int, ...], dtype: type) -> None:
    if not isinstance(found, np.ndarray) or found.shape != shape or found.dtype != dtype:
        raise ValueError(
            f"exchange.{name} returned {found!r}; it must be {np.dtype(dtype)} of shape {shape}"
        )


def spare_bits(largest_sum: float, num_terms: int) -> int:
    """Return the fractional bits f: the largest number for which no sum reaches 2^32.

    The sum of numbers that add up to at most `largest_sum`, each rounded, is at most 2^f
    largest_sum + num_terms / 2. After `from_fixed_point` its error is at most num_terms 2^-(f + 1).
    """
    return math.floor(math.log2((2**32 - num_terms) / largest_sum))


def to_fixed_point(values: np.ndarray, fraction_bits: int, largest: float) -> np.ndarray:
    """Round numbers of 0..largest to multiples of 2^-fraction_bits.

    Args:
        values: float64, the terms of one party in the sum.
        fraction_bits: f, from `spare_bits`.
        largest: bound of the sum, and so of each of its terms.

    Returns:
        uint32, of the same shape; nothing saturates or wraps around.

    Raises:
        ValueError: NaN, infinity, a negative or a subnormal number, one above `largest`, or a bound
            that does not fit.
    """
    if not largest * 2.0**fraction_bits < 2.0**32:
        raise ValueError(
            f"numbers up to {largest:.3g} with {fraction_bits} bits behind the point do not fit 32 "
            "bits"
        )
    allowed = (values == 0) | ((values >= np.finfo(float).tiny) & (values <= largest))
    if not allowed.all():
        raise ValueError(
            f"{int((~allowed).sum())} numbers cannot be put into fixed point: they are NaN, "
            f"infinite, negative, subnormal, or above the bound {largest:.6g}"
        )
    return np.rint(np.ldexp(values, fraction_bits)).astype(np.uint32)


def from_fixed_point(values: np.ndarray, fraction_bits: int) -> np.ndarray:
    """Return the numbers as float64."""
    return np.ldexp(values.astype(float), -fraction_bits)
