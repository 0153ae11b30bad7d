"""Run folders: file names, comparison of configs, and the lock."""

import contextlib
import json
import os
import socket
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import filelock

from fedjax_ssl.folder.files import Closing
from fedjax_ssl.gone import gone, without_gone

# Fields of `summary.json` that must be equal for runs to be compared by seed, and how others
# differ.
COMPARED = {
    "test_fingerprint": "tested on other examples",
    "labels_seen": "with another number of labels",
}
# In the folder of a sweep, this file replaces `config.json`.
SWEEP_FILE = "sweep.json"
SEARCH_FILE = "search.json"
CODE_FOLDER = "code"  # folder in a run folder with copies of the user's own modules

Built = TypeVar("Built")  # object made from a stored file


class RunFolderError(ValueError):
    """The run folder cannot be used as it is."""


class ConfigMismatch(RunFolderError):
    """The run folder belongs to a run with another config."""


class FolderMended(UserWarning):
    """Something in a run folder was missing, damaged or in the way; the message says what was
    done.
    """


def read_stored(path: Path, build: Callable[[Any], Built]) -> Built | None:
    """Read a JSON file in a folder of runs and build an object from it; None if there is no file.

    Args:
        path: path of the file.
        build: its content -> the result.

    Raises:
        RunFolderError: it cannot be read, or `build` cannot use it.
    """
    if not path.exists():
        return None
    try:
        return build(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunFolderError(
            f"{path} is damaged ({error!r}). Give another --workdir, or delete this folder."
        ) from error


def an_object(content: Any) -> dict[str, Any]:
    """Refuse anything but a JSON object."""
    if not isinstance(content, dict):
        raise TypeError(f"it holds {type(content).__name__}, no object")
    return content


def config_differences(
    stored: Mapping[str, Any], config: Mapping[str, Any], *, ignore: Collection[str] = ()
) -> list[str]:
    """Compare two configs field by field.

    Args:
        stored: nested mapping, as read from JSON.
        config: nested mapping, as read from JSON.
        ignore: dotted names of fields or groups that may differ.

    Returns:
        One line per differing field, sorted by name: "name: old -> new", "-" standing for a missing
        field, which is as good as null.
    """
    old = flat_config(without_gone(stored), ignore)
    new = flat_config(config, ignore)
    method = str(old.get("method.name", ""))
    lines = []
    for name in sorted(old.keys() | new.keys()):
        # An option that appeared or went with a version of the package.
        if old.get(name) is None and new.get(name) is None:
            continue
        # As text, because 1, 1.0 and True are equal in Python but different settings.
        before, after = (
            json.dumps(values[name]) if name in values else "-" for values in (old, new)
        )
        if before != after:
            went = gone(name, old[name], method) if name in old else None
            lines.append(f"{name}: {before} -> {went.now if went else after}")
    return lines


def flat_config(
    config: Mapping[str, Any], ignore: Collection[str] = (), prefix: str = ""
) -> dict[str, Any]:
    """Flatten a nested config to its fields by their dotted names.

    Args:
        config: nested mapping.
        ignore: dotted names of fields or groups that are left out.
        prefix: put before every name.
    """
    flat: dict[str, Any] = {}
    for own, value in config.items():
        name = f"{prefix}{own}"
        if name in ignore:
            continue
        if isinstance(value, Mapping) and value:
            flat.update(flat_config(value, ignore, f"{name}."))
        else:
            flat[name] = value
    return flat


class FolderLocked(RuntimeError):
    """Another process works in this run folder."""


class FolderLock(Closing):
    """Holds a folder for this process until `close`, or until the process ends in any way.

    The operating system keeps the lock (on `folder/.lock`) and drops it with the process, so a lock
    left by a killed process needs no clean-up. `.owner` beside it, process and host, serves the
    message only. Where the file system offers no such locks, a warning says so and the run goes on
    without one.
    """

    def __init__(self, folder: str | os.PathLike):
        """Take the lock.

        Args:
            folder: an existing folder.

        Raises:
            FolderLocked: a living process holds it; the message names process, host and start.
        """
        self._lock = filelock.FileLock(Path(folder) / ".lock")
        owner = Path(folder) / ".owner"
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            try:
                found = json.loads(owner.read_text(encoding="utf-8"))
                who = f"process {found['pid']} on host {found['host']} (since {found['since']})"
            except (OSError, ValueError, KeyError, TypeError):
                who = "another process"
            raise FolderLocked(
                f"{folder} is in use by {who}. A run folder serves one run at a time: wait for "
                "it, stop it, or give another --workdir."
            ) from None
        except NotImplementedError:
            text = f"{folder} is on a file system without locks: do not start a second run there."
            warnings.warn(text, stacklevel=4)
        me = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        # a full disk: the lock holds, only the message of others knows less
        with contextlib.suppress(OSError):
            owner.write_text(json.dumps(me), encoding="utf-8")

    def close(self) -> None:
        """Release the folder; a second call does nothing."""
        self._lock.release()
