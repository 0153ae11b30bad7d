"""`--search optuna`: a study chooses the points, by accuracy on validation data and never on test
data.

Workers share the study through Optuna's storage: each asks for trials, runs them in separate
folders, reports the validation accuracy after every evaluation, and stops a run if the pruner says
so.
"""

import argparse
import dataclasses
import importlib
import json
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_collections
import numpy as np
from filelock import FileLock

from fedjax_ssl import command_line
from fedjax_ssl import config as configs
from fedjax_ssl.config import ConfigError
from fedjax_ssl.errors import counted
from fedjax_ssl.folder.files import plain_value, write_atomically
from fedjax_ssl.folder.folder_lock import SEARCH_FILE as FILE
from fedjax_ssl.folder.folder_lock import (
    FolderLock,
    RunFolderError,
    config_differences,
    read_stored,
)
from fedjax_ssl.folder.stored_run import read_run
from fedjax_ssl.runs.callbacks import Block, Callback
from fedjax_ssl.runs.loop import Point
from fedjax_ssl.runs.program import static_part
from fedjax_ssl.runs.shared import Shared
from fedjax_ssl.sweep import axes, results, workers
from fedjax_ssl.sweep.axes import Axis, Range
from fedjax_ssl.sweep.sweep_plan import Plan, PlannedRun, needed, place_of_labels

METRIC = "validation_accuracy"
# Our names and Optuna's; the first ones are the defaults.
SAMPLERS = {"tpe": "TPESampler", "random": "RandomSampler"}
PRUNERS = {"hyperband": "HyperbandPruner", "median": "MedianPruner", "none": "NopPruner"}
_BEFORE_LEARNING = 10  # trials that TPE draws at random, Optuna's `n_startup_trials`


@dataclasses.dataclass(frozen=True)
class Search:
    """Settings that all workers of a search share."""

    config: str  # name
    settings: tuple[str, ...]
    # ^ FIELD=VALUES each; the search chooses among several values or in a range, and a single value
    # holds for all trials
    seeds: tuple[int, ...]
    # ^ every trial runs with all seeds, and its score is their mean; empty: the config's own seed
    trials: int  # number of trials of all workers together
    sampler: str
    pruner: str
    random_seed: int  # random seed of the sampler
    storage: str | None  # URL; None: a journal in the folder
    study: str  # name

    @property
    def axes(self) -> list[Axis]:
        """Fields with several values or a range."""
        return [
            one
            for one in map(axes.parse_axis, self.settings)
            if isinstance(one.values, Range) or one.values[1:]
        ]

    def config_of(
        self, chosen: Mapping[str, Any], seed: int | None = None
    ) -> ml_collections.ConfigDict:
        """Return the config of a point, resolved.

        Raises:
            ConfigError: a setting cannot be used.
        """
        common = {
            one.field: one.values[0]
            for one in map(axes.parse_axis, self.settings)
            if one.field not in chosen
        }
        several = [
            {**common, **chosen, "method.name": name}
            for one in self.axes
            if one.field == "method.name" and not isinstance(one.values, Range)
            for name in one.values
        ]
        place = place_of_labels(self.config, several)
        config = configs.load(self.config, tuple({**common, **chosen}.items()), place)
        return configs.resolve(
            config if seed is None else configs.with_settings(config, [("seed", seed)])
        )

    @property
    def example(self) -> ml_collections.ConfigDict:
        """Return the config of an arbitrary point."""
        chosen = {
            field: one.at(0.5) if isinstance(one, Range) else one[0] for field, one in self.axes
        }
        return self.config_of(chosen)

    def run_names(self, trial: Any) -> list[str]:
        """Return the names of the runs of a trial, one per seed."""
        return [f"{name_of(trial)},seed={seed}" for seed in self.seeds] or [name_of(trial)]


