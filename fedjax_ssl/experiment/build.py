"""From a config to what a run is made of: dataset, federation, method."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Key

from fedjax_ssl import config as configs
from fedjax_ssl import data, distributed, federated, methods, models
from fedjax_ssl.federated import Method, Setup
from fedjax_ssl.keys import named_key


class Experiment(NamedTuple):
    """A resolved config with its dataset loaded: everything about a run but its randomness."""

    config: ml_collections.ConfigDict
    dataset: data.Dataset
    standardization: str = ""  # for the log: what inputs are standardized by


def load_experiment(config: ml_collections.ConfigDict) -> Experiment:
    """Checks a config and loads its dataset.

    Raises:
        ConfigError: a setting cannot be used.
        DatasetUnavailable: the dataset is not on disk and could not be downloaded.
    """
    resolved = configs.resolve(config)
    section = resolved.data
    given = {
        name: section[name]
        for name in ("num_classes", "input_max", "writers", "size", "proportions")
        if section[name] is not None
    }
    with configs.naming("data"):
        dataset = data.load(section.name, root=section.root, path=section.path, download=section.download, **given)
        dataset, said = data.standardized(dataset, section.standardize, section.mean, section.std)
    return Experiment(resolved, dataset, said)


def federate(experiment: Experiment, key: Key[Array, ""]) -> data.FederatedData:
    """The federation that the config describes, with everything random in it drawn from `key`."""
    config, section = experiment.config, experiment.config.data
    partition_options = configs.options(config.partition)
    num_clients = partition_options.pop("num_clients", None)
    with configs.naming("data, config.partition or config.supervision"):
        return data.federate(
            named_key(key, "data"),
            experiment.dataset,
            partition=config.partition.name,
            num_clients=num_clients,
            partition_options=partition_options,
            supervision=config.supervision.name,
            supervision_options=configs.options(config.supervision),
            test_clients=section.test_clients,
            left_out_client=section.left_out_client,
            test_fraction=section.test_fraction,
            client_test_fraction=section.client_test_fraction,
            validation_fraction=section.validation_fraction,
            balanced_test=section.balanced_test,
        )


def build_method(
    experiment: Experiment,
    federation: data.FederatedData,
    hyperparameters: Mapping[str, Array] | None = None,
    report: Callable[[federated.Choice], None] | None = None,
) -> Method:
    """The method that the config names, for this federation.

    Args:
        experiment: config and dataset.
        federation: gives sizes; of its contents, only the clients' sizes are read, and only where they decide the
            placement.
        hyperparameters: values that replace fields of the config, by dotted name; they may be traced.
        report: is told whenever a round is traced how its clients are placed.
    """
    config = experiment.config.to_dict()
    for field, value in (hyperparameters or {}).items():
        configs.replace_number(config, field, value)
    configs.check_federated_optimizer(config)
    local, server = config["optimizer"], config["federated"]
    # What is traced may be vectorized, over any number of runs.
    alone = not hyperparameters and not _is_traced(federation)
    with configs.naming("model"):
        model = models.build(
            config["model"]["name"],
            num_classes=federation.num_classes,
            input_shape=federation.inputs.shape[1:],
            **configs.options(config["model"]),
        )
        model = models.in_precision(model, config["precision"])
    with configs.naming("augment"):
        augment = data.augmentation(config["augment"]["name"], **configs.options(config["augment"]))
    with configs.naming("strong_augment"):
        strong_augment = _strong_augmentation(config["strong_augment"], experiment.dataset)
    with configs.naming("optimizer or config.federated"):
        setup = Setup(
            model=model,
            normalize=data.normalizer(experiment.dataset),
            augment=augment,
            federated_optimizer=_federated_optimizer(server, local),
            local_optimizer=federated.local_optimizer(
                local["name"],
                momentum=local["momentum"],
                nesterov=local["nesterov"],
                weight_decay=local["weight_decay"],
                clip_norm=local["clip_norm"],
            ),
            learning_rate=federated.learning_rate_schedule(
                local["schedule"], local["learning_rate"], local["schedule_rounds"]
            ),
            num_classes=federation.num_classes,
            max_labelled=federation.max_labelled,
            max_unlabelled=federation.max_unlabelled,
            max_known=federation.max_known,
            max_server=federation.server_index.shape[-1],
            cohort_size=_cohort_size(server["cohort_size"], federation.num_clients),
            batch_size=local["batch_size"],
            local_epochs=local["local_epochs"],
            weighting=server["weighting"],
            keep_optimizer=local["keep_state"],
            rounds=config["rounds"],
            strong_augment=strong_augment,
        )
    execution = federated.Execution(
        placement=server["placement"],
        chunk_size=server["chunk_size"],
        mesh=device_mesh(experiment.config),
        reduce=server["reduce"],
        memory=federated.device_memory() if alone or federated.vectorized_runs() else None,
        everyone=_clients_of_known_size(federation, server["placement"]) if alone else None,
        report=report,
    )
    with configs.naming("method"):
        settings = {name: value for name, value in config["method"].items() if name != "name"}
        return federated.execute(methods.build(config["method"]["name"], setup, **settings), execution)


def _clients_of_known_size(federation: data.FederatedData, placement: str) -> federated.Client | None:
    """All clients, where their sizes decide the placement."""
    if placement != "auto" or jax.default_backend() == "cpu":
        return None
    everyone: federated.Client = jax.device_get(federated.all_clients(federation))
    return everyone


def _is_traced(federation: data.FederatedData) -> bool:
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(federation))


def _strong_augmentation(section: Mapping[str, Any], dataset: data.Dataset) -> Callable[[Array, Array], Array] | None:
    name = section["name"]
    if name == "none":
        return None
    takes_range = "input_max" in (data.accepted_options("augmentation", name) or ())
    stored = {"input_max": dataset.input_max} if takes_range else {}
    return data.augmentation(name, **stored, **configs.options(section))


def _federated_optimizer(server: Mapping[str, Any], local: Mapping[str, Any]) -> federated.FederatedOptimizer:
    rate = server["server_learning_rate"]
    # FedOpt's settings (Reddi et al., ICLR 2021): beta1 0.9, beta2 0.99, tau 1e-3.
    moments = {"b1": 0.9, "b2": 0.99, "eps": 1e-3}
    choices: dict[str, Callable[[], federated.FederatedOptimizer]] = {
        "fedavg": federated.fedavg,
        "fedprox": lambda: federated.fedprox(server["mu"]),
        "scaffold": lambda: federated.scaffold(rate),
        "fednova": lambda: federated.fednova(
            local["momentum"], server["mu"], nesterov=local["nesterov"], adaptive=local["name"] != "sgd"
        ),
        "fedavgm": lambda: federated.fedopt(optax.sgd(rate, server["server_momentum"])),
        "fedadam": lambda: federated.fedopt(optax.adam(rate, **moments)),
        "fedyogi": lambda: federated.fedopt(optax.yogi(rate, **moments)),
    }
    return choices[server["name"]]()


def device_mesh(config: ml_collections.ConfigDict) -> Mesh | None:
    """The devices that share the work of a run; None where it is one and sums need no devices.

    Raises:
        ConfigError: there are not so many, or several processes cannot share them evenly.
    """
    devices = distributed.run_devices(config.federated.devices)
    # Fixed-point sums differ from plain ones, so that one device has to add as several do.
    alone = len(devices) == 1 and config.federated.reduce != "fixed"
    return None if alone else Mesh(np.array(devices), ("clients",))


def _cohort_size(given: int | None, num_clients: int) -> int:
    if given is not None and not 1 <= given <= num_clients:
        raise configs.ConfigError(
            f"config.federated.cohort_size is {given}, but there are {num_clients} clients; allowed: 1..{num_clients}"
        )
    return num_clients if given is None else given
