"""Tables of a user's own as data frames: comma-separated values as spreadsheets write them, and
Parquet.

The index of a table says in words where each row stands, for messages: "patients.csv, line 7".
"""

import codecs
import csv
import difflib
import gzip
import importlib
import io
import re
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_ssl.checks import LARGEST
from fedjax_ssl.data.dataset import in_one_form
from fedjax_ssl.data.reading.names import MARKS, cell_text
from fedjax_ssl.data.reading.problems import SHOWN, BadData, DatasetUnavailable, Findings
from fedjax_ssl.errors import how_to_install
from fedjax_ssl.registry import did_you_mean

if TYPE_CHECKING:  # takes long to import
    import pandas

PARQUET = (".parquet", ".pq")
SEPARATED = (".csv", ".tsv", ".txt")
DELIMITERS = ",;\t"
_LOOKED_AT = 1000  # lines that tell whether the first one holds names
_NO_NAMES = {mark.casefold() for mark in MARKS}
SIMILAR = 0.7  # ratio of two names of columns, as difflib has it
# 1,5 is one and a half; 1,234 may be a thousand
COMMA = r"[+-]?\d*,\d+"
BEYOND = r"[<>≤≥]\s*=?\s*(\d.*)"  # a limit of detection
THOUSANDS = r"[+-]?[1-9]\d{0,2},\d{3}"


def is_table(path: Path) -> bool:
    """Tell by its name whether a file is a table: `.csv`, `.tsv`, `.txt` (all also with `.gz`),
    or Parquet.
    """
    return path.name.lower().removesuffix(".gz").endswith((*SEPARATED, *PARQUET))


def read_table(
    path: Path, findings: Findings | None = None, columns: Sequence[str] | None = None
) -> "pandas.DataFrame":
    """Read a table whose first line names the columns.

    Comma, semicolon or tabulator, whichever the first line has most of; UTF-8 with or without byte
    order mark, UTF-16 with one, else Windows-1252 (Latin-1). Empty lines and columns without a name
    (as pandas writes for its index) are left out.

    Args:
        path: `.parquet` or `.pq` (needs pyarrow), anything else is read as separated text, of `.gz`
            unpacked.
        findings: for a note where the text is not UTF-8.
        columns: their names, for a file of text in which no line may name them.

    Returns:
        The table: of separated text all columns are text without blanks at the ends of cells. A
        column without a name is its `attrs["index"]`.

    Raises:
        DatasetUnavailable: the file is not there.
        BadData: it is no table; says the line.
    """
    if not path.is_file():
        raise DatasetUnavailable(
            f"{path} is not {'a file' if path.exists() else 'there'}; give a CSV or Parquet file."
        )
    if path.suffix.lower() in PARQUET:
        frame = _read_parquet(path)
    else:
        frame = _read_text(path, findings or Findings(), columns)
    names = [name for name in frame.columns if name and not name.startswith("__index")]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        times = names.count(twice[0])
        raise BadData(path, f"column {twice[0]!r} is there {times} times; name each column once")
    if frame.empty:
        raise BadData(
            path, "has no rows; the first line names the columns, every other one is an example"
        )
    unnamed = [name for name in frame.columns if name not in names]
    table = frame[names]
    if len(unnamed) == 1:
        table.attrs["index"] = as_text(frame[unnamed[0]])
    return table


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


def as_numbers(cells: Sequence[str]) -> np.ndarray:
    """Take text as float64 [n], true and false as 1 and 0, NaN where it is no number of single
    precision.

    A comma is the decimal point where no number of the column has a point, unless all may be
    thousands.
    """
    commas = [cell for cell in cells if "," in cell]
    has_point = any("." in cell for cell in cells)
    decimal = not has_point and all(re.fullmatch(COMMA, cell) for cell in commas)
    if decimal and not all(re.fullmatch(THOUSANDS, cell) for cell in commas):
        cells = [cell.replace(",", ".") for cell in cells]

    def number(cell: str) -> float:
        try:
            return float({"true": "1", "false": "0"}.get(cell.casefold(), cell.replace("_", "?")))
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
            told = no_column(name, table, asked)
            hint = f"give the right one as data.{role}_column"
            if role == "label" and (marked := one_hot(table)):
                hint = (
                    f"the columns {', '.join(marked)} mark one class each: write its name into "
                    f"one column, as data.label_column={name}"
                )
            findings.problems.append(f"{where}{told}; {hint}")
    missing = [name for name in roles.values() if name not in table]
    for column in table:
        plain = column.casefold()
        for name in missing if column not in roles.values() else ():
            # Of short names one letter is too much: "site" is no "set".
            close = len(name) > 3 and difflib.get_close_matches(plain, [name], 1, SIMILAR)
            if close or plain in (name.casefold(), f"{name}s".casefold()):
                findings.notes.append(
                    f"column {column!r} is not taken for {name!r}, which is not there; did you "
                    f"mean {name!r}?"
                )
                break
    texts = {role: as_text(table[name]) for role, name in roles.items() if name in table}
    return pandas.DataFrame(texts, index=table.index)


