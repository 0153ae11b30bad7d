"""Conversion of the columns of a table to inputs (numbers, dates and words), the same in training
and prediction.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Bool, Float

from fedjax_ssl.data.dataset import Names, Reading, in_one_form
from fedjax_ssl.data.reading.own import (
    MARKS,
    Findings,
    as_numbers,
    no_column,
    numbered,
    some,
    without_marks,
)

if TYPE_CHECKING:  # takes long to import
    import pandas

Missing = Literal["refuse", "median", "drop"]
# Deviation of a feature over its rounding to single precision; a smaller one is rounded away.
FAR = 1e3
MOST_LEVELS = 50  # most words of a one-hot encoded column
FEW = 30  # fewer examples may be in any order by chance
ISO = "ISO8601"  # default date format, as in `pandas.to_datetime`


@dataclasses.dataclass(frozen=True)
class CellOptions:
    """Settings for reading the cells of a user's table.

    Attributes:
        codes: columns of numbers that are one-hot encoded, like words.
        dates: columns of dates.
        date_format: their format for `pandas.to_datetime`, such as %d.%m.%Y.
        decimal: decimal separator.
        missing: rows with missing cells: an error; filled in by the median of the training examples
            (words by the most frequent one); or left out and counted.
        missing_marks: texts of a missing cell besides the empty one, in any case.
    """

    codes: Names = ()
    dates: Names = ()
    date_format: str = ISO
    decimal: Literal[".", ","] = "."
    missing: Missing = "refuse"
    missing_marks: Names = MARKS


@dataclasses.dataclass(frozen=True)
class Feature:
    """Conversion of one column of a table to inputs."""

    name: str
    kind: Literal["number", "date", "words"] = "number"
    # ^ type of its cells; a date is read as days since 1970
    form: str = ""  # date format, for `pandas.to_datetime`
    levels: Names = ()
    # ^ words that occur in training; each is an input, 1 if the cell has it
    fill: float = 0.0
    # ^ value for a missing cell, if `TableReading.missing` is median: the median of the training
    # examples, or the place of the most frequent word

    def values(self, cells: "pandas.Series", decimal: str = ".") -> Float[np.ndarray, " n"]:
        """Read cells as numbers, and words as places among the levels; NaN if a cell is missing or
        does not fit.
        """
        if self.kind == "number":
            return as_numbers(cells, decimal)
        if self.kind == "date":
            return _days(cells, self.form)
        places = {level: place for place, level in enumerate(self.levels)}
        return cells.map(in_one_form).map(places).to_numpy(np.float64)


@dataclasses.dataclass(frozen=True)
class TableReading(Reading):
    """Conversion of the rows of a table to inputs."""

    roles: dict[str, str]  # role -> name of its column
    missing: Missing = "refuse"  # treatment of rows with missing cells
    marks: Names = MARKS  # texts of missing cells, besides the empty one
    codes: Names = ()  # columns of numbers that are one-hot encoded, like words
    dates: Names = ()  # columns of dates
    date_format: str = ISO  # their format, for `pandas.to_datetime`
    decimal: str = "."  # decimal separator
    features: tuple[Feature, ...] = ()  # input columns, in their order

    def __post_init__(self) -> None:
        # JSON stores a feature as a dictionary.
        read = (one if isinstance(one, Feature) else Feature(**one) for one in self.features)
        object.__setattr__(self, "features", tuple(read))

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs."""
        return [
            f"{one.name}={level}" if one.levels else one.name
            for one in self.features
            for level in one.levels or ("",)
        ]

    @property
    def learned(self) -> dict[str, str]:
        """Describe statistics learned from all training rows: {statistic -> how to do without
        it}.
        """
        words = [one.name for one in self.features if one.levels]
        found = {}
        if self.missing == "median":
            found["medians of columns"] = "fill in missing cells, or give data.missing=drop"
        if words:
            found[f"words of {', '.join(words)}"] = (
                "write columns of 0 and 1 for words that everybody knows, or give "
                f"data.ignore={','.join(words)}"
            )
        return found

    def read(self, table: "pandas.DataFrame", findings: Findings) -> tuple[np.ndarray, np.ndarray]:
        """Read the rows of a table; other columns are ignored.

        Args:
            table: table from `read_table`, with columns in any order.
            findings: for problems, and notes of unknown words and missing cells.

        Returns:
            Inputs, float32 [n, inputs], and the mask of used rows, bool [n].
        """
        blocks = [np.zeros((len(table), 0))]
        gaps = dict[str, np.ndarray]()
        for feature in self.features:
            if feature.name not in table:
                findings.problems.append(no_column(feature.name, table))
                continue
            cells = without_marks(table[feature.name], self.marks)
            values = feature.values(cells, self.decimal)
            gap = (cells == "").to_numpy()
            if len(wrong := np.flatnonzero(np.isnan(values) & ~gap)):
                self._tell(feature, cells.iloc[wrong[0]], some(wrong, table.index), findings)
            if gap.any():
                gaps[feature.name] = gap
            values = np.where(gap, feature.fill, values)[:, None]
            blocks.append(values == np.arange(len(feature.levels)) if feature.levels else values)
        return np.concatenate(blocks, axis=1).astype(np.float32), self._used(gaps, table, findings)

    def _tell(self, feature: Feature, cell: str, rows: str, findings: Findings) -> None:
        """Report a cell that does not fit its column."""
        told = f"column {feature.name!r} holds {cell!r} in {rows}, which "
        if feature.kind == "words":
            findings.notes.append(f"{told}is no word that training knew; its inputs are 0 there")
            return
        kind = f"date of the form {feature.form}" if feature.kind == "date" else "number"
        marks = ",".join((*self.marks, cell))
        findings.problems.append(
            f"{told}is no {kind}; write one there, or, for the whole column, "
            f"data.missing_marks={marks} (it means a missing one), data.codes={feature.name} (an "
            f"input for each word), data.dates={feature.name}, data.decimal=, or "
            f"data.ignore={feature.name}"
        )

    def _used(
        self, gaps: dict[str, np.ndarray], table: "pandas.DataFrame", findings: Findings
    ) -> np.ndarray:
        """Report missing cells by column; return the mask of used rows."""
        full = ~np.any([*gaps.values(), np.zeros(len(table), bool)], axis=0)
        if full.all():
            return full
        told = (
            f"{(~full).sum():,} of {len(table):,} rows have missing cells, first "
            f"{table.index[full.argmin()]}; by column: "
            f"{', '.join(f'{name} {gap.sum():,}' for name, gap in gaps.items())}"
        )
        if self.missing == "refuse" or not (self.missing == "median" or full.any()):
            findings.problems.append(
                f"{told}; fill them in, or train with data.missing=median, which takes the median "
                "of the training examples (of words the most frequent one), or with "
                "data.missing=drop, which leaves these rows out"
            )
        else:
            filled = (
                "filled in with the median of the training examples, of words with the most "
                "frequent one"
            )
            findings.notes.append(
                f"{told}; {filled if self.missing == 'median' else 'these rows are left out'}"
            )
        return full | (self.missing == "median")


