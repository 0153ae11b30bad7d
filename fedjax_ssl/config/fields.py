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
from fedjax_ssl.config.errors import naming
from fedjax_ssl.data import AUGMENTATIONS, PARTITIONS, SOURCES, STANDARDIZATIONS, SUPERVISIONS
from fedjax_ssl.federated import (
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
from fedjax_ssl.tracking import WRITERS

CHOICES: dict[str, Registry[Any]] = {  # section -> what its name is one of
    "data": SOURCES,
    "partition": PARTITIONS,
    "supervision": SUPERVISIONS,
    "augment": AUGMENTATIONS,
    "strong_augment": AUGMENTATIONS,
    "model": MODELS,
    "federated": FEDERATED_OPTIMIZERS,
}


class Field(NamedTuple):
    """What a setting is until it is set, and what it may be."""

    default: Any  # a bare type: None, which is allowed, until a value of this type is given
    check: Callable[..., None] | None = None  # takes what is allowed, and the value by its name; raises ValueError
    allowed: Any = None


_FIELDS: dict[str, Field] = {
    "seed": Field(0, whole, 0),  # decides everything random: partition, labels, cohorts, batches, initial network
    "rounds": Field(100, whole, 0),  # 0: no training, only the predictions below
    "eval_every": Field(5, whole, 1),  # rounds between evaluations, run as one compiled call
    "checkpoint_every": Field(1, whole, 0),  # evaluations between checkpoints; 0: only at the end
    "select_from": Field(0, whole, 0),  # rounds before a model may be the one of the best validation accuracy
    "precision": Field("float32", one_of, PRECISIONS),  # of forward and backward passes; parameters stay float32
    # Scores beside accuracy: by client, macro F1, calibration error, area under the ROC curve (which takes longest).
    "metrics": Field(("clients", "f1", "ece"), several, scores.CHOICES),
    "profile": Field(False),  # jax.profiler's trace of the first block of rounds, without compiling, in the run folder
    "threads": Field(int, whole, 1),  # of a CPU; one per core by default, 1 suits linear models
    "data.name": Field("digits"),
    "data.path": Field(str),  # the file of npz, the folder of a published dataset
    "data.root": Field(str),  # folder for downloads and caches; $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl by default
    "data.download": Field(True),
    "data.standardize": Field("auto", one_of, STANDARDIZATIONS),  # by mean and deviation of whom
    "data.mean": Field(tuple),  # ... in place of the dataset's, per channel or feature
    "data.std": Field(tuple),
    "data.pool_splits": Field(False),  # the dataset's own test examples are training examples too; hold others out
    "data.test_clients": Field(0, whole, 0),  # whole natural clients held out as test set
    "data.left_out_client": Field(int, whole, 0),  # this natural client is the test set
    "data.test_fraction": Field(0.0, number, "[0, 1)"),  # of the examples, the test set where the dataset has none
    "data.client_test_fraction": Field(0.0, number, "[0, 1)"),  # of every client's examples, its test examples
    "data.validation_fraction": Field(0.0, number, "[0, 1)"),
    "data.balanced_test": Field(False),  # clients draw test examples, equally many of every class
    "data.pools": Field(tuple),  # training, validation and test examples of every class, of both splits together
    "data.shuffle_pools": Field(False),  # ... not the training examples first
    "partition.name": Field("natural"),
    "supervision.name": Field("all"),
    "augment.name": Field("none"),
    "strong_augment.name": Field("none"),
    "model.name": Field("mlp"),
    "optimizer.name": Field("sgd", one_of, OPTIMIZERS),
    "optimizer.learning_rate": Field(0.1, number, "[0, inf)"),
    "optimizer.schedule": Field("constant", one_of, SCHEDULES),  # "cosine": over schedule_rounds
    "optimizer.schedule_rounds": Field(int, whole, 1),  # rounds by default
    "optimizer.momentum": Field(0.0, number, "[0, 1)"),
    "optimizer.nesterov": Field(False),
    "optimizer.weight_decay": Field(0.0, number, "[0, inf)"),
    "optimizer.clip_norm": Field(float, number, "(0, inf)"),  # largest norm of a gradient; no clipping by default
    "optimizer.keep_state": Field(False),  # clients keep momentum and the like between their rounds
    "optimizer.keep_by": Field("client", one_of, KEEP_BY),  # ... or the cohort's slots do, whoever fills them
    "optimizer.average_state": Field(False),  # clients start from the mean of what the last cohort ended with
    "optimizer.batch_size": Field(10, whole, 1),
    "optimizer.local_epochs": Field(1, whole, 1),
    "federated.name": Field("fedavg"),
    "federated.cohort_size": Field(int, whole, 1),  # clients per round; all by default
    "federated.weighting": Field("uniform", one_of, WEIGHTINGS),
    "federated.mu": Field(float, number, "[0, inf)"),  # options of optimizers, like the next two
    "federated.server_learning_rate": Field(float, number, "[0, inf)"),
    "federated.server_momentum": Field(float, number, "[0, 1)"),
    "federated.placement": Field("auto", one_of, PLACEMENTS),
    "federated.chunk_size": Field(int, whole, 1),  # clients at once on a device; by default as many as fit
    "federated.devices": Field(int, whole, 1),  # that share each cohort; one, or all of several processes, by default
    "federated.reduce": Field("ordered", one_of, REDUCTIONS),  # sums over devices
    # Evaluations without a better validation accuracy until the run ends; all rounds by default.
    "early_stopping.patience": Field(int, whole, 1),
    "tracking.writers": Field((), several, WRITERS),  # viewers that get the metrics too
    "tracking.project": Field("fedjax_ssl"),  # ... at wandb; the experiment at mlflow
    "tracking.offline": Field(False),  # wandb and mlflow keep their records in the run folder
    "tracking.uri": Field(str),  # mlflow's server or store; $MLFLOW_TRACKING_URI or mlflow's own default by default
    # "network,xclp,per_client_lp": label the clients' test examples after the last round
    "prediction.predictors": Field(""),
    "prediction.features": Field("network", one_of, ("network", "inputs")),  # what the graphs compare; inputs as stored
    "prediction.variant": Field("both", one_of, ("paper", "code", "both")),  # settings of the paper, the authors' code
    "prediction.unlabelled": Field("with", one_of, ("with", "without", "both")),  # training examples in the graphs
    "prediction.similarity": Field("exact", one_of, ("exact", "lsh")),  # per_client_lp: cosines
    "prediction.num_bits": Field(4096, whole, 1),
    "prediction.num_neighbors": Field(10, whole, 1),
    "prediction.alpha": Field(0.99, number, "[0, 1)"),
    "prediction.similarity_power": Field(float, number, "(0, inf)"),  # the variant's by default, as the next two
    "prediction.label_norm": Field(str, one_of, ("none", "class")),
    "prediction.confidence_scale": Field(str, one_of, ("none", "max")),
    "prediction.groups": Field(1, whole, 1),  # xclp: clients are cut at random into groups, with a graph each
    "prediction.new_batch_size": Field(int, whole, 1),  # examples that a client brings at a time; all by default
    "prediction.neighbor_search": Field("exact", one_of, ("exact", "approximate")),  # xclp; for millions of points
    # xclp; between the clients of a graph: docs/secure.md
    "prediction.protocol": Field("none", one_of, secure.CHOICES),
    "prediction.hamming": Field("transfer", one_of, secure.HAMMING),  # ... with which its distances are found
    "distributed.coordinator": Field(str),  # host:port of process 0; one process by default. Or set
    "distributed.num_processes": Field(int),  # ... $FEDJAX_SSL_COORDINATOR, $FEDJAX_SSL_NUM_PROCESSES and
    "distributed.process_id": Field(int),  # ... $FEDJAX_SSL_PROCESS_ID
    "distributed.auto": Field(False),  # take the three from Slurm, Open MPI, GKE or a TPU
    "distributed.heartbeat_seconds": Field(30, whole, 1),  # without a sign of life until a process counts as dead
    "distributed.shutdown_seconds": Field(60, whole, 1),  # that processes wait for each other at the end
    "distributed.initialization_seconds": Field(120, whole, 1),  # ... and at the start
    # Without a finished block of rounds until a process gives up; 0: never.
    "distributed.stall_minutes": Field(60.0, number, "[0, inf)"),
}
_OPTIONS = {  # of the choices that sections name
    f"{section}.{option}": Field(kind)
    for section, registry in CHOICES.items()
    for option, kind in registry.fields().items()
}


def default(method: str = "fedavg") -> ml_collections.ConfigDict:
    """The config every experiment starts from: labels-only federated averaging on the embedded digits.

    Args:
        method: name of a method, whose settings become `config.method`.
    """
    own_settings = {
        setting: config_dict.placeholder(option.type) if option.default is None else option.default
        for setting, option in methods.METHODS.options(method).items()
    }
    fields: dict[str, Any] = {"method": {"name": method, **own_settings}}
    for name, (value, *_) in (_OPTIONS | _FIELDS).items():
        section, _, own = name.rpartition(".")
        place = fields.setdefault(section, {}) if section else fields
        place[own] = config_dict.placeholder(value) if isinstance(value, type) else value
    return ml_collections.ConfigDict(fields).lock()


def check_field(name: str, value: Any) -> None:
    """Raises ConfigError where a field's value is not allowed; the message names it and says what is."""
    default, check, allowed = _FIELDS[name]
    if check and not (value is None and isinstance(default, type)):
        with naming():
            check(allowed, **{f"config.{name}": value})


def check_fields(config: ml_collections.ConfigDict) -> None:
    """`check_field` for all fields of a config."""
    for name in _FIELDS:
        check_field(name, get(config, name))


def get(config: Any, field: str) -> Any:
    """The value of a dotted field, for example "optimizer.learning_rate"."""
    for part in field.split("."):
        config = config[part]
    return config
