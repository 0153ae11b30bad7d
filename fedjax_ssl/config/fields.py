"""The fields of a config: default, meaning, and what is allowed.

A section that names something (dataset, partition, supervision, model, augmentation, cohort,
federated optimizer) also has the options of all its choices, which their builders declare: None
stands for the choice's own default. `config.method` holds the settings of its method only.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import ml_collections
from flax.traverse_util import unflatten_dict
from ml_collections import config_dict

from fedjax_ssl import methods
from fedjax_ssl.checks import Declaration, Each, In, OneOf, Several, Whole, declared
from fedjax_ssl.data import (
    AUGMENTATIONS,
    ORIGINS,
    PARTITIONS,
    RESIDENCES,
    SOURCES,
    STANDARDIZATIONS,
    SUPERVISIONS,
    HeldOut,
)
from fedjax_ssl.errors import ConfigError, check_known, naming
from fedjax_ssl.federated import (
    COHORTS,
    COMMITS,
    FEDERATED_OPTIMIZERS,
    KEEP_BY,
    LOST_WHEN,
    OPTIMIZERS,
    PLACEMENTS,
    REDUCTIONS,
    SCHEDULES,
    SCORES,
    WEIGHTINGS,
    WEIGHTS,
    ByClient,
)
from fedjax_ssl.federated.uploads import PRIVACY, SUMS, UPLOADS
from fedjax_ssl.federated.uploads.faults import FAULTS
from fedjax_ssl.folder.writers import WRITERS
from fedjax_ssl.graph.settings import GraphSettings, Hamming, Level
from fedjax_ssl.methods.around import AROUND, PERSONALIZATIONS
from fedjax_ssl.models import MODELS, PRECISIONS
from fedjax_ssl.objectives import INVERSE, LOSSES
from fedjax_ssl.registry import Option, Registry, option_of

DIRECTIONS = ("maximize", "minimize")
BY_CLIENT: Any = float | str  # type of a number that may differ from client to client
_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    object: "a whole number or a name",
    BY_CLIENT: "a number, or one by client: uniform:LOW:HIGH, beta:A:B or a file",
    tuple: "names with commas between, for example age,sex",
}
CHOICES: dict[str, Registry[Any]] = {  # by section, whose name is one of these
    "data": SOURCES,
    "partition": PARTITIONS,
    "supervision": SUPERVISIONS,
    "augment": AUGMENTATIONS,
    "strong_augment": AUGMENTATIONS,
    "model": MODELS,
    "optimizer": OPTIMIZERS,
    "cohort": COHORTS,
    "federated": FEDERATED_OPTIMIZERS,
    "personalize": PERSONALIZATIONS,
    "privacy": PRIVACY,
    "sum": SUMS,
}
# sections with their choices' defaults once resolved
FILLED_IN = ("optimizer", "federated", "personalize", "privacy", "sum")
REGISTRIES: dict[str, Registry[Any]] = {"method": methods.METHODS, **CHOICES}
_SHARE = In("[0, 1)")
_WEIGHT = In("[0, inf)")
_POSITIVE = In("(0, inf)")
_FINITE = In("(-inf, inf)")
_COUNT = Whole(1)
_COUNT_OR_NONE = Whole(0)
_HELD_OUT = {"left_out_client": object, "pools": tuple}  # types of fields that are None by default


def _field(default: Any, meaning: str, allowed: Declaration | None = None) -> Option:
    """Declare a setting of every run. A bare type as its default: None, until a value of this
    type is given.
    """
    if isinstance(default, type):
        return Option(default, None, True, allowed, meaning=meaning)
    return Option(type(default), default, False, allowed, meaning=meaning)


def _by_client(interval: str, meaning: str) -> Option:
    """Declare a number of each client, which is that of all if it is given as one."""
    return Option(BY_CLIENT, None, True, ByClient(interval), traceable=True, meaning=meaning)


def _graph_field(name: str, meaning: str, of_variant: bool = False) -> Option:
    """Declare a setting of graphs as `GraphSettings` does; `of_variant`: None stands for that of
    the variant.
    """
    option = option_of(inspect.signature(GraphSettings, eval_str=True).parameters[name])
    option = option._replace(meaning=meaning, traceable=False)
    return option._replace(default=None, optional=True) if of_variant else option


# Seeds end where jax.random would take the last 32 bits of a larger one, which are those of
# another.
_SECTIONS: dict[str, dict[str, Option]] = {
    "": {
        "seed": _field(
            0,
            "decides all that is random: partition, labels, cohorts, batches, first network",
            Whole(0, 2**32 - 1),
        ),
        "rounds": _field(
            100, "rounds of training; 0: none, only what config.prediction asks for", _COUNT_OR_NONE
        ),
        "eval_every": _field(5, "rounds between evaluations, run as one compiled call", _COUNT),
        "checkpoint_every": _field(
            1, "evaluations between checkpoints; 0: only at the end", _COUNT_OR_NONE
        ),
        "select_from": _field(
            0,
            "rounds before a model may be the one of the best validation accuracy",
            _COUNT_OR_NONE,
        ),
        "precision": _field(
            "float32",
            "numbers of forward and backward passes; parameters are float32",
            OneOf(PRECISIONS),
        ),
        "metrics": _field(
            ("clients", "f1", "ece"),
            "scores beside accuracy: by client, macro F1, calibration error, (slow) ROC area, "
            "local models, your own",
            Several(SCORES, own=True),
        ),
        "around": _field(
            (),
            "wrappers of the method, the first one inside, for example slow_clients or your own",
            Several(AROUND, own=True),
        ),
        "uploads": _field(
            (),
            "what becomes of what clients send, in this order, for example your own my:clip",
            Several(UPLOADS, own=True),
        ),
        "test_predictions": _field(
            "auto",
            "whether test_predictions.csv is written; auto: up to 2 MB",
            OneOf(("auto", "all", "none")),
        ),
        "start_from": _field(
            str,
            "weights to start from, in place of random ones: folder of another run, or "
            "FILE.safetensors",
        ),
        "profile": _field(
            False,
            "say where the time goes; jax.profiler's trace of the last block of rounds is kept",
        ),
        "save_clients": _field(
            object,
            "round, or last, whose clients' models are kept before they are averaged, "
            "docs/trained.md",
        ),
        "threads": _field(
            int, "threads of a CPU; one per core by default, one for small models", _COUNT
        ),
    },
    "data": {
        "name": _field("digits", "the dataset"),
        "path": _field(str, "the file of npz, the folder of a published dataset"),
        "root": _field(
            str, "folder of downloads; $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl by default"
        ),
        "download": _field(True, "whether the network may be used"),
        "source": _field(
            "auto", "form of a published dataset: original files, TFDS's, or both", OneOf(ORIGINS)
        ),
        "residence": _field(
            "auto",
            "where examples lie; auto: on the device up to half of its memory",
            OneOf(RESIDENCES),
        ),
        "standardize": _field(
            "auto", "where mean and deviation of the inputs come from", OneOf(STANDARDIZATIONS)
        ),
        "mean": _field(
            tuple, "mean of a channel or feature, in place of the dataset's", Each(_FINITE)
        ),
        "std": _field(
            tuple, "deviation of a channel or feature, in place of the dataset's", Each(_POSITIVE)
        ),
        "test_mean": _field(
            tuple, "mean where inputs are predicted, if not as in training", Each(_FINITE)
        ),
        "test_std": _field(
            tuple, "deviation where inputs are predicted, if not as in training", Each(_POSITIVE)
        ),
        "split": _field(
            str,
            "file that says who has which example and label, in place of partition, supervision "
            "and what is held out; {seed} in it stands for the seed",
        ),
        "pool_splits": _field(
            False, "the dataset's own test examples are training examples too; hold others out"
        ),
        **{
            one.name: _field(_HELD_OUT.get(one.name, one.default), **one.metadata)
            for one in dataclasses.fields(HeldOut)
        },
    },
    "partition": {
        "name": _field("natural", "how examples are dealt to clients"),
        "num_clients": _field(int, "clients that train; all natural ones by default", _COUNT),
        "pooled": _field(
            bool, "all clients' examples, and the server's, become those of one client"
        ),
    },
    "supervision": {
        "name": _field("all", "which labels are seen, by whom"),
        "labelled_clients": _field(
            int, "clients that keep class labels; all by default", _COUNT_OR_NONE
        ),
        "which": _field(
            str, "which clients keep class labels; first by default", OneOf(("first", "random"))
        ),
    },
    "augment": {
        "name": _field("none", "augmentation of training inputs; the weak view of methods")
    },
    "strong_augment": {"name": _field("none", "the strong view, in methods that have one")},
    "model": {"name": _field("mlp", "the network")},
    "optimizer": {
        "name": _field("sgd", "optimizer of the clients' local training"),
        "learning_rate": _field(0.1, "learning rate of a local step", _WEIGHT),
        "schedule": _field(
            "constant", "the learning rate over the rounds", OneOf(SCHEDULES, own=True)
        ),
        "schedule_rounds": _field(int, "length of the schedule; rounds by default", _COUNT),
        "schedule_factor": _field(
            0.1, "exponential: after schedule_rounds; piecewise: at every boundary", _POSITIVE
        ),
        "schedule_staircase": _field(False, "exponential: changes every schedule_rounds only"),
        "schedule_boundaries": _field(
            tuple, "piecewise: rounds; half and three quarters by default", Each(_COUNT)
        ),
        "schedule_warmup": _field(
            int, "rounds of a warm-up; a tenth of schedule_rounds by default", _COUNT
        ),
        "schedule_end": _field(0.0, "linear, warmup_cosine: share of the rate in the end", _WEIGHT),
        "clip_norm": _field(float, "largest norm of a gradient; no clipping by default", _POSITIVE),
        "keep_state": _field(False, "clients keep momentum and the like between their rounds"),
        "keep_by": _field(
            "client",
            "who keeps it: the client, or the cohort's slot, whoever fills it",
            OneOf(KEEP_BY),
        ),
        "average_state": _field(
            False, "clients start from the mean of what the last cohort ended with"
        ),
        "batch_size": _field(10, "examples of a local step", _COUNT),
        "local_epochs": _field(1, "passes over a client's examples in a round", _COUNT),
        "local_steps": _field(
            int,
            "local updates in a round, in place of local_epochs; batches go on where they stopped",
            _COUNT,
        ),
    },
    "loss": {
        "name": _field("cross_entropy", "loss of labelled examples", OneOf(LOSSES)),
        "gamma": _field(2.0, "focal: how little examples count that are right already", _WEIGHT),
        "label_smoothing": _field(0.0, "share of a label that is spread over all classes", _SHARE),
        "class_weights": _field(
            tuple,
            "factor of every class; inverse: by how seldom its labels are seen",
            Each(_WEIGHT, *INVERSE),
        ),
        "logit_adjustment": _field(
            0.0, "tau: scores get tau times the log of their class's share of labels", _WEIGHT
        ),
    },
    "cohort": {"name": _field("uniform", "which clients take part in a round")},
    "federated": {
        "name": _field("fedavg", "how the clients' models become the next one"),
        "cohort_size": _field(int, "clients per round; all by default", _COUNT),
        "weighting": _field(
            str,
            "what a client's weight in the average follows; examples for your own data, else "
            "uniform",
            OneOf(WEIGHTINGS),
        ),
        "placement": _field(
            "auto", "how a cohort's clients run inside the compiled round", OneOf(PLACEMENTS)
        ),
        "chunk_size": _field(int, "clients at once on a device; by default as many as fit", _COUNT),
        "devices": _field(
            int,
            "devices that share a cohort; by default all of a CPU or of several processes, where "
            "it is faster",
            _COUNT,
        ),
        "reduce": _field("ordered", "how sums over devices are made", OneOf(REDUCTIONS)),
    },
    "personalize": {
        "name": _field("none", "which models clients have of their own, docs/personal.md"),
        "epochs": _field(
            int,
            "passes over a client's labelled examples in which it tunes a copy of the last model, "
            "which is tested",
            _COUNT,
        ),
        "steps": _field(int, "local steps of that tuning, in place of epochs", _COUNT),
        "learning_rate": _field(
            float, "learning rate of that tuning; optimizer.learning_rate by default", _POSITIVE
        ),
    },
    "participation": {
        "probability": _by_client(
            "[0, 1]", "probability that a client is there in a round; 1 by default"
        ),
        "lost": _by_client("[0, 1]", "probability that a client drops out; 0 by default"),
        "lost_when": _field(
            "training",
            "when: before it sends anything, once codes were compared, once scores were "
            "propagated, after training",
            OneOf(LOST_WHEN),
        ),
        "weights": _field(
            "renormalise",
            "of what arrives: over its sum, over that of the cohort, or by the probability to "
            "arrive",
            OneOf(WEIGHTS),
        ),
        "commit": _field(
            "ack",
            "what a client keeps that is lost after training: what it kept before, or its own",
            OneOf(COMMITS),
        ),
        "slow": _by_client(
            "[0, 1]", "probability that a client does a part of its work; 0 by default"
        ),
        "work": _field(
            tuple,
            "share of its steps that a slow client takes: one number, or two between which it is "
            "drawn, 0,1 by default; epochs: all but some of its epochs",
            Each(In("[0, 1]"), "epochs"),
        ),
        "delay": _by_client(
            "[1, 10000]", "rounds after which a late upload arrives; none is late by default"
        )._replace(traceable=False),
        "late": _by_client("[0, 1]", "probability that an upload is late; 1 by default"),
        "buffer": _field(
            int,
            "uploads that the server waits for before a step, as FedBuff; none by default",
            _COUNT,
        ),
        "seconds_per_step": _by_client(
            "[0, inf)", "seconds of a local step on a simulated clock; none by default"
        ),
        "seconds_per_byte": _by_client(
            "[0, inf)", "seconds of a byte to or from a client; none by default"
        ),
        "deadline": _field(
            float, "seconds of a round after which clients are lost; none by default", _POSITIVE
        )._replace(traceable=True),
    },
    "sum": {
        "name": _field(
            "mean", "how a round's uploads become one, docs/robust.md; not the sum of terms"
        ),
    },
    "faults": {
        "name": _field("none", "what faulty clients do wrong", OneOf(FAULTS)),
        "share": _field(
            0.2, "share of the clients that are faulty, drawn by the seed", In("[0, 1]")
        ),
        "factor": _field(
            10.0, "scale: what the updates of faulty clients are multiplied by", _FINITE
        ),
    },
    "privacy": {"name": _field("none", "what hides a client in the sum of a round")},
    "early_stopping": {
        "patience": _field(int, "evaluations without a better model that end a run", _COUNT),
        "metric": _field(
            "validation_accuracy", "column of metrics.csv that says which model is the best"
        ),
        "direction": _field(
            str,
            "whether more or less of it is better; known but for metrics of your own",
            OneOf(DIRECTIONS),
        ),
    },
    "tracking": {
        "writers": _field((), "viewers that get the metrics too", Several(WRITERS)),
        "project": _field("fedjax_ssl", "project at wandb, experiment at mlflow"),
        "offline": _field(False, "wandb and mlflow keep their records in the run folder"),
        "uri": _field(str, "mlflow's server or store; $MLFLOW_TRACKING_URI by default"),
    },
    "prediction": {
        "predictors": _field(
            "",
            "label test examples in the end by: network, xclp, per_client_lp, class_means, "
            "linear_head, with commas",
        ),
        "features": _field(
            "network", "what is compared; inputs as stored", OneOf(("network", "inputs"))
        ),
        "variant": _field(
            "both",
            "settings of the paper, or of the authors' code",
            OneOf(("paper", "code", "both")),
        ),
        "unlabelled": _field(
            "with",
            "whether graphs hold unlabelled training examples",
            OneOf(("with", "without", "both")),
        ),
        "similarity": _field(
            str,
            "cosines, or their estimate by codes; xclp: lsh, per_client_lp: exact by default",
            OneOf(("exact", "lsh")),
        ),
        "ridge": _field(
            1.0,
            "weight of squared coefficients of linear_head, in mean variances of a feature",
            _POSITIVE,
        ),
        "num_bits": _graph_field("num_bits", "bits of a code"),
        "num_neighbors": _graph_field("num_neighbors", "neighbours of a point in a graph"),
        "alpha": _graph_field("alpha", "how far labels spread in a graph"),
        "similarity_power": _graph_field(
            "similarity_power", "power of similarities; the variant's by default", of_variant=True
        ),
        "label_norm": _graph_field(
            "label_norm", "what divides a label: nothing or its class's count", of_variant=True
        ),
        "confidence_scale": _graph_field(
            "confidence_scale",
            "what divides confidences: nothing, the largest, or the largest of a client",
            of_variant=True,
        ),
        "groups": _field(
            1, "xclp: clients are cut at random into groups, with a graph each", _COUNT
        ),
        "new_batch_size": _field(
            int, "examples that a client brings at a time; all by default", _COUNT
        ),
        "neighbor_search": _field(
            "exact", "xclp: approximate for millions of points", OneOf(("exact", "approximate"))
        ),
        "protocol": _field(
            "none",
            "xclp: protocol between the clients of a graph, docs/secure.md",
            declared(Level),
        ),
        "hamming": _field("transfer", "how the protocol finds distances", declared(Hamming)),
    },
    "distributed": {
        "coordinator": _field(
            str, "host:port of process 0, or $FEDJAX_SSL_COORDINATOR; one process by default"
        ),
        "num_processes": _field(int, "processes of the run, or $FEDJAX_SSL_NUM_PROCESSES", _COUNT),
        "process_id": _field(
            int, "number of this process, from 0 on, or $FEDJAX_SSL_PROCESS_ID", _COUNT_OR_NONE
        ),
        "auto": _field(False, "take the three from Slurm, Open MPI, GKE or a TPU"),
        "heartbeat_seconds": _field(
            30, "seconds without a sign of life until a process counts as dead", _COUNT
        ),
        "shutdown_seconds": _field(
            60, "seconds that processes wait for each other at the end", _COUNT
        ),
        "initialization_seconds": _field(
            120, "seconds that processes wait for each other at the start", _COUNT
        ),
        "stall_minutes": _field(
            60.0, "minutes without a finished block that end a process; 0: never", _WEIGHT
        ),
    },
}
FIELDS = {
    f"{section}.{name}".lstrip("."): field
    for section, fields in _SECTIONS.items()
    for name, field in fields.items()
}
# Fields of before, and what says it now.
RENAMED = {
    "method.lost_before": "config.participation.lost with config.participation.lost_when=start",
    "method.lost_after": "config.participation.lost with config.participation.lost_when=codes",
}


def register(kind: str, name: str | None = None, builder: Callable[..., Any] | None = None) -> Any:
    """Make a method, a network, a dataset ... of your own known to configs by a name.

    A config can also name it as "module:function", without this.

    Args:
        kind: a section of a config ("method", "model", "data", "partition", "supervision",
            "augment", "cohort", "federated", "personalize"), "around", "upload" or "term";
            "dataset" and "network" are "data" and "model".
        name: as configs write it; the builder's own by default.
        builder: a function as docs/extending.md describes it; its keyword arguments become options.
            Without it, `register` is a decorator.

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
    words = {"dataset": REGISTRIES["data"], "network": REGISTRIES["model"]}
    others: dict[str, Registry[Any]] = {"around": AROUND, "upload": UPLOADS, "term": methods.TERMS}
    registries: dict[str, Registry[Any]] = {**REGISTRIES, **words, **others}
    check_known("kind", kind, registries)
    if builder is None:
        return functools.partial(register, kind, name)
    registries[kind].register(name or builder.__name__, builder)
    return builder


