"""From a resolved config to the parts of a run: dataset, federation, method and execution."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Key

from fedjax_ssl import config as configs
from fedjax_ssl import data, federated, methods, models
from fedjax_ssl.backend import backend
from fedjax_ssl.data import FederatedData
from fedjax_ssl.data.fingerprint import fingerprint
from fedjax_ssl.data.reading.table_reading import TableReading
from fedjax_ssl.errors import counted
from fedjax_ssl.federated import Execution, Facts, Method, Recipe, Setup
from fedjax_ssl.federated.uploads import (
    FAULTS,
    SUMS,
    upload_transforms,
)
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.around import WRAPPERS
from fedjax_ssl.objectives import INVERSE, RowLoss, supervised_loss
from fedjax_ssl.runs.devices import choose_devices
from fedjax_ssl.runs.privacy import Account, PrivateRun, account_of, privacy_of, start_digest
from fedjax_ssl.runs.processes import run_devices

_AXES_OF_IMAGES = 4
Start = Callable[[models.Model], models.Model]  # gives a network other initial weights


class Experiment(NamedTuple):
    """A resolved config with its dataset loaded: everything about a run except randomness."""

    config: ml_collections.ConfigDict
    dataset: data.Dataset
    standardization: str = ""  # statistics that standardize inputs, in words, for the log
    host: data.HostInputs | None = None
    # ^ inputs that stay on the host; None: all are on the device
    known_by: Mapping[str, int | str] = {}  # fingerprint of the data as read
    stored: data.Dataset | None = None  # the dataset as read, if standardizing by client changed it

    @property
    def as_read(self) -> data.Dataset:
        """Dataset before inputs are standardized by client; it identifies examples."""
        return self.stored or self.dataset


class Built(NamedTuple):
    """Dataset, federation, method and devices of a run, before anything is compiled.

    Attributes:
        experiment: config and dataset.
        federation: drawn from the dataset.
        method: the method, for this federation.
        execution: placement of clients on devices.
        account: privacy account; None: no privacy.
    """

    experiment: Experiment
    federation: FederatedData
    method: Method
    execution: Execution
    account: Account | None


def load_experiment(config: ml_collections.ConfigDict) -> Experiment:
    """Check a config and load its dataset.

    Raises:
        ConfigError: a setting cannot be used.
        DatasetUnavailable: the dataset is not on disk and could not be downloaded.
    """
    return load_resolved(configs.resolve(config))


def load_resolved(config: ml_collections.ConfigDict) -> Experiment:
    """Load the dataset of a config that is resolved; raises as `load_experiment`."""
    section = config.data
    with configs.naming("data"):
        given = {name: section.get(name) for name in data.SOURCES.options(section.name)}
        # If an option is at its default, the loader's own default of this name counts.
        for field, option in configs.FIELDS.items():
            of, _, name = field.partition(".")
            if of == "data" and given.get(name) == option.default:
                given.pop(name, None)
        places = {"root": section.root, "path": section.path, "download": section.download}
        places["left_out_client"] = section.left_out_client
        dataset = data.load(section.name, **places, **configs.options(given))
        known_by = fingerprint(dataset)
        if section.pool_splits:
            dataset = data.with_pooled_splits(dataset)
        if config.privacy.name != "none":
            _check_facts_of_all(config, dataset)
        statistics = (section.standardize, section.mean, section.std, section.left_out_client)
        stored = dataset if section.standardize == "client" else None
        dataset, said = data.standardized(dataset, *statistics)
        _, more = data.for_prediction(dataset, section.test_mean, section.test_std)
        if dataset.views is not None:
            more += f"; {data.views_in_words(dataset.views)}"
        return Experiment(config, dataset, said + more, known_by=known_by, stored=stored)


def _check_facts_of_all(config: ml_collections.ConfigDict, dataset: data.Dataset) -> None:
    """Raise ConfigError if a private client would use statistics of all clients' examples."""
    section = config.data
    begin = f"config.privacy.name is set, but dataset {section.name!r} "
    known = (dataset.mean, dataset.std, section.mean, section.std)
    if section.standardize == "auto" and all(one is None for one in known):
        raise configs.ConfigError(
            f"{begin}has no mean and deviation of its own, and those of all clients' examples "
            "would be known; give config.data.mean and config.data.std, or "
            "config.data.standardize=none"
        )
    if section.standardize == "client" and dataset.train.x.ndim == _AXES_OF_IMAGES:
        raise configs.ConfigError(
            f"{begin}has images, which config.data.standardize=client brings to the mean "
            "brightness of all clients; give config.data.mean and config.data.std, or "
            "config.data.standardize=none"
        )
    if dataset.train.set is not None and configs.divides_by_shares(config):
        raise configs.ConfigError(
            f"{begin}has sets, whose class shares clients divide by those of all clients' "
            "examples; use config.supervision.test_prior=uniform"
        )
    learned = dataset.reading.learned if isinstance(dataset.reading, TableReading) else {}
    for what, instead in learned.items():
        raise configs.ConfigError(
            f"{begin}is read by {what}, which are those of all clients' rows and stay in "
            f"model.json; {instead}"
        )


