"""The paper's numbers and ours side by side: read from run folders, kept as small JSON files,
written as tables.
"""

import ast
import functools
import itertools
import json
import math
import shlex
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
from flax.traverse_util import flatten_dict

from experiments.papers import costs
from experiments.papers.marks import MEANINGS, STEPS, other_steps, signs
from experiments.papers.table import FOLDER, Cell, Table, number_of
from fedjax_ssl import config as configs
from fedjax_ssl.errors import ConfigError, ConfigNote, counted
from fedjax_ssl.folder.files import encode_json, write_atomically
from fedjax_ssl.folder.stored_run import StoredRun, read_run
from fedjax_ssl.report.exports import markdown_table
from fedjax_ssl.report.numbers import numbers_of
from fedjax_ssl.runs.devices import forward_operations

BAR = r"\|"  # in a cell of Markdown
_COSTS = ("cost_gflop", "cost_megabytes")  # metrics of a formula, before the name of its method
_VERSIONS = ("python", "jax")
_PAIRS = 5  # from this many on, a rank correlation says something


class Origin(NamedTuple):
    """Where numbers come from."""

    device: str | None
    commit: str | None
    minutes: float  # of all its runs
    command: str  # as typed
    versions: str | None = None  # of Python and JAX


class Measured(NamedTuple):
    """Our numbers of a cell."""

    row: str
    column: str
    values: Sequence[float]  # one per seed
    rounds: int | None  # None: no run is done
    minutes: float  # of its runs
    origin: Origin
    steps: float | None = None  # local steps of a client in a round; None: was not kept
    marks: Sequence[str] = ()  # letters of `experiments.papers.marks`, one text per seed
    seeds: Sequence[int] = ()  # of the values, where they are not 0, 1, ...

    @property
    def by_seed(self) -> pandas.Series:
        """Values by seed."""
        return pandas.Series(self.values, self.seeds or range(len(self.values)), dtype=float)

    @property
    def place(self) -> tuple[str, str]:
        """Row and column."""
        return self.row, self.column


class Result(NamedTuple):
    """Our numbers of a table at a scale."""

    table: str  # name
    scale: str
    cells: Sequence[Measured]
    origin: Origin  # of the newest cells


def measure(run: StoredRun, cell: Cell) -> float | None:
    """Read the number of a cell from a run; None where the run is not done or has no such number.

    Args:
        run: as its folder has it.
        cell: says which metric, of which round.
    """
    if run.summary is None:
        return None
    kind, _, client = cell.metric.partition(":")
    if kind in _COSTS:
        cost = costs.OTHERS[client](costs.client_with(*_network(run)))
        return cost.rounded[_COSTS.index(kind)]
    wrong = kind in ("test_error", "client_error")
    if client:  # of a client, by its number
        accuracies = list(run.clients.get("model", {}).values())
        value = accuracies[int(client)] if int(client) < len(accuracies) else None
    elif kind == "forward_gflop":
        value = forward_operations(*_network(run)) / 1e9
    elif kind == "seconds_per_round":
        value = run.summary["train_seconds"] / max(run.summary["rounds"], 1)
    else:
        value = _of_rows(run, "test_accuracy" if wrong else kind, cell.value)
    if value is None or not math.isfinite(value):
        return None
    return 1 - value if wrong else value


def _network(run: StoredRun) -> tuple[dict[str, Any], int, tuple[int, ...]]:
    """Return a run's network, its number of classes, and the shape of an example."""
    model = json.loads((run.path / "model.json").read_text(encoding="utf-8"))
    return run.config["model"], len(model["class_names"]), tuple(model["inputs"]["shape"])


def _of_rows(run: StoredRun, name: str, value: str | tuple[str, int]) -> float | None:
    rows = [row for row in run.rows if row.get(name) is not None]
    summary = run.summary or {}
    if not rows:  # no column of metrics.csv: a number of the summary, unless the metrics are gone
        return numbers_of(run).get(name) if run.rows or not summary["rounds"] else None
    how, number = value if isinstance(value, tuple) else (value, 1)
    at = {"selected": summary.get("selected_round"), "round": number}.get(how)
    found = [float(row[name]) for row in rows if at in (None, row["round"])]
    return float(np.mean(found[-number if how == "mean" else -1 :])) if found else None


