"""The configs of a table at a scale: the paper's own, smaller ones, or as little as shows that
they run.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_collections
from flax.traverse_util import flatten_dict

from experiments.papers.stand_in import NAME as STAND_IN
from experiments.papers.stand_in import stand_in
from experiments.papers.table import Cell, Table
from fedjax_ssl import config as configs
from fedjax_ssl import data, models, processor
from fedjax_ssl.config import ConfigError, naming
from fedjax_ssl.config.sections import SECTIONS
from fedjax_ssl.errors import ConfigNote, check_known
from fedjax_ssl.folder.files import bytes_in_words
from fedjax_ssl.models.pretrained import EXPORT
from fedjax_ssl.runs.build import load_resolved

_SMOKE_ROUNDS = 2
_SMOKE_COHORT = 2
_SMOKE_CLIENTS = 10
_SMOKE_SIDE = 32
# examples of a client, of its sets, parts, classes
_SMOKE_OWN = 120
_SMOKE_SET = 15
_SMOKE_PART = 30
_SMOKE_CLASS = 5
# fields of a method, its optimizer, partition or prediction -> the most that they are
_SMOKE_MOST = {
    **dict.fromkeys(
        ("batch_size", "server_batch_size", "unlabelled_batch_size", "set_size", "num_unlabelled"),
        16,
    ),
    **dict.fromkeys(("unlabelled_ratio", "num_helpers", "groups", "local_steps"), 2),
    "threshold": 0.01,  # so that some pseudo-label is confident
}
# networks that compile for long -> a shallow one with the same kind of layers and heads
_SHALLOW = {
    **dict.fromkeys(("wrn28", "resnet18", "efficientnet_b0"), "resnet8_basic"),
    "resnet17": "resnet8",
    "proto_resnet18": "resnet9",
}


class Run(NamedTuple):
    """A cell with one seed."""

    cell: Cell
    name: str
    config: ml_collections.ConfigDict  # resolved
    dataset: str  # of the paper, whatever is taken in its place


def runs_of(
    table: Table,
    scale: str,
    cells: Sequence[Cell],
    seeds: Sequence[int] | None = None,
    given: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> list[Run]:
    """Make the runs of cells that some config expresses.

    Args:
        table: the table.
        scale: one of `experiments.papers.table.SCALES`.
        cells: of the table, at this scale.
        seeds: those of every cell; by default as many as the scale has.
        given: name of a dataset -> a file or folder, or another dataset, in its place.
        settings: by dotted field, in place of all others.

    Raises:
        ConfigError: a setting cannot be used; names the cell.
    """
    own_seed = "seed" in (settings or {})
    if own_seed and seeds is not None:
        raise ConfigError("--seeds and --set seed=... are both given; leave one out")
    if seeds is None:
        seeds = range(table.seeds_at(scale))
    if given and scale == "smoke":
        raise ConfigError(
            "--data does nothing at the scale smoke, which has stand-in data; leave it out"
        )
    found = []
    named = set[str]()
    for cell in cells:
        if cell.missing:
            continue
        try:
            config = configs.load(cell.config, {**cell.settings, **(settings or {})})
            dataset = config.data.name
            named.add(dataset)
            with config.unlocked():
                if scale == "smoke":
                    values = flatten_dict(config.to_dict(), sep=".")
                    make_tiny(config)
                    asked_for = {field: values[field] for field in settings or {}}
                    config.update_from_flattened_dict(asked_for)
                    if cell.value[0] == "round":  # that are fewer here
                        cell = cell._replace(value="last")
                else:
                    take_data(config, given or {})
            with warnings.catch_warnings():
                if scale == "smoke":  # short stages have notes of their own
                    warnings.simplefilter("ignore", ConfigNote)
                for seed in [config.seed] if own_seed else seeds:
                    config.seed = seed
                    name = f"{cell.row},{cell.column},seed {seed}"
                    found.append(Run(cell, name, configs.resolve(config), dataset))
        except ConfigError as error:
            raise ConfigError(f"{table.name}, {cell.row}, {cell.column}: {error}") from error
    for name in given or {}:
        with naming("--data"):
            check_known("dataset", name, list(data.SOURCES))
        if name not in named:
            raise ConfigError(
                f"--data {name}: these cells have other data: {', '.join(sorted(named))}"
            )
    return found


def take_data(config: ml_collections.ConfigDict, given: Mapping[str, str]) -> None:
    """Replace the dataset of an unlocked config by what a user gives for it."""
    place = given.get(config.data.name)
    if place is None:
        return
    if place in data.SOURCES:
        _use(config, place)
    elif Path(place).is_dir():
        config.data.path = place
    else:
        _use(config, "npz")
        config.data.path = place


def _use(config: ml_collections.ConfigDict, name: str) -> None:
    """Name another dataset, without options that it does not take."""
    config.data.update(name=name, path=None)
    taken = data.SOURCES.options(name)
    for option in data.SOURCES.fields():
        if option not in taken and not {option, f"data.{option}"} & configs.FIELDS.keys():
            config.data[option] = None


def make_tiny(config: ml_collections.ConfigDict) -> None:
    """Make an unlocked config small enough for a few seconds: two rounds, few clients, a small
    network, no real data.

    What decides shapes and code, such as partition, supervision and method, stays.
    """
    config.update(
        rounds=_SMOKE_ROUNDS,
        eval_every=1,
        select_from=0,
        precision="float32",
        test_predictions="none",
    )
    config.federated.devices = 1
    config.optimizer.schedule_rounds = None
    for part in (config.optimizer, config.method, config.partition, config.prediction):
        for field, value in part.items():
            if isinstance(value, int | float) and value:
                once = field.endswith(("_rounds", "_epochs", "rounds_per_part"))
                part[field] = min(value, 1 if once else _SMOKE_MOST.get(field, value))
    if (config.federated.cohort_size or config.partition.num_clients or math.inf) > _SMOKE_COHORT:
        config.federated.cohort_size = _SMOKE_COHORT
    config.model.name = _SHALLOW.get(config.model.name, config.model.name)
    network = models.options(config.model.name)
    for option in configs.options(config.model):
        if option not in (*network, *SECTIONS["model"]):
            config.model[option] = None
    if "widen" in network:
        config.model.widen = 1
    if "width_factor" in network:
        config.model.width_factor = 0.5 if config.model.get("norm") == "gn" else 1 / 16
    if "hidden" in network and config.model.hidden:
        config.model.hidden = tuple(8 for _ in config.model.hidden)
    section = config.data
    if section.name in ("digits", "glyphs"):  # these are there
        return
    use_stand_in(config)
    if section.get("size"):
        section.size = min(section.size, _SMOKE_SIDE)
    _leave_few(config)


def use_stand_in(config: ml_collections.ConfigDict) -> None:
    """Give an unlocked config inputs of its dataset's shape and classes that are made up; as many
    as its pools take.
    """
    section = config.data
    name = section.name
    known = section.get("num_classes") or (6 if section.get("healthy") else None)
    _use(config, STAND_IN)
    section.update(like=name.partition(":")[0], num_classes=known)
    if section.mean is None and section.std is None and section.standardize == "auto":
        section.standardize = "none"
    if config.federated.weighting is None:  # as of published datasets
        config.federated.weighting = "uniform"
    if section.pools:
        classes = stand_in(like=section.like, num_classes=known, examples=1)
        section.examples = 2 * sum(section.pools) * classes.num_classes


def _leave_few(config: ml_collections.ConfigDict) -> None:
    """Leave stand-in data as many clients and examples as partition, supervision and held-out
    parts need.
    """
    section = config.data
    partition = config.partition
    supervision = config.supervision
    like = stand_in(like=section.like, num_classes=section.num_classes, examples=1)
    there = partition.num_clients or len(like.client_names or ())
    classes = like.num_classes
    clients = min(there, _SMOKE_CLIENTS)
    if clients < there:
        partition.num_clients = clients
    shared = ["labelled_clients", "server_labels"]
    if supervision.name in ("total", "server"):
        shared.append("labels")
    for field in shared:
        if supervision[field]:
            supervision[field] = math.ceil(supervision[field] * clients / max(there, 100))
    if section.pools:
        section.pools = (section.pools[0] * clients // there, _SMOKE_CLASS, _SMOKE_CLASS)
        section.examples = 2 * sum(section.pools) * classes  # half of them may have no label
        partition.counts = tuple(
            max(count * clients // there, min(count, 10)) for count in partition.counts
        )
        partition.unlabelled = partition.unlabelled and _SMOKE_OWN // 2
    elif partition.name == "natural":
        section.examples = max(there, _SMOKE_CLIENTS * _SMOKE_CLASS) * _SMOKE_CLASS * 2
        supervision.labels = supervision.labels and min(supervision.labels, _SMOKE_CLASS)
    else:
        parts = _SMOKE_PART * (partition.parts or 1) + classes * (partition.balanced or 0)
        sets = max(supervision.set_counts or [supervision.sets or 0])
        own = max(_SMOKE_OWN, parts, _SMOKE_SET * sets)
        if partition.max_examples:  # of more than the clients have
            clients = 8 * _SMOKE_CLIENTS
            partition.max_examples = 10 * own
        section.examples = 5 * clients * own // 4  # a fifth at most is held out


def check_data(runs: Sequence[Run]) -> None:
    """Load every dataset that runs name, once, by download if need be.

    Args:
        runs: the runs.

    Raises:
        ConfigError: some are not here, in one message: which files, from where, how large; or the
            machine's memory is too small for one.
    """
    missing: dict[str, None] = {}
    for config in {repr(run.config.data): run.config for run in runs}.values():
        if config.data.name == "npz" and not Path(config.data.path).expanduser().is_file():
            missing[f"{config.data.path} is not there"] = None
            continue
        try:
            dataset = load_resolved(config).dataset
        except data.DatasetUnavailable as error:
            missing[str(error)] = None
            continue
        size = sum(part.x.nbytes for part in (dataset.train, dataset.test) if part)
        memory = processor.memory()
        if memory is not None and 2 * size > memory:  # as read, and as the device has it
            raise ConfigError(
                f"{config.data.name} has {bytes_in_words(size)} of inputs, which this machine "
                f"with {bytes_in_words(memory)} of memory cannot hold twice; run the scale "
                "'small', or on a larger machine"
            )
    for weights in {run.config.model.get("weights"): None for run in runs}:
        if weights and not Path(weights).expanduser().is_file():
            missing[
                f"weights {weights} are not there; make them where PyTorch is installed with "
                f"{EXPORT}"
            ] = None
    if missing:
        own = (
            "With --data NAME=FILE.npz a file with x_train, y_train, x_test and y_test is taken "
            "in place of NAME."
        )
        raise ConfigError("\n".join([*missing, own]))