def drawing_of(experiment: Experiment) -> data.Drawing | None:
    """Return the drawing that makes federations of the config from keys; None: a file has the
    split.

    Raises:
        ConfigError: a setting cannot be used.
    """
    config = experiment.config
    section = config.data
    if section.split:
        return None
    partition_options = configs.options(config.partition)
    num_clients = partition_options.pop("num_clients", None)
    partition_options.pop("pooled", None)
    with configs.naming("data, config.partition or config.supervision"):
        return data.Drawing(
            experiment.dataset,
            config.partition.name,
            num_clients,
            partition_options,
            config.supervision.name,
            configs.options(config.supervision),
            data.HeldOut(**{one.name: section[one.name] for one in fields(data.HeldOut)}),
        )


def federate(
    experiment: Experiment,
    key: Key[Array, ""],
    inputs: Array | None = None,
    drawing: data.Drawing | None = None,
) -> FederatedData:
    """Draw the federation of a config, with all randomness from `key`; with `config.data.split`,
    nothing is random.

    Args:
        experiment: config and dataset.
        key: key of the run.
        inputs: inputs of another federation of this experiment, to share them; they may be traced.
            Not used if they stay on the host.
        drawing: drawing of a config that differs by seed alone, to share its compiled program.
    """
    federation = _drawn(experiment, key, inputs, drawing)
    fault = fault_of(experiment.config)
    return federation if fault is None else fault.in_federation(federation, key)


def _drawn(
    experiment: Experiment,
    key: Key[Array, ""],
    inputs: Array | None,
    drawing: data.Drawing | None,
) -> FederatedData:
    """Draw the federation, as `federate` does, with all labels that exist."""
    config = experiment.config
    section = experiment.config.data
    given = inputs if experiment.host is None else experiment.host
    if section.split:
        with configs.naming("data.split"):
            path = data.split_path(section.split, config.seed)
            return data.federate_by_file(path, experiment.dataset, given)
    drawing = drawing or drawing_of(experiment)
    assert drawing is not None
    with configs.naming("data, config.partition or config.supervision"):
        federation = drawing(named_key(key, "data"), given)
        if not configs.options(config.partition).get("pooled", False):
            return federation
        return data.pooled(federation, not drawing.held_out.num_natural)


def build(
    experiment: Experiment,
    federation: FederatedData,
    numbers: Mapping[str, Array] | None = None,
    start: Start | None = None,
) -> Built:
    """Build federation, method and devices of a run.

    Args:
        experiment: config and dataset.
        federation: with its arrays, as shapes, or traced.
        numbers: values that replace fields of the config, by dotted name; they may be traced.
        start: gives the network its first weights, in place of random ones.
    """
    section = experiment.config.federated
    # A traced method may be vectorized over any number of runs.
    alone = not any(
        isinstance(leaf, jax.core.Tracer | jax.ShapeDtypeStruct)
        for leaf in jax.tree.leaves((federation, numbers))
    )
    execution = Execution(
        placement=section.placement,
        chunk_size=section.chunk_size,
        mesh=device_mesh(choose_devices(experiment.config, experiment.dataset)),
        reduce=section.reduce,
        all_clients=_clients_of_known_size(federation) if alone else None,
    )
    account = account_of_run(experiment.config, federation)
    method = build_method(experiment, federation, execution, account, numbers, start=start)
    return Built(experiment, federation, method, execution, account)


def build_method(
    experiment: Experiment,
    federation: FederatedData,
    execution: Execution,
    account: Account | None = None,
    numbers: Mapping[str, Array] | None = None,
    *,
    start: Start | None = None,
    loss: RowLoss | None = None,
) -> Method:
    """Build the method that the config names, for this federation.

    Args:
        experiment: config and dataset.
        federation: federation, for its sizes.
        execution: execution of its rounds.
        account: privacy account of the run.
        numbers: as for `build`.
        start: as for `build`.
        loss: loss in place of the config's.
    """
    config = configs.replace_numbers(experiment.config, numbers or {})
    facts = facts_of(config, federation)
    setup = setup_of(config, experiment.dataset, federation, facts)
    if loss is not None:
        setup = setup._replace(loss=loss)
    if start is not None:
        setup = setup._replace(model=start(setup.model))
    settings = config["method"]
    with configs.naming("uploads"):
        asked = upload_transforms(config["uploads"], facts)
        fault = fault_of(config)
        wrong = () if fault is None else fault.in_uploads(facts.num_clients)
        setup = setup._replace(uploads=(*wrong, *asked))
    own = config["personalize"]
    names = ("name", *WRAPPERS.options(own["name"]))
    personalize = {name: own[name] for name in names if own[name] is not None}
    settings |= {"around": config["around"], "facts": facts, "personalize": personalize}
    settings["train"] = config["model"]["train"]
    protect = _protection(account, config)
    with configs.naming("method"):
        method = methods.build(settings.pop("name"), setup, protect=protect, **settings)
        return federated.execute(method, execution)


