"""The folder of one run: its place for every file, its config, and its lock."""

import contextlib
import itertools
import json
import os
import shutil
import socket
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import filelock

from fedjax_ssl.folder.files import Closing, encode_json, write_atomically

# Fields, or groups of fields, of a config that decide how a run is watched and where it finds its
# data, but not what comes out of it.
WATCHING = (
    *(
        "checkpoint_every",
        "metrics",
        "profile",
        "save_clients",
        "test_predictions",
        "tracking",
        "distributed",
    ),
    *("data.root", "data.download", "data.timeout", "data.residence"),
)
FILES = (
    *(
        "config.json",
        "metrics.csv",
        "metrics.jsonl",
        "summary.json",
        "curves.png",
        "model.json",
        "predictions.csv",
    ),
    *("predictions_by_client.csv", "partition.txt", "partition.png", "client_accuracy.csv"),
    *("test_predictions.csv", "test_scores_by_client.csv"),
)
# Fields of `summary.json` that runs of a seed have in common where they are compared, and how
# others differ.
COMPARED = {
    "test_fingerprint": "tested on other examples",
    "labels_seen": "with another number of labels",
}
# What the folder of many runs has in place of `config.json`.
SWEEP_FILE = "sweep.json"
SEARCH_FILE = "search.json"

Built = TypeVar("Built")


class RunFolderError(ValueError):
    """The run folder cannot be used as it is."""


class ConfigMismatch(RunFolderError):
    """The run folder belongs to a run with another config."""


class FolderMended(UserWarning):
    """Something in a run folder was missing, damaged or in the way; the message says what became
    of it.
    """


