"""From text next to examples to numbers: classes, clients, splits, sets and coarse labels."""

import dataclasses
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fedjax_ssl.data.dataset import Dataset, Names, Reading, Split, in_one_form
from fedjax_ssl.data.reading.fetch import file_sha256
from fedjax_ssl.data.reading.own import (
    MARKS,
    ROUNDED,
    SHOWN,
    BadData,
    Findings,
    Place,
    as_numbers,
    named,
    numbered,
    read_table,
    some,
)
from fedjax_ssl.errors import counted
from fedjax_ssl.registry import Changes, did_you_mean

if TYPE_CHECKING:  # takes long to import
    import pandas

# Columns next to each example, and the things that their cells name.
ROLES = {
    "label": "label",
    "client": "client",
    "split": "split",
    "set": "set",
    "coarse": "coarse label",
    "group": "group",
}
TRAIN = ("", "train", "training")
TEST = ("test", "testing")
TOLERANCE = 1e-3  # largest error of a row sum of class shares, as rounding makes
# trained on, because a run draws its own validation examples
VALIDATION = ("val", "valid", "validation", "dev")


@dataclasses.dataclass(frozen=True)
class TableOptions:
    """Columns of a user's table, and their roles.

    Attributes:
        label_column: name of the class of each row; empty = no label.
        client_column: name of the client that has the row, if there is such a column.
        split_column: train or test, if there is such a column.
        set_column: set within the client, if there is such a column.
        coarse_column: label of another space, if there is such a column.
        group_column: patient or the like, if there is such a column: rows of one stay on one side
            of every split.
        classes: names of all classes in order; by default those that occur.
        proportions: CSV file with the class shares of each client's sets; see `read_proportions`.
    """

    label_column: str = "label"
    client_column: str = "client"
    split_column: str = "split"
    set_column: str = "set"
    coarse_column: str = "coarse"
    group_column: str = "group"
    classes: Names | None = None
    proportions: Annotated[Place, Changes("place")] = None

    def columns(self) -> dict[str, str]:
        """Return the column of each role."""
        return {role: getattr(self, f"{role}_column") for role in ROLES}


class Columns(NamedTuple):
    """Labels, clients, splits and sets of examples, by number."""

    y: np.ndarray  # int32 [n], -1 = no label
    class_names: Names
    client: np.ndarray | None  # int32 [n]
    client_names: Names | None
    is_test: np.ndarray  # bool [n]
    set: np.ndarray | None = None  # int32 [n], -1 = in none
    coarse: np.ndarray | None = None  # int32 [n], -1 = none
    coarse_names: Names | None = None
    names: np.ndarray | None = None  # object [n], file or line of each example
    group: np.ndarray | None = None  # int32 [n], -1 = in none

    def rows(self, kept: np.ndarray) -> "Columns":
        """Return some of the examples, by a mask or by number."""
        fields = self._asdict().items()
        chosen = {name: one[kept] for name, one in fields if isinstance(one, np.ndarray)}
        return self._replace(**chosen)

    def dataset(
        self,
        name: str,
        place: Path | str,
        x: np.ndarray,
        proportions: Place,
        notes: Sequence[str],
        reading: Reading | None = None,
        **extra: Any,
    ) -> Dataset:
        """Make the dataset of these examples.

        Args:
            name: name of the source.
            place: the user's file or folder, for messages.
            x: inputs [n, ...], uint8 or float32.
            proportions: CSV file with the class shares of the clients' sets, if they are known.
            notes: notes for `extra["notes"]`.
            reading: conversion of files to `x`.
            **extra: further entries of `extra`.

        Raises:
            BadData: class shares or inputs that do not fit.
        """
        try:
            train = self._split(x, ~self.is_test)
            test = self._split(x, self.is_test)
            shares = None
            if proportions is not None:
                shares = read_proportions(
                    proportions, self.class_names, self.client_names, train.client, train.set
                )
            return Dataset(
                name=name,
                train=train,
                test=dataclasses.replace(test, set=None) if len(test) else None,
                class_names=self.class_names,
                client_names=self.client_names,
                input_max=255.0 if x.dtype == np.uint8 else 1.0,
                coarse_names=self.coarse_names,
                set_shares=shares,
                reading=reading,
                extra={"notes": list(notes), **extra},
            )
        except ValueError as error:
            raise BadData(place, str(error)) from error

    def _split(self, x: np.ndarray, chosen: np.ndarray) -> Split:
        part = self.rows(chosen)
        columns = part.y, part.client, part.coarse, part.set, part.names, part.group
        return Split(x if chosen.all() else x[chosen], *columns)


