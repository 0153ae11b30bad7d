"""A user's own files: all faults in one message, names in one form, tables of text, arrays of
`.npz` files.

The index of a table says in words where each row stands, for messages: "patients.csv, line 7".
"""

import csv
import gzip
import importlib
import io
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_ssl.checks import LARGEST
from fedjax_ssl.data.dataset import in_one_form
from fedjax_ssl.errors import UserError, how_to_install
from fedjax_ssl.registry import did_you_mean

if TYPE_CHECKING:  # takes long to import
    import pandas

EMBEDDED = 'load("digits") or load("glyphs")'  # datasets that need no download
Place = Path | str | None  # path of a file or folder; None: the default one
SHOWN = 5  # examples of each kind that a message names


class DatasetUnavailable(RuntimeError):
    """A dataset is neither here nor available, or is damaged; the message says what to do."""


def not_here(
    name: str,
    looked: Iterable[Path | str],
    remedies: Sequence[str],
    tried: Sequence[str] = (),
    instead: str = f"run on data that needs no download: {EMBEDDED}",
    state: str = "here",
    how: str = "downloaded",
) -> DatasetUnavailable:
    """Say that a dataset is not here, what was tried, where it was looked for, and what to do.

    Args:
        name: name of the dataset.
        looked: places that were searched.
        remedies: what to do, a sentence each.
        tried: addresses that failed, and reasons.
        instead: command that works without the dataset.
        state: the missing state: "here", "prepared here".
        how: attempt that failed.
    """
    lines = [f"{name} is not {state}{f' and could not be {how}' if tried else ''}."]
    lines += [f"  tried   {reason}" for reason in tried]
    lines += [f"  looked  {', '.join(map(str, looked))}", "To go on, do one of these:"]
    return DatasetUnavailable(
        "\n".join([*lines, *(f"  - {remedy}" for remedy in (*remedies, instead))])
    )


def given_path(source: str, path: Place, what: str, kind: str = "file") -> Path:
    """Return the path of a user's own data.

    Args:
        source: name of the source.
        path: the user's.
        what: what the path should name, in words.
        kind: "file", or "folder", which may be a file in it, too.

    Raises:
        ValueError: there is none.
        DatasetUnavailable: nothing of this kind is there.
    """
    if path is None:
        raise ValueError(f'load("{source}") needs path= (in a command --data.path=), {what}')
    given = Path(path).expanduser()
    if not (given.is_file() if kind == "file" else given.exists()):
        state = "a file" if given.exists() else "there"
        raise DatasetUnavailable(f"{source}: {given} is not {state}. Give path= {what}.")
    return given


class BadData(UserError):
    """A user's own data cannot be trained on as they are.

    Attributes:
        place: the folder or file.
        problems: faults, a sentence or two each.
        notes: further remarks so far.
    """

    def __init__(self, place: Path | str, problems: str | Sequence[str], notes: Sequence[str] = ()):
        problems = (problems,) if isinstance(problems, str) else tuple(problems)
        self.place = str(place)
        self.problems = problems
        self.notes = tuple(notes)
        if len(self.problems) == 1:
            super().__init__(f"{place}: {self.problems[0]}")
        else:
            listed = "\n".join(f"  - {problem}" for problem in self.problems)
            super().__init__(f"{place} has {len(self.problems)} problems:\n{listed}")


