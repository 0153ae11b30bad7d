"""Check a user's own data before anything is trained: their content, and every fault in it."""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedjax_ssl.data.dataset import Dataset, Names
from fedjax_ssl.data.federation.report import lacking
from fedjax_ssl.data.reading.columns import ROLES
from fedjax_ssl.data.reading.features import MOST_LEVELS, TableReading, identifiers, kind_of
from fedjax_ssl.data.reading.names import MARKS, as_cells, numbered
from fedjax_ssl.data.reading.pictures import list_images
from fedjax_ssl.data.reading.problems import SHOWN, BadData, DatasetUnavailable, Findings
from fedjax_ssl.data.reading.tables import (
    BEYOND,
    as_numbers,
    as_text,
    is_table,
    one_hot,
    read_table,
)
from fedjax_ssl.data.sources import SOURCES, read
from fedjax_ssl.data.sources.folder import FILE, find_table
from fedjax_ssl.data.sources.huggingface import is_saved_dataset
from fedjax_ssl.errors import counted

if TYPE_CHECKING:  # takes long to import
    import pandas

# ratio of two names, as difflib has it: one letter more, less or swapped in a name of five
SIMILAR = 0.8
SMALL = 0.1  # a misspelt name has at most this share of the examples of the right one
CLASSES = 20  # more different values are no classes, where no name tells
STRAYS = 3  # words among numbers that may all mean a missing one

# First words of the names of columns that mostly have a role.
USUAL = {
    "label": (
        "labels",
        "class",
        "target",
        "diagnosis",
        "category",
        "outcome",
        "finding",
        "species",
        "y",
    ),
    "client": (
        "clients",
        "hospital",
        "site",
        "center",
        "centre",
        "clinic",
        "institution",
        "station",
        "device",
    ),
    "group": ("patient", "patientid", "subject", "person", "case"),
    "split": ("fold", "subset", "partition"),
}


class Checked(NamedTuple):
    """The result of a check."""

    source: str  # a name of `fedjax_ssl.data.SOURCES`
    dataset: Dataset | None  # None where there are problems
    problems: Names  # faults that keep it from being used
    notes: Names  # skipped parts, and oddities
    proposed: Mapping[str, Any] = MappingProxyType({})  # options that were used beside those given


def check(path: Path | str, source: str | None = None, **options: Any) -> Checked:
    """Read a user's own data, and tell their content and every fault in it.

    What was read is kept, so that a run that follows starts at once.

    Args:
        path: a folder of images or of a saved dataset of Hugging Face, a table of images or of
            features (CSV, Parquet), or an `.npz` file.
        source: "folder", "huggingface", "table" or "npz"; by default what `path` looks like.
        **options: of the source, and root.

    Raises:
        DatasetUnavailable: `path` is not there.
        ValueError: an unknown source or option.
    """
    given = Path(path).expanduser()
    name = source or source_of(given, options.get("file_column") or "file")
    places = {"path": path, "root": options.pop("root", None)}
    taken = {place: value for place, value in places.items() if SOURCES.takes(name, place)}
    findings = Findings()
    proposed = _proposed(name, given, options, findings)
    try:
        dataset = read(name, **taken, **{**options, **proposed})
    except BadData as error:
        return Checked(name, None, error.problems, (*findings.notes, *error.notes), proposed)
    notes = (*findings.notes, *dataset.extra.get("notes", ()), *remarks(dataset))
    return Checked(name, dataset, (), notes, proposed)


def _proposed(
    source: str, path: Path, given: Mapping[str, Any], findings: Findings
) -> dict[str, Any]:
    """Choose options for a table whose columns have other names than the usual ones, or hold
    more than numbers.
    """
    found: dict[str, Any] = {}
    file: Path | None = path
    if source == "folder" and path.is_dir() and given.get("layout", "auto") == "auto":
        column = given.get("file_column") or FILE
        file, paths_column = find_table(path, list_images(path), column)
        if column == FILE != paths_column:
            found["file_column"] = paths_column
    if source not in ("folder", "table") or file is None or not file.is_file():
        return {}
    table = read_table(file)
    first = {column: re.split(r"[\W_]+", column.casefold())[0] for column in table}
    for role, words in USUAL.items():
        option = f"{role}_column"
        named = [column for column in table if first[column] in words]
        if role not in table and given.get(option, role) in (None, role) and len(named) == 1:
            found[option] = named[0]
    return _by_content(table, given, found, findings) if source == "table" else found


