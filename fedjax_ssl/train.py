"""Training without a run folder: a whole experiment as one function, `make_train(config) ->
train(key)`, `over_seeds` for many of them, and `train` on arrays, without a config.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Key

from fedjax_ssl import federated
from fedjax_ssl.backend import backend
from fedjax_ssl.config import ConfigError
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import Method, Recipe, ServerState
from fedjax_ssl.federated.contract import Metrics
from fedjax_ssl.runs import own_callbacks
from fedjax_ssl.runs.build import (
    Built,
    Experiment,
    build,
    federate,
    load_experiment,
    rest_of,
    round_key,
)
from fedjax_ssl.runs.callbacks import Block, Callback
from fedjax_ssl.runs.compile import Program, plain, with_examples
from fedjax_ssl.runs.privacy import privacy_of_run
from fedjax_ssl.runs.processes import share_out
from fedjax_ssl.runs.residence import Feed, on_host
from fedjax_ssl.runs.rounds import run_block
from fedjax_ssl.runs.start import start_of

PyTree = Any


class Train:
    """The function that `make_train` returns: key -> (final state, metrics)."""

    def __init__(self, experiment: Experiment):
        """Keep what is the same for all keys.

        Args:
            experiment: config and dataset.
        """
        self._experiment = experiment
        self._compiled = jax.jit(self.traced)

    def on(self, devices: int) -> "Train":
        """Give the same function, on this many devices where the config leaves their number
        open.
        """
        config = self._experiment.config.copy_and_resolve_references()
        with config.unlocked():
            config.federated.devices = config.federated.devices or devices
        return Train(self._experiment._replace(config=config))

    @functools.cached_property
    def _of_one_key(self) -> FederatedData:
        return federate(self._experiment, jax.random.key(0))

    @property
    def inputs(self) -> Array:
        """Examples on the device, an argument of the compiled program."""
        return self._of_one_key.inputs

    @functools.cached_property
    def takes_the_host(self) -> bool:
        """Returns whether the host takes part in rounds: it brings examples, or computes some of
        a round.
        """
        return (
            self._experiment.host is not None
            or self._experiment.config.model.train != "all"  # the rest is an argument of programs
            or build(self._experiment, self._of_one_key).method.recipe.on_host
        )

    def __call__(
        self, key: Key[Array, ""], hyperparameters: Mapping[str, Array] | None = None
    ) -> tuple[ServerState, Metrics]:
        """Train; see `make_train`."""
        if is_traced(key, hyperparameters):
            return self.traced(None, key, hyperparameters)
        if self.takes_the_host:
            return self._block_by_block(key, hyperparameters or {})
        trained: tuple[ServerState, Metrics] = _awaited(
            self._compiled(self.inputs, key, hyperparameters)
        )
        return trained

    def traced(
        self,
        inputs: Array | None,
        key: Key[Array, ""],
        hyperparameters: Mapping[str, Array] | None = None,
    ) -> tuple[ServerState, Metrics]:
        """Train as a pure function of the examples, if they are no constant, the key and
        numbers; may be traced.
        """
        experiment = self._experiment
        if experiment.host is not None:
            raise ConfigError(
                "config.data.residence is 'host', but a program that trains from beginning to "
                "end needs all examples on the device; call train(key) without jit or vmap "
                "around it"
            )
        federation = federate(experiment, key, inputs)
        start = start_of(experiment)
        built = build(experiment, federation, hyperparameters, start, rest_of(key))
        method = built.method
        key = round_key(experiment.config, key)
        state = method.init(key, federation)

        every = experiment.config.eval_every
        rounds, costs = _private(built, hyperparameters or {})
        names = experiment.config.metrics
        state, metrics = jax.lax.scan(
            lambda s, _: run_block(method, s, key, federation, every, names),
            state,
            length=rounds // every,
        )
        if rounds % every:
            state, last = run_block(method, state, key, federation, rounds % every, names)
            for name, value in last.items():
                # of fewer rounds, so that it has fewer parts
                if isinstance(value, federated.Count):
                    last[name] = value.padded(metrics[name].times.shape[-1])
            metrics = jax.tree.map(
                lambda all, one: jnp.concatenate([all, one[None]]), metrics, last
            )
        return state, metrics | {name: jnp.asarray(values) for name, values in costs.items()}

    def _block_by_block(
        self, key: Key[Array, ""], hyperparameters: Mapping[str, Array]
    ) -> tuple[ServerState, Metrics]:
        """Train where the host takes part: it brings examples, or computes some of a round."""
        experiment = self._experiment
        rows = []
        config = experiment.config
        federation = federate(experiment, key)
        weights = None if config.model.train == "all" else start_of(experiment)
        built = build(experiment, federation, hyperparameters, weights, rest_of(key))
        end, costs = _private(built, hyperparameters)
        program = Program(built, key=key, numbers=hyperparameters)
        mesh = built.execution.mesh
        state, inputs = share_out((program.init(), program.inputs), mesh)
        with contextlib.ExitStack() as stack:
            feed = None
            if experiment.host is not None:
                feed = stack.enter_context(Feed(built, program.inputs.key))
            for start in range(0, end, config.eval_every):
                rounds = min(config.eval_every, end - start)
                if feed is not None:
                    inputs = with_examples(inputs, feed.block(start, rounds))
                (row,), (state,), *_ = program.advance([state], [inputs], rounds)
                rows.append(
                    {
                        name: row[name]
                        for name in row
                        if name not in ("seconds", "client_updates_per_second")
                    }
                )
        names = dict.fromkeys(name for row in rows for name in row)
        stacked = {
            name: np.stack([np.asarray(row.get(name, np.nan)) for row in rows]) for name in names
        }
        return state, stacked | {name: np.asarray(values) for name, values in costs.items()}


def _private(built: Built, numbers: Mapping[str, Array]) -> tuple[int, dict[str, list[float]]]:
    """Return the rounds within the budget of privacy, and epsilon after every evaluation.

    Args:
        built: what is trained.
        numbers: settings that were replaced.
    """
    config = built.experiment.config
    privacy = privacy_of_run(built)
    if privacy is None:
        return config.rounds, {}
    if replaced := [name for name in numbers if name.startswith("privacy.")]:
        raise ConfigError(
            f"{', '.join(replaced)} is given as a number of the program, from which epsilon cannot "
            "be told; give it in the config, or use fedjax-ssl sweep, which has one program too"
        )
    end = privacy.limit
    rounds = [*range(config.eval_every, end, config.eval_every), end]
    return end, {"epsilon": [privacy.account.cost(number) for number in rounds]}


def _awaited(results: PyTree) -> PyTree:
    """Wait for what several devices of a CPU compute: in jax 0.10 they hang if more than 32
    programs are in line.
    """
    leaf = jax.tree.leaves(results)[0]
    return (
        jax.block_until_ready(results)
        if len(leaf.devices()) > 1 and backend() == "cpu"
        else results
    )


def is_traced(*values: PyTree) -> bool:
    """Tell whether values are traced by jit, vmap or the like."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


