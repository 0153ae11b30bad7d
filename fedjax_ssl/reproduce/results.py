"""The paper's numbers and ours side by side: read from run folders, kept as small JSON files, written as tables."""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from fedjax_ssl.reproduce.scales import forward_operations
from fedjax_ssl.reproduce.table import Cell, Table, number_of
from fedjax_ssl.runs.files import write_atomically
from fedjax_ssl.runs.stored_run import StoredRun, read_run
from fedjax_ssl.shipped import papers
from fedjax_ssl.sweep import results

_HEAD = """\
# Reproductions

The tables and figures of five papers are data in `experiments/papers`, and one command runs them:

    fedjax-ssl reproduce --list                              # tables, and which have results
    fedjax-ssl reproduce fedul-table1                        # its cells, the data it needs, expected hours here
    fedjax-ssl reproduce fedul-table1 --run --scale small --data mnist=mnist.npz

`smoke` runs every cell for two rounds on stand-in data. `small` is for two cores and an hour at most; every table says
what was reduced, and only the order of rows should be the paper's. `paper` has the paper's own settings, for a GPU.
This page is written by `fedjax-ssl reproduce --page` from the results in `experiments/papers/results`. Tables that
`--list` names and that are not here have no results yet. A number that a paper does not print, or that was not at hand,
is left empty.

To add a paper, write a file like `experiments/papers/fedul.py`; `--papers FILE` reads it from anywhere.

| table | scale | source | pairs in the paper's order | why not |
|---|---|---|---|---|"""
Stored = dict[str, Any]  # a table at a scale, as its JSON file has it


def measure(folder: Path, cell: Cell) -> float | None:
    """Read the number of a cell from the folder of a run; None where the run is not done or has no such number.

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
    if not rows:  # no column of metrics.csv: a number of the summary
        return results.scalars(summary).get(name)
    if value == "best":
        return max(float(row[name]) for row in rows)
    if value == "selected" and "selected_round" in summary:
        rows = [row for row in rows if row["round"] == summary["selected_round"]]
    if isinstance(value, tuple) and value[0] == "round":
        rows = [row for row in rows if row["round"] == value[1]]
    count = value[1] if isinstance(value, tuple) and value[0] == "mean" else 1
    if not rows:
        return None
    return float(np.mean([float(row[name]) for row in rows[-count:]]))


def collect(table: Table, scale: str, found: Sequence[tuple[Cell, list[Path]]], command: str) -> Stored:
    """Gather the numbers of a table.

    Args:
        table: the table.
        scale: at which it was run.
        found: cells, each with the folders of its runs.
        command: as typed.
    """
    summaries = {folder: read_run(folder).summary or {} for _, folders in found for folder in folders}
    first: Mapping[str, Any] = next(filter(None, summaries.values()), {})

    def minutes(folders: Iterable[Path]) -> float:
        done = [summaries[folder] for folder in folders if summaries[folder]]
        return round(sum(one["train_seconds"] + one["compile_seconds"] for one in done) / 60, 2)

    cells = []
    for cell, folders in found:
        values = [value for folder in folders if (value := measure(folder, cell)) is not None]
        rounds = next((summaries[folder]["rounds"] for folder in folders if summaries[folder]), None)
        spent = {"rounds": rounds, "minutes": minutes(folders)}
        cells.append({"row": cell.row, "column": cell.column, "values": values, **spent})
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


def store(result: Stored) -> Path:
    """Keep results beside the papers' files, for `--list` and the page; returns the file."""
    path = papers() / "results" / f"{result['table']}_{result['scale']}.json"
    path.parent.mkdir(exist_ok=True)
    text = json.dumps({**result, "cells": []}, indent=1)
    rows = ",\n".join(f"  {json.dumps(cell)}" for cell in result["cells"])
    write_atomically(path, text.replace('"cells": []', f'"cells": [\n{rows}\n ]') + "\n")
    return path


def rows_of(table: Table, result: Stored) -> Iterator[dict[str, Any]]:
    """List the cells with the paper's number, ours, and the difference; shares times 100 where the table has these."""
    factor = 100 if table.percent else 1
    for cell in result["cells"]:
        values = factor * np.asarray(cell["values"], np.float64)
        numbers = table.paper.get(cell["row"])
        printed = numbers[list(table.columns).index(cell["column"])] if numbers else ""
        paper = number_of(printed) if printed else None
        yield {
            "row": cell["row"],
            "column": cell["column"],
            "paper": None if paper is None else paper[0],
            "paper_spread": None if paper is None else paper[1],
            "ours": float(values.mean()) if len(values) else None,
            "spread": float(values.std(ddof=1)) if len(values) > 1 else None,
            "seeds": len(values),
            "difference": float(values.mean()) - paper[0] if paper is not None and len(values) else None,
            "rounds": cell["rounds"],
            "minutes": cell["minutes"],
        }


def number_in_words(mean: float | None, spread: float | None = None) -> str:
    """Write a number with its spread; small ones with more digits."""
    if mean is None:
        return ""
    digits = 2 if max(abs(mean), spread or 0) < 10 else 1
    return f"{mean:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


