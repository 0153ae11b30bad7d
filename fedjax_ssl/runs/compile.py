"""The programs of runs: the state before the first round, and blocks of rounds with the evaluation
after them.

A program is compiled once for all runs of a process with the same code and shapes: seed and real
numbers are among its arguments. Runs of one code can be vectorized in one program, which holds the
examples once.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Key

from fedjax_ssl import config as configs
from fedjax_ssl import data, federated, processor
from fedjax_ssl.backend import backend
from fedjax_ssl.config import ConfigError, naming
from fedjax_ssl.data import FederatedData, LoadedInputs
from fedjax_ssl.data.federation.federated_data import of_one_shape
from fedjax_ssl.errors import note
from fedjax_ssl.federated import (
    VECTORIZED_RUNS,
    Choice,
    Execution,
    Method,
    ServerState,
    device_memory,
    tree_bytes,
)
from fedjax_ssl.federated.memory import FittingProgram, bytes_of, bytes_to_come, is_out_of_memory
from fedjax_ssl.federated.method import Metrics
from fedjax_ssl.folder.files import bytes_in_words, plain_value
from fedjax_ssl.prediction import one_shot
from fedjax_ssl.runs.build import (
    Experiment,
    Report,
    build_method,
    execution_of,
    federate,
    load_resolved,
)
from fedjax_ssl.runs.devices import start_processor
from fedjax_ssl.runs.residence import on_host, why_not_on_host
from fedjax_ssl.runs.rounds import run_block

PyTree = Any
# Passes of XLA's that rewrite loops, a bit in each of up to 16 turns of all passes. On CPUs nothing
# was slower without.
_LEFT_OUT = (
    *("simplify-while-loops", "while-loop-invariant-code-motion", "while-loop-constant-sinking"),
    "reshape-mover",
)
# Sections and fields of a config that no compiled code depends on: shapes and arrays tell what
# comes of them.
NOT_CODE = (
    *(
        "seed",
        "partition",
        "supervision",
        "prediction",
        "distributed",
        "checkpoint_every",
        "select_from",
    ),
    *("early_stopping", "profile", "save_clients", "test_predictions", "tracking", "start_from"),
)
_LOWER = (
    "config.federated.chunk_size (clients at once, which the run chooses where it is not given; "
    "with placement 'chunked' or 'lanes'), config.optimizer.batch_size, "
    "config.federated.cohort_size or the model, try --config.precision=bf16, do not keep the "
    "state of local optimizers (config.optimizer.keep_state), or share the cohort with "
    "--config.federated.devices; where examples fill the device, leave them on the host with "
    "--config.data.residence=host, with a smaller config.eval_every"
)


class OutOfMemory(ConfigError):
    """The device has not enough memory for a round."""


class Inputs(NamedTuple):
    """The arguments of a run's programs beside its state."""

    numbers: dict[str, Array]  # settings by dotted names of fields
    key: Key[Array, ""]
    federation: FederatedData