def collect(
    table: Table, scale: str, found: Sequence[tuple[Cell, list[Path]]], command: str
) -> Result:
    """Gather the numbers of a table.

    Args:
        table: the table.
        scale: at which it was run.
        found: cells, each with the folders of its runs.
        command: as typed.
    """
    runs = {folder: read_run(folder) for _, folders in found for folder in folders}

    def done(folders: Iterable[Path]) -> list[dict[str, Any]]:
        return [summary for folder in folders if (summary := runs[folder].summary)]

    def minutes(summaries: Iterable[Mapping[str, Any]]) -> float:
        seconds = sum(one["train_seconds"] + one["compile_seconds"] for one in summaries)
        return round(seconds / 60, 2)

    every = done(runs)
    first = every[0] if every else {}
    versions = first.get("versions", {})
    named = ", ".join(f"{name} {versions[name]}" for name in _VERSIONS if name in versions)
    commit = versions.get("git_commit")
    origin = Origin(first.get("device"), commit, minutes(every), command, named or None)
    cells = []
    for cell, folders in found:
        own = done(folders)
        rounds = own[0]["rounds"] if own else None
        numbers = {folder: measure(runs[folder], cell) for folder in folders}
        values = [number for number in numbers.values() if number is not None]
        seen = [
            signs(runs[folder], cell, number)
            for folder, number in numbers.items()
            if number is not None
        ]
        steps = seen[0].steps if seen else None
        letters = [one.marks for one in seen] if any(one.marks for one in seen) else ()
        seeds = [runs[one].config["seed"] for one, number in numbers.items() if number is not None]
        if seeds == [*range(len(seeds))]:
            seeds = []
        took = minutes(own)
        cells.append(
            Measured(*cell.place, values, rounds, took, origin, steps, letters, tuple(seeds))
        )
    return Result(table.name, scale, cells, origin)


def stored(table: str | None = None) -> list[Result]:
    """Read the results that the package brings, of one table or all."""
    found = map(_read, sorted((FOLDER / "results").glob("*.json")))
    return [one for one in found if table in (None, one.table)]


def _read(path: Path) -> Result:
    """Read a file of results. A cell says what it is "from" where that is not what the newest cells
    are from.
    """
    content = json.loads(path.read_text(encoding="utf-8"))
    newest = Origin(*map(content.get, Origin._fields))
    cells = []
    for cell in content["cells"]:
        other = cell.pop("from", None)
        cells.append(Measured(**cell, origin=Origin(**other) if other else newest))
    return Result(content["table"], content["scale"], cells, newest)


def _as_plain(result: Result) -> dict[str, Any]:
    cells = []
    for cell in result.cells:
        plain = cell._asdict()
        origin = plain.pop("origin")
        for name, default in Measured._field_defaults.items():
            if plain[name] == default:
                del plain[name]
        before = {} if origin == result.origin else {"from": origin._asdict()}
        cells.append(before | plain)
    origin = result.origin._asdict()
    return {"table": result.table, "scale": result.scale, **origin, "cells": cells}


def store(table: Table, result: Result) -> Path | None:
    """Keep results beside the papers' files, for `--list` and the page; stored cells that are not
    in them stay.

    Cells without a number are left out; without any, nothing is written.

    Raises:
        ConfigError: as of `check_store`; the file stays as it is.
    """
    new = {cell.place: cell for cell in result.cells if cell.values}
    seeds = {place: len(cell.values) for place, cell in new.items()}
    path, old = check_store(table, result.scale, seeds)
    if not new:
        return None
    cells = {cell.place: cell for cell in old} | new
    places = [cell.place for cell in table.make_cells("paper")]
    kept = result._replace(cells=[cells[place] for place in places if place in cells])
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, encode_json(_as_plain(kept), indent=1) + "\n")
    return path


def check_store(
    table: Table, scale: str, seeds: Mapping[tuple[str, str], int]
) -> tuple[Path, Sequence[Measured]]:
    """Find the file of stored results, and the cells that it has.

    Args:
        table: the table.
        scale: at which it is run.
        seeds: row and column of a cell -> its number of seeds.

    Raises:
        ConfigError: a stored cell has more seeds than are to take their place.
    """
    path = FOLDER / "results" / f"{table.name}_{scale}.json"
    old = _read(path).cells if path.exists() else []
    fewer = [
        f"{', '.join(cell.place)} ({len(cell.values)}, here {seeds[cell.place]})"
        for cell in old
        if seeds.get(cell.place, math.inf) < len(cell.values)
    ]
    if fewer:
        raise ConfigError(
            f"{path} has more seeds: {'; '.join(fewer)}. Run as many with --seeds, or remove the "
            "file"
        )
    return path, old