def markdown(table: Table, result: Stored) -> str:
    """Write a table in Markdown: ours, the paper's number in brackets, and what the numbers come from."""
    found = {(one["row"], one["column"]): one for one in rows_of(table, result)}
    rows, columns = (list(dict.fromkeys(key[place] for key in found)) for place in (0, 1))
    lines = [["", *columns], ["---", *["---:"] * len(columns)]]
    for row in rows:
        cells = []
        for column in columns:
            one = found.get((row, column))
            ours = number_in_words(one["ours"], one["spread"]) if one else ""
            paper = number_in_words(one["paper"], one["paper_spread"]) if one else ""
            cells.append(f"{ours or '-' * bool(one)}{f' ({paper})' * bool(paper)}")
        lines.append([row, *cells])
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{text}\n\n" + "\n".join(f"- {note}" for note in notes(table, result))


def notes(table: Table, result: Stored) -> list[str]:
    """Say what the numbers of a table are, what was reduced or differs, and where they come from."""
    seeds = sorted({len(cell["values"]) for cell in result["cells"]})
    said = [f"ours, mean and sample deviation of {'/'.join(map(str, seeds))} seeds; in brackets the paper's"]
    if result["scale"] == "small" and table.reduced:
        said.append(f"reduced: {table.reduced}")
    if result["scale"] == "smoke":
        said.append("two rounds on stand-in data: these numbers mean nothing")
    said += [f"differs: {text}" for text in table.differs]
    said += [text] if result["scale"] != "smoke" and (text := order(table, result)) else []
    commit = f", commit {result['commit'][:7]}" if result.get("commit") else ""
    return [*said, f"`{result['command']}`: {result['minutes']:g} minutes of runs on {result['device']}{commit}"]


def order(table: Table, result: Stored) -> str:
    """Say how far the order of rows, or of the points of a single row, is the paper's; empty without two numbers."""
    along = "column" if len(table.rows) > 1 else "row"
    across = "row" if along == "column" else "column"
    agreeing, reversed_pairs = 0, []
    groups: dict[str, list[dict[str, Any]]] = {}
    for one in rows_of(table, result):
        if one["paper"] is not None and one["ours"] is not None:
            groups.setdefault(one[along], []).append(one)
    for group, members in groups.items():
        for first, second in itertools.combinations(members, 2):
            paper, ours = first["paper"] - second["paper"], first["ours"] - second["ours"]
            if paper * ours > 0:
                agreeing += 1
            elif paper:
                reversed_pairs.append(f"{first[across]} and {second[across]} ({group})")
    total = agreeing + len(reversed_pairs)
    if not total:
        return ""
    tau = (agreeing - len(reversed_pairs)) / total
    shown = "; ".join(reversed_pairs[:4]) + (f"; and {len(reversed_pairs) - 4} more" if len(reversed_pairs) > 4 else "")
    others = f"; other way round: {shown}" if reversed_pairs else ""
    return f"order: {agreeing} of {total} pairs of {across}s as in the paper (Kendall {tau:+.2f}){others}"


def write(table: Table, result: Stored, folder: Path) -> Path:
    """Write `table.md`, `table.csv` and `table.png`; returns the first."""
    found = list(rows_of(table, result))
    write_atomically(folder / "table.csv", pandas.DataFrame(found).to_csv(index=False))
    write_atomically(folder / "table.md", f"# {table.name}: {table.title}\n\n{markdown(table, result)}\n")
    draw(table, found, folder / "table.png")
    return folder / "table.md"


def draw(table: Table, found: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the rows of a table over its columns: ours filled, the paper's hollow."""
    from matplotlib.figure import Figure

    columns = list(dict.fromkeys(one["column"] for one in found))
    figure = Figure(figsize=(max(6.0, 0.8 * len(columns) + 3), 4.5), layout="constrained")
    axes = figure.subplots()
    rows = list(dict.fromkeys(one["row"] for one in found))
    for place, row in enumerate(rows):
        own = [one for one in found if one["row"] == row]
        shift = 0 if table.x else 0.6 * (place / max(len(rows) - 1, 1) - 0.5)
        for name, spread, filled in (("ours", "spread", True), ("paper", "paper_spread", False)):
            there = [one for one in own if one[name] is not None]
            axes.errorbar(
                [columns.index(one["column"]) + shift for one in there],
                [one[name] for one in there],
                [one[spread] or 0 for one in there],
                fmt="o" + ("-" if filled else ":") * bool(table.x),
                color=f"C{place}",
                mfc=None if filled else "none",
                capsize=2,
                label=row if filled else None,
            )
    axes.set_xticks(range(len(columns)), columns, rotation=0 if table.x else 30, ha="center" if table.x else "right")
    axes.set_xlabel(table.x or "")
    axes.set_ylabel(f"{table.metric.replace('_', ' ')}{', %' * table.percent}")
    axes.legend(fontsize="small", title="filled: ours, hollow: paper", title_fontsize="small")
    figure.savefig(path, dpi=120)


def page(tables: Mapping[str, Table]) -> str:
    """Write docs/reproductions.md: what each stored table agrees in with its paper, and the tables."""
    lines, sections = [], []
    for result in stored():
        table = tables[result["table"]]
        anchor = f"{table.name}-{result['scale']}"
        agreed = order(table, result).removeprefix("order: ").replace(" as in the paper", "")
        row = [f"[{table.name}](#{anchor})", result["scale"], table.source, agreed or "-", table.why or "-"]
        lines.append(f"| {' | '.join(row)} |")
        sections.append(f"## {anchor}\n\n{table.title}; {table.source}.\n\n{markdown(table, result)}\n")
    return "\n".join([_HEAD, *lines, "", *sections])
