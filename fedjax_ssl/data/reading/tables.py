"""Tables of a user's own: comma-separated values as spreadsheets write them, and Parquet."""

import codecs
import csv
import importlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_ssl.data.reading.problems import SHOWN, BadData, DatasetUnavailable

PARQUET = (".parquet", ".pq")
SEPARATED = (".csv", ".tsv", ".txt")
DELIMITERS = ",;\t"


class Sheet(NamedTuple):
    """A table in memory."""

    path: Path
    columns: dict[str, Sequence[str] | np.ndarray]  # by name: text without blanks at its ends, or numbers [n]
    lines: Sequence[int]  # [n], the line of each row in the file, or its number from 1 in a Parquet file
    unit: str  # "line" or "row"

    def where(self, row: int) -> str:
        """The place of a row, in words."""
        return f"{self.path.name}, {self.unit} {self.lines[row]}"


def read_sheet(path: Path) -> Sheet:
    """Reads a table whose first line names the columns.

    Comma, semicolon or tabulator, whichever the first line has most of; UTF-8 with or without byte order mark, or
    UTF-16 with one. Empty lines and columns without a name (as pandas writes for its index) are left out.

    Args:
        path: `.parquet` or `.pq` (needs pyarrow), anything else is read as separated text.

    Returns:
        The table.

    Raises:
        DatasetUnavailable: the file is not there.
        BadData: it is no table; says the line.
    """
    if not path.is_file():
        raise DatasetUnavailable(f"{path} is not {'a file' if path.exists() else 'there'}; give a CSV or Parquet file.")
    return _read_parquet(path) if path.suffix.lower() in PARQUET else _read_text(path)


def as_text(column: Sequence[str] | np.ndarray) -> list[str]:
    """A column as text: whole numbers without a point, missing numbers as ""."""
    if not isinstance(column, np.ndarray):
        return list(column)
    if column.dtype.kind != "f":
        return [str(value) for value in column.tolist()]
    known = np.isfinite(column)
    whole = bool((column[known] == np.rint(column[known])).all())
    found = column.tolist()
    return ["" if np.isnan(x) else str(int(x) if whole and np.isfinite(x) else x) for x in found]


def as_numbers(column: Sequence[str] | np.ndarray) -> tuple[np.ndarray, int | None]:
    """A column as float64 [n], NaN where a cell is empty, and the first row that is no number, if any."""
    if isinstance(column, np.ndarray):
        return column.astype(np.float64), None
    try:
        return np.array([cell or "nan" for cell in column], np.float64), None
    except ValueError:
        return np.empty(0), next(row for row, cell in enumerate(column) if not _is_number(cell or "nan"))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read_text(path: Path) -> Sheet:
    content = path.read_bytes()
    encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadData(
            path, [f"line {line} is not UTF-8; save the table as 'CSV UTF-8', as spreadsheets call it"]
        ) from error
    first = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(DELIMITERS, key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows, lines = [], []
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                rows.append([cell.strip() for cell in cells])
                lines.append(reader.line_num)
    except csv.Error as error:
        raise BadData(path, [f"line {reader.line_num} is no line of a table: {error}"]) from error
    if len(rows) < 2:
        raise BadData(path, ["has no rows; the first line names the columns, every other one is an example"])
    header = rows[0]
    wrong = [place for place, cells in enumerate(rows) if len(cells) != len(header)]
    if wrong:
        named = ", ".join(f"line {lines[place]} has {len(rows[place])}" for place in wrong[:SHOWN])
        raise BadData(
            path,
            [
                f"the first line has {len(header)} cells, but {named}"
                f"{f', and {len(wrong) - SHOWN:,} more lines are off' if len(wrong) > SHOWN else ''}; put text that "
                f"holds a {delimiter!r} in quotation marks"
            ],
        )
    columns: dict[str, Sequence[str] | np.ndarray] = dict(zip(header, zip(*rows[1:], strict=True), strict=True))
    columns.pop("", None)
    _check_header(path, [name for name in header if name])
    return Sheet(path, columns, lines[1:], "line")


def _check_header(path: Path, header: Sequence[str]) -> None:
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise BadData(path, [f"column {twice[0]!r} is there {header.count(twice[0])} times; name each column once"])


def _read_parquet(path: Path) -> Sheet:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise BadData(path, ["Parquet needs pyarrow: pip install 'fedjax_ssl[table]', or save it as CSV"]) from error
    try:
        frame = parquet.read_table(path).to_pandas(ignore_metadata=True)
    except (ValueError, OSError) as error:  # pyarrow's own errors are among them
        raise BadData(path, [f"is no readable Parquet file, or it is cut short: {error}"]) from error
    _check_header(path, list(frame.columns))
    columns = {name: as_column(frame[name]) for name in frame.columns if not name.startswith("__index")}
    if not len(frame):
        raise BadData(path, ["has no rows"])
    return Sheet(path, columns, range(1, len(frame) + 1), "row")


def as_column(series: Any) -> Sequence[str] | np.ndarray:
    """Take a column of pandas as a sheet has it: numbers [n], NaN where there is none, or text."""
    present = series.dropna()
    if len(present) and all(isinstance(value, bool) for value in present):
        series = series.astype(np.float64 if len(present) < len(series) else np.int64)
    if getattr(series.dtype, "kind", "O") in "iuf":
        return series.to_numpy()
    return ["" if missing else str(value).strip() for value, missing in zip(series, series.isna(), strict=True)]
