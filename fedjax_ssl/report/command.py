"""The command: `fedjax-ssl report runs/...`, from run folders to one page and a table."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedjax_ssl.report.comparison import Cell, compare
from fedjax_ssl.report.errors import ReportError
from fedjax_ssl.report.exports import EXPORTS, header, lines
from fedjax_ssl.report.groups import choose_baseline, group_runs
from fedjax_ssl.report.metrics import choose_metric, metrics_of
from fedjax_ssl.report.page import Report, render
from fedjax_ssl.report.statistics import LEVEL
from fedjax_ssl.tracking import RunFolderError, StoredRun, bytes_in_words, find_runs, read_run, write_atomically

_SHOWN = 20  # groups in the terminal
_NAMED = 4  # folders of which the same is to be said


def main(arguments: list[str]) -> int:
    """Makes a report.

    Args:
        arguments: without the program and the subcommand.

    Returns:
        0; 2 for a mistake of the user, after one message on standard error.
    """
    given = _parser().parse_args(arguments)
    try:
        report = read(given.runs, metric=given.metric, baseline=given.baseline)
        page = render(report, shlex.join(["fedjax-ssl", "report", *arguments]))
        written = {"report": _write(given.output, page)}
        cells = compare(report.groups, report.baseline, report.metric)
        for kind in given.export:
            ending, export = EXPORTS[kind]
            text = export(report.groups, cells, report.metric, report.baseline)
            written[kind] = _write(given.output.with_suffix(ending), text)
    except (ReportError, RunFolderError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for line in report.problems:
        print(f"note: {line}", file=sys.stderr)
    _show(report, cells)
    for kind, path in written.items():
        print(f"{kind}: {path} ({bytes_in_words(path.stat().st_size)})")
    return 0


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
    problems += _together("not started, left out", [run for run in runs if run not in started])
    if not started:
        raise ReportError(f"no run in {places} has a result yet: {len(runs)} were found, none has a metric row")
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
    named = ", ".join(f"{run.path} ({run.state})" if run.rows else str(run.path) for run in runs[:_NAMED])
    more = f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else ""
    return [f"{what}: {named}{more}"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fedjax-ssl report",
        description="Compares runs on one self-contained page. Runs whose configs differ in the seed alone are a "
        "group; groups are compared with a baseline over the seeds that both have.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", metavar="FOLDER", help="run folders, or folders that hold some")
    parser.add_argument("--metric", help="column of metrics.csv or number of summary.json (test_accuracy)")
    parser.add_argument(
        "--baseline", metavar="GROUP", help="name of a group, words of it, or a run's folder (the first group)"
    )
    parser.add_argument("--output", type=Path, default=Path("report.html"), metavar="FILE", help="(report.html)")
    parser.add_argument(
        "--export",
        action="append",
        choices=list(EXPORTS),
        default=[],
        help="the table beside the page as well; may be given several times",
    )
    return parser


def _write(path: Path, text: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise ReportError(f"{path} cannot be written: {error.strerror}. Give another --output.") from error
    return path


def _show(report: Report, cells: Sequence[Cell]) -> None:
    """The table in a terminal."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    metric = header(report.metric, report.baseline)[2]
    for column, title in enumerate(("group", "runs", metric, "difference")):
        table.add_column(Text(title), justify="right" if column else "left", overflow="fold")
    rows = lines(report.groups, cells, report.metric)
    for row in rows[:_SHOWN]:
        table.add_row(*map(Text, row[:4]))
    console = Console(highlight=False, markup=False)
    console.print(table)
    if len(rows) > _SHOWN:
        console.print(f"... and {len(rows) - _SHOWN} more groups")
    if len(rows) > 1:
        console.print(f"difference to {report.baseline.name} over common seeds, with its {LEVEL:.0%} interval")
