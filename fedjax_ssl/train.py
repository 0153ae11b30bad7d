"""Training without a run folder: a whole experiment as a function, `make_train(config) ->
train(key)`; `over_seeds` for many of them; and `train` on arrays, without a config.
"""

import contextlib
import dataclasses
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
from fedjax_ssl.checks import required
from fedjax_ssl.config import ConfigError
from fedjax_ssl.data import Drawing, FederatedData
from fedjax_ssl.data.federation.federated_data import of_one_shape
from fedjax_ssl.federated import Method, Recipe, ServerState
from fedjax_ssl.federated.contract import Metrics
from fedjax_ssl.runs import own_callbacks
from fedjax_ssl.runs.build import (
    Built,
    Experiment,
    build,
    drawing_of,
    federate,
    load_experiment,
    privacy_of_run,
    round_key,
)
from fedjax_ssl.runs.callbacks import Block, Callback
from fedjax_ssl.runs.first_weights import start_of
from fedjax_ssl.runs.processes import share_out
from fedjax_ssl.runs.program import Program, plain, with_examples
from fedjax_ssl.runs.residence import Feed, on_host
from fedjax_ssl.runs.rounds import blocks, run_block

PyTree = Any


class Train:
    """The function returned by `make_train`: (key, numbers, federation) -> (state, metrics)."""

    def __init__(self, experiment: Experiment):
        """Prepare values that are the same for all keys.

        Args:
            experiment: config and dataset.
        """
        self.experiment = experiment
        self._programs: dict[Any, Any] = {}
        self._inputs: Array | None = None

    @functools.cached_property
    def _drawing(self) -> Drawing | None:
        return drawing_of(self.experiment)

    def draw(self, key: Key[Array, ""]) -> FederatedData:
        """Draw the federation of a key, which must not be traced; all federations share their
        examples.
        """
        if is_traced(key):
            raise ConfigError(
                "the key is traced by jit or vmap, and a federation is drawn by a known key; draw "
                "it before: jax.jit(train)(key, numbers, train.draw(key))"
            )
        with jax.ensure_compile_time_eval():  # a fixed key may be inside a user's jit
            found = federate(self.experiment, key, self._inputs, self._drawing)
        self._inputs = found.inputs
        return found

    def __call__(
        self,
        key: Key[Array, ""],
        hyperparameters: Mapping[str, Array] | None = None,
        federation: FederatedData | None = None,
    ) -> tuple[ServerState, Metrics]:
        """Train; see `make_train`."""
        numbers = hyperparameters or {}
        federation = self.draw(key) if federation is None else federation
        if is_traced(key, numbers, federation):
            return self._traced(key, numbers, federation)
        return self._block_by_block(key, numbers, federation)

    def _traced(
        self, key: Key[Array, ""], numbers: Mapping[str, Array], federation: FederatedData
    ) -> tuple[ServerState, Metrics]:
        """Train as a pure function of arrays."""
        experiment = self.experiment
        if experiment.host is not None:
            raise ConfigError(
                "config.data.residence is 'host', but a program that trains from beginning to "
                "end needs all examples on the device; call train(key) without jit or vmap "
                "around it"
            )
        built = build(experiment, federation, numbers, start_of(experiment))
        method = built.method
        key = round_key(experiment.config, key)
        state = method.init(key, federation)

        every = experiment.config.eval_every
        rounds, costs = _private(built, numbers)
        names = experiment.config.metrics
        state, metrics = jax.lax.scan(
            lambda s, _: run_block(method, s, key, federation, every, names),
            state,
            length=rounds // every,
        )
        if rounds % every:
            state, last = run_block(method, state, key, federation, rounds % every, names)
            for name, value in last.items():
                # the last block has fewer rounds, so fewer parts
                if isinstance(value, federated.Count):
                    last[name] = value.padded(metrics[name].times.shape[-1])
            metrics = jax.tree.map(
                lambda all, one: jnp.concatenate([all, one[None]]), metrics, last
            )
        return state, metrics | {name: jnp.asarray(values) for name, values in costs.items()}

    def _block_by_block(
        self, key: Key[Array, ""], numbers: Mapping[str, Array], federation: FederatedData
    ) -> tuple[ServerState, Metrics]:
        """Train by the programs of a run, which are compiled once for all calls."""
        experiment = self.experiment
        rows = []
        config = experiment.config
        built = build(experiment, federation, numbers)
        end, costs = _private(built, numbers)
        program = Program(built, self._programs, key=key, numbers=numbers)
        mesh = built.execution.mesh
        state, inputs = share_out((program.init(), program.inputs), mesh)
        with contextlib.ExitStack() as stack:
            feed = None
            if experiment.host is not None:
                feed = stack.enter_context(Feed(built, program.inputs.key))
            for start, rounds in blocks(end, config.eval_every):
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
    """Return the rounds within the privacy budget, and epsilon after every evaluation.

    Args:
        built: parts of the run.
        numbers: replaced settings.
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
    """Wait for the results of several CPU devices: jax 0.10 hangs if more than 32 programs are
    queued.
    """
    leaf = jax.tree.leaves(results)[0]
    return (
        jax.block_until_ready(results)
        if len(leaf.devices()) > 1 and backend() == "cpu"
        else results
    )


def is_traced(*values: PyTree) -> bool:
    """Return whether values are traced by jit, vmap or similar."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


