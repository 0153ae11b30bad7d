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
from fedjax_ssl.data.reading.own import Place, as_numbers, read_table
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
    frame = read_table(path)
    wanted = ["client", "set", *class_names]
    needs = f"The first line must hold: {','.join(wanted)}; classes are named as in the dataset"
    for name in [one for one in (*frame, *wanted) if (one in frame) != (one in wanted)]:
        if name in frame:
            raise ValueError(
                f"{path}: unknown column {name!r}.{did_you_mean(name, wanted)} {needs}"
            )
        raise ValueError(f"{path}: column {name!r} is missing. {needs}")
    there = np.unique(client)
    places = {str(client_names[number]): place for place, number in enumerate(there)}
    known = {*zip(client.tolist(), sets.tolist(), strict=True)}
    table = np.zeros((len(there), int(sets.max(initial=0)) + 1, len(class_names)))
    values = np.stack([as_numbers(frame[name]) for name in class_names], axis=1)
    rows = zip(frame.index, frame["client"], frame["set"], values, strict=True)
    for where, client_text, set_text, given in rows:
        name, number = map(in_one_form, (client_text, set_text))
        if name not in places:
            raise ValueError(
                f"{where}: unknown client {name!r}.{did_you_mean(name, places)} Clients with "
                f"training examples: {', '.join(list(places)[:20])}"
            )
        if not number.isdigit() or (there[places[name]], int(number)) not in known:
            raise ValueError(
                f"{where}: client {name!r} has no training example in set {number!r}; sets are "
                "whole numbers, as in the column or array `set`"
            )
        place = places[name], int(number)
        if table[place].any():
            raise ValueError(f"{where}: client {name!r}, set {number} has a line already")
        # a share that is no number is NaN, which compares as false
        if not ((given >= 0).all() and abs(given.sum() - 1) <= TOLERANCE):
            raise ValueError(
                f"{where}: class shares are {given.tolist()} and sum to {given.sum():g}; they must "
                "be numbers of at least 0 that sum to 1"
            )
        table[place] = given / given.sum()
    for number, place in sorted(known):
        if place >= 0 and not table[np.searchsorted(there, number), place].any():
            raise ValueError(
                f"{path} has no line for client {client_names[number]!r}, set {place}, which has "
                "training examples; add its class shares, or give these examples the set -1"
            )
    return table


def proportions_digest(file: Place) -> str | None:
    """Compute the digest of such a file, for the name of data made with it; None where there is
    none.
    """
    path = None if file is None else Path(file).expanduser()
    return file_sha256(path) if path is not None and path.is_file() else None
