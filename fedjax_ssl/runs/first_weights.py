"""The trained network of another run as the start of a run, in place of random weights."""

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from fedjax_ssl.config import CHOICES, naming
from fedjax_ssl.data import Dataset
from fedjax_ssl.data.reading.cache import reading_from_json
from fedjax_ssl.data.reading.own import SHOWN
from fedjax_ssl.data.reading.table_reading import TableReading
from fedjax_ssl.errors import how_to_install, note
from fedjax_ssl.models import Model, started
from fedjax_ssl.runs import model_file
from fedjax_ssl.runs.build import Experiment

# Options of networks that change training or computation, but not the meaning of arrays.
OTHERWISE = 0.1
TRAINING = ("dropout", "dropout_rate", "lowering", "stochastic_depth", "weights")


def start_of(experiment: Experiment) -> Callable[[Model], Model] | None:
    """Return the function that sets the weights of a resolved config; None: random weights.

    Raises:
        ConfigError: their classes or columns are in another order than in this experiment.
    """
    config = experiment.config

    def start(model: Model) -> Model:
        with naming("start_from"):
            return start_from(model, config.start_from)

    if not config.start_from:
        return None
    with naming("start_from"):
        check_names(experiment)
    return start


def check_names(experiment: Experiment) -> None:
    """Compare classes and columns with those of the weights, by name, and note options of the
    network that arrays do not show.

    Args:
        experiment: experiment whose config names the weights; a file without such facts passes.

    Raises:
        ValueError: a class or column is in another place; the message says how to order them.
    """
    dataset = experiment.dataset
    path = Path(experiment.config.start_from).expanduser()
    facts = _facts_of_file(path) if path.is_file() else _facts_of_run(path)
    _note_options(facts.get("model", {}), experiment.config.model)
    _note_standardization(facts.get("inputs") or {}, dataset)
    reading = dataset.reading
    inputs = reading.inputs if isinstance(reading, TableReading) else None
    _note_fills(facts, reading)
    for what, option, before, now in (
        ("classes", "data.classes", facts.get("class_names"), dataset.class_names),
        ("columns", "data.features", model_file.columns(facts), inputs),
    ):
        if not before or not now or list(before) == list(now) or len(before) != len(now):
            continue  # other numbers are refused by their shape
        told = f"it was trained on the {what} {_listed(before)}, and these are {_listed(now)}"
        places = {name: number for number, name in enumerate(now)}
        if any(places.get(name, number) != number for number, name in enumerate(before)):
            columns = dict.fromkeys(name.partition("=")[0] for name in before)
            order = ",".join(before if what == "classes" else columns)
            raise ValueError(
                f"{told}: in another order; bring them in its order, of a table or folder with "
                f"{option}={order}"
            )
        note(
            f"config.start_from: {told}: other {what}, each of which starts as the one in its place"
        )


def _note_options(trained: Mapping[str, Any], network: Mapping[str, Any]) -> None:
    """Note options of the network that arrays do not show and that were different in training."""
    options = CHOICES["model"].options(network["name"])
    for name, default in (("name", None), *((name, one.default) for name, one in options.items())):
        before, now = (
            json.dumps(default if one.get(name) is None else one.get(name), default=str)
            for one in (trained, network)
        )
        if trained and name not in TRAINING and before != now:
            note(f"config.start_from: its network has model.{name}={before}, and this one {now}")


def _note_standardization(trained: Mapping[str, Any], dataset: Dataset) -> None:
    """Note if the network's inputs are standardized differently than in its training, because it
    then sees other values for the same example.
    """
    was_by_client = bool(trained.get("clients"))
    if was_by_client != ("client_statistics" in dataset.extra):
        now = "and these are not"
        remedy = "standardize these likewise: --data.standardize=client"
        if not was_by_client:
            now = "and these are"
            remedy = "leave data.standardize=client out"
        had = "were" if was_by_client else "were not"
        note(
            f"config.start_from: the inputs of its training {had} standardized by client, {now}, "
            f"so that its network sees other values; {remedy}"
        )
        return
    mean, std, own_mean, own_std = (
        np.asarray(one or neutral, float)
        for one, neutral in (
            (trained.get("mean"), (0.0,)),
            (trained.get("std"), (1.0,)),
            (dataset.mean, (0.0,)),
            (dataset.std, (1.0,)),
        )
    )
    sizes = {len(one) for one in (mean, std, own_mean, own_std)} - {1}
    if was_by_client or not trained or len(sizes) > 1:  # another number of columns is refused
        return
    shift = np.abs(mean - own_mean) / std
    if max(shift.max(), np.abs(np.log(std / own_std)).max()) < OTHERWISE:
        return
    before, after = (
        f"mean {_numbers(pair[0])} and deviation {_numbers(pair[1])}"
        for pair in ((mean, std), (own_mean, own_std))
    )
    keep = f"--data.mean='{_all(mean)}' --data.std='{_all(std)}'"
    note(
        f"config.start_from: the inputs of its training were standardized by {before}, and these "
        f"are by {after}, so that its network sees other values; to standardize as it was trained: "
        f"{keep}"
    )


