"""Measure a workload: one compiled block of rounds, run warm several times from the same state,
and awaited.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from experiments.benchmarks.workloads import Workload
from fedjax_ssl import config as configs
from fedjax_ssl import folder, models, processor
from fedjax_ssl.command_line import map_large_buffers, use_processor
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import VECTORIZED_RUNS, Choice, ServerState, execute
from fedjax_ssl.federated.contract import Metrics
from fedjax_ssl.runs.build import Experiment, build, federate
from fedjax_ssl.runs.compiler import compiled_program
from fedjax_ssl.runs.devices import choose_devices, start_processor
from fedjax_ssl.runs.processes import share_out
from fedjax_ssl.runs.rounds import run_rounds
from fedjax_ssl.train import over_runs


class Prepared(NamedTuple):
    """A workload whose block of rounds is compiled."""

    about: dict[str, Any]  # what is known before it runs, as of `measure`
    workload: Workload
    program: Any
    run: Callable[[], Metrics]  # a block
    operations: int  # of a training step, by example


def measure(name: str, workload: Workload, given: argparse.Namespace) -> dict[str, Any]:
    """Measure one way to run a workload.

    Args:
        name: a key of `WORKLOADS`.
        workload: one of its values.
        given: options of the command line, see `experiments.benchmarks.command.options`.

    Returns:
        Numbers and strings, ready for JSON. Rates are medians over the blocks. "fraction_of_peak"
        compares the operations of local training, three times those of the forward pass, with the
        best rate of a large product, measured just before and after.

    Raises:
        ConfigError: a setting cannot be used.
    """
    return timed(prepare(name, workload, given), given)


def prepare(name: str, workload: Workload, given: argparse.Namespace) -> Prepared:
    """Make a workload's federation and compile a block of its rounds; arguments as of `measure`."""
    mapped = not given.heap and map_large_buffers()
    use_processor(given.threads, given.devices)
    workload = workload.scaled(given.scale)
    rounds = given.rounds or workload.rounds
    placement = {"federated.placement": given.placement} if given.placement else {}
    config = workload.config({"federated.devices": given.devices, **placement})
    experiment = Experiment(config, workload.dataset())
    start_processor(config, experiment.dataset)
    devices = choose_devices(config, experiment.dataset)
    federation = federate(experiment, jax.random.key(config.seed))
    choices: list[Choice] = []
    program, run, compile_seconds = compile_block(
        workload, experiment, federation, rounds, choices.append
    )
    about = {
        "workload": name,
        "variant": workload.variant,
        "title": workload.title,
        "note": workload.note,
        "scale": given.scale,
        "clients": workload.num_clients,
        "cohort_size": workload.cohort_size,
        "seeds": workload.seeds,
        "placement": choices[-1].placement,  # of the last stage
        "clients_at_once": choices[-1].clients_at_once,
        "large_buffers": "mapped" if mapped else "heap",
        "threads": processor.threads(),
        "devices": devices,
        "rounds_per_block": rounds,
        "compile_seconds": compile_seconds,
    }
    operations = _operations_per_example(config.model, federation)
    return Prepared(about, workload, program, run, operations)


def timed(prepared: Prepared, given: argparse.Namespace) -> dict[str, Any]:
    """Time blocks of a workload that is compiled; as `measure`."""
    peak = product_operations_per_second()
    wall, processor_seconds, warm, metrics = time_blocks(prepared.run, given.repeats, given.limit)
    peak = max(peak, product_operations_per_second())
    seconds = statistics.median(wall)
    totals = {
        field: float(np.sum(metrics[field])) for field in ("examples", "local_steps", "clients")
    }
    rounds = prepared.about["rounds_per_block"]
    memory = prepared.program.memory_analysis()
    return {
        **prepared.about,
        "blocks": len(wall),
        "warm": warm,
        "examples_per_second": totals["examples"] / seconds,
        "local_steps_per_second": totals["local_steps"] / seconds,
        "client_updates_per_second": totals["clients"] / seconds,
        "rounds_per_second": prepared.workload.seeds * rounds / seconds,
        "seconds_per_round": seconds / rounds,
        "processor_seconds_per_round": statistics.median(processor_seconds) / rounds,
        "fastest_seconds_per_round": min(wall) / rounds,
        "peak_memory_bytes": folder.peak_memory_bytes(),
        "temporary_bytes": int(getattr(memory, "temp_size_in_bytes", 0) or 0),
        "operations_per_example": prepared.operations,
        "product_operations_per_second": peak,
        "fraction_of_peak": prepared.operations * totals["examples"] / seconds / peak,
        "loss": float(np.mean(metrics["loss"])),
        "device": folder.device_description(),
        "versions": folder.versions(),
    }


