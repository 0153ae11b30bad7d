"""Tables of a user's own as data frames: comma-separated values as spreadsheets write them, and Parquet.

The index of a table says in words where each row stands, for messages: "patients.csv, line 7".
"""

import codecs
import csv
import difflib
import importlib
import io
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_ssl.data.reading.problems import SHOWN, BadData, DatasetUnavailable, Findings
from fedjax_ssl.registry import did_you_mean

if TYPE_CHECKING:  # takes long to import
    import pandas

PARQUET = (".parquet", ".pq")
SEPARATED = (".csv", ".tsv", ".txt")
DELIMITERS = ",;\t"
SIMILAR = 0.7  # ratio of two names of columns, as difflib has it


def read_table(path: Path) -> "pandas.DataFrame":
    """Read a table whose first line names the columns.

    Comma, semicolon or tabulator, whichever the first line has most of; UTF-8 with or without byte order mark, or
    UTF-16 with one. Empty lines and columns without a name (as pandas writes for its index) are left out.

    Args:
        path: `.parquet` or `.pq` (needs pyarrow), anything else is read as separated text.

    Returns:
        The table: of separated text all columns are text without blanks at the ends of cells.

    Raises:
        DatasetUnavailable: the file is not there.
        BadData: it is no table; says the line.
    """
    if not path.is_file():
        raise DatasetUnavailable(f"{path} is not {'a file' if path.exists() else 'there'}; give a CSV or Parquet file.")
    frame = _read_parquet(path) if path.suffix.lower() in PARQUET else _read_text(path)
    names = [name for name in frame.columns if name and not name.startswith("__index")]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadData(path, f"column {twice[0]!r} is there {names.count(twice[0])} times; name each column once")
    if frame.empty:
        raise BadData(path, "has no rows; the first line names the columns, every other one is an example")
    return frame[names]


def as_text(column: "pandas.Series") -> list[str]:
    """Take a column as text: whole numbers without a point, truth values as 0 and 1, nothing as ""."""
    if column.dtype.kind not in "iuf":
        if (present := column.dropna()).map(type).eq(bool).all() and len(present):
            column = column.map({True: "1", False: "0"})
        return ["" if gap else str(value).strip() for value, gap in zip(column, column.isna(), strict=True)]
    known = column[np.isfinite(column)]
    whole = bool((known == np.rint(known)).all())
    return [
        "" if np.isnan(value) else str(int(value) if whole and np.isfinite(value) else value)
        for value in column.tolist()
    ]


def as_numbers(column: "pandas.Series") -> tuple[np.ndarray, int | None]:
    """Take a column as float64 [n], NaN where a cell is empty, and the first row that is no number, if any."""
    if column.dtype.kind in "iufb":
        return column.to_numpy(np.float64), None
    found = np.empty(len(column))
    for row, cell in enumerate(column):
        try:
            found[row] = float("nan" if cell in ("", None) else cell)
        except (TypeError, ValueError):
            return found, row
    return found, None


def read_roles(
    table: "pandas.DataFrame", roles: Mapping[str, str], needed: Collection[str], findings: Findings, where: str = ""
) -> "pandas.DataFrame":
    """Take the columns of roles as text; find those that are not there, and likely misspelt ones.

    Args:
        table: the table.
        roles: role -> name of its column; the option `ROLE_column` names it.
        needed: roles without which the table is of no use.
        findings: for problems, and for columns that may have been meant for a role as notes.
        where: the beginning of the problems' sentences.

    Returns:
        The columns that are there, named by their roles.
    """
    import pandas

    for role, name in roles.items():
        if name not in table and (name != role or role in needed):
            asked = "" if name == role else f", which data.{role}_column names"
            findings.problems.append(
                f"{where}there is no column {name!r}{asked}.{did_you_mean(name, list(table))} Columns: "
                f"{', '.join(table)}; give the right one as data.{role}_column"
            )
    for column in table:
        # Of short names one letter is too much: "site" is no "set".
        missing = [name for name in roles.values() if name not in table]
        for name in missing if column not in roles.values() else ():
            plain, close = column.casefold(), difflib.get_close_matches(column.casefold(), [name], 1, SIMILAR)
            if (close and len(name) > 3) or plain in (name.casefold(), f"{name}s".casefold()):
                findings.notes.append(
                    f"column {column!r} is not taken for {name!r}, which is not there; did you mean {name!r}?"
                )
                break
    texts = {role: as_text(table[name]) for role, name in roles.items() if name in table}
    return pandas.DataFrame(texts, index=table.index)


def _read_text(path: Path) -> "pandas.DataFrame":
    import pandas  # read_csv fills short lines up, and does not say where a row of several lines stands

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
        raise BadData(path, f"line {reader.line_num} is no line of a table: {error}") from error
    header = rows[0] if rows else []
    wrong = [place for place, cells in enumerate(rows) if len(cells) != len(header)]
    if wrong:
        named = ", ".join(f"line {lines[place]} has {len(rows[place])}" for place in wrong[:SHOWN])
        more = f", and {len(wrong) - SHOWN:,} more lines are off" if len(wrong) > SHOWN else ""
        quoted = f"put text that holds a {delimiter!r} in quotation marks"
        raise BadData(path, f"the first line has {len(header)} cells, but {named}{more}; {quoted}")
    places = [f"{path.name}, line {line}" for line in lines[1:]]
    return pandas.DataFrame(rows[1:], index=places, columns=header, dtype=object)


def _read_parquet(path: Path) -> "pandas.DataFrame":
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise BadData(path, "Parquet needs pyarrow: pip install 'fedjax_ssl[table]', or save it as CSV") from error
    try:
        frame = parquet.read_table(path).to_pandas(ignore_metadata=True)
    except (ValueError, OSError) as error:  # pyarrow's own errors are among them
        raise BadData(path, f"is no readable Parquet file, or it is cut short: {error}") from error
    frame.index = [f"{path.name}, row {row}" for row in range(1, len(frame) + 1)]
    return frame
