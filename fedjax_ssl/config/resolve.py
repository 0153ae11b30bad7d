"""Config defaults and validation. A config file starts from `default(method)` and changes what it needs.

Every section that names something (dataset, partition, supervision, model, augmentation) also lists the options that
its choices take; None means the choice's own default. `config.method` holds the settings of its method only.
"""

import contextlib
import math
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import ml_collections
from ml_collections import config_dict

from fedjax_ssl import data, methods, models
from fedjax_ssl.federated import OPTIMIZERS, PLACEMENTS, REDUCTIONS, SCHEDULES, WEIGHTINGS
from fedjax_ssl.registry import did_you_mean

PREDICTORS = ("network", "xclp", "per_client_lp")
_INT, _FLOAT, _TEXT, _FLAG, _TUPLE = int, float, str, bool, tuple


class ConfigError(ValueError):
    """A setting that cannot be used; the message names the field, its value and what is allowed."""


class ConfigNote(UserWarning):
    """A setting that has no effect beside the others."""


def default(method: str = "fedavg") -> ml_collections.ConfigDict:
    """The config every experiment starts from: labels-only federated averaging on the embedded digits.

    Args:
        method: name of a method, whose settings become `config.method`.
    """
    config = ml_collections.ConfigDict()
    config.seed = 0  # decides everything random: partition, labels, cohorts, batches, initial network
    config.rounds = 100  # 0: no training, only the predictions below
    config.eval_every = 5  # rounds between evaluations, run as one compiled call
    config.checkpoint_every = 1  # evaluations between checkpoints; 0: only at the end
    config.precision = "float32"  # of forward and backward passes: or "bf16", with float32 parameters
    config.threads = config_dict.placeholder(_INT)  # of a CPU; one per core by default, 1 suits linear models

    config.data = _section(
        name="digits",
        path=_TEXT,  # npz: the file
        proportions=_TEXT,  # npz: class shares of its sets, a CSV file
        root=_TEXT,  # folder for downloads and caches; $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl by default
        download=True,
        num_classes=_INT,  # npz: where the labels do not show all classes
        input_max=_FLOAT,  # npz: stored value that becomes 1.0
        standardize=True,  # subtract the dataset's mean and divide by its deviation, where it has them
        size=_INT,  # fed_isic2019: height and width of the images
        writers=_INT,  # glyphs: how many writers are drawn
        test_clients=0,  # whole natural clients held out as test set
        left_out_client=_INT,  # this natural client is the test set
        test_fraction=0.0,  # share of the examples held out as test set, where the dataset has none
        client_test_fraction=0.0,  # share of every client's examples held out as its test examples
        validation_fraction=0.0,
    )
    config.partition = _section(
        name="natural",
        num_clients=_INT,  # all natural clients by default
        alpha=_FLOAT,
        min_examples=_INT,
        max_examples=_INT,
        shards_per_client=_INT,
        classes=_INT,
        shares=_TUPLE,
        balanced=_INT,
        factor=_FLOAT,
    )
    config.supervision = _section(
        name="all",
        labels=_INT,
        fraction=_FLOAT,
        class_balanced=_FLAG,
        classes=_INT,
        labelled_clients=_INT,  # only so many clients keep labels
        which=_TEXT,  # ... the "first" or "random" ones
        correspondence=_TEXT,  # coarse, mixed: which coarse labels
        overlap=_FLOAT,  # ... this share of them is random
        server_labels=_INT,  # coarse: class labels at the server
        sets=_INT,  # sets, mixed: unlabelled sets of each client
        set_counts=_TUPLE,  # ... or of client 0, 1, ...
        protocol=_TEXT,  # ... how sets are filled: "dealt", "drawn", "clean" or "reference"
        shared_shares=_FLAG,  # ... all clients' sets have the same shares
        test_prior=_TEXT,  # ... class shares at test time: "train", "uniform" or "sets"
        noise=_FLOAT,  # ... error of the class shares that clients know
        noise_mode=_TEXT,
        coarse_clients=_INT,  # mixed: so many clients with coarse labels
        set_clients=_INT,  # mixed: so many clients with sets
    )
    config.augment = _section(name="none", pixels=_INT, degrees=_FLOAT)
    config.strong_augment = _section(name="none", pixels=_INT, degrees=_FLOAT, flip=_FLAG, operations=_INT)
    config.model = _section(
        name="mlp",
        norm=_TEXT,
        hidden=_TUPLE,
        widen=_INT,  # wrn28: factor of the widths
        activation=_TEXT,
        weights=_TEXT,  # efficientnet_b0: pretrained weights, an .npz file
        stochastic_depth=_FLOAT,
        dropout=_FLAG,
        dropout_rate=_FLOAT,
        normalize_features=_FLAG,
        aux_head=_FLAG,
        stem=_TEXT,
        lowering=_TEXT,
    )
    config.method = ml_collections.ConfigDict({"name": method, **methods.settings(method)})
    config.optimizer = _section(
        name="sgd",
        learning_rate=0.1,
        schedule="constant",  # or "cosine" over schedule_rounds
        schedule_rounds=_INT,  # rounds by default
        momentum=0.0,
        nesterov=False,
        weight_decay=0.0,
        clip_norm=_FLOAT,  # largest norm of a gradient; no clipping by default
        batch_size=10,
        local_epochs=1,
    )
    config.federated = _section(
        name="fedavg",  # fedprox, scaffold, fednova, fedavgm, fedadam, fedyogi
        cohort_size=_INT,  # clients per round; all by default
        weighting="uniform",  # or "examples", "labelled"
        mu=_FLOAT,  # fedprox (0.01 by default), fednova (0)
        server_learning_rate=_FLOAT,  # scaffold, fedavgm (1 by default), fedadam, fedyogi (0.01)
        server_momentum=0.5,  # fedavgm
        placement="auto",  # or "sequential", "vmap", "chunked", "lanes"
        chunk_size=_INT,  # clients at once on a device, with "chunked" or "lanes"; by default as many as fit
        devices=_INT,  # that share each cohort; one, or all of several processes, by default
        reduce="ordered",  # sums over devices: or "fixed", "fast"
    )
    config.prediction = _section(
        predictors="",  # "network,xclp,per_client_lp": label the clients' test examples after the last round
        features="network",  # what the graphs compare: features of the "network", or "inputs" as they are stored
        variant="both",  # settings of the "paper", of the authors' "code", or "both"
        unlabelled="with",  # unlabelled training examples in the graphs: "with", "without", or "both"
        similarity="exact",  # per_client_lp: "exact" cosines or "lsh"
        num_bits=4096,
        num_neighbors=10,
        alpha=0.99,
        similarity_power=_FLOAT,  # the variant's by default, as the next two
        label_norm=_TEXT,
        confidence_scale=_TEXT,
        groups=1,  # xclp: clients are cut at random into so many groups with a graph each
        new_batch_size=_INT,  # new examples that a client brings at a time; all by default
        neighbor_search="exact",  # xclp: or "approximate", for millions of points
    )
    config.distributed = _section(
        coordinator=_TEXT,  # host:port of process 0; one process by default. Or set $FEDJAX_SSL_COORDINATOR,
        num_processes=_INT,  # ... $FEDJAX_SSL_NUM_PROCESSES and
        process_id=_INT,  # ... $FEDJAX_SSL_PROCESS_ID
        auto=False,  # take the three from Slurm, Open MPI, GKE or a TPU
        heartbeat_seconds=30,  # without a sign of life until a process counts as dead
        shutdown_seconds=60,  # that processes wait for each other at the end
        initialization_seconds=120,  # ... and at the start
        stall_minutes=60.0,  # without a finished block of rounds until a process gives up; 0: never
    )
    return config.lock()


