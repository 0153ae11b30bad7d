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
from fedjax_ssl.report.numbers import LEVEL
from fedjax_ssl.report.page import GENERATOR, render
from fedjax_ssl.report.runs import Report, ReportError, read
from fedjax_ssl.report.verdict import verdict

_SHOWN = 20  # groups shown in the terminal


def main(arguments: list[str]) -> int:
    """Make a report.

    Args:
        arguments: arguments after the subcommand.

    Returns:
        0.

    Raises:
        ReportError: there is nothing to report, or it cannot be written; `fedjax_ssl.cli.main`
            shows the message.
    """
    given = _parser().parse_args(arguments)
    report = read(given.runs, metric=given.metric, baseline=given.baseline, names=dict(given.label))
    report = dataclasses.replace(report, columns=given.columns)
    page = given.output or _beside(given.runs)
    if page.is_file() and GENERATOR not in page.read_text("utf-8", errors="replace"):
        raise ReportError(f"{page} is there and is no report of this program: give --output FILE")
    if report.columns and not {"md", "latex"} & {*given.export}:
        raise ReportError("--columns is for an exported table: add --export md or latex")
    exports = {
        page.with_suffix(ending): export(report)
        for ending, export in (TABLES[kind] for kind in given.export)
    }
    html = render(report, shlex.join([PROGRAM, "report", *arguments]))
    for path, content in {page: html, **exports}.items():
        write_output(path, content)
    for line in report.problems:
        print(f"note: {line}", file=sys.stderr)
    _show(report)
    for path in (page, *exports):
        kind = "report" if path == page else path.suffix[1:].replace("tex", "latex")
        print(f"{kind}: {path} ({bytes_in_words(path.stat().st_size)})")
    return 0


def _beside(runs: list[str]) -> Path:
    """Return the path of the page: in the folder, or in the one that contains all of them."""
    common = os.path.commonpath([os.path.realpath(one) for one in runs])
    inside = os.path.relpath(common)
    return Path(common if inside.startswith("..") else inside) / "report.html"


def _parser() -> argparse.ArgumentParser:
    own = parser(
        "report",
        "Compares runs on one self-contained page. Runs whose configs differ in the seed alone "
        "are a\ngroup; groups are compared with a baseline over the seeds that both have.",
    )
    own.add_argument(
        "runs", nargs="+", metavar="FOLDER", help="run folders, or folders with run folders in them"
    )
    own.add_argument(
        "--metric",
        metavar="NAME",
        help="column of metrics.csv or number of summary.json (default: test_accuracy)",
    )
    own.add_argument(
        "--baseline",
        metavar="GROUP",
        help="name of a group, part of its name, or a run's folder (default: the first group)",
    )
    own.add_argument(
        "--label",
        action="append",
        type=_label,
        default=[],
        metavar="OLD=NEW",
        help="rename a group, or a part of the groups' names: --label labels=5=few",
    )
    own.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="page to write (default: report.html in the folder that holds all of them)",
    )
    own.add_argument(
        "--export",
        action="extend",
        type=lambda text: [*map(one_of("export", TABLES), text.split(","))],
        default=[],
        metavar="KIND",
        help="write the table too: md, latex, csv, with commas between",
    )
    own.add_argument(
        "--columns",
        metavar="FIELD",
        help="with --export md or latex: a column per value of this setting, rows by all others",
    )
    return own


def _label(text: str) -> tuple[str, str]:
    old, equals, new = text.rpartition("=")
    if not (old and equals and new):
        raise argparse.ArgumentTypeError(f"{text!r} is not OLD=NEW")
    return old, new


def _show(report: Report) -> None:
    """Print the table to a terminal."""
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
