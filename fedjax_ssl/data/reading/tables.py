"""Tables of a user's own as data frames: CSV in UTF-8, and Parquet.

The index of a table says in words where each row stands, for messages: "patients.csv, line 7".
"""

import csv
import gzip
import importlib
import io
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_ssl.checks import LARGEST
from fedjax_ssl.data.reading.names import cell_text
from fedjax_ssl.data.reading.problems import SHOWN, BadData, DatasetUnavailable, Findings
from fedjax_ssl.errors import how_to_install
from fedjax_ssl.registry import did_you_mean

if TYPE_CHECKING:  # takes long to import
    import pandas

PARQUET = (".parquet", ".pq")
SEPARATED = (".csv", ".tsv", ".txt")
DELIMITERS = ",;\t"
CLASSES = 20  # more different values are not listed as possible classes


def is_table(path: Path) -> bool:
    """Tell by its name whether a file is a table: `.csv`, `.tsv`, `.txt` (all also with `.gz`),
    or Parquet.
    """
    return path.name.lower().removesuffix(".gz").endswith((*SEPARATED, *PARQUET))


def read_table(path: Path, columns: Sequence[str] | None = None) -> "pandas.DataFrame":
    """Read a table whose first line names the columns.

    Comma, semicolon or tabulator, whichever the first line has most of. Empty lines and columns
    without a name (as pandas writes for its index) are left out.

    Args:
        path: `.parquet` or `.pq` (needs pyarrow), anything else is read as separated text, of `.gz`
            unpacked.
        columns: their names, for a file of text in which no line may name them.

    Returns:
        The table: of separated text all columns are text without blanks at the ends of cells.

    Raises:
        DatasetUnavailable: the file is not there.
        BadData: it is no table; says the line.
    """
    if not path.is_file():
        raise DatasetUnavailable(
            f"{path} is not {'a file' if path.exists() else 'there'}; give a CSV or Parquet file."
        )
    is_parquet = path.suffix.lower() in PARQUET
    frame = _read_parquet(path) if is_parquet else _read_text(path, columns)
    names = [name for name in frame.columns if name and not name.startswith("__index")]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        times = names.count(twice[0])
        raise BadData(path, f"column {twice[0]!r} is there {times} times; name each column once")
    if frame.empty:
        raise BadData(
            path, "has no rows; the first line names the columns, every other one is an example"
        )
    return frame[names]


def no_column(name: str, there: Iterable[str], asked: str = "") -> str:
    """Say that a table has no column of this name."""
    return (
        f"there is no column {name!r}{asked}.{did_you_mean(name, list(there))} Columns: "
        f"{', '.join(there)}"
    )


def as_text(column: "pandas.Series") -> list[str]:
    """Take a column as text: whole numbers without a point, truth values as 0 and 1, nothing as
    "".
    """
    gaps = column.isna()
    values = column[~gaps].tolist()
    if all(isinstance(value, bool) for value in values):
        values = list(map(int, values))
    texts = iter(map(cell_text, values))
    return ["" if gap else next(texts) for gap in gaps]


def as_numbers(cells: Iterable[str], decimal: str = ".") -> np.ndarray:
    """Take text as float64 [n], true and false as 1 and 0, NaN where it is no number of single
    precision.
    """
    known = {"true": "1", "false": "0"}

    def number(cell: str) -> float:
        try:
            return float(known.get(cell.casefold(), cell.replace("_", "?").replace(decimal, ".")))
        except ValueError:
            return np.nan

    values = np.array([number(cell) for cell in cells])
    return np.where(np.abs(values) <= LARGEST, values, np.nan)


