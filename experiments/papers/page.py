"""Writes the chapter of docs/results.md on the papers: what they claim, and the stored tables."""

import shlex
from collections.abc import Mapping, Sequence

from experiments.papers import claims, results
from experiments.papers.marks import MEANINGS
from experiments.papers.results import Result
from experiments.papers.table import Table
from fedjax_ssl.report.numbers import TELLING

HEAD = """## The papers' tables

What six papers claim, and what stored runs say of it. A claim is **shown** where at least three common
seeds have a 95 % interval of the differences by seed without zero, in every column; a claim about
unlabelled data also needs a lead over the same method with a weight of 0 on its unlabelled loss, and
the labels alone beside it. An opponent at chance, or with less than half the accuracy of the labels
alone, counts as untrained. The largest scale with enough seeds decides. `paper` has the paper's
settings, for a GPU; `medium` and `small` are for two cores, `smoke` for a try: at those only the order
of rows can be the paper's. Where data or labels are others than the paper's, no number of the paper
stands beside ours.

    fedjax-ssl reproduce --list                              # tables, and which have results
    fedjax-ssl reproduce fedul-table1                        # its cells, data, differences, stored results
    fedjax-ssl reproduce fedul-table1 --run --scale small --data mnist=mnist.npz

`--data NAME=FILE.npz` takes arrays `x_train`, `y_train`, `x_test`, `y_test` in place of a dataset. A
paper of your own is a file like `experiments/papers/tables/fedul.toml`, read by `--papers FILE.toml`."""


def chapter(tables: Mapping[str, Table], asserted: Sequence[claims.Claim]) -> list[str]:
    """Write the parts of the chapter.

    Args:
        tables: by name.
        asserted: what the papers claim.
    """
    found = [one for one in results.stored() if one.table in tables]
    rows = [claims.judge(claim, tables, found) for claim in asserted]
    told = [one for one in found if _tells(tables[one.table], one)]
    anchors = [claims.anchor_of(one.table, one.scale) for one in told]
    others = [f"{one.table} ({one.scale})" for one in found if one not in told]
    parts = [HEAD, "\n".join(claims.markdown(rows, anchors))]
    if others:
        parts.append(
            "Tables with fewer than three seeds and no number of the paper beside them say "
            f"nothing yet; `fedjax-ssl reproduce TABLE` prints them: {', '.join(others)}."
        )
    return parts + [section(tables[one.table], one) for one in told]


def _tells(table: Table, result: Result) -> bool:
    """Say if a reader learns something: from enough seeds, or beside the paper's numbers."""
    if result.scale == "paper":
        return bool(results.rows_of(table, result).paper.notna().any())
    return any(len(cell.values) >= TELLING for cell in result.cells)


def section(table: Table, result: Result) -> str:
    """Write a table, what it shows, where it was measured and by which commands."""
    origins = list(dict.fromkeys(cell.origin for cell in result.cells))
    devices = ", ".join(dict.fromkeys(origin.device or "" for origin in origins))
    commits = ", ".join(dict.fromkeys((origin.commit or "")[:7] for origin in origins))
    shows = table.why.get(result.scale) or results.order(table, result)
    reduced = table.reduced_at(result.scale)
    marks = {results.marks_of(table, result.scale, cell) for cell in result.cells}
    said = [
        f"{shows[:1].upper()}{shows[1:]}." * bool(shows),
        *(f"[{mark}]: {MEANINGS[mark]}." for mark in sorted(set("".join(marks)))),
        f"Reduced: {reduced}." * bool(reduced),
        f"Measured: {results.count_in_words(table, result)}; {devices}, commits {commits}.",
    ]
    return "\n\n".join(
        [
            f"### {table.name}-{result.scale}",
            results.grid(table, result),
            " ".join(filter(None, said)),
            "\n".join(f"    {origin.command}" for origin in origins),
        ]
    )


def to_run(table: Table, found: Sequence[Result]) -> list[str]:
    """List the columns of a table that are to be run as a whole at the paper's scale, by their
    commands, with how many of their cells are there.

    Args:
        table: the table.
        found: its stored results.
    """
    there = {
        cell.place
        for result in found
        if result.scale == "paper"
        for cell in result.cells
        if cell.values
    }
    lines = []
    for column, rows in table.wanted.items():
        have = sum((row, column) in there for row in rows)
        words = ["fedjax-ssl", "reproduce", table.name, "--run", "--scale", "paper", "--store"]
        command = shlex.join([*words, "--columns", column, "--rows", *rows])
        lines.append(f"{have} of {len(rows)} cells there: {command}")
    return lines
