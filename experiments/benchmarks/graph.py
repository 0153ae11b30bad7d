"""Time and memory of XCLP's graph, phase by phase, beside faiss, SciPy and scikit-learn in the same
run.

    python experiments/benchmarks/graph.py --sizes 2500x4096 16000x1024 100000x256
    python experiments/benchmarks/graph.py --sizes 16000x1024 --json graph.json --plot graph.png

A size is points x bits, up to 1,000,000 points. Points are Gaussian clusters, 2 per class; one
point in fifty is labelled. Every system runs in a process of its own, one after the other, so that
peak memory (the largest resident set, interpreter and libraries included) is its own. Times are
medians over repeats after one call that compiles. A row is printed as soon as it is measured. Peers
that compare all pairs are left out above a number of pairs (MOST_PAIRS). The peers are optional:
`pip install faiss-cpu scikit-learn`.
"""

import argparse
import concurrent.futures
import importlib.util
import json
import multiprocessing
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

CLUSTERS_PER_CLASS = 2
LABELLED_SHARE = 0.02
MOST_POINTS = 1_000_000
# Pairs of points up to which a peer is measured, those of 5,000 and of 120,000 points: label
# spreading of scikit-learn holds the graph dense in one step, and the exact search of faiss only
# costs time beyond.
MOST_PAIRS = {"scikit-learn": 5_000**2, "faiss + SciPy": 120_000**2}
# Points whose features are made at once, so that the largest sizes need the memory of the features
# only once.
POINTS_PER_BLOCK = 50_000