def read_columns(
    texts: "pandas.DataFrame",
    classes: Sequence[str] | None,
    findings: Findings,
    marks: Collection[str] = MARKS,
) -> Columns:
    """Turn texts into numbers. Texts that do not fit go into `findings`; stop on these before you
    use the result.

    Args:
        texts: a row per example, with the known columns of `ROLES` as text; the index has the place
            of each row in words. Empty means none, and so do marks and -1; `split` is a word of
            `TRAIN`, `TEST` or `VALIDATION`, and sets are whole numbers.
        classes: names of all classes in order; by default those that occur, whole numbers by value,
            words by letter.
        findings: for problems and notes.
        marks: words that stand for a missing cell, unless a class has this name.

    Returns:
        Numbers for all texts.
    """
    given = None if classes is None else tuple(in_one_form(str(name)) for name in classes)
    places = texts.index
    cells = {
        role: _cells(role, texts[role], given or (), marks, findings)
        for role in ROLES
        if role in texts
    }
    y, class_names = _classes(cells.get("label", [""] * len(texts)), places, given, findings)
    is_test = _split(cells.get("split", [""] * len(texts)), places, findings)
    client, client_names = numbered(cells["client"]) if "client" in cells else (None, None)
    if client is not None and len(nobody := np.flatnonzero(client < 0)):
        findings.problems.append(
            f"{counted(len(nobody), 'example has', 'examples have')} no client "
            f"({some(nobody, places)}); every example belongs to one"
        )
    sets = _sets(cells["set"], places, findings) if "set" in cells else None
    if sets is not None and client is None:
        findings.problems.append(
            "there are sets but no clients, which they belong to; add a column for the client"
        )
    coarse, coarse_names = numbered(cells["coarse"]) if "coarse" in cells else (None, None)
    if coarse_names is not None and len(coarse_names) < 2:
        found = counted(len(coarse_names), "coarse class is", "coarse classes are")
        findings.problems.append(f"{found} there; at least two are needed")
    group = numbered(cells["group"])[0] if "group" in cells else None
    if "group" in cells and "client" in cells:
        findings.notes += at_several_clients(cells["group"], cells["client"])
    names = np.array(places, object)
    return Columns(
        y, class_names, client, client_names, is_test, sets, coarse, coarse_names, names, group
    )


def _cells(
    role: str,
    texts: "pandas.Series",
    classes: Sequence[str],
    marks: Collection[str],
    findings: Findings,
) -> list[str]:
    """Write the names of a role in one form; note names that lost digits, have several spellings,
    or count as none.
    """
    import pandas

    what = ROLES[role]
    cells = named(texts.tolist(), marks, classes if role == "label" else ())
    counts = pandas.DataFrame({"cell": cells, "text": texts.tolist()}).value_counts(sort=False)
    spelt = counts.reset_index().groupby("cell")["text"].agg(list)
    findings.problems += [
        f"a {what} is written {text}: a number that was rounded, so that several may have become "
        "one; save such numbers as text or as whole numbers"
        for text in texts.unique()
        if role in ("label", "client", "group") and re.fullmatch(ROUNDED, text)
    ][:1]
    findings.notes += [
        f"the {what} {cell} is written in several ways, as {' and '.join(ways)}"
        for cell, ways in spelt.items()
        if cell and len(ways) > 1
    ][:SHOWN]
    for text in filter(None, spelt.get("", [])):
        hint = ""
        if role == "label" and not classes:
            known = ",".join((text, *numbered(cells)[1][:SHOWN]))
            hint = f"; if it is a class, name all classes: data.classes={known}"
        number = counted(int(counts["", text]), f"{what} is", f"{what}s are")
        findings.notes.append(f"{number} {text}, taken as no {what}{hint}")
    return cells


def _classes(
    labels: Sequence[str],
    places: Sequence[str],
    classes: Names | None,
    findings: Findings,
) -> tuple[np.ndarray, Names]:
    if classes is None:
        y, names = numbered(labels)
        if len(names) < 2:
            found = f"only one class ({names[0]})" if names else "no labelled example"
            findings.problems.append(
                f"there is {found}, but a classifier needs at least two classes; label examples "
                "of others too, or name all classes: data.classes=a,b"
            )
        return y, names
    if len(set(classes)) < max(len(classes), 2):
        findings.problems.append(
            f"data.classes={','.join(classes)}; give at least two names, each once"
        )
    number = {"": -1} | {name: place for place, name in enumerate(classes)}
    for label in dict.fromkeys(label for label in labels if label not in number):
        rows = _rows_of(label, labels)
        findings.problems.append(
            f"label {label!r} of {counted(len(rows), 'example')} ({some(rows, places)}) is none "
            f"of the classes.{did_you_mean(label, classes)} Classes: {', '.join(classes)}"
        )
    return np.array([number.get(label, -1) for label in labels], np.int32), classes


def at_several_clients(groups: Sequence[str], clients: Sequence[str]) -> list[str]:
    """Return a sentence about groups (patients) with examples at several clients, or ""."""
    import pandas

    pairs = pandas.DataFrame({"group": groups, "client": clients}).drop_duplicates()
    times = pairs.loc[pairs["group"] != "", "group"].value_counts()
    if not (shared := times[times > 1].index).size:
        return []
    return [
        f"{len(shared):,} of {len(times):,} groups (patients), such as {min(shared)}, are of "
        "several clients, and held out at all of them at once; if they are other patients at each "
        "client, write the client into their names: table['group'] = table['client'] + ' ' + "
        "table['group'].astype(str)"
    ]