def search(
    given: argparse.Namespace,
    folder: Path,
    command: Sequence[str],
    processes: int,
    notes: Collection[str] = (),
) -> int:
    """Prepare a study in a folder, or continue an existing one, and run it.

    Args:
        given: parsed command line.
        folder: the search's.
        command: the words of the command line.
        processes: number of processes at a time.
        notes: notes that were already shown.

    Returns:
        0; 1 if trials failed.

    Raises:
        ConfigError: a setting cannot be used, there is no validation data, or optuna is not
            installed.
        RunFolderError: the folder holds another search.
    """
    wanted = search_of(given, folder)
    _optuna()
    stored = load(folder)
    if stored is not None:
        _check_same(stored, wanted, folder)
    for line in _describe(wanted, folder, processes, stored is not None):
        print(line, flush=True)
    if given.dry_run:
        return 0
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    with FolderLock(folder):
        content = {"command": list(command), **dataclasses.asdict(wanted)}
        write_atomically(folder / FILE, json.dumps(content, indent=1) + "\n")
        study = open_study(wanted, folder)
        _take_up_again(study, wanted, folder)
        count = min(processes, wanted.trials)
        tasks = [workers.Task(run_trials, (folder, number)) for number in range(count)]

        def ended(task: workers.Task, code: int) -> list[workers.Task]:
            """Report the trials of a killed worker, and start another one. A worker without a trial
            would end in the same way.
            """
            _, number = task.arguments
            left = [] if code == 0 else _cut_off(study, wanted, folder, number)
            for trial in left:
                print(f"{name_of(trial)}: its process {workers.how_it_ended(code)}", flush=True)
            return [task._replace(arguments=(folder, number + count))] if left else []

        try:
            workers.do_tasks(tasks, count, ended=ended, notes=notes)
        finally:
            write_table(study, wanted, folder)
    return _say_end(study, wanted, folder)


def search_of(given: argparse.Namespace, folder: Path) -> Search:
    """Make the search of a command line.

    Raises:
        ConfigError: options that do not fit together, a setting that cannot be used, or no
            validation data.
    """
    if given.zip or given.random is not None or given.submit or given.show:
        raise ConfigError(
            "--search chooses the points itself, here: leave --zip, --random, --submit and "
            "--print out"
        )
    wanted = Search(
        config=given.config,
        settings=tuple(given.set),
        seeds=axes.parse_seeds(given.seeds) or (),
        trials=50 if given.trials is None else given.trials,
        sampler=given.sampler or next(iter(SAMPLERS)),
        pruner=given.pruner or next(iter(PRUNERS)),
        random_seed=given.random_seed,
        storage=given.storage,
        study=given.study or folder.name,
    )
    if wanted.trials < 1:
        raise ConfigError(f"--trials is {wanted.trials}; it must be at least 1")
    if not wanted.axes:
        raise ConfigError(
            "--search has nothing to choose; give ranges or several values: --set "
            "optimizer.learning_rate=0.001..1"
        )
    if not configs.validates(wanted.example):
        raise ConfigError(
            "--search chooses by the accuracy on validation data, of which this config has none; "
            "hold some of the training examples out: --set data.validation_fraction=0.2"
        )
    return wanted


def load(folder: Path) -> Search | None:
    """Read `search.json`; None if it does not exist.

    Raises:
        RunFolderError: it cannot be read.
    """

    def build(content: dict[str, Any]) -> Search:
        del content["command"]
        return Search(**content | {name: tuple(content[name]) for name in ("settings", "seeds")})

    return read_stored(folder / FILE, build)


def _check_same(stored: Search, wanted: Search, folder: Path) -> None:
    old, new = (plain_value(dataclasses.asdict(one)) for one in (stored, wanted))
    if lines := config_differences(old, new, ignore=("trials",)):
        raise RunFolderError(
            f"{folder} holds a search with other settings (stored -> now):\n"
            + "".join(f"  {line}\n" for line in lines)
            + "Give another --workdir, or set them back; only --trials may change."
        )


def _optuna() -> Any:
    module = needed("optuna", "--search optuna")
    module.logging.set_verbosity(module.logging.ERROR)
    warnings.filterwarnings("ignore", category=module.exceptions.ExperimentalWarning)
    # a resumed run reports values again
    warnings.filterwarnings("ignore", "The reported value is ignored")
    return module


def open_study(search: Search, folder: Path, worker: int = 0) -> Any:
    """Open the Optuna study, or make it.

    Args:
        search: its settings.
        folder: the search's.
        worker: number of this process, so that workers, and a resumed search, draw different
            points.

    Raises:
        ConfigError: the storage cannot be used.
    """
    optuna = _optuna()
    bounds: tuple[int, ...] = ()
    if search.pruner == "hyperband":
        config = search.example
        bounds = config.eval_every, max(config.rounds, 1)
    pruner = getattr(optuna.pruners, PRUNERS[search.pruner])(*bounds)
    storages = importlib.import_module("optuna.storages.journal")
    place = search.storage or folder / "study.log"
    try:
        journal = None if search.storage else storages.JournalFileBackend(str(place))
        study = optuna.create_study(
            storage=search.storage or optuna.storages.JournalStorage(journal),
            study_name=search.study,
            direction="maximize",
            load_if_exists=True,
            pruner=pruner,
        )
    except Exception as error:
        raise ConfigError(
            f"the study {search.study!r} in {place} cannot be opened: {error}"
        ) from error
    turn = 1000 * len(study.get_trials(deepcopy=False)) + worker
    sampler = getattr(optuna.samplers, SAMPLERS[search.sampler])
    study.sampler = sampler(seed=search.random_seed + turn)
    return study


