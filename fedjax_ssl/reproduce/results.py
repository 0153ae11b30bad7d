"""The paper's numbers and ours side by side: read from run folders, kept as small JSON files,
written as tables.
"""

import itertools
import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from fedjax_ssl.errors import ConfigError, counted
from fedjax_ssl.folder.files import encode_json, write_atomically
from fedjax_ssl.folder.stored_run import StoredRun, read_run
from fedjax_ssl.reproduce.table import Cell, Table, number_of
from fedjax_ssl.runs.devices import forward_operations
from fedjax_ssl.shipped import papers
from fedjax_ssl.sweep import results

# of the page
HEAD = "| table | scale | source | pairs in the paper's order | why not |\n|---|---|---|---|---|"
_BAR = r"\|"  # in a cell of Markdown
_PAIRS = 5  # from this many on, a rank correlation says something
Stored = dict[str, Any]  # a table at a scale, as its JSON file has it
# of all cells but those that have a part "from"
_ORIGIN = ("command", "minutes", "device", "commit")


def measure(folder: Path, cell: Cell) -> float | None:
    """Read the number of a cell from the folder of a run; None where the run is not done or has no
    such number.

    Args:
        folder: of the run.
        cell: says which metric, of which round.
    """
    run = read_run(folder)
    if run.summary is None:
        return None
    kind, _, client = cell.metric.partition(":")
    wrong = kind in ("test_error", "client_error")
    if client:  # of a client, by its number
        accuracies = list(run.clients.get("model", {}).values())
        value = accuracies[int(client)] if int(client) < len(accuracies) else None
    elif kind == "forward_gflop":
        model = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        shape = tuple(model["inputs"]["shape"])
        value = forward_operations(run.config["model"], len(model["class_names"]), shape) / 1e9
    elif kind == "seconds_per_round":
        value = run.summary["train_seconds"] / max(run.summary["rounds"], 1)
    else:
        value = _of_rows(run, "test_accuracy" if wrong else kind, cell.value)
    if value is None or not math.isfinite(value):
        return None
    return 1 - value if wrong else value


def _of_rows(run: StoredRun, name: str, value: str | tuple[str, int]) -> float | None:
    rows = [row for row in run.rows if row.get(name) is not None]
    summary = run.summary or {}
    if not rows:  # no column of metrics.csv: a number of the summary, unless the metrics are gone
        return results.scalars(summary).get(name) if run.rows or not summary["rounds"] else None
    how, number = value if isinstance(value, tuple) else (value, 1)
    at = {"selected": summary.get("selected_round"), "round": number}.get(how)
    found = [float(row[name]) for row in rows if at in (None, row["round"])]
    return float(np.mean(found[-number if how == "mean" else -1 :])) if found else None


def collect(
    table: Table, scale: str, found: Sequence[tuple[Cell, list[Path]]], command: str
) -> Stored:
    """Gather the numbers of a table.

    Args:
        table: the table.
        scale: at which it was run.
        found: cells, each with the folders of its runs.
        command: as typed.
    """
    summaries = {
        folder: read_run(folder).summary or {} for _, folders in found for folder in folders
    }
    first: Mapping[str, Any] = next(filter(None, summaries.values()), {})

    def minutes(folders: Iterable[Path]) -> float:
        done = [summaries[folder] for folder in folders if summaries[folder]]
        return round(sum(one["train_seconds"] + one["compile_seconds"] for one in done) / 60, 2)

    cells = []
    for cell, folders in found:
        values = [value for folder in folders if (value := measure(folder, cell)) is not None]
        rounds = next(
            (summaries[folder]["rounds"] for folder in folders if summaries[folder]), None
        )
        cells.append(
            dict(
                row=cell.row,
                column=cell.column,
                values=values,
                rounds=rounds,
                minutes=minutes(folders),
            )
        )
    return {
        "table": table.name,
        "scale": scale,
        "device": first.get("device"),
        "commit": first.get("versions", {}).get("git_commit"),
        "minutes": minutes(summaries),
        "command": command,
        "cells": cells,
    }


