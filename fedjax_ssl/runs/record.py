"""All that a run reads from its folder, writes there and tells a person.

Of several processes that train one federation, one has a `Record`. The others have a `NoRecord` and run the same code.
"""

import contextlib
import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from fedjax_ssl.runs.checkpoint import Checkpoints
from fedjax_ssl.runs.curves import plot_curves
from fedjax_ssl.runs.files import Closing, encode_json, storing, write_atomically
from fedjax_ssl.runs.folder import FolderMended, RunFolder, RunFolderError
from fedjax_ssl.runs.progress import Progress
from fedjax_ssl.runs.rows import ClientLog, MetricLog
from fedjax_ssl.runs.rows_copy import Mark, RowsCopy
from fedjax_ssl.runs.summary import read_summary, write_summary
from fedjax_ssl.runs.writers import Writers, WriterSettings, open_writers


class Record(Closing):
    """The record of a run in its folder. Use it as a context manager, or call `close` at the end.

    Attributes:
        path: the folder.
    """

    def __init__(
        self,
        workdir: str | os.PathLike,
        config: Mapping[str, Any],
        *,
        ignore: Collection[str] = (),
        undecided: Collection[str] = (),
        writers: WriterSettings | None = None,
        quiet: bool = False,
    ):
        """Opens the folder.

        Args:
            workdir: as for `RunFolder`, which says what is raised.
            config: as for `RunFolder`.
            ignore: as for `RunFolder`.
            undecided: as for `RunFolder`.
            writers: viewers that get the metrics too; none by default.
            quiet: tell the person nothing.
        """
        with storing(Path(workdir), lambda: "Nothing was started."):
            self.folder = RunFolder(workdir, config, ignore=ignore, undecided=undecided)
        self.path = self.folder.path
        self._config, self._settings = config, writers or WriterSettings()
        self._checkpoints, self._best = Checkpoints(self.path), Checkpoints(self.path, folder="best")
        self._log: MetricLog | None = None
        self._copy = RowsCopy(self.folder.checkpoint_folder)
        self._uncopied: list[bytes] = []  # lines of rows since the last checkpoint
        self._clients: ClientLog | None = None
        self._writers = Writers({})
        self._round = 0  # restored
        self._stream = open(os.devnull, "w", encoding="utf-8") if quiet else None  # noqa: SIM115

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """Undecided fields of the config that differ, see `RunFolder`."""
        return self.folder.changes

    def checkpoints(self) -> list[int]:
        """Returns the rounds that can be restored."""
        return self._checkpoints.rounds()

    def accept(self, after_round: int) -> None:
        """Lets the run go on under a config whose `changes` were found to be no obstacle.

        Args:
            after_round: from here on it goes on; the summary and later checkpoints are those of the shorter run.
        """
        with self._storing(self.folder.config_file):
            self.folder.summary_file.unlink(missing_ok=True)
            self._checkpoints.forget(after_round)
            self.folder.accept()

    def refuse(self, reason: str) -> NoReturn:
        """Raises ConfigMismatch, see `RunFolder.refuse`."""
        self.folder.refuse(reason)

    def restore(self, template: Any) -> tuple[int, Any, dict[str, Any]] | None:
        """Loads the last sound checkpoint and drops the metric rows of later rounds.

        Args:
            template: as for `Checkpoints.restore`, which says what is raised.

        Returns:
            (round, state, extra), None where there is no checkpoint.
        """
        found = None if self._checkpoints.latest() is None else self._checkpoints.restore(template)
        self._round = found[0] if found else 0
        mark = found[2].pop("rows", None) if found else None
        with self._storing(self.folder.metrics_jsonl):
            self._log = self._restored_log(mark)
            self._log.truncate(after_round=self._round)
            self._copy.start(self.folder.metrics_jsonl.read_bytes() if self._log.rows() else b"")
            self._best.forget(after_round=self._round)
        return found

    def _restored_log(self, mark: Mark | None) -> MetricLog:
        """The metric rows up to the restored round: the file's, or those of their copy where these are others."""
        file, round = self.folder.metrics_jsonl, self._round
        content = file.read_bytes() if file.exists() else b""
        kept = self._copy.find(mark, content)
        if kept is not None:
            if not content.startswith(kept):
                what = "has other rows than" if content else "is gone, but not"
                text = f"{file} {what} the checkpoint of round {round}: they are back from {self._copy.path}"
                warnings.warn(text, FolderMended, stacklevel=5)
            return MetricLog(self.path) if content == kept else MetricLog.rebuilt(self.path, kept)
        try:
            log = MetricLog(self.path)
        except RunFolderError as error:
            if round:  # these are the only rows
                raise
            warnings.warn(f"{error} Done: it starts anew", FolderMended, stacklevel=5)
            return MetricLog.rebuilt(self.path, b"")
        there = log.rows()
        if mark is not None and there:
            text = f"neither {file} nor {self._copy.path} has the rows that the checkpoint of round {round} was saved"
            text += f" with: totals and metrics up to there are those of {file.name}"
            warnings.warn(text, FolderMended, stacklevel=5)
        if round and not there:
            text = f"{file} is gone: totals and metrics are of the rounds after {round} only"
            warnings.warn(text, FolderMended, stacklevel=5)
        if len(there) > 1 and not round:  # one: stopped before its first checkpoint
            last = there[-1]["round"]
            text = f"{file} has rows up to round {last}, but there is no checkpoint: training starts again from round 0"
            warnings.warn(text, FolderMended, stacklevel=5)
        return log

    def restore_best(self, template: Any) -> tuple[int, Any, dict[str, Any]] | None:
        """Loads the checkpoint of the best validation accuracy; None where there is none."""
        return None if self._best.latest() is None else self._best.restore(template)

    def open_writers(self) -> None:
        """Opens the viewers' records; what is raised, `fedjax_ssl.runs.writers.open_writers` says."""
        self._writers = open_writers(self._settings, self.path, config=self._config, resume_round=self._round)

    def save(self, round: int, state: Any, extra: Mapping[str, Any]) -> None:
        """Saves a checkpoint, see `Checkpoints.save`."""
        with self._storing(self.folder.checkpoint_folder, _bytes_of(state)):
            lines, self._uncopied = self._uncopied, []
            self._checkpoints.save(round, state, {**extra, "rows": self._copy.extend(lines)})

    def save_best(self, round: int, state: Any) -> None:
        """Saves the checkpoint of the best validation accuracy so far."""
        with self._storing(self.path / "best", _bytes_of(state)):
            self._best.save(round, state)

    def append(self, row: Mapping[str, Any], clients: Mapping[str, float] | None = None) -> None:
        """Adds a metric row, see `MetricLog.append`.

        Args:
            row: numbers by column.
            clients: accuracies by name of the client, where they are known.
        """
        with self._storing(self.folder.metrics_jsonl):
            if clients:
                if self._clients is None:
                    self._clients = ClientLog(self.path, after_round=self._round)
                self._clients.append(row["round"], clients)
            self._uncopied.append(self._open_log().append(row))
        self._writers.write(row)

    def rows(self) -> list[dict[str, Any]]:
        """Returns all metric rows of the run so far."""
        return self._open_log().rows()

    def progress(self, total_rounds: int, start_round: int) -> Progress:
        """Returns what reports to the person, see `Progress`."""
        return Progress(total_rounds, start_round=start_round, stream=self._stream)

    def describe_data(self, text: str) -> None:
        """Writes partition.txt."""
        with self._storing(self.path / "partition.txt", len(text)):
            write_atomically(self.path / "partition.txt", text)

    def describe_model(self, model: Mapping[str, Any]) -> None:
        """Writes model.json."""
        with self._storing(self.folder.model_file):
            write_atomically(self.folder.model_file, encode_json(model, indent=1) + "\n")

    def draw_data(self, draw: Callable[[Path], object]) -> None:
        """Has partition.png drawn unless it is there."""
        path = self.path / "partition.png"
        if not path.exists():
            unfinished = path.with_name(".partition.png")
            with self._storing(path):
                draw(unfinished)
                unfinished.replace(path)

    def write_predictions(self, by_example: str, by_client: str) -> None:
        """Writes the tables of the predictions made so far."""
        with self._storing(self.folder.predictions_csv, len(by_example) + len(by_client)):
            write_atomically(self.folder.predictions_csv, by_example)
            write_atomically(self.folder.clients_csv, by_client)

    def files(self, *, trained: bool, predicted: bool) -> dict[str, Path]:
        """Returns what lies where at the end of a run, for its report."""
        files = {"summary": self.folder.summary_file}
        if trained:
            files |= {"metrics": self.folder.metrics_csv, "curves": self.folder.curves_file}
        if predicted:
            files |= {"predictions": self.folder.predictions_csv, "by client": self.folder.clients_csv}
        return files

    def summary(self) -> dict[str, Any] | None:
        """Returns the summary of a run that was completed before; None if there is none, or none of this run."""
        file = self.folder.summary_file
        if not file.exists():
            return None
        try:
            found = read_summary(file)
        except (ValueError, RecursionError) as error:
            found, what = None, f"is damaged ({error})"
        else:
            rows = self._open_log().rows()
            method, last = self._config.get("method", {}).get("name"), rows[-1]["round"] if rows else None
            if isinstance(found, dict) and found.get("method") == method and last in (None, found.get("rounds")):
                return found
            found, what = None, "is not of this run"
        warnings.warn(f"{file} {what}: it is written again", FolderMended, stacklevel=4)
        return found

    def finish(self, rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], *, title: str) -> None:
        """Writes the summary and, where something was trained, the curves under this title."""
        if rows:
            with self._storing(self.folder.curves_file):
                plot_curves(rows, self.folder.curves_file, title=title)
        with self._storing(self.folder.summary_file):
            write_summary(self.folder.summary_file, summary)
        self._writers.finish(summary)

    def _storing(self, path: Path, size: int | None = None) -> contextlib.AbstractContextManager[None]:
        return storing(path, self._what_is_safe, size)

    def _what_is_safe(self) -> str:
        round = self._checkpoints.latest()
        start = "at the start" if round is None else f"from the checkpoint of round {round}, which is safe"
        return f"The same command goes on {start}."

    def _open_log(self) -> MetricLog:
        if self._log is None:
            raise RuntimeError("call `restore` first: it decides which rows stay")
        return self._log

    def close(self) -> None:
        """Gives the folder back; a second call does nothing."""
        self._writers.close()
        self.folder.close()
        if self._stream is not None:
            self._stream.close()


