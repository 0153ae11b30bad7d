"""What a paper claims, and what the stored results say of it."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_ssl.errors import ConfigError, counted
from fedjax_ssl.reproduce import results
from fedjax_ssl.reproduce.marks import CHANCE, DIVERGED
from fedjax_ssl.reproduce.results import Measured, Result
from fedjax_ssl.reproduce.table import Table, names_of
from fedjax_ssl.shipped import shipped_papers

Place = tuple[str, str]  # row and column
SHOWN = "shown"
PARTLY = "partly"
NOT = "not shown"
NOT_RUN = "not run"
STATES = (SHOWN, PARTLY, NOT, NOT_RUN)  # the best first
_LOWER = (
    "error",
    "s2c",
    "c2s",
    "gflop",
    "megabytes",
)  # parts of the names of metrics that should be low
_SHOWN_CELLS = 8


class Pair(NamedTuple):
    """Two cells of a table, the first of which a paper says is better."""

    table: str
    first: Place
    second: Place | float  # a cell, or a number
    level: float | None = None  # points by which the first may be worse: as good, not better

    @property
    def places(self) -> list[Place]:
        """Cells of the pair."""
        return [self.first, self.second] if isinstance(self.second, tuple) else [self.first]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of a paper: better cells and worse ones, by which it stands or falls.

    Example:
        >>> from fedjax_ssl.reproduce.claims import Claim, above
        >>> claim = Claim(
        ...     paper="Mine", text="ours is best", source="Table 1",
        ...     pairs=above("mine-table1", "ours", ["theirs"], ["5 labels"]),
        ... )
        >>> claim.pairs[0].second
        ('theirs', '5 labels')
    """

    paper: str
    text: str
    source: str  # table or section
    pairs: Sequence[Pair] = ()
    proof: str = ""  # a test or page of the project that shows it, where no table does
    proof_scale: str = "a test"  # or what data
    lacks: str = ""  # why it is not shown: what was checked, or is missing

    def __post_init__(self) -> None:
        if not self.pairs and not self.proof and not self.lacks:
            raise ConfigError(
                f"the claim {self.text!r} names no cells, no proof and nothing that it lacks"
            )


class Row(NamedTuple):
    """What is known of a claim."""

    claim: Claim
    state: str
    scale: str  # of the results that say most; empty without any
    held: int  # pairs
    compared: int
    numbers: str
    tables: Sequence[str]  # whose results these are


def load_claims(paths: Sequence[Path] | None = None) -> list[Claim]:
    """Read the claims of papers, in the order of their files.

    Args:
        paths: Python files that may have `CLAIMS`; by default those that are shipped.
    """
    files = shipped_papers() if paths is None else paths
    return [claim for path in files for claim in names_of(path).get("CLAIMS", ())]


def above(
    table: str,
    row: str,
    others: Iterable[str],
    columns: Iterable[str],
    level: float | None = None,
) -> list[Pair]:
    """Pair a row with others, in every column."""
    rows = list(others)
    return [
        Pair(table, (row, column), (other, column), level) for column in columns for other in rows
    ]


def ahead(
    table: str,
    column: str,
    others: Iterable[str],
    rows: Iterable[str],
    level: float | None = None,
) -> list[Pair]:
    """Pair a column with others, in every row."""
    columns = list(others)
    return [Pair(table, (row, column), (row, other), level) for row in rows for other in columns]


def row_of(claim: Claim, tables: Mapping[str, Table], found: Sequence[Result]) -> Row:
    """Judge a claim by stored results alone.

    A pair holds where the difference of the means is larger than the larger standard error, or,
    of cells that should be as good, where the first is not worse by more than is said. A claim is
    "shown" at a scale where everything that it names was compared in some place and all pairs
    hold, "partly" where some hold. Cells at chance, or whose training diverged, show nothing.

    Args:
        claim: the claim.
        tables: all tables by name.
        found: stored results.
    """
    rows = [_at_scale(claim, tables, found, scale) for scale in ("paper", "small")]
    best = min(rows, key=lambda row: (STATES.index(row.state), -row.held))
    if best.state == NOT_RUN and claim.proof:
        return best._replace(state=SHOWN, scale=claim.proof_scale)
    return best


