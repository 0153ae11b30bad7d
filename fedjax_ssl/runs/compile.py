"""The programs that a run compiles: its initial state, and blocks of rounds with an evaluation, also of several runs.

A program is compiled once for all runs of a process with the same code and shapes: seed and real numbers are among its
arguments. Runs together are vectorized in one program, which holds the examples once.
"""

import contextlib
import dataclasses
import gc
import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Key

from fedjax_ssl import config as configs
from fedjax_ssl import federated
from fedjax_ssl.backend import backend
from fedjax_ssl.config import ConfigError, ConfigNote, naming
from fedjax_ssl.data import FederatedData, LoadedInputs
from fedjax_ssl.federated import VECTORIZED_RUNS, Choice, Execution, Method, ServerState
from fedjax_ssl.federated.memory import FittingProgram, bytes_of, bytes_to_come, device_memory, is_out_of_memory
from fedjax_ssl.federated.method import Metrics
from fedjax_ssl.runs.build import Experiment, Report, build_method
from fedjax_ssl.runs.files import plain_value
from fedjax_ssl.runs.rounds import run_block
from fedjax_ssl.runs.sizes import check_bytes, check_state, counting, sizes_of

PyTree = Any
_EVERYWHERE = PartitionSpec()
# Passes of XLA's that rewrite loops, a bit in each of up to 16 turns of all passes. On CPUs nothing was slower without.
_LEFT_OUT = (
    *("simplify-while-loops", "while-loop-invariant-code-motion", "while-loop-constant-sinking"),
    "reshape-mover",
)
# Sections and fields of a config that no compiled code depends on: shapes and arrays tell what comes of them.
NOT_CODE = (
    *("seed", "partition", "supervision", "prediction", "distributed", "checkpoint_every", "select_from"),
    *("early_stopping", "profile", "tracking"),
)


class OutOfMemory(ConfigError):
    """The device has not enough memory for a round."""


class Inputs(NamedTuple):
    """What a run's programs are given beside its state."""

    numbers: dict[str, Array]  # settings by dotted names of fields
    key: Key[Array, ""]
    federation: FederatedData


class Code(NamedTuple):
    """What a run compiles, but for shapes."""

    name: str  # runs with the same name have the same code
    build: Callable[[Mapping[str, Array], FederatedData, Report | None, int | None], Method]
    # ^ (numbers, federation, told of placements, clients at once or None as the config says) -> method; may be traced
    mesh: Mesh | None = None  # devices that share a run
    on_host: bool = False  # rounds call host functions and cannot be traced
    metrics: tuple[str, ...] = ()  # beside accuracy, see `fedjax_ssl.federated.evaluate`
    sizes: Mapping[str, int] = MappingProxyType({})  # settings that may be too large for the memory, see `sizes_of`
    memory: int | None = None  # bytes of the device that clients at once are to fill; None: their number is given


def code_of(experiment: Experiment, execution: Execution, method: Method) -> Code:
    """The code of a run.

    Args:
        experiment: config and dataset.
        execution: of a federation that is not traced.
        method: with the numbers as they are, which stay so where its rounds call host functions.
    """
    dataset = experiment.dataset
    parts = [static_part(experiment.config), dataset.input_max, dataset.mean, dataset.std]
    digest = hashlib.sha256(repr(parts).encode())
    for leaf in jax.tree.leaves(execution.everyone):  # their sizes decide the placement
        digest.update(np.ascontiguousarray(leaf).tobytes())

    def build(
        numbers: Mapping[str, Array],
        federation: FederatedData,
        report: Report | None = None,
        clients_at_once: int | None = None,
    ) -> Method:
        how = execution if clients_at_once is None else execution._replace(chunk_size=clients_at_once)
        return method if method.on_host else build_method(experiment, federation, numbers, report, how)

    config, several = experiment.config, execution.placement in ("auto", "chunked", "lanes")
    memory = device_memory() if several and execution.chunk_size is None and backend() != "cpu" else None
    metrics = tuple(config.metrics)
    return Code(digest.hexdigest(), build, execution.mesh, method.on_host, metrics, sizes_of(config), memory)


def inputs_of(config: Any, key: Key[Array, ""], federation: FederatedData) -> Inputs:
    """The inputs of a run.

    Args:
        config: resolved.
        key: of the run.
        federation: drawn from the key.
    """
    numbers = {name: jnp.asarray(value) for name, value in configs.traced_numbers(config).items()}
    return Inputs(numbers, key, federation)


