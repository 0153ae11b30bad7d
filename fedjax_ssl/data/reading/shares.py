"""Class shares of a user's own sets, from a small CSV file: one row per client and set.

    client,set,healthy,pneumonia
    north,0,0.8,0.2
    north,1,0.35,0.65

The columns after `client` and `set` are the names of all classes, in any order; a client is named
as in the dataset and a set by its number there.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from fedjax_ssl.data.dataset import in_one_form
from fedjax_ssl.data.reading.fetch import file_sha256
from fedjax_ssl.data.reading.own import Place, as_text, read_table
from fedjax_ssl.registry import did_you_mean

TOLERANCE = 1e-3  # by which a row may miss 1, as rounded shares do; it is normalized then


def read_proportions(
    path: str | Path,
    class_names: Sequence[str],
    client_names: Sequence[str] | None,
    client: Int[np.ndarray, " n"] | None,
    sets: Int[np.ndarray, " n"] | None,
) -> Float[np.ndarray, "G O K"]:
    """Read the class shares of every set of every client that has training examples.

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
        ValueError: it does not fit: the message names the line and says what is wrong, and what is
            allowed.
    """
    if client_names is None or client is None or sets is None:
        raise ValueError(
            "class shares of sets are given, but not the columns or arrays set and client of "
            "these sets"
        )
    path = Path(path).expanduser()
    shares = read_table(path)
    wanted = ["client", "set", *class_names]
    needs = f"The first line must hold: {','.join(wanted)}; classes are named as in the dataset"
    for name in shares:
        if name not in wanted:
            hint = did_you_mean(name, wanted)
            raise ValueError(f"{path}: unknown column {name!r}.{hint} {needs}")
    for name in wanted:
        if name not in shares:
            raise ValueError(f"{path}: column {name!r} is missing. {needs}")
    there = np.unique(client)
    places = {str(client_names[number]): place for place, number in enumerate(there)}
    table = np.zeros((len(there), int(sets.max(initial=0)) + 1, len(class_names)))
    cells = zip(*(as_text(shares[name]) for name in wanted), strict=True)
    for where, (client_text, set_text, *given) in zip(shares.index, cells, strict=True):
        name, number = map(in_one_form, (client_text, set_text))
        if name not in places:
            raise ValueError(
                f"{where}: unknown client {name!r}.{did_you_mean(name, places)} Clients with "
                f"training examples: {', '.join(list(places)[:20])}"
            )
        if not number.isdigit():
            raise ValueError(
                f"{where}: set is {number!r}; it must be a whole number, as in the array `set`"
            )
        place = places[name], int(number)
        if not np.any((client == there[place[0]]) & (sets == place[1])):
            raise ValueError(
                f"{where}: client {name!r} has no training example in set {number}; remove the line"
            )
        if table[place].any():
            raise ValueError(f"{where}: client {name!r}, set {number} has a line already")
        table[place] = _shares(where, given)
    for row, number in enumerate(there):
        for missing in np.unique(sets[(client == number) & (sets >= 0)]):
            if not table[row, missing].any():
                raise ValueError(
                    f"{path} has no line for client {client_names[number]!r}, set {missing}, "
                    "which has training examples; add its class shares, or give these examples "
                    "the set -1"
                )
    return table


def proportions_digest(file: Place) -> str | None:
    """Compute the digest of such a file, for the name of data made with it; None where there is
    none.
    """
    path = None if file is None else Path(file).expanduser()
    return file_sha256(path) if path is not None and path.is_file() else None


def _shares(where: str, cells: Sequence[str]) -> Float[np.ndarray, " K"]:
    try:
        values = np.asarray([float(cell) for cell in cells])
    except ValueError:
        raise ValueError(f"{where}: class shares are {cells}; all must be numbers") from None
    if not (np.isfinite(values) & (values >= 0)).all():
        raise ValueError(
            f"{where}: class shares are {values.tolist()}; all must be finite and at least 0"
        )
    if abs(values.sum() - 1) > TOLERANCE:
        raise ValueError(f"{where}: class shares sum to {values.sum():g}; they must sum to 1")
    return values / values.sum()