class Findings:
    """Collects problems and notes while data are read, so that a user sees all of them at once.

    Attributes:
        problems: faults that prevent the use of the data.
        notes: skipped parts, and oddities.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []

    def stop(self, place: Path | str) -> None:
        """Raise BadData if there are problems."""
        if self.problems:
            raise BadData(place, self.problems, tuple(dict.fromkeys(self.notes)))


def some(rows: Sequence[int] | np.ndarray, places: Sequence[str]) -> str:
    """Name the places of the first rows, and count the others."""
    named = ", ".join(places[row] for row in rows[:SHOWN])
    return named if len(rows) <= SHOWN else f"{named} and {len(rows) - SHOWN:,} more"


# texts of a missing cell besides the empty one, in any case
MARKS = ("?", "NA", "N/A", "NaN", "null")
EXACT = 2**53  # from here on floating-point numbers skip whole numbers
# A number of many digits, as spreadsheets and floating point write it.
ROUNDED = r"[+-]?\d([.,]\d+)?[eE]\+?\d+"


def cell_text(value: Any) -> str:
    """Write a cell as text: whole numbers without a point, rounded ones with their exponent, truth
    values as 1 and 0.

    Example:
        >>> from fedjax_ssl.data.reading.own import cell_text
        >>> cell_text(7.0), cell_text(0.5), cell_text(1234567890123456789)
        ('7', '0.5', '1234567890123456789')
    """
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    elif isinstance(value, bool):
        value = int(value)
    elif isinstance(value, float) and value.is_integer():
        value = int(value) if abs(value) < EXACT else f"{value:.16e}"
    return str(value).strip()


def named(
    texts: Sequence[str], marks: Collection[str] = MARKS, known: Collection[str] = ()
) -> list[str]:
    """Write names in one form, missing ones and -1 as "".

    Args:
        texts: names as they were read.
        marks: words that are no name.
        known: names that count even if they look like marks, such as the user's classes.

    Example:
        >>> from fedjax_ssl.data.reading.own import named
        >>> named(["7", "7.0", "NA", "-1", "north"])
        ['7', '7', '', '', 'north']
    """
    none = {in_one_form(mark).casefold() for mark in ("-1", *marks)}
    none -= {name.casefold() for name in known}
    forms = {text: in_one_form(text) for text in set(texts)}
    cells = {text: "" if form.casefold() in none else form for text, form in forms.items()}
    return [cells[text] for text in texts]


def numbered(texts: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the number of each text, int32 [n], "" = -1, and the texts by number: whole numbers by
    value, words by letter.
    """
    known = {text for text in texts if text}
    are_numbers = all(re.fullmatch(r"-?\d+", text) for text in known)
    names = sorted(known, key=lambda text: (int(text), text)) if are_numbers else sorted(known)
    number = {"": -1} | {name: place for place, name in enumerate(names)}
    return np.array([number[text] for text in texts], np.int32), tuple(names)


PARQUET = (".parquet", ".pq")
SEPARATED = (".csv", ".tsv", ".txt")
DELIMITERS = ",;\t"
FEW_VALUES = 20  # a column with more values is not suggested for classes or clients
# fewest rows per value of a column that is suggested, by role
ROWS_EACH = {"label": 2, "client": 5}


def is_table(path: Path) -> bool:
    """Return whether a file is a table, by its name: `.csv`, `.tsv`, `.txt` (all also with `.gz`),
    or Parquet.
    """
    return path.name.lower().removesuffix(".gz").endswith((*SEPARATED, *PARQUET))


