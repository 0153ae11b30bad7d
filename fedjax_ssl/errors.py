"""Errors shown to the user as one line, and shared words. This file imports nothing else of the
package.
"""

import contextlib
import difflib
import os
import sys
import warnings
from collections.abc import Collection, Iterator

INTERRUPTED = 130  # exit code after Ctrl-C
_PACKAGE = os.path.dirname(__file__) + os.sep


class UserError(ValueError):
    """A mistake of the user; the message says what was wrong and what to do."""


class ConfigError(ValueError):
    """A setting that cannot be used; the message names the field, its value and what is allowed."""


class ConfigNote(UserWarning):
    """A setting that has no effect beside the others."""


def note(text: str) -> None:
    """Warn with a `ConfigNote` that points to the line that called the package."""
    level = 1
    frame = sys._getframe()
    while frame.f_back and frame.f_code.co_filename.startswith(_PACKAGE):
        level = level + 1
        frame = frame.f_back
    warnings.warn(text, ConfigNote, stacklevel=level)


@contextlib.contextmanager
def naming(section: str = "") -> Iterator[None]:
    """Turn a ValueError of a room into a `ConfigError` that names the section of the config.

    Args:
        section: for example "model", or an option of a command such as "--data"; "" if the message
            names the field itself.
    """
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        where = (
            f"{section}: " if section.startswith("--") else f"config.{section}: " * bool(section)
        )
        raise ConfigError(f"{where}{error}") from error


def check_known(kind: str, name: object, known: Collection[str]) -> None:
    """Raise ValueError for a name that is not among the known ones."""
    if name not in known:
        raise ValueError(
            f"unknown {kind} {name!r}.{did_you_mean(name, known)} Available: {', '.join(known)}"
        )


def did_you_mean(name: object, known: Collection[str]) -> str:
    """Return a sentence with the nearest known name, with a space before it; "" if none is near.

    Example:
        >>> did_you_mean("fedavgg", ["xclp", "fedavg"])
        " Did you mean 'fedavg'?"
    """
    # Names of one section share its letters.
    cutoff = 0.66 if "." in str(name) else 0.5
    close = difflib.get_close_matches(str(name), list(map(str, known)), n=1, cutoff=cutoff)
    return f" Did you mean {close[0]!r}?" if close else ""


def how_to_install(extra: str) -> str:
    """Return the command to install an extra of the package, from the index and in a checkout.

    Example:
        >>> how_to_install("table")
        "pip install 'fedjax_ssl[table]', or in a checkout pip install '.[table]'"
    """
    return f"pip install 'fedjax_ssl[{extra}]', or in a checkout pip install '.[{extra}]'"


def counted(number: int, one: str, several: str | None = None) -> str:
    """Return a number with its noun: "1 run", "1,200 runs", "2 processes".

    Args:
        number: the number.
        one: the word for one.
        several: the word for any other number; by default with an "s".
    """
    return f"{number:,} {one if number == 1 else several or one + 's'}"
