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
from ml_collections import ConfigDict

from fedjax_ssl import processor
from fedjax_ssl.benchmarks.stand_in import stand_in_experiment
from fedjax_ssl.command_line import map_large_buffers
from fedjax_ssl.runs.build import build_method, execution_of, federate
from fedjax_ssl.runs.compile import Programs, code_of, inputs_of

CONFIGS = Path(__file__).parents[2] / "configs"


def compile_seconds(name: str) -> tuple[float, float]:
    """Seconds to trace and compile the first block of rounds of configs/NAME.py with the evaluation after it.

    Returns:
        By the clock, and of all cores together: the second also counts beside other programs.
    """
    map_large_buffers()
    jax.config.update("jax_enable_compilation_cache", False)
    config: ConfigDict = runpy.run_path(str(CONFIGS / f"{name}.py"))["get_config"]()
    experiment = stand_in_experiment(name, config)
    key = jax.random.key(experiment.config.seed)
    federation = federate(experiment, key)
    execution = execution_of(experiment, federation, alone=True)
    code = code_of(experiment, execution, build_method(experiment, federation, execution=execution))
    programs, inputs = Programs(), inputs_of(experiment.config, key, federation)
    state = programs.template(code, inputs)
    begin, of_processor = time.perf_counter(), time.process_time()
    programs.compile(code, [state], [inputs], min(experiment.config.eval_every, experiment.config.rounds))
    return time.perf_counter() - begin, time.process_time() - of_processor


def main() -> None:
    """Prints a table."""
    trained = [path.stem for path in sorted(CONFIGS.glob("*.py")) if not path.stem.endswith("_predict")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", default=trained, help=f"of {', '.join(trained)}; default: all")
    chosen = parser.parse_args().configs
    if unknown := sorted(set(chosen) - set(trained)):
        parser.error(f"no such config: {', '.join(unknown)}")
    print("| config | compiling, s | of the processor, s |\n|---|---:|---:|")
    for name in chosen:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            seconds, of_processor = pool.apply(compile_seconds, (name,))
            print(f"| `{name}.py` | {seconds:.1f} | {of_processor:.1f} |", flush=True)
    print(f"\nPython {platform.python_version()}, jax {importlib.metadata.version('jax')}; {processor.cores()} cores")


if __name__ == "__main__":
    main()