def _bytes_of(state: Any) -> int:
    from fedjax_ssl.runs.checkpoint import tree_bytes

    return tree_bytes(state)


class NoRecord(Closing):
    """Stands in for a `Record` in a process that must not write: it finds nothing and keeps nothing.

    Attributes:
        path: the folder in which another process keeps the record.
        changes: none.
    """

    changes: Mapping[str, tuple[Any, Any]] = MappingProxyType({})

    def __init__(self, workdir: str | os.PathLike):
        """Opens nothing.

        Args:
            workdir: the run folder; it need not exist on this machine.
        """
        self.path = Path(workdir)
        self._nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115

    def checkpoints(self) -> list[int]:
        """Finds no checkpoint."""
        return []

    def accept(self, after_round: int) -> None:
        """Stores nothing."""

    def refuse(self, reason: str) -> None:
        """Leaves that to another process."""

    def restore(self, template: Any) -> None:
        """Finds no checkpoint."""

    def restore_best(self, template: Any) -> None:
        """Finds no checkpoint."""

    def open_writers(self) -> None:
        """Opens nothing."""

    def save(self, round: int, state: Any, extra: Mapping[str, Any]) -> None:
        """Saves nothing."""

    def save_best(self, round: int, state: Any) -> None:
        """Saves nothing."""

    def append(self, row: Mapping[str, Any], clients: Mapping[str, float] | None = None) -> None:
        """Keeps no row."""

    def rows(self) -> list[dict[str, Any]]:
        """Returns no rows."""
        return []

    def progress(self, total_rounds: int, start_round: int) -> Progress:
        """Returns a report that nobody sees."""
        return Progress(total_rounds, start_round=start_round, stream=self._nowhere)

    def describe_data(self, text: str) -> None:
        """Writes nothing."""

    def describe_model(self, model: Mapping[str, Any]) -> None:
        """Writes nothing."""

    def draw_data(self, draw: Callable[[Path], object]) -> None:
        """Draws nothing."""

    def write_predictions(self, by_example: str, by_client: str) -> None:
        """Writes nothing."""

    def files(self, *, trained: bool, predicted: bool) -> dict[str, Path]:
        """Returns no files."""
        return {}

    def summary(self) -> None:
        """Finds no summary."""

    def finish(self, rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], *, title: str) -> None:
        """Writes nothing."""

    def close(self) -> None:
        """Closes the report; a second call does nothing."""
        self._nowhere.close()
