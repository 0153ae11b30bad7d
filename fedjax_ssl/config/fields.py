"""The fields of a config: default, meaning, and what is allowed.

Every section that names something (dataset, partition, supervision, model, augmentation, federated optimizer) has the
options of all its choices besides, taken from the parameters of the functions that build them and explained in their
docstrings; None means the choice's own default. `config.method` holds the settings of its method only.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import ml_collections
from ml_collections import config_dict

from fedjax_ssl import methods, secure
from fedjax_ssl.checks import check_choices as one_of
from fedjax_ssl.checks import check_numbers as number
from fedjax_ssl.checks import check_several as several
from fedjax_ssl.checks import check_whole_numbers as whole
from fedjax_ssl.config.errors import ConfigError, naming
from fedjax_ssl.config.ranges import COUNT_OR_NONE, FINITE, POSITIVE, Range, check_range, range_of
from fedjax_ssl.data import AUGMENTATIONS, ORIGINS, PARTITIONS, RESIDENCES, SOURCES, STANDARDIZATIONS, SUPERVISIONS
from fedjax_ssl.federated import (
    COHORTS,
    FEDERATED_OPTIMIZERS,
    KEEP_BY,
    OPTIMIZERS,
    PLACEMENTS,
    REDUCTIONS,
    SCHEDULES,
    WEIGHTINGS,
    scores,
)
from fedjax_ssl.models import MODELS, PRECISIONS
from fedjax_ssl.registry import Registry
from fedjax_ssl.runs.writers import WRITERS

WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    object: "a whole number or a name",
    tuple: "values with commas between, for example 64,64",
}
CHOICES: dict[str, Registry[Any]] = {  # section -> what its name is one of
    "data": SOURCES,
    "partition": PARTITIONS,
    "supervision": SUPERVISIONS,
    "augment": AUGMENTATIONS,
    "strong_augment": AUGMENTATIONS,
    "model": MODELS,
    "cohort": COHORTS,
    "federated": FEDERATED_OPTIMIZERS,
}


def _number_or_name(allowed: str, /, **given: Any) -> None:
    """Raises ValueError for what is neither; a number is checked as such."""
    for name, value in given.items():
        if not isinstance(value, str):
            whole(0, **{name: value})


def _each(allowed: Range, /, **given: Any) -> None:
    """Raises ValueError where a number of a tuple is outside its range."""
    for name, value in given.items():
        check_range(name, value, allowed._replace(depth=1))


def _seed(highest: int, /, **given: Any) -> None:
    """Raises ValueError for what is no seed: of a larger one jax.random takes the last 32 bits, those of another."""
    whole(0, highest, **given)


class Field(NamedTuple):
    """What a setting is until it is set, and what it may be."""

    default: Any  # a bare type: None, which is allowed, until a value of this type is given
    check: Callable[..., None] | None = None  # takes what is allowed, and the value by its name; raises ValueError
    allowed: Any = None
    meaning: str = ""  # for `fedjax-ssl run NAME --help`


FIELDS: dict[str, Field] = {
    "seed": Field(
        0, _seed, 2**32 - 1, "decides everything random: partition, labels, cohorts, batches, initial network"
    ),
    "rounds": Field(100, whole, 0, "rounds of training; 0: none, only what config.prediction asks for"),
    "eval_every": Field(5, whole, 1, "rounds between evaluations, run as one compiled call"),
    "checkpoint_every": Field(1, whole, 0, "evaluations between checkpoints; 0: only at the end"),
    "select_from": Field(0, whole, 0, "rounds before a model may be the one of the best validation accuracy"),
    "precision": Field(
        "float32", one_of, PRECISIONS, "of forward and backward passes; parameters stay in single precision"
    ),
    "metrics": Field(
        ("clients", "f1", "ece"),
        several,
        scores.CHOICES,
        "scores beside accuracy: by client, macro F1, calibration error, area under the ROC curve (takes longest)",
    ),
    "profile": Field(
        False, meaning="write jax.profiler's trace of the first block of rounds, without compiling, to the run folder"
    ),
    "threads": Field(int, whole, 1, "of a CPU; one per core by default, 1 suits linear models"),
    "data.name": Field("digits", meaning="the dataset"),
    "data.path": Field(str, meaning="the file of npz, the folder of a published dataset"),
    "data.root": Field(
        str, meaning="folder for downloads and caches; $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl by default"
    ),
    "data.download": Field(True, meaning="whether the network may be used"),
    "data.source": Field(
        "auto", one_of, ORIGINS, "of a published dataset: original files, what TFDS prepared, or both"
    ),
    "data.residence": Field(
        "auto",
        one_of,
        RESIDENCES,
        "where examples lie; auto: on the device, unless they take over half of its memory",
    ),
    "data.standardize": Field("auto", one_of, STANDARDIZATIONS, "by whose mean and deviation inputs are standardized"),
    "data.mean": Field(tuple, _each, FINITE, "to standardize by, in place of the dataset's, per channel or feature"),
    "data.std": Field(tuple, _each, POSITIVE, "to standardize by, in place of the dataset's, per channel or feature"),
    "data.test_mean": Field(
        tuple, _each, FINITE, "to standardize by where inputs are predicted, if not as in training"
    ),
    "data.test_std": Field(
        tuple, _each, POSITIVE, "to standardize by where inputs are predicted, if not as in training"
    ),
    "data.pool_splits": Field(
        False, meaning="the dataset's own test examples are training examples too; hold others out"
    ),
    "data.test_clients": Field(0, whole, 0, "whole natural clients, drawn at random, that are the test set"),
    "data.left_out_client": Field(
        object, _number_or_name, "number or name", "the natural client that is the test set, by name or counted from 0"
    ),
    "data.test_fraction": Field(
        0.0, number, "[0, 1)", "of the examples, those that are the test set where the dataset has none"
    ),
    "data.client_test_fraction": Field(0.0, number, "[0, 1)", "of every client's examples, those that are its test"),
    "data.validation_fraction": Field(0.0, number, "[0, 1)", "of the training examples, those for validation"),
    "data.balanced_test": Field(False, meaning="clients draw test examples, equally many of every class"),
    "data.pools": Field(
        tuple, _each, COUNT_OR_NONE, "training, validation and test examples of every class, of both splits together"
    ),
    "data.shuffle_pools": Field(False, meaning="pools are drawn at random, not the training examples first"),
    "partition.name": Field("natural", meaning="how examples are dealt to clients"),
    "partition.num_clients": Field(int, whole, 1, "clients that train; all natural ones by default"),
    "supervision.name": Field("all", meaning="which labels are seen, by whom"),
    "supervision.labelled_clients": Field(int, whole, 0, "clients that keep class labels; all by default"),
    "supervision.which": Field(str, one_of, ("first", "random"), "of the clients keep class labels; first by default"),
    "augment.name": Field("none", meaning="of training inputs, and the weak view of methods that have one"),
    "strong_augment.name": Field("none", meaning="the strong view, of methods that have one"),
    "model.name": Field("mlp", meaning="the network"),
    "optimizer.name": Field("sgd", one_of, OPTIMIZERS, "of the clients' local training"),
    "optimizer.learning_rate": Field(0.1, number, "[0, inf)", "of a local step"),
    "optimizer.schedule": Field("constant", one_of, SCHEDULES, "of the learning rate; cosine: over schedule_rounds"),
    "optimizer.schedule_rounds": Field(int, whole, 1, "length of the schedule; rounds by default"),
    "optimizer.momentum": Field(0.0, number, "[0, 1)", "of sgd"),
    "optimizer.nesterov": Field(False, meaning="Nesterov's form of momentum"),
    "optimizer.weight_decay": Field(0.0, number, "[0, inf)", "L2 penalty, added to the gradient"),
    "optimizer.clip_norm": Field(float, number, "(0, inf)", "largest norm of a gradient; no clipping by default"),
    "optimizer.keep_state": Field(False, meaning="clients keep momentum and the like between their rounds"),
    "optimizer.keep_by": Field(
        "client", one_of, KEEP_BY, "who keeps it: the client, or the cohort's slot, whoever fills it"
    ),
    "optimizer.average_state": Field(False, meaning="clients start from the mean of what the last cohort ended with"),
    "optimizer.batch_size": Field(10, whole, 1, "examples of a local step"),
    "optimizer.local_epochs": Field(1, whole, 1, "passes over a client's examples in a round"),
    "cohort.name": Field("uniform", meaning="which clients take part in a round"),
    "federated.name": Field("fedavg", meaning="how the clients' models become the next one"),
    "federated.cohort_size": Field(int, whole, 1, "clients per round; all by default"),
    "federated.weighting": Field("uniform", one_of, WEIGHTINGS, "what a client's weight in the average follows"),
    "federated.mu": Field(float, number, "[0, inf)", "of fedprox and fednova: pull towards the global model"),
    "federated.server_learning_rate": Field(float, number, "[0, inf)", "of the server's step along the mean change"),
    "federated.server_momentum": Field(float, number, "[0, 1)", "of fedavgm"),
    "federated.placement": Field("auto", one_of, PLACEMENTS, "how a cohort's clients run inside the compiled round"),
    "federated.chunk_size": Field(int, whole, 1, "clients at once on a device; by default as many as fit"),
    "federated.devices": Field(int, whole, 1, "that share each cohort; one, or all of several processes, by default"),
    "federated.reduce": Field("ordered", one_of, REDUCTIONS, "how sums over devices are made"),
    "early_stopping.patience": Field(
        int, whole, 1, "evaluations without a better validation accuracy until the run ends; all rounds by default"
    ),
    "tracking.writers": Field((), several, WRITERS, "viewers that get the metrics too"),
    "tracking.project": Field("fedjax_ssl", meaning="at wandb; the experiment at mlflow"),
    "tracking.offline": Field(False, meaning="wandb and mlflow keep their records in the run folder"),
    "tracking.uri": Field(
        str, meaning="mlflow's server or store; $MLFLOW_TRACKING_URI, or mlflow's own default, by default"
    ),
    "prediction.predictors": Field(
        "",
        meaning="network, xclp, per_client_lp, with commas between: label the clients' test examples after the last "
        "round",
    ),
    "prediction.features": Field("network", one_of, ("network", "inputs"), "what the graphs compare; inputs as stored"),
    "prediction.variant": Field(
        "both", one_of, ("paper", "code", "both"), "settings of the paper, or of the authors' code"
    ),
    "prediction.unlabelled": Field(
        "with", one_of, ("with", "without", "both"), "whether unlabelled training examples stand in the graphs"
    ),
    "prediction.similarity": Field("exact", one_of, ("exact", "lsh"), "of per_client_lp: cosines, or their estimate"),
    "prediction.num_bits": Field(4096, whole, 1, "of a code"),
    "prediction.num_neighbors": Field(10, whole, 1, "of a point in a graph"),
    "prediction.alpha": Field(0.99, number, "[0, 1)", "how far labels spread in a graph"),
    "prediction.similarity_power": Field(float, number, "(0, inf)", "of similarities; the variant's by default"),
    "prediction.label_norm": Field(
        str, one_of, ("none", "class"), "whether a label is divided by how many its class has; the variant's by default"
    ),
    "prediction.confidence_scale": Field(
        str, one_of, ("none", "max"), "whether confidences are divided by the largest; the variant's by default"
    ),
    "prediction.groups": Field(1, whole, 1, "of xclp: clients are cut at random into groups, with a graph each"),
    "prediction.new_batch_size": Field(int, whole, 1, "examples that a client brings at a time; all by default"),
    "prediction.neighbor_search": Field(
        "exact", one_of, ("exact", "approximate"), "of xclp; approximate for millions of points"
    ),
    "prediction.protocol": Field(
        "none", one_of, secure.CHOICES, "of xclp, between the clients of a graph: docs/secure.md"
    ),
    "prediction.hamming": Field("transfer", one_of, secure.HAMMING, "how the protocol finds distances"),
    "distributed.coordinator": Field(
        str, meaning="host:port of process 0, or $FEDJAX_SSL_COORDINATOR; one process by default"
    ),
    "distributed.num_processes": Field(int, whole, 1, "of the run, or $FEDJAX_SSL_NUM_PROCESSES"),
    "distributed.process_id": Field(int, whole, 0, "of this process, from 0 on, or $FEDJAX_SSL_PROCESS_ID"),
    "distributed.auto": Field(False, meaning="take the three from Slurm, Open MPI, GKE or a TPU"),
    "distributed.heartbeat_seconds": Field(30, whole, 1, "without a sign of life until a process counts as dead"),
    "distributed.shutdown_seconds": Field(60, whole, 1, "that processes wait for each other at the end"),
    "distributed.initialization_seconds": Field(120, whole, 1, "that processes wait for each other at the start"),
    "distributed.stall_minutes": Field(
        60.0, number, "[0, inf)", "without a finished block of rounds until a process gives up; 0: never"
    ),
}
_OPTIONS = {  # of the choices that sections name
    f"{section}.{option}": Field(kind)
    for section, registry in CHOICES.items()
    for option, kind in registry.fields().items()
}


class Kind(NamedTuple):
    """What can be written into a field."""

    type: type
    optional: bool  # whether None can


def kinds(config: ml_collections.ConfigDict) -> dict[str, Kind]:
    """Every field that a config has, by dotted name: fields of all configs, and the options of what this one names.

    Args:
        config: not resolved.

    Raises:
        ConfigError: it names something that nobody knows.
    """
    found = {"method.name": Kind(str, False)}
    with naming("method.name"):
        own = methods.METHODS.options(config.method.name)
    found |= {f"method.{setting}": Kind(one.type, one.optional) for setting, one in own.items()}
    for section, registry in CHOICES.items():
        with naming(section):
            own = registry.options(config[section].name)
        every = registry.fields() | {option: one.type for option, one in own.items()}
        # None stands for the choice's own default.
        found |= {f"{section}.{option}": Kind(kind, True) for option, kind in every.items()}
    for name, field in FIELDS.items():
        bare = isinstance(field.default, type)
        found[name] = Kind(field.default if bare else type(field.default), bare)
    return found


def method_section(name: str) -> dict[str, Any]:
    """What `config.method` holds: the name, and the method's own settings with their defaults.

    Raises:
        ValueError: nobody knows the method.
    """
    own = {
        setting: config_dict.placeholder(option.type) if option.default is None else option.default
        for setting, option in methods.METHODS.options(name).items()
    }
    return {"name": name, **own}


def default(method: str = "fedavg") -> ml_collections.ConfigDict:
    """The config every experiment starts from: labels-only federated averaging on the embedded digits.

    Args:
        method: name of a method, whose settings become `config.method`.
    """
    fields: dict[str, Any] = {"method": method_section(method)}
    for name, (value, *_) in (_OPTIONS | FIELDS).items():
        section, _, own = name.rpartition(".")
        place = fields.setdefault(section, {}) if section else fields
        place[own] = config_dict.placeholder(value) if isinstance(value, type) else value
    return ml_collections.ConfigDict(fields).lock()


def check_field(name: str, value: Any) -> None:
    """Raises ConfigError where a field's value is not allowed; the message names it and says what is."""
    default, check, allowed, _ = FIELDS[name]
    if check and not (value is None and isinstance(default, type)):
        with naming():
            check(allowed, **{f"config.{name}": value})


def check_given(config: ml_collections.ConfigDict) -> None:
    """Raises ConfigError for a field that is None where a value is needed."""
    for name, kind in kinds(config).items():
        section, _, option = name.rpartition(".")
        if not kind.optional and (config[section] if section else config).get(option) is None:
            raise ConfigError(f"config.{name} is None; give {WORDS[kind.type]}")


def check_fields(config: ml_collections.ConfigDict) -> None:
    """`check_field` for all fields of a config, and the ranges of the options of what it names.

    Raises:
        ConfigError: naming the field, its value and what is allowed.
    """
    for name in FIELDS:
        check_field(name, get(config, name))
    for section, registry in {"method": methods.METHODS, **CHOICES}.items():
        choice = config[section]
        for option, what in registry.options(choice.name).items():
            value, allowed = choice.get(option), range_of(section, choice.name, option, what.type)
            if value is not None and allowed is not None and f"{section}.{option}" not in FIELDS:
                with naming():
                    check_range(f"config.{section}.{option}", value, allowed)


def get(config: Any, field: str) -> Any:
    """The value of a dotted field, for example "optimizer.learning_rate"."""
    for part in field.split("."):
        config = config[part]
    return config
