"""Workloads and configs compiled for a device that is not there, and what follows from the programs.

Nothing is run on that device: all numbers are read from the program that its compiler returns. Times are bounds that
follow from launches, bandwidth and arithmetic, not measurements.
"""

import os
import time
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding

from fedjax_ssl import backend
from fedjax_ssl import config as configs
from fedjax_ssl.benchmarks import hlo
from fedjax_ssl.benchmarks.measure import rounds_of_all_seeds, seed_keys
from fedjax_ssl.benchmarks.stand_in import stand_in_experiment
from fedjax_ssl.benchmarks.targets import TARGETS, check_compiler, devices, environment
from fedjax_ssl.benchmarks.workloads import prepared
from fedjax_ssl.config import ConfigError
from fedjax_ssl.experiment import Experiment, build_method, federate
from fedjax_ssl.experiment.build import execution_of
from fedjax_ssl.experiment.programs import Programs, block_of, code_of, inputs_of
from fedjax_ssl.experiment.rounds import ROUNDS
from fedjax_ssl.federated import EVALUATION, LOCAL_STEP, Choice
from fedjax_ssl.federated.memory import program_bytes
from fedjax_ssl.graph import LABEL_GRAPH


class AheadOptions(NamedTuple):
    """What the command line decides."""

    target: str  # a key of `TARGETS`
    rounds: int | None = None  # per block; the workload's or config's own by default
    scale: float = 1.0  # of workloads, see `Workload.scaled`
    placement: str | None = None  # where the workload or config leaves it open


class Compiled(NamedTuple):
    """A block of rounds, compiled for a target."""

    workload: str  # or the name of a config
    variant: str  # of the workload, or the config's argument
    target: str
    choice: Choice | None  # how the clients of the last kind were placed; None: no client trains
    steps: hlo.Part  # one local step of all clients that train at once
    num_kinds: int  # kinds of local steps; of several, `steps` is the one that moves the most bytes
    round: hlo.Part  # what one round does beside its local steps, loops multiplied out
    evaluation: hlo.Part  # after the block
    graph: hlo.Part  # of one round
    temporary_bytes: int
    estimated_bytes: int  # before compiling, for what `temporary_bytes` is
    compile_seconds: float
    unordered_sums: int  # see `hlo.unordered_sums`

    @property
    def bound_seconds_per_step(self) -> float:
        """What a local step takes at least."""
        return self.seconds(self.steps)

    def seconds(self, part: hlo.Part) -> float:
        """What a part of the program takes at least."""
        target = TARGETS[self.target]
        return part.seconds(target.launch, target.bandwidth, target.peak)

    def row(self) -> dict[str, Any]:
        """The fields of a line of JSON."""
        return {
            "workload": self.workload,
            "variant": self.variant,
            "target": self.target,
            "kernels_per_step": self.steps.num_kernels,
            "host_round_trips_per_step": self.steps.host_round_trips,
            "kernels_per_round": self.round.num_kernels,
            "bytes_per_step": self.steps.bytes,
            "operations_per_step": self.steps.operations,
            "temporary_bytes": self.temporary_bytes,
            "estimated_bytes": self.estimated_bytes,
            "bound_seconds_per_step": self.bound_seconds_per_step,
            "compile_seconds": self.compile_seconds,
            "unordered_sums": self.unordered_sums,
        }


def prepare(name: str) -> None:
    """Makes this process and those that it starts ready to compile for a target; before JAX computes anything.

    Raises:
        CompilerMissing: the target's compiler is not installed.
    """
    check_compiler(name, TARGETS[name])
    os.environ.update(environment(TARGETS[name]))
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)


