"""The programs of runs: the state before the first round, and blocks of rounds with an evaluation
after each.

A program is compiled once for all runs of a process with the same code and shapes: random seed and
real numbers are arguments. Runs with the same code can be vectorized in one program, with a single
copy of the examples.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Key

from fedjax_ssl import config as configs
from fedjax_ssl import data, federated, processor
from fedjax_ssl.backend import backend
from fedjax_ssl.config import ConfigError, naming
from fedjax_ssl.data import FederatedData, LoadedInputs
from fedjax_ssl.errors import note
from fedjax_ssl.federated import (
    VECTORIZED_RUNS,
    Choice,
    Method,
    ServerState,
    device_memory,
    tree_bytes,
)
from fedjax_ssl.federated.contract import Metrics
from fedjax_ssl.federated.memory import FittingProgram, bytes_of, bytes_to_come, is_out_of_memory
from fedjax_ssl.folder.files import bytes_in_words, plain_value
from fedjax_ssl.folder.folder_lock import flat_config
from fedjax_ssl.registry import CHANGES
from fedjax_ssl.runs.build import (
    Built,
    Start,
    build_method,
    cohort_size_of,
    round_key,
)
from fedjax_ssl.runs.compiler import compiled_program
from fedjax_ssl.runs.first_weights import start_of
from fedjax_ssl.runs.rounds import run_block

PyTree = Any
_LOWER = (
    "config.federated.chunk_size (clients at once, which the run chooses where it is not given; "
    "with placement 'chunked' or 'lanes'), config.optimizer.batch_size, "
    "config.federated.cohort_size or the model, try --config.precision=bf16, do not keep the "
    "state of local optimizers (config.optimizer.keep_state), or share the cohort with "
    "--config.federated.devices; where examples fill the device, leave them on the host with "
    "--config.data.residence=host, with a smaller config.eval_every"
)


class OutOfMemory(ConfigError):
    """The device has too little memory for a round."""


class Inputs(NamedTuple):
    """The arguments of a run's programs besides its state."""

    numbers: dict[str, Array]  # settings by dotted names of fields
    key: Key[Array, ""]
    federation: FederatedData


class Advanced(NamedTuple):
    """Results of a block of rounds.

    Attributes:
        rows: metrics of each run. A metric by client is an array.
        states: new state of each run.
        models: the models of the clients of the saved round, if any.
        compiling: seconds of compiling.
        training: seconds of the rounds and the evaluation.
    """

    rows: list[dict[str, Any]]
    states: list[ServerState]
    models: Any
    compiling: float
    training: float


def static_part(config: Any) -> str:
    """Return the part of a resolved config that decides the code of its programs, as text."""
    declared = configs.options_of(config)
    fields = {
        name: value
        for name, value in flat_config(plain_value(config.to_dict())).items()
        if CHANGES[declared[name].changes].program
    }
    if config.privacy.name != "none":
        fields["start_from"] = config.start_from  # earlier privacy costs decide the noise
    fields |= dict.fromkeys(configs.traced_numbers(config), "an argument")
    return json.dumps(fields, sort_keys=True)


