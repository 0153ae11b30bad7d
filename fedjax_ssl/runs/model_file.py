"""model.json: facts that a trained model needs, besides config and checkpoint, to work without the
data.

    version         of this file
    dataset         name of the dataset
    data            fingerprint of what was read
    split           hash of who has what of it
    inputs          shape and type of an example as stored, and how it is standardized to be
                    predicted
    reading         says how files become inputs, None where nobody knows it
    class_names     K names
    client_names    of all clients, those that train first
    code            digests of the modules of a user's own that the config names
    draws           settings of JAX that decide what a seed draws
    alike           fields of the config that do not tell experiments apart
    temperature     value, by which logits are divided, the round whose model it is for, and how
                    many validation examples it was fitted on; null: none was
    federation      `FederatedData` without its contents: shapes, types and bounds decide those of
                    a state
"""

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fedjax_ssl import config as configs
from fedjax_ssl.data import (
    Dataset,
    FederatedData,
    Split,
    WeakLabels,
    client_names,
    for_prediction,
    is_own,
)
from fedjax_ssl.data.federation.federated_data import real_rows
from fedjax_ssl.data.fingerprint import of_examples
from fedjax_ssl.data.reading.cache import reading_from_json
from fedjax_ssl.data.reading.table_reading import TableReading
from fedjax_ssl.errors import UserError, did_you_mean, note
from fedjax_ssl.federated import Method, ServerState
from fedjax_ssl.folder.checkpoint import Checkpoints
from fedjax_ssl.folder.folder_lock import CODE_FOLDER
from fedjax_ssl.folder.resume import changed_code
from fedjax_ssl.folder.stored_run import StoredRun, read_run, refuse_sweep
from fedjax_ssl.runs import own_sources
from fedjax_ssl.runs.build import Experiment, build

PyTree = Any
VERSION = 1
CHECKPOINTS = ("auto", "best", "last")
SEEN = "labels_seen.txt"  # digests of a user's own examples whose labels a run has seen
_MOST_SEEN = 1 << 30  # bytes of these digests, at most
_ALIKE = 0.9  # share of different digests below which examples cannot be identified
# Sections with user code that a trained model does not need; "optimizer" too, unless its state is
# kept.
_OF_TRAINING = ("data", "partition", "supervision", "augment", "strong_augment", "cohort")


class TrainedModelError(UserError):
    """A run folder without a usable model, or inputs that do not fit the model."""


class Rebuilt(NamedTuple):
    """A run's method and the shapes of its state, without the run's data."""

    method: Method
    state: ServerState  # state of `jax.ShapeDtypeStruct`
    dataset: Dataset  # dataset of one blank example
    client_names: tuple[str, ...]
    num_clients: int  # clients that train; new ones follow in `client_names`


def describe(experiment: Experiment, federation: FederatedData, split: str) -> dict[str, Any]:
    """Return the content of `model.json`.

    Args:
        experiment: resolved config and dataset.
        federation: not traced.
        split: hash of its split.
    """
    dataset = experiment.dataset
    given = experiment.config.data
    predicted, _ = for_prediction(dataset, given.test_mean, given.test_std)
    natural = experiment.config.partition.name == "natural"
    return {
        "version": VERSION,
        "dataset": dataset.name,
        "data": dict(experiment.known_by),
        "split": split,
        "inputs": {
            "shape": list(dataset.input_shape),
            "dtype": str(dataset.train.x.dtype),
            "max": dataset.input_max,
            "mean": predicted.mean,
            "std": predicted.std,
            # name -> mean and std, if each client has its own
            "clients": dataset.extra.get("client_statistics"),
        },
        "reading": None if dataset.reading is None else dataset.reading.as_json(),
        "class_names": dataset.class_names,
        "client_names": client_names(dataset, federation, natural),
        "code": own_sources.code(experiment.config),
        "draws": own_sources.draws(),
        "alike": sorted(configs.fields_that(lambda one: one.alike)),
        "federation": _without_contents(federation),
    }


def labels_seen(experiment: Experiment, federation: FederatedData) -> str | None:
    """Return digests of the examples whose labels a run trains on or is selected by. None for
    published data, which everyone knows, for private clients, and if examples cannot be identified.

    Args:
        experiment: resolved config and dataset.
        federation: not traced.
    """
    config = experiment.config
    dataset = experiment.dataset
    if not is_own(config.data.name) or config.privacy.name != "none" or dataset.views is not None:
        return None
    tables = (
        (federation.index, federation.num_labelled),
        (federation.server_index, federation.num_server),
        (federation.valid_index, federation.num_valid),
    )
    rows = np.unique(np.concatenate([real_rows(*one) for one in tables]))
    rows = rows[rows < len(dataset.train)]
    stored = experiment.as_read.train.x
    if not len(rows) or len(rows) * stored[0].nbytes > _MOST_SEEN:
        return None
    found = of_examples(stored[rows])
    return "\n".join(found) + "\n" if len(set(found)) >= _ALIKE * len(found) else None


