"""A search's Optuna study: what all of its workers agree on, and how `search.json` keeps it."""

import importlib
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_collections

from fedjax_ssl import config as configs
from fedjax_ssl.config import ConfigError
from fedjax_ssl.runs.files import write_atomically
from fedjax_ssl.runs.folder import SEARCH_FILE as FILE
from fedjax_ssl.runs.folder import RunFolderError, config_differences, read_stored
from fedjax_ssl.sweep.axes import Axis, Range

METRIC = "validation_accuracy"
SAMPLERS = ("tpe", "random")
PRUNERS = ("hyperband", "median", "none")
WORKER_NUMBER = "FEDJAX_SSL_SEARCH_WORKER"


class Study(NamedTuple):
    """What all workers of a search have to agree on."""

    config: str  # name
    settings: dict[str, Any]  # fields that all trials have in common
    axes: list[Axis]  # that the study chooses from
    seeds: tuple[int, ...]  # of every trial, whose score is their mean; empty: the config's own
    trials: int  # of all workers together
    sampler: str
    pruner: str
    seed: int  # of the sampler
    storage: str | None  # URL; None: a journal in the folder
    name: str

    @property
    def first_point(self) -> dict[str, Any]:
        """Some point of the study."""
        return {field: one.at(0.5) if isinstance(one, Range) else one[0] for field, one in self.axes}

    def config_of(self, chosen: Mapping[str, Any]) -> ml_collections.ConfigDict:
        """The config of a point.

        Raises:
            ConfigError: a setting cannot be used.
        """
        return configs.load(self.config, tuple({**self.settings, **chosen}.items()))

    def names(self, trial: str) -> list[str]:
        """Names of the runs of a trial, one per seed."""
        return [f"{trial},seed={seed}" for seed in self.seeds] or [trial]


def suggest(trial: Any, axes: Sequence[Axis]) -> dict[str, Any]:
    """What an Optuna trial takes for every field."""
    chosen: dict[str, Any] = {}
    for field, values in axes:
        if not isinstance(values, Range):
            chosen[field] = trial.suggest_categorical(field, values)
        elif values.whole:
            chosen[field] = trial.suggest_int(field, int(values.low), int(values.high), log=values.log)
        else:
            chosen[field] = trial.suggest_float(field, values.low, values.high, log=values.log)
    return chosen


def optuna() -> Any:
    """The package, which is an extra.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        module = importlib.import_module("optuna")
    except ImportError as error:
        raise ConfigError("--search optuna needs the package optuna: pip install 'fedjax_ssl[sweep]'") from error
    module.logging.set_verbosity(module.logging.ERROR)
    warnings.filterwarnings("ignore", category=module.exceptions.ExperimentalWarning)
    return module


def open_study(study: Study, folder: Path) -> Any:
    """The Optuna study, made where it is not there yet.

    Raises:
        ConfigError: the storage cannot be used.
    """
    library, storage = optuna(), study.storage
    samplers = {"tpe": library.samplers.TPESampler, "random": library.samplers.RandomSampler}
    try:
        if storage is None:
            journal = importlib.import_module("optuna.storages.journal")
            storage = library.storages.JournalStorage(journal.JournalFileBackend(str(folder / "study.log")))
        opened = library.create_study(
            storage=storage,
            study_name=study.name,
            direction="maximize",
            load_if_exists=True,
            pruner=_pruner(study, library.pruners),
        )
    except Exception as error:
        raise ConfigError(f"the study {study.name!r} in {study.storage or folder} cannot be opened: {error}") from error
    # Workers do not draw the same points, and neither does a search that goes on.
    turn = 1000 * len(opened.get_trials(deepcopy=False)) + int(os.environ.get(WORKER_NUMBER, "0"))
    opened.sampler = samplers[study.sampler](seed=study.seed + turn)
    return opened


def _pruner(study: Study, pruners: Any) -> Any:
    if study.pruner == "none":
        return pruners.NopPruner()
    if study.pruner == "median":
        return pruners.MedianPruner()
    config = study.config_of(study.first_point)
    return pruners.HyperbandPruner(min_resource=config.eval_every, max_resource=max(config.rounds, 1))


def current(opened: Any) -> list[Any]:
    """The trials of a study, without those that a later one has taken up."""
    return list({name_of(trial): trial for trial in opened.get_trials(deepcopy=False)}.values())


def name_of(trial: Any) -> str:
    """The name of a trial, which its runs have too; it stays when the trial is taken up."""
    return trial.user_attrs.get("name") or f"trial={trial.number:04d}"


def is_of(trial: Any, folder: Path, study: Study) -> bool:
    """Whether a trial's runs are in this folder; others who share the study have folders of their own."""
    return trial.user_attrs.get("folder", None if study.storage else str(folder.resolve())) == str(folder.resolve())


def save(study: Study, folder: Path, command: Sequence[str]) -> None:
    """Writes `search.json`."""
    write_atomically(folder / FILE, json.dumps({"command": list(command), **_plain(study)}, indent=1) + "\n")


def load(folder: Path) -> Study | None:
    """Reads `search.json`; None where there is none.

    Raises:
        RunFolderError: it cannot be read.
    """

    def build(content: dict[str, Any]) -> Study:
        content["axes"] = [
            Axis(one["field"], Range(**one["range"]) if "range" in one else tuple(one["values"]))
            for one in content["axes"]
        ]
        content["seeds"] = tuple(content["seeds"])
        return Study(**{name: content[name] for name in Study._fields})

    return read_stored(folder / FILE, build)


def check_same(stored: Study, study: Study, folder: Path) -> None:
    """Raises RunFolderError where a folder holds another search; there may be more trials than before."""
    if lines := config_differences(_plain(stored), _plain(study), ignore=("trials",)):
        raise RunFolderError(
            f"{folder} holds a search with other settings (stored -> now):\n"
            + "".join(f"  {line}\n" for line in lines)
            + "Give another --workdir, or set them back; only --trials may change."
        )


def _plain(study: Study) -> dict[str, Any]:
    found = [
        {"field": field, "range": values._asdict()}
        if isinstance(values, Range)
        else {"field": field, "values": list(values)}
        for field, values in study.axes
    ]
    return {**study._asdict(), "axes": found, "seeds": list(study.seeds)}
