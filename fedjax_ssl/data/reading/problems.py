"""A dataset that cannot be had, and everything that is wrong with a user's own data in one message."""

from collections.abc import Sequence
from pathlib import Path

from fedjax_ssl.errors import UserError

EMBEDDED = 'load("digits") or load("glyphs")'  # datasets that need no download
SHOWN = 5  # examples of one kind that a message names


class DatasetUnavailable(RuntimeError):
    """A dataset is neither here nor to be had, or is damaged; the message says what to do."""


class BadData(UserError):
    """A user's own data cannot be trained on as they are.

    Attributes:
        place: the folder or file.
        problems: what is wrong, a sentence or two each.
        notes: what else was found until then.
    """

    def __init__(self, place: Path | str, problems: Sequence[str], notes: Sequence[str] = ()):
        self.place, self.problems, self.notes = str(place), tuple(problems), tuple(notes)
        if len(self.problems) == 1:
            super().__init__(f"{place}: {self.problems[0]}")
        else:
            listed = "\n".join(f"  - {problem}" for problem in self.problems)
            super().__init__(f"{place} has {len(self.problems)} problems:\n{listed}")


class Findings:
    """Collect problems and notes while data are read, so that a user hears of everything at once.

    Attributes:
        problems: what keeps the data from being used.
        notes: what was skipped, or is worth a look.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []

    def stop(self, place: Path | str) -> None:
        """Raise BadData if there are problems."""
        if self.problems:
            raise BadData(place, self.problems, tuple(dict.fromkeys(self.notes)))


def some(rows: Sequence[int], places: Sequence[str]) -> str:
    """Name the places of the first rows, and count the others."""
    named = ", ".join(places[row] for row in rows[:SHOWN])
    return named if len(rows) <= SHOWN else f"{named} and {len(rows) - SHOWN:,} more"
