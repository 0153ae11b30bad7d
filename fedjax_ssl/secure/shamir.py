"""Shamir's secret sharing: any `threshold` shares give the secret, fewer say nothing about it.

References:
    Shamir, How to share a secret, Communications of the ACM 1979.
"""

import secrets
from collections.abc import Mapping

from fedjax_ssl.secure.messages import SHARE_BYTES

PRIME = 2**256 + 297  # the first prime above 32 bytes


def share_out(secret: bytes, holders: list[int], threshold: int) -> dict[int, bytes]:
    """A share of 32 bytes for every holder; the share of the holder with number i is the polynomial's value at i + 1.

    Raises:
        ValueError: a threshold above the number of holders, or below 1.
    """
    if not 1 <= threshold <= len(set(holders)):
        raise ValueError(f"threshold is {threshold}; with {len(holders)} holders it must be 1..{len(holders)}")
    coefficients = [int.from_bytes(secret, "little"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    shares = {}
    for holder in holders:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * (holder + 1) + coefficient) % PRIME
        shares[holder] = value.to_bytes(SHARE_BYTES, "little")
    return shares


def put_together(shares: Mapping[int, bytes]) -> bytes:
    """The secret of 32 bytes from as many shares as the threshold, by holder; anything else from fewer."""
    total = 0
    for holder, share in shares.items():
        above, below = 1, 1
        for other in shares:
            if other != holder:
                above = above * (other + 1) % PRIME
                below = below * (other - holder) % PRIME
        total += int.from_bytes(share, "little") * above * pow(below, -1, PRIME)
    return (total % PRIME).to_bytes(SHARE_BYTES, "little")[:32]