def make_points(num_points: int, num_features: int, num_classes: int) -> tuple[np.ndarray, ...]:
    """Clustered points with their classes and the few labels that are shown."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(num_classes * CLUSTERS_PER_CLASS, num_features)).astype(
        np.float32
    )
    cluster = random.integers(len(centres), size=num_points)
    noise = random.standard_normal((num_points, num_features), dtype=np.float32)
    truth = (cluster % num_classes).astype(np.int32)
    shown = np.where(random.random(num_points) < LABELLED_SHARE, truth, -1).astype(np.int32)
    for start in range(0, num_points, POINTS_PER_BLOCK):
        block = slice(start, start + POINTS_PER_BLOCK)
        noise[block] += centres[cluster[block]]
    return noise, truth, shown


def timed(function: Callable[[], Any], repeats: int) -> tuple[Any, dict[str, float]]:
    """The result of a function, and the seconds that its calls took.

    The first call compiles. Of the others the median is kept, the fastest (the machine may be
    shared), and the least processor time, summed over cores.
    """
    seconds = []
    processor = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        start_processor = time.process_time()
        result = function()
        processor.append(time.process_time() - start_processor)
        seconds.append(time.perf_counter() - start)
    return result, {
        "first": seconds[0],
        "warm": statistics.median(seconds[1:] or seconds),
        "fastest": min(seconds[1:] or seconds),
        "processor": min(processor[1:] or processor),
    }


def peak_memory() -> float:
    """Largest resident set of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def measure_ours(options: argparse.Namespace, num_points: int, num_bits: int) -> dict[str, Any]:
    """Phases of `fedjax_ssl.graph`, and the whole of `xclp` in one call."""
    import jax
    import jax.numpy as jnp

    from fedjax_ssl import graph as g

    features, truth, shown = make_points(num_points, options.features, options.classes)
    points = jnp.asarray(features)
    labels = jnp.asarray(shown)
    key = jax.random.key(0)
    repeats = options.repeats

    def ready(function: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: jax.block_until_ready(function())

    settings = {"num_bits": num_bits, "num_neighbors": options.neighbors}
    whole = None
    if repeats:
        _, whole = timed(
            ready(lambda: g.label(points, labels, options.classes, **settings, key=key)), repeats
        )
    memory = peak_memory()
    codes, codes_time = timed(ready(lambda: g.lsh_codes(key, points, num_bits)), repeats)
    neighbors, neighbors_time = timed(
        ready(lambda: g.nearest_neighbors(codes, num_bits, options.neighbors)), repeats
    )
    graph, graph_time = timed(ready(lambda: g.build_graph(neighbors)), repeats)
    targets = jax.nn.one_hot(labels, options.classes)
    solution, solve_time = timed(ready(lambda: g.solve(graph, targets, 0.99)), repeats)
    labelled = np.asarray(jnp.argmax(solution.scores, axis=1))
    if whole is None:
        memory = peak_memory()
        phases = (codes_time, neighbors_time, graph_time, solve_time)
        whole = {when: sum(phase[when] for phase in phases) for when in codes_time}
    unlabelled = shown < 0
    return {
        "codes": codes_time,
        "neighbours": neighbors_time,
        "graph": graph_time,
        "propagation": solve_time,
        "whole": whole,
        "memory": memory,
        "iterations": int(solution.iterations),
        "converged": bool(solution.converged),
        "accuracy": float(np.mean(labelled[unlabelled] == truth[unlabelled])),
        "versions": {"jax": jax.__version__},
        "device": jax.devices()[0].device_kind,
    }


def measure_faiss(options: argparse.Namespace, num_points: int, num_bits: int) -> dict[str, Any]:
    """faiss: LSH codes, exact binary search; SciPy: sparse graph and conjugate gradients, class
    by class.
    """
    # Idle threads that spin take the processor from the busy ones where cores are shared.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    import faiss
    import scipy
    import scipy.sparse
    import threadpoolctl

    features, truth, shown = make_points(num_points, options.features, options.classes)
    repeats = options.repeats
    count = options.neighbors
    hashing = faiss.IndexLSH(options.features, num_bits, True)
    hashing.train(features)
    codes, codes_time = timed(lambda: hashing.sa_encode(features), repeats)
    codes = np.ascontiguousarray(codes[:, : num_bits // 8])
    search = faiss.IndexBinaryFlat(num_bits)
    search.add(codes)
    (distance, index), search_time = timed(lambda: search.search(codes, count + 1), repeats)

    def build() -> scipy.sparse.csr_matrix:
        other = index != np.arange(num_points)[:, None]
        cosine = np.where(2 * distance < num_bits, np.cos(np.pi * distance / num_bits), 0.0)
        rows = np.repeat(np.arange(num_points), count + 1)
        shape = (num_points, num_points)
        kept = scipy.sparse.csr_matrix(((cosine * other).ravel(), (rows, index.ravel())), shape)
        weights = kept + kept.T
        degree = np.asarray(weights.sum(axis=1)).ravel()
        scale = scipy.sparse.diags(1 / np.sqrt(np.where(degree > 0, degree, 1)))
        return scipy.sparse.csr_matrix(
            scipy.sparse.identity(num_points) - 0.99 * scale @ weights @ scale
        )

    def propagate() -> np.ndarray:
        targets = (shown[:, None] == np.arange(options.classes)).astype(float)
        # Threads for vectors of this size wait longer for each other than they work.
        with threadpoolctl.threadpool_limits(limits=1, user_api="blas"):
            return np.stack(
                [scipy.sparse.linalg.cg(system, column, rtol=1e-6)[0] for column in targets.T],
                axis=1,
            )

    def iterations() -> int:
        """Of the class that takes most, as ours: all classes together take as many as the
        slowest.
        """
        counts = []
        for label in range(options.classes):
            steps: list[None] = []
            scipy.sparse.linalg.cg(
                system,
                (shown == label) * 1.0,
                rtol=1e-6,
                callback=lambda _, s=steps: s.append(None),
            )
            counts.append(len(steps))
        return max(counts)

    system, graph_time = timed(build, repeats)
    scores, solve_time = timed(propagate, repeats)
    unlabelled = shown < 0
    phases = (codes_time, search_time, graph_time, solve_time)
    return {
        "codes": codes_time,
        "neighbours": search_time,
        "graph": graph_time,
        "propagation": solve_time,
        "whole": {when: sum(phase[when] for phase in phases) for when in phases[0]},
        "memory": peak_memory(),
        "iterations": iterations(),
        "accuracy": float(np.mean(scores.argmax(axis=1)[unlabelled] == truth[unlabelled])),
        "versions": {"faiss": faiss.__version__, "scipy": scipy.__version__},
    }


def measure_sklearn(options: argparse.Namespace, num_points: int, num_bits: int) -> dict[str, Any]:
    """scikit-learn's label spreading on the features themselves, with the same k and alpha."""
    import sklearn
    from sklearn.semi_supervised import LabelSpreading

    features, truth, shown = make_points(num_points, options.features, options.classes)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    model = LabelSpreading(
        kernel="knn", n_neighbors=options.neighbors, alpha=0.99, max_iter=1000, tol=1e-6
    )
    _, whole = timed(lambda: model.fit(unit, shown), options.repeats)
    unlabelled = shown < 0
    return {
        "whole": whole,
        "memory": peak_memory(),
        "accuracy": float(np.mean(model.transduction_[unlabelled] == truth[unlabelled])),
        "versions": {"scikit-learn": sklearn.__version__},
    }


SYSTEMS: dict[str, Callable[..., dict[str, Any]]] = {
    "fedjax_ssl": measure_ours,
    "faiss + SciPy": measure_faiss,
    "scikit-learn": measure_sklearn,
}
NEEDS = {"faiss + SciPy": ("faiss", "scipy", "threadpoolctl"), "scikit-learn": ("sklearn",)}
INSTALL = "`pip install faiss-cpu scipy scikit-learn` brings all peers."


def measure(
    system: str, options: argparse.Namespace, num_points: int, num_bits: int
) -> dict[str, Any]:
    """Runs one system at one size in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        result = pool.submit(SYSTEMS[system], options, num_points, num_bits).result()
    row = {"system": system, "points": num_points, "bits": num_bits, **result}
    if "neighbours" in row:
        row["nanoseconds_per_pair"] = 1e9 * row["neighbours"]["warm"] / num_points**2
    return row


# heading, phase or measure, which of the calls, form
COLUMNS: tuple[tuple[str, str, str, str], ...] = (
    ("points x bits", "size", "", "{}"),
    ("system", "system", "", "{}"),
    ("codes s", "codes", "warm", "{:.3f}"),
    ("neighbours s", "neighbours", "warm", "{:.3f}"),
    ("ns per pair", "nanoseconds_per_pair", "", "{:.3f}"),
    ("graph s", "graph", "warm", "{:.3f}"),
    ("propagation s", "propagation", "warm", "{:.3f}"),
    ("iterations", "iterations", "", "{}"),
    ("whole s", "whole", "warm", "{:.3f}"),
    ("whole, fastest s", "whole", "fastest", "{:.3f}"),
    ("neighbours, processor s", "neighbours", "processor", "{:.3f}"),
    ("first call s", "whole", "first", "{:.2f}"),
    ("peak GB", "memory", "", "{:.2f}"),
    ("accuracy", "accuracy", "", "{:.1%}"),
)


def table_head() -> str:
    """Headings of the table, in Markdown."""
    return (
        "| " + " | ".join(heading for heading, *_ in COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|"
    )


def table_row(row: dict[str, Any]) -> str:
    """A measurement as a line of the table: medians of the warm calls, and the fastest and the
    leanest.
    """
    given = {**row, "size": f"{row['points']} x {row['bits']}"}
    cells = (
        form.format(given[name][which] if which else given[name]) if name in given else ""
        for _, name, which, form in COLUMNS
    )
    return "| " + " | ".join(cells) + " |"


def plot(rows: list[dict[str, Any]], path: str) -> None:
    """Left: whole time against points. Right: conjugate-gradient iterations. One line per system
    and code length.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
    lines: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["points"]):
        lines.setdefault((row["system"], row["bits"] if "codes" in row else None), []).append(row)
    systems = list(dict.fromkeys(system for system, _ in lines))
    code_lengths = list(dict.fromkeys(bits for _, bits in lines))
    for (system, bits), chosen in lines.items():
        number = systems.index(system)
        style: dict[str, Any] = {
            "color": f"C{number}",
            "linestyle": ("-", "--", ":", "-.")[code_lengths.index(bits) % 4],
            "marker": "osD^"[number % 4],
            # Thinner and thinner, so that lines that coincide are all seen.
            "linewidth": max(2.5 - 0.5 * number, 1),
            "markersize": max(7 - number, 3),
            "label": system if bits is None else f"{system}, {bits} bits",
        }
        left.plot(
            [row["points"] for row in chosen], [row["whole"]["warm"] for row in chosen], **style
        )
        # Cholesky, which solves small graphs, takes no iterations.
        solved = [row for row in chosen if row.get("iterations")]
        if solved:
            right.plot(
                [row["points"] for row in solved], [row["iterations"] for row in solved], **style
            )
    left.set(xscale="log", yscale="log", xlabel="points", ylabel="seconds, codes to labels")
    right.set(xscale="log", xlabel="points", ylabel="conjugate-gradient iterations")
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8
    )
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def parse_size(text: str) -> tuple[int, int]:
    """points x bits, as in 16000x1024."""
    points, _, bits = text.partition("x")
    try:
        size = int(points), int(bits)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not points x bits, such as 16000x1024"
        ) from None
    if not 2 <= size[0] <= MOST_POINTS or size[1] < 8 or size[1] % 8:
        raise argparse.ArgumentTypeError(
            f"{text!r}: 2 to {MOST_POINTS} points, and bits in whole bytes"
        )
    return size