class Prepared(NamedTuple):
    """A run that is ready to be compiled: data drawn, method built.

    Attributes:
        experiment: config and dataset.
        execution: how clients are placed on devices.
        method: built with the numbers of the config; in programs these are arguments.
        inputs: arguments of its programs.
        code: digest; runs with the same one have the same programs, but for shapes.
        memory: bytes of the device that clients at once are to fill; None where their number is
            given.
    """

    experiment: Experiment
    execution: Execution
    method: Method
    inputs: Inputs
    code: str
    memory: int | None

    def method_of(
        self,
        numbers: Mapping[str, Array],
        federation: FederatedData,
        report: Report | None = None,
        clients_at_once: int | None = None,
    ) -> Method:
        """Build the method inside a program, of traced numbers; one that calls the host stays as
        it is.
        """
        if self.method.on_host:
            return self.method
        how = self.execution
        how = how if clients_at_once is None else how._replace(chunk_size=clients_at_once)
        return build_method(self.experiment, federation, numbers, report, how)

    def init(
        self,
        numbers: Mapping[str, Array],
        key: Key[Array, ""],
        federation: FederatedData,
        *,
        start: bool = False,
    ) -> ServerState:
        """Make the state before the first round; to be compiled."""
        method = self.method_of(numbers, federation)
        if start:
            method = build_method(
                self.experiment, federation, numbers, None, self.execution, start=True
            )
        return method.init(key, federation)

    def block(
        self,
        rounds: int,
        report: Report | None = None,
        clients_at_once: int | None = None,
        saved: int | None = None,
    ) -> Callable[..., tuple[ServerState, Metrics]]:
        """Give the function of (state, numbers, key, federation) that runs a block, see
        `run_block`.
        """

        def block(
            state: ServerState,
            numbers: Mapping[str, Array],
            key: Key[Array, ""],
            federation: FederatedData,
        ) -> tuple[ServerState, Metrics]:
            method = self.method_of(numbers, federation, report, clients_at_once)
            if saved:
                at_once = self.execution.chunk_size if clients_at_once is None else clients_at_once
                how = self.execution._replace(chunk_size=at_once, report=report, keep_models=True)
                method = federated.execute(method, how)
            return run_block(
                method, state, key, federation, rounds, self.experiment.config.metrics, saved
            )

        return block


def prepare(experiment: Experiment, federation: FederatedData) -> Prepared:
    """Build the method of an experiment and gather the arguments of its programs.

    Args:
        experiment: config and dataset.
        federation: drawn from the seed of the config; not traced.

    Raises:
        ConfigError: a setting cannot be used.
    """
    config = experiment.config
    dataset = experiment.dataset
    one_shot.check(config, federation)
    with naming("data, config.partition or config.supervision"):
        data.validate(federation, truth_required=not configs.predictors(config))
    execution = execution_of(experiment, federation, alone=True)
    method = build_method(experiment, federation, execution=execution)
    parts = [static_part(config), dataset.input_max, dataset.mean, dataset.std]
    digest = hashlib.sha256(repr(parts).encode())
    for leaf in jax.tree.leaves(execution.all_clients):  # their sizes decide the placement
        digest.update(np.ascontiguousarray(leaf).tobytes())
    numbers = {name: jnp.asarray(value) for name, value in configs.traced_numbers(config).items()}
    several = execution.placement in ("auto", "chunked", "lanes") and execution.chunk_size is None
    memory = device_memory() if several and backend() != "cpu" else None
    inputs = Inputs(numbers, jax.random.key(config.seed), federation)
    return Prepared(experiment, execution, method, inputs, digest.hexdigest(), memory)


def static_part(config: Any) -> str:
    """Give the part of a resolved config that decides the code of its programs, as text."""
    fields = {name: value for name, value in config.to_dict().items() if name not in NOT_CODE}
    for field in configs.traced_numbers(config):
        section, _, name = field.partition(".")
        fields[section][name] = "an argument"
    return json.dumps(plain_value(fields), sort_keys=True)