def stored(table: str | None = None) -> list[Stored]:
    """Read the results that the package brings, of one table or all."""
    files = sorted((papers() / "results").glob("*.json"))
    found = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    return [one for one in found if table in (None, one["table"])]


def store(table: Table, result: Stored) -> Path | None:
    """Keep results beside the papers' files, for `--list` and the page; stored cells that are not
    in them stay.

    Cells without a number are left out; without any, nothing is written.

    Raises:
        ConfigError: as of `check_store`; the file stays as it is.
    """
    new = {(cell["row"], cell["column"]): cell for cell in result["cells"] if cell["values"]}
    path, old = check_store(
        table, result["scale"], {place: len(cell["values"]) for place, cell in new.items()}
    )
    if not new:
        return None
    path.parent.mkdir(exist_ok=True)
    cells = {(cell["row"], cell["column"]): cell for cell in old["cells"]}
    cells = {
        place: {"from": {key: old[key] for key in _ORIGIN}} | cell for place, cell in cells.items()
    } | new
    places = [
        place for cell in table.make_cells("paper") if (place := (cell.row, cell.column)) in cells
    ]
    write_atomically(
        path, encode_json(result | {"cells": [cells[place] for place in places]}, indent=1) + "\n"
    )
    return path


def check_store(
    table: Table, scale: str, seeds: Mapping[tuple[str, str], int]
) -> tuple[Path, Stored]:
    """Find the file of stored results, and what it has.

    Args:
        table: the table.
        scale: at which it is run.
        seeds: row and column of a cell -> its number of seeds.

    Raises:
        ConfigError: a stored cell has more seeds than are to take their place.
    """
    path = papers() / "results" / f"{table.name}_{scale}.json"
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"cells": []}
    there = {(cell["row"], cell["column"]): len(cell["values"]) for cell in old["cells"]}
    lost = {place: count for place, count in seeds.items() if count < there.get(place, 0)}
    if lost:
        fewer = [
            f"{', '.join(place)} ({there[place]}, here {count})" for place, count in lost.items()
        ]
        raise ConfigError(
            f"{path} has more seeds: {'; '.join(fewer)}. Run as many with --seeds, or remove the "
            "file"
        )
    return path, old


def rows_of(table: Table, result: Stored) -> pandas.DataFrame:
    """List the cells with the paper's number, ours, and the difference; shares times 100 where the
    table has these.

    Rows and columns have their names at the scale.
    """
    factor = 100 if table.percent else 1
    rows = []
    for cell in result["cells"]:
        values = pandas.Series(cell["values"], dtype=float) * factor
        numbers = table.paper.get(cell["row"])
        printed = number_of(numbers[list(table.columns).index(cell["column"])]) if numbers else None
        names = (
            table.name_at(result["scale"], kind, cell[kind.removesuffix("s")])
            for kind in ("rows", "columns")
        )
        paper = printed or (None, None)
        own = (values.mean(), values.std(), len(values))
        rows.append((*names, *paper, *own, cell["rounds"], cell["minutes"]))
    columns = [
        "row",
        "column",
        "paper",
        "paper_spread",
        "ours",
        "spread",
        "seeds",
        "rounds",
        "minutes",
    ]
    found = pandas.DataFrame(rows, columns=columns).astype(
        dict.fromkeys(("paper", "paper_spread"), float)
    )
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