def main() -> None:
    """Measures every system at every size and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--sizes", nargs="+", type=parse_size, default=[(2500, 4096), (16000, 1024)]
    )
    parser.add_argument("--features", type=int, default=128, help="dimension of the points")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--neighbors", type=int, default=10, help="neighbours per point, k")
    parser.add_argument(
        "--repeats",
        type=int,
        default=3,
        help="warm calls; 0 for sizes that take long: phases alone, compiling included",
    )
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--json", help="write the measurements here")
    parser.add_argument("--plot", help="write a plot of time and of iterations against points here")
    options = parser.parse_args()
    if options.repeats < 0:
        parser.error(f"--repeats is {options.repeats}; it must be 0 or more")
    systems = []
    for system in options.systems:
        missing = [name for name in NEEDS.get(system, ()) if importlib.util.find_spec(name) is None]
        if missing:
            print(f"{system} is left out: {', '.join(missing)} cannot be imported; {INSTALL}")
        else:
            systems.append(system)
    rows = []
    print(table_head(), flush=True)
    for num_points, num_bits in options.sizes:
        for system in systems:
            if num_points**2 <= MOST_PAIRS.get(system, MOST_POINTS**2):
                rows.append(measure(system, options, num_points, num_bits))
                print(table_row(rows[-1]), flush=True)
    versions = {name: version for row in rows for name, version in row["versions"].items()}
    devices = sorted({row["device"] for row in rows if "device" in row})
    print(
        f"\nPython {platform.python_version()}, {versions}, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f}"
    )
    print(f"devices of fedjax_ssl: {', '.join(devices) or 'not measured'}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"versions": versions, "cores": os.cpu_count(), "rows": rows}, file, indent=1)
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
