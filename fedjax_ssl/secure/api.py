"""The two protocols as functions of arrays, for use without the rest of the package."""

from collections.abc import Mapping
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import numpy as np

from fedjax_ssl.checks import check_choices
from fedjax_ssl.secure.levels import LEVELS, AccountedProtocols, Protocols
from fedjax_ssl.secure.network import Traffic
from fedjax_ssl.secure.real import RealProtocols


class Secured(NamedTuple):
    """What a protocol gave, and what it cost."""

    result: Any
    traffic: Traffic
    seconds: dict[tuple[str, int], float]  # by (phase, party), at level "real"


def protocols(level: str, num_bits: int, **settings: object) -> Protocols:
    """The protocols at a level.

    Args:
        level: "ideal", "accounted" or "real".
        num_bits: L.
        **settings: of `Protocols`.

    Raises:
        ValueError: for a setting outside these.
        MissingExtra: level "real" without the packages that it needs.
    """
    check_choices(LEVELS, protocol=level)
    classes = {"ideal": Protocols, "accounted": AccountedProtocols, "real": RealProtocols}
    return classes[level](num_bits, **settings)  # type: ignore[arg-type]


def secure_hamming(
    codes: Mapping[int, np.ndarray], num_bits: int, *, level: str = "real", hamming: str = "transfer", **settings: Any
) -> Secured:
    """Hamming distances between all points of all clients; the server learns them, the clients learn nothing.

    Args:
        codes: client -> uint32 [n, ceil(num_bits / 32)], as `fedjax_ssl.graph.lsh_codes` makes them.
        num_bits: L.
        level: "real", "accounted" or "ideal".
        hamming: "transfer" or "paillier".
        **settings: see `fedjax_ssl.secure.Protocols`.

    Returns:
        Secured; result: {(a, b): int32 [n_a, n_b]} for all a <= b, num_bits + 1 where a client dropped out.

    Raises:
        ValueError: codes of another type or width, a setting that does not exist.
        MissingExtra: level "real" without the extra `secure`.
    """
    words = -(-num_bits // 32)
    for client, some in codes.items():
        if some.ndim != 2 or some.dtype != np.uint32 or some.shape[1] != words:
            raise ValueError(f"codes of client {client} are {some.dtype} {some.shape}; allowed: uint32 [n, {words}]")
    chosen = protocols(level, num_bits, hamming=hamming, **settings)
    chosen.begin({client: len(some) for client, some in codes.items()})
    with_points = [client for client in sorted(codes) if len(codes[client])]
    pairs = combinations_with_replacement(with_points, 2)
    result = {(a, b): chosen.distances(a, b, codes[a], codes[b]) for a, b in pairs}
    return Secured(result, chosen.traffic, dict(chosen.seconds))


def secure_row_sums(
    shares: Mapping[int, np.ndarray],
    clients: np.ndarray,
    *,
    level: str = "real",
    largest_sum: int | None = None,
    **settings: Any,
) -> Secured:
    """The sum of all clients' matrices; a client learns its own rows of it, the server learns nothing.

    Args:
        shares: client -> uint32 or uint64 [n, K], all alike.
        clients: [n], whose row a row is.
        level: "real", "accounted" or "ideal".
        largest_sum: that the sum can reach, as public numbers say; None: it may wrap around.
        **settings: see `fedjax_ssl.secure.Protocols`.

    Returns:
        Secured; result: [n, K] modulo 2^32 or 2^64, 0 in rows of clients that dropped out.

    Raises:
        ValueError: matrices that differ in shape or type, rows of nobody, a sum that does not fit.
        MissingExtra: level "real" without the extra `secure`.
    """
    kinds = {(some.dtype, some.shape) for some in shares.values()}
    if len(kinds) != 1 or next(iter(kinds))[0] not in (np.uint32, np.uint64) or len(next(iter(kinds))[1]) != 2:
        raise ValueError(f"shares are {sorted(map(str, kinds))}; they must be uint32 or uint64 [n, K], all alike")
    ((dtype, shape),) = kinds
    clients = np.asarray(clients)
    if clients.shape != shape[:1] or not set(clients.tolist()) <= set(shares):
        raise ValueError(f"clients has shape {clients.shape} for {shape[0]} rows, or names somebody without a matrix")
    if largest_sum is not None:
        modulus, largest = (
            2 ** (8 * dtype.itemsize),
            max((int(some.max()) for some in shares.values() if some.size), default=0),
        )
        if largest_sum >= modulus or largest > largest_sum:
            raise ValueError(
                f"the sum can reach {max(largest_sum, largest)}; allowed: below {min(modulus, largest_sum + 1)}"
            )
    chosen = protocols(level, 1, **settings)
    chosen.begin({client: 0 for client in shares})
    result = chosen.row_sums(dict(shares), clients)
    return Secured(result, chosen.traffic, dict(chosen.seconds))
