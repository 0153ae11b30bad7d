"""All that a run reads from its folder, writes there and tells a person.

Of several processes that train one federation, one has a `Record`. The others have a `NoRecord` and run the same code.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_ssl.tracking.checkpoints import Checkpoints
from fedjax_ssl.tracking.curves import plot_curves
from fedjax_ssl.tracking.files import Closing, write_atomically
from fedjax_ssl.tracking.metric_log import MetricLog
from fedjax_ssl.tracking.progress import Progress
from fedjax_ssl.tracking.run_folder import RunFolder
from fedjax_ssl.tracking.summary import read_summary, write_summary


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
        quiet: bool = False,
    ):
        """Opens the folder.

        Args:
            workdir: as for `RunFolder`, which says what is raised.
            config: as for `RunFolder`.
            ignore: as for `RunFolder`.
            quiet: tell the person nothing.
        """
        self.folder = RunFolder(workdir, config, ignore=ignore)
        self.path = self.folder.path
        self._checkpoints = Checkpoints(self.path)
        self._log: MetricLog | None = None
        self._stream = open(os.devnull, "w", encoding="utf-8") if quiet else None  # noqa: SIM115

    def restore(self, template: Any) -> tuple[int, Any, dict[str, Any]] | None:
        """Loads the last sound checkpoint and drops the metric rows of later rounds.

        Args:
            template: as for `Checkpoints.restore`, which says what is raised.

        Returns:
            (round, state, extra), None where there is no checkpoint.
        """
        self._log = MetricLog(self.path)
        found = None if self._checkpoints.latest() is None else self._checkpoints.restore(template)
        self._log.truncate(after_round=found[0] if found else 0)
        return found

    def save(self, round: int, state: Any, extra: Mapping[str, Any]) -> None:
        """Saves a checkpoint, see `Checkpoints.save`."""
        self._checkpoints.save(round, state, extra)

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds a metric row, see `MetricLog.append`."""
        self._open_log().append(row)

    def rows(self) -> list[dict[str, Any]]:
        """Returns all metric rows of the run so far."""
        return list(self._open_log().rows())

    def progress(self, total_rounds: int, start_round: int) -> Progress:
        """Returns what reports to the person, see `Progress`."""
        return Progress(total_rounds, start_round=start_round, stream=self._stream)

    def describe_data(self, text: str) -> None:
        """Writes partition.txt."""
        write_atomically(self.path / "partition.txt", text)

    def draw_data(self, draw: Callable[[Path], object]) -> None:
        """Has partition.png drawn unless it is there."""
        path = self.path / "partition.png"
        if not path.exists():
            unfinished = path.with_name(".partition.png")
            draw(unfinished)
            unfinished.replace(path)

    def write_predictions(self, by_example: str, by_client: str) -> None:
        """Writes the tables of the predictions made so far."""
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
        """Returns the summary of a run that was completed before, None if there is none."""
        return read_summary(self.folder.summary_file) if self.folder.summary_file.exists() else None

    def finish(self, rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], *, title: str) -> None:
        """Writes the summary and, where something was trained, the curves under this title."""
        if rows:
            plot_curves(rows, self.folder.curves_file, title=title)
        write_summary(self.folder.summary_file, summary)

    def _open_log(self) -> MetricLog:
        if self._log is None:
            raise RuntimeError("call `restore` first: it decides which rows stay")
        return self._log

    def close(self) -> None:
        """Gives the folder back; a second call does nothing."""
        self.folder.close()
        if self._stream is not None:
            self._stream.close()


class NoRecord(Closing):
    """Stands in for a `Record` in a process that must not write: it finds nothing and keeps nothing.

    Attributes:
        path: the folder in which another process keeps the record.
    """

    def __init__(self, workdir: str | os.PathLike):
        """Opens nothing.

        Args:
            workdir: the run folder; it need not exist on this machine.
        """
        self.path = Path(workdir)
        self._nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115

    def restore(self, template: Any) -> None:
        """Finds no checkpoint."""

    def save(self, round: int, state: Any, extra: Mapping[str, Any]) -> None:
        """Saves nothing."""

    def append(self, row: Mapping[str, Any]) -> None:
        """Keeps no row."""

    def rows(self) -> list[dict[str, Any]]:
        """Returns no rows."""
        return []

    def progress(self, total_rounds: int, start_round: int) -> Progress:
        """Returns a report that nobody sees."""
        return Progress(total_rounds, start_round=start_round, stream=self._nowhere)

    def describe_data(self, text: str) -> None:
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