def columns(model: dict[str, Any]) -> list[str] | None:
    """Return the names of the inputs of a model of a table, from the result of `describe` or
    `save_parameters`.
    """
    reading = reading_from_json(model.get("reading"))
    return reading.inputs if isinstance(reading, TableReading) else None


def rebuild(stored: StoredRun, model: dict[str, Any]) -> tuple[ml_collections.ConfigDict, Rebuilt]:
    """Rebuild the method of a run from its folder. User code that only training needs is not
    imported.

    Args:
        stored: the run.
        model: content of `model.json`, see `describe`.

    Returns:
        (config, resolved, rebuilt).

    Raises:
        TrainedModelError: the user's code that the model needs is missing.
        ConfigError: the config cannot be used.
    """
    copy = stored.path / CODE_FOLDER
    path = f"PYTHONPATH={copy.resolve()}"
    try:
        resolved, rebuilt = _rebuilt(stored, model)
    except configs.ConfigError as error:
        if unknown := registered_elsewhere(stored.config):
            raise TrainedModelError(
                f"{stored.path} was trained with {', '.join(unknown)}, which the session of then "
                "had registered: register the same here first (fs.register), or train it from a "
                "file, named as module:function"
            ) from error
        if not model.get("code"):
            raise
        raise TrainedModelError(
            f"{error} The code that the model was trained with is in {copy}: {path}"
        ) from error
    if changed := changed_code(model, own_sources.code(resolved)):
        note(
            f"code of your own has changed since {stored.path} was trained ({', '.join(changed)}), "
            f"and may predict otherwise; the code of then is in {copy}: {path}"
        )
    with resolved.unlocked(), resolved.ignore_type():
        resolved.update_from_flattened_dict(flatten_dict(stored.config, sep="."))
    return resolved, rebuilt


def registered_elsewhere(config: dict[str, Any]) -> list[str]:
    """List the names in a stored config that neither the package nor this session knows."""
    found = []
    for section, registry in configs.REGISTRIES.items():
        name = str(config.get(section, {}).get("name"))
        if section not in _OF_TRAINING and ":" not in name and name not in registry:
            found.append(f"{registry.kind} {name!r}")
    return found


def _rebuilt(stored: StoredRun, model: dict[str, Any]) -> tuple[ml_collections.ConfigDict, Rebuilt]:
    resolved = resolved_of(_without_training(stored.config))
    shape = model["inputs"]["shape"]
    dtype = np.dtype(model["inputs"]["dtype"])
    blank = Split(np.zeros((1, *shape), dtype), np.full(1, -1))
    mean, std = (
        None if model["inputs"][name] is None else tuple(model["inputs"][name])
        for name in ("mean", "std")
    )
    known = {
        "input_max": model["inputs"]["max"],
        "reading": reading_from_json(model.get("reading")),
    }
    dataset = Dataset(
        model["dataset"], blank, None, tuple(model["class_names"]), mean=mean, std=std, **known
    )
    federation = _of_shapes(FederatedData, model["federation"])
    # Examples to predict have no stored views.
    bare = jax.ShapeDtypeStruct((federation.inputs.shape[0], *shape), federation.inputs.dtype)
    federation = dataclasses.replace(federation, inputs=bare)

    experiment = Experiment(_for_prediction(resolved), dataset)
    method = build(experiment, federation).method
    state = jax.eval_shape(method.init, jax.random.key(0), federation)
    names = tuple(model["client_names"])
    number = federation.num_clients
    return resolved, Rebuilt(method, state, dataset, names, number)


def resolved_of(stored: dict[str, Any]) -> ml_collections.ConfigDict:
    """Resolve the config of a folder; a field that is newer than the folder gets its default."""
    fields = {
        name: value
        for name, value in flatten_dict(stored, sep=".").items()
        # None is the default of a choice's option, which may have gone with the choice
        if value is not None or name in configs.FIELDS or name.startswith("method.")
    }
    config = configs.with_settings(configs.default(), fields)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", configs.ConfigNote)  # the run has already shown these
        return configs.resolve(config)


def _without_training(config: dict[str, Any]) -> dict[str, Any]:
    """Remove user code that only training needs from a stored config."""
    kept = flatten_dict(config, sep=".")
    sections = [*_OF_TRAINING]
    if not (kept.get("optimizer.keep_state") or kept.get("optimizer.average_state")):
        sections.append("optimizer")
    for section in sections:
        name = kept.get(f"{section}.name") or ""
        if name and name.partition(":")[0] not in configs.CHOICES[section]:
            kept = {
                field: value
                for field, value in kept.items()
                if field != f"{section}.name"
                and (field in configs.FIELDS or not field.startswith(f"{section}."))
            }
    metrics = kept.get("metrics") or ()
    kept["metrics"] = tuple(name for name in metrics if ":" not in name)
    if len(kept["metrics"]) < len(metrics):
        kept.pop("early_stopping.metric", None)
    if ":" in (kept.get("optimizer.schedule") or ""):
        kept.pop("optimizer.schedule")
    return unflatten_dict(kept, sep=".")