class Program:
    """The compiled functions of a run: `init`, `advance` and `predict`.

    Each is compiled at its first call, once for all runs of the process with the same code and
    shapes.

    Attributes:
        built: dataset, federation and method of the run.
        inputs: arguments of its functions besides the state.
        code: digest; runs with the same digest have the same functions, except for shapes.
    """

    def __init__(
        self,
        built: Built,
        compiled: dict[tuple[Hashable, ...], Any] | None = None,
        key: Key[Array, ""] | None = None,
        numbers: Mapping[str, Array] | None = None,
    ):
        """Prepare the functions; nothing is compiled yet.

        Args:
            built: parts of the run, not traced.
            compiled: programs that other runs of the process compiled; none by default.
            key: key of the run; by default that of the config's seed.
            numbers: values that replace fields of the config, by dotted name.
        """
        config = built.experiment.config
        dataset = built.experiment.dataset
        execution = built.execution
        self.built = built
        self._compiled = {} if compiled is None else compiled
        values = configs.traced_numbers(config) | dict(numbers or {})
        self.inputs = Inputs(
            {name: jnp.asarray(value) for name, value in values.items()},
            round_key(config, jax.random.key(config.seed) if key is None else key),
            built.federation,
        )
        parts = [static_part(config), dataset.input_max, dataset.mean, dataset.std]
        if execution.all_clients is not None:
            samplers = [training.sampler for training in built.method.recipe.trainings]
            parts += federated.decided_by_sizes(samplers, execution.all_clients)
        self.code = hashlib.sha256(repr(parts).encode()).hexdigest()
        several = execution.placement in ("auto", "chunked", "lanes")
        fits = several and execution.chunk_size is None and backend() != "cpu"
        # Bytes of the device for clients at once; None if their number is given.
        self._memory = device_memory() if fits else None

    @functools.cached_property
    def split(self) -> str:
        """Hash of the split that the run trains on."""
        return data.split_hash(self.built.experiment.dataset, self.built.federation)

    def _once(self, make: Callable[[], Any], kind: str, *shapes: Hashable) -> Any:
        key = (kind, self.code, *shapes)
        if key not in self._compiled:
            self._compiled[key] = make()
        return self._compiled[key]

    def _method(
        self,
        numbers: Mapping[str, Array],
        federation: FederatedData,
        start: Start | None = None,
        **more: Any,
    ) -> Method:
        """Build the method inside a program, from traced numbers; a method that calls the host is
        not traced.

        Args:
            numbers: settings by dotted names of fields.
            federation: federation, traced too.
            start: as for `build`.
            **more: fields of the execution that replace those of the run.
        """
        execution = self.built.execution._replace(**more)
        if self.built.method.recipe.on_host and start is None:
            return federated.execute(self.built.method, execution) if more else self.built.method
        experiment = self.built.experiment
        account = self.built.account
        return build_method(experiment, federation, execution, account, numbers, start=start)

    def _init(self, start: Start | None) -> Callable[..., ServerState]:
        def init(numbers: Any, key: Key[Array, ""], federation: FederatedData) -> ServerState:
            return self._method(numbers, federation, start).init(key, federation)

        return init

    def _traced_init(self) -> Any:
        def trace() -> Any:
            with naming("method"), _explaining_memory():
                start = start_of(self.built.experiment)
                traced = jax.jit(self._init(start)).trace(*_shapes(self.inputs))
            _check_bytes(tree_bytes(traced.out_info), "the state of a run")
            return traced

        place = self.built.experiment.config.start_from
        return self._once(trace, "init, traced", place, *described(self.inputs))

    def template(self) -> ServerState:
        """Return shapes and types of the run's state."""
        found: ServerState = self._traced_init().out_info
        return found

    def init(self) -> ServerState:
        """Make the state before the first round, with the weights that the config starts from."""
        compiled = self._once(
            lambda: compiled_program(self._traced_init().lower()),
            "init",
            self.built.experiment.config.start_from,
            *described(self.inputs),
        )
        found: ServerState = compiled(*self.inputs)
        return found

    def predict(self, state: ServerState, client: int | None, inputs: np.ndarray) -> np.ndarray:
        """Predict raw inputs by the global model, or by that of a client.

        Args:
            state: on one device.
            client: number of a client; None: the global model.
            inputs: [n, ...]; every n needs a separate program.

        Returns:
            Log-probabilities [n, K].
        """
        arguments = (
            state,
            self.inputs.numbers,
            np.int32(client or 0),
            inputs,
        )
        federation = _shapes(self.inputs)[2]

        def predict(
            state: ServerState,
            numbers: Mapping[str, Array],
            client_id: Array,
            inputs: Array,
        ) -> Array:
            method = self._method(numbers, federation)
            if client is None or method.predict_for is None:
                return method.predict(state, inputs)
            return method.predict_for(state, client_id, inputs)

        compiled = self._once(
            lambda: compiled_program(jax.jit(predict).lower(*_shapes(arguments))),
            "predict",
            client is not None,
            *described((arguments, self.inputs)),
        )
        return np.asarray(compiled(*arguments))

    def block(
        self, rounds: int, saved: int | None = None, **execution: Any
    ) -> Callable[..., tuple[ServerState, Metrics]]:
        """Return the function of (state, numbers, key, federation) that runs a block, see
        `run_block`.
        """
        if saved:
            execution["keep_models"] = True

        def block(
            state: ServerState,
            numbers: Mapping[str, Array],
            key: Key[Array, ""],
            federation: FederatedData,
        ) -> tuple[ServerState, Metrics]:
            method = self._method(numbers, federation, **execution)
            metrics = self.built.experiment.config.metrics
            return run_block(method, state, key, federation, rounds, metrics, saved)

        return block

    def compile(
        self,
        states: Sequence[ServerState],
        inputs: Sequence[Inputs],
        rounds: int,
        compiling: Callable[[], None] = lambda: None,
        saved: int | None = None,
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Compile a block of rounds for this run, or for several with the same code; only shapes of
        the states are used.

        Args:
            states: state of each run.
            inputs: inputs of each run, of the same shapes.
            rounds: length of the block.
            compiling: called before something is compiled.
            saved: round of the block, for a single run, whose clients' models become part of the
                metrics.

        Returns:
            The program, and its arguments.

        Raises:
            ConfigError: a setting that a method checks only while it is traced, or too little
                memory.
        """
        if self.built.method.recipe.on_host:
            (one,) = inputs
            return self.block(rounds, saved), (states[0], *one)
        arguments = (states[0], *inputs[0]) if len(states) == 1 else _together(states, inputs)

        def compile_for(clients_at_once: int | None) -> tuple[Callable[..., Any], list[Choice]]:
            choices: list[Choice] = []
            execution: dict[str, Any] = {"report": choices.append}
            if clients_at_once is not None:
                execution["chunk_size"] = clients_at_once
            block = self.block(rounds, saved, **execution)
            whole = block if len(states) == 1 else _vectorized(block)
            return _compile(whole, arguments, self.built.execution.mesh), choices

        def compile_block() -> tuple[Callable[..., Any], list[Choice]]:
            compiling()
            with _explaining_memory():
                if self._memory is None:
                    return compile_for(None)
                to_come = sum(bytes_to_come(one.federation.inputs) for one in inputs)
                clients = self.built.federation.num_clients
                fitting = FittingProgram(
                    compile_for,
                    self._memory - to_come,
                    note,
                    cohort_size_of(self.built.experiment.config, clients),
                )
                return fitting, fitting.choices

        shapes = (rounds, saved, len(states), *described(arguments))
        return self._once(compile_block, "block", *shapes)[0], arguments

    @property
    def choices(self) -> list[Choice]:
        """Placements of clients in the blocks compiled so far."""
        return [
            choice
            for (kind, code, *_), found in self._compiled.items()
            if kind == "block" and code == self.code
            for choice in found[1]
        ]

    def advance(
        self,
        states: Sequence[ServerState],
        inputs: Sequence[Inputs],
        rounds: int,
        compiling: Callable[[], None] = lambda: None,
        running: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
        saved: int | None = None,
    ) -> Advanced:
        """Run a block of rounds and its evaluation, for one run or for several at the same round.

        Args:
            states: state of each run; the new states reuse their memory.
            inputs: as for `compile`, which also lists the errors.
            rounds: length of the block.
            compiling: called before something is compiled.
            running: makes a context in which the block runs.
            saved: as for `compile`.
        """
        begin = time.perf_counter()
        program, arguments = self.compile(states, inputs, rounds, compiling, saved)
        compiled = time.perf_counter()
        with running(), _explaining_memory():
            after, metrics = program(*arguments)
            models = jax.device_get(metrics.pop(federated.CLIENT_MODELS, None))
            numbers = federated.to_numbers(jax.device_get(metrics))
            elapsed = time.perf_counter() - compiled
        count = len(states)
        found = {name: np.asarray(value) for name, value in numbers.items()}
        rows = [
            {name: plain(one if count == 1 else one[at]) for name, one in found.items()}
            for at in range(count)
        ]
        for row in rows:
            row["seconds"] = elapsed / count
            row["client_updates_per_second"] = row["clients"] / row["seconds"]
        new = list(after) if count > 1 else [after]
        return Advanced(rows, new, models, compiled - begin, elapsed)


def on_one_device(tree: PyTree) -> PyTree:
    """Return arrays that are whole on each of several devices as arrays on the first local
    device.
    """
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)


def plain(value: np.ndarray) -> Any:
    """Return a number as a Python number; an array is returned unchanged."""
    return value.item() if value.ndim == 0 else value


def _together(states: Sequence[ServerState], inputs: Sequence[Inputs]) -> tuple[Any, ...]:
    """Combine the arguments of a program for several runs, with shared examples."""
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
        # All runs are at the same round, so only the current stage is computed.
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
    """Return inputs with other examples, for instance those of a block of rounds."""
    return inputs._replace(federation=dataclasses.replace(inputs.federation, inputs=examples))


def _compile(
    function: Callable[..., Any], arguments: tuple[Any, ...], mesh: Mesh | None
) -> Callable[..., Any]:
    placed: dict[str, Any] = {}
    if mesh is not None:
        # Whole on every device: otherwise a process could not read the parts on devices of another
        # process.
        whole = NamedSharding(mesh, PartitionSpec())

        def apart(part: Any) -> bool:  # each device has its own part of these examples
            return isinstance(part, LoadedInputs) and part.mesh is not None

        specs = jax.tree.map(
            lambda part: part.specs() if apart(part) else whole.spec, arguments, is_leaf=apart
        )
        placed["in_shardings"] = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
        placed["out_shardings"] = whole
    with naming("method"):
        # Traced without placements: those of arrays that local training reads would clash with the
        # placements that `shard_map` gives to clients.
        lowered = jax.jit(function, donate_argnums=0, **placed).lower(*_shapes(arguments))
    program = compiled_program(lowered)
    if backend() == "cpu":  # a CPU gives no error: the process is killed
        _check_bytes(bytes_of(program), "a round")
    return program


def _shapes(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return shapes for tracing; numbers, in the dictionary argument, are weakly typed like
    Python's.
    """

    def shapes(argument: Any) -> Any:
        weak = isinstance(argument, dict)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=weak), argument
        )

    return tuple(map(shapes, arguments))


