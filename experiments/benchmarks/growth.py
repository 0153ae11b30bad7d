"""How seconds and memory grow with a federation, and with a graph: one picture, and a table with
the slopes.

    python experiments/benchmarks/growth.py                         # all, docs/images/growth.png
    python experiments/benchmarks/growth.py --only clients seeds    # some of them
    # the largest graph; 100,000 by default
    python experiments/benchmarks/growth.py --points 1000000

Every size has a process of its own: seconds of a round, and of the process to the end of its first
one, and peak memory. The slope is that of a line through the logarithms of the three largest sizes:
1 is linear. Rounds are of softmax regression with 8 features and one example per client;
"parameters" has a hidden layer. A graph is of random codes, ten neighbours each.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

SIZES: dict[str, tuple[int, ...]] = {
    "clients per round": (10, 30, 100, 300, 1000),
    "clients": (100, 1000, 10_000, 100_000, 1_000_000),
    "parameters": (10_000, 100_000, 1_000_000, 10_000_000),
    "seeds": (1, 4, 16, 64),
    "points, 256 bits": (1000, 3000, 10_000, 30_000, 100_000),
    "points, 4,096 bits": (1000, 3000, 10_000, 30_000),
}
IMAGE = Path(__file__).parents[2] / "docs" / "images" / "growth.png"


def federation(what: str, size: int) -> tuple[float, float]:
    """Seconds of a round, and of the process until its first round was done."""
    import jax

    from fedjax_ssl import config as configs
    from fedjax_ssl.data import Dataset, Split
    from fedjax_ssl.federated import VECTORIZED_RUNS
    from fedjax_ssl.runs.build import Experiment, build, federate
    from fedjax_ssl.runs.rounds import run_rounds

    begin = time.perf_counter()
    clients = size if what == "clients" else 10_000
    cohort = size if what == "clients per round" else min(clients, 100)
    seeds = size if what == "seeds" else 1
    rounds = 5 if what == "parameters" else 50
    x = np.random.default_rng(0).normal(size=(clients, 8)).astype(np.float32)
    data = Dataset("rows", Split(x, np.arange(clients) % 2, np.arange(clients)), None, ("a", "b"))
    config = configs.default("fedavg")
    model = {"model.name": "linear"}
    if what == "parameters":
        model = {"model.name": "mlp", "model.hidden": (size // 11,)}
    config.update_from_flattened_dict({"federated.cohort_size": cohort, "rounds": rounds, **model})
    experiment = Experiment(configs.resolve(config), data)
    drawn = federate(experiment, jax.random.key(0))
    method = build(experiment, drawn).method
    keys = jax.vmap(jax.random.key)(np.arange(seeds))

    def block(keys: Any, states: Any, data: Any) -> Any:
        step = jax.vmap(
            lambda key, state: run_rounds(method, key, state, data, rounds)[0],
            axis_name=VECTORIZED_RUNS,
        )
        if seeds > 1:
            return step(keys, states)
        return run_rounds(method, keys[0], states, data, rounds)[0]

    init = (
        jax.vmap(method.init, (0, None))
        if seeds > 1
        else lambda keys, data: method.init(keys[0], data)
    )
    states = jax.jit(init)(keys, drawn)
    run = jax.jit(block)
    jax.block_until_ready(run(keys, states, drawn))
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    jax.block_until_ready(run(keys, states, drawn))
    return (time.perf_counter() - begin) / rounds, first


def graph(bits: int, points: int) -> tuple[float, float]:
    """Seconds of the neighbours of all points, and of the first time with compiling."""
    import jax

    from fedjax_ssl.graph.neighbors import nearest_neighbors

    codes = np.random.default_rng(0).integers(0, 1 << 32, (points, bits // 32), dtype=np.uint32)
    search = jax.jit(lambda codes: nearest_neighbors(codes, bits, 10))
    seconds = []
    for _ in range(2):
        begin = time.perf_counter()
        jax.block_until_ready(search(jax.numpy.asarray(codes)))
        seconds.append(time.perf_counter() - begin)
    return seconds[1], seconds[0]


def measure(what: str, size: int) -> dict[str, float]:
    """One measurement, in this process."""
    if what.startswith("points"):
        seconds, first = graph(int(what.split()[1].replace(",", "")), size)
    else:
        seconds, first = federation(what, size)
    return {
        "seconds": seconds,
        "first": first,
        "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def slope(sizes: list[int], values: list[float]) -> float:
    """Exponent of the growth over the three largest sizes."""
    return float(np.polyfit(np.log(sizes[-3:]), np.log(values[-3:]), 1)[0])


def draw(rows: dict[str, dict[int, dict[str, float]]], path: Path) -> None:
    """The picture: seconds above, memory below."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3 * len(rows), 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(rows), squeeze=False, sharex="col")
    for column, (what, found) in enumerate(rows.items()):
        sizes = list(found)
        unit = "all neighbours, s" if what.startswith("points") else "a round, s"
        for row, (name, factor, label) in enumerate(
            (("seconds", 1, unit), ("bytes", 1e-9, "memory, GB"))
        ):
            values = [found[size][name] * factor for size in sizes]
            axes[row, column].loglog(sizes, values, "o-", label=f"slope {slope(sizes, values):.2f}")
            axes[row, column].set(ylabel=label, xlabel=what if row else "")
            axes[row, column].legend(frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measures, draws and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", help="beginnings of names of what grows", default=[""])
    parser.add_argument(
        "--points", type=int, default=100_000, help="points of the largest graph of 256 bits"
    )
    parser.add_argument("--image", type=Path, default=IMAGE, help="where the picture goes")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one[0], int(given.one[1]))))
        return
    rows: dict[str, dict[int, dict[str, float]]] = {}
    print(
        "| what grows | size | seconds | until the first, s | memory, GB | slope of seconds | of "
        "memory |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for what, sizes in SIZES.items():
        if not any(what.startswith(name) for name in given.only):
            continue
        if what == "points, 256 bits":
            sizes = (*(size for size in sizes if size < given.points), given.points)
        found = rows.setdefault(what, {})
        for size in sizes:
            command = [sys.executable, __file__, "--one", what, str(size)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[size] = json.loads(done.stdout.splitlines()[-1])
            slopes = ["", ""]
            if size == sizes[-1]:
                of = {name: [one[name] for one in found.values()] for name in ("seconds", "bytes")}
                slopes = [f"{slope(list(found), values):.2f}" for values in of.values()]
            row = found[size]
            numbers = (f"{row['seconds']:.2g}", f"{row['first']:.1f}", f"{row['bytes'] / 1e9:.2f}")
            print("|", " | ".join((what, f"{size:,}", *numbers, *slopes)), "|", flush=True)
    draw(rows, given.image)


if __name__ == "__main__":
    main()
