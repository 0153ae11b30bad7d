"""How long the shipped configs take to compile, on this machine, without a cache.

    python experiments/benchmarks/starts.py                           # every config that trains
    python experiments/benchmarks/starts.py digits_xclp cifar10_xclp

What is compiled depends on shapes, not on pixels: a dataset that would have to be downloaded is
replaced by random images of the same shape and number of examples, classes and writers; writers
have equally many. RSNA has 3,000 slices instead of the paper's 66,000. Each config has a process of
its own; the first block of rounds and its evaluation are traced and compiled, and not run.
"""

import argparse
import importlib.metadata
import multiprocessing
import platform
import runpy
import time
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from fedjax_ssl import config as configs
from fedjax_ssl import data, processor
from fedjax_ssl.command_line import map_large_buffers
from fedjax_ssl.data.correspondence import (
    CIFAR100_SUPERCLASS_OF,
    CIFAR100_SUPERCLASSES,
    correspondence,
)
from fedjax_ssl.runs.build import Experiment, build, federate, load_experiment
from fedjax_ssl.runs.program import Program

CONFIGS = Path(__file__).parents[2] / "configs"


class Shape(NamedTuple):
    """What a program depends on."""

    example: tuple[int, ...]  # an image, or a row of numbers
    classes: int
    train: int  # examples
    test: int
    clients: int | None = None  # natural ones
    sets: int | None = None  # sets with known class shares at each natural client


SHAPES = {
    "mnist": Shape((28, 28, 1), 10, 60_000, 10_000),
    "cifar10": Shape((32, 32, 3), 10, 50_000, 10_000),
    "cifar100": Shape((32, 32, 3), 100, 50_000, 10_000),
    "femnist": Shape((28, 28, 1), 62, 671_585, 77_483, clients=3_400),
    "rsna": Shape((224, 224, 3), 6, 3_000, 300),
    "images": Shape((28, 28, 1), 10, 6_000, 1_000, clients=20),
    "sets": Shape((28, 28, 1), 10, 6_000, 1_000, clients=20, sets=4),
    "rows": Shape((20,), 10, 6_000, 1_000, clients=20),
}
# For files of a user's own: what the shipped config of this name is for, and what others of their
# source are taken for.
FILES = {"rsna_fedul": "rsna", "npz_fedul": "sets"}
SOURCES = {"npz": "images", "folder": "images", "table": "rows"}


def stand_in(name: str) -> data.Dataset:
    """Make random examples of a dataset's shape, natural clients with equally many."""
    shape = SHAPES[name]
    generator = np.random.default_rng(0)
    superclasses = name == "cifar100"

    def split(count: int, sets: int | None) -> data.Split:
        labels = np.arange(count) % shape.classes
        values = generator.integers(0, 256, (count, *shape.example), np.uint8)
        return data.Split(
            values if len(shape.example) == 3 else values.astype(np.float32),
            labels,
            None if shape.clients is None else generator.permutation(count) % shape.clients,
            np.array(CIFAR100_SUPERCLASS_OF)[labels] if superclasses else None,
            None if sets is None else generator.integers(0, sets, count),
        )

    shares = None
    if shape.clients is not None and shape.sets is not None:
        shares = generator.dirichlet(np.ones(shape.classes), (shape.clients, shape.sets))
    return data.Dataset(
        name,
        split(shape.train, shape.sets),
        split(shape.test, None),
        tuple(str(label) for label in range(shape.classes)),
        coarse_names=CIFAR100_SUPERCLASSES if superclasses else None,
        correspondence=correspondence("superclass", shape.classes).matrix if superclasses else None,
        set_shares=shares,
    )


def experiment_of(name: str, config: ConfigDict) -> Experiment:
    """Pair a config with its dataset, or with random examples of the same shape where that is
    not in the package.
    """
    source = config.data.name
    if source in SOURCES:
        source = FILES.get(name, SOURCES[source])
    return (
        Experiment(configs.resolve(config), stand_in(source))
        if source in SHAPES
        else load_experiment(config)
    )


def compile_seconds(name: str) -> tuple[float, float]:
    """Seconds to trace and compile the first block of rounds of configs/NAME.py with the evaluation
    after it.

    Returns:
        By the clock, and of all cores together: the second also counts beside other programs.
    """
    map_large_buffers()
    jax.config.update("jax_enable_compilation_cache", False)
    config: ConfigDict = runpy.run_path(str(CONFIGS / f"{name}.py"))["get_config"]()
    experiment = experiment_of(name, config)
    key = jax.random.key(experiment.config.seed)
    federation = federate(experiment, key)
    program = Program(build(experiment, federation))
    state = program.template()
    begin = time.perf_counter()
    of_processor = time.process_time()
    rounds = min(experiment.config.eval_every, experiment.config.rounds)
    program.compile([state], [program.inputs], rounds)
    return time.perf_counter() - begin, time.process_time() - of_processor


def main() -> None:
    """Prints a table."""
    trained = [
        path.stem for path in sorted(CONFIGS.glob("*.py")) if not path.stem.endswith("_predict")
    ]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "configs", nargs="*", default=trained, help=f"of {', '.join(trained)}; default: all"
    )
    chosen = parser.parse_args().configs
    if unknown := sorted(set(chosen) - set(trained)):
        parser.error(f"no such config: {', '.join(unknown)}")
    print("| config | compiling, s | of the processor, s |\n|---|---:|---:|")
    for name in chosen:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            seconds, of_processor = pool.apply(compile_seconds, (name,))
            print(f"| `{name}.py` | {seconds:.1f} | {of_processor:.1f} |", flush=True)
    print(
        f"\nPython {platform.python_version()}, jax {importlib.metadata.version('jax')}; "
        f"{processor.cores()} cores"
    )


if __name__ == "__main__":
    main()
