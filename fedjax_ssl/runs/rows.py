"""metrics.jsonl and metrics.csv: one row per evaluated round, no row twice."""

import csv
import io
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_ssl.runs.files import decode_json, encode_json, plain_value, write_atomically
from fedjax_ssl.runs.folder import FolderMended, RunFolderError

Value = bool | int | float | str | None


class MetricLog:
    """The rows of a run, on disk as they come.

    `metrics.jsonl` is the record: rows are appended to it and synced. `metrics.csv` is derived from it, for
    spreadsheets; it is written anew when the log is opened and when a row brings a new column. NaN and the
    infinities are strings in the JSON file ("NaN", "Infinity", "-Infinity"), floats again in `rows`, and
    nan, inf, -inf in the CSV file, where an empty cell means that the row has no such column.
    """

    def __init__(self, workdir: str | os.PathLike):
        """Opens the log and reads what is there.

        A last line without its end, as a killed process leaves it, is dropped from the file.

        Args:
            workdir: an existing folder.

        Raises:
            RunFolderError: a line before the last is not a row, or rounds do not increase.
        """
        self._jsonl = Path(workdir) / "metrics.jsonl"
        self._csv = Path(workdir) / "metrics.csv"
        # Rows as the file has them: a quarter of the memory that they would take as mappings.
        self._lines: list[bytes] = []
        self._last: int | None = None  # round
        self._columns: dict[str, None] = {}
        if self._jsonl.exists():
            self._read()
            self._write_csv()

    @classmethod
    def rebuilt(cls, workdir: str | os.PathLike, history: bytes) -> "MetricLog":
        """Opens a log whose file is replaced.

        Args:
            workdir: an existing folder.
            history: the lines of all rows, as `append` returned them.
        """
        write_atomically(Path(workdir) / "metrics.jsonl", history)
        return cls(workdir)

    def _read(self) -> None:
        content = self._jsonl.read_bytes()
        complete = content[: content.rfind(b"\n") + 1]
        if complete != content:
            write_atomically(self._jsonl, complete)
        for number, line in enumerate(complete.decode(errors="replace").split("\n")[:-1], start=1):
            try:
                row = decode_json(line)
                self._check_round(row)
            except (ValueError, TypeError) as error:
                raise RunFolderError(
                    f"{self._jsonl}, line {number} is damaged ({error}). Repair this line, delete the "
                    "file (totals are then of later rounds only), or give another --workdir."
                ) from error
            self._remember(row, f"{line}\n".encode())

    def _check_round(self, row: Mapping[str, Any]) -> None:
        number = row.get("round") if isinstance(row, Mapping) else None
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ValueError(f'a row needs "round", an int of at least 0, got {number!r}')
        if self._last is not None and number <= self._last:
            raise ValueError(f"round {number} comes after round {self._last}, which is already there")

    def _remember(self, row: dict[str, Value], line: bytes) -> None:
        self._lines.append(line)
        self._last = _round(row)
        self._columns.update(dict.fromkeys(row))

    def append(self, row: Mapping[str, Any]) -> bytes:
        """Adds a row and puts it on the disk before it returns.

        Save the checkpoint of a round after its row: then a resumed run has all rows up to its checkpoint.

        Args:
            row: "round", an int above the last row's, and any columns of numbers, strings or None; NumPy and
                JAX scalars are taken too.

        Returns:
            Its line in `metrics.jsonl`.

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
        self._check_round(plain)
        new_columns = plain.keys() - self._columns.keys()
        line = f"{encode_json(plain)}\n".encode()
        with open(self._jsonl, "ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._remember(plain, line)
        if new_columns or not self._csv.exists():
            self._write_csv()
        else:
            with open(self._csv, "a", encoding="utf-8", newline="") as file:
                csv.DictWriter(file, list(self._columns), lineterminator="\n").writerow(plain)
        return line

    def rows(self) -> list[dict[str, Value]]:
        """Returns all rows in order."""
        return [decode_json(line.decode()) for line in self._lines]

    def truncate(self, after_round: int) -> None:
        """Drops the rows of later rounds, because a run that resumes there will write them again.

        Args:
            after_round: the round of the restored checkpoint; rows up to and including it stay.
        """
        kept = [(row, line) for row, line in zip(self.rows(), self._lines, strict=True) if _round(row) <= after_round]
        if len(kept) == len(self._lines):
            return
        write_atomically(self._jsonl, b"".join(line for _, line in kept))
        self._lines, self._last, self._columns = [], None, {}
        for row, line in kept:
            self._remember(row, line)
        self._write_csv()

    def _write_csv(self) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(self._columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows())
        write_atomically(self._csv, text.getvalue())


def _round(row: Mapping[str, Value]) -> int:
    number = row["round"]
    assert isinstance(number, int), "checked when the row was added"
    return number


class ClientLog:
    """Accuracies of the clients over a run, on disk as they come."""

    def __init__(self, workdir: str | os.PathLike, *, after_round: int = 0):
        """Opens the table and drops the rows of later rounds, which a run that resumes writes again.

        Args:
            workdir: an existing folder.
            after_round: the round of the restored checkpoint; rows up to and including it stay.
        """
        self.path = Path(workdir) / "client_accuracy.csv"
        self._columns: list[str] = []
        if self.path.exists():
            self._read(after_round)

    def _read(self, after_round: int) -> None:
        # A table that is damaged may hold anything; its cells are not read, but carried on.
        text = self.path.read_text(encoding="utf-8", errors="replace")
        try:
            # A last line without its end is what a killed process leaves.
            lines = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))
        except csv.Error:
            lines = []
        if not lines:
            return
        self._columns = lines[0][1:]
        rounds = [line[0] if line else "" for line in lines]
        numbers = [int(one) if one.isascii() and one.isdecimal() and len(one) < 10 else None for one in rounds]
        pairs = zip(numbers[1:], lines[1:], strict=True)
        kept = [line for number, line in pairs if number is not None and number <= after_round]
        write_atomically(self.path, _csv([lines[0], *kept]))

    def append(self, round: int, accuracies: Mapping[str, float]) -> None:
        """Adds an evaluation.

        Args:
            round: finished rounds.
            accuracies: by name of the client; the same clients at every call.
        """
        if set(self._columns) != accuracies.keys():
            if self._columns:
                text = f"{self.path} is damaged, or of other clients: it starts anew with round {round}"
                warnings.warn(text, FolderMended, stacklevel=4)
            self._columns = list(accuracies)
            write_atomically(self.path, _csv([["round", *self._columns]]))
        row = [str(round), *(str(plain_value(accuracies[name])) for name in self._columns)]
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            file.write(_csv([row]))


def _csv(lines: list[list[str]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