def _at_scale(
    claim: Claim, tables: Mapping[str, Table], found: Sequence[Result], scale: str
) -> Row:
    cells = {
        (result.table, cell.place): cell
        for result in found
        for cell in result.cells
        if result.scale == scale and cell.values
    }
    named = set[tuple[str, Place | float]]()
    compared = dict[Pair, bool]()
    for pair in claim.pairs:
        named.add(_opponent(pair))
        first, *second = (cells.get((pair.table, place)) for place in pair.places)
        if first is None or None in second or _shows_nothing(first):
            continue
        other = second[0] if second else None
        if other is not None and _shows_nothing(other):
            continue
        compared[pair] = _holds(pair, tables[pair.table], first, other)
    held = sum(compared.values())
    if not compared:
        state = NOT_RUN
    elif held == len(compared) and {_opponent(pair) for pair in compared} == named:
        state = SHOWN
    else:
        state = PARTLY if held else NOT
    numbers = _numbers(compared, tables, cells, scale)
    used = list(dict.fromkeys(pair.table for pair in compared))
    return Row(claim, state, scale * bool(compared), held, len(compared), numbers, used)


def _opponent(pair: Pair) -> tuple[str, Place | float]:
    """Name what a pair compares with, whatever the row or column in which it does."""
    if not isinstance(pair.second, tuple):
        return pair.table, pair.first
    same_column = pair.first[1] == pair.second[1]
    return pair.table, (pair.second[0], "") if same_column else ("", pair.second[1])


def _shows_nothing(cell: Measured) -> bool:
    return any(letter in one for one in cell.marks for letter in (DIVERGED, CHANCE))


def _holds(pair: Pair, table: Table, first: Measured, second: Measured | None) -> bool:
    factor = 100 if table.percent else 1
    metrics = {cell.place: cell.metric for cell in table.make_cells("paper")}
    sign = -1 if any(part in metrics[pair.first] for part in _LOWER) else 1
    values = [np.asarray(first.values)]
    if isinstance(pair.second, float):
        other = pair.second / factor
    else:
        assert second is not None, "a pair of cells has both"
        values.append(np.asarray(second.values))
        other = float(values[1].mean())
    difference = sign * (float(values[0].mean()) - other) * factor
    if pair.level is not None:
        return difference >= -pair.level
    errors = [one.std(ddof=1) / math.sqrt(one.size) for one in values if one.size > 1]
    return difference > max(errors, default=0.0) * factor


def _numbers(
    compared: Iterable[Pair],
    tables: Mapping[str, Table],
    cells: Mapping[tuple[str, Place], Measured],
    scale: str,
) -> str:
    """Write the numbers of the cells that were compared, by what they have in common."""
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for pair in compared:
        table = tables[pair.table]
        across = not isinstance(pair.second, tuple) or pair.first[1] == pair.second[1]
        for place in pair.places:
            row, column = (
                table.name_at(scale, kind, name)
                for kind, name in zip(("rows", "columns"), place, strict=True)
            )
            own, shared = (row, column) if across else (column, row)
            values = np.asarray(cells[pair.table, place].values) * (100 if table.percent else 1)
            spread = values.std(ddof=1) if values.size > 1 else math.nan
            named = own if across else f"at {own}"
            text = f"{named} {results.number_in_words(float(values.mean()), float(spread))}"
            groups.setdefault((pair.table, shared), {})[own] = text
    words = [
        f"{shared}: {', '.join(list(texts.values())[:_SHOWN_CELLS])}"
        for (_, shared), texts in groups.items()
    ]
    shown = "; ".join(words[:2])
    return f"{shown}; and {len(words) - 2} more" if len(words) > 2 else shown


def markdown(rows: Sequence[Row]) -> list[str]:
    """Write the lines of the table of claims, with what each lacks."""
    states = [row.state for row in rows]
    count = ", ".join(f"{states.count(state)} {state}" for state in STATES)
    lines = [
        f"Of {counted(len(rows), 'claim')}: {count}.",
        "",
        "| claim | paper | shown | scale | numbers | made by |",
        "|---|---|---|---|---|---|",
    ]
    return lines + [line(row) for row in rows]


def line(row: Row, page: str = "") -> str:
    """Write a claim as a row of Markdown; `page` is where the tables are, seen from its file."""
    claim = row.claim
    state = row.state
    if row.compared:
        state += f", {row.held} of {counted(row.compared, 'pair')}"
    numbers = [row.numbers] if row.numbers else []
    if claim.lacks and state != SHOWN:
        numbers.append(claim.lacks)
    made = ", ".join(
        f"[`fedjax-ssl reproduce {name} --run --scale {row.scale}`]({page}#{name}-{row.scale})"
        for name in row.tables
    )
    cells = (
        claim.text,
        f"{claim.paper}, {claim.source}",
        state,
        row.scale or "-",
        ". ".join(numbers) or "-",
        made or claim.proof or "-",
    )
    return f"| {' | '.join(text.replace('|', results.BAR) for text in cells)} |"