def described(tree: PyTree) -> tuple[Hashable, ...]:
    """Return structure, shapes and types of a tree of arrays."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)


def _check_bytes(needed: int, what: str) -> None:
    """Raise OutOfMemory for more bytes than this machine or device has."""
    memory = processor.memory() if backend() == "cpu" else device_memory()
    if memory is not None and needed > memory:
        raise OutOfMemory(
            f"{what} would need {bytes_in_words(needed)}, and the memory has "
            f"{bytes_in_words(memory)}. Lower {_LOWER}."
        )


@contextlib.contextmanager
def _explaining_memory() -> Iterator[None]:
    """Add the settings to lower to an error about too little memory."""
    try:
        yield
    except OverflowError as error:
        what = "a round would need arrays of more elements than can be counted"
        raise OutOfMemory(f"{what}. Lower {_LOWER}. ({str(error).splitlines()[0]})") from error
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        said = f"({str(error).splitlines()[0]})"
        # This is a limit of each multiprocessor: no setting of the run would help.
        if "shared memory" in said.lower():
            raise ConfigError(
                "a kernel of XLA's products needs more shared memory than this GPU has. "
                f"XLA_FLAGS=--xla_gpu_enable_triton_gemm=false goes without them. {said}"
            ) from error
        needs = "the device has not enough memory for a round"
        raise OutOfMemory(f"{needs}. Lower {_LOWER}. {said}") from error
