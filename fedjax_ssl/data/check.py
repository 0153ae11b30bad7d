"""Check a user's own data before anything is trained: their content, and every fault in it."""

import difflib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedjax_ssl.data.dataset import Dataset, Names
from fedjax_ssl.data.federation.report import lacking
from fedjax_ssl.data.reading.columns import ROLES
from fedjax_ssl.data.reading.encoded import FACTS as FEATURES
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
from fedjax_ssl.data.sites_apart import Apart, sites_apart
from fedjax_ssl.data.sources import SOURCES, names_apart, read
from fedjax_ssl.data.sources.folder import FILE, find_table
from fedjax_ssl.errors import counted

if TYPE_CHECKING:  # takes long to import
    import pandas

# ratio of two names, as difflib has it: one letter more, less or swapped in a name of five
SIMILAR = 0.8
SMALL = 0.1  # a misspelt name has at most this share of the examples of the right one
CLASSES = 20  # more different values are no classes, where no name tells
STRAYS = 3  # words among numbers that may all mean a missing one

FEW_CODES = 6  # whole numbers of a column, of which so many may be codes
# Categories of Unicode that a reader does not see, or takes for a hyphen, and letters like these;
# and punctuation that may stand around a name.
_UNSEEN = ("Cc", "Cf", "Zs", "Zl", "Zp", "Pd")
_UNSEEN_LETTERS = "\u034f\u115f\u1160\u17b4\u17b5\u2212\u2800\u3164\uffa0" + "".join(
    map(chr, range(0xFE00, 0xFE10))
)
_AROUND = ".,;:!'\"`()[]\u00b4\u2018\u2019\u201c\u201d\u00ab\u00bb"

EMPTY = 0.9  # share of a column's cells from which on it is left out

# Words that name a role in headers, without accents: alone, or at the end of a longer name.
_NAMES = {
    "label": "label labels class target diagnosis category outcome finding species diagnose befund "
    "klasse ergebnis diagnostic diagnostico diagnostique diagnosi classe clase etiqueta "
    "etichetta y",
    "client": "client clients hospital site center centre clinic institution station device klinik "
    "klinikum krankenhaus spital standort zentrum hopital clinique etablissement clinica centro "
    "sede sitio ospedale ziekenhuis kliniek",
    "group": "group patient patientid subject person case patientennummer patientin proband "
    "paciente paziente",
    "split": "split fold subset partition",
}
# Words beside one of these that change nothing, and words that make another thing of it.
_NEUTRAL = "id ids name names code nr no number nummer num"
_OTHERWISE = (
    "age date day days year years time month alter datum jahr edad fecha at of since before after "
    "per to from bei seit vor nach zur de du di"
)
USUAL = {role: frozenset(names.split()) for role, names in _NAMES.items()}
NEUTRAL = frozenset(_NEUTRAL.split())
OTHERWISE = frozenset(_OTHERWISE.split())


class Checked(NamedTuple):
    """The result of a check."""

    source: str  # a name of `fedjax_ssl.data.SOURCES`
    dataset: Dataset | None  # None where there are problems
    problems: Names  # faults that keep it from being used
    notes: Names  # skipped parts, and oddities
    proposed: Mapping[str, Any] = MappingProxyType({})  # options that were used beside those given
    standardize: bool = False  # inputs should be standardized by client
    assumed: Mapping[str, Any] = MappingProxyType({})  # options that pass over the problems
    rest: Dataset | None = None  # where there are problems: what can be read with `assumed`


def check(path: Path | str, source: str | None = None, **options: Any) -> Checked:
    """Read a user's own data, and tell their content and every fault in it.

    What was read is kept, so that a run that follows starts at once.

    Args:
        path: a folder of images, a table of images or of
            features (CSV, Parquet), or an `.npz` file.
        source: "folder", "table", "npz" or "features"; by default what `path` looks
            like.
        **options: of the source, and root.

    Raises:
        DatasetUnavailable: `path` is not there.
        ValueError: an unknown source or option.
    """
    place = Path(path).expanduser()
    name = source or source_of(place, options.get("file_column") or "file")
    places = {"path": path, "root": options.pop("root", None)}
    options = names_apart(name, options)
    taken = {where: value for where, value in places.items() if SOURCES.takes(name, where)}
    findings = Findings()
    proposed, assumed = _proposed(name, place, options, findings)
    problems: list[str] = []
    notes = findings.notes
    dataset = None
    roles = {option: value for option, value in assumed.items() if option != "ignore"}
    # Each time without what was wrong before, so that all is said at once.
    for passed_over in {str(one): one for one in ({}, roles, assumed)}.values():
        try:
            dataset = read(name, **taken, **{**options, **proposed, **passed_over})
            break
        except BadData as error:
            problems += error.problems
            notes += error.notes
    standardize = False
    if dataset is not None:
        given = {**taken, **options, **proposed, **passed_over}
        dataset, apart = _by_client(name, dataset, given, notes)
        standardize = apart is not None and apart.by_client
        notes += [*dataset.extra.get("notes", ()), *remarks(dataset)]
        notes += [] if apart is None else [apart.sentence]
    said = tuple(dict.fromkeys(problems)), tuple(dict.fromkeys(notes))
    if not problems:
        return Checked(name, dataset, *said, proposed, standardize)
    return Checked(name, None, *said, proposed, standardize, assumed, dataset)