def read_roles(
    table: "pandas.DataFrame",
    roles: Mapping[str, str],
    needed: Collection[str],
    findings: Findings,
    where: str = "",
) -> "pandas.DataFrame":
    """Take the columns of roles as text, and find those that are not there.

    Args:
        table: the table.
        roles: role -> name of its column; the option `ROLE_column` names it.
        needed: roles without which the table is of no use.
        findings: for problems; a note where a column is called almost as a role that is not there.
        where: the beginning of the problems' sentences.

    Returns:
        The columns that are there, named by their roles.
    """
    import pandas

    for role, name in roles.items():
        if name in table:
            continue
        if name != role or role in needed:
            asked = "" if name == role else f", which data.{role}_column names"
            findings.problems.append(
                f"{where}{no_column(name, table, asked)}{columns_of_few_values(table, role)}"
            )
        findings.notes += [
            f"column {column!r} is not taken for {name!r}, which is not there; did you mean "
            f"{name!r}?"
            for column in table
            if column.casefold() in (name.casefold(), f"{name}s".casefold())
        ]
    texts = {role: as_text(table[name]) for role, name in roles.items() if name in table}
    return pandas.DataFrame(texts, index=table.index)


def possible_labels(table: "pandas.DataFrame") -> dict[str, int]:
    """Count the values of the columns whose values repeat, and which may be labels or clients."""
    counts = {name: len(set(as_text(table[name])) - {""}) for name in table}
    most = min(CLASSES, len(table) // 2)
    return {name: count for name, count in counts.items() if 1 < count <= most}


def columns_of_few_values(table: "pandas.DataFrame", role: str) -> str:
    """Say how to name the column of a role, and which have few values, with their number."""
    few = ", ".join(f"{name} ({count})" for name, count in possible_labels(table).items())
    listed = f"; columns of few values, and how many these are: {few}" * bool(few)
    return f"; name the right one with --data.{role}_column=COLUMN{listed}"


def _read_text(path: Path, columns: Sequence[str] | None) -> "pandas.DataFrame":
    # read_csv fills short lines up, and does not say where a row of several lines stands
    import pandas

    content = path.read_bytes()
    try:
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise BadData(
            path,
            f"line {line} is not UTF-8; write the table so, with the encoding that it has, such as "
            f"cp1252 or utf-16: pandas.read_csv({path.name!r}, encoding='cp1252')"
            f".to_csv({path.name!r}, index=False)",
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise BadData(path, f"is no gzip file, or it is cut short: {error}") from error
    first = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(DELIMITERS, key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows = []
    lines = []
    line = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                rows.append([cell.strip() for cell in cells])
                lines.append(line)
            line = reader.line_num + 1
    except csv.Error as error:
        raise BadData(path, f"line {reader.line_num} is no line of a table: {error}") from error
    if columns and not (rows and rows[0][0].strip("'").isidentifier()):
        header: list[str] = list(columns)
    else:
        header = rows.pop(0) if rows else []
        lines = lines[1:]
    pairs = zip(lines, rows, strict=True)
    wrong = [f"line {at} has {len(cells)}" for at, cells in pairs if len(cells) != len(header)]
    if wrong:
        more = f", and {len(wrong) - SHOWN:,} more lines are off" * (len(wrong) > SHOWN)
        raise BadData(
            path,
            f"the first line has {len(header)} cells, but {', '.join(wrong[:SHOWN])}{more}; put "
            f"text that holds a {delimiter!r} in quotation marks",
        )
    places = [f"{path.name}, line {line}" for line in lines]
    return pandas.DataFrame(rows, index=places, columns=header, dtype=object)


def _read_parquet(path: Path) -> "pandas.DataFrame":
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise BadData(
            path, f"Parquet needs pyarrow: {how_to_install('table')}; or save it as CSV"
        ) from error
    try:
        frame = parquet.read_table(path).to_pandas(ignore_metadata=True, integer_object_nulls=True)
    except (ValueError, OSError) as error:  # pyarrow's own errors are among them
        raise BadData(path, f"is no readable Parquet file, or it is cut short: {error}") from error
    frame.index = [f"{path.name}, row {row}" for row in range(1, len(frame) + 1)]
    return frame
