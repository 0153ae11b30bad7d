"""What a paper claims, and what the stored results say of it, by the rule of our own report."""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas

from experiments.papers import results
from experiments.papers.marks import CHANCE, DIVERGED
from experiments.papers.results import Measured, Result
from experiments.papers.table import PAPERS, Table, read_paper, without_unlabelled
from fedjax_ssl.errors import ConfigError, counted
from fedjax_ssl.report.numbers import TELLING, compare
from fedjax_ssl.report.numbers import Cell as Difference

Place = tuple[str, str]  # row and column
Column = tuple[str, str, str]  # table, "column" or "row", and the name of it that two cells share
SHOWN = "shown"
PARTLY = "shown in part of the columns"
NOT = "not shown"
FEW = "too few seeds"
NOT_RUN = "not run"
STATES = (SHOWN, PARTLY, NOT, FEW, NOT_RUN)
_LOWER = (
    "error",
    "s2c",
    "c2s",
    "gflop",
    "megabytes",
)  # parts of the names of metrics that should be low
_UNTRAINED = 0.5  # of the labelled-only baseline's accuracy: an opponent below it has not learned

# what two cells say
_AHEAD = "ahead"
_LEVEL = "not ahead"
_NO_OPPONENT = "untrained"


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


def pairs_of(
    table: str,
    over: Sequence[str | float],
    row: str = "",
    columns: Sequence[str] = (),
    column: str = "",
    rows: Sequence[str] = (),
    level: float | None = None,
) -> dict[Column, list[Pair]]:
    """Pair a `row` with others or with numbers in every one of `columns`, or a `column` with others
    in every one of `rows`; by what both cells share.
    """
    found = dict[Column, list[Pair]]()
    for shared in columns or rows:
        cells: list[Place | float] = [
            one if not isinstance(one, str) else (one, shared) if row else (shared, one)
            for one in over
        ]
        first = (row, shared) if row else (shared, column)
        kind = "column" if row else "row"
        found[table, kind, shared] = [Pair(table, first, one, level) for one in cells]
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of a paper: better cells and worse ones, by which it stands or falls.

    Example:
        >>> from experiments.papers.claims import Claim
        >>> claim = Claim(
        ...     paper="Mine", text="ours is best", source="Table 1",
        ...     pairs=[dict(table="mine-table1", row="ours", over=["theirs"], columns=["5 labels"])],
        ... )
        >>> claim.columns["mine-table1", "column", "5 labels"][0].second
        ('theirs', '5 labels')
    """

    paper: str
    text: str
    source: str  # table or section
    pairs: Sequence[Mapping[str, Any]] = ()  # arguments of `pairs_of`
    unlabelled: bool = False  # it is about unlabelled data: the method has a control
    baseline: str = ""  # row that learns from labels alone; says which opponents are trained
    setting: str = ""  # of ours, in which it is judged; without, in the paper's, at any scale
    proof: str = ""  # a test or page of the project that shows it, where no table does
    proof_scale: str = "a test"  # or what data
    proof_seeds: int = TELLING  # of the page
    lacks: str = ""  # why it is not shown: what was checked, or is missing

    def __post_init__(self) -> None:
        if not self.pairs and not self.proof and not self.lacks:
            raise ConfigError(
                f"the claim {self.text!r} names no cells, no proof and nothing that it lacks"
            )
        if self.unlabelled and not self.baseline:
            raise ConfigError(f"the claim {self.text!r} names no labelled-only baseline")

    @property
    def columns(self) -> dict[Column, list[Pair]]:
        """Pairs by column: the paper's; for a claim about unlabelled data also of each method with
        its control, and with the baseline, which only has to be there.
        """
        found = dict[Column, list[Pair]]()
        for part in self.pairs:
            for shared, own in pairs_of(**part).items():
                found.setdefault(shared, []).extend(own)
        if not self.unlabelled:
            return found
        for (table, _, column), pairs in found.items():
            for first in dict.fromkeys(pair.first for pair in pairs):
                others = {pair.second for pair in pairs if pair.first == first}
                pairs.append(Pair(table, first, (without_unlabelled(first[0]), column)))
                if (self.baseline, column) not in others:
                    pairs.append(Pair(table, first, (self.baseline, column), math.inf))
        return found


class Compared(NamedTuple):
    """What stored results say of a pair."""

    pair: Pair
    said: str
    difference: Difference | None = None  # to the second, in points; more is better


class Row(NamedTuple):
    """What is known of a claim."""

    claim: Claim
    state: str
    scale: str  # of the results; empty without any
    held: int  # columns
    columns: int
    numbers: str
    tables: Sequence[str]  # whose results these are


def load_claims(paths: Sequence[Path] | None = None) -> list[Claim]:
    """Read the claims of papers, in the order of their files.

    Args:
        paths: papers, as of `load_tables`.
    """
    papers = map(read_paper, paths or PAPERS)
    return [
        Claim(paper=paper.get("name", ""), **claim)
        for paper in papers
        for claim in paper.get("claims", ())
    ]


def judge(claim: Claim, tables: Mapping[str, Table], found: Sequence[Result]) -> Row:
    """Judge a claim by stored results alone.

    A pair holds where at least three common seeds have a paired 95 % t interval of the difference
    without zero, on the claimed side; of cells that should be as good, an interval above what the
    first may be worse. A column holds where all its pairs hold, with the method ahead of its own
    control and a labelled-only baseline beside it. A claim is "shown" where all its columns hold.
    The largest scale whose seeds suffice decides.

    Args:
        claim: the claim.
        tables: all tables by name.
        found: stored results.
    """
    rows = []
    for scale in ("paper", "medium", "small"):
        cells = {
            (result.table, cell.place): cell
            for result in found
            for cell in result.cells
            if result.scale == scale and result.table in tables and cell.values
            if claim.setting or not results.other_than_paper(tables[result.table], scale, cell)
            if DIVERGED not in "".join(cell.marks)
        }
        states = []
        texts = []
        used = dict[str, None]()
        for column, pairs in claim.columns.items():
            table = tables[column[0]]
            compared = [_compare(pair, table, cells, claim.baseline) for pair in pairs]
            said = {one.said for one in compared}
            asked = {one.said for one in compared if one.pair.level != math.inf}
            if said == {_AHEAD}:
                state = SHOWN
            elif _LEVEL in asked:
                state = NOT
            elif FEW in asked:
                state = FEW
            else:
                state = NOT if _AHEAD in asked else NOT_RUN
            states.append(state)
            if said != {NOT_RUN}:
                texts.append(_numbers(column, compared, table, cells, scale))
            if any(one.difference for one in compared):
                used[table.name] = None
        held = states.count(SHOWN)
        state = min(states, key=STATES.index, default=NOT_RUN)
        if 0 < held < len(states):
            state = PARTLY
        text = "; ".join(texts)
        rows.append(Row(claim, state, scale * bool(texts), held, len(states), text, [*used]))
    row = next((row for row in rows if row.state not in (FEW, NOT_RUN)), None)
    row = row or min(rows, key=lambda row: STATES.index(row.state))
    if row.state == NOT_RUN and claim.proof:
        state = SHOWN if claim.proof_seeds >= TELLING else FEW
        return row._replace(state=state, scale=claim.proof_scale, numbers="")
    return row


def _compare(
    pair: Pair, table: Table, cells: Mapping[tuple[str, Place], Measured], baseline: str
) -> Compared:
    metrics = {cell.place: cell.metric for cell in table.make_cells("paper")}
    factor = 100 if table.percent else 1
    sign = -1 if any(part in metrics[pair.first] for part in _LOWER) else 1
    first, *second = (cells.get((pair.table, place)) for place in pair.places)
    if first is None or None in second:
        return Compared(pair, NOT_RUN)
    ours = sign * factor * first.by_seed
    theirs = pandas.Series(pair.second if not second else math.nan, ours.index) * sign
    for other in filter(None, second):
        theirs = sign * factor * other.by_seed
        lowest = cells.get((pair.table, (baseline, other.column)))
        if CHANCE in "".join(other.marks) or (
            lowest and _accuracy(other, sign) < _UNTRAINED * _accuracy(lowest, sign)
        ):
            return Compared(pair, _NO_OPPONENT)
    difference = compare(ours, theirs)
    if difference.low is None or difference.pairs < TELLING:
        return Compared(pair, FEW, difference)
    holds = difference.low > (0 if pair.level is None else -pair.level)
    return Compared(pair, _AHEAD if holds else _LEVEL, difference)


def _accuracy(cell: Measured, sign: int) -> float:
    """Return the mean accuracy, which is one minus an error."""
    mean = float(cell.by_seed.mean())
    return mean if sign > 0 else 1 - mean


def _numbers(
    column: Column,
    compared: Sequence[Compared],
    table: Table,
    cells: Mapping[tuple[str, Place], Measured],
    scale: str,
) -> str:
    """Write the differences of a column: "IID LC: FedMatch 33.9, over FixMatch +6.8 ± 1.2"."""
    _, kind, shared = column
    own = 0 if kind == "column" else 1  # what names a cell: its row or its column
    words: dict[str, list[str]] = {}
    for one in compared:
        first, *others = (
            table.name_at(scale, ("rows", "columns")[own], place[own]) for place in one.pair.places
        )
        if (cell := cells.get((one.pair.table, one.pair.first))) is not None:
            mean = float(cell.by_seed.mean()) * (100 if table.percent else 1)
            first += f" {results.number_in_words(mean, math.nan)}"
        second = (others or [f"{one.pair.second:g}"])[0]
        said = f"{second} {one.said}"
        if one.difference is not None and one.difference.difference is not None:
            points = round(one.difference.difference, 1) + 0.0  # of -0.0 too
            said = f"over {second} {points:+.1f}"
            if one.said == FEW:
                said += f" ({counted(one.difference.pairs, 'seed')})"
            elif one.difference.low is not None and one.difference.high is not None:
                said += f" ± {(one.difference.high - one.difference.low) / 2:.1f}"
        words.setdefault(first, []).append(said)
    name = table.name_at(scale, f"{kind}s", shared)
    return f"{name}: " + "; ".join(f"{first}, {', '.join(texts)}" for first, texts in words.items())


def markdown(rows: Sequence[Row], anchors: Collection[str] = ()) -> list[str]:
    """Write the lines of the table of claims, with what each lacks.

    Args:
        rows: the claims.
        anchors: of tables that stand on the page, as of `anchor_of`.
    """
    states = [row.state for row in rows]
    count = ", ".join(f"{states.count(state)} {state}" for state in STATES if state in states)
    lines = [
        f"Of {counted(len(rows), 'claim')}: {count}.",
        "",
        "| claim | paper | shown | differences in points, or what is missing | from |",
        "|---|---|---|---|---|",
    ]
    return lines + [line(row, anchors) for row in rows]


def state_in_words(row: Row) -> str:
    """Write "shown", "shown in 1 of 2 columns" or why not."""
    return f"shown in {row.held} of {row.columns} columns" if row.state == PARTLY else row.state


def anchor_of(table: str, scale: str) -> str:
    """Return the name by which links find a table at a scale."""
    return f"{table}-{scale}".replace(".", "")


def line(row: Row, anchors: Collection[str] = ()) -> str:
    """Write a claim as a row of Markdown."""
    claim = row.claim
    numbers = [f"in a setting of ours, {claim.setting}"] if claim.setting else []
    numbers += [row.numbers] if row.numbers else []
    if claim.lacks and row.state != SHOWN:
        numbers.append(claim.lacks)
    made = [anchor_of(name, row.scale) for name in row.tables]
    made = [f"[{name}](#{name})" if name in anchors else name for name in made]
    cells = (
        claim.text,
        f"{claim.paper}, {claim.source}",
        state_in_words(row),
        "; ".join(numbers) or "-",
        ", ".join(made) or claim.proof or "-",
    )
    return f"| {' | '.join(text.replace('|', results.BAR) for text in cells)} |"
