"""The command: `fedjax-ssl report runs/...`, from run folders to one page and a table."""

import argparse
import dataclasses
import os
import shlex
import sys
from pathlib import Path

from rich.table import Table
from rich.text import Text

from fedjax_ssl.cli import PROGRAM, one_of, parser
from fedjax_ssl.errors import counted
from fedjax_ssl.folder.files import bytes_in_words, write_output
from fedjax_ssl.folder.progress import Console
from fedjax_ssl.report.exports import TABLES, lines
from fedjax_ssl.report.figures import figure
from fedjax_ssl.report.numbers import LEVEL
from fedjax_ssl.report.page import made_of, render
from fedjax_ssl.report.runs import Report, ReportError, read
from fedjax_ssl.report.scores import scored_groups
from fedjax_ssl.report.verdict import verdict

_EXPORTS = (*TABLES, "pdf", "svg")
_SHOWN = 20  # groups in the terminal


def main(arguments: list[str]) -> int:
    """Make a report.

    Args:
        arguments: without the program and the subcommand.

    Returns:
        0.

    Raises:
        ReportError: there is nothing to report, or it cannot be written; `fedjax_ssl.cli.main`
            makes messages of it.
    """
    given = _parser().parse_args(arguments)
    report = read(given.runs, metric=given.metric, baseline=given.baseline, names=dict(given.label))
    _check_positive(report, given.positive)
    report = dataclasses.replace(report, positive=given.positive, columns=given.columns)
    page = given.output or _beside(given.runs)
    # as seen from the page, so that both can be moved
    here = os.path.realpath(page.parent)
    folders = sorted({os.path.relpath(os.path.realpath(one), here) for one in given.runs})
    replaced = _replaced(page, folders, asked=given.output is not None)
    contents = _exports(report, page, given.export, given.curve)
    command = shlex.join([PROGRAM, "report", *arguments])
    html = render(report, command, folders, mistakes=given.mistakes)
    for path, content in {page: html, **contents}.items():
        write_output(path, content)
    for line in [*replaced, *report.problems]:
        print(f"note: {line}", file=sys.stderr)
    _show(report)
    for path in (page, *contents):
        kind = "report" if path == page else path.suffix[1:].replace("tex", "latex")
        print(f"{kind}: {path} ({bytes_in_words(path.stat().st_size)})")
    return 0


def _exports(
    report: Report, page: Path, kinds: list[str], curves: list[str]
) -> dict[Path, str | bytes]:
    """Make the files beside the page."""
    if curves and not {"pdf", "svg"} & {*kinds}:
        raise ReportError("--curve names curves to export: add --export pdf or svg")
    if report.columns and not {"md", "latex"} & {*kinds}:
        raise ReportError("--columns is for an exported table: add --export md or latex")
    found: dict[Path, str | bytes] = {}
    for kind in kinds:
        if kind in TABLES:
            ending, export = TABLES[kind]
            found[page.with_suffix(ending)] = export(report)
            continue
        for curve in curves or ["round"]:
            name = f"{page.stem}_{curve}" if curves else page.stem
            found[page.with_name(f"{name}.{kind}")] = figure(report, curve, kind)
    return found


def _beside(runs: list[str]) -> Path:
    """Place the page in the folder, or in the one that holds all of them."""
    common = os.path.commonpath([os.path.realpath(one) for one in runs])
    inside = os.path.relpath(common)
    return Path(common if inside.startswith("..") else inside) / "report.html"


def _replaced(page: Path, folders: list[str], *, asked: bool) -> list[str]:
    """Say what a page replaces, where this is not an earlier report of the same folders.

    Raises:
        ReportError: a file that is no report; one of other folders, where nobody asked for it.
    """
    if not page.is_file():
        return []
    there = made_of(page.read_text("utf-8", errors="replace"))
    if there is None:
        raise ReportError(f"{page} is there and is no report of this program: give --output FILE")
    if there == folders:
        return []
    names = ", ".join(os.path.relpath(page.parent / one) for one in there)
    whose = f"a report of {names or 'an earlier version, which does not say of what'}"
    if not asked:
        raise ReportError(f"{page} is {whose}: give --output FILE, or delete it")
    return [f"{page} was {whose}, and is replaced"]


def _check_positive(report: Report, positive: str | None) -> None:
    scored = scored_groups(report.groups).values()
    pairs = [one.classes for one in scored if len(one.classes) == 2]
    if positive is not None and not any(positive in pair for pair in pairs):
        known = sorted({name for pair in pairs for name in pair})
        raise ReportError(
            f"--positive {positive!r} is no class of runs with two classes. They have: "
            f"{', '.join(known) or 'none'}"
        )


def _parser() -> argparse.ArgumentParser:
    own = parser(
        "report",
        "Compares runs on one self-contained page. Runs whose configs differ in the seed alone "
        "are a\ngroup; groups are compared with a baseline over the seeds that both have.",
    )
    own.add_argument(
        "runs", nargs="+", metavar="FOLDER", help="run folders, or folders that hold some"
    )
    own.add_argument(
        "--metric",
        metavar="NAME",
        help="column of metrics.csv or number of summary.json (test_accuracy)",
    )
    own.add_argument(
        "--baseline",
        metavar="GROUP",
        help="name of a group, words of it, or a run's folder (the first group)",
    )
    own.add_argument(
        "--label",
        action="append",
        type=_label,
        default=[],
        metavar="OLD=NEW",
        help="what a group, or a part of groups' names, is called: --label labels=5=few",
    )
    own.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="(report.html in the folder, or in the one that holds all of them)",
    )
    own.add_argument(
        "--positive",
        metavar="CLASS",
        help="of two classes, the one that is looked for (the second one)",
    )
    own.add_argument(
        "--mistakes",
        action="store_true",
        help="show test images that are taken for something else; loads the runs' data",
    )
    own.add_argument(
        "--export",
        action="extend",
        type=lambda text: [*map(one_of("export", _EXPORTS), text.split(","))],
        default=[],
        metavar="KIND",
        help=(
            "beside the page: the table (md, latex, csv) or the curves of a paper (pdf, svg), "
            "with commas between"
        ),
    )
    own.add_argument(
        "--columns",
        metavar="FIELD",
        help="with --export md or latex: a column per value of this setting, rows by all others",
    )
    own.add_argument(
        "--curve",
        action="extend",
        type=lambda text: text.split(","),
        default=[],
        metavar="NAME",
        help=(
            "with --export pdf or svg: which of the page's curves, with commas between: round, "
            "bytes, seconds, local_steps, epsilon_spent, epsilon, clients, roc, reliability or a "
            "number that was swept"
        ),
    )
    return own


def _label(text: str) -> tuple[str, str]:
    old, equals, new = text.rpartition("=")
    if not (old and equals and new):
        raise argparse.ArgumentTypeError(f"{text!r} is not OLD=NEW")
    return old, new


def _show(report: Report) -> None:
    """Print the table in a terminal."""
    found = lines(report).iloc[:, :5]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("group", "runs", found.columns[2], "difference", "labels"):
        table.add_column(
            Text(title), justify="left" if title == "group" else "right", overflow="fold"
        )
    for row in found[:_SHOWN].itertuples(index=False):
        table.add_row(*map(Text, row))
    console = Console(highlight=False, markup=False)
    console.print(table)
    if len(found) > _SHOWN:
        console.print(f"... and {counted(len(found) - _SHOWN, 'more group')}")
    if len(found) > 1:
        console.print(
            f"difference to {report.baseline.name} over common seeds, with its {LEVEL:.0%} interval"
        )
    if said := verdict(report):
        console.print(said)