def make_train(config: ml_collections.ConfigDict) -> Train:
    """Turn a whole experiment into a function of a key.

    `train(key)` draws the partition, the visible labels, the initial network and everything else
    from `key`, runs all rounds and evaluates every `config.eval_every` rounds. `train(key,
    {"optimizer.learning_rate": rate})` replaces real-valued settings, and `train(key, numbers,
    train.draw(key))` takes a federation that is already drawn, so that all three can be traced by
    `jax.jit` and `jax.vmap`. `over_seeds(train)(keys)` is a seed sweep in one program.

    Args:
        config: config of a config file; its section `prediction` is only for `run`.

    Returns:
        `train(key, hyperparameters=None, federation=None) -> (final state, metrics)`; every metric
        is an array with one entry per evaluation (of `fedjax_ssl.federated.BY_CLIENT`: a row),
        "round" is the number of rounds before it. "bytes_up" and "bytes_down" are exact beyond 32
        bits, as `Count`: `fedjax_ssl.federated.to_numbers(metrics)` turns all metrics into NumPy
        arrays. With `config.privacy`, "epsilon" is among them, and a budget ends the rounds.

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


@required
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
        rounds: number of rounds.
        key: random key of everything except the data.
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
    for start, count in blocks(rounds, eval_every):
        state, metrics = block(state, key, data, count)
        found = federated.to_numbers(jax.device_get(metrics))
        rows.append({name: plain(np.asarray(value)) for name, value in found.items()})
        last = start + count == rounds
        done = Block(rows[-1], state, {}, None, None, count, last)
        if any(own_callbacks.call(one, done) for one in own):
            break
    return state, rows


def over_runs(one: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Turn a function of arrays into one of many runs, with a leading axis: vectorized (`jax.vmap`)
    on accelerators, one after another (`jax.lax.map`) on a CPU.
    """
    if backend() != "cpu":
        return jax.vmap(one, axis_name=federated.VECTORIZED_RUNS)
    return lambda *arguments: jax.lax.map(lambda each: one(*each), arguments)


@required
def over_seeds(train: Train, mesh: Mesh | None = None) -> Callable[..., PyTree]:
    """Make one compiled program of many runs: `over_seeds(train)(keys)`, with a leading axis on
    every result. `over_seeds(train)(keys, {"optimizer.learning_rate": rates})` has a number for
    each run.

    The federations are drawn, padded to one shape and stacked. On accelerators the runs are
    vectorized (`jax.vmap`), which fills the device. On a CPU they run one after another in the
    program (`jax.lax.map`), because there vectorized runs take longer (docs/speed.md, W8).

    Args:
        train: what `make_train` returns.
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
    if mesh is not None and mesh.axis_names != ("seeds", "clients"):
        raise ValueError(
            f"the mesh has axes {mesh.axis_names}; a sweep over seeds takes ('seeds', 'clients')"
        )

    def here(examples: Array, *arguments: PyTree) -> PyTree:
        def one(key: Key[Array, ""], federation: FederatedData, numbers: Any) -> PyTree:
            return train(key, numbers, dataclasses.replace(federation, inputs=examples))

        return over_runs(one)(*arguments)

    def on_devices(examples: Array, *arguments: PyTree) -> PyTree:
        # All devices of a seed start local training from the same values, so they are not marked as
        # varying over devices.
        share = PartitionSpec("seeds")
        specs = (PartitionSpec(), share, share, share)
        return jax.shard_map(here, mesh=mesh, in_specs=specs, out_specs=share, check_vma=False)(
            examples, *arguments
        )

    compiled = jax.jit(here if mesh is None else on_devices)

    def sweep(keys: Key[Array, " s"], numbers: Mapping[str, Array] | None = None) -> PyTree:
        numbers = numbers or {}
        groups = 1 if mesh is None else mesh.shape["seeds"]
        if len(keys) % groups:
            raise ValueError(
                f"there are {len(keys)} seeds for {groups} groups of devices along the mesh's axis "
                f"'seeds'; their number must be a multiple of {groups}"
            )
        drawn = [train.draw(key) for key in keys]
        if _takes_the_host(build(train.experiment, drawn[0])):
            each = [
                train(key, jax.tree.map(lambda leaf, at=at: leaf[at], numbers), drawn[at])
                for at, key in enumerate(keys)
            ]
            return jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
        shared: Any = None  # examples, as a separate argument
        alike = [dataclasses.replace(one, inputs=shared) for one in of_one_shape(drawn)]
        federations = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alike)
        return _awaited(compiled(drawn[0].inputs, keys, federations, dict(numbers)))

    return sweep


def _takes_the_host(built: Built) -> bool:
    """Return whether rounds load examples from the host, or call it."""
    method = built.method
    host = built.experiment.host
    return host is not None or method.recipe.on_host
