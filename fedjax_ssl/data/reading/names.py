"""Names of classes, clients, patients and the like in one form, whatever file they come from."""

import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from fedjax_ssl.data.dataset import in_one_form
from fedjax_ssl.data.reading.problems import Findings

# what stands for a missing cell, beside an empty one
MARKS = ("?", "-", "NA", "N/A", "NaN", "null", "inf", "-inf")
EXACT = 2**53  # from here on floating-point numbers skip whole numbers
# a number of many digits as spreadsheets and floating point write it
ROUNDED = r"[+-]?\d([.,]\d+)?[eE]\+?\d+"


def cell_text(value: Any) -> str:
    """Write a cell as text: whole numbers without a point, rounded ones with their exponent.

    Example:
        >>> from fedjax_ssl.data.reading.names import cell_text
        >>> cell_text(7.0), cell_text(0.5), cell_text(1234567890123456789)
        ('7', '0.5', '1234567890123456789')
    """
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    elif isinstance(value, float) and value.is_integer():
        value = int(value) if abs(value) < EXACT else f"{value:.16e}"
    return str(value).strip()


def as_cells(texts: Sequence[str], marks: Collection[str]) -> list[str]:
    """Write a mark of missing cells, in capitals or not, as ""; where + stands beside it, - is a
    sign and no mark.
    """
    missing = {in_one_form(mark).casefold() for mark in marks}
    missing -= {"-"} if "+" in texts else set()
    # Of numbers alone one has several forms, and most tables have no number as a mark.
    form = in_one_form if any(re.search(r"\d", mark) for mark in missing) else str
    return ["" if form(text).casefold() in missing else text for text in texts]


def named(
    texts: Sequence[str], marks: Collection[str] = MARKS, known: Collection[str] = ()
) -> list[str]:
    """Write names in one form, missing ones and -1 as "".

    Args:
        texts: names as they were read.
        marks: words that are no name.
        known: names that are names all the same, such as those of classes that the user gave.

    Example:
        >>> from fedjax_ssl.data.reading.names import named
        >>> named(["7", "7.0", "NA", "-1", "north"])
        ['7', '7', '', '', 'north']
    """
    given = {name.casefold() for name in known}
    none = {"-1"} - given
    forms = {text: in_one_form(text) for text in set(texts)}
    cells = as_cells(
        [forms[text] for text in texts], [one for one in marks if one.casefold() not in given]
    )
    return ["" if cell in none else cell for cell in cells]


def numbered(texts: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the number the texts [n], "" = -1, and name what the numbers stand for."""
    known = {text for text in texts if text}
    are_numbers = all(re.fullmatch(r"-?\d+", text) for text in known)
    names = sorted(known, key=lambda text: (int(text), text)) if are_numbers else sorted(known)
    number = {"": -1} | {name: place for place, name in enumerate(names)}
    return np.array([number[text] for text in texts], np.int32), tuple(names)


def numbered_groups(
    groups: Sequence[str], clients: Sequence[str] | None, findings: Findings
) -> np.ndarray:
    """Give numbers to groups (patients) [n], "" = -1; says which are at several clients.

    Whole numbers most of which are at several clients are counted anew by each client: there a
    number is another patient.

    Args:
        groups: the group of each example, as `named` writes it.
        clients: likewise its client, if they are known.
        findings: for the note.
    """
    owners: dict[str, set[str]] = {}
    for group, client in zip(groups, clients or (), strict=False):
        if group:
            owners.setdefault(group, set()).add(client)
    shared = [group for group, found in owners.items() if len(found) > 1]
    if clients is None or not shared:
        return numbered(groups)[0]
    told = f"{len(shared):,} of {len(owners):,} groups (patients), such as {shared[0]}, are at "
    counted_anew = 2 * len(shared) > len(owners) and all(group.isdecimal() for group in owners)
    if counted_anew:
        findings.notes.append(
            f"{told}several clients; as numbers they are taken as other patients at each client: "
            f"write them as names (P{shared[0]}) if one number is one patient everywhere"
        )
        pairs = zip(groups, clients, strict=True)
        groups = [f"{client} {group}" if group else "" for group, client in pairs]
    else:
        findings.notes.append(
            f"{told}several clients, and held out at all of them at once; if they are other "
            "patients at each client, write the client into their names"
        )
    return numbered(groups)[0]


def rounded(what: str, names: Collection[str]) -> list[str]:
    """Find numbers that lost digits, so that several may have become one: a sentence or none.

    Args:
        what: what they name, in words.
        names: as they were read.
    """
    return [
        f"a {what} is written {name}: a number that was rounded, so that several may have become "
        "one; save such numbers as text or as whole numbers"
        for name in names
        if re.fullmatch(ROUNDED, name)
    ][:1]
