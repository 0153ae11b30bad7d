"""Names of classes, clients, patients and the like in one form, whatever file they come from."""

import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from fedjax_ssl.data.dataset import in_one_form

# what stands for a missing cell, beside an empty one, in capitals or not
MARKS = ("?", "NA", "N/A", "NaN", "null")
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
    """Write a mark of missing cells, in capitals or not, as ""."""
    missing = {in_one_form(mark).casefold() for mark in marks}
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
    """Return the number of each text, int32 [n], "" = -1, and what the numbers stand for: whole
    numbers by value, words by letter.
    """
    known = {text for text in texts if text}
    are_numbers = all(re.fullmatch(r"-?\d+", text) for text in known)
    names = sorted(known, key=lambda text: (int(text), text)) if are_numbers else sorted(known)
    number = {"": -1} | {name: place for place, name in enumerate(names)}
    return np.array([number[text] for text in texts], np.int32), tuple(names)