def options_of(config: Any) -> dict[str, Option]:
    """Every field that a config has, by dotted name: fields of all configs, and the options of what
    this one names.

    Args:
        config: not resolved.

    Raises:
        ConfigError: it names something that nobody knows.
    """
    found = {"method.name": Option(str, "fedavg"), **_options_of_choices()}
    for section, registry in REGISTRIES.items():
        with naming("method.name" if section == "method" else section):
            own = registry.options_in(config[section])
        for option, one in own.items():
            found[f"{section}.{option}"] = one._replace(
                optional=section != "method" or one.optional
            )
    return found | FIELDS


def _options_of_choices() -> dict[str, Option]:
    """List the options of all choices as fields, in which None stands for the choice's own
    default.
    """
    return {
        f"{section}.{option}": Option(kind, None, True)
        for section, registry in CHOICES.items()
        for option, kind in registry.fields().items()
    }


def words_of(option: Option, full: bool = False) -> str:
    """Return what a field takes, in words; `full`, or for several numbers: with their range."""
    return (
        option.allowed.words()
        if option.allowed and (full or option.type is tuple)
        else _WORDS[option.type]
    )


def _stored(option: Option) -> Any:
    return config_dict.placeholder(option.type) if option.default is None else option.default


def method_section(name: str, given: Mapping[str, Any]) -> ml_collections.ConfigDict:
    """Make `config.method`: a method's name and settings, with their defaults where `given` has
    none.

    Args:
        name: a method's.
        given: settings, those of a part as "PART.SETTING"; those that the method does not have are
            left out.

    Raises:
        ValueError: nobody knows the method.
    """
    named = {"name": name, **given}
    flat: dict[str, Any] = {"name": name}
    for setting, option in methods.METHODS.options_in(named).items():
        flat[setting] = given.get(setting, _stored(option))
    return ml_collections.ConfigDict(unflatten_dict(flat, sep="."))


