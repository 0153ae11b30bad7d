"""Splits and columns of datasets that other libraries keep: the options by which a user names them."""

from collections.abc import Collection, Mapping
from pathlib import Path

from fedjax_ssl.data.reading.problems import BadData
from fedjax_ssl.errors import did_you_mean


def choose_splits(
    where: Path | str, wanted: Mapping[str, str | None], there: Collection[str]
) -> tuple[list[str], str | None]:
    """Choose the splits to read, training examples first, and the one that is tested on.

    Args:
        where: the dataset, for messages.
        wanted: splits to train on, to take without labels, and to test on ("test" by default, if there is one).
        there: splits that the dataset has.

    Raises:
        BadData: a split that is not there, or that is to be used twice.
    """
    test = wanted["test"] or ("test" if "test" in there else None)
    chosen = [name for name in (wanted["train"], wanted["unlabelled"], test) if name is not None]
    for name in chosen:
        if name not in there:
            raise BadData(where, [f"there is no split {name!r}.{did_you_mean(name, there)} Splits: {', '.join(there)}"])
    if len(set(chosen)) < len(chosen):
        raise BadData(where, [f"{', '.join(chosen)} are two of one split; give each a split of its own"])
    return chosen, test


def choose_columns(
    where: Path | str,
    keys: Mapping[str, str | None],
    there: Collection[str],
    fitting: Mapping[str, Collection[str]],
) -> dict[str, str]:
    """Choose the column of each role.

    Args:
        where: the dataset, for messages.
        keys: the user's choice by role.
        there: columns that the dataset has.
        fitting: columns by each role that is needed; the only one is taken where the user names none.

    Raises:
        BadData: a column that is not there, or several or none that fit; has all of them.
    """
    chosen, problems = {}, []
    for role, given in keys.items():
        candidates = list(fitting.get(role, ())) if given is None else [given]
        if given is not None and given not in there:
            hint = did_you_mean(given, there)
            problems.append(f"there is no column {given!r}.{hint} Columns: {', '.join(there)}")
        elif len(candidates) == 1:
            chosen[role] = candidates[0]
        elif role in fitting:
            problems.append(
                f"{len(candidates) or 'no'} columns could be the {role}; name one with data.{role}_key. Columns: "
                f"{', '.join(there)}"
            )
    if problems:
        raise BadData(where, problems)
    return chosen
