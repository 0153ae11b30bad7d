"""Workloads and configs compiled for a device that is not there, and what follows from the programs.

Nothing is run on that device: all numbers are read from the program that its compiler returns. Times are bounds that
follow from launches, bandwidth and arithmetic, not measurements.
"""

import itertools
import os
import time
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_ssl import backend
from fedjax_ssl import config as configs
from fedjax_ssl.benchmarks.measure import rounds_of_all_seeds, seed_keys
from fedjax_ssl.benchmarks.reading import Reading, least_turns, program_bytes, read
from fedjax_ssl.benchmarks.stand_in import stand_in_experiment
from fedjax_ssl.benchmarks.targets import TARGETS, Target, check_compiler, devices, environment
from fedjax_ssl.benchmarks.workloads import prepared
from fedjax_ssl.config import ConfigError
from fedjax_ssl.federated import Choice, Execution, Method
from fedjax_ssl.runs.build import Experiment, build_method, execution_of, federate
from fedjax_ssl.runs.compile import Programs, code_of, inputs_of


class AheadOptions(NamedTuple):
    """What the command line decides."""

    target: str  # a key of `TARGETS`
    rounds: int | None = None  # per block; the workload's or config's own by default
    scale: float = 1.0  # of workloads, see `Workload.scaled`
    placement: str | None = None  # where the workload or config leaves it open
    devices: int = 1  # that share each cohort


class Length(NamedTuple):
    """Of a run."""

    rounds: tuple[int, ...] | None  # of each stage; None: not known
    evaluations: int


