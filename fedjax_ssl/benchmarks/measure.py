"""How a workload is measured: one compiled block of rounds, run warm several times from the same state, and awaited."""

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
from fedjax_ssl.benchmarks.operations import product_operations_per_second, training_operations_per_example
from fedjax_ssl.benchmarks.padding import padded_share
from fedjax_ssl.benchmarks.workloads import WORKLOADS, Variant, Workload, prepared
from fedjax_ssl.command_line import map_large_buffers, use_processor
from fedjax_ssl.data import Dataset, FederatedData
from fedjax_ssl.federated import VECTORIZED_RUNS, Choice, Method, ServerState
from fedjax_ssl.federated.method import Metrics
from fedjax_ssl.runs.build import Experiment, build_method, execution_of, federate
from fedjax_ssl.runs.compile import compiled_program
from fedjax_ssl.runs.processes import share_out
from fedjax_ssl.runs.rounds import run_rounds
from fedjax_ssl.train import over_seeds


class Options(NamedTuple):
    """What the command line decides."""

    repeats: int = 5  # timed blocks of rounds
    rounds: int | None = None  # per block; the workload's own by default
    scale: float = 1.0  # see `Workload.scaled`
    limit: float = 120.0  # seconds after which no further block is started
    placement: str | None = None  # where the variant does not fix it
    heap: bool = False  # leave large buffers to the C library, see `map_large_buffers`
    threads: int | None = None  # see `use_processor`
    devices: int = 1  # that share each cohort


class Block(NamedTuple):
    """Rounds of all seeds in one compiled program."""

    run: Callable[[], Metrics]  # the metrics on the host, once the program is done
    compile_seconds: float  # tracing included
    program: Any  # compiled

    @property
    def temporary_bytes(self) -> int:
        """What the program takes beside its arguments and results; 0 where the backend does not tell."""
        return int(getattr(self.program.memory_analysis(), "temp_size_in_bytes", 0) or 0)


class Timings(NamedTuple):
    """Seconds of the blocks."""

    wall: list[float]
    processor: list[float]  # of this process, all cores together
    warm: bool  # False: the first block took longer than the limit, and is all there is


def measure(name: str, variant_name: str, options: Options) -> dict[str, Any]:
    """Measures one variant of a workload.

    Args:
        name: a key of `WORKLOADS`.
        variant_name: of one of its variants.
        options: see `Options`.

    Returns:
        Numbers and strings, ready for JSON. Rates are medians over the blocks. "fraction_of_peak" compares the
        operations in the matrix products of local training with the best rate of a large product, measured just
        before and after.

    Raises:
        ConfigError: a setting cannot be used.
    """
    mapped = not options.heap and map_large_buffers()
    use_processor(options.threads, options.devices)
    workload, variant = prepared(name, variant_name, options.scale, options.placement, options.devices)
    rounds = options.rounds or workload.rounds
    config, federation, block, placed = compiled_block(workload, variant, workload.dataset(), rounds)
    peak = product_operations_per_second()
    timings, totals = time_blocks(block.run, options.repeats, options.limit)
    peak = max(peak, product_operations_per_second())
    seconds = statistics.median(timings.wall)
    per_example = training_operations_per_example(_model(config, federation), workload.input_shape)
    return {
        "workload": name,
        "variant": variant_name,
        "title": WORKLOADS[name].title,
        "note": workload.note,
        "scale": options.scale,
        "clients": workload.num_clients,
        "cohort_size": workload.cohort_size,
        "seeds": variant.seeds,
        "placement": placed.placement,
        "clients_at_once": placed.clients_at_once,
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
        "temporary_bytes": block.temporary_bytes,
        "padded_share": _padding(workload, config, placed),
        "operations_per_example": per_example,
        "product_operations_per_second": peak,
        "fraction_of_peak": per_example * totals["examples"] / seconds / peak,
        "loss": totals["loss"],
        "device": runs.device_description(),
        "versions": runs.versions(),
    }


