"""Writes docs/reproductions.md from the stored results: what the papers claim, which tables there
are, what is to be run next, and the tables.
"""

import shlex
from collections.abc import Mapping, Sequence

from experiments.papers import claims, results
from experiments.papers.results import Result
from experiments.papers.table import FOLDER, Table

HEAD = "| table | scale | source | pairs in the paper's order | why not |\n|---|---|---|---|---|"
_CLAIMS = "CLAIMS"  # where page.md has the table of claims


def page(tables: Mapping[str, Table], asserted: Sequence[claims.Claim]) -> str:
    """Write the page.

    Args:
        tables: by name.
        asserted: what the papers claim.
    """
    found = results.stored()
    rows = [claims.judge(claim, tables, found) for claim in asserted]
    text = (FOLDER / "page.md").read_text(encoding="utf-8")
    lines = [text.replace(_CLAIMS, "\n".join(claims.markdown(rows)), 1) + HEAD]
    sections = []
    for result in found:
        if (table := tables.get(result.table)) is None:
            continue  # of another paper
        anchor = claims.anchor_of(table.name, result.scale)
        agreed = results.order(table, result).removeprefix("order: ")
        source = "; ".join((table.source, *results.other_data(result)))
        why = table.why.get(result.scale, "-")
        agreed = agreed.replace(" as in the paper", "") or "-"
        row = [f"[{table.name}](#{anchor})", result.scale, source, agreed, why]
        lines.append(f"| {' | '.join(row)} |")
        sections.append(f"## {table.name}-{result.scale}\n\n{results.markdown(table, result)}\n")
    return "\n".join([*lines, "", *to_run(tables, found), *sections])


def to_run(tables: Mapping[str, Table], found: Sequence[Result]) -> list[str]:
    """List the columns that are to be run as a whole at the papers' scale, by their commands, and
    how many of their cells are there.
    """
    lines = []
    for table in tables.values():
        there = {
            cell.place
            for result in found
            if (result.table, result.scale) == (table.name, "paper")
            for cell in result.cells
            if cell.values
        }
        for column, rows in table.wanted.items():
            have = sum((row, column) in there for row in rows)
            state = f"{have} of {len(rows)} cells" if have else "not run yet"
            lines.append(f"| `{command(table, column, rows)}` | {state} |")
    if not lines:
        return []
    head = [
        "## To run next at the papers' scale",
        "",
        "Whole columns, so that methods can be compared. A command that was cut off goes on from "
        "its folder when it is given again; `--scale smoke` in place of `--scale paper --store` "
        "tries it on stand-in data.",
        "",
        "| command | state |",
        "|---|---|",
    ]
    return [*head, *lines, ""]


def command(table: Table, column: str, rows: Sequence[str]) -> str:
    """Write the command that runs and keeps a column."""
    words = ["fedjax-ssl", "reproduce", table.name, "--run", "--scale", "paper", "--store"]
    return shlex.join([*words, "--columns", column, "--rows", *rows])
