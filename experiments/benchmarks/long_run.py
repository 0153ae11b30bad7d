"""Ten thousand rounds of workload W2 in a run folder: memory, bytes on the disk and time, part by
part.

    python -m experiments.benchmarks.long_run  # an evaluation and a checkpoint in every round
    python -m experiments.benchmarks.long_run --eval-every 5    # as by default

W2 (`workloads.py`) with a tenth of every client's examples as its test. The
run is cut into ten parts; a line per part: processor time of this process per round, files written
after compiling included; its resident memory, the median over the evaluations; the size of the
newest checkpoint and of all files of the folder.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.benchmarks.workloads import WORKLOADS
from fedjax_ssl.command_line import use_compilation_cache
from fedjax_ssl.runs.callbacks import Block
from fedjax_ssl.runs.loop import Point, run_batch
from fedjax_ssl.runs.shared import Shared

PARTS = 10


class Seen(NamedTuple):
    """What was measured after an evaluation."""

    round: int
    processor: float  # seconds of this process so far
    memory: int  # resident bytes


class Part(NamedTuple):
    """A part of the run."""

    last: int  # its last round
    milliseconds: float  # of processor time per round
    memory: int  # bytes, median
    checkpoint: int  # bytes of the newest at its end
    folder: int  # bytes of all files at its end


def train(folder: Path, rounds: int, eval_every: int) -> list[Part]:
    """Trains in `folder` and measures.

    Args:
        folder: an empty one.
        rounds: of the run, a multiple of PARTS * eval_every.
        eval_every: rounds between evaluations; after each there is a checkpoint.
    """
    (workload,) = WORKLOADS["W2"]
    split = workload.dataset().train
    assert split.client is not None, "workloads name the client of every example"
    np.savez(folder / "w2.npz", inputs=split.x, labels=split.y, client=split.client)
    config = workload.config().unlock().copy_and_resolve_references()
    # nobody is told the last row of a run
    config.rounds = rounds + eval_every
    config.eval_every = eval_every
    config.data.name = "npz"
    config.data.path = str(folder / "w2.npz")
    config.data.client_test_fraction = 0.1
    seen = []
    parts = []

    def watch(block: Block) -> None:
        row = block.row
        if block.last:
            return
        seen.append(Seen(row["round"], time.process_time(), _resident()))
        if row["round"] % (rounds // PARTS) == 0:
            parts.append(_part(seen, folder / "run"))
            print(_line(parts[-1]), flush=True)
            seen[:-1] = []

    print(
        "| until round | ms of processor time per round | memory, MB | newest checkpoint, kB | "
        "all files, MB |"
    )
    print("|---:|---:|---:|---:|---:|")
    (result,) = run_batch([Point(config, folder / "run", [watch])], Shared())
    if isinstance(result, Exception):
        raise result
    return parts


def _part(seen: list[Seen], folder: Path) -> Part:
    first = seen[0]
    last = seen[-1]
    # the first is saved after the first row
    newest = max((folder / "checkpoints").glob("*.ckpt"), default=None)
    return Part(
        last.round,
        1000 * (last.processor - first.processor) / (last.round - first.round),
        int(statistics.median(one.memory for one in seen[1:])),
        newest.stat().st_size if newest else 0,
        sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
    )


def _resident() -> int:
    """Bytes of this process in memory now; /proc is Linux'."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmRSS")


def _line(part: Part) -> str:
    size = f"{part.memory / 1e6:.1f} | {part.checkpoint / 1e3:.2f} | {part.folder / 1e6:.2f}"
    return f"| {part.last:,} | {part.milliseconds:.2f} | {size} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--eval-every", type=int, default=1)
    given = parser.parse_args()
    if given.rounds % (PARTS * given.eval_every):
        parser.error(f"--rounds has to be a multiple of {PARTS} * --eval-every")
    use_compilation_cache()
    with tempfile.TemporaryDirectory() as folder:
        parts = train(Path(folder), given.rounds, given.eval_every)
    # The first part holds the end of compiling.
    first = parts[1]
    last = parts[-1]
    print(
        f"\nfrom the second part to the last: memory {last.memory / first.memory - 1:+.1%}",
        end=", ",
    )
    print(f"processor time per round {last.milliseconds / first.milliseconds - 1:+.1%}")


if __name__ == "__main__":
    main()
