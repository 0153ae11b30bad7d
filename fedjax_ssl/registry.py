"""What an error message says to a name that nobody knows."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """A sentence that names the nearest known name, with a space before it; nothing where none is near.

    Args:
        name: as given.
        known: the names that there are.
    """
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""
