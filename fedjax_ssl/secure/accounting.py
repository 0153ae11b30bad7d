"""What the messages of the protocols weigh, from their wire formats: the counters of level "accounted"."""

from collections.abc import Mapping

import numpy as np

from fedjax_ssl.secure import messages as m
from fedjax_ssl.secure.bits import ring
from fedjax_ssl.secure.errors import SERVER
from fedjax_ssl.secure.hamming_paillier import packing
from fedjax_ssl.secure.hamming_transfer import chunks
from fedjax_ssl.secure.messages import SHARE_BYTES, wire_bytes
from fedjax_ssl.secure.network import Traffic
from fedjax_ssl.secure.oblivious import WIDTH
from fedjax_ssl.secure.primitives import KEY_BYTES, POINT_BYTES, SIGNATURE_BYTES


def add_session(traffic: Traffic, clients: list[int], seed: bool) -> None:
    """Keys of all parties, and the seed of the hyperplanes."""
    count = len(clients)
    tables = ((1, (count + 1, KEY_BYTES)), (1, (count + 1, KEY_BYTES)), (1, (count + 1, SIGNATURE_BYTES)))
    roster = wire_bytes(m.Roster, (4, (count,)), (8, (count,)), (8, (count,)), *tables)
    for client in clients:
        traffic.add("keys", client, SERVER, wire_bytes(m.SessionKey))
        traffic.add("keys", SERVER, client, roster)
        if seed and client != clients[0]:
            traffic.add("seed", clients[0], client, wire_bytes(m.Seed))


def add_own_distances(traffic: Traffic, client: int, points: int, num_bits: int) -> None:
    """The block of one client."""
    traffic.add("hamming", client, SERVER, wire_bytes(m.OwnDistances, (_size(num_bits), (points, points))))


def add_transfers(
    traffic: Traffic, receiver: int, sender: int, num_chosen: int, num_offered: int, num_bits: int
) -> None:
    """The block of two clients, by oblivious transfer."""
    size = _size(num_bits)
    traffic.add("hamming", receiver, sender, wire_bytes(m.BasePoint))
    traffic.add("hamming", sender, receiver, wire_bytes(m.BaseChoices, (1, (WIDTH, POINT_BYTES))))
    for points, transfers in chunks(num_chosen, num_offered, num_bits):
        columns, corrections = (1, (WIDTH, transfers // 8)), (size, (points * num_bits, num_offered))
        traffic.add("hamming", receiver, sender, wire_bytes(m.OtColumns, columns))
        traffic.add("hamming", sender, receiver, wire_bytes(m.Corrections, corrections))
    for client in (receiver, sender):
        traffic.add("hamming", client, SERVER, wire_bytes(m.DistanceShare, (size, (num_chosen, num_offered))))


def add_paillier(
    traffic: Traffic, owner: int, other: int, num_packed: int, num_other: int, num_bits: int, key_bits: int
) -> None:
    """The block of two clients, by Paillier's cryptosystem."""
    size = key_bits // 8
    *_, blocks = packing(num_packed, num_bits, key_bits)
    bits = wire_bytes(m.EncryptedBits, (1, (size,)), (1, (num_bits, blocks, 2 * size)))
    traffic.add("hamming", owner, other, bits)
    traffic.add("hamming", other, owner, wire_bytes(m.EncryptedDistances, (1, (num_other, blocks, 2 * size))))
    for client in (owner, other):
        share = wire_bytes(m.PackedShare, (1, (size,)), (1, (num_other, blocks, size)))
        traffic.add("hamming", client, SERVER, share)


def add_columns(traffic: Traffic, columns: Mapping[int, np.ndarray]) -> None:
    """Every client's columns of S."""
    for client, some in columns.items():
        size = wire_bytes(m.Columns, (some.dtype.itemsize, some.shape), (1, (len(columns), KEY_BYTES)))
        traffic.add("columns", SERVER, client, size)


def add_row_sums(
    traffic: Traffic,
    counts: Mapping[int, int],
    num_classes: int,
    itemsize: int,
    drop: Mapping[int, str],
    min_clients: int,
    recovery: bool,
) -> None:
    """All attempts at a sum. Args: rows of every invited client; the rest as in `Protocols`."""
    invited = sorted(counts)
    while len(invited) >= min_clients:
        for client in invited:
            traffic.add("sums", SERVER, client, wire_bytes(m.SumStart))
        live = [client for client in invited if drop.get(client) != "mask"]
        for client in live:
            traffic.add("sums", client, SERVER, wire_bytes(m.MaskKey))
        if len(live) < min_clients:
            return
        count, num_rows = len(live), sum(counts[client] + 1 for client in live)
        tables = (1, (count, KEY_BYTES)), (8, (count,)), (8, (count,)), (1, (count, KEY_BYTES))
        keys = wire_bytes(m.MaskKeys, (4, (count,)), *tables, (1, (count, SIGNATURE_BYTES)))
        for client in live:
            traffic.add("sums", SERVER, client, keys)
        if recovery:
            for client in live:
                for other in live:
                    if other != client:
                        traffic.add("sums", client, other, wire_bytes(m.KeyShare))
        invited = [client for client in live if drop.get(client) != "sums"]
        for client in invited:
            shape = num_rows - counts[client] - 1, num_classes
            traffic.add("sums", client, SERVER, wire_bytes(m.MaskedRows, (itemsize, shape)))
        complete = len(invited) == len(live)
        if recovery and len(invited) >= max(min_clients, threshold(count)):
            complete, gone = True, len(live) - len(invited)
            for client in invited:
                request = wire_bytes(m.RecoveryRequest, (4, (gone,)), (4, (len(invited),)))
                traffic.add("sums", SERVER, client, request)
                tables_back = (1, (len(invited), KEY_BYTES)), (1, (gone, SHARE_BYTES))
                traffic.add("sums", client, SERVER, wire_bytes(m.Recovery, *tables_back))
        if complete:
            for client in invited:
                totals = wire_bytes(m.RowTotals, (itemsize, (counts[client] + 1, num_classes)))
                traffic.add("sums", SERVER, client, totals)
            return


def threshold(num_clients: int) -> int:
    """Shares that give a key in Shamir mode: more than half, so that the clients cannot be asked in two groups."""
    return num_clients // 2 + 1


def _size(num_bits: int) -> int:
    return np.dtype(ring(num_bits)).itemsize
