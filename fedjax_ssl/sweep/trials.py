"""A worker of a search: it asks the study for trials, runs them, and tells how they ended.

`python -m fedjax_ssl.sweep.trials FOLDER` works until the study has its trials, or until its standard input ends. The
first line of that input is a JSON list of the notes that were shown already.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_ssl import command_line
from fedjax_ssl import config as configs
from fedjax_ssl.config import ConfigError
from fedjax_ssl.runs.compile import static_part
from fedjax_ssl.runs.loop import Point
from fedjax_ssl.runs.rows import MetricLog
from fedjax_ssl.runs.shared import Shared
from fedjax_ssl.sweep import results, studies
from fedjax_ssl.sweep.studies import METRIC, Study
from fedjax_ssl.sweep.worker import end_with_parent, in_batches, vectorizes

_BEFORE_LEARNING = 10  # Optuna's `n_startup_trials`


class Trial:
    """A trial of this worker, and its runs: one per seed, of which the first one reports to the pruner."""

    def __init__(self, trial: Any, study: Study, folder: Path):
        """Takes its point.

        Args:
            trial: from `ask`.
            study: that it belongs to.
            folder: of the search.
        """
        self.trial, self._study, self._folder = trial, study, folder
        self.chosen, self.name = studies.suggest(trial, study.axes), studies.name_of(trial)
        trial.set_user_attr("name", self.name)
        trial.set_user_attr("folder", str(folder.resolve()))
        self.ended: list[dict[str, Any]] = []  # summaries of its runs
        self.outcome: Exception | float | None = None  # None: stopped
        self.over = False
        self._reported: set[int] = set()
        self._report_earlier()

    @property
    def code(self) -> str:
        """The same for trials that one program can run."""
        try:
            return static_part(configs.resolve(self._study.config_of(self.chosen)))
        except ConfigError:
            return self.name

    def next_run(self) -> Point | None:
        """The run of its next seed; None where it is over."""
        if self.over:
            return None
        try:
            config, place = self._study.config_of(self.chosen), len(self.ended)
            if self._study.seeds:
                config = configs.with_settings(config, [("seed", self._study.seeds[place])])
        except ConfigError as error:
            self._end(error)
            return None
        return Point(config, self._run_folders()[place], self._watch if place == 0 else None)

    def take(self, result: dict[str, Any] | Exception | None) -> None:
        """How its run ended."""
        folder = self._run_folders()[len(self.ended)]
        if isinstance(result, Exception):
            results.mark(folder, results.FAILED, results.message_of(result))
            self._end(result)
        elif result is None:
            results.mark(folder, results.STOPPED, "stopped by the pruner")
            self._end(None)
        else:
            self.ended.append(result)
            if len(self.ended) == len(self._run_folders()):
                self._end(float(np.mean([summary[f"selected_{METRIC}"] for summary in self.ended])))

    def _end(self, outcome: Exception | float | None) -> None:
        self.over, self.outcome = True, outcome

    def _run_folders(self) -> list[Path]:
        return [results.folder_of(self._folder, name) for name in self._study.names(self.name)]

    def _report_earlier(self) -> None:
        """Tells the pruner again what was reported before this trial was taken up."""
        first = self._run_folders()[0]
        if (first / "metrics.jsonl").exists():
            for row in MetricLog(first).rows():
                self._report(row)

    def _watch(self, row: Mapping[str, Any]) -> bool:
        self._report(row)
        return self.trial.should_prune()

    def _report(self, row: Mapping[str, Any]) -> None:
        if row["round"] not in self._reported:
            self._reported.add(row["round"])
            self.trial.report(float(row[METRIC]), row["round"])


def run_trials(study: Study, folder: Path, at_once: int | None = None) -> None:
    """Does trials until the study has as many as it is to have.

    Args:
        study: what is searched.
        folder: of the search.
        at_once: trials that this worker asks for and vectorizes at a time; by default one on a CPU, else as many as TPE
            draws before it learns from them.
    """
    shared, opened = Shared(), studies.open_study(study, folder)
    if at_once is None:
        first = Point(study.config_of(study.first_point), folder)
        at_once = _BEFORE_LEARNING if vectorizes(first, shared) else 1
    while batch := ask(opened, study, folder, at_once):
        for code in dict.fromkeys(trial.code for trial in batch):
            _run([trial for trial in batch if trial.code == code], shared)
        for trial in batch:
            _tell(trial, opened)


def ask(opened: Any, study: Study, folder: Path, most: int) -> list[Trial]:
    """Up to so many further trials; workers of one folder ask in turn, so that there are not too many."""
    with results.exclusively(folder, ".ask.lock"):
        waiting = studies.optuna().trial.TrialState.WAITING
        left = study.trials - sum(trial.state != waiting for trial in studies.current(opened))
        return [Trial(opened.ask(), study, folder) for _ in range(max(min(most, left), 0))]


def _run(trials: Sequence[Trial], shared: Shared) -> None:
    while going := [(trial, point) for trial in trials if (point := trial.next_run()) is not None]:
        ended = in_batches([point for _, point in going], shared, len(going))
        for (trial, _), (result, _) in zip(going, ended, strict=True):
            trial.take(result)


def _tell(trial: Trial, opened: Any) -> None:
    states, outcome = studies.optuna().trial.TrialState, trial.outcome
    chosen = ", ".join(
        f"{field} {value:.4g}" if isinstance(value, float) else f"{field} {value}"
        for field, value in trial.chosen.items()
    )
    if isinstance(outcome, Exception):
        opened.tell(trial.trial, state=states.FAIL)
        said = f"failed: {results.message_of(outcome)}"
    elif outcome is None:
        opened.tell(trial.trial, state=states.PRUNED)
        said = "pruned"
    else:
        opened.tell(trial.trial, outcome)
        said = f"validation accuracy {outcome:.1%}"
    print(f"{trial.name}: {said} ({chosen})", flush=True)


def main(arguments: list[str]) -> int:
    """A worker of the search in a folder.

    Args:
        arguments: the folder.
    """
    folder = Path(arguments[0])
    shown = json.loads(sys.stdin.readline())
    end_with_parent()
    study = studies.load(folder)
    assert study is not None, "who starts a worker has written it"
    command_line.use_compilation_cache()
    command_line.map_large_buffers()
    with command_line.notes_instead_of_warnings(shown=shown):
        command_line.use_processor(study.config_of(study.first_point).get("threads"))
        run_trials(study, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
