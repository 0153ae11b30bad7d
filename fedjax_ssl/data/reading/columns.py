"""From text beside examples to what a dataset needs: classes, clients, split, sets and coarse labels by number."""

import dataclasses
import difflib
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.reading.problems import BadData, Findings, some
from fedjax_ssl.data.reading.proportions import read_proportions
from fedjax_ssl.errors import counted
from fedjax_ssl.registry import did_you_mean

SIMILAR = 0.7  # of two names of columns, as difflib has it
TRAIN, TEST = ("", "train", "training"), ("test", "testing")
VALIDATION = ("val", "valid", "validation", "dev")  # a run draws its own; these are trained on


class Texts(NamedTuple):
    """Text beside each example; None: there is no such column."""

    where: Callable[[int], str]  # the place of a row, in words
    label: Sequence[str] | None  # "" = no label
    client: Sequence[str] | None = None
    split: Sequence[str] | None = None  # `TRAIN`, `TEST` or `VALIDATION`
    set: Sequence[str] | None = None  # whole numbers, "" = in none
    coarse: Sequence[str] | None = None  # "" = no coarse label

    def rows(self, chosen: Sequence[int] | np.ndarray) -> "Texts":
        """The same for some of the examples, by number."""
        parts = [None if (whole := getattr(self, name)) is None else [whole[row] for row in chosen] for name in _BESIDE]
        return Texts(lambda row: self.where(chosen[row]), *parts)


_BESIDE = Texts._fields[1:]


class Columns(NamedTuple):
    """The same by number."""

    y: np.ndarray  # int32 [n], -1 = no label
    class_names: tuple[str, ...]
    client: np.ndarray | None  # int32 [n]
    client_names: tuple[str, ...] | None
    is_test: np.ndarray  # bool [n]
    set: np.ndarray | None  # int32 [n], -1 = in none
    coarse: np.ndarray | None  # int32 [n], -1 = none
    coarse_names: tuple[str, ...] | None

    def rows(self, kept: np.ndarray) -> "Columns":
        """The same for some of the examples, by a mask or by number."""
        parts: dict[str, Any] = {
            name: None if (whole := getattr(self, name)) is None else whole[kept] for name in _PER_ROW
        }
        return self._replace(**parts)

    def dataset(
        self, name: str, place: Path, x: np.ndarray, proportions: Path | str | None, notes: Sequence[str], **extra: Any
    ) -> Dataset:
        """Make the dataset of these examples.

        Args:
            name: of the source.
            place: the user's file or folder, for messages.
            x: inputs [n, ...], uint8 or float32.
            proportions: CSV file with the class shares of the clients' sets, if they are known.
            notes: go into `extra["notes"]`.
            **extra: what else goes in there.

        Raises:
            BadData: class shares or inputs that do not fit.
        """
        try:
            return self._dataset(name, x, proportions, notes, extra)
        except ValueError as error:
            raise BadData(place, [str(error)]) from error

    def _dataset(
        self, name: str, x: np.ndarray, proportions: Path | str | None, notes: Sequence[str], extra: Mapping[str, Any]
    ) -> Dataset:
        train, test = (self._split(x, chosen) for chosen in (~self.is_test, self.is_test))
        shares = None
        if proportions is not None:
            if train.set is None or train.client is None or self.client_names is None:
                raise ValueError("class shares of sets are given, but no columns set and client, which they are about")
            shares = read_proportions(proportions, self.class_names, self.client_names, train.client, train.set)
        return Dataset(
            name=name,
            train=train,
            test=dataclasses.replace(test, set=None) if len(test) else None,
            class_names=self.class_names,
            client_names=self.client_names,
            input_max=255.0 if x.dtype == np.uint8 else 1.0,
            coarse_names=self.coarse_names,
            set_shares=shares,
            extra={"notes": list(notes), **extra},
        )

    def _split(self, x: np.ndarray, chosen: np.ndarray) -> Split:
        part = self.rows(chosen)
        return Split(x if chosen.all() else x[chosen], part.y, part.client, part.coarse, part.set)


_PER_ROW = ("y", "client", "is_test", "set", "coarse")


def misspelt(columns: Collection[str], roles: Mapping[str, str]) -> list[str]:
    """Columns that may have been meant for a role that no column has, a sentence each.

    Args:
        columns: names of all columns.
        roles: role -> name of its column.
    """
    missing = [name for name in roles.values() if name not in columns]
    found = []
    for column in columns:
        plain = column.casefold()
        for name in missing if column not in roles.values() else ():
            # Of short names one letter is too much: "site" is no "set".
            alike = len(name) > 3 and difflib.SequenceMatcher(None, plain, name).ratio() >= SIMILAR
            if alike or plain in (name.casefold(), f"{name}s".casefold()):
                found.append(f"column {column!r} is not taken for {name!r}, which is not there; did you mean {name!r}?")
                break
    return found