def read_table(path: Path, columns: Sequence[str] | None = None) -> "pandas.DataFrame":
    """Read a table whose first line names the columns.

    The separator is comma, semicolon or tabulator, whichever is most frequent in the first line.
    Empty lines and columns without a name (as pandas writes for its index) are left out.

    Args:
        path: `.parquet` or `.pq` (needs pyarrow), anything else is read as separated text, of `.gz`
            unpacked.
        columns: their names, for a file of text in which no line names them.

    Returns:
        The table as text.

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
    return as_text(frame[names]) if is_parquet else frame[names]


def no_column(name: str, there: Iterable[str], asked: str = "") -> str:
    """Say that a table has no column of this name."""
    return (
        f"there is no column {name!r}{asked}.{did_you_mean(name, list(there))} Columns: "
        f"{', '.join(there)}"
    )


def as_text(table: "pandas.DataFrame") -> "pandas.DataFrame":
    """Write all cells of a table as `cell_text` does, missing ones as ""."""
    import pandas

    columns = {
        name: [
            "" if gap else cell_text(cell)
            for gap, cell in zip(column.isna(), column.tolist(), strict=True)
        ]
        for name, column in table.items()
    }
    return pandas.DataFrame(columns, table.index, dtype=object)


def as_numbers(cells: Iterable[str], decimal: str = ".") -> np.ndarray:
    """Take text as float64 [n], true and false as 1 and 0, NaN where it is no number of single
    precision.
    """
    import pandas

    texts = pandas.Series(cells, dtype=object)
    if decimal != ".":
        texts = texts.str.replace(".", "?", regex=False).str.replace(decimal, ".")
    values = pandas.to_numeric(texts, errors="coerce").to_numpy(np.float64, copy=True)
    unread = np.isnan(values)
    truths = texts[unread].str.casefold().map({"true": 1.0, "false": 0.0})
    values[unread] = truths.to_numpy(np.float64)
    return np.where(np.abs(values) <= LARGEST, values, np.nan)


def without_marks(cells: "pandas.Series", marks: Collection[str]) -> "pandas.Series":
    """Write marks of missing cells, in capitals or not and numbers in any form, as ""."""
    missing = cells.map(str.casefold).isin([mark.casefold() for mark in marks])
    numbers = as_numbers(marks)
    if np.isfinite(numbers).any():
        missing |= np.isin(as_numbers(cells), numbers)
    return cells.mask(missing, "") if missing.any() else cells


def read_roles(
    table: "pandas.DataFrame",
    roles: Mapping[str, str],
    needed: Collection[str],
    findings: Findings,
    where: str = "",
) -> "pandas.DataFrame":
    """Read the columns of roles as text, and find roles without a column.

    Args:
        table: the table.
        roles: role -> name of its column; the option `ROLE_column` names it.
        needed: roles without which the table is of no use.
        findings: for problems; a column with almost the name of a missing role gets a note.
        where: the beginning of the problems' sentences.

    Returns:
        The columns that are there, named by their roles.
    """
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
    found = [role for role, name in roles.items() if name in table]
    return table[[roles[role] for role in found]].set_axis(found, axis=1)


def possible_columns(table: "pandas.DataFrame", role: str) -> dict[str, int]:
    """Return the columns that may be those of a role, with their numbers of values, because each
    value has many rows.
    """
    counts = table.where(table != "").nunique()
    most = min(FEW_VALUES, len(table) // ROWS_EACH.get(role, 1))
    return {name: count for name, count in counts.items() if 1 < count <= most}


def columns_of_few_values(table: "pandas.DataFrame", role: str) -> str:
    """Return a sentence on naming the column of a role, with the columns of few values."""
    few = ", ".join(f"{name} ({count})" for name, count in possible_columns(table, role).items())
    listed = f"; columns of few values, and how many these are: {few}" * bool(few)
    return f"; name the right one with --data.{role}_column=COLUMN{listed}"


def say_one_client(table: "pandas.DataFrame", taken: Iterable[str], findings: Findings) -> None:
    """Note that no column of a table names clients, and which column could.

    Args:
        table: the table.
        taken: columns that have another meaning.
        findings: for the note.
    """
    others = table.drop(columns=[name for name in taken if name in table])
    findings.notes.append(
        "no column names the clients, so that all rows are one client's"
        f"{columns_of_few_values(others, 'client')}"
    )


def _read_text(path: Path, columns: Sequence[str] | None) -> "pandas.DataFrame":
    # read_csv fills up short lines, and does not say where a row of several lines is.
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
    if columns:
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
    except (ValueError, OSError) as error:  # pyarrow's own errors are subclasses of these
        raise BadData(path, f"is no readable Parquet file, or it is cut short: {error}") from error
    frame.index = [f"{path.name}, row {row}" for row in range(1, len(frame) + 1)]
    return frame


# Names of arrays of inputs and of their labels, in the order of prediction: new examples first.
TEST_ARRAYS = {"test_inputs": "test_labels", "x_test": "y_test", "test_images": "test_labels"}
CHANNELS = (1, 2, 3, 4)  # numbers of channels of an image; another number may be another axis
VALIDATION_ARRAYS = {"val_images": "val_labels", "x_val": "y_val"}
TRAIN_ARRAYS = {
    "inputs": "labels",
    "images": "labels",
    "x_train": "y_train",
    "train_images": "train_labels",
}


def read_arrays(
    path: Path, wanted: Callable[[str], bool] = lambda name: True
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Read arrays of a file, and the names of all that it has.

    Args:
        path: the `.npz` file.
        wanted: name -> whether the array is read.

    Raises:
        DatasetUnavailable: the file is no such file, or is damaged.
        BadData: it holds Python objects, or two arrays of one name.
    """
    # Opened here, because numpy does not close a broken file.
    with path.open("rb") as file:
        try:
            loaded = np.load(file, allow_pickle=False)
        except Exception as error:
            # NumPy takes what it does not know for pickled objects, and says how to load those.
            why = "it is of another kind" if "pickle" in str(error) else str(error)
            raise DatasetUnavailable(
                f"{path} is not a readable .npz file, or it is cut short: {why}. Save one with "
                "np.savez(path, inputs=..., labels=...)"
            ) from error
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise DatasetUnavailable(
                f"{path} holds one bare array; save both with np.savez(path, inputs=..., "
                "labels=...)"
            )
        with loaded:
            names = loaded.files
            if doubled := sorted({name for name in names if names.count(name) > 1}):
                raise BadData(
                    path, f"holds `{doubled[0]}` more than once; save it again with np.savez"
                )
            return {name: _array(path, loaded, name) for name in names if wanted(name)}, tuple(
                names
            )


