"""Splits and columns of datasets that other libraries keep: the options by which a user names
them.
"""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path

from fedjax_ssl.data.reading.problems import BadData
from fedjax_ssl.data.reading.tables import no_column
from fedjax_ssl.errors import did_you_mean


@dataclasses.dataclass(frozen=True)
class Choice:
    """Splits and columns of a dataset that are read.

    Attributes:
        train_split: the split that is trained on.
        test_split: the split that is tested on; by default "test", if there is one.
        unlabelled_split: a split whose examples follow the training examples without a label, such
            as STL-10's.
        input_key: the column that is the input; by default what the dataset says, or the only one
            that could be.
        label_key: the column that is the class; by default what the dataset says, or the only class
            label.
        coarse_key: a column of labels in another space, such as CIFAR-100's `coarse_label`.
        client_key: a column that says whose example it is.
    """

    train_split: str = "train"
    test_split: str | None = None
    unlabelled_split: str | None = None
    input_key: str | None = None
    label_key: str | None = None
    coarse_key: str | None = None
    client_key: str | None = None


def choose_splits(
    where: Path | str, choice: Choice, there: Collection[str]
) -> tuple[list[str], str | None]:
    """Choose the splits to read, training examples first, and the one that is tested on.

    Args:
        where: the dataset, for messages.
        choice: the user's.
        there: splits that the dataset has.

    Raises:
        BadData: a split that is not there, or that is to be used twice.
    """
    test = choice.test_split or ("test" if "test" in there else None)
    chosen = [
        name for name in (choice.train_split, choice.unlabelled_split, test) if name is not None
    ]
    for name in chosen:
        if name not in there:
            raise BadData(
                where,
                f"there is no split {name!r}.{did_you_mean(name, there)} Splits: "
                f"{', '.join(there)}",
            )
    if len(set(chosen)) < len(chosen):
        raise BadData(
            where, f"{', '.join(chosen)} are two of one split; give each a split of its own"
        )
    return chosen, test


def choose_columns(
    where: Path | str,
    choice: Choice,
    there: Collection[str],
    fitting: Mapping[str, Collection[str]],
) -> dict[str, str]:
    """Choose the column of each role.

    Args:
        where: the dataset, for messages.
        choice: the user's.
        there: columns that the dataset has.
        fitting: columns by each role that is needed; the only one is taken where the user names
            none.

    Raises:
        BadData: a column that is not there, or several or none that fit; has all of them.
    """
    chosen = {}
    problems = []
    for role in ("input", "label", "coarse", "client"):
        given = getattr(choice, f"{role}_key")
        candidates = list(fitting.get(role, ())) if given is None else [given]
        if given is not None and given not in there:
            problems.append(no_column(given, there))
        elif len(candidates) == 1:
            chosen[role] = candidates[0]
        elif role in fitting:
            problems.append(
                f"{len(candidates) or 'no'} columns could be the {role}; name one with "
                f"data.{role}_key. Columns: {', '.join(there)}"
            )
    if problems:
        raise BadData(where, problems)
    return chosen