def _rows_of(text: str, texts: Sequence[str]) -> list[int]:
    return [row for row, other in enumerate(texts) if other == text]


def _split(texts: Sequence[str], places: Sequence[str], findings: Findings) -> np.ndarray:
    words = [word.lower() for word in texts]
    allowed = (*TRAIN[1:], *TEST, *VALIDATION)
    for word in sorted(set(words) - {"", *allowed}):
        rows = _rows_of(word, words)
        findings.problems.append(
            f"split is {texts[rows[0]]!r} in {some(rows, places)}.{did_you_mean(word, allowed)} "
            "Allowed: train, test, or nothing for train"
        )
    if validation := sum(word in VALIDATION for word in words):
        findings.notes.append(trained_on(validation))
    is_test = np.array([word in TEST for word in words], bool)
    if is_test.all():
        findings.problems.append("all examples are test examples; none is left to train on")
    return is_test


def trained_on(validation: int) -> str:
    """Note that validation examples are trained on."""
    number = counted(validation, "validation example is", "validation examples are")
    return f"{number} trained on; a run draws its own, with data.validation_fraction"


def _sets(texts: Sequence[str], places: Sequence[str], findings: Findings) -> np.ndarray:
    # A set number is an index, so it cannot usefully exceed the number of examples.
    fits = r"-1|\d{1,9}"
    found = [re.fullmatch(fits, text or "-1", re.ASCII) for text in texts]
    numbers = [int(one[0]) if one else len(texts) for one in found]
    if wrong := [row for row, number in enumerate(numbers) if number >= len(texts)]:
        findings.problems.append(
            f"set is {texts[wrong[0]]!r} in {some(wrong, places)}; sets are numbered from 0 on "
            "within a client, and empty means in no set"
        )
    return np.array(numbers, np.int32)


def read_proportions(
    path: str | Path,
    class_names: Sequence[str],
    client_names: Sequence[str] | None,
    client: Int[np.ndarray, " n"] | None,
    sets: Int[np.ndarray, " n"] | None,
) -> Float[np.ndarray, "G O K"]:
    """Read the class shares of every set of every client that has training examples.

    The file has a row per client and set:

        client,set,healthy,pneumonia
        north,0,0.8,0.2
        north,1,0.35,0.65

    The columns after `client` and `set` are the names of all classes, in any order; a client is
    named as in the dataset and a set by its number there.

    Args:
        path: the CSV file.
        class_names: K names.
        client_names: names of the dataset's clients, if they are known.
        client: client of every training example, by its place in `client_names`; likewise.
        sets: set of every training example, -1 = in none; likewise.

    Returns:
        Shares, rows sum to 1, zero on padding; clients are those with training examples, in
        increasing order.

    Raises:
        DatasetUnavailable: the file is not there.
        ValueError: the file does not fit; the message has the line, the fault and the allowed
            values.
    """
    if client_names is None or client is None or sets is None:
        raise ValueError(
            "class shares of sets are given, but not the columns or arrays set and client of "
            "these sets"
        )
    path = Path(path).expanduser()
    frame = read_table(path)
    wanted = ["client", "set", *class_names]
    if {*frame} != {*wanted}:
        raise ValueError(
            f"{path} has the columns {', '.join(frame)}; needed are {', '.join(wanted)}, where "
            "classes are named as in the dataset"
        )
    there = np.unique(client)
    places = {str(client_names[number]): place for place, number in enumerate(there)}
    pairs = zip(client.tolist(), sets.tolist(), strict=True)
    needed = {(str(client_names[one]), str(number)) for one, number in pairs if number >= 0}
    keys = frame[["client", "set"]].map(in_one_form).itertuples(index=False, name=None)
    values = np.stack([as_numbers(frame[name]) for name in class_names], axis=1)
    table = np.zeros((len(there), int(sets.max(initial=0)) + 1, len(class_names)))
    found = set()
    for where, key, given in zip(frame.index, keys, values, strict=True):
        begin = f"{where}: client {key[0]!r}, set {key[1]}"
        if key not in needed:
            hint = did_you_mean(key[0], places) if key[0] not in places else ""
            raise ValueError(f"{begin} has no training example.{hint}")
        if key in found:
            raise ValueError(f"{begin} has a line already")
        # a share that is no number is NaN, which compares as false
        if not ((given >= 0).all() and abs(given.sum() - 1) <= TOLERANCE):
            raise ValueError(
                f"{begin} has the class shares {given.tolist()}, which sum to {given.sum():g}; "
                "they must be numbers of at least 0 that sum to 1"
            )
        found.add(key)
        table[places[key[0]], int(key[1])] = given / given.sum()
    if missing := sorted(needed - found):
        raise ValueError(
            f"{path} has no line for client {missing[0][0]!r}, set {missing[0][1]}, which has "
            "training examples; add its class shares, or give these examples the set -1"
        )
    return table


def proportions_digest(file: Place) -> str | None:
    """Compute the digest of such a file, for the name of data made with it; None without a file."""
    path = None if file is None else Path(file).expanduser()
    return file_sha256(path) if path is not None and path.is_file() else None