def read_columns(texts: Texts, count: int, classes: Sequence[str] | None, findings: Findings) -> Columns:
    """Numbers the texts. What does not fit goes into `findings`; stop there before the result is used.

    Args:
        texts: beside the examples.
        count: n, the number of examples.
        classes: names of all classes in order; by default those that occur, whole numbers by value, words by letter.
        findings: for problems and notes.

    Returns:
        What the texts say.
    """
    y, class_names = _classes(texts, count, classes, findings)
    is_test = _split(texts, count, findings)
    client, client_names = _clients(texts, findings)
    coarse, coarse_names = None, None
    if texts.coarse is not None:
        coarse, coarse_names = _numbered(_plain(texts.coarse))
        if len(coarse_names) < 2:
            found = counted(len(coarse_names), "coarse class is", "coarse classes are")
            findings.problems.append(f"{found} there; at least two are needed")
    return Columns(y, class_names, client, client_names, is_test, _sets(texts, findings), coarse, coarse_names)


def _plain(labels: Sequence[str]) -> Sequence[str]:
    """Labels; whole numbers without ".0", which spreadsheets add where a cell is empty, and -1 as no label."""
    known = {label for label in labels if label}
    if known and all(re.fullmatch(r"-?\d+(\.0+)?", label) for label in known):
        short = {label: label.partition(".")[0] for label in known}
        return [("" if short[label] == "-1" else short[label]) if label else "" for label in labels]
    return labels


def _numbered(texts: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Numbers [n] of the texts, "" = -1, and what they stand for."""
    known = {text for text in texts if text}
    whole = all(re.fullmatch(r"-?\d+", text) for text in known)
    names = sorted(known, key=lambda text: (int(text), text)) if whole else sorted(known)
    number = {"": -1} | {name: place for place, name in enumerate(names)}
    return np.array([number[text] for text in texts], np.int32), tuple(names)


def _classes(
    texts: Texts, count: int, classes: Sequence[str] | None, findings: Findings
) -> tuple[np.ndarray, tuple[str, ...]]:
    labels = _plain(texts.label if texts.label is not None else [""] * count)
    if classes is None:
        y, names = _numbered(labels)
        if len(names) < 2:
            found = f"only one class ({names[0]})" if names else "no labelled example"
            findings.problems.append(
                f"there is {found}, but a classifier needs at least two classes; label examples of others too, or name "
                'all classes: classes=("a", "b")'
            )
        return y, names
    names = tuple(str(name) for name in classes)
    if len(set(names)) < max(len(names), 2):
        findings.problems.append(f"classes is {names}; give at least two names, each once")
    number = {"": -1} | {name: place for place, name in enumerate(names)}
    for label, times in Counter(label for label in labels if label not in number).items():
        rows = [row for row, other in enumerate(labels) if other == label]
        findings.problems.append(
            f"label {label!r} of {counted(times, 'example')} ({some(rows, texts.where)}) is none of the classes."
            f"{did_you_mean(label, names)} Classes: {', '.join(names)}"
        )
    return np.array([number.get(label, -1) for label in labels], np.int32), names


def _split(texts: Texts, count: int, findings: Findings) -> np.ndarray:
    if texts.split is None:
        return np.zeros(count, bool)
    words = [word.lower() for word in texts.split]
    allowed = (*TRAIN[1:], *TEST, *VALIDATION)
    for word in sorted(set(words) - {"", *allowed}):
        rows = [row for row, other in enumerate(words) if other == word]
        findings.problems.append(
            f"split is {texts.split[rows[0]]!r} in {some(rows, texts.where)}.{did_you_mean(word, allowed)} Allowed: "
            "train, test, or nothing for train"
        )
    validation = sum(word in VALIDATION for word in words)
    if validation:
        findings.notes.append(
            f"{counted(validation, 'validation example is', 'validation examples are')} trained on; a run draws its "
            "own, with data.validation_fraction"
        )
    is_test = np.array([word in TEST for word in words], bool)
    if is_test.all():
        findings.problems.append("all examples are test examples; none is left to train on")
    return is_test


def _clients(texts: Texts, findings: Findings) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    if texts.client is None:
        return None, None
    client, names = _numbered(texts.client)
    without = np.flatnonzero(client < 0).tolist()
    if without:
        findings.problems.append(
            f"{counted(len(without), 'example has', 'examples have')} no client ({some(without, texts.where)}); every "
            "example belongs to one"
        )
    return client, names


def _sets(texts: Texts, findings: Findings) -> np.ndarray | None:
    if texts.set is None:
        return None
    cells = _plain(texts.set)
    # A number of a set is a place in an array: none needs one that is larger than the number of examples.
    known = {cell: int(cell) for cell in set(cells) if cell.isascii() and cell.isdigit() and len(cell) < 10}
    known = {"": -1} | {cell: number for cell, number in known.items() if number < len(cells)}
    wrong = [row for row, cell in enumerate(cells) if cell not in known]
    if wrong:
        findings.problems.append(
            f"set is {cells[wrong[0]]!r} in {some(wrong, texts.where)}; sets are numbered from 0 on within a client, "
            "and empty means in no set"
        )
    if texts.client is None:
        findings.problems.append("there are sets but no clients, which they belong to; add a column for the client")
    return np.array([known.get(cell, -1) for cell in cells], np.int32)