def _named(table: Table, scale: str, cell: Measured) -> tuple[str, str]:
    """Give row and column of a cell their names at the scale."""
    return table.name_at(scale, "rows", cell.row), table.name_at(scale, "columns", cell.column)


def marks_of(table: Table, scale: str, cell: Measured) -> str:
    """Give the letters of `experiments.papers.marks` that some seed of a cell has."""
    letters = "".join(cell.marks) + STEPS * other_steps(table, scale, cell.steps)
    return "".join(letter for letter in MEANINGS if letter in letters)


def rows_of(table: Table, result: Result) -> pandas.DataFrame:
    """List the cells with the paper's number, ours, and the difference; shares times 100 where the
    table has these.

    Rows and columns have their names at the scale.
    """
    factor = 100 if table.percent else 1
    rows = []
    for cell in result.cells:
        row, column = _named(table, result.scale, cell)
        comparable = result.scale != "smoke" and not other_than_paper(table, result.scale, cell)
        printed = table.printed(*cell.place) if comparable else ""
        paper, paper_spread = number_of(printed) or (None, None)
        values = pandas.Series(cell.values, dtype=float) * factor
        rows.append(
            {
                "row": row,
                "column": column,
                "paper": paper,
                "paper_spread": paper_spread,
                "ours": values.mean(),
                "spread": values.std(),
                "seeds": len(values),
                "rounds": cell.rounds,
                "minutes": cell.minutes,
                "steps": cell.steps,
                "marks": marks_of(table, result.scale, cell),
            }
        )
    found = pandas.DataFrame(rows).astype({"paper": float, "paper_spread": float})
    found.insert(6, "difference", found.ours - found.paper)
    return found


def number_in_words(mean: float, spread: float) -> str:
    """Write a number with its spread, which may be NaN as the number may; small ones with more
    digits.
    """
    if math.isnan(mean):
        return ""
    digits = 1 if max(abs(mean), spread) >= 10 else 2
    return f"{mean:.{digits}f}" + ("" if math.isnan(spread) else f" ± {spread:.{digits}f}")


def markdown(table: Table, result: Result) -> str:
    """Write a table in Markdown, and below it all that has to be known of its numbers."""
    said = "\n".join(f"- {note}" for note in notes(table, result))
    return f"{grid(table, result)}\n\n{said}"


def grid(table: Table, result: Result) -> str:
    """Write the title of a table, our numbers, and the paper's in brackets."""
    found = rows_of(table, result)
    ours = map(number_in_words, found.ours, found.spread)
    paper = map(number_in_words, found.paper, found.paper_spread)
    marks = [f" [{letters}]" * bool(letters) for letters in found.marks]
    found["text"] = [
        f"{own or '-'}{mark} ({theirs})" if theirs else f"{own or '-'}{mark}"
        for own, mark, theirs in zip(ours, marks, paper, strict=True)
    ]
    grid = found.pivot(index="row", columns="column", values="text").fillna("")
    grid = grid.reindex(index=found.row.unique(), columns=found.column.unique())
    titles, *rows = (
        [cell.replace("|", BAR) for cell in line]
        for line in [("", *grid.columns), *grid.itertuples()]
    )
    others = ", ".join(other_data(result))
    here = f" (here {others})" if others else ""
    return (
        f"{table.title_at(result.scale)}{here}; {table.source}.\n\n{markdown_table(titles, rows)}"
    )


def count_in_words(table: Table, result: Result) -> str:
    """Say of how many seeds the numbers are, and whether the paper's stand beside them."""
    counts = sorted({len(cell.values) for cell in result.cells if cell.values})
    seeds = " or ".join(map(str, counts))
    count = f"mean and sample deviation of {seeds} seeds" if counts else "no results"
    if counts == [1]:
        count = "one seed"
    return count + "; in brackets the paper's" * bool(rows_of(table, result).paper.notna().any())