def static_part(config: Any) -> str:
    """The part of a resolved config that decides the code of its programs, as text."""
    fields = {name: value for name, value in config.to_dict().items() if name not in NOT_CODE}
    for field in configs.traced_numbers(config):
        section, _, name = field.partition(".")
        fields[section][name] = "an argument"
    return json.dumps(plain_value(fields), sort_keys=True)


class Around(NamedTuple):
    """What somebody who watches a block does around it."""

    compiling: Callable[[], None] = lambda: None  # before a program is compiled
    running: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext  # while it runs


class Programs:
    """Compiled programs by code and shapes, each compiled when it is first needed and timed apart from running."""

    def __init__(self) -> None:
        self._compiled: dict[tuple[Hashable, ...], tuple[Callable[..., Any], list[Choice]]] = {}
        self._templates: dict[tuple[Hashable, ...], ServerState] = {}

    @property
    def count(self) -> int:
        """Programs of rounds that were compiled so far."""
        return sum(what == "rounds" for (what, *_) in self._compiled)

    def choices(self, code: Code) -> list[Choice]:
        """How clients were placed when the programs of this code were traced."""
        return [
            choice for (_, name, *_), (_, choices) in self._compiled.items() if name == code.name for choice in choices
        ]

    def template(self, code: Code, inputs: Inputs) -> ServerState:
        """Shapes and types of a state."""
        key = ("template", code.name, *described(inputs))
        if key not in self._templates:
            with naming("method"), counting(code.sizes):
                self._templates[key] = jax.eval_shape(_init(code), *_shapes(inputs))
            check_state(self._templates[key], code.sizes)
        return self._templates[key]

    def init(self, code: Code, inputs: Inputs) -> ServerState:
        """The state before round 0."""
        key = ("init", code.name, *described(inputs))
        if key not in self._compiled:
            self._compiled[key] = jax.jit(_init(code)).lower(*_shapes(inputs)).compile(), []
        return self._compiled[key][0](*inputs)

    def advance(
        self,
        code: Code,
        states: Sequence[ServerState],
        inputs: Sequence[Inputs],
        rounds: int,
        around: Around | None = None,
    ) -> tuple[list[dict[str, Any]], list[ServerState], float, float]:
        """Runs rounds and an evaluation of one run, or of several that are at the same round and have the same code.

        Args:
            code: of the runs.
            states: their states, which the new ones replace in memory.
            inputs: of each run, with the same shapes.
            rounds: of the block.
            around: is told what happens.

        Returns:
            (a row of metrics and the new state of each run, seconds of compiling, seconds of running). In a row, what
            is known by client is an array.

        Raises:
            ConfigError: a setting that a method checks only when it is traced, or not enough memory.
        """
        around = around or Around()
        begin = time.perf_counter()
        program, arguments = self.compile(code, states, inputs, rounds, around.compiling)
        compiled = time.perf_counter()
        with around.running(), _explaining_memory(code.sizes):
            after, metrics = program(*arguments)
            found = {name: np.asarray(value) for name, value in federated.to_numbers(jax.device_get(metrics)).items()}
        elapsed = time.perf_counter() - compiled
        rows = [
            {name: _plain(value if len(states) == 1 else value[place]) for name, value in found.items()}
            for place in range(len(states))
        ]
        for row in rows:
            row["seconds"] = elapsed / len(states)
            row["client_updates_per_second"] = row["clients"] / row["seconds"]
        return rows, list(after) if len(states) > 1 else [after], compiled - begin, elapsed

    def compile(
        self,
        code: Code,
        states: Sequence[ServerState],
        inputs: Sequence[Inputs],
        rounds: int,
        compiling: Callable[[], None] = lambda: None,
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The program of `advance`, and its arguments; of the states only shapes are used.

        Args:
            code: of the runs.
            states: their states.
            inputs: of each run.
            rounds: of the block.
            compiling: is called before something is compiled.
        """
        if code.on_host:
            (one,) = inputs
            return block_of(code, rounds), (states[0], *one)
        arguments = (states[0], *inputs[0]) if len(states) == 1 else _together(states, inputs)
        key = ("rounds", code.name, rounds, len(states), *described(arguments))
        if key not in self._compiled:
            compiling()
            compile_for = _compiler(code, arguments, rounds, len(states))
            if code.memory is None:
                self._compiled[key] = compile_for(None)
            else:
                with _explaining_memory(code.sizes):
                    to_come = sum(bytes_to_come(one.federation.inputs) for one in inputs)
                    fitting = FittingProgram(compile_for, code.memory - to_come, _note)
                self._compiled[key] = fitting, fitting.choices
        return self._compiled[key][0], arguments


def _compiler(
    code: Code, arguments: tuple[Any, ...], rounds: int, runs: int
) -> Callable[[int | None], tuple[Callable[..., Any], list[Choice]]]:
    """Clients at once -> the program of a block of rounds, and how its clients are placed."""

    def compile_for(clients_at_once: int | None) -> tuple[Callable[..., Any], list[Choice]]:
        choices: list[Choice] = []
        block = block_of(code, rounds, choices.append, clients_at_once)
        return _compile(block if runs == 1 else _vectorized(block), arguments, code), choices

    return compile_for


def _note(text: str) -> None:
    warnings.warn(text, ConfigNote, stacklevel=2)


def _plain(value: np.ndarray) -> Any:
    return value.item() if value.ndim == 0 else value


def _init(code: Code) -> Callable[..., ServerState]:
    def init(numbers: Mapping[str, Array], key: Key[Array, ""], federation: FederatedData) -> ServerState:
        return code.build(numbers, federation, None, None).init(key, federation)

    return init


def block_of(
    code: Code, rounds: int, report: Report | None = None, clients_at_once: int | None = None
) -> Callable[..., tuple[ServerState, Metrics]]:
    """The function that `Programs.compile` compiles for one run.

    Args:
        code: of the run.
        rounds: of the block.
        report: is told how clients are placed.
        clients_at_once: on a device; None: as the config says.

    Returns:
        (state, numbers, key, federation) -> (state, metrics).
    """

    def block(
        state: ServerState, numbers: Mapping[str, Array], key: Key[Array, ""], federation: FederatedData
    ) -> tuple[ServerState, Metrics]:
        return run_block(
            code.build(numbers, federation, report, clients_at_once), state, key, federation, rounds, code.metrics
        )

    return block


def _together(states: Sequence[ServerState], inputs: Sequence[Inputs]) -> tuple[Any, ...]:
    """The arguments of a program for several runs; examples that they share are given once."""
    first = inputs[0].federation.inputs
    shared = all(one.federation.inputs is first for one in inputs)
    numbers = {name: jnp.stack([one.numbers[name] for one in inputs]) for name in inputs[0].numbers}
    own = [(one.key, _with_examples(one.federation, None) if shared else one.federation) for one in inputs]
    return tuple(states), numbers, own, first if shared else None


def _vectorized(block: Callable[..., tuple[ServerState, Metrics]]) -> Callable[..., tuple[Any, Metrics]]:
    def run(states: tuple, numbers: Any, own: Any, examples: Array | None) -> tuple[tuple, Metrics]:
        def one(state: ServerState, numbers: Any, own: Any) -> tuple[ServerState, Metrics]:
            key, federation = own
            if examples is not None:
                federation = _with_examples(federation, examples)
            return block(state, numbers, key, federation)

        stacked, own = (jax.tree.map(lambda *leaves: jnp.stack(leaves), *several) for several in (states, own))
        # All are at the same round, so that only the stage that this round is in is computed.
        in_turn: dict[str, Any] = dict.fromkeys(ServerState._fields, 0)
        axes = ServerState(**in_turn | {"round": None})
        stacked = stacked._replace(round=states[0].round)
        after, metrics = jax.vmap(one, (axes, 0, 0), (axes, 0), axis_name=VECTORIZED_RUNS)(stacked, numbers, own)
        return tuple(_row(after, place) for place in range(len(states))), metrics

    return run


def _with_examples(federation: FederatedData, examples: Any) -> FederatedData:
    return dataclasses.replace(federation, inputs=examples)


def _row(states: ServerState, place: int) -> ServerState:
    """One of several states, which have the round in common."""
    return ServerState(
        *(
            one if name == "round" else jax.tree.map(lambda leaf: leaf[place], one)
            for name, one in states._asdict().items()
        )
    )


def _compile(function: Callable[..., Any], arguments: tuple[Any, ...], code: Code) -> Callable[..., Any]:
    placed: dict[str, Any] = {}
    if code.mesh is not None:
        # Whole on every device: otherwise a process could not read what lies on those of another one.
        placed = {"in_shardings": _places(arguments, code.mesh), "out_shardings": NamedSharding(code.mesh, _EVERYWHERE)}
    with naming("method"), counting(code.sizes), _without_collection():
        # Traced without their places: what local training reads of them would clash with the places that
        # `shard_map` gives to the clients.
        traced = jax.jit(function, donate_argnums=0, **placed).trace(*_shapes(arguments))
        lowered = traced.lower()
    # Where the device says itself that it is too small, fewer clients at once may help.
    with contextlib.nullcontext() if code.memory else _explaining_memory(code.sizes):
        program = compiled_program(lowered)
    if backend() == "cpu":  # which says nothing: the process ends
        check_bytes(bytes_of(program), "a round", code.sizes)
    return program


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Nothing is searched for garbage meanwhile: tracing makes millions of objects, which stay."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def compiled_program(lowered: jax.stages.Lowered) -> Callable[..., Any]:
    """The program, compiled as a run's programs are."""
    try:
        return lowered.compile(compiler_options=compiler_options())
    except jax.errors.JaxRuntimeError as error:
        if "opt-barrier" not in str(error):
            raise
        # XLA writes a loop over a handful of numbers as one kernel, and cannot write a barrier within.
        return lowered.compile(compiler_options=compiler_options(barriers=False))


def compiler_options(barriers: bool = True) -> dict[str, Any]:
    """What XLA is told for a run's programs: on CPUs to have less to compile and to use AVX-512 (docs/design-notes.md).

    LLVM optimizes less, loops are not rewritten, and barriers stay until operations were put together to kernels, as on
    accelerators, see `fedjax_ssl.federated.apart`. Vectors have 512 bits where the processor has them, not 256 as by
    XLA's default. What is named in $XLA_FLAGS stays as it is there.

    Args:
        barriers: whether barriers are to stay.
    """
    if backend() != "cpu":
        return {}
    left_out = [*_LEFT_OUT, "cse_barrier_expander"] if barriers else _LEFT_OUT
    options: dict[str, Any] = {
        "xla_backend_optimization_level": 1,
        "xla_cpu_prefer_vector_width": 512,
        "xla_disable_hlo_passes": ",".join(left_out),
    }
    return {name: value for name, value in options.items() if name not in os.environ.get("XLA_FLAGS", "")}


def _places(arguments: PyTree, mesh: Mesh) -> PyTree:
    """Whole on every device, but for examples of which each has its own."""

    def apart(part: Any) -> bool:
        return isinstance(part, LoadedInputs) and part.mesh is not None

    found = jax.tree.map(lambda part: part.specs() if apart(part) else _EVERYWHERE, arguments, is_leaf=apart)
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), found)


