"""A dataset that cannot be had, and everything that is wrong with a user's own data in one
message.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from fedjax_ssl.errors import UserError

EMBEDDED = 'load("digits") or load("glyphs")'  # datasets that need no download
Place = Path | str | None  # of a file or folder; None: the usual one
SHOWN = 5  # examples of one kind that a message names


class DatasetUnavailable(RuntimeError):
    """A dataset is neither here nor to be had, or is damaged; the message says what to do."""


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
        looked: places.
        remedies: what to do, a sentence each.
        tried: addresses that gave nothing, and why.
        instead: what to run without the dataset.
        state: what it is not: "here", "prepared here".
        how: what was tried in vain.
    """
    lines = [f"{name} is not {state}{f' and could not be {how}' if tried else ''}."]
    lines += [f"  tried   {reason}" for reason in tried]
    lines += [f"  looked  {', '.join(map(str, looked))}", "To go on, do one of these:"]
    return DatasetUnavailable(
        "\n".join([*lines, *(f"  - {remedy}" for remedy in (*remedies, instead))])
    )


def given_path(source: str, path: Place, what: str, kind: str = "file") -> Path:
    """Take the path of a user's own data.

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
        problems: what is wrong, a sentence or two each.
        notes: what else was found until then.
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


def some(rows: Sequence[int] | np.ndarray, places: Sequence[str]) -> str:
    """Name the places of the first rows, and count the others."""
    named = ", ".join(places[row] for row in rows[:SHOWN])
    return named if len(rows) <= SHOWN else f"{named} and {len(rows) - SHOWN:,} more"