def one_hot(table: "pandas.DataFrame") -> list[str]:
    """List columns of 0 and 1, at least three, one of which is 1 in every row; none: an empty
    list.
    """
    texts = {name: [in_one_form(text) for text in as_text(table[name])] for name in table}
    marked = [name for name, cells in texts.items() if set(cells) == {"0", "1"}]
    rows = zip(*(texts[name] for name in marked), strict=True)
    return marked if len(marked) > 2 and all(row.count("1") == 1 for row in rows) else []


def _decoded(path: Path, findings: Findings) -> str:
    """Read a file as text."""
    content = path.read_bytes()
    try:
        if path.suffix.lower() == ".gz":
            content = gzip.decompress(content)
        if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return content.decode("utf-16")
        if b"\0" in content:
            raise ValueError("it holds zero bytes")
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise BadData(path, f"is not UTF-8 or UTF-16 text, or it is cut short: {error}") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        findings.notes.append(
            f"line {line} is not UTF-8; the table is read as Windows-1252 (Latin-1)"
        )
        return content.decode("cp1252", errors="replace")


def _read_text(path: Path, findings: Findings, columns: Sequence[str] | None) -> "pandas.DataFrame":
    # read_csv fills short lines up, and does not say where a row of several lines stands
    import pandas

    text = _decoded(path, findings)
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
        if _is_example(header, rows):
            raise BadData(
                path,
                f"the first line ({', '.join(header[:SHOWN])}{', ...' * (len(header) > SHOWN)}) "
                "looks like an example; put a line with the names of the columns above it, names "
                "that are numbers with a letter (x0.5)",
            )
    pairs = zip(lines, rows, strict=True)
    wrong = [f"line {at} has {len(cells)}" for at, cells in pairs if len(cells) != len(header)]
    if wrong:
        named = ", ".join(wrong[:SHOWN])
        more = f", and {len(wrong) - SHOWN:,} more lines are off" if len(wrong) > SHOWN else ""
        quoted = f"put text that holds a {delimiter!r} in quotation marks"
        there = f"the first line has {len(header)} cells"
        if columns:
            there = f"there are {len(header)} columns"
        raise BadData(path, f"{there}, but {named}{more}; {quoted}")
    places = [f"{path.name}, line {line}" for line in lines]
    return pandas.DataFrame(rows, index=places, columns=header, dtype=object)


def _is_example(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether a first line is an example and no names, by what stands below each of its cells.

    A word above numbers is a name, and so is one above few words of which it is none; a word that
    stands below itself is none. Numbers alone are names where they are whole and follow each other,
    as pandas writes them.
    """
    numbers = []
    words = 0
    repeated = False
    columns = zip(*rows[:_LOOKED_AT], strict=False)
    for cell, below in zip(first, columns, strict=False):
        if cell == "" or cell.casefold() in _NO_NAMES:
            continue
        known = [one for one in below if one]
        if np.isfinite(as_numbers([cell])[0]):
            numbers.append(cell)
        elif not re.search(r"[^\W\d_]", cell):  # dates
            continue
        elif known and _is_name(cell, known):
            return False
        else:
            words += 1
            repeated |= cell in known
    if not numbers or repeated or not all(one.isdecimal() for one in numbers):
        return bool(numbers)
    follow = np.diff(list(map(int, numbers))) == 1
    return not words and not follow.all()


def _is_name(word: str, below: Sequence[str]) -> bool:
    few = 2 * len(set(below)) <= len(below)
    return bool(np.isfinite(as_numbers(below)).all()) or (few and word not in below)


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