def _by_client(
    source: str, dataset: Dataset, given: Mapping[str, Any], notes: list[str]
) -> tuple[Dataset, Apart | None]:
    """Find sites that differ, and read a table again as a run standardized by client reads it:
    with missing cells filled in by each client's own rows. Notes of the other reading go.
    """
    if dataset.train.client is None or given.get("missing") != "median":
        return dataset, sites_apart(dataset)
    by_client = read(source, **given, standardize="client")
    apart = sites_apart(by_client)
    if apart is None or not apart.by_client:
        return dataset, apart
    notes[:] = [note for note in notes if note not in dataset.extra["notes"]]
    return by_client, apart


def _proposed(
    source: str, path: Path, given: Mapping[str, Any], findings: Findings
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Choose options for a table whose columns have other names than the usual ones, or hold
    more than numbers.

    Returns:
        Those that a run needs; and those beside them with which the rest of a faulty table can be
        looked at.
    """
    found: dict[str, Any] = {}
    assumed: dict[str, Any] = {}
    file: Path | None = path
    if source == "folder" and path.is_dir() and given.get("layout", "auto") == "auto":
        column = given.get("file_column") or FILE
        file, paths_column = find_table(path, list_images(path), column)
        if column == FILE != paths_column:
            found["file_column"] = paths_column
    if source not in ("folder", "table") or file is None or not file.is_file():
        return {}, {}
    table = read_table(file)
    roles = _named_roles(table)
    for role, columns in roles.items():
        option = f"{role}_column"
        if given.get(option) not in (None, role, *table):
            assumed[option] = columns[-1] if columns else role
        if role in table or given.get(option, role) not in (None, role):
            continue
        if len(columns) == 1:
            found[option] = columns[0]
        elif columns:
            findings.notes.append(
                f"columns {_listed(columns)} may each say the {role}; name one: "
                f"data.{option}={columns[0]}"
            )
            assumed[option] = columns[-1]
    if source == "table":
        found = _by_content(table, given, found, roles, findings, assumed)
    return found, assumed


def _named_roles(columns: Iterable[str]) -> dict[str, list[str]]:
    """Find the columns whose names say a role: those that are called so, else those whose names
    end so.
    """
    exact: dict[str, list[str]] = {role: [] for role in USUAL}
    longer: dict[str, list[str]] = {role: [] for role in USUAL}
    for column in columns:
        apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", column)
        plain = unicodedata.normalize("NFKD", apart.casefold())
        plain = "".join(letter for letter in plain if not unicodedata.combining(letter))
        words = [word for word in re.split(r"[\W_]+", plain) if word and word not in NEUTRAL]
        for role, known in USUAL.items():
            if not words or words[-1] not in known or not {*words}.isdisjoint(OTHERWISE):
                continue
            if len(words) == 1:
                exact[role].append(column)
            elif len(words[-1]) > 1:
                longer[role].append(column)
    return {role: exact[role] or longer[role] for role in USUAL}


def _by_content(
    table: "pandas.DataFrame",
    given: Mapping[str, Any],
    named: Mapping[str, str],
    hinted: Mapping[str, Sequence[str]],
    findings: Findings,
    assumed: dict[str, Any],
) -> dict[str, Any]:
    """Propose options of the source `table`.

    Args:
        table: as `read_table` gives it.
        given: the user's options, which are kept.
        named: those that follow from the names of columns.
        hinted: columns whose names say a role, several for one where nobody can tell.
        findings: for notes that say why.
        assumed: gets a likely label, and the columns that cannot be read.

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
    if not (named_label or hinted["label"] or one_hot(table)):
        # The last column, or the first one, where its values repeat.
        other = {name for columns in hinted.values() for name in columns}
        free = [name for name in rest if name not in other]
        counts = {name: len(set(texts[name]) - {""}) for name in free}
        most = min(CLASSES, len(table) // 2)
        likely = [name for name, count in counts.items() if 1 < count <= most]
        label = next((name for name in (*free[-1:], *free[:1]) if name in likely), None)
        if label is None and likely:
            words = [name for name in likely if np.isnan(as_numbers(texts[name])).all()]
            partly = [name for name in words if "" in texts[name]]  # as labels are here
            assumed["label_column"] = (partly or words or likely)[-1]
        if label is not None:
            found["label_column"] = roles["label"] = label
            rest.remove(label)
            findings.notes.append(
                f"column {label!r} is taken as the label: it holds {counts[label]} different values"
            )
    if guessed := assumed.get("label_column"):
        roles["label"] = guessed
        rest = [name for name in rest if name != guessed]
        findings.notes.append(
            f"which column is the label cannot be told; {guessed!r} is taken for it below, so that "
            f"the rest can be looked at; name yours: data.label_column={guessed}"
        )
    marks = tuple(map(str, given.get("missing_marks") or MARKS))
    read = [name for name in (*rest, roles["label"]) if name in texts]
    cells = {name: as_cells(texts[name], marks) for name in read}
    beyond = []
    for name in rest:
        present = [cell for cell in cells[name] if cell]
        strays = [present[row] for row in np.flatnonzero(np.isnan(as_numbers(present)))]
        if any(re.fullmatch(BEYOND, cell) for cell in strays):
            beyond.append(name)
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
    useless: dict[str, list[str]] = {}  # identifiers, free text, and columns that say nothing
    codes: dict[str, np.ndarray] = {}
    for name in rest:
        told = Findings()
        empty = cells[name].count("")
        if EMPTY * len(table) <= empty < len(table):
            told.problems.append(
                f"column {name!r} is empty in {empty:,} of {len(table):,} rows, which a median "
                f"would fill; it is left out (data.ignore={name})"
            )
        elif kind_of(name, cells[name], reading, told).kind == "number":
            numbers = as_numbers(cells[name])
            told.problems += identifiers([name], numbers[:, None], labels)
            values = np.unique(numbers[~np.isnan(numbers)])
            few = 2 < len(values) <= min(FEW_CODES, len(table) // 5)
            if few and (values == np.rint(values)).all():
                codes[name] = values.astype(int)
        if told.problems:
            useless[name] = told.problems
    if codes:
        shown = "; ".join(f"{name}: {_listed(values.tolist())}" for name, values in codes.items())
        findings.notes.append(
            f"few whole numbers, taken as amounts ({shown}); where they are codes of things "
            f"without an order: data.codes={','.join(codes)}"
        )
    if 0 < len(useless) < len(rest):
        found["ignore"] = (*ignored, *useless)
        findings.notes += [reason for reasons in useless.values() for reason in reasons]
    if beyond:
        assumed["ignore"] = (*found.get("ignore", ignored), *beyond)
    return found


def source_of(path: Path, file_column: str = "file") -> str:
    """Choose the source that reads a path: a table with a column for the file is one of images.

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
    if isinstance(dataset.reading, TableReading):
        first = 0
        for feature in dataset.reading.features:
            width = max(len(feature.levels), 1)
            times = train.x[:, first : first + width].sum(axis=0).astype(int)
            found += _spelt_alike(f"in column {feature.name!r},", feature.levels, times)
            first += width
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
    """Find names that differ by capitals, blanks, a dot at the end or what nobody sees, or by one
    letter, one of them rare.
    """
    found: list[str] = []
    plain = list(map(_as_seen, names))
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


def _as_seen(name: str) -> str:
    """Write a name without capitals, blanks, hyphens, invisible characters, and punctuation around
    it; signs stay, which may be all that differs: ">50K" and "<=50K".
    """
    letters = (
        letter
        for letter in unicodedata.normalize("NFKC", name)
        if unicodedata.category(letter) not in _UNSEEN and letter not in _UNSEEN_LETTERS
    )
    plain = re.sub(r"[\s_]+", "", "".join(letters)).casefold()
    return plain.strip(_AROUND) or plain


def _one_letter_off(first: str, second: str) -> bool:
    """Tell whether one is likely a misspelling of the other; "site 1" and "site 2" are not."""
    if re.findall(r"\d+", first) != re.findall(r"\d+", second) or abs(len(first) - len(second)) > 2:
        return False
    return difflib.SequenceMatcher(None, first, second).ratio() >= SIMILAR


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(map(str, names[:SHOWN])) + (
        f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    )