def compile_block(
    workload: Workload,
    experiment: Experiment,
    federation: FederatedData,
    rounds: int,
    report: Callable[[Choice], None],
) -> tuple[Any, Callable[[], Metrics], float]:
    """Compile rounds of all seeds for the device that is here, and run the rounds before them in
    whole blocks.

    Returns:
        (the compiled program, a function that runs it and gives its metrics on the host, seconds of
        compiling with tracing).
    """
    built = build(experiment, federation)
    execution = built.execution._replace(report=report)
    method = execute(built.method, execution)
    seeds = jax.vmap(jax.random.key)(experiment.config.seed + jnp.arange(workload.seeds))
    keys, shared = share_out((seeds, federation), execution.mesh)

    def one(
        key: Key[Array, ""], state: ServerState, federation: FederatedData
    ) -> tuple[ServerState, Metrics]:
        return run_rounds(method, key, state, federation, rounds)

    def advance(
        keys: Key[Array, " s"], states: ServerState, federation: FederatedData
    ) -> tuple[ServerState, Metrics]:
        if workload.seeds == 1:  # as a run compiles it
            key, state = jax.tree.map(lambda x: x[0], (keys, states))
            return jax.tree.map(lambda x: x[None], one(key, state, federation))
        sweep = partial(jax.vmap, axis_name=VECTORIZED_RUNS) if workload.vectorized else over_runs
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

    return program, run, seconds


def time_blocks(
    run: Callable[[], Metrics], repeats: int, limit: float
) -> tuple[list[float], list[float], bool, Metrics]:
    """Run a block to warm up, and then until there are enough of them or the time is over.

    Returns:
        (seconds of the blocks by the clock, seconds of this process on all cores together, whether
        they were warm: else the first one took longer than the limit and is all there is, metrics
        of the last one).
    """
    wall: list[float] = []
    worked: list[float] = []
    start = time.perf_counter()
    over = False
    while len(wall) <= repeats and not over:
        begin = time.perf_counter()
        begin_worked = time.process_time()
        metrics = run()
        wall.append(time.perf_counter() - begin)
        worked.append(time.process_time() - begin_worked)
        over = time.perf_counter() - start > limit
    warm = len(wall) > 1
    return wall[warm:], worked[warm:], warm, metrics


def _operations_per_example(settings: Any, federation: FederatedData) -> int:
    """Count the operations of a training step: every product of the forward pass comes back
    twice in the gradient.
    """
    shape = federation.inputs.shape[1:]
    given = configs.network_options(settings)
    model = models.build(
        settings.name, num_classes=federation.num_classes, input_shape=shape, **given
    )
    assert model.forward_operations is not None, "networks of this package count theirs"
    return 3 * model.forward_operations()


def product_operations_per_second(seconds: float = 0.5) -> float:
    """Measure the best rate of a large square matrix product in the default precision of float32,
    on one device.

    Args:
        seconds: how long to try.
    """
    side = 2048 if jax.default_backend() == "cpu" else 8192
    matrix = jnp.full((side, side), 1 / side, jnp.float32)
    product = jax.jit(jnp.matmul)
    product(matrix, matrix).block_until_ready()
    best = float("inf")
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        product(matrix, matrix).block_until_ready()
        best = min(best, time.perf_counter() - begin)
    return 2 * side**3 / best
