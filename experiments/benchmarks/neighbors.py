"""Approximate searches for neighbours in Hamming distance at equal recall: ours, faiss and
pynndescent in one run.

    python experiments/benchmarks/neighbors.py --points 100000
    python experiments/benchmarks/neighbors.py --points 1000000 --kind clusters --systems fedjax_ssl "faiss IVF"

Codes are signs of random projections of 128 features, which lie in 20 clusters. `images`: variances
along the principal axes of a cluster, each with axes of its own, fall as 1/i, much as they do for
features of images. `clusters`: they are equal, as in `graph.py`, the harder case. Every system
lists the 10 nearest others of every point, in a process of its own, bound to as many cores as it
has threads. Its settings go from fast to thorough until the wanted recall is reached, by the true
neighbours of 1,000 points (equally near ones are as good). Seconds are processor time; those of
faiss's search are measured on 20,000 points. The peers are optional: `pip install faiss-cpu
pynndescent`.
"""

import argparse
import concurrent.futures
import importlib.util
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

FEATURES = 128
CLUSTERS = 20
NEIGHBORS = 10
SAMPLE = 1_000
TIMED = 20_000
POINTS_PER_BLOCK = 50_000


class Setting(NamedTuple):
    """What a system found with one of its settings."""

    name: str
    found: np.ndarray
    # ^ [SAMPLE, listed], of the sampled points; themselves and repetitions count as nothing
    prepared: float  # processor seconds: compiling, or building the index
    searched: float  # processor seconds for all points


