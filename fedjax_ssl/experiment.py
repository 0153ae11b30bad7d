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
from fedjax_ssl import data, federated, methods, models
from fedjax_ssl.federated import Method, Setup
from fedjax_ssl.keys import named_key


class Experiment(NamedTuple):
    """A resolved config with its dataset loaded: everything about a run but its randomness."""

    config: ml_collections.ConfigDict
    dataset: data.Dataset


def load_experiment(config: ml_collections.ConfigDict) -> Experiment:
    """Checks a config and loads its dataset.

    Raises:
        ConfigError: a setting cannot be used.
        DatasetUnavailable: the dataset is not on disk and could not be downloaded.
    """
    resolved = configs.resolve(config)
    section = resolved.data
    given = {
        name: section[name] for name in ("num_classes", "input_max", "writers", "size") if section[name] is not None
    }
    with configs.naming("data"):
        dataset = data.load(section.name, root=section.root, path=section.path, download=section.download, **given)
    return Experiment(resolved, dataset)


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
        )


def build_method(
    experiment: Experiment, federation: data.FederatedData, hyperparameters: Mapping[str, Array] | None = None
) -> Method:
    """The method that the config names, for this federation.

    Args:
        experiment: config and dataset.
        federation: gives sizes; its contents are not read.
        hyperparameters: values that replace fields of the config, by dotted name; they may be traced.
    """
    config = experiment.config.to_dict()
    for field, value in (hyperparameters or {}).items():
        configs.replace_number(config, field, value)
    local, server = config["optimizer"], config["federated"]
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
    with configs.naming("optimizer or config.federated"):
        setup = Setup(
            model=model,
            normalize=data.normalizer(experiment.dataset),
            augment=augment,
            federated_optimizer=_federated_optimizer(server),
            local_optimizer=federated.local_optimizer(
                local["name"],
                momentum=local["momentum"],
                nesterov=local["nesterov"],
                weight_decay=local["weight_decay"],
            ),
            learning_rate=federated.learning_rate_schedule(
                local["schedule"], local["learning_rate"], local["schedule_rounds"]
            ),
            num_classes=federation.num_classes,
            max_labelled=federation.max_labelled,
            max_unlabelled=federation.max_unlabelled,
            cohort_size=_cohort_size(server["cohort_size"], federation.num_clients),
            batch_size=local["batch_size"],
            local_epochs=local["local_epochs"],
            weighting=server["weighting"],
            placement=server["placement"],
            chunk_size=server["chunk_size"],
            mesh=device_mesh(experiment.config),
            reduce=server["reduce"],
        )
    with configs.naming("method"):
        settings = {name: value for name, value in config["method"].items() if name != "name"}
        return methods.build(config["method"]["name"], setup, **settings)


def _federated_optimizer(server: Mapping[str, Any]) -> federated.FederatedOptimizer:
    rate = server["server_learning_rate"]
    # FedOpt's settings (Reddi et al., ICLR 2021): beta1 0.9, beta2 0.99, tau 1e-3.
    moments = {"b1": 0.9, "b2": 0.99, "eps": 1e-3}
    choices: dict[str, Callable[[], federated.FederatedOptimizer]] = {
        "fedavg": federated.fedavg,
        "fedprox": lambda: federated.fedprox(server["mu"]),
        "fedadam": lambda: federated.fedopt(optax.adam(rate, **moments)),
        "fedyogi": lambda: federated.fedopt(optax.yogi(rate, **moments)),
    }
    return choices[server["name"]]()


def device_mesh(config: ml_collections.ConfigDict) -> Mesh | None:
    """The devices that share the work of a run; None where it is one and sums need no devices.

    Raises:
        ConfigError: there are not so many.
    """
    devices, available = config.federated.devices, jax.device_count()
    if devices > available:
        raise configs.ConfigError(f"config.federated.devices is {devices}; devices here: {available}")
    # Fixed-point sums differ from plain ones, so that one device has to add as several do.
    alone = devices == 1 and config.federated.reduce != "fixed"
    return None if alone else Mesh(np.array(jax.devices()[:devices]), ("clients",))


def _cohort_size(given: int | None, num_clients: int) -> int:
    if given is not None and not 1 <= given <= num_clients:
        raise configs.ConfigError(
            f"config.federated.cohort_size is {given}, but there are {num_clients} clients; allowed: 1..{num_clients}"
        )
    return num_clients if given is None else given
