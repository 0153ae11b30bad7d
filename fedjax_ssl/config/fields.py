"""The fields of a config: default, meaning, and what is allowed.

A section that names something (dataset, partition, supervision, model, augmentation, cohort, federated optimizer) also
has the options of all its choices, which their builders declare: None stands for the choice's own default.
`config.method` holds the settings of its method only.
"""

import functools
from collections.abc import Callable
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
    WEIGHTINGS,
    scores,
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
FIELDS: dict[str, Field] = {
    "seed": Field(
        0, "decides everything random: partition, labels, cohorts, batches, initial network", Whole(0, 2**32 - 1)
    ),
    "rounds": Field(100, "rounds of training; 0: none, only what config.prediction asks for", _COUNT_OR_NONE),
    "eval_every": Field(5, "rounds between evaluations, run as one compiled call", _COUNT),
    "checkpoint_every": Field(1, "evaluations between checkpoints; 0: only at the end", _COUNT_OR_NONE),
    "select_from": Field(0, "rounds before a model may be the one of the best validation accuracy", _COUNT_OR_NONE),
    "precision": Field(
        "float32", "numbers of forward and backward passes; parameters stay in single precision", OneOf(PRECISIONS)
    ),
    "metrics": Field(
        ("clients", "f1", "ece"),
        "scores beside accuracy: by client, macro F1, calibration error, area under the ROC curve (takes longest)",
        Several(scores.CHOICES),
    ),
    "profile": Field(
        False, "write jax.profiler's trace of the first block of rounds, without compiling, to the run folder"
    ),
    "threads": Field(int, "threads of a CPU; one per core by default, 1 suits linear models", _COUNT),
    "data.name": Field("digits", "the dataset"),
    "data.path": Field(str, "the file of npz, the folder of a published dataset"),
    "data.root": Field(str, "folder for downloads and caches; $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl by default"),
    "data.download": Field(True, "whether the network may be used"),
    "data.source": Field(
        "auto", "form of a published dataset: original files, what TFDS prepared, or both", OneOf(ORIGINS)
    ),
    "data.residence": Field(
        "auto", "where examples lie; auto: on the device, unless they take over half of its memory", OneOf(RESIDENCES)
    ),
    "data.standardize": Field(
        "auto", "where the mean and deviation come from that inputs are standardized by", OneOf(STANDARDIZATIONS)
    ),
    "data.mean": Field(tuple, "mean of a channel or feature, in place of the dataset's", Each(_FINITE)),
    "data.std": Field(tuple, "deviation of a channel or feature, in place of the dataset's", Each(_POSITIVE)),
    "data.test_mean": Field(tuple, "mean where inputs are predicted, if not as in training", Each(_FINITE)),
    "data.test_std": Field(tuple, "deviation where inputs are predicted, if not as in training", Each(_POSITIVE)),
    "data.pool_splits": Field(False, "the dataset's own test examples are training examples too; hold others out"),
    "data.test_clients": Field(0, "whole natural clients, drawn at random, that are the test set", _COUNT_OR_NONE),
    "data.left_out_client": Field(object, "the natural client that is the test set, by name or counted from 0"),
    "data.test_fraction": Field(0.0, "share of the examples held out for testing where the dataset does not", _SHARE),
    "data.client_test_fraction": Field(0.0, "share of every client's examples held out as its test", _SHARE),
    "data.validation_fraction": Field(0.0, "share of the training examples held out for validation", _SHARE),
    "data.balanced_test": Field(False, "clients draw test examples, equally many of every class"),
    "data.pools": Field(
        tuple,
        "training, validation and test examples of every class, drawn from both splits together",
        Each(_COUNT_OR_NONE),
    ),
    "data.shuffle_pools": Field(False, "pools are drawn at random, not the training examples first"),
    "partition.name": Field("natural", "how examples are dealt to clients"),
    "partition.num_clients": Field(int, "clients that train; all natural ones by default", _COUNT),
    "supervision.name": Field("all", "which labels are seen, by whom"),
    "supervision.labelled_clients": Field(int, "clients that keep class labels; all by default", _COUNT_OR_NONE),
    "supervision.which": Field(str, "which clients keep class labels; first by default", OneOf(("first", "random"))),
    "augment.name": Field("none", "augmentation of training inputs, and the weak view of methods that have one"),
    "strong_augment.name": Field("none", "the strong view, in methods that have one"),
    "model.name": Field("mlp", "the network"),
    "optimizer.name": Field("sgd", "optimizer of the clients' local training", OneOf(OPTIMIZERS)),
    "optimizer.learning_rate": Field(0.1, "learning rate of a local step", _WEIGHT),
    "optimizer.schedule": Field(
        "constant", "schedule of the learning rate; cosine: over schedule_rounds", OneOf(SCHEDULES)
    ),
    "optimizer.schedule_rounds": Field(int, "length of the schedule; rounds by default", _COUNT),
    "optimizer.momentum": Field(0.0, "momentum of sgd", _SHARE),
    "optimizer.nesterov": Field(False, "Nesterov's form of momentum"),
    "optimizer.weight_decay": Field(0.0, "L2 penalty, added to the gradient", _WEIGHT),
    "optimizer.clip_norm": Field(float, "largest norm of a gradient; no clipping by default", _POSITIVE),
    "optimizer.keep_state": Field(False, "clients keep momentum and the like between their rounds"),
    "optimizer.keep_by": Field(
        "client", "who keeps it: the client, or the cohort's slot, whoever fills it", OneOf(KEEP_BY)
    ),
    "optimizer.average_state": Field(False, "clients start from the mean of what the last cohort ended with"),
    "optimizer.batch_size": Field(10, "examples of a local step", _COUNT),
    "optimizer.local_epochs": Field(1, "passes over a client's examples in a round", _COUNT),
    "cohort.name": Field("uniform", "which clients take part in a round"),
    "federated.name": Field("fedavg", "how the clients' models become the next one"),
    "federated.cohort_size": Field(int, "clients per round; all by default", _COUNT),
    "federated.weighting": Field("uniform", "what a client's weight in the average follows", OneOf(WEIGHTINGS)),
    "federated.placement": Field("auto", "how a cohort's clients run inside the compiled round", OneOf(PLACEMENTS)),
    "federated.chunk_size": Field(int, "clients at once on a device; by default as many as fit", _COUNT),
    "federated.devices": Field(
        int, "devices that share each cohort; one, or all where there are several processes, by default", _COUNT
    ),
    "federated.reduce": Field("ordered", "how sums over devices are made", OneOf(REDUCTIONS)),
    "early_stopping.patience": Field(
        int, "evaluations without a better validation accuracy until the run ends; all rounds by default", _COUNT
    ),
    "tracking.writers": Field((), "viewers that get the metrics too", Several(WRITERS)),
    "tracking.project": Field("fedjax_ssl", "project at wandb, experiment at mlflow"),
    "tracking.offline": Field(False, "wandb and mlflow keep their records in the run folder"),
    "tracking.uri": Field(str, "mlflow's server or store; $MLFLOW_TRACKING_URI, or mlflow's own default, by default"),
    "prediction.predictors": Field(
        "", "network, xclp, per_client_lp, with commas between: label the clients' test examples after the last round"
    ),
    "prediction.features": Field("network", "what the graphs compare; inputs as stored", OneOf(("network", "inputs"))),
    "prediction.variant": Field(
        "both", "settings of the paper, or of the authors' code", OneOf(("paper", "code", "both"))
    ),
    "prediction.unlabelled": Field(
        "with", "whether unlabelled training examples stand in the graphs", OneOf(("with", "without", "both"))
    ),
    "prediction.similarity": Field("exact", "per_client_lp: cosines, or their estimate", OneOf(("exact", "lsh"))),
    "prediction.num_bits": Field(4096, "bits of a code", _COUNT),
    "prediction.num_neighbors": Field(10, "neighbours of a point in a graph", _COUNT),
    "prediction.alpha": Field(0.99, "how far labels spread in a graph", _SHARE),
    "prediction.similarity_power": Field(float, "power of similarities; the variant's by default", _POSITIVE),
    "prediction.label_norm": Field(
        str, "whether a label is divided by how many its class has; the variant's by default", OneOf(("none", "class"))
    ),
    "prediction.confidence_scale": Field(
        str, "whether confidences are divided by the largest; the variant's by default", OneOf(("none", "max"))
    ),
    "prediction.groups": Field(1, "xclp: clients are cut at random into groups, with a graph each", _COUNT),
    "prediction.new_batch_size": Field(int, "examples that a client brings at a time; all by default", _COUNT),
    "prediction.neighbor_search": Field(
        "exact", "xclp: how neighbours are found; approximate for millions of points", OneOf(("exact", "approximate"))
    ),
    "prediction.protocol": Field(
        "none", "xclp: protocol between the clients of a graph, docs/secure.md", OneOf(secure.CHOICES)
    ),
    "prediction.hamming": Field("transfer", "how the protocol finds distances", OneOf(secure.HAMMING)),
    "distributed.coordinator": Field(str, "host:port of process 0, or $FEDJAX_SSL_COORDINATOR; one process by default"),
    "distributed.num_processes": Field(int, "processes of the run, or $FEDJAX_SSL_NUM_PROCESSES", _COUNT),
    "distributed.process_id": Field(
        int, "number of this process, from 0 on, or $FEDJAX_SSL_PROCESS_ID", _COUNT_OR_NONE
    ),
    "distributed.auto": Field(False, "take the three from Slurm, Open MPI, GKE or a TPU"),
    "distributed.heartbeat_seconds": Field(30, "seconds without a sign of life until a process counts as dead", _COUNT),
    "distributed.shutdown_seconds": Field(60, "seconds that processes wait for each other at the end", _COUNT),
    "distributed.initialization_seconds": Field(120, "seconds that processes wait for each other at the start", _COUNT),
    "distributed.stall_minutes": Field(
        60.0, "minutes without a finished block of rounds until a process gives up; 0: never", _WEIGHT
    ),
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
        return functools.partial(_register, kind, name)
    return _register(kind, name, builder)


def _register(kind: str, name: str | None, builder: Callable[..., Any]) -> Callable[..., Any]:
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