def facts_of(config: Any, federation: FederatedData) -> Facts:
    """Return the sizes that builders of a run get.

    Args:
        config: resolved, or a dictionary like one.
        federation: gives the number of clients that train.
    """
    number = federation.num_clients
    return Facts(number, cohort_size_of(config, number), config["rounds"])


def fault_of(config: Any) -> Any:
    """Return the fault of a resolved config, or of such a dictionary; None if there is none."""
    section = config["faults"]
    with configs.naming("faults"):
        return FAULTS.build(section["name"], share=section["share"], factor=section["factor"])


def network_of(config: dict[str, Any], dataset: data.Dataset, num_classes: int) -> models.Model:
    """Build the network that a config names."""
    with configs.naming("model"):
        model = models.build(
            config["model"]["name"],
            num_classes=num_classes,
            input_shape=dataset.input_shape,
            **configs.network_options(config["model"]),
        )
        return models.in_precision(model, config["precision"])


def setup_of(
    config: dict[str, Any],
    dataset: data.Dataset,
    federation: FederatedData,
    facts: Facts,
) -> Setup:
    """Gather model, inputs, optimizers and sizes."""
    local = config["optimizer"]
    server = config["federated"]
    inputs = config["data"]
    model = network_of(config, dataset, federation.num_classes)
    with configs.naming("cohort"):
        draw_cohort = federated.cohort_sampler(
            config["cohort"]["name"], **configs.options(config["cohort"]), facts=facts
        )
    with configs.naming("participation"):
        participation = federated.participation(**config["participation"])
    federated_optimizer = configs.federated_optimizer(config, facts)
    local_optimizer, learning_rate = configs.local_training(config, facts)
    with configs.naming("sum"):
        combine_uploads = SUMS.build(config["sum"]["name"], **configs.options(config["sum"]))
    with configs.naming("loss"):
        loss = _loss_of(config["loss"], federation)
    predicted, _ = data.for_prediction(dataset, inputs["test_mean"], inputs["test_std"])
    augment = augmentation_of("augment", config, dataset)
    strong_augment = None
    if config["strong_augment"]["name"] != "none" or dataset.views is not None:
        strong_augment = augmentation_of("strong_augment", config, dataset)
    with configs.naming("optimizer"):
        return Setup(
            model=model,
            normalize=data.normalizer(dataset),
            normalize_test=None if predicted is dataset else data.normalizer(predicted),
            augment=augment,
            strong_augment=strong_augment,
            stored_views=None if dataset.views is None else dataset.views.weak,
            federated_optimizer=federated_optimizer,
            local_optimizer=local_optimizer,
            learning_rate=learning_rate,
            loss=loss,
            num_classes=federation.num_classes,
            max_labelled=federation.max_labelled,
            max_unlabelled=federation.max_unlabelled_at_once,
            max_known=federation.max_known,
            max_server=federation.server_index.shape[-1],
            cohort_size=facts.cohort_size,
            batch_size=local["batch_size"],
            local_epochs=local["local_epochs"],
            local_steps=local["local_steps"],
            weighting=server["weighting"],
            combine_uploads=combine_uploads,
            keep_optimizer=local["keep_state"],
            average_optimizer=local["average_state"],
            rounds=facts.rounds,
            min_labelled=federation.min_labelled,
            draw_cohort=draw_cohort,
            num_parts=federation.num_parts,
            local_scores="local" in config["metrics"],
            participation=participation,
        )


def _protection(
    account: Account | None, config: dict[str, Any]
) -> Callable[[Recipe], Recipe] | None:
    """Return the function that makes a method private, as the config says; None: no privacy.

    Args:
        account: of the run.
        config: resolved, with numbers in it that may be traced.
    """
    mechanism = privacy_of(config)
    if mechanism is None or account is None:
        return None
    noise = account.noise if mechanism.noise is None else mechanism.noise
    return partial(mechanism.private, noise=noise, cohorts=account.cohorts)


