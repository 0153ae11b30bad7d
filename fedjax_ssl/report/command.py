"""The command: `fedjax-ssl report runs/...`, from run folders to one page and a table."""

import argparse
import shlex
import sys
from pathlib import Path

from rich.table import Table
from rich.text import Text

from fedjax_ssl.cli import PROGRAM, one_of, parser
from fedjax_ssl.errors import counted
from fedjax_ssl.folder.files import bytes_in_words, write_output
from fedjax_ssl.folder.progress import Console
from fedjax_ssl.report.exports import EXPORTS, lines
from fedjax_ssl.report.numbers import LEVEL
from fedjax_ssl.report.page import render
from fedjax_ssl.report.runs import Report, read

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
    report = read(given.runs, metric=given.metric, baseline=given.baseline)
    written = {"report": given.output}
    write_output(given.output, render(report, shlex.join([PROGRAM, "report", *arguments])))
    for kind in given.export:
        ending, export = EXPORTS[kind]
        written[kind] = given.output.with_suffix(ending)
        write_output(written[kind], export(report))
    for line in report.problems:
        print(f"note: {line}", file=sys.stderr)
    _show(report)
    for kind, path in written.items():
        print(f"{kind}: {path} ({bytes_in_words(path.stat().st_size)})")
    return 0


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
        "--output", type=Path, default=Path("report.html"), metavar="FILE", help="(report.html)"
    )
    own.add_argument(
        "--export",
        action="extend",
        type=lambda text: [*map(one_of("export", EXPORTS), text.split(","))],
        default=[],
        metavar="KIND",
        help=(
            "beside the page: the table (md, latex, csv) or the curves of a paper (pdf, svg), "
            "with commas between"
        ),
    )
    return own


def _show(report: Report) -> None:
    """Print the table in a terminal."""
    found = lines(report).iloc[:, :4]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("group", "runs", found.columns[2], "difference"):
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