def markdown(table: Table, result: Stored) -> str:
    """Write a table in Markdown: title, ours, the paper's number in brackets, and where the
    numbers come from.
    """
    found = rows_of(table, result)
    ours = map(number_in_words, found.ours, found.spread)
    paper = map(number_in_words, found.paper, found.paper_spread)
    found["text"] = [
        f"{own or '-'}{f' ({theirs})' * bool(theirs)}"
        for own, theirs in zip(ours, paper, strict=True)
    ]
    grid = found.pivot(index="row", columns="column", values="text").fillna("")
    grid = grid.reindex(index=found.row.unique(), columns=found.column.unique())
    lines = [
        ["", *grid.columns],
        ["---", *["---:"] * grid.shape[1]],
        *([row, *grid.loc[row]] for row in grid.index),
    ]
    text = "\n".join(
        f"| {' | '.join(cell.replace('|', _BAR) for cell in line)} |" for line in lines
    )
    others = ", ".join(other_data(result))
    title = (
        f"{table.title_at(result['scale'])}{f' (here {others})' * bool(others)}; {table.source}."
    )
    return f"{title}\n\n{text}\n\n" + "\n".join(f"- {note}" for note in notes(table, result))


def notes(table: Table, result: Stored) -> list[str]:
    """Say what the numbers of a table are, what was reduced or differs, and where they come
    from.
    """
    counts = [len(cell["values"]) for cell in result["cells"] if cell["values"]]
    seeds = " or ".join(map(str, sorted(set(counts))))
    count = (
        "no results"
        if not counts
        else "one seed"
        if seeds == "1"
        else f"mean and sample deviation of {seeds} seeds"
    )
    said = [f"ours, {count}; in brackets the paper's"]
    done = [cell for cell in result["cells"] if not cell["values"] and cell["rounds"] is not None]
    said += [
        f"runs of {cell['row']}, {cell['column']} are done and have no such number" for cell in done
    ]
    every = len(table.make_cells("paper"))
    said += (
        [f"results of {len(counts)} of the paper's {counted(every, 'cell')}"]
        if len(counts) < every
        else []
    )
    if result["scale"] == "small" and table.reduced:
        said.append(f"reduced: {table.reduced}")
    if result["scale"] == "smoke":
        said.append("two rounds on stand-in data: these numbers mean nothing")
    said += [f"differs: {text}" for text in table.differs]
    said += [text] if result["scale"] != "smoke" and (text := order(table, result)) else []
    origins: dict[tuple[Any, ...], list[str]] = {}
    for cell, row, column in zip(
        result["cells"], *map(rows_of(table, result).get, ("row", "column")), strict=True
    ):
        origin = tuple(map(cell.get("from", result).get, _ORIGIN))
        origins.setdefault(origin, []).append(f"{row}, {column}")
    said += [f"data: {text}" for text in other_data(result)]
    said += [f"set in place of all above: {text}" for text in _given(result, "--set")]
    for (command, minutes, device, commit), cells in origins.items():
        which = f" ({'; '.join(cells)})" * (len(origins) > 1)
        changed = " with uncommitted changes" * str(commit).endswith("-dirty")
        version = f", commit {commit[:7]}{changed}" if commit else ""
        said.append(f"`{command}`{which}: {minutes:g} minutes of runs on {device}{version}")
    return said


def other_data(result: Stored) -> list[str]:
    """Say which files or datasets were taken in place of those of a table."""
    pairs = (text.partition("=")[::2] for text in _given(result, "--data"))
    return [
        f"{Path(place).name} in place of {name}"
        for name, place in pairs
        if Path(place).stem != name
    ]


def _given(result: Stored, option: str) -> list[str]:
    """Find the values of an option in the commands of a result."""
    commands = dict.fromkeys(cell.get("from", result)["command"] for cell in result["cells"])
    found = []
    for before, word in itertools.chain(
        *(itertools.pairwise(shlex.split(command)) for command in commands)
    ):
        found += [word] * (before == option) + [word.removeprefix(f"{option}=")] * word.startswith(
            f"{option}="
        )
    return list(dict.fromkeys(found))