class Shared:
    """Loads, draws and compiles once what the runs of a process have in common.

    The dataset of the last run is kept, with the federations that were drawn from it: these share
    its examples.

    Example:
        >>> from fedjax_ssl.runs import Shared, run
        >>> shared = Shared()
        >>> for seed in range(3):  # compiles once
        ...     config.seed = seed
        ...     run(config, f"runs/{seed}", shared=shared)  # doctest: +SKIP
    """

    def __init__(self, own_process: bool = False) -> None:
        """Begin with nothing.

        Args:
            own_process: nothing but runs of one program is computed in this process, which is set
                up for them.
        """
        self._own_process = own_process
        self._dataset: tuple[str, Experiment] | None = None
        self._federations: dict[str, FederatedData] = {}
        self._pictures: dict[str, bytes] = {}
        self._templates: dict[tuple[Hashable, ...], ServerState] = {}
        self._programs: dict[tuple[Any, ...], tuple[Callable[..., Any], list[Choice]]] = {}
        self._predictions: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def experiment(self, config: ml_collections.ConfigDict) -> Experiment:
        """Load the dataset of a resolved config, with its inputs where they belong; raises as
        `prepare`.
        """
        away = on_host(self._load(config))
        return away if away.host is None else self.prepare(config).experiment

    def _load(self, config: ml_collections.ConfigDict) -> Experiment:
        name = _text(config.data)
        if self._dataset is None or self._dataset[0] != name:
            self._dataset = name, load_resolved(config)
            if self._own_process:
                start_processor(config, self._dataset[1].dataset)
            self._federations = {}
            self._pictures = {}
        return self._dataset[1]._replace(config=config)

    def prepare(self, config: ml_collections.ConfigDict) -> Prepared:
        """Load, draw and build a run, with its inputs where they belong.

        Args:
            config: resolved.

        Raises:
            ConfigError: a setting cannot be used, or inputs are to stay on the host and this run
                cannot train so.
            DatasetUnavailable: the dataset is not on disk and could not be downloaded.
        """
        experiment = self._load(config)
        away = on_host(experiment)
        if away.host is not None:
            reason = why_not_on_host(config)
            if not reason:
                found = prepare(away, self.federation(away))
                reason = why_not_on_host(config, found.method, found.inputs.federation)
                if not reason:
                    return found
            if config.data.residence == "host":
                raise ConfigError(f"config.data.residence is 'host', but {reason}")
        return prepare(experiment, self.federation(experiment))

    def federation(self, experiment: Experiment) -> FederatedData:
        """Draw the federation of an experiment with the seed of its config, once."""
        name = self._name(experiment)
        if name not in self._federations:
            whole = (
                one.inputs
                for one in self._federations.values()
                if not isinstance(one.inputs, LoadedInputs)
            )
            key = jax.random.key(experiment.config.seed)
            self._federations[name] = federate(experiment, key, next(whole, None))
        return self._federations[name]

    def draw(self, experiment: Experiment, path: Path) -> None:
        """Draw the picture of a partition into a file; each one is drawn once."""
        name = self._name(experiment)
        if name not in self._pictures:
            federation = self.federation(experiment)
            dataset = experiment.dataset
            names = data.client_names(
                dataset, federation, experiment.config.partition.name == "natural"
            )
            data.plot_partition(
                federation, path, dataset.class_names, names[: federation.num_clients]
            )
            self._pictures[name] = path.read_bytes()
        else:
            path.write_bytes(self._pictures[name])

    def align(self, configs: Sequence[ml_collections.ConfigDict]) -> None:
        """Give the federations of runs tables of equal width, where that leaves the shapes of their
        states alone.

        Clients of other seeds may be larger, as with Dirichlet partitions; without this, each would
        need programs of its own. States whose shapes follow the tables are left alone, so that a
        run can go on without the others.

        Args:
            configs: resolved, of one program but for shapes.
        """
        experiments = [self.experiment(config) for config in configs]
        found = {self._name(one): self.federation(one) for one in experiments}
        if len({described(one) for one in found.values()}) == 1:
            return
        widened = dict(zip(found, of_one_shape(list(found.values())), strict=True))
        first = experiments[0]
        name = self._name(experiments[0])
        before, after = (
            jax.eval_shape(build_method(first, one).init, jax.random.key(0), one)
            for one in (found[name], widened[name])
        )
        if described(before) == described(after):
            self._federations.update(widened)

    @staticmethod
    def _name(experiment: Experiment) -> str:
        config = experiment.config
        where = "device" if experiment.host is None else "host"
        return f"{_text(config.partition)} {_text(config.supervision)} {config.seed} {where}"

    def choices(self, run: Prepared) -> list[Choice]:
        """List how clients were placed in the programs of a run's code."""
        return [
            choice
            for (code, *_), (_, choices) in self._programs.items()
            if code == run.code
            for choice in choices
        ]

    def template(self, run: Prepared) -> ServerState:
        """Give shapes and types of a run's state."""
        key = (run.code, *described(run.inputs))
        if key not in self._templates:
            with naming("method"), _explaining_memory():
                self._templates[key] = jax.eval_shape(run.init, *_shapes(run.inputs))
            _check_bytes(tree_bytes(self._templates[key]), "the state of a run")
        return self._templates[key]

    def init(self, run: Prepared) -> ServerState:
        """Make the state before the first round."""
        start = run.experiment.config.start_from
        key = (run.code, 0, start, *described(run.inputs))
        if key not in self._programs:
            init = partial(run.init, start=bool(start))
            self._programs[key] = jax.jit(init).lower(*_shapes(run.inputs)).compile(), []
        found: ServerState = self._programs[key][0](*run.inputs)
        return found

    def predict(
        self, run: Prepared, state: ServerState, client: int | None, inputs: np.ndarray
    ) -> np.ndarray:
        """Predict raw inputs by the global model, or by that of a client.

        Args:
            run: the run.
            state: on one device.
            client: its number; None: the global model.
            inputs: [n, ...]; every other n takes a program of its own.

        Returns:
            Log-probabilities [n, K].
        """
        arguments = state, run.inputs.numbers, jnp.int32(client or 0), inputs
        own = client is not None
        key = (run.code, own, *described((arguments, run.inputs)))
        if key not in self._predictions:
            federation = _shapes(run.inputs)[2]

            def predict(
                state: ServerState, numbers: Mapping[str, Array], client: Array, inputs: Array
            ) -> Array:
                method = run.method_of(numbers, federation)
                by_client = method.predict_for if own else None
                return (
                    method.predict(state, inputs)
                    if by_client is None
                    else by_client(state, client, inputs)
                )

            self._predictions[key] = compiled_program(jax.jit(predict).lower(*_shapes(arguments)))
        return np.asarray(self._predictions[key](*arguments))

    def compile(
        self,
        run: Prepared,
        states: Sequence[ServerState],
        inputs: Sequence[Inputs],
        rounds: int,
        compiling: Callable[[], None] = lambda: None,
        saved: int | None = None,
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Compile a block of rounds of one run or of several; of the states only shapes are used.

        Args:
            run: any of the runs, which have the same code.
            states: state of each run.
            inputs: inputs of each run, of the same shapes.
            rounds: length of the block.
            compiling: called before something is compiled.
            saved: round of the block, of a single run, whose clients' models its metrics are to
                have.

        Returns:
            The program, and its arguments.

        Raises:
            ConfigError: a setting that a method checks only when it is traced, or not enough
                memory.
        """
        if run.method.on_host:
            (one,) = inputs
            return run.block(rounds, saved=saved), (states[0], *one)
        arguments = (states[0], *inputs[0]) if len(states) == 1 else _together(states, inputs)
        key = (run.code, rounds, saved, len(states), *described(arguments))
        if key not in self._programs:
            compiling()

            def compile_for(clients_at_once: int | None) -> tuple[Callable[..., Any], list[Choice]]:
                choices: list[Choice] = []
                block = run.block(rounds, choices.append, clients_at_once, saved)
                return _compile(
                    block if len(states) == 1 else _vectorized(block), arguments, run
                ), choices

            with _explaining_memory():
                if run.memory is None:
                    self._programs[key] = compile_for(None)
                else:
                    to_come = sum(bytes_to_come(one.federation.inputs) for one in inputs)
                    cohort = (
                        run.experiment.config.federated.cohort_size
                        or inputs[0].federation.num_clients
                    )
                    fitting = FittingProgram(compile_for, run.memory - to_come, note, cohort)
                    self._programs[key] = fitting, fitting.choices
        return self._programs[key][0], arguments

    def advance(
        self,
        run: Prepared,
        states: Sequence[ServerState],
        inputs: Sequence[Inputs],
        rounds: int,
        compiling: Callable[[], None] = lambda: None,
        running: Callable[[Any], contextlib.AbstractContextManager] = contextlib.nullcontext,
        saved: int | None = None,
    ) -> tuple[list[dict[str, Any]], list[ServerState], float, float]:
        """Run a block of rounds and its evaluation, of one run or of several that are at the same
        round.

        Args:
            run: as for `compile`, which says what is raised.
            states: state of each run; the new ones take their memory.
            inputs: as for `compile`.
            rounds: length of the block.
            compiling: called before something is compiled.
            running: is given the program, and gives a context in which the block runs.
            saved: as for `compile`.

        Returns:
            (a row of metrics and the new state of each run, seconds of compiling, seconds of
            running). A metric by client is an array, `CLIENT_MODELS` a tree of arrays for each of
            the saved rounds.
        """
        begin = time.perf_counter()
        program, arguments = self.compile(run, states, inputs, rounds, compiling, saved)
        compiled = time.perf_counter()
        with running(program), _explaining_memory():
            after, metrics = program(*arguments)
            models = jax.device_get(metrics.pop(federated.CLIENT_MODELS, None))
            found = {
                name: np.asarray(value)
                for name, value in federated.to_numbers(jax.device_get(metrics)).items()
            }
            elapsed = time.perf_counter() - compiled
            count = len(states)
        rows = [
            {name: _plain(one if count == 1 else one[at]) for name, one in found.items()}
            for at in range(count)
        ]
        if saved:
            rows[0][federated.CLIENT_MODELS] = models
        for row in rows:
            row["seconds"] = elapsed / count
            row["client_updates_per_second"] = row["clients"] / row["seconds"]
        return rows, list(after) if count > 1 else [after], compiled - begin, elapsed


def _text(section: Any) -> str:
    return json.dumps(plain_value(section.to_dict()), sort_keys=True)


def _plain(value: np.ndarray) -> Any:
    return value.item() if value.ndim == 0 else value


def _together(states: Sequence[ServerState], inputs: Sequence[Inputs]) -> tuple[Any, ...]:
    """Gather the arguments of a program for several runs; examples that they share are given
    once.
    """
    first = inputs[0].federation.inputs
    shared = all(one.federation.inputs is first for one in inputs)
    numbers = {name: jnp.stack([one.numbers[name] for one in inputs]) for name in inputs[0].numbers}
    own = [(with_examples(one, None) if shared else one)[1:] for one in inputs]
    return tuple(states), numbers, own, first if shared else None


def _vectorized(
    block: Callable[..., tuple[ServerState, Metrics]],
) -> Callable[..., tuple[Any, Metrics]]:
    def run(states: tuple, numbers: Any, own: Any, examples: Array | None) -> tuple[tuple, Metrics]:
        def one(state: ServerState, numbers: Any, own: Any) -> tuple[ServerState, Metrics]:
            key, federation = own
            if examples is not None:
                federation = dataclasses.replace(federation, inputs=examples)
            return block(state, numbers, key, federation)

        stacked, own = (
            jax.tree.map(lambda *leaves: jnp.stack(leaves), *several) for several in (states, own)
        )
        # All are at the same round, so that only the stage that this round is in is computed.
        in_turn: dict[str, Any] = dict.fromkeys(ServerState._fields, 0)
        axes = ServerState(**in_turn | {"round": None})
        stacked = stacked._replace(round=states[0].round)
        after, metrics = jax.vmap(one, (axes, 0, 0), (axes, 0), axis_name=VECTORIZED_RUNS)(
            stacked, numbers, own
        )
        own_fields = {name: value for name, value in after._asdict().items() if name != "round"}
        rows = [
            jax.tree.map(lambda leaf, place=place: leaf[place], own_fields)
            for place in range(len(states))
        ]
        return tuple(ServerState(round=after.round, **row) for row in rows), metrics

    return run


def with_examples(inputs: Inputs, examples: Any) -> Inputs:
    """Give inputs with other examples, for instance those that a block of rounds needs."""
    return inputs._replace(federation=dataclasses.replace(inputs.federation, inputs=examples))


def _compile(
    function: Callable[..., Any], arguments: tuple[Any, ...], run: Prepared
) -> Callable[..., Any]:
    placed: dict[str, Any] = {}
    if (mesh := run.execution.mesh) is not None:
        # Whole on every device: otherwise a process could not read what lies on those of another
        # one.
        whole = NamedSharding(mesh, PartitionSpec())

        def apart(part: Any) -> bool:  # of such examples each device has its own
            return isinstance(part, LoadedInputs) and part.mesh is not None

        specs = jax.tree.map(
            lambda part: part.specs() if apart(part) else whole.spec, arguments, is_leaf=apart
        )
        placed["in_shardings"] = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
        placed["out_shardings"] = whole
    with naming("method"):
        # Traced without their places: what local training reads of them would clash with the places
        # that `shard_map` gives to the clients.
        lowered = jax.jit(function, donate_argnums=0, **placed).lower(*_shapes(arguments))
    program = compiled_program(lowered)
    if backend() == "cpu":  # which says nothing: the process ends
        _check_bytes(bytes_of(program), "a round")
    return program


def compiled_program(lowered: jax.stages.Lowered) -> Callable[..., Any]:
    """Compile a program as a run's programs are compiled."""
    try:
        return lowered.compile(compiler_options=compiler_options())
    except jax.errors.JaxRuntimeError as error:
        if "opt-barrier" not in str(error):
            raise
        # XLA writes a loop over a handful of numbers as one kernel, and cannot write a barrier
        # within.
        return lowered.compile(compiler_options=compiler_options(barriers=False))


def compiler_options(barriers: bool = True) -> dict[str, Any]:
    """Give XLA's options: on CPUs to have less to compile and to use AVX-512
    (docs/design-notes.md).

    LLVM optimizes less, loops are not rewritten, and barriers stay until operations were put
    together to kernels, as on accelerators, see `fedjax_ssl.federated.packing`. Vectors have 512
    bits where the processor has them, not 256 as by XLA's default. What is named in $XLA_FLAGS
    stays as it is there.

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
    return {
        name: value
        for name, value in options.items()
        if name not in os.environ.get("XLA_FLAGS", "")
    }


def _shapes(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Give shapes to trace with; numbers, the argument that is a dictionary, take on other types
    as Python's do.
    """

    def shapes(argument: Any) -> Any:
        weak = isinstance(argument, dict)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=weak), argument
        )

    return tuple(map(shapes, arguments))


