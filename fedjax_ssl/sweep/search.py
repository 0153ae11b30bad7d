"""`--search optuna`: a study chooses the points, by the validation accuracy and never by test data.

Workers share the study: each asks it for a trial, runs it in a folder of its own, reports the validation accuracy after
every evaluation, and stops the run where the pruner says so.
"""

import argparse
import contextlib
import json
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from fedjax_ssl import config as configs
from fedjax_ssl.config import ConfigError
from fedjax_ssl.errors import counted
from fedjax_ssl.runs.files import plain_value
from fedjax_ssl.runs.folder import FolderLock
from fedjax_ssl.sweep import axes, results, scheduler, studies
from fedjax_ssl.sweep.axes import Range
from fedjax_ssl.sweep.plan import Plan, PlannedRun
from fedjax_ssl.sweep.studies import Study

WORKER = "fedjax_ssl.sweep.trials"


def search(
    given: argparse.Namespace, folder: Path, command: Sequence[str], workers: int, notes: Collection[str] = ()
) -> int:
    """Prepares a study in a folder, or goes on with the one that is there, and runs it.

    Args:
        given: of the command line.
        folder: of the search.
        command: that was given.
        workers: processes at a time.
        notes: that were shown already.

    Returns:
        0; 1 if trials failed.

    Raises:
        ConfigError: a setting cannot be used, there is no validation data, or optuna is not installed.
    """
    study = study_of(given, folder)
    studies.optuna()
    stored = studies.load(folder)
    if stored is not None:
        studies.check_same(stored, study, folder)
    for line in _describe(study, folder, workers, stored is not None):
        print(line, flush=True)
    if given.dry_run:
        return 0
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    with FolderLock(folder):
        studies.save(study, folder, command)
        opened = studies.open_study(study, folder)
        take_up_again(opened, study, folder)
        try:
            _run_workers(folder, min(workers, study.trials), notes)
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(scheduler.WHAT_FOLLOWS) from stop
        finally:
            write_table(opened, study, folder)
    return _say_end(opened, folder)


def study_of(given: argparse.Namespace, folder: Path) -> Study:
    """The study that a command line asks for.

    Raises:
        ConfigError: options that do not go together, a setting that cannot be used, or no validation data.
    """
    if given.zip or given.random is not None or given.submit or given.show:
        raise ConfigError("--search chooses the points itself, here: leave --zip, --random, --submit and --print out")
    trials = 50 if given.trials is None else given.trials
    if trials < 1:
        raise ConfigError(f"--trials is {trials}; it must be at least 1")
    parsed = [axes.parse_axis(text) for text in given.set]
    free = [axis for axis in parsed if isinstance(axis.values, Range) or len(axis.values) > 1]
    if not free:
        raise ConfigError(
            "--search has nothing to choose; give ranges or several values: --set optimizer.learning_rate=0.001..1"
        )
    study = Study(
        config=given.config,
        settings={axis.field: axis.values[0] for axis in parsed if axis not in free},
        axes=free,
        seeds=axes.parse_seeds(given.seeds) or (),
        trials=trials,
        sampler=given.sampler or studies.SAMPLERS[0],
        pruner=given.pruner or studies.PRUNERS[0],
        seed=given.random_seed,
        storage=given.storage,
        name=given.study or folder.name,
    )
    if not configs.validates(configs.resolve(study.config_of(study.first_point))):
        raise ConfigError(
            "--search chooses by the accuracy on validation data, of which this config has none; hold some of the "
            "training examples out: --set data.validation_fraction=0.2"
        )
    return study


def take_up_again(opened: Any, study: Study, folder: Path) -> None:
    """Trials that ran when a search of this folder was killed are asked for again, and go on from their checkpoints."""
    states = studies.optuna().trial.TrialState
    for trial in opened.get_trials(deepcopy=False, states=(states.RUNNING,)):
        if studies.is_of(trial, folder, study):
            opened.tell(trial.number, state=states.FAIL)
            opened.enqueue_trial(trial.params, user_attrs={"name": studies.name_of(trial)})


def _run_workers(folder: Path, count: int, notes: Collection[str]) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", WORKER, str(folder)],
            stdin=subprocess.PIPE,
            text=True,
            env=scheduler.environment_of(count) | {studies.WORKER_NUMBER: str(number)},
            start_new_session=True,  # Ctrl-C is for this process, which ends its workers
        )
        for number in range(count)
    ]
    try:
        for process in processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                # It stays open: the worker ends when this process does.
                print(json.dumps(sorted(notes)), file=process.stdin, flush=True)
        for process in processes:
            process.wait()
    finally:
        scheduler.stop_processes(processes)


def write_table(opened: Any, study: Study, folder: Path) -> list[dict[str, Any]]:
    """Writes the tables, with a row per run that this folder holds; returns the rows."""
    runs = []
    for trial in studies.current(opened):
        if not studies.is_of(trial, folder, study):
            continue
        state = {"trial": trial.number, "state": trial.state.name.lower(), "score": trial.value}
        point = {**state, **plain_value(trial.params)}
        names = studies.name_of(trial)
        for seed, name in zip(study.seeds or (None,), study.names(names), strict=True):
            runs.append(PlannedRun(name, 0, point if seed is None else {**point, "seed": seed}, {}))
    fields = ["trial", "state", "score", *(axis.field for axis in study.axes), *(["seed"] if study.seeds else [])]
    return results.write(folder, Plan(tuple(fields), tuple(runs)))


def _say_end(opened: Any, folder: Path) -> int:
    states = studies.optuna().trial.TrialState
    trials = studies.current(opened)
    done, pruned, failed = (
        sum(trial.state == state for trial in trials) for state in (states.COMPLETE, states.PRUNED, states.FAIL)
    )
    print(f"\n{counted(done, 'trial')} complete, {pruned} pruned, {failed} failed: {folder / 'results.csv'}")
    if done:
        best = opened.best_trial
        print(f"best: {studies.name_of(best)}, validation accuracy {best.value:.1%}")
        print(f"its settings: {' '.join(f'--{field}={value}' for field, value in best.params.items())}")
    return 1 if failed or not done else 0


def _describe(study: Study, folder: Path, workers: int, there: bool) -> list[str]:
    lines = [
        f"{study.config}: a study of {counted(study.trials, 'trial')} (sampler {study.sampler}, pruner {study.pruner})"
    ]
    for field, values in study.axes:
        if isinstance(values, Range):
            how = "whole numbers" if values.whole else "in the logarithm" if values.log else "evenly"
            lines.append(f"  {field}: {values.low:g} to {values.high:g}, {how}")
        else:
            lines.append(f"  {field}: {', '.join(values)}")
    lines += [f"  {field}: {value}" for field, value in study.settings.items()]
    if study.seeds:
        lines.append(f"  seeds of every trial: {', '.join(map(str, study.seeds))}")
    lines.append(f"  storage: {study.storage or folder / 'study.log'}, study {study.name!r}")
    lines.append(f"  workers: {workers}, which share the study")
    lines.append(f"  folder: {folder}" + (", which goes on" if there else ""))
    return lines