def make_train(config: ml_collections.ConfigDict) -> Train:
    """Make a whole experiment one function of a key.

    `train(key)` draws the partition, the labels kept, the initial network and everything else from
    `key`, runs all rounds and evaluates every `config.eval_every` rounds. It compiles itself, with
    the examples as an argument of the program; `over_seeds(train)(keys)` is a seed sweep in one
    compiled program. `train(key, {"optimizer.learning_rate": rate})` replaces settings that enter
    as numbers. It can be traced (`jax.vmap` over rates); then the examples are constants of that
    program.

    Args:
        config: as a config file returns it; its section `prediction`, and fine-tuning
            (`config.personalize.epochs` or `steps`), are left to `run`.

    Returns:
        `train(key, hyperparameters=None) -> (final state, metrics)`; every metric is an array with
        one entry per evaluation (of `fedjax_ssl.federated.BY_CLIENT`: a row), "round" says after
        which. "bytes_up" and "bytes_down" are exact beyond 32 bits, as `Count`:
        `fedjax_ssl.federated.to_numbers(metrics)` turns all metrics into NumPy arrays. With
        `config.privacy`, "epsilon" is among them, and a budget ends the rounds.

    Raises:
        ConfigError: a setting cannot be used.
        DatasetUnavailable: the dataset is not on disk and could not be downloaded.

    Example:
        >>> train = fs.make_train(fs.load_config("digits_fedavg", {"rounds": 4, "eval_every": 2}))
        >>> state, metrics = train(jax.random.key(0))
        >>> metrics["round"].tolist(), metrics["test_accuracy"].shape
        ([2, 4], (2,))
    """
    experiment = load_experiment(config)
    if own := [name for name in experiment.config.metrics if ":" in name]:
        raise ConfigError(
            f"config.metrics names {', '.join(own)}: functions of your own run between compiled "
            "blocks, as fs.run and sweeps have them, and not in one program; leave them out"
        )
    if not experiment.config.rounds:
        raise ConfigError(
            "config.rounds is 0, so there is nothing to train; `run` makes predictions without "
            "training"
        )
    if experiment.config.data.residence == "host":
        experiment = on_host(experiment)
    return Train(experiment)