def described(tree: PyTree) -> tuple[Hashable, ...]:
    """Give structure, shapes and types of a tree of arrays."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)


def _check_bytes(needed: int, what: str) -> None:
    """Raise OutOfMemory for what no memory of this machine or device holds."""
    memory = processor.memory() if backend() == "cpu" else device_memory()
    if memory is not None and needed > memory:
        raise OutOfMemory(
            f"{what} would need {bytes_in_words(needed)}, and the memory has "
            f"{bytes_in_words(memory)}. Lower {_LOWER}."
        )


@contextlib.contextmanager
def _explaining_memory() -> Iterator[None]:
    """Say which settings to lower where a device has not enough memory."""
    try:
        yield
    except OverflowError as error:
        what = "a round would need arrays of more elements than can be counted"
        raise OutOfMemory(f"{what}. Lower {_LOWER}. ({str(error).splitlines()[0]})") from error
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        said = f"({str(error).splitlines()[0]})"
        # of a multiprocessor: no setting of the run is too large
        if "shared memory" in said.lower():
            raise ConfigError(
                "a kernel of XLA's products needs more shared memory than this GPU has. "
                f"XLA_FLAGS=--xla_gpu_enable_triton_gemm=false goes without them. {said}"
            ) from error
        raise OutOfMemory(
            f"the device has not enough memory for a round. Lower {_LOWER}. {said}"
        ) from error
