"""Propose how a table is to be read, by what its cells hold; `fedjax-ssl data check` tells it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_ssl.data.reading.columns import ROLES, numbered
from fedjax_ssl.data.reading.features import MARKS, MOST_LEVELS, TableReading, identifiers, kind_of
from fedjax_ssl.data.reading.problems import Findings
from fedjax_ssl.data.reading.tables import as_cells, as_numbers, as_text

if TYPE_CHECKING:  # takes long to import
    import pandas

CLASSES = 20  # more different values are no classes, where no name tells
STRAYS = 3  # words among numbers that may all mean a missing one


def by_content(
    table: "pandas.DataFrame", given: Mapping[str, Any], named: Mapping[str, str], findings: Findings
) -> dict[str, str]:
    """Propose options of the source `table`.

    Args:
        table: as `read_table` gives it.
        given: the user's options, which are kept.
        named: those that follow from the names of columns.
        findings: for notes that say why.

    Returns:
        Options as text: those named that make sense, and label_column, missing_marks, missing and ignore where needed.
    """
    texts = {name: as_text(table[name]) for name in table}
    repeats = {name for name, column in texts.items() if len(set(column)) < len(column)}
    found = {option: name for option, name in named.items() if name in repeats or option == "file_column"}
    roles = {role: {**given, **found}.get(f"{role}_column") or role for role in ROLES}
    ignored = [str(name) for name in given.get("ignore") or ()]
    rest = [name for name in given.get("features") or table if name not in (*roles.values(), *ignored)]
    if roles["label"] == "label" not in table and (label := _label(rest, texts)):
        found["label_column"] = roles["label"] = label
        rest = [name for name in rest if name != label]
        findings.notes.append(f"column {label!r} is taken as the label, since it holds few different values")
    marks, seen = tuple(map(str, given.get("missing_marks") or MARKS)), set()
    cells = {name: as_cells(texts[name], marks) for name in (*rest, roles["label"]) if name in texts}
    for name in rest:
        strays = [
            cell for cell, value in zip(cells[name], as_numbers(cells[name]), strict=True) if cell and value != value
        ]
        if len(set(strays)) <= STRAYS and 2 * len(strays) < sum(map(bool, cells[name])):
            seen |= set(strays)
            cells[name] = ["" if cell in strays else cell for cell in cells[name]]
    seen |= {text for name, column in cells.items() for text, cell in zip(texts[name], column, strict=True) if not cell}
    if "missing_marks" not in given and seen - {""}:
        found["missing_marks"] = as_option(sorted(seen - {""}))
    if "missing" not in given and any("" in cells[name] for name in rest):
        found["missing"] = "median"
    labels, _ = numbered(cells.get(roles["label"], [""] * len(table)))
    if useless := _useless(rest, cells, labels, given, findings):
        found["ignore"] = as_option([*ignored, *useless])
    return found


def as_option(names: Sequence[str]) -> str:
    """Write names as the command line takes them."""
    return ",".join(names) if all("," not in name and name.lower() != "none" for name in names) else repr(tuple(names))


def _label(names: Sequence[str], texts: Mapping[str, Sequence[str]]) -> str | None:
    """Find the column that looks like a label: the last or the first one, if it holds few different values."""
    counts = {name: len(set(texts[name]) - {""}) for name in (*names[-1:], *names[:1])}
    return next((name for name, count in counts.items() if 1 < count <= min(CLASSES, len(texts[name]) // 2)), None)


def _useless(
    names: Sequence[str],
    cells: Mapping[str, Sequence[str]],
    labels: np.ndarray,
    given: Mapping[str, Any],
    findings: Findings,
) -> list[str]:
    """Find identifiers and free text among the columns."""
    every, found = np.ones(len(labels), bool), []
    reading = TableReading({}, codes=given.get("codes") or (), max_levels=given.get("max_levels") or MOST_LEVELS)
    for name in names:
        told = Findings()
        feature = kind_of(name, cells[name], every, reading, told)
        reasons = told.problems
        if feature.kind == "number":
            reasons = identifiers([name], as_numbers(cells[name])[:, None], labels)
        found += [name] * bool(reasons)
        findings.notes += reasons
    return found
