"""Encode the columns of a table as inputs: numbers, dates and words, in training and for prediction alike."""

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from fedjax_ssl.checks import LARGEST
from fedjax_ssl.data.dataset import Reading
from fedjax_ssl.data.reading.columns import numbered
from fedjax_ssl.data.reading.problems import SHOWN, Findings, some
from fedjax_ssl.data.reading.tables import COMMA, as_cells, as_numbers, as_text
from fedjax_ssl.registry import did_you_mean

if TYPE_CHECKING:  # takes long to import
    import pandas

Missing = Literal["refuse", "median", "drop"]
MARKS = ("?", "-", "NA", "N/A", "NaN", "null")  # of missing cells, beside empty ones
FAR = 1e3  # deviations from 0 to the mean, from which on single precision would lose too much
MOST_LEVELS = 50  # words that are one-hot encoded by default
FEW = 20  # examples, of which fewer may be in any order by chance
DATES = ("ISO8601", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y")


@dataclasses.dataclass(frozen=True)
class Feature:
    """One column of a table as inputs.

    Attributes:
        name: in the table.
        kind: what its cells hold; a date is days since 1970.
        form: how a date is written, as `pandas.to_datetime` takes it.
        levels: words that training knew; each is an input, 1 where the cell holds it.
        center: subtracted in double precision, before single precision would round the differences away.
        fill: value of a missing cell: the training examples' median; of words the place of their most frequent one.
    """

    name: str
    kind: Literal["number", "date", "words"] = "number"
    form: str = ""
    levels: tuple[str, ...] = ()
    center: float = 0.0
    fill: float = 0.0

    @property
    def inputs(self) -> list[str]:
        """Name its inputs."""
        return [f"{self.name}={level}" for level in self.levels] or [self.name]

    def values(self, cells: Sequence[str]) -> tuple[Float[np.ndarray, " n"], Int[np.ndarray, " m"]]:
        """Read cells as numbers, NaN where one is missing, -1 for an unknown word; and the rows that do not fit."""
        if self.kind == "number":
            values, wrong = as_numbers(cells)
            return np.where(np.abs(values) <= LARGEST, values, np.nan), wrong
        if self.kind == "words":
            place = {"": np.nan} | {level: float(number) for number, level in enumerate(self.levels)}
            values = np.array([place.get(_word(cell), -1.0) for cell in cells])
            return values, np.flatnonzero(values < 0)
        values = _days(cells, self.form)
        return values, np.flatnonzero(np.isnan(values) & (np.array(cells) != ""))


@dataclasses.dataclass(frozen=True)
class TableReading(Reading):
    """Says how the rows of a table became inputs."""

    features: tuple[Feature, ...]  # columns that are inputs, in their order
    roles: dict[str, str]  # role -> name of the column that says it
    missing: Missing  # what becomes of rows with missing cells
    marks: tuple[str, ...]  # of missing cells, beside empty ones

    def __post_init__(self) -> None:
        read = [feature if isinstance(feature, Feature) else Feature(**feature) for feature in self.features]
        object.__setattr__(self, "features", tuple(read))

    @property
    def inputs(self) -> list[str]:
        """Name the inputs."""
        return [name for feature in self.features for name in feature.inputs]

    def read(
        self, table: "pandas.DataFrame", findings: Findings
    ) -> tuple[Float[np.ndarray, "n features"], Bool[np.ndarray, " n"]]:
        """Read the rows of a table, whose other columns are passed over.

        Args:
            table: as `read_table` gives it, columns in any order.
            findings: for problems, and notes of unknown words and missing cells.

        Returns:
            Inputs, float32, and which rows are used.
        """
        inputs: list[np.ndarray] = []
        gaps, commas = {}, []
        for column in self.features:
            if column.name not in table:
                hint = did_you_mean(column.name, list(table))
                findings.problems.append(f"there is no column {column.name!r}.{hint} Columns: {', '.join(table)}")
                continue
            cells = as_cells(as_text(table[column.name]), self.marks)
            values, wrong = column.values(cells)
            if len(wrong):
                self._tell(column, cells, wrong, table.index, findings)
            elif column.kind == "number" and any("," in cell for cell in cells):
                commas.append(column.name)
            gap = np.isnan(values)
            gap[wrong] = False
            if gap.any():
                gaps[column.name] = gap
                values = np.where(gap, column.fill, values)
            places = np.arange(len(column.levels))
            inputs.append(values[:, None] == places if column.levels else (values - column.center)[:, None])
        if commas:
            findings.notes.append(f"a comma is taken as the decimal point in {', '.join(commas)}")
        x = np.concatenate(inputs or [np.zeros((len(table), 0))], axis=1).astype(np.float32)
        return x, self._used(gaps, table, findings)

    def _tell(
        self, column: Feature, cells: Sequence[str], wrong: np.ndarray, places: Sequence[str], findings: Findings
    ) -> None:
        """Tell of cells that do not fit a column."""
        cell, rows = cells[wrong[0]], some(wrong, places)
        if column.kind == "words":
            findings.notes.append(
                f"column {column.name!r} holds words that training did not know, such as {cell!r}, in {rows}; its "
                "inputs are 0 there"
            )
            return
        remedy = (
            f"mend it, or train with data.missing_marks={','.join((*self.marks, cell))} where it means a missing one, "
            f"with data.words={column.name} for a one-hot encoding, or data.ignore={column.name}"
        )
        if re.fullmatch(COMMA, cell):
            remedy = "write decimals with a point, and thousands without a comma"
        kind = "number" if column.kind == "number" else f"date like the others ({column.form})"
        findings.problems.append(f"column {column.name!r} holds {cell!r} in {rows}, which is no {kind}; {remedy}")

    def _used(self, gaps: dict[str, np.ndarray], table: "pandas.DataFrame", findings: Findings) -> np.ndarray:
        """Tell of missing cells, by column; give the rows that are used."""
        some_gap = np.any([*gaps.values(), np.zeros(len(table), bool)], axis=0)
        if not gaps:
            return ~some_gap
        rows, drop = np.flatnonzero(some_gap), self.missing == "drop"
        marks = {text or "empty" for name, gap in gaps.items() for text in as_text(table[name][gap])}
        text = (
            f"{len(rows):,} of {len(table):,} rows have missing cells ({', '.join(sorted(marks)[:SHOWN])}), first "
            f"{table.index[rows[0]]}; by column: {', '.join(f'{name} {gap.sum():,}' for name, gap in gaps.items())}"
        )
        if self.missing == "refuse" or (drop and len(rows) == len(table)):
            findings.problems.append(
                f"{text}; fill them in, or train with data.missing=median, which takes the median of the training "
                "examples (of words the most frequent one), or with data.missing=drop, which leaves these rows out"
            )
        else:
            filled = "filled in with the median of the training examples, of words with the most frequent one"
            findings.notes.append(f"{text}; {'these rows are left out' if drop else filled}")
        return ~some_gap if drop else np.ones(len(table), bool)


def fit(
    table: "pandas.DataFrame",
    names: Sequence[str],
    train: Bool[np.ndarray, " n"],
    words: Sequence[str],
    max_levels: int,
    reading: TableReading,
    findings: Findings,
) -> TableReading:
    """Choose how columns become inputs, by their cells in the training examples.

    Args:
        table: as `read_table` gives it.
        names: columns that are inputs.
        train: rows whose levels, medians and means count.
        words: columns of numbers that are codes, one-hot encoded as words are.
        max_levels: words that a column may hold.
        reading: roles, missing and marks.
        findings: for problems and notes.

    Returns:
        The reading with its columns.
    """
    columns = []
    for name in names:
        cells = as_cells(as_text(table[name]), reading.marks)
        column = kind_of(name, cells, train, name in words, max_levels, findings)
        values, _ = column.values(cells)
        known = values[train & (values >= 0 if column.levels else np.isfinite(values))]
        if not len(known):
            if reading.missing == "median":
                findings.problems.append(
                    f"column {name!r} is missing in all training examples; leave it out with data.ignore={name}"
                )
        elif column.levels:
            column = dataclasses.replace(column, fill=float(np.bincount(known.astype(int)).argmax()))
        else:
            far = 0 < known.std() * FAR < abs(mean := float(known.mean()))
            column = dataclasses.replace(column, fill=float(np.median(known)), center=mean if far else 0.0)
        columns.append(column)
    kinds = {
        "columns of words, one-hot encoded": [f"{c.name} ({len(c.levels)})" for c in columns if c.levels],
        "columns of dates, taken as days": [f"{c.name} ({c.form})" for c in columns if c.kind == "date"],
        "far from 0, so that their mean is subtracted in double precision": [c.name for c in columns if c.center],
    }
    findings.notes += [f"{kind}: {', '.join(found)}" for kind, found in kinds.items() if found]
    return dataclasses.replace(reading, features=tuple(columns))


def kind_of(
    name: str, cells: Sequence[str], train: np.ndarray, codes: bool, max_levels: int, findings: Findings
) -> Feature:
    """Tell numbers, dates and words apart; a few cells that are no numbers do not make words of the others."""
    present = [cell for cell in cells if cell]
    if not codes:
        if 2 * len(as_numbers(cells)[1]) <= len(present):
            return Feature(name)
        forms = [form for form in DATES if np.isfinite(_days(present, form)).all()]
        if len(forms) > 1:
            findings.problems.append(
                f"column {name!r} holds dates that may be day/month or month/day, such as {present[0]!r}; write them "
                f"as 2020-12-31, or leave the column out with data.ignore={name}"
            )
        if forms:
            return Feature(name, "date", forms[0])
    known = [_word(cell) for cell, row in zip(cells, train, strict=True) if row]
    _, levels = numbered(known)
    if len(levels) > max_levels or len(levels) == len(known) >= FEW:
        most = "one in every row" if len(levels) == len(known) else f"more than data.max_levels={max_levels}"
        findings.problems.append(
            f"column {name!r} holds {len(levels):,} different words, such as {present[0]!r}, {most}, too many for a "
            f"one-hot encoding; leave it out with data.ignore={name}"
        )
    return Feature(name, "words", levels=levels)


def identifiers(names: Sequence[str], x: Float[np.ndarray, "n features"], labels: Int[np.ndarray, " n"]) -> list[str]:
    """Find inputs that differ in every example and are sorted as these are, or as their classes: a sentence each."""
    found = []
    for name, values in zip(names, x.T, strict=True):
        if len(values) < FEW or len(set(values[:FEW].tolist())) < FEW:
            continue
        order, steps = np.argsort(values), np.diff(values)
        if (np.diff(values[order]) > 0).all():
            whole = (values == np.rint(values)).all() and 1 < len(np.unique(labels)) < FEW
            blocks = np.count_nonzero(np.diff(labels[order])) + 1
            if (steps > 0).all() or (steps < 0).all() or (whole and blocks == len(np.unique(labels))):
                found.append(
                    f"{name!r} differs in every example and is sorted as these or their classes are: an identifier "
                    f"says nothing about new examples; leave it out (of a table with data.ignore={name})"
                )
    return found


def _word(cell: str) -> str:
    """Write a code as spreadsheets do where no cell is empty: without ".0"."""
    return re.sub(r"^([+-]?\d+)\.0+$", r"\1", cell)


def _days(cells: Sequence[str], form: str) -> Float[np.ndarray, " n"]:
    """Read dates as days since 1970, NaN where a cell is none."""
    import pandas

    found = pandas.to_datetime(pandas.Series(cells, dtype=object), format=form, errors="coerce", utc=True)
    return (found - pandas.Timestamp(0, tz="UTC")).dt.total_seconds().to_numpy() / 86400
