"""How fast XCLP's protocols are, on one core: `python experiments/benchmarks/secure.py [--repeats
7]`.

Both parties run one after the other in this process, with their messages sealed and opened. A row
has the best of the repeats, by the clock and in processor time: on a machine with other work the
second is what an idle core would need. The distances of two clients with 100 points of 256 bits
each are with and without what a session needs once.
"""

import argparse
import platform
import time
from importlib.metadata import version

import numpy as np

from fedjax_ssl import secure
from fedjax_ssl.secure import primitives
from fedjax_ssl.secure.hamming_transfer import (
    BaseReceiver,
    BaseSender,
    ExtensionReceiver,
    ExtensionSender,
)


def best(function, repeats):
    """(seconds by the clock, processor seconds) of the fastest call."""
    clock = []
    processor = []
    for _ in range(repeats):
        begin = time.perf_counter(), time.process_time()
        function()
        clock.append(time.perf_counter() - begin[0])
        processor.append(time.process_time() - begin[1])
    return min(clock), min(processor)


def show(name, seconds, amount=None, unit=""):
    """A row of the table."""
    rate = (
        "" if amount is None else f"{amount / seconds[0]:>12.3g}{amount / seconds[1]:>12.3g} {unit}"
    )
    print(f"{name:58}{seconds[0]:>10.4f}{seconds[1]:>10.4f}{rate}", flush=True)


def transfers(repeats):
    """Base transfers, then extended ones."""
    made = []

    def base():
        sender = BaseSender(b"benchmark", 1)
        receiver = BaseReceiver(b"benchmark", 0, sender.point)
        made[:] = [
            ExtensionReceiver(sender.seeds(receiver.hidden)),
            ExtensionSender(receiver.choices, receiver.seeds),
        ]

    show("128 base oblivious transfers", best(base, repeats))
    receiver, sender = made
    for count in (2**13, 2**15, 2**17):
        choices = np.random.default_rng(0).integers(0, 2, count, np.uint8)

        def extend(choices=choices):
            first, columns, rows = receiver.extend(choices)
            receiver.pads(rows, first, 1)
            sender.pads(sender.extend(first, columns, 0), first, 1)

        show(f"{count} extended transfers", best(extend, repeats), count / 1e6, "M/s")


def masks(repeats):
    """Key stream and addition."""
    for rows in (1000, 16352, 262144):
        total = np.zeros((rows, 62), np.uint32)
        seconds = best(lambda total=total: primitives.add_key_stream(total, bytes(32), 1), repeats)
        show(f"masks of {rows} x 62 numbers", seconds, total.nbytes / 1e9, "GB/s")


def distances(repeats):
    """All distances between two clients."""
    random = np.random.default_rng(0)
    codes = {client: random.integers(0, 2**32, (100, 8), dtype=np.uint32) for client in (0, 1)}
    for hamming, times in (("transfer", repeats), ("paillier", min(repeats, 3))):
        whole = best(
            lambda hamming=hamming: secure.secure_hamming(codes, 256, hamming=hamming), times
        )
        show(f"100 x 100 points x 256 bits, {hamming}, with the session", whole)
        sent = secure.secure_hamming(codes, 256, level="accounted", hamming=hamming).traffic
        between = sent.bytes["hamming", 0, 1] + sent.bytes["hamming", 1, 0]
        print(
            f"{'  bytes between the clients, and to the server':58}{between:>10,}{sent.total('hamming') - between:>12,}"
        )


def sums(repeats):
    """Row sums of many clients."""
    for clients, rows, classes in ((8, 1000, 10), (32, 5000, 10), (72, 16352, 62)):
        owner = np.sort(np.arange(rows) % clients)
        share = np.ones((rows, classes), np.uint32)
        shares = dict.fromkeys(range(clients), share)
        times = repeats if clients < 70 else 1
        seconds = best(
            lambda shares=shares, owner=owner: secure.secure_row_sums(shares, owner), times
        )
        show(f"row sums of {clients} clients, {rows} x {classes}, all parties", seconds)


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description="Speed of XCLP's protocols.", allow_abbrev=False)
    parser.add_argument("--repeats", type=int, default=7, help="of which the best counts (7)")
    repeats = parser.parse_args().repeats
    names = ("cryptography", "PyNaCl", "gmpy2", "numpy")
    print(
        f"Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in names)
    )
    print(f"{'':58}{'clock s':>10}{'proc. s':>10}{'by clock':>12}{'by proc.':>12}")
    transfers(repeats)
    masks(repeats)
    distances(repeats)
    sums(repeats)


if __name__ == "__main__":
    main()