def fit(
    table: "pandas.DataFrame",
    names: Sequence[str],
    train: np.ndarray,
    reading: TableReading,
    findings: Findings,
) -> TableReading:
    """Choose the conversion of columns to inputs, from their cells in the training examples.

    Args:
        table: table from `read_table`.
        names: input columns.
        train: bool [n], rows from which levels and medians are taken.
        reading: everything but the features.
        findings: for problems and notes.

    Returns:
        The reading with its features.
    """
    features = []
    for name in names:
        cells = without_marks(table[name], reading.marks)
        feature = kind_of(name, cells[train & (cells != "")], reading, findings)
        values = feature.values(cells, reading.decimal)
        known = values[train & np.isfinite(values)]
        if not len(known):
            findings.problems.append(
                f"column {name!r} is missing in all training examples; leave it out with "
                f"data.ignore={name}"
            )
            continue
        if rounded_away(known):
            findings.problems.append(
                f"column {name!r} lies so far from 0 that single precision loses differences; "
                f"subtract a number that everybody knows: table[{name!r}] -= {known[0]:.10g}"
            )
        fill = 0.0
        if reading.missing == "median":
            most_frequent = np.bincount(known.astype(int)).argmax() if feature.levels else None
            fill = float(np.median(known) if most_frequent is None else most_frequent)
        features.append(dataclasses.replace(feature, fill=fill))
    kinds = {
        "columns of words, one-hot encoded": [
            f"{one.name} ({len(one.levels)})" for one in features if one.levels
        ],
        "columns of dates, taken as days": [
            f"{one.name} ({one.form})" for one in features if one.form
        ],
    }
    findings.notes += [f"{kind}: {', '.join(found)}" for kind, found in kinds.items() if found]
    return dataclasses.replace(reading, features=tuple(features))


def rounded_away(values: Float[np.ndarray, "n *features"]) -> Bool[np.ndarray, "*features"]:
    """Return whether single precision rounds away differences between the values of a feature."""
    return np.ptp(values - values.astype(np.float32), axis=0) > values.std(axis=0) / FAR


def kind_of(
    name: str, present: "pandas.Series", reading: TableReading, findings: Findings
) -> Feature:
    """Return the kind of a column: as the options say, words if it has no number, otherwise
    numbers.
    """
    if name in reading.dates:
        return Feature(name, "date", reading.date_format)
    numbers = np.isfinite(as_numbers(present, reading.decimal))
    if name not in reading.codes and (numbers.any() or present.empty):
        return Feature(name)
    if name not in reading.codes and np.isfinite(as_numbers(present, ",")).all():
        findings.problems.append(
            f"column {name!r} holds numbers with a decimal comma, such as {present.iloc[0]!r}; "
            "give data.decimal=, or write them with a point"
        )
        return Feature(name)
    _, levels = numbered(present.map(in_one_form).tolist())
    once = len(levels) == len(present)
    if len(levels) > MOST_LEVELS or (once and len(present) >= FEW):
        most = "each of them once" if once else f"more than {MOST_LEVELS}"
        findings.problems.append(
            f"column {name!r} holds {len(levels):,} different words, such as {present.iloc[0]!r}, "
            f"{most}, too many for an input each; leave it out with data.ignore={name}, or say "
            f"what it is: data.dates={name} (with data.date_format), data.client_column={name}, "
            f"data.group_column={name}"
        )
    return Feature(name, "words", levels=levels)


def identifiers(names: Sequence[str], x: Float[np.ndarray, "n features"]) -> list[str]:
    """Find inputs that differ in every example and always rise or always fall, a sentence each."""
    steps = np.diff(x, axis=0)
    sorted_too = (steps > 0).all(axis=0) | (steps < 0).all(axis=0)
    return [
        f"{names[column]!r} differs in every example and is sorted as these are: an identifier "
        "says nothing about new examples; leave it out (of a table with "
        f"data.ignore={names[column]})"
        for column in np.flatnonzero(sorted_too & (len(x) >= FEW)).tolist()
    ]


def _days(cells: "pandas.Series", form: str) -> Float[np.ndarray, " n"]:
    """Read dates as days since 1970, NaN for other cells."""
    import pandas

    found = pandas.to_datetime(cells, format=form, errors="coerce", utc=True)
    return (found - pandas.Timestamp(0, tz="UTC")).dt.total_seconds().to_numpy() / 86400