def compile_workload(name: str, variant_name: str, options: AheadOptions) -> Compiled:
    """Compiles one variant of a workload for a target; `prepare` was called.

    Raises:
        ConfigError: a setting cannot be used.
        CompilerMissing: the compiler does not start.
    """
    workload, variant = prepared(name, variant_name, options.scale, options.placement)
    rounds = options.rounds or workload.rounds
    experiment = Experiment(workload.config(variant), workload.dataset())
    federation = federate(experiment, jax.random.key(experiment.config.seed))
    keys = seed_keys(variant, experiment.config.seed)
    choices: list[Choice] = []
    target = TARGETS[options.target]
    place = SingleDeviceSharding(devices(target)[0])
    with backend.tracing_for(target.elsewhere):
        method = build_method(experiment, federation, report=choices.append)
        states = jax.eval_shape(jax.vmap(method.init, in_axes=(0, None)), keys, federation)
        advance = jax.jit(
            rounds_of_all_seeds(method, variant, rounds), donate_argnums=1, in_shardings=place, out_shardings=place
        )
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (keys, states, federation))
        begin = time.perf_counter()
        traced = advance.trace(*shapes)
        compiled = traced.lower().compile()
        seconds = time.perf_counter() - begin
        estimated = program_bytes(traced.jaxpr)
    return _read(name, variant.name, options.target, compiled, rounds, choices, estimated, seconds)


def compile_config(name: str, options: AheadOptions) -> Compiled:
    """Compiles the first block of rounds of a shipped config with its evaluation, on data that stand in for its own.

    Args:
        name: of the config, with its argument after a colon.
        options: see `AheadOptions`.

    Raises:
        ConfigError: there is no such config, it does not train, or a setting cannot be used.
        CompilerMissing: the compiler does not start.
    """
    file, _, argument = name.partition(":")
    experiment = stand_in_experiment(file, _config(name, options))
    config, key = experiment.config, jax.random.key(experiment.config.seed)
    federation = federate(experiment, key)
    target = TARGETS[options.target]
    mesh = Mesh(np.array(devices(target)[:1]), ("clients",))
    rounds = options.rounds or min(config.eval_every, config.rounds)
    with backend.tracing_for(target.elsewhere):
        execution = execution_of(experiment, federation, alone=True)
        method = build_method(experiment, federation, execution=execution)
        if method.on_host:
            raise ConfigError(f"config {name!r} runs its rounds on the host; there is no program to compile")
        code = code_of(experiment, execution, method)._replace(mesh=mesh)
        programs, inputs = Programs(), inputs_of(config, key, federation)
        state = programs.template(code, inputs)
        begin = time.perf_counter()
        compiled, arguments = programs.compile(code, [state], [inputs], rounds)
        seconds = time.perf_counter() - begin
        estimated = program_bytes(jax.make_jaxpr(block_of(code, rounds))(*arguments))
    return _read(file, argument, options.target, compiled, rounds, programs.choices(code), estimated, seconds)


def _config(name: str, options: AheadOptions) -> ml_collections.ConfigDict:
    config = configs.load(name)
    if options.placement and config.federated.placement == "auto":
        config.federated.placement = options.placement
    if not configs.resolve(config).rounds:
        raise ConfigError(f"config {name!r} makes predictions without training; there are no rounds to compile")
    return config


def _read(
    workload: str,
    variant: str,
    target: str,
    compiled: Any,
    rounds: int,
    choices: list[Choice],
    estimated: int,
    seconds: float,
) -> Compiled:
    """The numbers of a compiled program."""
    host_drives = TARGETS[target].platform == "cuda"
    program = hlo.parse(compiled.as_text())
    steps, rest = hlo.steps_and_rest(program, LOCAL_STEP, host_drives)
    every_round = _divided(rest.within(ROUNDS), rounds)
    # A loop of a single step is none in the compiled program.
    parts = [one.part for one in steps] or [every_round.within(LOCAL_STEP)]
    return Compiled(
        workload,
        variant,
        target,
        choice=choices[-1] if choices else None,
        steps=max(parts, key=lambda part: part.bytes),
        num_kinds=len(parts),
        round=every_round,
        evaluation=rest.within(EVALUATION),
        graph=every_round.within(LABEL_GRAPH),
        temporary_bytes=int(compiled.memory_analysis().temp_size_in_bytes),
        estimated_bytes=estimated,
        compile_seconds=seconds,
        unordered_sums=len(hlo.unordered_sums(program)) if host_drives else 0,  # a TPU has no atomic additions
    )


def _divided(part: hlo.Part, rounds: int) -> hlo.Part:
    kernels = tuple(kernel._replace(times=kernel.times / rounds) for kernel in part.kernels)
    return part._replace(kernels=kernels, host_round_trips=part.host_round_trips / rounds)