def default(method: str = "fedavg") -> ml_collections.ConfigDict:
    """Return the config every experiment starts from: labels-only federated averaging on the
    embedded digits.

    Args:
        method: name of a method, whose settings become `config.method`.
    """
    fields: dict[str, Any] = {"method": method_section(method, {})}
    for name, option in (_options_of_choices() | FIELDS).items():
        section, _, own = name.rpartition(".")
        place = fields.setdefault(section, {}) if section else fields
        place[own] = _stored(option)
    return ml_collections.ConfigDict(fields).lock()


def check_field(name: str, value: Any, option: Option | None = None) -> None:
    """Raise ConfigError where a value of a field is not allowed; the message names it and says
    what is.

    Args:
        name: its dotted name.
        value: its value.
        option: its declaration, by default that in `FIELDS`.
    """
    option = option or FIELDS[name]
    if value is None and not option.optional:
        raise ConfigError(f"config.{name} is None; give {words_of(option)}")
    allowed = option.allowed
    if option.type is object and not isinstance(value, str):
        allowed = _COUNT_OR_NONE
    if value is not None and allowed:
        with naming():
            allowed.check(f"config.{name}", value)


def get(config: Any, field: str, *missing: Any) -> Any:
    """Return the value of a dotted field, for example "optimizer.learning_rate".

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
