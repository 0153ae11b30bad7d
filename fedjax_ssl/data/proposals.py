"""Propose how a table is to be read, by what its cells hold; `fedjax-ssl data check` tells it."""

from collections.abc import Mapping
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
    rest = [
        name
        for name in given.get("features") or texts
        if name in texts and name not in (*roles.values(), *ignored)
    ]
    if roles["label"] not in table and "label_column" not in given:
        counts = {name: len(set(texts[name]) - {""}) for name in (*rest[-1:], *rest[:1])}
        for label in [
            name for name, count in counts.items() if 1 < count <= min(CLASSES, len(table) // 2)
        ][:1]:
            found["label_column"] = roles["label"] = label
            rest.remove(label)
            findings.notes.append(
                f"column {label!r} is taken as the label: it holds {counts[label]} different values"
            )
    marks = tuple(map(str, given.get("missing_marks") or MARKS))
    cells = {
        name: as_cells(texts[name], marks) for name in (*rest, roles["label"]) if name in texts
    }
    for name in rest:
        present = [cell for cell in cells[name] if cell]
        strays = [present[row] for row in np.flatnonzero(np.isnan(as_numbers(present)))]
        if len(set(strays)) <= STRAYS and 2 * len(strays) < len(present):
            cells[name] = ["" if cell in strays else cell for cell in cells[name]]
    seen = {
        text
        for name in cells
        for text, cell in zip(texts[name], cells[name], strict=True)
        if text and not cell
    }
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
        useless |= {name: told.problems} if told.problems else {}
    if 0 < len(useless) < len(rest):
        found["ignore"] = (*ignored, *useless)
        findings.notes += [reason for reasons in useless.values() for reason in reasons]
    return found
