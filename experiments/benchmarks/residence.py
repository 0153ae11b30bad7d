"""Examples on the host beside examples on the device: rates in alternation, and a federation larger
than memory.

    python -m experiments.benchmarks.residence rates W5 W3 --groups 5
    python -m experiments.benchmarks.residence large --images 10_000_000 --folder /big/disk
    python -m experiments.benchmarks.residence large --images 1_000_000 --folder /big/disk --processes 2 --cohort 0

`rates` trains the workloads of `fedjax-ssl bench` as a run does, block after block with the
evaluation, in groups of blocks that alternate between the two, each from the same state; a group on
the host starts with nothing brought. The final parameters of both have to be the same, bit for bit.

`large` writes images of 28x28 to a file in the folder, unless one of that size is there, and trains
a run on it. Of the memory it tells what the process has for itself (RssAnon in /proc/self/status),
which is what a machine has to have: pages of the file that lie in memory (RssFile) go when somebody
needs the room. With `--processes` several processes of one device each share the run, and each
tells what it has; `--residence device` shows what all would have otherwise.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.benchmarks.workloads import WORKLOADS
from fedjax_ssl import config as configs
from fedjax_ssl import data, folder, runs
from fedjax_ssl.command_line import map_large_buffers, use_processor
from fedjax_ssl.runs.build import Experiment, build, federate
from fedjax_ssl.runs.loop import run
from fedjax_ssl.runs.program import Program
from fedjax_ssl.runs.residence import Feed

PER_CLIENT = 1000
TEST = 10_000
SHAPE = (28, 28, 1)
AT_ONCE = 100_000  # images that are drawn at a time


class ClientResult:
    """A workload with its examples in one place."""

    def __init__(self, name: str, where: str, compiled: dict[Any, Any], blocks: int, rounds: int):
        """Compiles its program.

        Args:
            name: of the workload.
            where: "device" or "host".
            compiled: programs of both.
            blocks: of a group.
            rounds: of a block.
        """
        workload = WORKLOADS[name][0]
        settings = {"rounds": blocks * rounds, "eval_every": rounds, "data.residence": where}
        experiment = Experiment(workload.config(settings), workload.dataset())
        if where == "host":
            experiment = experiment._replace(host=data.HostInputs(experiment.dataset))
        key = jax.random.key(experiment.config.seed)
        federation = federate(experiment, key)
        self._program = Program(build(experiment, federation), compiled)
        self._blocks = blocks
        self._rounds = rounds
        self.group(1)

    def group(self, blocks: int | None = None) -> tuple[float, float, str]:
        """Trains a group of blocks: examples per second by the clock and of processor time,
        digest of the result.
        """
        state = self._program.init()
        done = 0
        jax.block_until_ready(state)
        begin = time.perf_counter()
        processor = time.process_time()
        with contextlib.ExitStack() as stack:
            program = self._program
            feed = None
            if program.built.experiment.host is not None:
                feed = stack.enter_context(Feed(program.built, program.inputs.key))
            for block in range(blocks or self._blocks):
                inputs = program.inputs
                if feed is not None:
                    examples = feed.block(block * self._rounds, self._rounds)
                    inputs = inputs._replace(
                        federation=dataclasses.replace(inputs.federation, inputs=examples)
                    )
                rows, (state,), *_ = program.advance([state], [inputs], self._rounds)
                done += rows[0]["examples"]
        elapsed = time.perf_counter() - begin
        worked = time.process_time() - processor
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(state.params):
            digest.update(np.asarray(leaf).tobytes())
        return done / elapsed, done / worked, digest.hexdigest()[:16]


def rates(names: list[str], groups: int, blocks: int, rounds: int | None) -> None:
    """Prints a table."""
    print(
        "| workload | device, examples/s | host, examples/s | host/device | in processor time | "
        "same bits |"
    )
    print("|---|---:|---:|---:|---:|---|")
    for name in names:
        each = rounds or WORKLOADS[name][0].rounds
        compiled: dict[Any, Any] = {}
        both = {
            where: ClientResult(name, where, compiled, blocks, each) for where in ("device", "host")
        }
        found: dict[str, list[tuple[float, float, str]]] = {where: [] for where in both}
        for number in range(groups):
            # whoever comes first, comes second in the next one
            for where in sorted(both, reverse=bool(number % 2)):
                found[where].append(both[where].group())
        device = found["device"]
        host = found["host"]
        pairs = list(zip(device, host, strict=True))
        ratios = [b[0] / a[0] for a, b in pairs]
        worked = statistics.median(b[1] / a[1] for a, b in pairs)
        same = len({digest for group in found.values() for *_, digest in group}) == 1
        middle = [
            statistics.median(group[0] for group in found[where]) for where in ("device", "host")
        ]
        print(
            f"| {name} | {middle[0]:,.0f} | {middle[1]:,.0f} | {statistics.median(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f}) | {worked:.3f} | "
            f"{'yes' if same else 'NO'} |",
            flush=True,
        )


def generated(path: str | Path) -> data.Dataset:
    """The source of `large`: a file of images, which stays where it is."""
    images = np.load(path, mmap_mode="r")
    number = np.arange(len(images), dtype=np.int32)
    test = _images(np.random.default_rng(1), TEST, 0)
    return data.Dataset(
        name="generated",
        train=data.Split(images, number % 10, number // PER_CLIENT),
        test=data.Split(test, np.arange(TEST, dtype=np.int32) % 10),
        class_names=tuple("0123456789"),
        mean=(0.25,),
        std=(0.25,),
    )


def _images(generator: np.random.Generator, count: int, first: int) -> np.ndarray:
    """Noise with a bright row that tells the class, which is the image's number modulo 10."""
    images = generator.integers(0, 128, (count, *SHAPE), np.uint8)
    images[np.arange(count), 2 * ((first + np.arange(count)) % 10) + 4] += 100
    return images