def train(
    recipe: Recipe | Method,
    data: FederatedData,
    *,
    rounds: int,
    key: Key[Array, ""],
    eval_every: int = 1,
    each: Callback | None = None,
) -> tuple[ServerState, list[dict[str, Any]]]:
    """Train a method on arrays, without a config and a folder.

    Args:
        recipe: the method.
        data: the federation.
        rounds: their number.
        key: of everything random but the data.
        eval_every: rounds between evaluations.
        each: called with a `fedjax_ssl.runs.Block` after every evaluation; True ends the training.

    Returns:
        (state, a row of metrics for every evaluation).

    Raises:
        UserError: `each` cannot be called, returned anything but True, False or None, or changed a
            row otherwise than by columns of numbers of its own.

    Example:
        >>> from fedjax_ssl.testing import toy
        >>> data = toy.federation()
        >>> recipe = fs.methods.recipe("fedavg", toy.setup(data))
        >>> def good(block):
        ...     return block.row["test_accuracy"] > 0.6
        >>> _, rows = fs.train(recipe, data, rounds=50, key=jax.random.key(0), each=good)
        >>> len(rows) < 50 and rows[-1]["test_accuracy"] > 0.6
        True
    """
    own = own_callbacks.checked([] if each is None else [each])
    method = recipe if isinstance(recipe, Method) else federated.build(recipe)
    state = jax.jit(method.init)(key, data)
    block: Callable[..., tuple[ServerState, Metrics]] = functools.partial(run_block, method)
    if not method.recipe.on_host:
        block = jax.jit(block, static_argnums=3, donate_argnums=0)
    rows = list[dict[str, Any]]()
    for start in range(0, rounds, eval_every):
        count = min(eval_every, rounds - start)
        state, metrics = block(state, key, data, count)
        found = federated.to_numbers(jax.device_get(metrics))
        rows.append({name: plain(np.asarray(value)) for name, value in found.items()})
        last = start + count == rounds
        done = Block(rows[-1], state, {}, None, None, count, last)
        if any(own_callbacks.call(one, done) for one in own):
            break
    return state, rows


def over_seeds(train: Callable[..., PyTree], mesh: Mesh | None = None) -> Callable[..., PyTree]:
    """Make one compiled program of many runs: `over_seeds(train)(keys)`, with a leading axis on
    every result.

    On accelerators the runs are vectorized (`jax.vmap`), which fills the device. On a CPU they
    follow one another in the program (`jax.lax.map`): there the work is the limit, and vectorized
    runs take longer than the same runs in turn (docs/speed.md, W8).

    Args:
        train: what `make_train` returns, or another function of a key (and of further arrays with
            the same leading axis).
        mesh: devices that share the runs, with axes ("seeds", "clients"): seeds are dealt in equal
            blocks along the first axis, and the devices along the second one share each cohort of
            their seeds. `train` comes from a config whose `federated.devices` is the length of the
            second axis. None: one run's devices, as the config says.

    Raises:
        ValueError: the mesh has other axes, or its seeds do not divide the keys.

    Example:
        >>> train = fs.make_train(fs.load_config("digits_fedavg", {"rounds": 2, "eval_every": 1}))
        >>> states, metrics = fs.over_seeds(train)(jax.random.split(jax.random.key(0), 3))
        >>> metrics["test_accuracy"].shape  # seeds, evaluations
        (3, 2)
    """

    def here(examples: PyTree, *arguments: PyTree) -> PyTree:
        one = functools.partial(train.traced, examples) if isinstance(train, Train) else train
        if backend() != "cpu":
            return jax.vmap(one, axis_name=federated.VECTORIZED_RUNS)(*arguments)
        return jax.lax.map(lambda each: one(*each), arguments)

    def on_devices(examples: PyTree, *arguments: PyTree) -> PyTree:
        if mesh is None:
            return here(examples, *arguments)
        groups = mesh.shape["seeds"]
        share = PartitionSpec("seeds")
        count = jax.tree.leaves(arguments)[0].shape[0]
        if count % groups:
            raise ValueError(
                f"there are {count} seeds for {groups} groups of devices along the mesh's axis "
                f"'seeds'; their number must be a multiple of {groups}"
            )
        # Local training starts from the same values on all devices of a seed, which are not marked
        # as differing.
        specs = (PartitionSpec(), *[share] * len(arguments))
        return jax.shard_map(here, mesh=mesh, in_specs=specs, out_specs=share, check_vma=False)(
            examples, *arguments
        )

    if mesh is not None and mesh.axis_names != ("seeds", "clients"):
        raise ValueError(
            f"the mesh has axes {mesh.axis_names}; a sweep over seeds takes ('seeds', 'clients')"
        )
    if mesh is not None and isinstance(train, Train):
        train = train.on(mesh.shape["clients"])
    compiled = jax.jit(on_devices)

    def sweep(*arguments: PyTree) -> PyTree:
        if is_traced(arguments):
            return on_devices(None, *arguments)
        if not isinstance(train, Train):
            return _awaited(compiled(None, *arguments))
        if not train.takes_the_host:
            return _awaited(compiled(train.inputs, *arguments))
        count = jax.tree.leaves(arguments)[0].shape[0]
        each = [
            train(*jax.tree.map(lambda leaf, at=at: leaf[at], arguments)) for at in range(count)
        ]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)

    return sweep