def _note_fills(trained: Mapping[str, Any], now: Any) -> None:
    """Note columns whose missing cells are filled in with other medians than in training."""
    before = reading_from_json(trained.get("reading"))
    if not (isinstance(before, TableReading) and isinstance(now, TableReading)):
        return
    if not before.missing == now.missing == "median":
        return
    std = (trained.get("inputs") or {}).get("std") or (1.0,)  # one for all, or one each
    deviations = np.broadcast_to(std, len(before.inputs)).tolist()
    widths = dict(zip(before.inputs, deviations, strict=True))
    fills = {one.name: one.fill for one in before.features if not one.levels}
    apart = [
        f"{one.name} ({fills[one.name]:.4g}, and here {one.fill:.4g})"
        for one in now.features
        if one.name in fills
        and not one.levels
        and abs(one.fill - fills[one.name]) >= OTHERWISE * widths[one.name]
    ]
    if apart:
        note(
            "config.start_from: missing cells were filled in with other medians in its training: "
            f"{_listed(apart)}, so that its network sees other values; to fill them in as it was "
            "trained, write those into the file"
        )


def _numbers(values: np.ndarray) -> str:
    more = ", ..." * (len(values) > SHOWN)
    return ", ".join(f"{value:.4g}" for value in values[:SHOWN]) + more


def _all(values: np.ndarray) -> str:
    return f"({','.join(f'{value:.6g}' for value in values)},)" if len(values) else "()"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + ", ..." * (len(names) > SHOWN)


def round_of(folder: Path) -> str:
    """Return the round whose model a run gives to another run that starts from it."""
    stored, _, kind, checkpoints = model_file.find(folder, "auto")
    which = "the last one" if stored.summary is not None else "the last one so far"
    if kind == "best":
        which = "the best by its validation examples"
    return f"round {checkpoints.latest()} of {stored.config['rounds']}, {which}"


def _facts_of_run(folder: Path) -> dict[str, Any]:
    stored, description, *_ = model_file.find(folder, "auto")
    return {**description, "model": stored.config.get("model", {})}


def _facts_of_file(path: Path) -> dict[str, Any]:
    """Read the facts that `save_parameters` stores beside the arrays; empty if a file has none or
    cannot be read.
    """
    try:
        with importlib.import_module("safetensors").safe_open(path, framework="numpy") as file:
            found = json.loads((file.metadata() or {}).get("fedjax_ssl", "{}"))
    except Exception:  # reported when its arrays are read
        return {}
    return found if isinstance(found, dict) else {}


def start_from(model: Model, place: str) -> Model:
    """Return the model with its start at trained parameters and batch statistics.

    Args:
        model: the network with random weights.
        place: a run folder, with the model that `load_run` takes, or a file of
            `TrainedModel.save_parameters`.

    Returns:
        A model with another `init`, which reads nothing, and the same `apply`.

    Raises:
        ValueError: the weights do not exist, or belong to another network.
    """
    path = Path(place).expanduser()
    return started(model, _of_file(path) if path.is_file() else _of_run(path), place)


def _of_run(folder: Path) -> Mapping[str, np.ndarray]:
    stored, description, _, checkpoints = model_file.find(folder, "auto")
    with jax.ensure_compile_time_eval():  # may be read while a run's `init` is traced
        _, rebuilt = model_file.rebuild(stored, description)
        if rebuilt.method.network is None or rebuilt.method.recipe.alone:
            raise ValueError(
                f"the run in {folder} has no global network; save that of a client with "
                "save_parameters"
            )
        network = rebuilt.method.network(checkpoints.restore(rebuilt.state)[1])
        params, statistics = network
        return flatten_dict(jax.device_get({"params": params, "batch_stats": statistics}), sep=".")


def _of_file(path: Path) -> Mapping[str, np.ndarray]:
    try:
        arrays: Mapping[str, np.ndarray] = importlib.import_module("safetensors.numpy").load(
            path.read_bytes()
        )
    except ImportError as error:
        raise ValueError(
            f"{path} needs the package safetensors: {how_to_install('export')}"
        ) from error
    except Exception as error:  # the library's own error is no ValueError
        raise ValueError(
            f"{path} is neither a run folder nor a .safetensors file that can be read: {error}"
        ) from error
    return arrays
