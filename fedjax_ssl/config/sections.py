"""The fields of every config, by section: default, meaning and allowed values."""

import dataclasses
import functools
import inspect
from typing import Any

from fedjax_ssl.checks import Declaration, Each, In, OneOf, Several, Whole, declared
from fedjax_ssl.data import RESIDENCES, STANDARDIZATIONS, HeldOut
from fedjax_ssl.federated import (
    LOST_WHEN,
    PLACEMENTS,
    REDUCTIONS,
    SCHEDULES,
    SCORES,
    WEIGHTINGS,
)
from fedjax_ssl.federated.uploads import FAULTS, UPLOADS
from fedjax_ssl.graph.graph_settings import GraphSettings, Hamming, Level
from fedjax_ssl.methods.around import WRAPPERS
from fedjax_ssl.models import PRECISIONS
from fedjax_ssl.objectives import INVERSE, LOSSES
from fedjax_ssl.registry import CHANGES, Option, option_of

VALIDATION = "validation data"  # an `Option.needs`, besides those that name fields
DIRECTIONS = ("maximize", "minimize")
VIEWERS = ("tensorboard", "wandb")  # each opened by `fedjax_ssl.folder.writers`
_SHARE = In("[0, 1)")
_PROBABILITY = In("[0, 1]")
_WEIGHT = In("[0, inf)")
_POSITIVE = In("(0, inf)")
_FINITE = In("(-inf, inf)")
_COUNT = Whole(1)
COUNT_OR_NONE = Whole(0)
_HELD_OUT = {"left_out_client": object, "pools": tuple}  # types of fields that are None by default


def _field(
    default: Any, meaning: str, allowed: Declaration | None = None, *, changes: str, **more: Any
) -> Option:
    """Declare a setting of every run. A bare type as default stands for None until a value of this
    type is set.
    """
    optional = isinstance(default, type)
    kind, value = (default, None) if optional else (type(default), default)
    return Option(kind, value, optional, allowed, meaning=meaning, changes=changes, **more)


_code, _result, _length, _place, _prediction, _program, _watching = (
    functools.partial(_field, changes=word) for word in CHANGES
)


def _graph_field(name: str, meaning: str, of_variant: bool = False) -> Option:
    """Declare a setting of graphs from `GraphSettings`; with `of_variant`, None stands for the
    variant's value.
    """
    option = option_of(inspect.signature(GraphSettings, eval_str=True).parameters[name])
    option = option._replace(
        meaning=meaning, traceable=False, changes="prediction", needs="prediction.predictors"
    )
    return option._replace(default=None, optional=True) if of_variant else option