class RunFolder(Closing):
    """`--workdir`: created or opened again, locked for this process, its config stored or compared.

    Use it as a context manager, or call `close` at the end.

    Attributes:
        path: the folder.
        is_new: True unless an earlier start stored its config and results here.
        changes: undecided fields that differ: stored value and the one now, by dotted name.
        config_file, metrics_jsonl, summary_file: files of the run that others of its files are
            judged by.
        checkpoint_folder: where `Checkpoints` keeps its files.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        config: Mapping[str, Any],
        *,
        ignore: Collection[str] = (),
        undecided: Collection[str] = (),
    ):
        """Open the folder; when an error is raised, nothing is written.

        Args:
            path: created with its parents if need be.
            config: nested mapping of numbers, strings, None and lists of these.
            ignore: dotted names of fields, or groups of fields, that do not change the result of a
                run ("progress", "checkpoint.every"): they are not compared, and the last ones are
                stored.
            undecided: dotted names of fields whose change somebody else judges: `changes` has those
                that differ, and nothing is stored before `accept` or `refuse`.

        Raises:
            FolderLocked: another process works here.
            ConfigMismatch: the stored config differs; the message lists every field.
            RunFolderError: no folder can be here, the stored config cannot be read, or results lie
                here without one.
        """
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.metrics_jsonl = self.path / "metrics.jsonl"
        self.summary_file = self.path / "summary.json"
        self.checkpoint_folder = self.path / "checkpoints"
        self.changes: dict[str, tuple[Any, Any]] = {}
        self._text = text = _config_text(config)
        self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(self.path)
        except OSError as error:
            there = next(
                (one for one in (self.path, *self.path.parents) if one.exists()), self.path
            )
            what = f"{there} is a file, no folder" if there.is_file() else error.strerror
            raise RunFolderError(
                f"{self.path} cannot be used as run folder: {what}. Give another --workdir."
            ) from error
        try:
            self._set_aside()
            results = self._results()
            self.is_new = not (self.config_file.exists() and results)
            if self.is_new:
                self._refuse_orphans(results)
                write_atomically(self.config_file, text)
            else:
                self._compare(json.loads(text), ignore, undecided)
        except BaseException:
            self._lock.close()
            self._remove_what_was_made()
            raise
        self._open = True

    def _set_aside(self) -> None:
        """Rename folders where files of the run go, and files where its folders go."""
        in_the_way = [path for path in (self.path / name for name in FILES) if path.is_dir()]
        in_the_way += [
            path for path in (self.checkpoint_folder, self.path / "best") if path.is_file()
        ]
        for path in in_the_way:
            numbers = (
                path.with_name(f"{path.name}.aside{number}") for number in itertools.count(1)
            )
            aside = next(one for one in numbers if not one.exists())
            path.rename(aside)
            kind = "a folder" if aside.is_dir() else "a file"
            warnings.warn(
                f"{path} was {kind}, in the way of the run: it is {aside.name} now", FolderMended, 5
            )

    def _results(self) -> list[str]:
        """List results of an earlier start; one that failed before its first row leaves none."""
        kept = (self.metrics_jsonl, self.checkpoint_folder, self.summary_file)
        return [item.name for item in kept if item.exists()]

    def _refuse_orphans(self, results: list[str]) -> None:
        for name, kind in ((SWEEP_FILE, "sweep"), (SEARCH_FILE, "search")):
            if (self.path / name).exists():
                raise RunFolderError(
                    f"{self.path} is the folder of a {kind}; give another --workdir."
                )
        if results:
            raise RunFolderError(
                f"{self.path} holds {' and '.join(results)} but no config.json to tell which run "
                "they belong to. Give another --workdir, or delete this folder."
            )

    def _compare(self, config: dict, ignore: Collection[str], undecided: Collection[str]) -> None:
        stored = read_stored(self.config_file, _an_object) or {}
        if differences := config_differences(stored, config, ignore=(*ignore, *undecided)):
            raise self._mismatch(differences)
        old = flat_config(stored)
        new = flat_config(config)
        self.changes = {
            name: (old[name], new[name])
            for name in undecided
            if name in old and name in new and json.dumps(old[name]) != json.dumps(new[name])
        }
        if stored != config and not self.changes:
            write_atomically(self.config_file, self._text)

    def accept(self) -> None:
        """Store the config with its `changes`: the run goes on under it."""
        write_atomically(self.config_file, self._text)
        self.changes = {}

    def refuse(self, reason: str) -> NoReturn:
        """Raise ConfigMismatch for the `changes`.

        Args:
            reason: one or more sentences.
        """
        lines = [
            f"{name}: {json.dumps(old)} -> {json.dumps(new)}"
            for name, (old, new) in sorted(self.changes.items())
        ]
        raise self._mismatch(lines, f"{reason}\n")

    def _mismatch(self, differences: list[str], reason: str = "") -> ConfigMismatch:
        return ConfigMismatch(
            f"{self.path} holds a run with another config (stored -> now):\n"
            + "".join(f"  {line}\n" for line in differences)
            + reason
            + "Give another --workdir, set these fields back, or delete the folder to start again."
        )

    def close(self) -> None:
        """Give the lock back; a second call does nothing. A start that came to nothing leaves
        nothing.
        """
        if self._open and not self._results():
            if self.path in self._made:  # so that all in it is of this start
                shutil.rmtree(self.path, ignore_errors=True)
            for left in (
                "config.json",
                "metrics.csv",
                "model.json",
                "partition.txt",
                ".lock",
                ".owner",
            ):
                (self.path / left).unlink(missing_ok=True)
            self._remove_what_was_made()
        self._open = False
        self._lock.close()

    def _remove_what_was_made(self) -> None:
        """Take the folders away that this start made, as far as they are empty."""
        for folder in self._made:
            with contextlib.suppress(OSError):
                folder.rmdir()


def read_stored(path: Path, build: Callable[[Any], Built]) -> Built | None:
    """Read a JSON file in the folder of runs and build something of it; None where there is no
    file.

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


def _an_object(content: Any) -> dict[str, Any]:
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
        field.
    """
    old = flat_config(stored, ignore)
    new = flat_config(config, ignore)
    lines = []
    for name in sorted(old.keys() | new.keys()):
        # As text, because 1, 1.0 and True are equal in Python and are three different settings.
        before, after = (
            json.dumps(values[name]) if name in values else "-" for values in (old, new)
        )
        if before != after:
            lines.append(f"{name}: {before} -> {after}")
    return lines


def _config_text(config: Mapping[str, Any]) -> str:
    try:
        return encode_json(config, indent=2) + "\n"
    except TypeError as error:
        raise RunFolderError(f"the config cannot be stored as JSON: {error}") from error


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
    """Holds a folder for this process until `close`, or until the process ends in whatever way.

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
        """Give the folder back; a second call does nothing."""
        self._lock.release()
