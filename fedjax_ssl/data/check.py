"""Check a user's own data before training: notes of the reader, and tables of checks over a data
frame of all examples and over a single feature.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedjax_ssl.data.dataset import Dataset, Names
from fedjax_ssl.data.federation.report import lacking
from fedjax_ssl.data.reading.own import (
    MARKS,
    SHOWN,
    BadData,
    DatasetUnavailable,
    is_table,
    read_table,
)
from fedjax_ssl.data.reading.table_reading import TableReading, identifiers
from fedjax_ssl.data.sites_apart import sites_apart
from fedjax_ssl.data.sources import SOURCES, names_apart, read
from fedjax_ssl.data.sources.features import FACTS as FEATURES
from fedjax_ssl.data.sources.folder import UNLABELLED
from fedjax_ssl.errors import counted

if TYPE_CHECKING:  # takes long to import
    import pandas

MANY_CLASSES = 20
NO_LABEL = (*MARKS, *UNLABELLED, "missing", "no label", "none", "unknown")  # names of no class
FEW_CODES = 6  # columns with at most this many different whole numbers may hold codes


class Checked(NamedTuple):
    """The result of a check."""

    source: str  # a name of `fedjax_ssl.data.SOURCES`
    dataset: Dataset | None  # None if there are problems
    problems: Names  # faults that prevent its use
    notes: Names  # skipped parts, and oddities
    standardize: bool = False  # inputs should be standardized by client


def check(path: Path | str, source: str | None = None, **options: Any) -> Checked:
    """Read a user's own data, and report their content and every fault in them.

    The converted data are kept, so a later run starts at once.

    Args:
        path: a folder of images, a table of images or of
            features (CSV, Parquet), or an `.npz` file.
        source: "folder", "table", "npz" or "features"; by default chosen by `path`.
        **options: options of the source, and root.

    Raises:
        DatasetUnavailable: `path` is not there.
        ValueError: an unknown source or option.
    """
    place = Path(path).expanduser()
    name = source or source_of(place, options.get("file_column") or "file")
    places = {"path": path, "root": options.pop("root", None)}
    taken = {where: value for where, value in places.items() if SOURCES.takes(name, where)}
    try:
        dataset = read(name, **taken, **names_apart(name, options))
    except BadData as error:
        return Checked(name, None, tuple(dict.fromkeys(error.problems)), error.notes)
    apart = sites_apart(dataset)
    notes = [*dataset.extra.get("notes", ()), *remarks(dataset)]
    notes += [] if apart is None else [apart.sentence]
    standardize = apart is not None and apart.by_client
    return Checked(name, dataset, (), tuple(dict.fromkeys(notes)), standardize)


def source_of(path: Path, file_column: str = "file") -> str:
    """Choose the source that reads a path; a table with a column for the file is a table of images.

    Raises:
        DatasetUnavailable: nothing is there.
        ValueError: no source reads files of this kind.
    """
    if path.is_dir() and (path / FEATURES).is_file():
        return "features"
    if path.is_dir():
        if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            raise BadData(path, f"is a dataset of Hugging Face; train on it by data.name=hf:{path}")
        return "folder"
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
    """Find oddities in a dataset that does not prevent training, a sentence each."""
    import pandas

    frame = examples(dataset)
    found = [sentence for find in CHECKS.values() for sentence in find(frame)]
    if dataset.train.x.ndim != 2:
        return found
    numbers = range(dataset.train.x.shape[1])
    names = dataset.extra.get("features") or [f"number {number}" for number in numbers]
    inputs = pandas.DataFrame(dataset.train.x, columns=names)
    found += [sentence for find in FEATURE_CHECKS.values() for sentence in find(inputs)]
    if isinstance(dataset.reading, TableReading):  # it reports identifiers itself
        return [*found, *_codes(inputs)]
    return [*found, *identifiers(names, dataset.train.x)]


def examples(dataset: Dataset) -> "pandas.DataFrame":
    """Put all examples into one frame: split, label and, if known, client by name."""
    import pandas

    parts = []
    for name, split in dataset.splits().items():
        labels = pandas.Categorical.from_codes(split.y, dataset.class_names)
        part = pandas.DataFrame({"split": name, "label": labels})
        if split.client is not None and dataset.client_names is not None:
            part["client"] = pandas.Categorical.from_codes(split.client, dataset.client_names)
        parts.append(part)
    return pandas.concat(parts, ignore_index=True)


def _labels(frame: "pandas.DataFrame") -> Iterator[str]:
    """Find classes with no label or a single one in training, and too many classes for labels."""
    counts = frame.loc[frame["split"] == "train", "label"].value_counts(sort=False)
    for few, text in ((0, "no labelled training example"), (1, "one labelled training example")):
        chosen = list(counts.index[counts == few])
        if counts.sum() and chosen:
            what = "class" if len(chosen) == 1 else f"{len(chosen)} classes:"
            yield f"{what} {_listed(chosen)}: {text}"
    if len(counts) > MANY_CLASSES and counts.sum() < 3 * len(counts):
        labelled = counted(int(counts.sum()), "labelled training example")
        yield f"{len(counts):,} classes for {labelled}: are these classes?"


def _blank_names(frame: "pandas.DataFrame") -> Iterator[str]:
    """Find classes and clients whose name says that there is no label."""
    for name, count in _named_nothing(frame, "label"):
        yield (
            f"class {name!r} of {count} counts as a class; where nobody knows the label, leave its "
            "cell empty, or call the folder 'unlabelled'"
        )
    for name, count in _named_nothing(frame, "client"):
        yield (
            f"client {name!r} of {count} counts as a client; name the true one, and put images "
            "without a label into SITE/ or SITE/unlabelled/"
        )


def _named_nothing(frame: "pandas.DataFrame", column: str) -> Iterator[tuple[str, str]]:
    """Give names in a column that mean that nobody knows it, and how many examples have each."""
    if column in frame:
        nothing = {*map(_plain, NO_LABEL)}
        for name, count in frame[column].value_counts(sort=False).items():
            if _plain(str(name)) in nothing:
                yield str(name), counted(int(count), "example")


def _spellings(frame: "pandas.DataFrame") -> Iterator[str]:
    """Find classes and clients whose names are almost the same."""
    yield from _alike("class", frame["label"].value_counts())
    if "client" in frame:
        yield from _alike("client", frame["client"].value_counts())


def _words(inputs: "pandas.DataFrame") -> Iterator[str]:
    """Find words of a table's columns that are almost the same."""
    return _alike("input", (inputs.filter(regex="=") != 0).sum())