def _array(path: Path, loaded: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
    try:
        values = loaded[name]
    except Exception as error:
        if "pickle" in str(error) or "Object" in str(error):  # NumPy's words about Python objects
            raise BadData(
                path,
                f"array {name!r} holds Python objects, which are refused because they can run "
                "code; save it as an array of numbers, or of strings of one length (dtype=str)",
            ) from error
        raise DatasetUnavailable(f"array {name!r} of {path} is damaged: {error}") from error
    if not isinstance(values, np.ndarray):
        raise DatasetUnavailable(
            f"{name!r} in {path} is no array; save arrays with np.savez(path, ...)"
        )
    return values


def one_each(name: str, values: np.ndarray, length: int) -> np.ndarray:
    """Return one value per example from [n] or [n, 1], as in Keras and MedMNIST; refuse other
    shapes.
    """
    if values.shape == (length, 1):
        return values[:, 0]
    if values.ndim == 2 and len(values) == length and np.isin(values, (0, 1)).all():
        how = f"several labels per example: choose one column, such as {name}[:, 0]"
        if (values.sum(axis=1) == 1).all():
            how = f"one-hot labels: give {name}.argmax(axis=1)"
        raise ValueError(f"{name} has shape {values.shape}, {how}; an example has one label here")
    if values.shape != (length,):
        raise ValueError(f"{name} has shape {values.shape}; expected ({length},), one per example")
    return values


def axes_of_images(name: str, shape: tuple[int, ...]) -> list[str]:
    """Return a sentence if the last of the axes [n, H, W, C] is probably not channels, otherwise
    "".

    Raises:
        ValueError: channels come first.
    """
    if len(shape) != 4 or shape[3] in CHANNELS:
        return []
    # Images are usually square, and have fewer channels than pixels per side.
    in_front = shape[1] in CHANNELS or shape[1] < shape[2] == shape[3]
    if in_front:
        raise ValueError(
            f"{name} has shape {shape}, which looks like [n, C, H, W]; transpose it to "
            f"[n, H, W, C]: np.moveaxis({name}, 1, -1); of volumes give slices [n, H, W]"
        )
    return [
        f"{name} has shape {shape}, whose last axis is taken as {shape[3]} channels; give slices "
        "[n, H, W] of volumes, and move channels that stand elsewhere to the end "
        f"(np.moveaxis({name}, 1, -1))"
    ]