def order(table: Table, result: Stored) -> str:
    """Say how far the order of rows, or of the points of a single row, is the paper's; empty
    without two numbers.
    """
    along, across = ("column", "row") if len(table.rows) > 1 else ("row", "column")
    both = rows_of(table, result).dropna(subset=["paper", "ours"])
    pairs = 0
    reverse = list[str]()
    for group, members in both.groupby(along, sort=False):
        for first, second in itertools.combinations(members.to_dict("records"), 2):
            paper, ours = (first[whose] - second[whose] for whose in ("paper", "ours"))
            pairs += paper != 0
            reverse += [f"{first[across]} and {second[across]} ({group})"] * (
                paper != 0 and paper * ours <= 0
            )
    if not pairs:
        return ""
    agreeing = pairs - len(reverse)
    shown = "; ".join([*reverse[:4], *[f"and {len(reverse) - 4} more"] * (len(reverse) > 4)])
    others = f"; other way round: {shown}" * bool(reverse)
    tau = f" (Kendall {(agreeing - len(reverse)) / pairs:+.2f})" * (pairs >= _PAIRS)
    return (
        f"order: {agreeing} of {counted(pairs, 'pair')} of {across}s as in the paper{tau}{others}"
    )


def write(table: Table, result: Stored, folder: Path) -> Path:
    """Write `table.md`, `table.csv` and `table.png`; returns the first."""
    found = rows_of(table, result)
    write_atomically(folder / "table.csv", found.to_csv(index=False))
    write_atomically(folder / "table.md", f"# {table.name}\n\n{markdown(table, result)}\n")
    draw(table, found, folder / "table.png")
    return folder / "table.md"


def draw(table: Table, found: pandas.DataFrame, path: Path) -> None:
    """Draw the rows of a table over its columns: ours filled, the paper's hollow."""
    from matplotlib.figure import Figure

    rows = found.row.unique()
    columns = found.column.unique()
    figure = Figure(figsize=(max(6.0, 0.8 * len(columns) + 3), 4.5), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        own = found[found.row == row].set_index("column").reindex(columns)
        shift = 0 if table.x else 0.6 * (place / max(len(rows) - 1, 1) - 0.5)
        for name, spread, filled in (("ours", "spread", True), ("paper", "paper_spread", False)):
            line, face, label = ("-", f"C{place}", row) if filled else (":", "none", None)
            style: dict[str, Any] = {
                "fmt": "o" + line * bool(table.x),
                "color": f"C{place}",
                "mfc": face,
                "capsize": 2,
            }
            axes.errorbar(
                np.arange(len(columns)) + shift,
                own[name],
                own[spread].fillna(0.0),
                label=label,
                **style,
            )
    axes.set_xticks(
        range(len(columns)),
        columns,
        rotation=0 if table.x else 30,
        ha="center" if table.x else "right",
    )
    axes.set(
        xlabel=table.x or "", ylabel=f"{table.metric.replace('_', ' ')}{', %' * table.percent}"
    )
    axes.legend(fontsize="small", title="filled: ours, hollow: paper", title_fontsize="small")
    figure.savefig(path, dpi=120)


def page(tables: Mapping[str, Table]) -> str:
    """Write docs/reproductions.md: its text, what each stored table agrees in with its paper,
    and the tables.
    """
    lines = [(papers() / "page.md").read_text(encoding="utf-8") + HEAD]
    sections = []
    for result in stored():
        if (table := tables.get(result["table"])) is None:
            continue  # of another paper
        anchor = f"{table.name}-{result['scale']}"
        agreed = order(table, result).removeprefix("order: ").replace(" as in the paper", "")
        source = "; ".join((table.source, *other_data(result)))
        why = table.why.get(result["scale"], "-")
        row = [f"[{table.name}](#{anchor})", result["scale"], source, agreed or "-", why]
        lines.append(f"| {' | '.join(row)} |")
        sections.append(f"## {anchor}\n\n{markdown(table, result)}\n")
    return "\n".join([*lines, "", *sections])