def _section(**fields: Any) -> ml_collections.ConfigDict:
    """A section; a bare type stands for a field that is None until it is set."""
    return ml_collections.ConfigDict(
        {name: config_dict.placeholder(value) if isinstance(value, type) else value for name, value in fields.items()}
    )


def options(section: ml_collections.ConfigDict) -> dict[str, Any]:
    """The options of a section that were set: everything but `name` that is not None."""
    return {key: value for key, value in section.items() if key != "name" and value is not None}


def resolve(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """A checked copy in which every None that has a common default is filled in.

    If `config.method.name` was overridden, `config.method` is given the settings of that method: those that both have
    keep their value.

    Args:
        config: as a config file and the command line left it.

    Returns:
        A locked config.

    Raises:
        ConfigError: naming the field, its value and what is allowed.
    """
    resolved = ml_collections.ConfigDict(config.to_dict())
    name = resolved.method.name
    try:
        known = methods.settings(name)
    except ValueError as error:
        raise ConfigError(f"config.method.name: {error}") from None
    _refuse_unknown(resolved)
    given = resolved.method.to_dict()
    resolved.method = ml_collections.ConfigDict(
        {"name": name, **{key: given.get(key, value) for key, value in known.items()}}
    )
    for section, kind in _CHOICES.items():
        _drop_unused(resolved, section, kind)
    if resolved.optimizer.schedule_rounds is None:
        resolved.optimizer.schedule_rounds = max(resolved.rounds, 1)
    if resolved.federated.devices is None:
        resolved.federated.devices = jax.device_count() if jax.process_count() > 1 else 1
    if resolved.federated.mu is None:
        resolved.federated.mu = 0.0 if resolved.federated.name == "fednova" else 0.01
    if resolved.federated.server_learning_rate is None:
        resolved.federated.server_learning_rate = 1.0 if resolved.federated.name in ("scaffold", "fedavgm") else 0.01
    _check_stages(resolved)
    _check_prediction(resolved)
    for field, lowest in _LOWEST.items():
        value = get(resolved, field)
        if value is None and field in _CHOSEN_LATER:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not lowest <= value < math.inf:
            raise ConfigError(f"config.{field} is {value!r}; it must be a finite number of at least {lowest}")
    for field, allowed in _ALLOWED.items():
        value = get(resolved, field)
        if value not in allowed:
            names = [name for name in allowed if name is not None]
            hint = did_you_mean(value, names)
            raise ConfigError(f"config.{field} is {value!r}.{hint} Allowed: {', '.join(names)}")
    check_federated_optimizer(resolved)
    return resolved.lock()


def check_federated_optimizer(config: Any) -> None:
    """What the federated optimizer takes for granted about local training.

    Args:
        config: a config or a dictionary like one, in which numbers may be traced.

    Raises:
        ConfigError: naming the fields.
    """
    local, server = config["optimizer"], config["federated"]
    plain = isinstance(local["momentum"], (int, float)) and local["momentum"] == 0 and local["clip_norm"] is None
    if server["name"] == "scaffold" and (local["name"] != "sgd" or not plain):
        raise ConfigError(
            "config.federated.name is 'scaffold', whose control variates are mean gradients of plain SGD, but "
            f"config.optimizer has name={local['name']!r}, momentum={local['momentum']}, "
            f"clip_norm={local['clip_norm']}; use config.optimizer.name='sgd', momentum=0.0 and clip_norm=None, or "
            "another config.federated.name"
        )
    shrinkage = server["mu"] * local["learning_rate"]
    if server["name"] == "fednova" and isinstance(shrinkage, float) and shrinkage >= 1:
        raise ConfigError(
            f"config.federated.mu is {server['mu']} and config.optimizer.learning_rate {local['learning_rate']}; "
            "with fednova their product must be below 1"
        )
    momentum = server["server_momentum"]
    if isinstance(momentum, (int, float)) and not 0 <= momentum < 1:
        raise ConfigError(f"config.federated.server_momentum is {momentum}; it must lie in [0, 1)")


def _check_stages(config: ml_collections.ConfigDict) -> None:
    """The model at the end of stage 1 is a candidate of model selection, so it has to be evaluated."""
    warmup = config.method.get("warmup_rounds", 0)
    name = "coarse_rounds" if "coarse_rounds" in config.method else "warmup_rounds"
    first = config.method.get(name, 0)
    if isinstance(first, int) and 0 < config.rounds <= first:
        stages = (
            f"config.rounds is {config.rounds}, stage 1 alone takes {first} (config.method.{name}): no stage 2 here"
        )
        warnings.warn(stages, ConfigNote, stacklevel=3)
    if config.data.validation_fraction and isinstance(warmup, int) and warmup % config.eval_every:
        raise ConfigError(
            f"config.method.warmup_rounds is {warmup}; with validation data it must be a multiple of "
            f"config.eval_every ({config.eval_every}), so that the model of stage 1 is evaluated"
        )


def predictors(config: ml_collections.ConfigDict) -> list[str]:
    """Names in `config.prediction.predictors`."""
    return [name.strip() for name in config.prediction.predictors.split(",") if name.strip()]


def _check_prediction(config: ml_collections.ConfigDict) -> None:
    section, names = config.prediction, predictors(config)
    if len(set(names)) < len(names):
        raise ConfigError(f"config.prediction.predictors is {section.predictors!r}, which names one of them twice")
    for name in names:
        if name not in PREDICTORS:
            hint = did_you_mean(name, PREDICTORS)
            raise ConfigError(
                f"config.prediction.predictors names {name!r}.{hint} Allowed, with commas between: "
                f"{', '.join(PREDICTORS)}"
            )
    if not config.rounds and not names:
        raise ConfigError(
            "config.rounds is 0 and config.prediction.predictors names nothing, so there is nothing to do; train at "
            "least one round, or name predictors"
        )
    if not config.rounds and "network" in names:
        raise ConfigError(
            "config.prediction.predictors names 'network', whose classifier config.rounds=0 leaves untrained; "
            "train it, or leave it out"
        )
    untrained = not config.rounds and not config.model.weights
    if {"xclp", "per_client_lp"} & set(names) and section.features == "network" and untrained:
        raise ConfigError(
            "config.prediction.features is 'network', whose weights config.rounds=0 leaves random; train it, give "
            "config.model.weights (efficientnet_b0), or use --config.prediction.features=inputs"
        )
    if not 0 <= section.alpha < 1:
        raise ConfigError(f"config.prediction.alpha is {section.alpha}; it must lie in [0, 1), for example 0.99")
    for field, lowest in (("similarity_power", "above 0"), ("new_batch_size", "at least 1")):
        if section[field] is not None and section[field] <= 0:
            raise ConfigError(f"config.prediction.{field} is {section[field]}; it must be {lowest}")
    if section.neighbor_search == "approximate" and section.groups > 1:
        raise ConfigError(
            f"config.prediction.groups is {section.groups} and neighbor_search is 'approximate', which is for one "
            "graph of all clients; use one of them"
        )


def _refuse_unknown(config: ml_collections.ConfigDict) -> None:
    """A config file may unlock the config and misspell a field, which nothing would read."""
    known = {field for field in _fields(default().to_dict()) if not field.startswith("method.")}
    for method in (*methods.available(), config.method.name):
        known |= {f"method.{setting}" for setting in ("name", *methods.settings(method))}
    for field in _fields(config.to_dict()):
        if field not in known:
            hint = did_you_mean(f"config.{field}", (f"config.{name}" for name in known))
            raise ConfigError(f"config.{field} is no field of a config.{hint}")


def _fields(config: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _fields(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def _drop_unused(config: ml_collections.ConfigDict, section: str, kind: str) -> None:
    """Options of a choice that was overridden by another one: the new choice need not take them."""
    choice = config[section]
    accepted = data.accepted_options(kind, choice.name)
    if accepted is None:
        return  # no such choice: building it says which there are
    for option in options(choice):
        if option not in accepted:
            warnings.warn(
                f"config.{section}.{option}={choice[option]} has no effect: {kind} {choice.name!r} does not take it",
                ConfigNote,
                stacklevel=3,
            )
            choice[option] = None


@contextlib.contextmanager
def naming(section: str) -> Iterator[None]:
    """Turns a ValueError of a room into a `ConfigError` that names the section of the config it came from."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"config.{section}: {error}") from error


def get(config: Any, field: str) -> Any:
    """The value of a dotted field, for example "optimizer.learning_rate"."""
    for part in field.split("."):
        config = config[part]
    return config


def replace_number(config: dict[str, Any], field: str, value: Any) -> None:
    """Puts a value, which may be traced, in place of a real-valued setting.

    Raises:
        ConfigError: there is no such field, or it is not a real number, so that it decides shapes or code.
    """
    section, _, name = field.rpartition(".")
    known = sorted(
        name
        for name in _fields(config)
        if isinstance(get(config, name), float) and name.split(".")[0] in ("optimizer", "federated", "method")
    )
    if field not in known:
        raise ConfigError(f"hyperparameter {field!r} is no real-valued setting of this config; these are: {known}")
    get(config, section)[name] = value


_CHOICES = {
    "partition": "partition",
    "supervision": "supervision",
    "augment": "augmentation",
    "strong_augment": "augmentation",
}
_CHOSEN_LATER = ("threads", "federated.chunk_size")  # None: it follows from the device
_LOWEST = {
    "seed": 0,
    "rounds": 0,
    "eval_every": 1,
    "checkpoint_every": 0,
    "threads": 1,
    "data.test_clients": 0,
    "data.test_fraction": 0.0,
    "data.validation_fraction": 0.0,
    "optimizer.learning_rate": 0.0,
    "optimizer.schedule_rounds": 1,
    "optimizer.weight_decay": 0.0,
    "optimizer.batch_size": 1,
    "optimizer.local_epochs": 1,
    "federated.mu": 0.0,
    "federated.server_learning_rate": 0.0,
    "federated.chunk_size": 1,
    "federated.devices": 1,
    "prediction.num_bits": 1,
    "prediction.num_neighbors": 1,
    "prediction.groups": 1,
}
_ALLOWED: dict[str, tuple[str | None, ...]] = {
    "precision": tuple(models.PRECISIONS),
    "optimizer.name": OPTIMIZERS,
    "optimizer.schedule": SCHEDULES,
    "federated.name": ("fedavg", "fedprox", "scaffold", "fednova", "fedavgm", "fedadam", "fedyogi"),
    "federated.weighting": tuple(WEIGHTINGS),
    "federated.placement": PLACEMENTS,
    "federated.reduce": REDUCTIONS,
    "prediction.features": ("network", "inputs"),
    "prediction.variant": ("paper", "code", "both"),
    "prediction.unlabelled": ("with", "without", "both"),
    "prediction.similarity": ("exact", "lsh"),
    "prediction.label_norm": (None, "none", "class"),
    "prediction.confidence_scale": (None, "none", "max"),
    "prediction.neighbor_search": ("exact", "approximate"),
}
