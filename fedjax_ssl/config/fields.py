"""The fields of a config: default, meaning, and what is allowed.

A section that names something (dataset, partition, supervision, model, augmentation, cohort, federated optimizer) also
has the options of all its choices, which their builders declare: None stands for the choice's own default.
`config.method` holds the settings of its method only.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import ml_collections
from ml_collections import config_dict

from fedjax_ssl import methods, secure
from fedjax_ssl.checks import Declaration, Each, In, OneOf, Several, Whole
from fedjax_ssl.data import AUGMENTATIONS, ORIGINS, PARTITIONS, RESIDENCES, SOURCES, STANDARDIZATIONS, SUPERVISIONS
from fedjax_ssl.errors import ConfigError, check_known, naming
from fedjax_ssl.federated import (
    COHORTS,
    FEDERATED_OPTIMIZERS,
    KEEP_BY,
    OPTIMIZERS,
    PLACEMENTS,
    REDUCTIONS,
    SCHEDULES,
    SCORES,
    WEIGHTINGS,
)
from fedjax_ssl.models import MODELS, PRECISIONS
from fedjax_ssl.registry import Option, Registry
from fedjax_ssl.runs.writers import WRITERS

WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    object: "a whole number or a name",
    tuple: "values with commas between, for example 64,64",
}
CHOICES: dict[str, Registry[Any]] = {  # by section, whose name is one of these
    "data": SOURCES,
    "partition": PARTITIONS,
    "supervision": SUPERVISIONS,
    "augment": AUGMENTATIONS,
    "strong_augment": AUGMENTATIONS,
    "model": MODELS,
    "cohort": COHORTS,
    "federated": FEDERATED_OPTIMIZERS,
}
REGISTRIES: dict[str, Registry[Any]] = {"method": methods.METHODS, **CHOICES}
_SHARE, _WEIGHT, _POSITIVE = In("[0, 1)"), In("[0, inf)"), In("(0, inf)")
_FINITE, _COUNT, _COUNT_OR_NONE = In("(-inf, inf)"), Whole(1), Whole(0)


class Field(NamedTuple):
    """A setting of every run."""

    default: Any  # a bare type: None, until a value of this type is given
    meaning: str  # for `fedjax-ssl run NAME --help`
    allowed: Declaration | None = None

    def described(self) -> Option:
        """The field as an option of a choice."""
        bare = isinstance(self.default, type)
        kind = self.default if bare else type(self.default)
        return Option(kind, None if bare else self.default, bare, self.allowed)


# Seeds end where jax.random would take the last 32 bits of a larger one, which are those of another.
_SECTIONS: dict[str, dict[str, Field]] = {
    "": {
        "seed": Field(
            0, "decides all that is random: partition, labels, cohorts, batches, first network", Whole(0, 2**32 - 1)
        ),
        "rounds": Field(100, "rounds of training; 0: none, only what config.prediction asks for", _COUNT_OR_NONE),
        "eval_every": Field(5, "rounds between evaluations, run as one compiled call", _COUNT),
        "checkpoint_every": Field(1, "evaluations between checkpoints; 0: only at the end", _COUNT_OR_NONE),
        "select_from": Field(0, "rounds before a model may be the one of the best validation accuracy", _COUNT_OR_NONE),
        "precision": Field(
            "float32", "numbers of forward and backward passes; parameters are float32", OneOf(PRECISIONS)
        ),
        "metrics": Field(
            ("clients", "f1", "ece"),
            "scores beside accuracy: by client, macro F1, calibration error, ROC area (slow)",
            Several(SCORES),
        ),
        "profile": Field(False, "write jax.profiler's trace of the first block of rounds to the run folder"),
        "threads": Field(int, "threads of a CPU; one per core by default, 1 suits linear models", _COUNT),
    },
    "data": {
        "name": Field("digits", "the dataset"),
        "path": Field(str, "the file of npz, the folder of a published dataset"),
        "root": Field(str, "folder of downloads; $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl by default"),
        "download": Field(True, "whether the network may be used"),
        "source": Field("auto", "form of a published dataset: original files, TFDS's, or both", OneOf(ORIGINS)),
        "residence": Field(
            "auto", "where examples lie; auto: on the device up to half of its memory", OneOf(RESIDENCES)
        ),
        "standardize": Field("auto", "where mean and deviation of the inputs come from", OneOf(STANDARDIZATIONS)),
        "mean": Field(tuple, "mean of a channel or feature, in place of the dataset's", Each(_FINITE)),
        "std": Field(tuple, "deviation of a channel or feature, in place of the dataset's", Each(_POSITIVE)),
        "test_mean": Field(tuple, "mean where inputs are predicted, if not as in training", Each(_FINITE)),
        "test_std": Field(tuple, "deviation where inputs are predicted, if not as in training", Each(_POSITIVE)),
        "pool_splits": Field(False, "the dataset's own test examples are training examples too; hold others out"),
        "test_clients": Field(0, "whole natural clients, drawn at random, that are the test set", _COUNT_OR_NONE),
        "left_out_client": Field(object, "the natural client that is the test set, by name or counted from 0"),
        "test_fraction": Field(0.0, "share of the examples held out for testing where the dataset does not", _SHARE),
        "client_test_fraction": Field(0.0, "share of every client's examples held out as its test", _SHARE),
        "validation_fraction": Field(0.0, "share of the training examples held out for validation", _SHARE),
        "balanced_test": Field(False, "clients draw test examples, equally many of every class"),
        "pools": Field(
            tuple, "training, validation and test examples of a class, from both splits", Each(_COUNT_OR_NONE)
        ),
        "shuffle_pools": Field(False, "pools are drawn at random, not the training examples first"),
    },
    "partition": {
        "name": Field("natural", "how examples are dealt to clients"),
        "num_clients": Field(int, "clients that train; all natural ones by default", _COUNT),
    },
    "supervision": {
        "name": Field("all", "which labels are seen, by whom"),
        "labelled_clients": Field(int, "clients that keep class labels; all by default", _COUNT_OR_NONE),
        "which": Field(str, "which clients keep class labels; first by default", OneOf(("first", "random"))),
    },
    "augment": {"name": Field("none", "augmentation of training inputs; the weak view of methods")},
    "strong_augment": {"name": Field("none", "the strong view, in methods that have one")},
    "model": {"name": Field("mlp", "the network")},
    "optimizer": {
        "name": Field("sgd", "optimizer of the clients' local training", OneOf(OPTIMIZERS)),
        "learning_rate": Field(0.1, "learning rate of a local step", _WEIGHT),
        "schedule": Field("constant", "schedule of the learning rate; cosine: over schedule_rounds", OneOf(SCHEDULES)),
        "schedule_rounds": Field(int, "length of the schedule; rounds by default", _COUNT),
        "momentum": Field(0.0, "momentum of sgd", _SHARE),
        "nesterov": Field(False, "Nesterov's form of momentum"),
        "weight_decay": Field(0.0, "L2 penalty, added to the gradient", _WEIGHT),
        "clip_norm": Field(float, "largest norm of a gradient; no clipping by default", _POSITIVE),
        "keep_state": Field(False, "clients keep momentum and the like between their rounds"),
        "keep_by": Field("client", "who keeps it: the client, or the cohort's slot, whoever fills it", OneOf(KEEP_BY)),
        "average_state": Field(False, "clients start from the mean of what the last cohort ended with"),
        "batch_size": Field(10, "examples of a local step", _COUNT),
        "local_epochs": Field(1, "passes over a client's examples in a round", _COUNT),
    },
    "cohort": {"name": Field("uniform", "which clients take part in a round")},
    "federated": {
        "name": Field("fedavg", "how the clients' models become the next one"),
        "cohort_size": Field(int, "clients per round; all by default", _COUNT),
        "weighting": Field("uniform", "what a client's weight in the average follows", OneOf(WEIGHTINGS)),
        "placement": Field("auto", "how a cohort's clients run inside the compiled round", OneOf(PLACEMENTS)),
        "chunk_size": Field(int, "clients at once on a device; by default as many as fit", _COUNT),
        "devices": Field(int, "devices that share a cohort; 1 by default, all with several processes", _COUNT),
        "reduce": Field("ordered", "how sums over devices are made", OneOf(REDUCTIONS)),
    },
    "early_stopping": {
        "patience": Field(int, "evaluations without a better validation accuracy that end a run", _COUNT)
    },
    "tracking": {
        "writers": Field((), "viewers that get the metrics too", Several(WRITERS)),
        "project": Field("fedjax_ssl", "project at wandb, experiment at mlflow"),
        "offline": Field(False, "wandb and mlflow keep their records in the run folder"),
        "uri": Field(str, "mlflow's server or store; $MLFLOW_TRACKING_URI by default"),
    },
    "prediction": {
        "predictors": Field("", "label test examples in the end by: network, xclp, per_client_lp, with commas"),
        "features": Field("network", "what the graphs compare; inputs as stored", OneOf(("network", "inputs"))),
        "variant": Field("both", "settings of the paper, or of the authors' code", OneOf(("paper", "code", "both"))),
        "unlabelled": Field(
            "with", "whether graphs hold unlabelled training examples", OneOf(("with", "without", "both"))
        ),
        "similarity": Field("exact", "per_client_lp: cosines, or their estimate", OneOf(("exact", "lsh"))),
        "num_bits": Field(4096, "bits of a code", _COUNT),
        "num_neighbors": Field(10, "neighbours of a point in a graph", _COUNT),
        "alpha": Field(0.99, "how far labels spread in a graph", _SHARE),
        "similarity_power": Field(float, "power of similarities; the variant's by default", _POSITIVE),
        "label_norm": Field(str, "what divides a label: nothing or its class's count", OneOf(("none", "class"))),
        "confidence_scale": Field(str, "what divides confidences: nothing or the largest", OneOf(("none", "max"))),
        "groups": Field(1, "xclp: clients are cut at random into groups, with a graph each", _COUNT),
        "new_batch_size": Field(int, "examples that a client brings at a time; all by default", _COUNT),
        "neighbor_search": Field("exact", "xclp: approximate for millions of points", OneOf(("exact", "approximate"))),
        "protocol": Field(
            "none", "xclp: protocol between the clients of a graph, docs/secure.md", OneOf(secure.CHOICES)
        ),
        "hamming": Field("transfer", "how the protocol finds distances", OneOf(secure.HAMMING)),
    },
    "distributed": {
        "coordinator": Field(str, "host:port of process 0, or $FEDJAX_SSL_COORDINATOR; one process by default"),
        "num_processes": Field(int, "processes of the run, or $FEDJAX_SSL_NUM_PROCESSES", _COUNT),
        "process_id": Field(int, "number of this process, from 0 on, or $FEDJAX_SSL_PROCESS_ID", _COUNT_OR_NONE),
        "auto": Field(False, "take the three from Slurm, Open MPI, GKE or a TPU"),
        "heartbeat_seconds": Field(30, "seconds without a sign of life until a process counts as dead", _COUNT),
        "shutdown_seconds": Field(60, "seconds that processes wait for each other at the end", _COUNT),
        "initialization_seconds": Field(120, "seconds that processes wait for each other at the start", _COUNT),
        "stall_minutes": Field(60.0, "minutes without a finished block that end a process; 0: never", _WEIGHT),
    },
}
FIELDS = {
    f"{section}.{name}".lstrip("."): field for section, fields in _SECTIONS.items() for name, field in fields.items()
}


def register(kind: str, name: str | None = None, builder: Callable[..., Any] | None = None) -> Any:
    """Makes a method, a network, a dataset ... of your own known to configs by a name.

    A config can also name it as "module:function", without this.

    Args:
        kind: a section of a config ("method", "model", "data", "partition", "supervision", "augment", "cohort",
            "federated").
        name: as configs write it; the builder's own by default.
        builder: a function as docs/extending.md describes it; its keyword arguments become options. Without it,
            `register` is a decorator.

    Returns:
        The builder.

    Raises:
        ValueError: there is no such kind, or the name has a colon.

    Example:
        >>> @fs.register("method")
        ... def short_sighted(setup, *, weight: float = 1.0):
        ...     "FedAvg under another name."
        ...     return fs.methods.build("fedavg", setup)
        >>> fs.load_config("digits", {"method.name": "short_sighted"}).method.weight
        1.0
    """
    check_known("kind", kind, REGISTRIES)
    if builder is None:
        return functools.partial(register, kind, name)
    REGISTRIES[kind].register(name or builder.__name__, builder)
    return builder


def options_of(config: Any) -> dict[str, Option]:
    """Every field that a config has, by dotted name: fields of all configs, and the options of what this one names.

    Args:
        config: not resolved.

    Raises:
        ConfigError: it names something that nobody knows.
    """
    found = {"method.name": Option(str, "fedavg")}
    for section, registry in REGISTRIES.items():
        name = config[section]["name"]
        with naming("method.name" if section == "method" else section):
            own = registry.options(name)
        if section != "method":  # None stands for the choice's own default
            found |= {f"{section}.{option}": Option(kind, None, True) for option, kind in registry.fields().items()}
        for option, one in own.items():
            found[f"{section}.{option}"] = one._replace(optional=section != "method" or one.optional)
    return found | {name: field.described() for name, field in FIELDS.items()}


def with_method(given: Mapping[str, Any]) -> ml_collections.ConfigDict:
    """Makes `config.method`: a method's name and settings, with their defaults where `given` has none.

    Args:
        given: a name, and settings, of which those that the method does not have are left out.

    Raises:
        ValueError: nobody knows the method.
    """
    section = {"name": given["name"]}
    for setting, option in methods.METHODS.options(given["name"]).items():
        plain = config_dict.placeholder(option.type) if option.default is None else option.default
        section[setting] = given.get(setting, plain)
    return ml_collections.ConfigDict(section)


def default(method: str = "fedavg") -> ml_collections.ConfigDict:
    """The config every experiment starts from: labels-only federated averaging on the embedded digits.

    Args:
        method: name of a method, whose settings become `config.method`.
    """
    fields: dict[str, Any] = {"method": with_method({"name": method})}
    options = {
        f"{section}.{option}": kind
        for section, registry in CHOICES.items()
        for option, kind in registry.fields().items()
    }
    for name, value in (options | {name: field.default for name, field in FIELDS.items()}).items():
        section, _, own = name.rpartition(".")
        place = fields.setdefault(section, {}) if section else fields
        place[own] = config_dict.placeholder(value) if isinstance(value, type) else value
    return ml_collections.ConfigDict(fields).lock()


def check_field(name: str, value: Any) -> None:
    """Raises ConfigError where a value of one of `FIELDS` is not allowed; the message names it and says what is."""
    _check(name, value, FIELDS[name].described())


def check_fields(config: ml_collections.ConfigDict) -> None:
    """Checks all fields of a config, and the options of what it names.

    Raises:
        ConfigError: naming the field, its value and what is allowed.
    """
    for name, option in options_of(config).items():
        _check(name, get(config, name, None), option)


def _check(name: str, value: Any, option: Option) -> None:
    if value is None and not option.optional:
        raise ConfigError(f"config.{name} is None; give {WORDS[option.type]}")
    if value is not None and option.type is object and not isinstance(value, str):
        option = option._replace(allowed=_COUNT_OR_NONE)
    if value is not None and option.allowed:
        with naming():
            option.allowed.check(f"config.{name}", value)


def get(config: Any, field: str, *missing: Any) -> Any:
    """The value of a dotted field, for example "optimizer.learning_rate".

    Args:
        config: a config, or a dictionary like one.
        field: its dotted name.
        *missing: the value where there is no such field; without it, that is a KeyError.
    """
    for part in field.split("."):
        if missing and part not in config:
            return missing[0]
        config = config[part]
    return config
