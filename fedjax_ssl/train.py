"""A whole experiment as one pure function: `make_train(config) -> train(key)`, and `over_seeds` for many of them."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Key

from fedjax_ssl import federated
from fedjax_ssl.backend import backend
from fedjax_ssl.config import ConfigError
from fedjax_ssl.federated import ServerState
from fedjax_ssl.federated.method import Metrics
from fedjax_ssl.runs.build import Experiment, build_method, federate, load_experiment
from fedjax_ssl.runs.rounds import run_block

PyTree = Any


class Train:
    """What `make_train` returns."""

    def __init__(self, experiment: Experiment):
        """Keeps what is the same for all keys.

        Args:
            experiment: config and dataset.
        """
        self._experiment = experiment

    @functools.cached_property
    def inputs(self) -> Array:
        """The examples on the device; passed as an argument, they are no constant of the compiled program."""
        return federate(self._experiment, jax.random.key(0)).inputs

    def __call__(
        self,
        key: Key[Array, ""],
        hyperparameters: Mapping[str, Array] | None = None,
        inputs: Array | None = None,
    ) -> tuple[ServerState, Metrics]:
        """Trains; see `make_train`."""
        experiment = self._experiment
        federation = federate(experiment, key, inputs)
        method = build_method(experiment, federation, hyperparameters)
        state = method.init(key, federation)

        every, rounds, names = experiment.config.eval_every, experiment.config.rounds, experiment.config.metrics
        state, metrics = jax.lax.scan(
            lambda s, _: run_block(method, s, key, federation, every, names), state, length=rounds // every
        )
        if rounds % every:
            state, last = run_block(method, state, key, federation, rounds % every, names)
            for name, value in last.items():
                if isinstance(value, federated.Count):  # of fewer rounds, so that it has fewer parts
                    last[name] = value.padded(metrics[name].times.shape[-1])
            metrics = jax.tree.map(lambda all, one: jnp.concatenate([all, one[None]]), metrics, last)
        return state, metrics


def make_train(config: ml_collections.ConfigDict) -> Train:
    """The whole experiment as one pure function.

    `train(key)` draws the partition, the labels kept, the initial network and everything else from `key`, runs all
    rounds and evaluates every `config.eval_every` rounds. `jax.jit(over_seeds(train))(keys)`, or with `jax.vmap` in
    place of `over_seeds`, is a seed sweep in one compiled program; `train(key, {"optimizer.learning_rate": rate})`
    replaces settings that enter as numbers, so it can be vmapped over them too.

    Traced like this, the examples are a constant of the program. Large ones are better an argument of it:
    `jax.jit(lambda keys, inputs: over_seeds(lambda key: train(key, None, inputs))(keys))(keys, train.inputs)`.

    Args:
        config: as a config file returns it; what its section `prediction` asks for is left to `run`.

    Returns:
        `train(key, hyperparameters=None, inputs=None) -> (final state, metrics)`; every metric is an array with one
        entry per evaluation (of `fedjax_ssl.federated.BY_CLIENT`: a row), "round" says after which. "bytes_up" and
        "bytes_down" are exact beyond 32 bits, as `Count`: `fedjax_ssl.federated.to_numbers(metrics)` turns all metrics
        into NumPy arrays.

    Raises:
        ConfigError: a setting cannot be used.
        DatasetUnavailable: the dataset is not on disk and could not be downloaded.

    Example:
        >>> train = fs.make_train(fs.load_config("digits_fedavg", {"rounds": 4, "eval_every": 2}))
        >>> state, metrics = jax.jit(train)(jax.random.key(0))
        >>> metrics["round"].tolist(), metrics["test_accuracy"].shape
        ([2, 4], (2,))
    """
    experiment = load_experiment(config)
    if not experiment.config.rounds:
        raise ConfigError("config.rounds is 0, so there is nothing to train; `run` makes predictions without training")
    if experiment.config.data.residence == "host":
        raise ConfigError(
            "config.data.residence is 'host', but make_train is one program from beginning to end, which needs all "
            "examples on the device; `run` brings those of a few rounds at a time"
        )
    return Train(experiment)


def over_seeds(train: Callable[..., PyTree], mesh: Mesh | None = None) -> Callable[..., PyTree]:
    """One program for many runs: `over_seeds(train)(keys)`, with a leading axis on every result.

    On accelerators the runs are vectorized (`jax.vmap`), which fills the device. On a CPU they follow one another in
    the program (`jax.lax.map`): there the work is the limit, and vectorized runs take longer than the same runs in turn
    (docs/benchmarks.md, W8).

    Args:
        train: what `make_train` returns, or another function of a key (and of further arrays with the same leading
            axis).
        mesh: devices that share the runs, with axes ("seeds", "clients"): seeds are dealt in equal blocks along the
            first axis, and the devices along the second one share each cohort of their seeds. `train` comes from a
            config whose `federated.devices` is the length of the second axis. None: one run's devices, as the config
            says.

    Raises:
        ValueError: the mesh has other axes, or its seeds do not divide the keys.

    Example:
        >>> train = fs.make_train(fs.load_config("digits_fedavg", {"rounds": 2, "eval_every": 1}))
        >>> states, metrics = jax.jit(fs.over_seeds(train))(jax.random.split(jax.random.key(0), 3))
        >>> metrics["test_accuracy"].shape  # seeds, evaluations
        (3, 2)
    """

    def here(*arguments: PyTree) -> PyTree:
        if backend() != "cpu":
            return jax.vmap(train, axis_name=federated.VECTORIZED_RUNS)(*arguments)
        return jax.lax.map(lambda one: train(*one), arguments)

    if mesh is None:
        return here
    if mesh.axis_names != ("seeds", "clients"):
        raise ValueError(f"the mesh has axes {mesh.axis_names}; a sweep over seeds takes ('seeds', 'clients')")
    groups, share = mesh.shape["seeds"], PartitionSpec("seeds")

    def on_devices(*arguments: PyTree) -> PyTree:
        count = jax.tree.leaves(arguments)[0].shape[0]
        if count % groups:
            raise ValueError(
                f"there are {count} seeds for {groups} groups of devices along the mesh's axis 'seeds'; their number "
                f"must be a multiple of {groups}"
            )
        # Local training starts from the same values on all devices of a seed, which are not marked as differing.
        return jax.shard_map(here, mesh=mesh, in_specs=share, out_specs=share, check_vma=False)(*arguments)

    return on_devices