def _shapes(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Shapes to trace with; numbers, the argument that is a dictionary, take on other types as Python's do."""

    def shapes(argument: Any) -> Any:
        weak = isinstance(argument, dict)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=weak), argument)

    return tuple(map(shapes, arguments))


def described(tree: PyTree) -> tuple[Hashable, ...]:
    """Structure, shapes and types of a tree of arrays."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)


@contextlib.contextmanager
def _explaining_memory(sizes: Mapping[str, int]) -> Iterator[None]:
    """Says which settings to lower where a device has not enough memory."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        if "shared memory" in str(error).lower():  # of a multiprocessor: no setting of the run is too large
            raise ConfigError(
                "a kernel of XLA's products needs more shared memory than this GPU has. "
                f"XLA_FLAGS=--xla_gpu_enable_triton_gemm=false goes without them. ({str(error).splitlines()[0]})"
            ) from error
        large = ", ".join(f"config.{name} ({value})" for name, value in sizes.items())
        raise OutOfMemory(
            f"the device has not enough memory for a round. Lower {f'{large}, ' * bool(large)}config.federated."
            "chunk_size (clients at once, which the run chooses where it is not given; with placement 'chunked' or "
            "'lanes'), config.optimizer.batch_size or config.federated.cohort_size, try --config.precision=bf16, or "
            "share the cohort with --config.federated.devices; where examples fill the device, leave them on the host "
            f"with --config.data.residence=host. ({str(error).splitlines()[0]})"
        ) from error