def name_of(trial: Any) -> str:
    """Return the name of a trial and its runs; it stays the same if the trial is resumed under
    another number.
    """
    return trial.user_attrs.get("name") or f"trial={trial.number:04d}"


def current(study: Any) -> list[Any]:
    """List the trials of a study, without those that a later trial resumed."""
    return list({name_of(trial): trial for trial in study.get_trials(deepcopy=False)}.values())


def _own(study: Any, search: Search, folder: Path) -> list[Any]:
    """List the trials of this folder; other searches that share the storage have other folders."""
    here = str(folder.resolve())
    return [
        one
        for one in current(study)
        if one.user_attrs.get("folder", None if search.storage else here) == here
    ]


def _take_up_again(study: Any, search: Search, folder: Path) -> None:
    """Queue again the trials that ran when a search of this folder was killed; they go on from
    their checkpoints.
    """
    for trial in _cut_off(study, search, folder):
        study.tell(trial.number, state=_optuna().trial.TrialState.FAIL)
        study.enqueue_trial(trial.params, user_attrs={"name": name_of(trial)})


def _cut_off(study: Any, search: Search, folder: Path, worker: int | None = None) -> list[Any]:
    """List the trials of this folder that a process started and did not finish.

    Args:
        study: the search's.
        search: its settings.
        folder: its folder.
        worker: number of the process; None: any.
    """
    running = _optuna().trial.TrialState.RUNNING
    return [
        trial
        for trial in _own(study, search, folder)
        if trial.state == running and worker in (None, trial.user_attrs.get("worker"))
    ]


def run_trials(tell: workers.Tell, folder: Path, worker: int, at_once: int | None = None) -> None:
    """Run trials until the study has its number of trials.

    Args:
        tell: called with events.
        folder: the search's.
        worker: number of this process.
        at_once: trials to ask for and to vectorize at a time; by default one on a CPU, else as many
            as TPE draws before it learns from them.
    """
    search = load(folder)
    shared = Shared()
    assert search is not None, "it was written before"
    example = search.example
    command_line.use_processor(example.get("threads"))
    study = open_study(search, folder, worker)
    count = at_once or (
        _BEFORE_LEARNING if workers.vectorizes(Point(example, folder), shared) else 1
    )
    while trials := _ask(study, search, folder, count, worker):
        programs: dict[str, list[Any]] = {}
        for trial in trials:
            try:
                code = static_part(search.config_of(trial.params))
            except ConfigError as error:
                _tell(study, trial, error)
            else:
                programs.setdefault(code, []).append(trial)
        for together in programs.values():
            for trial, outcome in _outcomes(together, search, folder, shared):
                _tell(study, trial, outcome)


def _ask(study: Any, search: Search, folder: Path, most: int, worker: int) -> list[Any]:
    """Ask for at most this many trials; workers of one folder ask one after another, so that there
    are not too many.
    """
    distributions = {field: _distribution(values) for field, values in search.axes}
    with FileLock(folder / ".ask.lock"):
        waiting = _optuna().trial.TrialState.WAITING
        left = search.trials - sum(trial.state != waiting for trial in current(study))
        trials = [study.ask(distributions) for _ in range(max(min(most, left), 0))]
        for trial in trials:
            trial.set_user_attr("name", name_of(trial))
            trial.set_user_attr("folder", str(folder.resolve()))
            trial.set_user_attr("worker", worker)
    return trials


def _distribution(values: Sequence[str] | Range) -> Any:
    known = _optuna().distributions
    if not isinstance(values, Range):
        return known.CategoricalDistribution(values)
    if values.whole:
        return known.IntDistribution(int(values.low), int(values.high), log=values.log)
    return known.FloatDistribution(values.low, values.high, log=values.log)


