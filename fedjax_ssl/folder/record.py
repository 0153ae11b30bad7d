"""All that a run reads from its folder and writes there."""

import contextlib
import json
import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_collections
import numpy as np

from fedjax_ssl.federated import tree_bytes
from fedjax_ssl.folder.checkpoint import Checkpoints, to_arrays
from fedjax_ssl.folder.curves import plot_curves
from fedjax_ssl.folder.files import Closing, decode_json, encode_json, storing, write_atomically
from fedjax_ssl.folder.folder import FolderMended, RunFolder, RunFolderError
from fedjax_ssl.folder.resume import restorable, why_not_longer
from fedjax_ssl.folder.rows import ClientLog, MetricLog


class Record(Closing):
    """The record of a run in its folder. Use it as a context manager, or call `close` at the end.

    Attributes:
        path: path of the folder.
        folder: its files, its config and its lock.
    """

    def __init__(
        self,
        workdir: str | os.PathLike,
        config: Mapping[str, Any],
        **compared: Collection[str],
    ):
        """Open the folder.

        Args:
            workdir: as for `RunFolder`, which says what is raised.
            config: as for `RunFolder`.
            **compared: how `RunFolder` compares configs.
        """
        with storing(Path(workdir), lambda: "Nothing was started."):
            self.folder = RunFolder(workdir, config, **compared)
        self.path = self.folder.path
        self._config = config
        self._checkpoints = Checkpoints(self.path)
        self._best = Checkpoints(self.path, folder="best")
        self._log: MetricLog | None = None
        self._clients: ClientLog | None = None
        self._round = 0  # restored
        # the best model, not yet written
        self._held: tuple[int, dict[str, np.ndarray], dict[str, str]] | None = None

    def settle(self, config: ml_collections.ConfigDict) -> None:
        """Let a run that was complete get longer; raise ConfigMismatch where it cannot.

        Its summary and its checkpoints of other rounds than those of a longer run are removed.

        Args:
            config: resolved, as it is now.
        """
        if not self.folder.changes:
            return
        rounds = self._checkpoints.rounds()
        if reason := why_not_longer(config, self.folder.changes, rounds):
            self.folder.refuse(reason)
        with self._storing(self.folder.config_file):
            self.folder.summary_file.unlink(missing_ok=True)
            self._checkpoints.forget(restorable(rounds, config.eval_every))
            self.folder.accept()

    def compare_data(self, known_by: Mapping[str, int | str]) -> None:
        """Raise RunFolderError where the run began on other data; a note where nobody can tell.

        Args:
            known_by: fingerprint of the data, see `fedjax_ssl.data.fingerprint`.
        """
        if self.folder.is_new:
            return
        stored = self._facts().get("data")
        if not isinstance(stored, dict):
            self._mended(
                f"{self.path} does not say which data its run began on; from now on it does, by "
                "these data"
            )
            return
        said = []
        for name, now in known_by.items():
            if (before := stored.get(name)) != now:
                number = (
                    f"{before:,} -> {now:,}"
                    if isinstance(before, int) and isinstance(now, int)
                    else "changed"
                )
                said.append(f"{name.replace('_', ' ')}: {number}")
        if said:
            raise RunFolderError(
                f"{self.path} holds a run on other data than these (stored -> now). "
                f"{'; '.join(said)}. Give it the data that it began on, or start a run on these "
                "with another --workdir."
            )

    def restore(self, template: Any) -> tuple[int, Any, dict[str, Any]] | None:
        """Load the last sound checkpoint and drop the metric rows of later rounds.

        Args:
            template: as for `Checkpoints.restore`, which says what is raised.

        Returns:
            (round, state, extra), None where there is no checkpoint.
        """
        found = None if self._checkpoints.latest() is None else self._checkpoints.restore(template)
        self._round = round = found[0] if found else 0
        digest = found[2].pop("rows", None) if found else None
        file = self.folder.metrics_jsonl
        with self._storing(file):
            try:
                self._log = MetricLog(self.path)
            except RunFolderError as error:
                if found:  # these are the only rows
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
        """Load the checkpoint of the best model by validation; None where there is none."""
        return None if self._best.latest() is None else self._best.restore(template)

    def temperature(self) -> dict[str, Any] | None:
        """Return the temperature that an earlier start left in model.json; None where there is
        none.
        """
        return self._facts().get("temperature")

    def _facts(self) -> dict[str, Any]:
        """Read what an earlier start left in model.json; nothing where it left none that can be
        read.
        """
        with contextlib.suppress(OSError, ValueError):
            found = json.loads((self.path / "model.json").read_text(encoding="utf-8"))
            return found if isinstance(found, dict) else {}
        return {}

    def save(self, round: int, state: Any, extra: Mapping[str, Any]) -> None:
        """Save a checkpoint, see `Checkpoints.save`."""
        if self._held is not None:  # first: a run that goes on from here must find it
            with self._storing(self.path / "best", tree_bytes(state)):
                self._best.write(*self._held)
            self._held = None
        with self._storing(self.folder.checkpoint_folder, tree_bytes(state)):
            self._checkpoints.save(round, state, {**extra, "rows": self._open_log().digest})

    def keep_best(self, round: int, state: Any) -> None:
        """Keep the best model by validation so far in memory; the next checkpoint writes it,
        too.
        """
        self._held = None  # its memory first
        arrays, keys = to_arrays(state)
        # state is overwritten
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
        with self._storing(self.folder.metrics_jsonl):
            if clients:
                if self._clients is None:
                    self._clients = ClientLog(self.path, after_round=self._round)
                self._clients.append(row["round"], clients)
            self._open_log().append(row)

    def rows(self) -> list[dict[str, Any]]:
        """Return all metric rows of the run so far."""
        return self._open_log().rows()

    def write(self, name: str, content: str) -> None:
        """Write a file of the folder, whole or not at all."""
        path = self.path / name
        with self._storing(path, len(content)):
            write_atomically(path, content)

    def draw_data(self, draw: Callable[[Path], object]) -> None:
        """Have partition.png drawn unless it is there."""
        path = self.path / "partition.png"
        if not path.exists():
            unfinished = path.with_name(".partition.png")
            with self._storing(path):
                draw(unfinished)
                unfinished.replace(path)

    def summary(self) -> dict[str, Any] | None:
        """Return the summary of a run that was completed before; None if there is none, or none
        of this run.
        """
        file = self.folder.summary_file
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

    def finish(
        self, rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], *, title: str
    ) -> None:
        """Write the summary and, where something was trained, the curves under this title."""
        if rows:
            with self._storing(self.path / "curves.png"):
                plot_curves(rows, self.path / "curves.png", title=title)
        self.write("summary.json", encode_json(summary, indent=2) + "\n")

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
        """Give the folder back; a second call does nothing."""
        self.folder.close()