def compiled_block(
    workload: Workload, variant: Variant, dataset: Dataset, rounds: int
) -> tuple[ml_collections.ConfigDict, FederatedData, Block, Choice]:
    """Compiles a block of rounds of a workload for the device that is here.

    Args:
        workload: with the changes of the variant.
        variant: of it.
        dataset: of the workload.
        rounds: of the block.

    Returns:
        (config, federation, block, how the clients of the last stage are placed).
    """
    experiment = Experiment(workload.config(variant), dataset)
    config, key = experiment.config, jax.random.key(experiment.config.seed)
    federation = federate(experiment, key)
    choices: list[Choice] = []
    execution = execution_of(experiment, federation, alone=True)
    method = build_method(experiment, federation, report=choices.append, execution=execution)
    keys, everywhere = share_out((seed_keys(variant, config.seed), federation), execution.mesh)
    block = compile_rounds(method, keys, everywhere, variant, rounds, workload.rounds_before)
    return config, federation, block, choices[-1]


def compile_rounds(
    method: Method,
    keys: Key[Array, " s"],
    federation: FederatedData,
    variant: Variant,
    rounds: int,
    rounds_before: int = 0,
) -> Block:
    """Initializes all seeds, compiles a block of rounds, and runs the rounds before in whole blocks."""
    advance = rounds_of_all_seeds(method, variant, rounds)
    states = jax.jit(jax.vmap(method.init, in_axes=(0, None)))(keys, federation)
    begin = time.perf_counter()
    program = compiled_program(jax.jit(advance).lower(keys, states, federation))
    seconds = time.perf_counter() - begin
    for _ in range(-(-rounds_before // rounds)):
        states, _ = program(keys, states, federation)

    def run() -> Metrics:
        new_states, metrics = program(keys, states, federation)
        jax.block_until_ready(new_states)
        return jax.device_get(metrics)

    return Block(run, seconds, program)


def seed_keys(variant: Variant, seed: int) -> Key[Array, " s"]:
    """A run's key for each seed of a variant."""
    return jax.vmap(jax.random.key)(seed + jnp.arange(variant.seeds))


def rounds_of_all_seeds(
    method: Method, variant: Variant, rounds: int
) -> Callable[[Key[Array, " s"], ServerState, FederatedData], tuple[ServerState, Metrics]]:
    """What a block computes: rounds of all seeds, from their keys and states."""
    sweep = partial(jax.vmap, axis_name=VECTORIZED_RUNS) if variant.vectorized else over_seeds

    def advance(keys: Key[Array, " s"], states: ServerState, federation: FederatedData) -> tuple[ServerState, Metrics]:
        def one(key: Key[Array, ""], state: ServerState) -> tuple[ServerState, Metrics]:
            return run_rounds(method, key, state, federation, rounds)

        if variant.seeds == 1:  # what a run compiles
            only = one(*jax.tree.map(lambda x: x[0], (keys, states)))
            return jax.tree.map(lambda x: x[None], only)
        return sweep(one)(keys, states)

    return advance


def time_blocks(run: Callable[[], Metrics], repeats: int, limit: float) -> tuple[Timings, dict[str, float]]:
    """Runs blocks until there are enough of them or the time is over.

    Returns:
        (timings, of one block: examples, local steps and client updates of all seeds, and the mean loss).
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


def _model(config: Any, federation: FederatedData) -> models.Model:
    # Operations are those of the plain convolution, also where fewer are computed.
    plain = {"lowering": "slices"} if "lowering" in models.options(config.model.name) else {}
    return models.build(
        config.model.name,
        num_classes=federation.num_classes,
        input_shape=federation.inputs.shape[1:],
        **configs.options(config.model) | plain,
    )


def _padding(workload: Workload, config: Any, placed: Choice) -> float | None:
    """The share of padding, where it is known in advance: every client takes part in every round."""
    if workload.cohort_size < workload.num_clients or workload.method != "fedavg":
        return None
    steps = config.optimizer.local_epochs * -(-workload.sizes() // config.optimizer.batch_size)
    return padded_share(steps, placed.placement, placed.clients_at_once)