def _make_file(path: Path, count: int) -> None:
    if path.is_file():
        return
    generator = np.random.default_rng(0)
    images = np.lib.format.open_memmap(path.with_suffix(".part"), "w+", np.uint8, (count, *SHAPE))
    for first in range(0, count, AT_ONCE):
        images[first : first + AT_ONCE] = _images(generator, min(AT_ONCE, count - first), first)
    images.flush()
    path.with_suffix(".part").rename(path)


class Memory(threading.Thread):
    """Looks every 20 ms at what the process has in memory, in bytes; `highest` by the names of
    the system.
    """

    def __init__(self) -> None:
        """Starts looking."""
        super().__init__(daemon=True)
        self.highest: dict[str, int] = {}
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        """Until `stop`."""
        while not self._over.wait(0.02):
            lines = dict(
                line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
            )
            for name in ("RssAnon", "RssFile", "VmRSS"):
                self.highest[name] = max(
                    self.highest.get(name, 0), 1024 * int(lines[name].split()[0])
                )

    def stop(self) -> dict[str, str]:
        """The highest values in words."""
        self._over.set()
        self.join()
        return {name: folder.bytes_in_words(value) for name, value in self.highest.items()}


def large(given: argparse.Namespace) -> None:
    """Trains and prints what was needed, in this process or as one of several."""
    path = given.folder / f"images_{given.images}.npy"
    config: Any = configs.default("fedavg")
    config.update_from_flattened_dict(
        {
            "data.name": f"{Path(__file__).stem}:generated",
            "data.path": str(path),
            "data.residence": given.residence,
            "model.name": given.model,
            "optimizer.batch_size": given.batch_size,
            "federated.cohort_size": given.cohort or None,
            "rounds": given.rounds,
            "eval_every": 2,
        }
    )
    team = runs.start(config.distributed)
    memory = Memory()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as workdir:
        summary = run(config, workdir, team)
    size = folder.bytes_in_words(path.stat().st_size)
    print(
        f"{team.name}: {given.images:,} images, {size}; highest {memory.stop()}\n"
        f"{time.perf_counter() - begin:,.0f} s, of which training {summary['train_seconds']:,.0f} s"
    )


def _in_processes(number: int) -> None:
    """Gives this command to several processes, and waits for them."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    shared = {
        "FEDJAX_SSL_COORDINATOR": f"127.0.0.1:{port}",
        "FEDJAX_SSL_NUM_PROCESSES": str(number),
    }
    started = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env=os.environ | shared | {"FEDJAX_SSL_PROCESS_ID": str(index)},
        )
        for index in range(number)
    ]
    sys.exit(max(process.wait() for process in started))


def main() -> None:
    """Measures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_subparsers(dest="what", required=True)
    rated = what.add_parser("rates")
    rated.add_argument("names", nargs="*", default=["W5"], help=f"of {', '.join(WORKLOADS)}")
    rated.add_argument("--groups", type=int, default=5, help="of blocks, in each place")
    rated.add_argument("--blocks", type=int, default=5, help="of a group")
    rated.add_argument("--rounds", type=int, help="of a block; the workload's own by default")
    huge = what.add_parser("large")
    huge.add_argument("--images", type=lambda text: int(text.replace("_", "")), default=10_000_000)
    huge.add_argument("--folder", type=Path, required=True, help="for the file of images")
    huge.add_argument("--rounds", type=int, default=6)
    huge.add_argument("--cohort", type=int, default=10, help="clients of a round; 0: all")
    huge.add_argument("--model", default="cnn")
    huge.add_argument("--batch-size", type=int, default=20)
    huge.add_argument("--residence", default="host", choices=data.RESIDENCES)
    huge.add_argument(
        "--processes", type=int, default=1, help="that share the run, of one device each"
    )
    given = parser.parse_args()
    if given.what == "large":
        _make_file(given.folder / f"images_{given.images}.npy", given.images)
        if given.processes > 1 and "FEDJAX_SSL_PROCESS_ID" not in os.environ:
            _in_processes(given.processes)
    map_large_buffers()
    use_processor(None)
    if given.what == "rates":
        rates(given.names, given.groups, given.blocks, given.rounds)
    else:
        large(given)
    print(f"\n{folder.device_description()}, {folder.versions()}")


if __name__ == "__main__":
    main()
