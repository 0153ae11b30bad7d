"""From folders to what a report is made of: groups of runs, what they are compared by, and what has to be said."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedjax_ssl.errors import counted
from fedjax_ssl.report.errors import ReportError
from fedjax_ssl.report.groups import Group, choose_baseline, group_runs
from fedjax_ssl.report.metrics import Metric, choose_metric, metrics_of
from fedjax_ssl.runs.stored_run import StoredRun, find_runs, read_run

_NAMED = 4  # folders of which the same is to be said


class Report(NamedTuple):
    """What a page is made of.

    Attributes:
        runs: all that were read, in the order they were found.
        groups: of these runs.
        baseline: one of the groups.
        metrics: that some run has.
        metric: the one that the page starts with.
        problems: a sentence for everything that could not be read or is not counted.
    """

    runs: list[StoredRun]
    groups: list[Group]
    baseline: Group
    metrics: list[Metric]
    metric: Metric
    problems: list[str]


def read(paths: Sequence[str | Path], *, metric: str | None = None, baseline: str | None = None) -> Report:
    """Reads run folders, sorts them into groups and chooses what they are compared by.

    Args:
        paths: run folders, or folders that hold some at any depth.
        metric: a column of `metrics.csv`, or a number of `summary.json`; the test accuracy by default.
        baseline: as for `choose_baseline`.

    Raises:
        ReportError: there is no run, or no such metric or group.
        RunFolderError: a path does not exist.
    """
    found = [read_run(path) for path in find_runs(paths)]
    problems = [f"{run.path}: {problem}" for run in found for problem in run.problems]
    runs = [run for run in found if run.config]
    places = " ".join(map(str, paths))
    if not runs:
        reasons = "".join(f"\n  {line}" for line in problems[:10])
        raise ReportError(
            f"no run in {places}: no folder there holds the config.json of a run. Give a --workdir of "
            f"`fedjax-ssl run`, the folder of a sweep, or a folder above them.{reasons}"
        )
    started = [run for run in runs if run.rows or run.summary]
    problems += _together("no result, left out", [run for run in runs if run not in started])
    if not started:
        raise ReportError(f"no run in {places} has a result yet: none of {counted(len(runs), 'run')} has a metric row")
    groups = group_runs(started)
    for group in groups:
        for run in group.doubled:
            problems.append(f"{run.path}: seed {run.config['seed']} of {group.name} is there already, not counted")
    problems += _together("not finished, not in the numbers", [run for run in started if run.state != "finished"])
    metrics = metrics_of(started)
    if not metrics:
        raise ReportError(f"no run in {places} has a metric: their rows hold counts alone")
    return Report(started, groups, choose_baseline(groups, baseline), metrics, choose_metric(metrics, metric), problems)


def _together(what: str, runs: Sequence[StoredRun]) -> list[str]:
    """One line for all runs of which the same is to be said."""
    if not runs:
        return []
    named = ", ".join(f"{run.path} ({run.state})" if run.rows or run.ended else str(run.path) for run in runs[:_NAMED])
    more = f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else ""
    return [f"{what}: {named}{more}"]
