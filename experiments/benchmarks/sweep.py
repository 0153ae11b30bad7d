"""How much faster a sweep is than the same runs as single commands: 5 methods x 5 seeds x 4
learning rates on digits.

    python experiments/benchmarks/sweep.py                  # 100 runs and a sample of 5 commands
    python experiments/benchmarks/sweep.py --seeds 25 --sample 0    # 500 runs, and nothing beside them
    python experiments/benchmarks/sweep.py --seeds 2 --sample 2

The sample has a command per method, which find compiled programs in a cache that the sweep does not
see, once without and once with them (`--config.seed` and the learning rate are no part of a
program): a hundred commands are five of the first kind and ninety-five of the second. Processor
time of all processes is compared too, as wall time depends on what else runs.
"""

import argparse
import csv
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

METHODS = ("fedavg", "fedsem", "fixmatch", "pseudo_label", "xclp")
RATES = ("0.03", "0.1", "0.2", "0.3")


def timed(arguments: list[str], cache: Path) -> tuple[float, float, str]:
    """Runs `fedjax-ssl`; returns (wall seconds, processor seconds, output)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "fedjax_ssl.cli", *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_COMPILATION_CACHE_DIR": str(cache)},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - begin, used, done.stdout


def main() -> None:
    """Prints the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--sample", type=int, default=len(METHODS), help="methods whose single commands are timed"
    )
    parser.add_argument("--workers", type=int, help="of the sweep; by default one per core")
    given = parser.parse_args()
    common = ["digits", "--set", "rounds=80"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workers = [] if given.workers is None else [f"--workers={given.workers}"]
        swept = [
            f"--set=method.name={','.join(METHODS)}",
            f"--set=optimizer.learning_rate={','.join(RATES)}",
        ]
        arguments = [
            "sweep",
            *common,
            *swept,
            f"--seeds={given.seeds}",
            *workers,
            f"--workdir={folder / 'sweep'}",
        ]
        wall, used, said = timed(arguments, folder / "cache_of_sweep")
        print(said.splitlines()[0])
        with open(folder / "sweep" / "results.csv", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert all(row["status"] == "done" for row in rows)
        print(f"sweep: {len(rows)} runs, {wall:.0f} s, {used:.0f} s of the processor", flush=True)
        first = []
        later = []
        for method in METHODS[: given.sample]:
            for place, times in enumerate((first, later)):
                fields = [
                    f"--method.name={method}",
                    f"--seed={place}",
                    f"--optimizer.learning_rate={RATES[place]}",
                ]
                alone = ["run", *common, *fields, f"--workdir={folder / f'{method}{place}'}"]
                times.append(timed(alone, folder / "cache_of_runs")[:2])
                print(
                    f"{method}: {times[-1][0]:.1f} s, {times[-1][1]:.1f} s of the processor",
                    flush=True,
                )
        for kind, mine in ((0, wall), (1, used)) if first else ():
            each_first = sum(one[kind] for one in first) / len(first)
            each_later = sum(one[kind] for one in later) / len(later)
            total = len(METHODS) * each_first + (len(rows) - len(METHODS)) * each_later
            cold = len(rows) * each_first
            what = ("wall time", "processor time")[kind]
            print(
                f"{what}: {total / mine:.1f} times faster than commands that find each other's "
                f"programs, {cold / mine:.1f} times faster than commands that compile"
            )


if __name__ == "__main__":
    main()