# Seeds are bounded because jax.random takes only the last 32 bits of a larger one, which equal
# those of a smaller seed.
SECTIONS: dict[str, dict[str, Option]] = {
    "": {
        "seed": _result(
            0,
            "random seed of everything: partition, labels, cohorts, batches, first network",
            Whole(0, 2**32 - 1),
        ),
        "rounds": _length(
            100,
            "rounds of training; 0: no training, only the predictions of config.prediction",
            COUNT_OR_NONE,
        ),
        "eval_every": _code(5, "rounds between evaluations, run as one compiled call", _COUNT),
        "checkpoint_every": _watching(
            1, "evaluations between checkpoints; 0: only at the end", COUNT_OR_NONE
        ),
        "select_from": _result(
            0,
            "first round whose model may be chosen by validation accuracy",
            COUNT_OR_NONE,
            needs=VALIDATION,
        ),
        "precision": _code(
            "float32",
            "numbers of forward and backward passes; parameters are float32",
            OneOf(PRECISIONS),
        ),
        "metrics": _program(
            ("clients", "f1", "ece"),
            "scores beside accuracy: by client, macro F1, calibration error, (slow) ROC area, "
            "local models, your own",
            Several(SCORES, own=True),
        ),
        "around": _code(
            (),
            "wrappers of the method, the first one inside, for example slow_clients or your own",
            Several(WRAPPERS, own=True),
        ),
        "uploads": _code(
            (),
            "transforms of the clients' uploads, in this order, for example your own my:clip",
            Several(UPLOADS, own=True),
        ),
        "test_predictions": _watching(
            "auto",
            "whether test_predictions.csv is written; auto: up to 2 MB",
            OneOf(("auto", "all", "none")),
        ),
        "start_from": _result(
            str,
            "weights to start from, in place of random ones: folder of another run, or "
            "FILE.safetensors",
        ),
        "profile": _watching(
            False,
            "keep jax.profiler's trace of the last block of rounds, for TensorBoard or Perfetto",
        ),
        "save_clients": _watching(
            object,
            "round (or last) whose clients' models are saved before they are averaged, "
            "docs/trained.md",
        ),
        "threads": _code(
            int, "threads of a CPU; one per core by default, one for small models", _COUNT
        ),
    },
    "data": {
        "name": _code("digits", "the dataset"),
        "path": _place(str, "file of your own data, or folder of a published dataset"),
        "root": _watching(
            str, "folder of downloads; $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl by default"
        ),
        "download": _watching(True, "whether the network may be used"),
        "residence": _program(
            "auto",
            "memory that holds the examples; auto: the device, up to half of its memory",
            OneOf(RESIDENCES),
        ),
        "standardize": _code(
            "auto", "examples that give mean and deviation of the inputs", OneOf(STANDARDIZATIONS)
        ),
        "mean": _code(
            tuple,
            "mean of a channel or feature, in place of the dataset's",
            Each(_FINITE),
            fitted=True,
        ),
        "std": _code(
            tuple,
            "deviation of a channel or feature, in place of the dataset's",
            Each(_POSITIVE),
            fitted=True,
        ),
        "test_mean": _code(
            tuple,
            "mean for predicted inputs, if it differs from training",
            Each(_FINITE),
            fitted=True,
        ),
        "test_std": _code(
            tuple,
            "deviation for predicted inputs, if it differs from training",
            Each(_POSITIVE),
            fitted=True,
        ),
        "split": _place(
            str,
            "file that says who has which example and label, in place of partition, supervision "
            "and what is held out; {seed} in it stands for the seed",
        ),
        "pool_splits": _code(
            False, "the dataset's own test examples are training examples too; hold others out"
        ),
        **{
            one.name: _code(
                _HELD_OUT.get(one.name, one.default), fitted=one.name == "pools", **one.metadata
            )
            for one in dataclasses.fields(HeldOut)
        },
    },
    "partition": {
        "name": _result("natural", "partition of the examples over clients"),
        "num_clients": _result(int, "clients that train; all natural ones by default", _COUNT),
        "pooled": _result(bool, "give all clients' examples, and the server's, to one client"),
    },
    "supervision": {
        "name": _result("all", "labels that clients and server see"),
        "labelled_clients": _result(
            int, "clients that keep class labels; all by default", COUNT_OR_NONE
        ),
        "which": _result(
            str,
            "which clients keep class labels; first by default",
            OneOf(("first", "random")),
            needs="supervision.labelled_clients or supervision.coarse_clients or "
            "supervision.set_clients",
        ),
    },
    "augment": {"name": _code("none", "augmentation of training inputs; the weak view of methods")},
    "strong_augment": {"name": _code("none", "the strong view, in methods that have one")},
    "model": {
        "name": _code("mlp", "the network"),
        "train": _code(
            "all",
            "layers that are trained and sent: all, head, or names with commas between, * for "
            "anything",
        ),
    },
    "optimizer": {
        "name": _code("sgd", "optimizer of the clients' local training"),
        "learning_rate": _code(
            0.1, "learning rate of a local step", _WEIGHT, traceable=True, fitted=True
        ),
        "schedule": _code(
            "constant", "the learning rate over the rounds", OneOf(SCHEDULES, own=True)
        ),
        "schedule_rounds": _length(
            int, "length of the schedule; default: rounds", _COUNT, needs="optimizer.schedule"
        ),
        "schedule_factor": _code(
            0.1,
            "exponential: after schedule_rounds; piecewise: at every boundary",
            _POSITIVE,
            needs="optimizer.schedule=exponential|piecewise",
        ),
        "schedule_staircase": _code(
            False,
            "exponential: changes every schedule_rounds only",
            needs="optimizer.schedule=exponential",
        ),
        "schedule_boundaries": _code(
            tuple,
            "piecewise: rounds; half and three quarters by default",
            Each(_COUNT),
            needs="optimizer.schedule=piecewise",
        ),
        "schedule_warmup": _code(
            int,
            "rounds of a warm-up; a tenth of schedule_rounds by default",
            _COUNT,
            needs="optimizer.schedule=warmup|warmup_cosine",
        ),
        "schedule_end": _code(
            0.0,
            "linear, warmup_cosine: share of the learning rate at the end",
            _WEIGHT,
            needs="optimizer.schedule=linear|warmup_cosine",
        ),
        "clip_norm": _code(
            float, "largest norm of a gradient; no clipping by default", _POSITIVE, traceable=True
        ),
        "keep_state": _code(
            False,
            "clients keep the state of the optimizer, such as momentum, between their rounds",
            needs="optimizer.momentum or optimizer.name!=sgd",
        ),
        "average_state": _code(
            False,
            "clients start from the mean optimizer state of the last cohort",
            needs="optimizer.momentum or optimizer.name!=sgd",
        ),
        "batch_size": _code(10, "examples of a local step", _COUNT),
        "local_epochs": _code(1, "passes over a client's examples in a round", _COUNT),
        "local_steps": _code(
            int,
            "local updates in a round, in place of local_epochs; batches of labels go on where "
            "they stopped",
            _COUNT,
        ),
    },
    "loss": {
        "name": _code("cross_entropy", "loss of labelled examples", OneOf(LOSSES)),
        "gamma": _code(
            2.0,
            "focal: exponent that lowers the weight of examples that are already right",
            _WEIGHT,
            needs="loss.name=focal",
        ),
        "label_smoothing": _code(0.0, "share of a label that is spread over all classes", _SHARE),
        "class_weights": _code(
            tuple,
            "factor of every class; inverse: the rarer its labels, the larger",
            Each(_WEIGHT, *INVERSE),
        ),
        "logit_adjustment": _code(
            0.0, "tau: scores get tau times the log of their class's share of labels", _WEIGHT
        ),
    },
    "cohort": {"name": _code("uniform", "sampling of the clients of a round")},
    "federated": {
        "name": _code(
            "fedavg", "federated optimizer, which makes the next model of the clients' models"
        ),
        "cohort_size": _code(int, "clients per round; all by default", _COUNT),
        "weighting": _code(
            str,
            "a client's weight in the average; default: examples for your own data, else uniform",
            OneOf(WEIGHTINGS),
        ),
        "placement": _code(
            "auto", "how a cohort's clients run inside the compiled round", OneOf(PLACEMENTS)
        ),
        "chunk_size": _code(int, "clients at once on a device; by default as many as fit", _COUNT),
        "devices": _code(
            int,
            "devices that share a cohort; by default all of a CPU or of several processes, where "
            "it is faster",
            _COUNT,
        ),
        "reduce": _code("ordered", "how sums over devices are made", OneOf(REDUCTIONS)),
    },
    "personalize": {
        "name": _code(
            "none",
            "one wrapper of the method with its options, such as models of clients' own",
        ),
    },
    "participation": {
        "probability": _code(
            float,
            "probability that a client is available in a round; default: 1",
            _PROBABILITY,
            traceable=True,
        ),
        "lost": _code(
            float, "probability that a client drops out; default: 0", _PROBABILITY, traceable=True
        ),
        "lost_when": _code(
            "training",
            "when it drops out: before it sends anything, after the codes, after the scores, after "
            "training",
            OneOf(LOST_WHEN),
            needs="participation.lost",
        ),
    },
    "sum": {
        "name": _code("mean", "how the server combines the uploads of a round, docs/unreliable.md"),
    },
    "faults": {
        "name": _code("none", "fault of the faulty clients", OneOf(tuple(FAULTS))),
        "share": _code(
            0.2,
            "share of the clients that are faulty; the random seed draws them",
            In("[0, 1]"),
            needs="faults.name",
        ),
        "factor": _code(
            10.0,
            "scale: factor of the updates of faulty clients",
            _FINITE,
            needs="faults.name=scale",
        ),
    },
    "privacy": {"name": _code("none", "mechanism that hides clients or examples")},
    "early_stopping": {
        "patience": _result(
            int, "evaluations without a better model after which the run ends", _COUNT
        ),
        "metric": _result(
            "validation_accuracy",
            "column of metrics.csv by which the best model is chosen",
            needs=VALIDATION,
        ),
        "direction": _result(
            str,
            "whether a higher or lower value is better; needed for your own metrics only",
            OneOf(DIRECTIONS),
        ),
    },
    "tracking": {
        "writers": _watching((), "viewers that also get the metrics", Several(VIEWERS)),
        "project": _watching("fedjax_ssl", "project at wandb", needs="tracking.writers=wandb"),
        "offline": _watching(
            False, "wandb keeps its record in the run folder", needs="tracking.writers=wandb"
        ),
    },
    "prediction": {
        "predictors": _prediction(
            "",
            "predictors that label the test examples at the end: network, xclp, per_client_lp, "
            "class_means, linear_head, with commas between",
        ),
        "features": _prediction(
            "network",
            "values that are compared: features of the network, or inputs as stored",
            OneOf(("network", "inputs")),
            needs="prediction.predictors",
        ),
        "variant": _prediction(
            "both",
            "settings of the paper, or of the authors' code",
            OneOf(("paper", "code", "both")),
            needs="prediction.predictors",
        ),
        "unlabelled": _prediction(
            "with",
            "whether graphs hold unlabelled training examples",
            OneOf(("with", "without", "both")),
            needs="prediction.predictors",
        ),
        "similarity": _prediction(
            str,
            "cosines, or their estimate by codes; xclp: lsh, per_client_lp: exact by default",
            OneOf(("exact", "lsh")),
            needs="prediction.predictors",
        ),
        "ridge": _prediction(
            1.0,
            "weight of squared coefficients of linear_head, in mean variances of a feature",
            _POSITIVE,
            needs="prediction.predictors",
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
        "groups": _prediction(
            1,
            "xclp: clients are cut at random into groups, with a graph each",
            _COUNT,
            needs="prediction.predictors=xclp",
        ),
        "new_batch_size": _prediction(
            int,
            "new examples of a client per graph; default: all",
            _COUNT,
            needs="prediction.predictors",
        ),
        "protocol": _prediction(
            "none",
            "xclp: protocol between the clients of a graph, docs/secure.md",
            declared(Level),
            needs="prediction.predictors=xclp",
        ),
        "hamming": _prediction(
            "transfer",
            "how the protocol finds distances",
            declared(Hamming),
            needs="prediction.protocol",
        ),
    },
    "distributed": {
        "coordinator": _watching(
            str, "host:port of process 0, or $FEDJAX_SSL_COORDINATOR; one process by default"
        ),
        "num_processes": _watching(
            int, "processes of the run, or $FEDJAX_SSL_NUM_PROCESSES", _COUNT
        ),
        "process_id": _watching(
            int, "number of this process, from 0 on, or $FEDJAX_SSL_PROCESS_ID", COUNT_OR_NONE
        ),
        "auto": _watching(False, "take these three settings from Slurm, Open MPI, GKE or a TPU"),
        "heartbeat_seconds": _watching(
            30, "seconds without a sign of life until a process counts as dead", _COUNT
        ),
        "shutdown_seconds": _watching(
            60, "seconds that processes wait for each other at the end", _COUNT
        ),
        "initialization_seconds": _watching(
            120, "seconds that processes wait for each other at the start", _COUNT
        ),
        "stall_minutes": _watching(
            60.0, "minutes without a finished block that end a process; 0: never", _WEIGHT
        ),
    },
}
