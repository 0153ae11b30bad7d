"""Where a run's examples lie: all on the device, or on the host, from where each block of rounds gets its cohorts'."""

from collections.abc import Callable

import jax
from jax.sharding import Mesh

from fedjax_ssl import distributed, federated, processor
from fedjax_ssl.backend import backend
from fedjax_ssl.config import ConfigError
from fedjax_ssl.data import FederatedData, HostInputs, NotOnDevice, most_rows
from fedjax_ssl.experiment.build import Experiment, build_method, execution_of, prediction_settings
from fedjax_ssl.federated import Method
from fedjax_ssl.federated.memory import USABLE, tree_bytes
from fedjax_ssl.tracking import bytes_in_words

SHARE = 0.5  # of a device's memory that examples may fill; the rest is for the round


def settled(experiment: Experiment, federation_of: Callable[[Experiment], FederatedData]) -> Experiment:
    """The experiment with its inputs where `config.data.residence` has them.

    Args:
        experiment: with its inputs anywhere.
        federation_of: draws it, where that is needed.

    Raises:
        ConfigError: inputs are to stay on the host, and this run cannot train so.
    """
    experiment = experiment._replace(host=None)
    asked, host = experiment.config.data.residence, HostInputs(experiment.dataset)
    if asked == "device" or (asked == "auto" and not _too_large(host.nbytes)):
        return experiment
    away = experiment._replace(host=host)
    reason = why_not(away, federation_of)
    if not reason:
        return away
    if asked == "auto":
        return experiment
    raise ConfigError(f"config.data.residence is 'host', but {reason}")


def _too_large(size: int) -> bool:
    memory = processor.memory() if backend() == "cpu" else federated.own_memory()
    # Machines may differ, and their programs must not.
    return distributed.Team().any(memory is not None and size > SHARE * memory)


def why_not(experiment: Experiment, federation_of: Callable[[Experiment], FederatedData]) -> str:
    """Why a run cannot train with its inputs on the host, and what to do; empty where it can.

    Args:
        experiment: with `host`.
        federation_of: draws it, where that is needed.
    """
    config = experiment.config
    graphs = [name for name in prediction_settings(config).predictors if name != "network"]
    if graphs:
        return (
            f"config.prediction.predictors names {', '.join(graphs)}, whose graph has all clients' examples. Use "
            "--config.data.residence=device, or leave the prediction out"
        )
    federation = federation_of(experiment)
    execution = execution_of(experiment, federation, alone=True)
    method = build_method(experiment, federation, execution=execution)
    if method.cohort is None or _looks_at_all(method, federation):
        return (
            f"{config.method.name} looks at the examples of all clients in a round, and only the cohort's would be on "
            "the device. Use --config.data.residence=device, or a method that learns from its cohort"
        )
    needed = bytes_on_device(experiment, federation, devices_apart(method.on_host, execution.mesh))
    if execution.memory is not None and needed > USABLE * execution.memory:
        return (
            f"the examples of two blocks of {config.eval_every} rounds take up to {bytes_in_words(needed)}, and the "
            f"device has {bytes_in_words(execution.memory)}. Lower config.eval_every or config.federated.cohort_size"
        )
    return ""


def _looks_at_all(method: Method, federation: FederatedData) -> bool:
    """Whether a round cannot be traced without the rows of all clients; one of host functions says so when it runs."""
    key = jax.random.key(0)
    try:
        state = jax.eval_shape(method.init, key, federation)
        if not method.on_host:
            jax.eval_shape(method.round, key, state, federation)
    except NotOnDevice:
        return True
    return False


def bytes_on_device(experiment: Experiment, federation: FederatedData, devices: int = 1) -> int:
    """Bytes of a device that examples take at most: of the block that computes, and of the one that is brought.

    Args:
        experiment: with or without `host`.
        federation: of it.
        devices: to which the clients of every cohort are dealt.
    """
    if experiment.host is None:
        return tree_bytes(federation.inputs)
    rounds = min(experiment.config.eval_every, experiment.config.rounds)
    width = most_rows(federation, clients_on_a_device(experiment, federation, rounds, devices))
    return 3 * tree_bytes(federation.inputs) + 2 * experiment.host.bytes_of(width)


def cohort_size_of(experiment: Experiment, federation: FederatedData) -> int:
    """Clients of a round: as many as the config says, by default all."""
    return min(experiment.config.federated.cohort_size or federation.num_clients, federation.num_clients)


def clients_on_a_device(experiment: Experiment, federation: FederatedData, rounds: int, devices: int) -> int:
    """Clients that a device trains in a block at most, if nobody is left out where all take part.

    Then a device has the same ones in every round. Where a stage or a sampler leaves some out, it may come to have
    more.

    Args:
        experiment: of the run.
        federation: of it.
        rounds: of the block.
        devices: to which the clients of every cohort are dealt.
    """
    size = cohort_size_of(experiment, federation)
    return -(-size // devices) * (1 if size == federation.num_clients else rounds)


def devices_apart(on_host: bool, mesh: Mesh | None) -> int:
    """The number of devices of which each has other clients' examples.

    Args:
        on_host: rounds call host functions, and have all of a block's examples on each device.
        mesh: devices that share the cohorts.
    """
    return 1 if mesh is None or on_host else mesh.size