def round_key(config: ml_collections.ConfigDict, key: Key[Array, ""]) -> Key[Array, ""]:
    """Return the key of a run's rounds: the run's own key, unless a private run starts from trained
    weights.

    These weights may come from private rounds, even through a run without privacy. With the same
    cohorts and noise as in these rounds, the difference of two models would have no noise at all.

    Args:
        config: resolved.
        key: of the run.
    """
    if config.privacy.name == "none" or not config.start_from:
        return key
    return jax.random.fold_in(named_key(key, "rounds"), start_digest(config.start_from))


def account_of_run(config: ml_collections.ConfigDict, federation: FederatedData) -> Account | None:
    """Return the account of a run's privacy; None: no privacy.

    Args:
        config: resolved.
        federation: gives sizes.
    """
    clients = federation.num_clients
    labelled = (federation.min_labelled, federation.max_labelled)
    return account_of(config, clients, expected_of(config, clients), labelled)


def privacy_of_run(built: Built) -> PrivateRun | None:
    """Return the privacy of a run; None: no privacy."""
    config = built.experiment.config
    mechanism = privacy_of(config)
    if mechanism is None or built.account is None:
        return None
    outside = []
    if config.data.standardize == "client":
        outside.append(
            "mean and deviation of each client (config.data.standardize=client), which model.json "
            "keeps: do not give that file away"
        )
    if config.data.name == "features":
        outside.append("what the encoder of config.data.path learned, if from these clients")
    return mechanism.in_run(built.account, config.rounds, tuple(outside))


def _loss_of(section: dict[str, Any], federation: FederatedData) -> RowLoss:
    """Build the loss of labelled examples, from the labels visible to clients and server."""
    weights = section["class_weights"]
    counts = None
    if weights is not None and tuple(weights) != INVERSE and len(weights) != federation.num_classes:
        raise ValueError(
            f"class_weights has {len(weights)} numbers; the data have {federation.num_classes} "
            "classes"
        )
    asked = section["logit_adjustment"] or (weights is not None and tuple(weights) == INVERSE)
    if asked and not isinstance(federation.observed, jax.ShapeDtypeStruct):
        server = jnp.arange(federation.server_index.shape[-1]) < federation.num_server
        server = jnp.where(server, federation.observed[federation.server_index], -1)
        seen = jnp.concatenate([federation.observed_by_clients.ravel(), server])
        counts = jnp.sum(seen[:, None] == jnp.arange(federation.num_classes), axis=0)
    return supervised_loss(counts=counts, **section)


def device_mesh(devices: int) -> Mesh | None:
    """Make the mesh of devices that share the work of a run; None for a single device.

    Args:
        devices: how many, over all processes.

    Raises:
        ConfigError: there are fewer, or several processes cannot share them evenly.
    """
    found = run_devices(devices)
    return None if len(found) == 1 else Mesh(np.array(found), ("clients",))


def augmentation_of(
    kind: str, config: Any, dataset: data.Dataset
) -> Callable[[Array, Array], Array]:
    """Build the augmentation of a run, or the draw among stored views.

    Args:
        kind: "augment" or "strong_augment".
        config: resolved, or a dictionary like one.
        dataset: the run's.
    """
    name = config[kind]["name"]
    with configs.naming(kind):
        if dataset.views is not None:
            if name != "none":
                raise ValueError(
                    f"name is {name!r}, but the features of data.path hold views of their own, "
                    f"from which methods draw; use --{kind}.name=none"
                )
            return data.drawn_views(dataset.views, strong=kind == "strong_augment")
        takes_range = data.AUGMENTATIONS.takes(name, "input_max")
        stored = {"input_max": dataset.input_max} if takes_range else {}
        return data.augmentation(name, **stored, **configs.options(config[kind]))


def _clients_of_known_size(federation: FederatedData) -> federated.Client | None:
    """Return all clients, if their sizes decide the placement and the length of loops of local
    steps; otherwise None.
    """
    if backend() == "cpu":
        return None
    clients: federated.Client = jax.device_get(federated.all_clients(federation))
    return clients


def cohort_size_of(config: Any, number: int) -> int:
    """Return the cohort size for a number of clients that train."""
    expected = expected_of(config, number)
    mechanism = privacy_of(config)
    if mechanism is None:
        return expected
    with configs.naming("privacy"):
        return mechanism.slots_of(number, expected)


def expected_of(config: Any, number: int) -> int:
    """Return the clients of a round for a number of clients that train; the mean, if cohorts
    vary.
    """
    given = config["federated"]["cohort_size"]
    held_out = config["data"]["test_clients"]
    if given is not None and given > number:
        beside = f" ({held_out} held out by data.test_clients)" if held_out else ""
        raise configs.ConfigError(
            f"config.federated.cohort_size is {given}, but there {'is' if number == 1 else 'are'} "
            f"{counted(number, 'client')}{beside}; allowed: 1..{number}"
        )
    return number if given is None else given
