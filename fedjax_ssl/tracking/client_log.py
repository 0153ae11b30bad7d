"""client_accuracy.csv: a row per evaluation, a column per client that has test examples."""

import csv
import io
import os
import warnings
from collections.abc import Mapping
from pathlib import Path

from fedjax_ssl.tracking.files import plain_value, write_atomically
from fedjax_ssl.tracking.run_folder import FolderMended


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
