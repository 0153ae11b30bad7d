"""How long the shipped configs take to compile, on this machine, without a cache.

    python experiments/benchmarks/starts.py                           # every config that trains
    python experiments/benchmarks/starts.py digits_xclp cifar10_xclp

What is compiled depends on shapes, not on pixels: a dataset that would have to be downloaded is replaced by random
images of the same shape and number of examples, classes and writers; writers have equally many. RSNA has 3,000 slices
instead of the paper's 66,000. Each config has a process of its own; the first block of rounds and its evaluation are
traced and compiled, and not run.
"""

import argparse
import importlib.metadata
import multiprocessing
import platform
import runpy
import time
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from fedjax_ssl import config as configs
from fedjax_ssl import data, processor
from fedjax_ssl.data.correspondence import CIFAR100_SUPERCLASS_OF, CIFAR100_SUPERCLASSES, correspondence
from fedjax_ssl.experiment import Experiment, build_method, federate, load_experiment
from fedjax_ssl.experiment.build import execution_of
from fedjax_ssl.experiment.programs import Programs, code_of, inputs_of

CONFIGS = Path(__file__).parents[2] / "configs"
# image shape, classes, training examples, test examples, writers
SHAPES = {
    "mnist": ((28, 28, 1), 10, 60_000, 10_000, None),
    "cifar10": ((32, 32, 3), 10, 50_000, 10_000, None),
    "cifar100": ((32, 32, 3), 100, 50_000, 10_000, None),
    "femnist": ((28, 28, 1), 62, 671_585, 77_483, 3_400),
    "rsna_fedul": ((224, 224, 3), 6, 3_000, 300, None),
    "npz_fedul": ((28, 28, 1), 10, 60_000, 10_000, None),
    "npz_xclp": ((28, 28, 1), 10, 60_000, 10_000, None),
}


def stand_in(name: str) -> data.Dataset:
    """Random images of a dataset's shape."""
    shape, classes, train, test, writers = SHAPES[name]
    generator = np.random.default_rng(0)
    superclasses = name == "cifar100"

    def split(count: int) -> data.Split:
        labels = np.arange(count) % classes
        return data.Split(
            generator.integers(0, 256, (count, *shape), np.uint8),
            labels,
            None if writers is None else generator.permutation(count) % writers,
            np.array(CIFAR100_SUPERCLASS_OF)[labels] if superclasses else None,
        )

    return data.Dataset(
        name,
        split(train),
        split(test),
        tuple(str(label) for label in range(classes)),
        coarse_names=CIFAR100_SUPERCLASSES if superclasses else None,
        correspondence=correspondence("superclass", classes).matrix if superclasses else None,
    )


def compile_seconds(name: str) -> float:
    """Seconds to trace and compile the first block of rounds of configs/NAME.py with the evaluation after it."""
    jax.config.update("jax_enable_compilation_cache", False)
    config: ConfigDict = runpy.run_path(str(CONFIGS / f"{name}.py"))["get_config"]()
    shape = name if name in SHAPES else config.data.name
    experiment = Experiment(configs.resolve(config), stand_in(shape)) if shape in SHAPES else load_experiment(config)
    key = jax.random.key(experiment.config.seed)
    federation = federate(experiment, key)
    execution = execution_of(experiment, federation, alone=True)
    code = code_of(experiment, execution, build_method(experiment, federation, execution=execution))
    programs, inputs = Programs(), inputs_of(experiment.config, key, federation)
    state = programs.template(code, inputs)
    begin = time.perf_counter()
    programs.compile(code, [state], [inputs], min(experiment.config.eval_every, experiment.config.rounds))
    return time.perf_counter() - begin


def main() -> None:
    """Prints a table."""
    trained = [path.stem for path in sorted(CONFIGS.glob("*.py")) if not path.stem.endswith("_predict")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", default=trained, help=f"of {', '.join(trained)}; default: all")
    chosen = parser.parse_args().configs
    if unknown := sorted(set(chosen) - set(trained)):
        parser.error(f"no such config: {', '.join(unknown)}")
    print("| config | compiling, s |\n|---|---:|")
    for name in chosen:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(f"| `{name}.py` | {pool.apply(compile_seconds, (name,)):.1f} |", flush=True)
    print(f"\nPython {platform.python_version()}, jax {importlib.metadata.version('jax')}; {processor.cores()} cores")


if __name__ == "__main__":
    main()
