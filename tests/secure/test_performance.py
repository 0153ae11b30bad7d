"""Floors of speed, in processor time: far below what experiments/benchmarks/secure.py measures on an idle core."""

import time

import numpy as np
import pytest

from fedjax_ssl.secure import primitives, secure_hamming
from tests.secure.parties import random_codes
from tests.secure.test_hamming import extension

pytestmark = pytest.mark.thorough


def seconds(function, repeats=5):
    def once():
        begin = time.process_time()
        function()
        return time.process_time() - begin

    return min(once() for _ in range(repeats))


def test_transfers():
    receiver, sender = extension()
    choices = np.random.default_rng(0).integers(0, 2, 2**15, np.uint8)

    def transfer():
        first, columns, rows = receiver.extend(choices)
        receiver.pads(rows, first, 1)
        sender.pads(sender.extend(first, columns, 0), first, 1)

    assert 2**15 / seconds(transfer) > 0.3e6


def test_masks():
    total = np.zeros((2**16, 64), np.uint32)
    assert total.nbytes / seconds(lambda: primitives.add_key_stream(total, bytes(32), 1)) > 0.5e9


@pytest.mark.parametrize("hamming, limit", [("transfer", 1.0), ("paillier", 15.0)])
def test_distances(hamming, limit):
    pytest.importorskip("gmpy2")
    codes = random_codes(np.random.default_rng(0), (100, 100), 256)
    assert seconds(lambda: secure_hamming(codes, 256, hamming=hamming), 1) < limit