def _outcomes(
    trials: Sequence[Any], search: Search, folder: Path, shared: Shared
) -> Iterator[tuple[Any, Exception | float | None]]:
    """Run trials of one program, seed by seed; the first seed reports to the pruner.

    Yields:
        Each trial with its mean accuracy, None if it was stopped, or its error.
    """
    accuracies: dict[str, list[float]] = {name_of(trial): [] for trial in trials}
    going = list(trials)
    for place, seed in enumerate(search.seeds or (None,)):
        folders = [results.folder_of(folder, search.run_names(trial)[place]) for trial in going]
        points = []
        for trial, path in zip(going, folders, strict=True):
            callbacks = [_watch(trial, path)] if place == 0 else ()
            points.append(Point(search.config_of(trial.params, seed), path, callbacks))
        ended = workers.in_batches(points, shared, len(points))
        for trial, path, (result, _) in list(zip(going, folders, ended, strict=True)):
            results.note_end(path, result)
            if isinstance(result, dict):
                accuracies[name_of(trial)].append(result[f"selected_{METRIC}"])
            else:
                going = [one for one in going if one is not trial]
                yield trial, result
    yield from ((trial, float(np.mean(accuracies[name_of(trial)]))) for trial in going)


def _watch(trial: Any, folder: Path) -> Callback:
    """Report the rows of a run to the pruner, first those from before the trial was resumed."""

    def report(block: Block) -> bool:
        if block.last:  # nothing is left to save
            return False
        trial.report(float(block.row[METRIC]), block.row["round"])
        return bool(trial.should_prune())

    for row in read_run(folder).rows:
        trial.report(float(row[METRIC]), row["round"])
    return report


def _tell(study: Any, trial: Any, outcome: Exception | float | None) -> None:
    states = _optuna().trial.TrialState
    if isinstance(outcome, Exception):
        study.tell(trial, state=states.FAIL)
        said = f"failed: {results.message_of(outcome)}"
    elif outcome is None:
        study.tell(trial, state=states.PRUNED)
        said = "pruned"
    else:
        study.tell(trial, outcome)
        said = f"validation accuracy {outcome:.1%}"
    chosen = (
        f"{field} {value:.4g}" if isinstance(value, float) else f"{field} {value}"
        for field, value in trial.params.items()
    )
    print(f"{name_of(trial)}: {said} ({', '.join(chosen)})", flush=True)


def write_table(study: Any, search: Search, folder: Path) -> list[dict[str, Any]]:
    """Write the tables, with a row per run in this folder; return the rows."""
    runs = []
    for trial in _own(study, search, folder):
        state = {"trial": trial.number, "state": trial.state.name.lower(), "score": trial.value}
        point = {**state, **plain_value(trial.params)}
        for seed, name in zip(search.seeds or (None,), search.run_names(trial), strict=True):
            runs.append(PlannedRun(name, "", {**point, "seed": seed}, {}))
    fields = ["trial", "state", "score", *(axis.field for axis in search.axes)]
    if search.seeds:
        fields.append("seed")
    return results.write(folder, Plan(tuple(fields), tuple(runs)))


def _say_end(study: Any, search: Search, folder: Path) -> int:
    states = [trial.state.name for trial in current(study)]
    done, pruned, failed = (states.count(state) for state in ("COMPLETE", "PRUNED", "FAIL"))
    print(
        f"\n{counted(done, 'trial')} complete, {pruned} pruned, {failed} failed: "
        f"{folder / 'results.csv'}"
    )
    if done:
        best = study.best_trial
        print(f"best: {name_of(best)}, validation accuracy {best.value:.1%}")
        settings = (f"--{field}={value}" for field, value in best.params.items())
        print("its settings:", *settings)
    cut_off = _cut_off(study, search, folder)
    if cut_off:
        names = ", ".join(map(name_of, cut_off))
        what = f"{counted(len(cut_off), 'trial')} cut off as its process was killed: {names}"
        print(f"{what}. The same command does the rest.", file=sys.stderr)
    left = search.trials - len(current(study))
    if left > 0:
        print(f"{counted(left, 'trial')} not begun. The same command does them.", file=sys.stderr)
    return 1 if failed or cut_off or not done or left > 0 else 0


def _describe(search: Search, folder: Path, processes: int, there: bool) -> list[str]:
    how = f"sampler {search.sampler}, pruner {search.pruner}"
    lines = [f"{search.config}: a study of {counted(search.trials, 'trial')} ({how})"]
    lines += [f"  {text.removeprefix('config.').replace('=', ': ', 1)}" for text in search.settings]
    if search.seeds:
        lines.append(f"  seeds of every trial: {', '.join(map(str, search.seeds))}")
    lines.append(f"  storage: {search.storage or folder / 'study.log'}, study {search.study!r}")
    lines.append(f"  workers: {processes}, which share the study")
    return [*lines, f"  folder: {folder}{', which goes on' if there else ''}"]