def _alike(what: str, times: "pandas.Series") -> Iterator[str]:
    """Find names that differ only by capitals, blanks, punctuation or invisible characters."""
    times = times.sort_values(ascending=False, kind="stable")
    for _, alike in times.groupby(times.index.map(_plain), observed=True):
        for name, count in alike.iloc[1:].items():
            yield (
                f"{what} {name!r} ({counted(int(count), 'example')}) is spelt almost like "
                f"{alike.index[0]!r} ({alike.iloc[0]:,}); if they are one, give them one name"
            )


def _plain(name: str) -> str:
    """Write a name without capitals, blanks, hyphens, punctuation and invisible characters. Signs
    are kept, because names may differ by them alone (">50K" and "<=50K"), and so is punctuation
    between digits.
    """
    other = r"(?:[^\w+<>=≤≥]|_)"
    text = unicodedata.normalize("NFKC", name).casefold()
    return re.sub(rf"(?<!\d){other}|{other}(?!\d)", "", text) or text


def _untested(frame: "pandas.DataFrame") -> Iterator[str]:
    """Find classes and clients without a test example."""
    test = frame[frame["split"] == "test"]
    for what, column in (("class", "label"), ("client", "client")):
        if len(test) and column in frame and test[column].notna().any():
            names = frame[column].cat.categories
            yield from lacking(what, list(names), test[column].cat.codes.to_numpy())


def _constant(inputs: "pandas.DataFrame") -> Iterator[str]:
    """Find features that are the same in all training examples."""
    same = inputs.columns[inputs.min() == inputs.max()]
    if len(same):
        features = counted(len(same), "feature is", "features are")
        yield f"{features} the same for all: {_listed(same)}"


def _codes(inputs: "pandas.DataFrame") -> Iterator[str]:
    """Find columns with few different whole numbers, which may be codes."""
    most = min(FEW_CODES, len(inputs) // 5)
    few = {
        name: values.astype(int).tolist()
        for name, values in ((name, np.unique(column)) for name, column in inputs.items())
        if 2 < len(values) <= most and (values == np.rint(values)).all()
    }
    if few:
        shown = "; ".join(f"{name}: {_listed(values)}" for name, values in few.items())
        yield (
            f"few whole numbers, taken as amounts ({shown}); where they are codes of things "
            f"without an order: data.codes={','.join(few)}"
        )


def _listed(names: Sequence[Any]) -> str:
    more = f" and {len(names) - SHOWN} more" * (len(names) > SHOWN)
    return ", ".join(map(str, names[:SHOWN])) + more


CHECKS: dict[str, Callable[["pandas.DataFrame"], Iterable[str]]] = {
    "labels of each class": _labels,
    "names of nothing": _blank_names,
    "spellings": _spellings,
    "classes and clients tested": _untested,
}
FEATURE_CHECKS: dict[str, Callable[["pandas.DataFrame"], Iterable[str]]] = {
    "spellings of words": _words,
    "constant features": _constant,
}
