"""Tables and figures of papers, with our numbers beside theirs: listed, described, and run by the
sweep's workers.

examples:
  fedjax-ssl reproduce --list
  fedjax-ssl reproduce fedul-table1
  fedjax-ssl reproduce fedul-table1 --run --scale smoke
  fedjax-ssl reproduce fedul-table1 --run --scale small --data mnist=mnist.npz --rows FedUL FedPL
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.papers import page, results, running, scales
from experiments.papers.claims import load_claims
from experiments.papers.scales import Run
from experiments.papers.stand_in import NAME as STAND_IN
from experiments.papers.table import SCALES, Table, find_table, load_tables
from fedjax_ssl import command_line
from fedjax_ssl.cli import Parser, one_of
from fedjax_ssl.cli import parser as new_parser
from fedjax_ssl.config import ConfigError
from fedjax_ssl.errors import counted
from fedjax_ssl.models import PRECISIONS
from fedjax_ssl.sweep import axes
from fedjax_ssl.sweep.command import check_workers, refuse_idle


def main(arguments: list[str]) -> int:
    """Do what the command line asks for.

    Args:
        arguments: command line without program and subcommand.

    Returns:
        0; 1 if runs failed.

    Raises:
        ConfigError: and what else a sweep raises at its start; `fedjax_ssl.cli.main` makes messages
            of it.
    """
    given = parser().parse_args(arguments)
    tables = load_tables(given.papers)
    if given.list or given.page:
        if given.list:
            print("\n".join(_list(tables)))
        else:
            print("\n\n".join(page.chapter(tables, load_claims(given.papers))))
        return 0
    if given.table is None:
        raise ConfigError("name a table; `fedjax-ssl reproduce --list` names all")
    if not given.run:
        refuse_idle(given, ("store", "workdir", "workers"), without="--run")
    check_workers(given.workers)
    table = find_table(given.table, tables)
    command = ["fedjax-ssl", "reproduce", *arguments]
    data = axes.pairs("--data", given.data, "NAME=PATH")
    settings = axes.pairs("--set", given.set, "FIELD=VALUE")
    if given.precision is not None:
        if "precision" in settings:
            raise ConfigError("--precision and --set precision=... are both given; leave one out")
        settings["precision"] = given.precision
    with command_line.notes_instead_of_warnings() as notes:
        cells = table.make_cells(given.scale, given.rows, given.columns)
        runs = scales.runs_of(
            table, given.scale, cells, axes.parse_seeds(given.seeds), data, settings
        )
        if not given.run:
            print("\n".join(running.describe(table, given.scale, cells, runs, command)))
            return 0
        if not runs:
            raise ConfigError(f"{table.name} has no cell to run: {cells[0].missing}")
        folder = Path(given.workdir or f"runs/reproduce_{table.name}_{given.scale}")
        if given.store:
            _check_store(table, given.scale, runs)
        typed = command[:2] + [_without_folders(word) for word in arguments]
        result = running.carry_out(table, given.scale, runs, folder, typed, given.workers, notes)
    print(f"\n{results.markdown(table, result)}\n\n{folder / 'table.md'}")
    empty = [cell for cell in result.cells if not cell.values]
    if given.store:
        left = f"; {counted(len(empty), 'cell')} without a number left out" * bool(empty)
        print(f"{results.store(table, result) or 'nothing is stored'}{left}")
    return 1 if empty else 0


def parser() -> Parser:
    """Make the parser of the command line."""
    parser = new_parser("reproduce", __doc__ or "")
    add = parser.add_argument
    add("table", nargs="?", metavar="TABLE", help="its name; described, unless --run is given")
    add("--list", action="store_true", help="name all tables, and which have results")
    add(
        "--page",
        action="store_true",
        help="print what the papers claim and the stored tables, as docs/results.md has them",
    )
    add("--run", action="store_true", help="run it, or go on with it")
    add(
        "--scale",
        type=one_of("scale", SCALES),
        default="small",
        metavar="SCALE",
        help="smoke, small (default), medium, paper",
    )
    add(
        "--seeds",
        metavar="N",
        help="seeds 0 to N - 1, or those listed (0,7,11); by default the scale's",
    )
    add("--rows", nargs="+", metavar="ROW", help="these rows only")
    add("--columns", nargs="+", metavar="COLUMN", help="these columns only")
    where = (
        "an .npz file with x_train, y_train, x_test and y_test (as Keras' mnist.npz), a folder "
        "of the original files "
    )
    add(
        "--data",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help=f"{where}or another dataset, in place of this one",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="a setting of all cells, such as threads=1",
    )
    add(
        "--precision",
        type=one_of("precision", tuple(PRECISIONS)),
        metavar="NAME",
        help=f"of forward and backward passes in all cells: {', '.join(PRECISIONS)}",
    )
    add("--workdir", metavar="FOLDER", help="runs/reproduce_TABLE_SCALE by default")
    add("--workers", type=int, metavar="N", help="processes at a time, as for `sweep`")
    add(
        "--store",
        action="store_true",
        default=None,
        help="put the results beside the papers' files, for --list and --page",
    )
    add(
        "--papers",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="papers in TOML, in place of those here",
    )
    return parser


def _list(tables: Mapping[str, Table]) -> list[str]:
    width = max(map(len, tables))
    lines = []
    for name, table in tables.items():
        cells = table.make_cells("paper")
        missing = sum(bool(cell.missing) for cell in cells)
        have = [
            f"{one.scale} ({(one.origin.commit or '-')[:7]}, {one.origin.device})"
            for one in results.stored(name)
        ]
        lacks = f", {missing} missing" if missing else ""
        lines.append(
            f"{name:{width}}  {counted(len(cells), 'cell'):>9}{lacks}  {table.title}; "
            + (f"results: {', '.join(have)}" if have else "no results yet")
        )
    return [*lines, f"{counted(len(tables), 'table')} and figures"]


def _check_store(table: Table, scale: str, runs: Sequence[Run]) -> None:
    """Refuses, before anything runs, to store numbers that mean nothing or are of fewer seeds
    than those there.
    """
    if scale == "smoke" or any(run.config.data.name == STAND_IN for run in runs):
        raise ConfigError(
            "--store keeps no numbers of stand-in data, which mean nothing; leave it out"
        )
    results.check_store(table, scale, Counter(run.cell.place for run in runs))


def _without_folders(word: str) -> str:
    """Shortens paths of this machine in a stored command to their last part."""
    name, equals, value = word.rpartition("=")
    return f"{name}{equals}{Path(value).name}" if Path(value).is_absolute() else word