def _by_content(
    table: "pandas.DataFrame",
    given: Mapping[str, Any],
    named: Mapping[str, str],
    findings: Findings,
) -> dict[str, Any]:
    """Propose options of the source `table`.

    Args:
        table: as `read_table` gives it.
        given: the user's options, which are kept.
        named: those that follow from the names of columns.
        findings: for notes that say why.

    Returns:
        Options: those named whose column repeats values, and label_column, missing_marks, missing
        and ignore where needed.
    """
    texts = {name: as_text(table[name]) for name in table}
    found: dict[str, Any] = {
        option: name for option, name in named.items() if len(set(texts[name])) < len(table)
    }
    roles = {role: str({**given, **found}.get(f"{role}_column") or role) for role in ROLES}
    ignored = [str(name) for name in given.get("ignore") or ()]
    taken = (*roles.values(), *ignored)
    rest = [name for name in given.get("features") or texts if name in texts and name not in taken]
    named_label = roles["label"] in table or "label_column" in given
    if not (named_label or one_hot(table)):
        # The last column, or the first one, where its values repeat.
        counts = {name: len(set(texts[name]) - {""}) for name in (*rest[-1:], *rest[:1])}
        most = min(CLASSES, len(table) // 2)
        label = next((name for name, count in counts.items() if 1 < count <= most), None)
        if label is not None:
            found["label_column"] = roles["label"] = label
            rest.remove(label)
            findings.notes.append(
                f"column {label!r} is taken as the label: it holds {counts[label]} different values"
            )
    marks = tuple(map(str, given.get("missing_marks") or MARKS))
    read = [name for name in (*rest, roles["label"]) if name in texts]
    cells = {name: as_cells(texts[name], marks) for name in read}
    for name in rest:
        present = [cell for cell in cells[name] if cell]
        strays = [present[row] for row in np.flatnonzero(np.isnan(as_numbers(present)))]
        if any(re.fullmatch(BEYOND, cell) for cell in strays):
            continue  # such a cell says something
        if len(set(strays)) <= STRAYS and 2 * len(strays) < len(present):
            cells[name] = ["" if cell in strays else cell for cell in cells[name]]
    # A text that stands for nothing does so in its whole column.
    seen = {text for name in read for text in set(texts[name]).difference(cells[name], {""})}
    if seen and "missing_marks" not in given:
        found["missing_marks"] = tuple(sorted(seen))
    if "missing" not in given and any("" in cells[name] for name in rest):
        found["missing"] = "median"
    labels, _ = numbered(cells.get(roles["label"], [""] * len(table)))
    reading = TableReading(
        roles, codes=given.get("codes") or (), max_levels=given.get("max_levels") or MOST_LEVELS
    )
    useless: dict[str, list[str]] = {}  # identifiers and free text
    for name in rest:
        told = Findings()
        if kind_of(name, cells[name], reading, told).kind == "number":
            told.problems += identifiers([name], as_numbers(cells[name])[:, None], labels)
        if told.problems:
            useless[name] = told.problems
    if 0 < len(useless) < len(rest):
        found["ignore"] = (*ignored, *useless)
        findings.notes += [reason for reasons in useless.values() for reason in reasons]
    return found


def source_of(path: Path, file_column: str = "file") -> str:
    """Choose the source that reads a path: a table with a column for the file is one of images.

    Raises:
        DatasetUnavailable: nothing is there.
        ValueError: no source reads files of this kind.
    """
    if path.is_dir():
        return "huggingface" if is_saved_dataset(path) else "folder"
    if not path.is_file():
        raise DatasetUnavailable(
            f"{path} is not there; give a folder of images, a CSV or Parquet file, or an .npz file."
        )
    if path.suffix.lower() == ".npz":
        return "npz"
    if is_table(path):
        return "folder" if file_column in read_table(path) else "table"
    raise BadData(path, "is none of: a folder of images, .csv, .tsv, .parquet, .npz")


def remarks(dataset: Dataset) -> list[str]:
    """Find oddities in a dataset that can be trained on, a sentence each."""
    train = dataset.train
    found = _about_classes(dataset)
    for what, names, field in (
        ("class", dataset.class_names, "y"),
        ("client", dataset.client_names or (), "client"),
    ):
        parts = [getattr(split, field) for split in dataset.splits().values()]
        numbers = np.concatenate([part for part in parts if part is not None] or [np.empty(0, int)])
        found += _spelt_alike(what, names, np.bincount(numbers[numbers >= 0], minlength=len(names)))
    if dataset.test is not None:
        found += lacking("class", dataset.class_names, dataset.test.y)
        if dataset.client_names is not None and dataset.test.client is not None:
            found += lacking("client", dataset.client_names, dataset.test.client)
    if train.x.ndim == 2:
        features = dataset.extra.get("features") or [f"number {i}" for i in range(train.x.shape[1])]
        same = [features[i] for i in np.flatnonzero(train.x.min(axis=0) == train.x.max(axis=0))]
        if dataset.reading is None:  # a table says it itself
            found += identifiers(list(map(str, features)), train.x, train.y)
        if same:
            found.append(
                f"{counted(len(same), 'feature is', 'features are')} the same for all: "
                f"{_listed(same)}"
            )
    return found


def _about_classes(dataset: Dataset) -> list[str]:
    labels = dataset.train.y[dataset.train.y >= 0]
    counts = np.bincount(labels, minlength=dataset.num_classes)
    found = []
    for few, text in ((0, "no labelled training example"), (1, "one labelled training example")):
        chosen = [dataset.class_names[number] for number in np.flatnonzero(counts == few)]
        if len(labels) and chosen:
            what = "class" if len(chosen) == 1 else f"{len(chosen)} classes:"
            found.append(f"{what} {_listed(chosen)}: {text}")
    if dataset.num_classes > 20 and len(labels) < 3 * dataset.num_classes:
        labelled = counted(len(labels), "labelled training example")
        found.append(f"{dataset.num_classes:,} classes for {labelled}: are these classes?")
    blanks = ("nan", "na", "n/a", "none", "null", "?")
    blank = [name for name in dataset.class_names if name.lower() in blanks]
    if blank:
        found.append(
            f"{_listed(blank)} counts as a class; leave the label empty where there is none"
        )
    return found


def _spelt_alike(what: str, names: Sequence[str], times: np.ndarray) -> list[str]:
    """Find names that differ by capitals, blanks or one letter, one of them rare."""
    found: list[str] = []
    plain = [re.sub(r"[\s_-]+", "", name).casefold() for name in names]
    order = sorted(range(len(names)), key=lambda number: (times[number], -number))
    for place, small in enumerate(order):
        for large in sorted(order[place + 1 :]):
            pair = plain[small], plain[large]
            rare = 0 < times[small] <= max(SMALL * times[large], 1) < times[large]
            if pair[0] == pair[1] or (rare and _one_letter_off(*pair)):
                found.append(
                    f"{what} {names[small]!r} ({counted(int(times[small]), 'example')}) is spelt "
                    f"almost like {names[large]!r} ({times[large]:,}); if they are one, give them "
                    "one name"
                )
                break
    return found[:SHOWN]


def _one_letter_off(first: str, second: str) -> bool:
    """Tell whether one is likely a misspelling of the other; "site 1" and "site 2" are not."""
    if re.findall(r"\d+", first) != re.findall(r"\d+", second) or abs(len(first) - len(second)) > 2:
        return False
    return difflib.SequenceMatcher(None, first, second).ratio() >= SIMILAR


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(str, names[:SHOWN])) + (
        f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    )
