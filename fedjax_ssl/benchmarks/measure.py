"""Measure a workload: one compiled block of rounds, run warm several times from the same state, and awaited."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from jaxtyping import Array, Key

from fedjax_ssl import config as configs
from fedjax_ssl import models, processor, runs
from fedjax_ssl.benchmarks.workloads import WORKLOADS, Variant, Workload, prepared
from fedjax_ssl.command_line import map_large_buffers, use_processor
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import VECTORIZED_RUNS, Choice, ServerState
from fedjax_ssl.federated.method import Metrics
from fedjax_ssl.runs.build import Experiment, build_method, execution_of, federate
from fedjax_ssl.runs.compile import compiled_program
from fedjax_ssl.runs.processes import share_out
from fedjax_ssl.runs.rounds import run_rounds
from fedjax_ssl.train import over_seeds


class Options(NamedTuple):
    """Settings of a measurement, as the command line has them."""

    repeats: int = 5  # timed blocks of rounds
    rounds: int | None = None  # rounds per block; the workload's own by default
    scale: float = 1.0  # see `Workload.scaled`
    limit: float = 120.0  # seconds after which no further block is started
    placement: str | None = None  # where the variant does not fix it
    heap: bool = False  # leave large buffers to the C library, see `map_large_buffers`
    threads: int | None = None  # see `use_processor`
    devices: int = 1  # number of devices that share each cohort


class Block(NamedTuple):
    """Rounds of all seeds in one compiled program."""

    config: ml_collections.ConfigDict
    federation: FederatedData
    placed: Choice  # placement of the clients in the last stage
    program: Any  # the compiled program
    compile_seconds: float  # tracing included
    run: Callable[[], Metrics]  # the metrics on the host, once the program is done


class Timings(NamedTuple):
    """Seconds of the blocks."""

    wall: list[float]
    processor: list[float]  # seconds of this process, all cores together
    warm: bool  # False: the first block took longer than the limit, and is all there is


def measure(name: str, variant_name: str, options: Options) -> dict[str, Any]:
    """Measure one variant of a workload.

    Args:
        name: a key of `WORKLOADS`.
        variant_name: the name of one of its variants.
        options: see `Options`.

    Returns:
        Numbers and strings, ready for JSON. Rates are medians over the blocks. "fraction_of_peak" compares the
        operations of local training, three times those of the forward pass, with the best rate of a large product,
        measured just before and after.

    Raises:
        ConfigError: a setting cannot be used.
    """
    mapped = not options.heap and map_large_buffers()
    use_processor(options.threads, options.devices)
    workload, variant = prepared(name, variant_name, options.scale, options.placement, options.devices)
    rounds = options.rounds or workload.rounds
    block = compile_block(workload, variant, rounds)
    peak = product_operations_per_second()
    timings, totals = time_blocks(block.run, options.repeats, options.limit)
    peak = max(peak, product_operations_per_second())
    seconds = statistics.median(timings.wall)
    per_example = _operations_per_example(block)
    return {
        "workload": name,
        "variant": variant_name,
        "title": WORKLOADS[name].title,
        "note": workload.note,
        "scale": options.scale,
        "clients": workload.num_clients,
        "cohort_size": workload.cohort_size,
        "seeds": variant.seeds,
        "placement": block.placed.placement,
        "clients_at_once": block.placed.clients_at_once,
        "large_buffers": "mapped" if mapped else "heap",
        "threads": processor.threads(),
        "devices": options.devices,
        "rounds_per_block": rounds,
        "blocks": len(timings.wall),
        "warm": timings.warm,
        "examples_per_second": totals["examples"] / seconds,
        "local_steps_per_second": totals["local_steps"] / seconds,
        "client_updates_per_second": totals["clients"] / seconds,
        "rounds_per_second": variant.seeds * rounds / seconds,
        "seconds_per_round": seconds / rounds,
        "processor_seconds_per_round": statistics.median(timings.processor) / rounds,
        "fastest_seconds_per_round": min(timings.wall) / rounds,
        "compile_seconds": block.compile_seconds,
        "peak_memory_bytes": runs.peak_memory_bytes(),
        "temporary_bytes": int(getattr(block.program.memory_analysis(), "temp_size_in_bytes", 0) or 0),
        "operations_per_example": per_example,
        "product_operations_per_second": peak,
        "fraction_of_peak": per_example * totals["examples"] / seconds / peak,
        "loss": totals["loss"],
        "device": runs.device_description(),
        "versions": runs.versions(),
    }


def compile_block(workload: Workload, variant: Variant, rounds: int) -> Block:
    """Compile a block of rounds for the device that is here, and run the rounds before it in whole blocks."""
    experiment = Experiment(workload.config(variant), workload.dataset())
    config, key = experiment.config, jax.random.key(experiment.config.seed)
    federation = federate(experiment, key)
    choices: list[Choice] = []
    execution = execution_of(experiment, federation, alone=True)
    method = build_method(experiment, federation, report=choices.append, execution=execution)
    seeds = jax.vmap(jax.random.key)(config.seed + jnp.arange(variant.seeds))
    keys, shared = share_out((seeds, federation), execution.mesh)

    def one(key: Key[Array, ""], state: ServerState, federation: FederatedData) -> tuple[ServerState, Metrics]:
        return run_rounds(method, key, state, federation, rounds)

    def advance(keys: Key[Array, " s"], states: ServerState, federation: FederatedData) -> tuple[ServerState, Metrics]:
        if variant.seeds == 1:  # as a run compiles it
            key, state = jax.tree.map(lambda x: x[0], (keys, states))
            return jax.tree.map(lambda x: x[None], one(key, state, federation))
        sweep = partial(jax.vmap, axis_name=VECTORIZED_RUNS) if variant.vectorized else over_seeds
        return sweep(lambda key, state: one(key, state, federation))(keys, states)

    states = jax.jit(jax.vmap(method.init, in_axes=(0, None)))(keys, shared)
    begin = time.perf_counter()
    program = compiled_program(jax.jit(advance).lower(keys, states, shared))
    seconds = time.perf_counter() - begin
    for _ in range(-(-workload.rounds_before // rounds)):
        states, _ = program(keys, states, shared)

    def run() -> Metrics:
        new_states, metrics = program(keys, states, shared)
        jax.block_until_ready(new_states)
        return jax.device_get(metrics)

    return Block(config, federation, choices[-1], program, seconds, run)


def time_blocks(run: Callable[[], Metrics], repeats: int, limit: float) -> tuple[Timings, dict[str, float]]:
    """Run blocks until there are enough of them or the time is over.

    Returns:
        (timings, and for one block: examples, local steps and client updates of all seeds, and the mean loss).
    """
    wall: list[float] = []
    processor: list[float] = []
    start = time.perf_counter()
    warm = False
    while len(wall) < repeats:
        begin, begin_processor = time.perf_counter(), time.process_time()
        metrics = run()
        wall.append(time.perf_counter() - begin)
        processor.append(time.process_time() - begin_processor)
        over = time.perf_counter() - start > limit
        if not warm and not over:
            warm = True
            wall, processor = [], []
        elif over:
            break
    totals = {name: float(np.sum(metrics[name])) for name in ("examples", "local_steps", "clients")}
    return Timings(wall, processor, warm), {**totals, "loss": float(np.mean(metrics["loss"]))}


def _operations_per_example(block: Block) -> int:
    """Count the operations of a training step: every product of the forward pass comes back twice in the gradient."""
    settings, shape = block.config.model, block.federation.inputs.shape[1:]
    model = models.build(
        settings.name, num_classes=block.federation.num_classes, input_shape=shape, **configs.options(settings)
    )
    assert model.forward_operations is not None, "networks of this package count theirs"
    return 3 * model.forward_operations()


def product_operations_per_second(seconds: float = 0.5) -> float:
    """Measure the best rate of a large square matrix product in the default precision of float32, on one device.

    Args:
        seconds: how long to try.
    """
    side = 2048 if jax.default_backend() == "cpu" else 8192
    matrix = jnp.full((side, side), 1 / side, jnp.float32)
    product = jax.jit(jnp.matmul)
    product(matrix, matrix).block_until_ready()
    best, start = float("inf"), time.perf_counter()
    while time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        product(matrix, matrix).block_until_ready()
        best = min(best, time.perf_counter() - begin)
    return 2 * side**3 / best