class Compiled(NamedTuple):
    """A block of rounds, compiled for a target."""

    workload: str  # or the name of a config
    variant: str  # of the workload, or the config's argument
    target: str
    choice: Choice | None  # how the clients of the last kind were placed; None: no client trains
    reading: Reading
    devices: int
    least_turns: float | None  # of a loop of local steps whose end is not known, in a round
    length: Length
    program_bytes: int  # see `reading.program_bytes`
    temporary_bytes: int
    compile_seconds: float

    @property
    def bound_seconds_per_step(self) -> float:
        """What a local step takes at least."""
        return TARGETS[self.target].seconds(self.reading.step)

    @property
    def rounds_per_run(self) -> int | None:
        """Of all stages; None where that is not known."""
        return None if self.length.rounds is None else sum(self.length.rounds)

    @property
    def bound_seconds_per_stage(self) -> list[float | None]:
        """What a round of each stage takes at least, with its local steps; None where that is not known."""
        target = TARGETS[self.target]
        return [one.seconds_per_round(target, self.least_turns) for one in self.reading.stages or (self.reading,)]

    @property
    def bound_seconds_per_round(self) -> float | None:
        """What a round takes at least, on average over a run's stages; None where that is not known."""
        bounds = self.bound_seconds_per_stage
        if len(bounds) == 1:
            return bounds[0]
        if self.length.rounds is None or len(bounds) != len(self.length.rounds):
            return None
        known = [bound for bound in bounds if bound is not None]
        if len(known) < len(bounds) or not self.rounds_per_run:
            return None
        return (
            sum(rounds * bound for rounds, bound in zip(self.length.rounds, known, strict=True)) / self.rounds_per_run
        )

    @property
    def bound_seconds_per_run(self) -> float | None:
        """What all rounds and evaluations of a run take at least; None where that is not known."""
        a_round = self.bound_seconds_per_round
        if a_round is None or self.rounds_per_run is None:
            return None
        evaluation = TARGETS[self.target].seconds(self.reading.evaluation)
        return self.rounds_per_run * a_round + self.length.evaluations * evaluation

    def row(self) -> dict[str, Any]:
        """The fields of a line of JSON."""
        step, collectives = self.reading.step, self.reading.collectives()
        return {
            "workload": self.workload,
            "variant": self.variant,
            "target": self.target,
            "devices": self.devices,
            "kernels_per_step": step.num_kernels,
            "host_round_trips_per_step": step.host_round_trips,
            "kernels_per_round": self.reading.round.num_kernels,
            "bytes_per_step": step.bytes,
            "operations_per_step": step.operations,
            "temporary_bytes": self.temporary_bytes,
            "bound_seconds_per_step": self.bound_seconds_per_step,
            "bound_seconds_per_round": self.bound_seconds_per_round,
            "bound_seconds_per_stage": self.bound_seconds_per_stage,
            "rounds_per_stage": None if self.length.rounds is None else list(self.length.rounds),
            "rounds_per_run": self.rounds_per_run,
            "bound_seconds_per_run": self.bound_seconds_per_run,
            "program_bytes": self.program_bytes,
            "compile_seconds": self.compile_seconds,
            "unordered_sums": self.reading.unordered_sums,
            "collectives_per_round": {one.kind: {"times": one.times, "bytes": one.bytes} for one in collectives},
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
    mesh = _mesh(target, options)
    place = NamedSharding(mesh, PartitionSpec())  # whole on every device, as in a run
    with backend.tracing_for(target.elsewhere):
        execution = _shared(execution_of(experiment, federation, alone=True), mesh)
        method = build_method(experiment, federation, report=choices.append, execution=execution)
        states = jax.eval_shape(jax.vmap(method.init, in_axes=(0, None)), keys, federation)
        advance = jax.jit(
            rounds_of_all_seeds(method, variant, rounds), donate_argnums=1, in_shardings=place, out_shardings=place
        )
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (keys, states, federation))
        begin = time.perf_counter()
        traced = advance.trace(*shapes)
        compiled = traced.lower(lowering_platforms=backend.lowering_platforms()).compile()
        seconds = time.perf_counter() - begin
    turns = None
    if workload.method == "fedavg":
        turns = least_turns(workload.steps_per_round(variant), 1, choices[-1].clients_at_once * options.devices)
    length = Length(None if workload.run_rounds is None else (workload.run_rounds,), 0)  # it has no evaluation
    return _compiled(name, variant.name, options, compiled, rounds, choices, seconds, turns, length)


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
    experiment = stand_in_experiment(file, config_of(name, options))
    config, key = experiment.config, jax.random.key(experiment.config.seed)
    federation = federate(experiment, key)
    target = TARGETS[options.target]
    mesh = _mesh(target, options)
    rounds = options.rounds or min(config.eval_every, config.rounds)
    with backend.tracing_for(target.elsewhere):
        execution = _shared(execution_of(experiment, federation, alone=True), mesh)
        method = build_method(experiment, federation, execution=execution)
        if method.on_host:
            raise ConfigError(f"config {name!r} runs its rounds on the host; there is no program to compile")
        code = code_of(experiment, execution, method)._replace(mesh=mesh)
        programs, inputs = Programs(), inputs_of(config, key, federation)
        state = programs.template(code, inputs)
        begin = time.perf_counter()
        compiled, _ = programs.compile(code, [state], [inputs], rounds)
        seconds = time.perf_counter() - begin
    length = Length(_rounds_of(method, config.rounds), -(-config.rounds // config.eval_every))
    choices = programs.choices(code)
    return _compiled(file, argument, options, compiled, rounds, choices, seconds, None, length)


def _mesh(target: Target, options: AheadOptions) -> Mesh:
    return Mesh(np.array(devices(target, options.devices)), ("clients",))


def _shared(execution: Execution, mesh: Mesh) -> Execution:
    """The same execution, with each cohort shared between the devices of a mesh where these are several."""
    return execution._replace(mesh=mesh) if mesh.size > 1 else execution


def _rounds_of(method: Method, rounds: int) -> tuple[int, ...]:
    """Rounds of each stage of a run."""
    starts = [min(start, rounds) for start in (*method.starts, rounds)]
    return tuple(end - start for start, end in itertools.pairwise(starts))


def config_of(name: str, options: AheadOptions) -> ml_collections.ConfigDict:
    """A shipped config with what the command line sets.

    Raises:
        ConfigError: there is no such config, or it does not train.
    """
    config = configs.load(name)
    if options.placement and config.federated.placement == "auto":
        config.federated.placement = options.placement
    if not configs.resolve(config).rounds:
        raise ConfigError(
            f"config {name!r} makes predictions without training; there are no rounds to compile. `fedjax-ssl list "
            "configs` has those that train: all that do not end in _predict"
        )
    return config


def _compiled(
    workload: str,
    variant: str,
    options: AheadOptions,
    compiled: Any,
    rounds: int,
    choices: list[Choice],
    seconds: float,
    turns: float | None,
    length: Length,
) -> Compiled:
    """The numbers of a compiled program."""
    return Compiled(
        workload,
        variant,
        options.target,
        choice=choices[-1] if choices else None,
        reading=read(compiled.as_text(), rounds, TARGETS[options.target].host_drives),
        devices=options.devices,
        least_turns=turns,
        length=length,
        program_bytes=program_bytes(compiled),
        temporary_bytes=int(compiled.memory_analysis().temp_size_in_bytes),
        compile_seconds=seconds,
    )