def make_codes(kind: str, num_points: int, num_bits: int) -> np.ndarray:
    """Packed codes, [points, bits / 8]."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(CLUSTERS, FEATURES)).astype(np.float32)
    cluster = random.integers(CLUSTERS, size=num_points)
    points = random.standard_normal((num_points, FEATURES), dtype=np.float32)
    if kind == "images":
        deviation = np.arange(1, FEATURES + 1) ** -0.5
        deviation *= np.sqrt(FEATURES / np.sum(deviation**2))
        for number in range(CLUSTERS):
            axes = np.linalg.qr(random.normal(size=(FEATURES, FEATURES)))[0]
            own = cluster == number
            points[own] = points[own] @ (deviation[:, None] * axes).astype(np.float32)
    points += centres[cluster]
    planes = np.random.default_rng(1).normal(size=(FEATURES, num_bits)).astype(np.float32)
    blocks = (
        points[start : start + POINTS_PER_BLOCK] for start in range(0, num_points, POINTS_PER_BLOCK)
    )
    return np.concatenate(
        [np.packbits(block @ planes >= 0, axis=1, bitorder="little") for block in blocks]
    )


def sampled(num_points: int, count: int = SAMPLE) -> np.ndarray:
    """Points, spread evenly."""
    return np.arange(count) * num_points // count


def distances(codes: np.ndarray, row: int, others: np.ndarray) -> np.ndarray:
    """Bits that differ between a point and some others."""
    return np.bitwise_count(codes[others] ^ codes[row]).sum(axis=1, dtype=np.int32)


def farthest_true(codes: np.ndarray) -> np.ndarray:
    """The distance of the last of the true neighbours of the sampled points."""
    words = codes.view(np.uint64)
    farthest = []
    for row in sampled(len(codes)):
        distance = np.zeros(len(codes), np.uint16)
        for word in words.T:
            distance += np.bitwise_count(word ^ word[row])
        distance[row] = 8 * codes.shape[1] + 1
        farthest.append(np.partition(distance, NEIGHBORS - 1)[NEIGHBORS - 1])
    return np.array(farthest)


def recall(codes: np.ndarray, index: np.ndarray, farthest: np.ndarray) -> float:
    """The share of the true neighbours of the sampled points that lists hold."""
    found = 0
    for row, listed, last in zip(sampled(len(codes)), index, farthest, strict=True):
        others = np.unique(listed[(listed >= 0) & (listed != row)])
        found += min(int((distances(codes, row, others) <= last).sum()), NEIGHBORS)
    return found / (NEIGHBORS * len(farthest))


def ours(codes: np.ndarray, threads: int) -> Iterator[Setting]:
    """`approximate_neighbors`."""
    import jax

    from fedjax_ssl.graph import approximate_neighbors

    words = jax.numpy.asarray(codes.view(np.uint32))
    for share in (0.9, 0.95, 0.97, 0.99):
        start = time.process_time()
        search = jax.jit(
            lambda some, share=share: approximate_neighbors(
                some, 8 * codes.shape[1], NEIGHBORS, recall=share
            )
        )
        compiled = search.lower(words).compile()
        middle = time.process_time()
        found = jax.block_until_ready(compiled(words))
        end = time.process_time()
        index = np.asarray(found.index)[sampled(len(codes))]
        yield Setting(f"recall={share}", index, middle - start, end - middle)


def faiss_settings(
    codes: np.ndarray,
    index: Any,
    built: float,
    efforts: list[int],
    set_effort: Callable[[int], str],
):
    """Searches with rising effort."""
    rows = sampled(len(codes))
    timed = sampled(len(codes), min(TIMED, len(codes)))
    for effort in efforts:
        name = set_effort(effort)
        found = index.search(codes[rows], NEIGHBORS + 1)[1]
        start = time.process_time()
        index.search(codes[timed], NEIGHBORS + 1)
        yield Setting(name, found, built, (time.process_time() - start) * len(codes) / len(timed))


def faiss_ivf(codes: np.ndarray, threads: int) -> Iterator[Setting]:
    """`IndexBinaryIVF` with the square root of n lists."""
    import faiss

    faiss.omp_set_num_threads(threads)
    start = time.process_time()
    num_lists = 2 ** round(np.log2(len(codes)) / 2)
    quantizer = faiss.IndexBinaryFlat(8 * codes.shape[1])
    index = faiss.IndexBinaryIVF(quantizer, 8 * codes.shape[1], num_lists)
    index.train(codes[sampled(len(codes), min(50 * num_lists, len(codes)))])
    index.add(codes)

    def set_effort(effort: int) -> str:
        index.nprobe = effort
        return f"{num_lists} lists, nprobe {effort}"

    yield from faiss_settings(
        codes, index, time.process_time() - start, [4, 6, 8, 12, 16, 24, 32, 48, 64], set_effort
    )


def faiss_hnsw(codes: np.ndarray, threads: int) -> Iterator[Setting]:
    """`IndexBinaryHNSW`."""
    import faiss

    faiss.omp_set_num_threads(threads)
    start = time.process_time()
    index = faiss.IndexBinaryHNSW(8 * codes.shape[1], 16)
    index.hnsw.efConstruction = 40
    index.add(codes)

    def set_effort(effort: int) -> str:
        index.hnsw.efSearch = effort
        return f"M 16, efConstruction 40, efSearch {effort}"

    yield from faiss_settings(
        codes, index, time.process_time() - start, [16, 32, 64, 128, 256, 512], set_effort
    )


def pynndescent(codes: np.ndarray, threads: int) -> Iterator[Setting]:
    """`NNDescent` with the metric of packed codes; its own compiled functions are warm."""
    import pynndescent

    def search(some: np.ndarray, listed: int) -> np.ndarray:
        found = pynndescent.NNDescent(
            some, metric="bit_hamming", n_neighbors=listed, n_jobs=threads, random_state=0
        )
        return found.neighbor_graph[0]

    start = time.process_time()
    search(codes[:3000], NEIGHBORS + 1)
    prepared = time.process_time() - start
    for listed in (NEIGHBORS + 1, 15, 20, 30):
        start = time.process_time()
        found = search(codes, listed)
        searched = time.process_time() - start
        nearest = []
        for row in sampled(len(codes)):
            others = found[row][(found[row] >= 0) & (found[row] != row)]
            nearest.append(
                others[np.argsort(distances(codes, row, others), kind="stable")][:NEIGHBORS]
            )
            nearest[-1] = np.pad(nearest[-1], (0, NEIGHBORS - len(nearest[-1])), constant_values=-1)
        yield Setting(f"n_neighbors {listed}", np.array(nearest), prepared, searched)


SYSTEMS = {
    "fedjax_ssl": ours,
    "faiss IVF": faiss_ivf,
    "faiss HNSW": faiss_hnsw,
    "pynndescent": pynndescent,
}
NEEDS = {"faiss IVF": "faiss", "faiss HNSW": "faiss", "pynndescent": "pynndescent"}


def measure(system: str, options: argparse.Namespace) -> None:
    """Prints a line for every setting of one system, until the wanted recall is reached."""
    codes = make_codes(options.kind, options.points, options.bits)
    farthest = farthest_true(codes)
    for setting in SYSTEMS[system](codes, options.threads):
        reached = recall(codes, setting.found, farthest)
        cells = (
            system,
            setting.name,
            f"{100 * reached:.1f}",
            f"{setting.prepared:.1f}",
            f"{setting.searched:.1f}",
        )
        print("| " + " | ".join(cells) + " |", flush=True)
        if reached >= options.recall:
            return


def main() -> None:
    """Measures every system and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--bits", type=int, default=256, help="a multiple of 64")
    parser.add_argument("--kind", choices=("images", "clusters"), default="images")
    parser.add_argument("--recall", type=float, default=0.95)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    options = parser.parse_args()
    if options.points <= TIMED or options.bits < 64 or options.bits % 64:
        parser.error(
            f"{options.points} points of {options.bits} bits: more than {TIMED}, and a multiple "
            "of 64"
        )
    # Inherited by every process: the libraries of the peers read these when they are imported.
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(options.threads)
    os.environ["OMP_WAIT_POLICY"] = "passive"
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    print(f"{options.points} x {options.bits}, {options.kind}, {options.threads} threads\n")
    print(
        "| system | setting | recall, % | prepared, s | searched, s |\n| --- | --- | ---: | ---: "
        "| ---: |",
        flush=True,
    )
    for system in options.systems:
        if importlib.util.find_spec(NEEDS.get(system, "numpy")) is None:
            print(f"{system} is left out: `pip install faiss-cpu pynndescent` brings it.")
            continue
        with concurrent.futures.ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn")
        ) as pool:
            pool.submit(measure, system, options).result()


if __name__ == "__main__":
    main()