def notes(table: Table, result: Result) -> list[str]:
    """Say what the numbers of a table are, what was reduced or differs, and where they come
    from.
    """
    said = [f"ours, {count_in_words(table, result)}"]
    said += [
        f"runs of {', '.join(cell.place)} are done and have no such number"
        for cell in result.cells
        if not cell.values and cell.rounds is not None
    ]
    every = len(table.make_cells("paper"))
    there = sum(bool(cell.values) for cell in result.cells)
    if there < every:
        said.append(f"results of {there} of {counted(every, 'cell')}")
    if reduced := table.reduced_at(result.scale):
        said.append(f"reduced: {reduced}")
        said += _said_of_settings(table, result)
    if result.scale == "smoke":
        said.append("two rounds on stand-in data: these numbers mean nothing")
    others = {other_than_paper(table, result.scale, cell): None for cell in result.cells}
    said += [f"not the paper's in more than scale: {text}" for text in others if text]
    said += _said_of_marks(table, result)
    said += filter(None, [_said_of_steps(table, result)])
    said += [f"differs: {text}" for text in table.differs]
    if result.scale != "smoke":
        said += filter(None, [order(table, result)])
    said += [f"data: {text}" for text in other_data(result)]
    said += [f"set in place of all above: {text}" for text in _given(result.cells, "--set")]
    origins: dict[Origin, list[str]] = {}
    for cell in result.cells:
        origins.setdefault(cell.origin, []).append(", ".join(_named(table, result.scale, cell)))
    for origin, cells in origins.items():
        which = f" ({'; '.join(cells)})" if len(origins) > 1 else ""
        version = ""
        if origin.commit:
            changed = " with uncommitted changes" * origin.commit.endswith("-dirty")
            version = f", commit {origin.commit[:7]}{changed}"
        took = f"{origin.minutes:g} minutes of runs on {origin.device}{version}"
        with_versions = f", {origin.versions}" * bool(origin.versions)
        said.append(f"`{origin.command}`{which}: {took}{with_versions}")
    return said


def _said_of_settings(table: Table, result: Result) -> list[str]:
    """List every setting that is not the paper's, first those of all cells, then those of rows."""
    changed = dict[str, dict[str, None]]()
    for measured in result.cells:
        (here,) = table.make_cells(result.scale, [measured.row], [measured.column])
        (paper,) = table.make_cells("paper", [measured.row], [measured.column])
        theirs = _values(paper.config, repr(sorted(paper.settings.items())))
        row = table.name_at(result.scale, "rows", measured.row)
        changed.setdefault(row, {}).update(
            {
                f"`{field}={value}` ({theirs.get(field)})": None
                for field, value in here.settings.items()
                if value is not None and theirs.get(field) != value
            }
        )
    shared = [
        text
        for text in next(iter(changed.values()))
        if all(text in own for own in changed.values())
    ]
    rows = dict[str, list[str]]()
    for row, texts in changed.items():
        own = "; ".join(text for text in texts if text not in shared)
        rows.setdefault(own, []).append(row)
    rows.pop("", None)
    said = [f"settings, in brackets the paper's: {'; '.join(shared) or 'by row'}"]
    return said + [f"settings of {', '.join(names)}: {own}" for own, names in rows.items()]


