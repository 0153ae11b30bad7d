"""The folder of one run: its config and lock, and all files that the run reads and writes there."""

import contextlib
import json
import os
import shutil
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import ml_collections
import numpy as np

from fedjax_ssl.federated import tree_bytes
from fedjax_ssl.folder.checkpoint import Checkpoints, to_arrays
from fedjax_ssl.folder.files import Closing, decode_json, encode_json, storing, write_atomically
from fedjax_ssl.folder.folder_lock import (
    CODE_FOLDER,
    SEARCH_FILE,
    SWEEP_FILE,
    ConfigMismatch,
    FolderLock,
    FolderMended,
    RunFolderError,
    an_object,
    config_differences,
    flat_config,
    read_stored,
)
from fedjax_ssl.folder.resume import changed_code, other_start, restorable, why_not_longer
from fedjax_ssl.folder.rows import ClientLog, MetricLog


class RunFolder(Closing):
    """`--workdir`: created or opened again, locked for this process, its config stored or compared.

    Use it as a context manager, or call `close` at the end.

    Attributes:
        path: the folder.
        is_new: True unless an earlier start stored its config and results here.
        code_before: digests of the user's own code when the run was here last, if some of it has
            changed since.
        longer, moved: of fields of these kinds that differ, stored value and the one now, by dotted
            name.
        config_file, metrics_jsonl, summary_file, checkpoint_folder: what others of its files are
            judged by.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        config: Mapping[str, Any],
        *,
        ignore: Collection[str] = (),
        lengths: Collection[str] = (),
        places: Collection[str] = (),
    ):
        """Open the folder. If an error is raised, nothing is written. A run that is already there
        stays unchanged until `restore`.

        Args:
            path: created with its parents if need be.
            config: nested mapping of numbers, strings, None and lists of these.
            ignore: dotted names of fields, or groups of fields, that do not change the result of a
                run ("progress", "checkpoint.every"): they are not compared, and the last ones are
                stored.
            lengths: dotted names of fields that may change where a run gets longer.
            places: dotted names of fields that may change where the data have moved.

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
        self.code_before: dict[str, str] | None = None
        self.longer: dict[str, tuple[Any, Any]] = {}
        self.moved: dict[str, tuple[Any, Any]] = {}
        self._config = config
        self._checkpoints = Checkpoints(self.path)
        self._best = Checkpoints(self.path, folder="best")
        self._log: MetricLog | None = None
        self._clients: ClientLog | None = None
        self._round = 0  # restored round
        self._other_text = False  # whether another config is stored
        self._longer_from: int | None = None  # last round from which a longer run goes on
        # The best model, not yet written.
        self._held: tuple[int, dict[str, np.ndarray], dict[str, str]] | None = None
        try:
            self._text = encode_json(config, indent=2) + "\n"
        except TypeError as error:
            raise RunFolderError(f"the config cannot be stored as JSON: {error}") from error
        with storing(self.path, lambda: "Nothing was started."):
            self._begin(ignore, lengths, places)

    def _begin(
        self, ignore: Collection[str], lengths: Collection[str], places: Collection[str]
    ) -> None:
        """Make and lock the folder, and store or compare the config."""
        self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(self.path)
        except OSError as error:
            above = (self.path, *self.path.parents)
            there = next((one for one in above if one.exists()), self.path)
            what = f"{there} is a file, no folder" if there.is_file() else error.strerror
            raise RunFolderError(
                f"{self.path} cannot be used as run folder: {what}. Give another --workdir."
            ) from error
        try:
            results = self._results()
            self.is_new = not (self.config_file.exists() and results)
            if self.is_new:
                self._refuse_orphans(results)
                write_atomically(self.config_file, self._text)
            else:
                self._compare(json.loads(self._text), ignore, lengths, places)
        except BaseException:
            self._lock.close()
            self._remove_what_was_made()
            raise
        self._open = True

    def _results(self) -> list[str]:
        """List results of an earlier start; a start that failed before its first row has none."""
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

    def _compare(
        self,
        config: dict,
        ignore: Collection[str],
        lengths: Collection[str],
        places: Collection[str],
    ) -> None:
        stored = read_stored(self.config_file, an_object) or {}
        differences = config_differences(stored, config, ignore=(*ignore, *lengths, *places))
        if differences:
            raise self._mismatch(differences)
        old = flat_config(stored)
        new = flat_config(config)
        self.longer, self.moved = (
            {
                name: (old[name], new[name])
                for name in names
                if name in old and name in new and json.dumps(old[name]) != json.dumps(new[name])
            }
            for names in (lengths, places)
        )
        self._other_text = stored != config

    def _mismatch(self, differences: list[str], reason: str = "") -> ConfigMismatch:
        return ConfigMismatch(
            f"{self.path} holds a run with another config (stored -> now):\n"
            + "".join(f"  {line}\n" for line in differences)
            + reason
            + "Give another --workdir, set these fields back, or delete the folder to start again."
        )

    def check(self, config: ml_collections.ConfigDict, now: Mapping[str, Any]) -> None:
        """Judge whether the run that is here may go on; notes tell what has changed and may.

        Args:
            config: resolved, as it is now.
            now: as `model.json` has them: fingerprint of the "data", hash of the "split", settings
                of JAX by which a seed "draws", digests of the user's own "code".

        Raises:
            RunFolderError: it began on other data, another split or other random numbers.
            ConfigMismatch: it cannot get longer.
        """
        if self.is_new:
            return
        stored = self._facts()
        if reason := other_start(stored, now):
            raise RunFolderError(f"{self.path} holds a run {reason}")
        if not isinstance(stored.get("data"), dict):
            if self.moved:
                raise self._mismatch(_lines(self.moved))
            self._mended(
                f"{self.path} does not say which data its run began on; from now on it does, by "
                "these data"
            )
        elif self.moved:
            lines = "; ".join(_lines(self.moved))
            self._mended(f"the data are the same in another place: {lines}")
        rounds = self._checkpoints.rounds()
        if changed := changed_code(stored, now["code"]):
            self.code_before = stored["code"]
            self._mended(
                f"code of your own has changed since the run began ({', '.join(changed)}): rounds "
                f"up to {max(rounds, default=0)} were trained with the code of then, and only "
                "further rounds are trained with that of now"
            )
        if self.longer and (reason := why_not_longer(config, self.longer, rounds)):
            raise self._mismatch(_lines(self.longer), f"{reason}\n")
        if self.longer:
            self._longer_from = restorable(rounds, config.eval_every)

    @property
    def begun(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return self._checkpoints.latest() is not None

    def restore(self, template: Any) -> tuple[int, Any, dict[str, Any]] | None:
        """Load the last sound checkpoint, then store the config and drop the metric rows of later
        rounds; of a run that gets longer, the summary and checkpoints that it cannot go on from.

        Args:
            template: as for `Checkpoints.restore`, which says what is raised.

        Returns:
            (round, state, extra), None where there is no checkpoint.
        """
        found = None
        if self.begun:
            found = self._checkpoints.restore(template, self._longer_from)
        with self._storing(self.config_file):
            if self._longer_from is not None:
                self.summary_file.unlink(missing_ok=True)
                self._checkpoints.forget(self._longer_from)
            if self._other_text:
                write_atomically(self.config_file, self._text)
        self._round = round = found[0] if found else 0
        digest = found[2].pop("rows", None) if found else None
        file = self.metrics_jsonl
        with self._storing(file):
            try:
                self._log = MetricLog(self.path)
            except RunFolderError as error:
                if found:  # no other rows exist
                    raise
                self._mended(f"{error} Done: it starts anew")
                file.unlink()
                self._log = MetricLog(self.path)
            there = self._log.rounds()
            self._log.truncate(after_round=round)
            self._best.forget(after_round=round)
            if found and not there:
                self._mended(
                    f"{file} is gone: totals and metrics are of the rounds after {round} only"
                )
            elif found and self._log.digest != digest:
                what = (
                    f"has other rows than those that the checkpoint of round {round} was saved with"
                )
                self._mended(
                    f"{file} {what}: totals and metrics up to there are those of this file"
                )
            elif len(there) > 1 and not found:  # one: stopped before its first checkpoint
                what = f"has rows up to round {there[-1]}, but there is no checkpoint"
                self._mended(f"{file} {what}: training starts again from round 0")
        return found

    def restore_best(self, template: Any) -> tuple[int, Any, dict[str, Any]] | None:
        """Load the checkpoint of the best model by validation; None if there is none."""
        return None if self._best.latest() is None else self._best.restore(template)

    def temperature(self) -> dict[str, Any] | None:
        """Return the temperature that an earlier start stored in model.json; None if there is
        none.
        """
        return self._facts().get("temperature")

    def _facts(self) -> dict[str, Any]:
        """Read the facts that an earlier start stored in model.json; empty if there are none that
        can be read.
        """
        with contextlib.suppress(OSError, ValueError):
            found = json.loads((self.path / "model.json").read_text(encoding="utf-8"))
            return found if isinstance(found, dict) else {}
        return {}

    def save(self, round: int, state: Any, extra: Mapping[str, Any]) -> None:
        """Save a checkpoint, see `Checkpoints.save`."""
        if self._held is not None:  # first, because a run that goes on from here needs it
            with self._storing(self.path / "best", tree_bytes(state)):
                self._best.write(*self._held)
            self._held = None
        with self._storing(self.checkpoint_folder, tree_bytes(state)):
            self._checkpoints.save(round, state, {**extra, "rows": self._open_log().digest})

    def keep_best(self, round: int, state: Any) -> None:
        """Keep the best model by validation so far in memory; the next checkpoint writes it too."""
        self._held = None  # free its memory first
        arrays, keys = to_arrays(state)
        # copied, because the state is overwritten
        self._held = round, {name: np.array(values) for name, values in arrays.items()}, keys

    def save_clients(self, round: int, models: Any) -> None:
        """Save the models of a round's clients."""
        with self._storing(self.path / "clients", tree_bytes(models)):
            Checkpoints(self.path, keep=1, folder="clients").save(round, models)

    def append(self, row: Mapping[str, Any], clients: Mapping[str, float] | None = None) -> None:
        """Add a metric row, see `MetricLog.append`.

        Args:
            row: numbers by column.
            clients: accuracies by name of the client, where they are known.
        """
        with self._storing(self.metrics_jsonl):
            if clients:
                if self._clients is None:
                    self._clients = ClientLog(self.path, after_round=self._round)
                self._clients.append(row["round"], clients)
            self._open_log().append(row)

    def rows(self) -> list[dict[str, Any]]:
        """Return all metric rows of the run so far."""
        return self._open_log().rows()

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file of the folder, whole or not at all."""
        path = self.path / name
        with self._storing(path, len(content)):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content)

    def store_code(self, texts: Mapping[str, str]) -> None:
        """Store copies of the user's own code; copies from earlier rounds move to a separate
        folder.

        Args:
            texts: by file.
        """
        code = self.path / CODE_FOLDER
        earlier = code / f"until_round_{self._round}"
        if self.code_before and self._round and not earlier.exists():
            with self._storing(code):
                earlier.mkdir(parents=True)
                for one in [*code.iterdir()]:
                    if not one.name.startswith("until_round_"):
                        one.rename(earlier / one.name)
        for name, text in texts.items():
            self.write(f"{CODE_FOLDER}/{name}", text)

    def summary(self) -> dict[str, Any] | None:
        """Return the summary of a completed run; None if there is none, or none of this run."""
        file = self.summary_file
        if not file.exists():
            return None
        try:
            found = decode_json(file.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            self._mended(f"{file} is damaged ({error}): it is written again")
            return None
        rounds = self._open_log().rounds()
        method = self._config.get("method", {}).get("name")
        last = rounds[-1] if rounds else None
        if (
            isinstance(found, dict)
            and found.get("method") == method
            and last in (None, found.get("rounds"))
        ):
            return found
        self._mended(f"{file} is not of this run: it is written again")
        return None

    def _storing(
        self, path: Path, size: int | None = None
    ) -> contextlib.AbstractContextManager[None]:
        return storing(path, self._what_is_safe, size)

    def _what_is_safe(self) -> str:
        round = self._checkpoints.latest()
        start = (
            "at the start"
            if round is None
            else f"from the checkpoint of round {round}, which is safe"
        )
        return f"The same command goes on {start}."

    @staticmethod
    def _mended(text: str) -> None:
        warnings.warn(text, FolderMended, stacklevel=5)

    def _open_log(self) -> MetricLog:
        if self._log is None:
            raise RuntimeError("call `restore` first: it decides which rows stay")
        return self._log

    def close(self) -> None:
        """Release the lock; a second call does nothing. A start without results leaves no
        folder.
        """
        if self._open and not self._results():
            if self.path in self._made:  # so that all in it is of this start
                shutil.rmtree(self.path, ignore_errors=True)
            for left in (
                "config.json",
                "metrics.csv",
                "model.json",
                "citations.bib",
                "partition.txt",
                ".lock",
                ".owner",
            ):
                (self.path / left).unlink(missing_ok=True)
            shutil.rmtree(self.path / CODE_FOLDER, ignore_errors=True)
            self._remove_what_was_made()
        self._open = False
        self._lock.close()

    def _remove_what_was_made(self) -> None:
        """Remove the empty folders that this start made."""
        for folder in self._made:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _lines(changes: Mapping[str, tuple[Any, Any]]) -> list[str]:
    return [
        f"{name}: {json.dumps(old)} -> {json.dumps(new)}"
        for name, (old, new) in sorted(changes.items())
    ]