def _for_prediction(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Return the config for the same network on one device, without the places of its first
    weights.
    """
    changed = ml_collections.ConfigDict(config.to_dict())
    changed.federated.update({"devices": 1, "reduce": "ordered", "placement": "sequential"})
    with changed.ignore_type():
        changed.start_from = None
        if "weights" in configs.CHOICES["model"].options(config.model.name):
            changed.model.weights = None
    return changed.lock()


def _without_contents(part: Any) -> Any:
    """Turn a federation, or a part of it, into JSON; an array becomes its type and shape."""
    if hasattr(part, "shape"):  # examples on the host are a dataclass in place of an array
        return {"dtype": str(part.dtype), "shape": list(part.shape)}
    if dataclasses.is_dataclass(part):
        return {
            field.name: _without_contents(getattr(part, field.name))
            for field in dataclasses.fields(part)
        }
    return part


def _of_shapes(kind: type, stored: dict[str, Any]) -> Any:
    """Make a federation of shapes from the result of `_without_contents`."""
    fields = {}
    for field in dataclasses.fields(kind):
        if field.name not in stored:
            continue  # a newer field, with a default
        value = stored[field.name]
        if isinstance(value, dict) and field.name == "weak":
            value = _of_shapes(WeakLabels, value)
        elif isinstance(value, dict):
            value = jax.ShapeDtypeStruct(tuple(value["shape"]), value["dtype"])
        fields[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**fields)


def read(text: str) -> dict[str, Any]:
    """Read `model.json`.

    Raises:
        ValueError: it is no JSON, or from a later version of this package.
    """
    model: dict[str, Any] = json.loads(text)
    if model.get("version") != VERSION:
        raise ValueError(
            f"it has version {model.get('version')!r}, this fedjax_ssl reads version {VERSION}; "
            "update the package"
        )
    try:
        reading_from_json(model.get("reading"))
    except (TypeError, LookupError) as error:
        raise ValueError(
            f"it says of its files what this fedjax_ssl does not know ({error}); train again"
        ) from error
    return model


def find(folder: Path, checkpoint: str) -> tuple[StoredRun, dict[str, Any], str, Checkpoints]:
    """Find the model of a run folder.

    Args:
        folder: the run folder.
        checkpoint: one of `CHECKPOINTS`; "auto": the best one if it exists, otherwise the last one.

    Returns:
        (run, content of model.json, "best" or "last", the checkpoints of this kind).

    Raises:
        TrainedModelError: the folder has no run, or no such model.
    """
    if checkpoint not in CHECKPOINTS:
        raise TrainedModelError(f"checkpoint is {checkpoint!r}; allowed: {', '.join(CHECKPOINTS)}")
    stored, description = _read_folder(folder)
    best = Checkpoints(folder, folder="best")
    last = Checkpoints(folder)
    chosen = (
        "best"
        if checkpoint == "best" or (checkpoint == "auto" and best.latest() is not None)
        else "last"
    )
    if (best if chosen == "best" else last).latest() is None:
        raise TrainedModelError(
            f"{folder} has no best checkpoint: the run has no validation examples "
            "(config.data.validation_fraction); load the last one"
            if chosen == "best"
            else (
                f"{folder} has no checkpoint yet; wait for the first one, or run the same command "
                "again"
            )
        )
    return stored, description, chosen, best if chosen == "best" else last


def _read_folder(folder: Path) -> tuple[StoredRun, dict[str, Any]]:
    """Read the run, and model.json."""
    if not folder.is_dir():
        beside = [str(path.parent) for path in folder.parent.glob("*/config.json")]
        raise TrainedModelError(
            f"run folder {folder} does not exist; give the folder that --workdir of the run named."
            f"{did_you_mean(str(folder), beside)}"
        )
    refuse_sweep(folder)
    if not (folder / "config.json").exists():
        inner = sorted(path.parent.name for path in folder.glob("*/config.json"))
        hint = (
            f" Runs in it: {', '.join(inner[:5])}{', ...' if len(inner) > 5 else ''}"
            if inner
            else ""
        )
        raise TrainedModelError(f"{folder} is not a run folder: it has no config.json.{hint}")
    if not (folder / "model.json").exists():
        raise TrainedModelError(
            f"{folder} has no model.json: an earlier version made this run. Its command, given "
            "again, adds the file and does not train anew"
        )
    stored = read_run(folder)
    if not stored.config:
        raise TrainedModelError(f"the run in {folder} cannot be read: {'; '.join(stored.problems)}")
    try:
        return stored, read((folder / "model.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise TrainedModelError(f"{folder}/model.json cannot be read: {error}") from error