@functools.cache
def _values(config: str, settings: str) -> dict[str, Any]:
    """Return the fields of a config with settings, which stand as a text, by their dotted names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigNote)
        loaded = configs.load(config, dict(ast.literal_eval(settings)))
    return flatten_dict(loaded.to_dict(), sep=".")


def _said_of_marks(table: Table, result: Result) -> list[str]:
    """Explain every letter that a cell has, and name its cells."""
    whys = {cell.place: cell.steps for cell in table.make_cells("paper")}
    if result.scale in ("small", "medium"):
        whys |= {
            cell.place: cell.steps
            for cell in table.make_cells(result.scale, list(table.rows), list(table.columns))
        }
    said = []
    for letter, meaning in MEANINGS.items():
        cells = []
        for cell in result.cells:
            if letter not in marks_of(table, result.scale, cell):
                continue
            seeds = sum(letter in one for one in cell.marks)
            more = f"{seeds} of {counted(len(cell.values), 'seed')}"
            if letter == STEPS:
                why = whys.get(cell.place, "")
                more = f"{cell.steps:g}" + f": {why}" * bool(why)
            cells.append(f"{', '.join(_named(table, result.scale, cell))} ({more})")
        if cells:
            said.append(f"[{letter}] {meaning}: {'; '.join(cells)}")
    return said


def _said_of_steps(table: Table, result: Result) -> str:
    """Say how many local steps the methods took, in a table of several."""
    cells = [cell for cell in result.cells if cell.values]
    if len({cell.row for cell in cells}) < 2:
        return ""
    if {cell.steps for cell in cells} == {None}:
        return "local steps of every cell: not kept when these runs were made"
    columns = dict[str, dict[str, str]]()
    for cell in cells:
        row, column = _named(table, result.scale, cell)
        steps = "not kept" if cell.steps is None else f"{cell.steps:g}"
        columns.setdefault(column, {})[row] = steps
    said = dict[str, str]()
    for column, rows in columns.items():
        each = "; ".join(f"{row} {steps}" for row, steps in rows.items())
        said[column] = each if len(set(rows.values())) > 1 else min(rows.values())
    texts = "; ".join(f"{column}: {text}" for column, text in said.items())
    if len(set(said.values())) == 1:
        texts = min(said.values())
        texts += " in every cell" * (";" not in texts)
    why = f" ({table.steps})" * bool(isinstance(table.steps, str) and table.steps)
    return f"local steps of a client in a round: {texts}{why}"


def other_than_paper(table: Table, scale: str, cell: Measured) -> str:
    """Say how a cell differs from the paper in more than scale: by what its table says, or by data
    of another name (`cifar10_jpeg.npz` is of the name cifar10). Empty: in scale alone, if at all.
    """
    found = [table.make_cells(scale, [cell.row], [cell.column])[0].other]
    for text in _given([cell], "--data"):
        name, _, place = text.partition("=")
        if not Path(place).stem.startswith(name):
            found.append(f"data of {Path(place).stem}, not {name}")
    return "; ".join(filter(None, found))


def other_data(result: Result) -> list[str]:
    """Say which files or datasets were taken in place of those of a table."""
    pairs = (text.partition("=")[::2] for text in _given(result.cells, "--data"))
    return [
        f"{Path(place).name} in place of {name}"
        for name, place in pairs
        if Path(place).stem != name
    ]


def _given(cells: Iterable[Measured], option: str) -> list[str]:
    """Find the values of an option in the commands of cells."""
    found = []
    for command in dict.fromkeys(cell.origin.command for cell in cells):
        for before, word in itertools.pairwise(shlex.split(command)):
            if before == option:
                found.append(word)
            elif word.startswith(f"{option}="):
                found.append(word.removeprefix(f"{option}="))
    return list(dict.fromkeys(found))


def order(table: Table, result: Result) -> str:
    """Say how far the order of rows, or of the points of a single row, is the paper's; empty
    without two numbers.
    """
    along, across = ("column", "row") if len(table.rows) > 1 else ("row", "column")
    both = rows_of(table, result).dropna(subset=["paper", "ours"])
    pairs = 0
    reverse = list[str]()
    for group, members in both.groupby(along, sort=False):
        for first, second in itertools.combinations(members.to_dict("records"), 2):
            paper = first["paper"] - second["paper"]
            if paper == 0:
                continue
            pairs += 1
            if paper * (first["ours"] - second["ours"]) <= 0:
                reverse.append(f"{first[across]} and {second[across]} ({group})")
    if not pairs:
        return ""
    agreeing = pairs - len(reverse)
    text = f"order: {agreeing} of {counted(pairs, 'pair')} of {across}s as in the paper"
    if pairs >= _PAIRS:
        text += f" (Kendall {(agreeing - len(reverse)) / pairs:+.2f})"
    if len(reverse) > 4:
        reverse[4:] = [f"and {len(reverse) - 4} more"]
    return f"{text}; other way round: {'; '.join(reverse)}" if reverse else text


def write(table: Table, result: Result, folder: Path) -> Path:
    """Write `table.md` and `table.csv`; returns the first."""
    write_atomically(folder / "table.csv", rows_of(table, result).to_csv(index=False))
    write_atomically(folder / "table.md", f"# {table.name}\n\n{markdown(table, result)}\n")
    return folder / "table.md"
