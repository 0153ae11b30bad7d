"""Rows of a run on disk, as they are produced: metrics.jsonl and metrics.csv, and
client_accuracy.csv.

metrics.jsonl           record: a line of JSON per evaluated round, no round twice
metrics.csv             the same for spreadsheets, derived from it
client_accuracy.csv     a row per evaluation, a column per client that has test examples
"""

import csv
import hashlib
import io
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedjax_ssl.folder.files import decode_json, encode_json, plain_value, write_atomically
from fedjax_ssl.folder.folder_lock import FolderMended, RunFolderError

Value = bool | int | float | str | None


class MetricLog:
    """The metric rows of a run.

    Rows are appended to `metrics.jsonl` and synced; `metrics.csv` is written anew when the log is
    opened and when a row brings a new column. NaN and the infinities are strings in the JSON file
    ("NaN", "Infinity", "-Infinity"), floats again in `rows`, and nan, inf, -inf in the CSV file,
    where an empty cell means that the row has no such column.

    Example:
        >>> import tempfile
        >>> log = MetricLog(tempfile.mkdtemp())
        >>> log.append({"round": 5, "test_accuracy": 0.5})
        >>> log.rows()
        [{'round': 5, 'test_accuracy': 0.5}]
    """

    def __init__(self, workdir: str | os.PathLike):
        """Open the log and read existing rows.

        A last line without its end, as a killed process leaves it, is dropped from the file.

        Args:
            workdir: an existing folder.

        Raises:
            RunFolderError: a line before the last is not a row, or rounds do not increase.
        """
        self._jsonl = Path(workdir) / "metrics.jsonl"
        self._csv = Path(workdir) / "metrics.csv"
        # Rows as in the file: a quarter of the memory of mappings.
        self._lines: dict[int, bytes] = {}  # by round, in increasing order
        self._columns: dict[str, None] = {}
        self._digest = hashlib.sha256()
        if self._jsonl.exists():
            content = self._jsonl.read_bytes()
            complete = content[: content.rfind(b"\n") + 1]
            if complete != content:
                write_atomically(self._jsonl, complete)
            self._read(complete)
            self._write_csv()

    def _read(self, content: bytes) -> None:
        for number, line in enumerate(content.decode(errors="replace").split("\n")[:-1], start=1):
            try:
                self._remember(decode_json(line), f"{line}\n".encode())
            except (ValueError, TypeError) as error:
                raise RunFolderError(
                    f"{self._jsonl}, line {number} is damaged ({error}). Repair this line, delete "
                    "the file (totals are then of later rounds only), or give another --workdir."
                ) from error

    def _round_of(self, row: Any) -> int:
        number = row.get("round") if isinstance(row, Mapping) else None
        last = next(reversed(self._lines), None)
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ValueError(f'a row needs "round", an int of at least 0, got {number!r}')
        if last is not None and number <= last:
            raise ValueError(f"round {number} comes after round {last}, which is already there")
        return number

    def _remember(self, row: dict[str, Value], line: bytes) -> None:
        self._lines[self._round_of(row)] = line
        self._columns.update(dict.fromkeys(row))
        self._digest.update(line)

    @property
    def digest(self) -> str:
        """SHA-256 of all rows."""
        return self._digest.hexdigest()

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row and put it on the disk before this returns.

        Save the checkpoint of a round after its row: then a resumed run has all rows up to its
        checkpoint.

        Args:
            row: "round", an int above the last row's, and any columns of numbers, strings or None;
                NumPy and JAX scalars are taken too.

        Raises:
            ValueError: no round, a round that is already there, or a value that is no scalar.
        """
        plain: dict[str, Value] = {}
        for name, value in row.items():
            try:
                plain[name] = plain_value(value)
            except TypeError as error:
                raise ValueError(f"column {name!r}: {error}") from error
            if isinstance(plain[name], list | dict):
                raise ValueError(f"column {name!r}: a cell holds one value, got {value!r}")
        self._round_of(plain)
        line = f"{encode_json(plain)}\n".encode()
        new_columns = plain.keys() - self._columns.keys()
        with open(self._jsonl, "ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._remember(plain, line)
        if new_columns or not self._csv.exists():
            self._write_csv()
        else:
            with open(self._csv, "a", encoding="utf-8", newline="") as table:
                csv.DictWriter(table, list(self._columns), lineterminator="\n").writerow(plain)

    def rounds(self) -> list[int]:
        """Return the round of every row."""
        return list(self._lines)

    def rows(self) -> list[dict[str, Value]]:
        """Return all rows in order."""
        return [decode_json(line.decode()) for line in self._lines.values()]

    def truncate(self, after_round: int) -> None:
        """Drop the rows of later rounds, because a run that resumes there will write them again.

        Args:
            after_round: round of the restored checkpoint; rows up to and including it stay.
        """
        kept = b"".join(line for round, line in self._lines.items() if round <= after_round)
        if len(kept) < sum(map(len, self._lines.values())):
            write_atomically(self._jsonl, kept)
            self._lines = {}
            self._columns = {}
            self._digest = hashlib.sha256()
            self._read(kept)
            self._write_csv()

    def _write_csv(self) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(self._columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows())
        write_atomically(self._csv, text.getvalue())


class ClientLog:
    """Accuracies of the clients over a run."""

    def __init__(self, workdir: str | os.PathLike, *, after_round: int = 0):
        """Open the table and drop the rows of later rounds, which a run that resumes writes again.

        Args:
            workdir: an existing folder.
            after_round: round of the restored checkpoint; rows up to and including it stay.
        """
        self.path = Path(workdir) / "client_accuracy.csv"
        self._header = ""
        if not self.path.exists():
            return
        # A damaged table may have any content; its cells are copied without reading. A last line
        # without its end comes from a killed process.
        header, *lines = self.path.read_text(encoding="utf-8", errors="replace").split("\n")[
            :-1
        ] or [""]

        def stays(line: str) -> bool:
            number = line.partition(",")[0]
            return (
                number.isascii()
                and number.isdecimal()
                and len(number) < 10
                and int(number) <= after_round
            )

        if kept := list(filter(stays, lines)):
            self._header = f"{header}\n"
            write_atomically(self.path, "\n".join([header, *kept, ""]))

    def append(self, round: int, accuracies: Mapping[str, float]) -> None:
        """Add an evaluation.

        Args:
            round: finished rounds.
            accuracies: accuracies by name of the client; the same clients at every call.
        """
        header = csv_text([["round", *accuracies]])
        if header != self._header:
            if self._header:
                text = (
                    f"{self.path} is damaged, or of other clients: it starts anew with round "
                    f"{round}"
                )
                warnings.warn(text, FolderMended, stacklevel=4)
            self._header = header
            write_atomically(self.path, header)
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            file.write(csv_text([[round, *map(plain_value, accuracies.values())]]))


def csv_text(lines: Iterable[Iterable[Any]]) -> str:
    """Write lines of cells as CSV."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
