"""Read from the run folders how each run ended, and write the results as one table."""

import csv
import io
import math
import traceback
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock

from fedjax_ssl import command_line
from fedjax_ssl.folder.files import encode_json, write_atomically
from fedjax_ssl.folder.folder_lock import FolderLocked
from fedjax_ssl.folder.stored_run import read_object
from fedjax_ssl.sweep.sweep_plan import Plan, PlannedRun

DONE = "done"
DIVERGED = "diverged"
FAILED = "failed"
STOPPED = "stopped"
MISSING = "missing"
_ENDED = "ended.json"  # in the folder of a run that ended without a summary
# Fields of a summary about machine and clock, which differ between two sweeps of the same runs.
_MEASURED = ("seconds", "per_second", "peak_memory", "versions", "device", "command")


def folder_of(sweep: Path, name: str) -> Path:
    """Return the folder of a run."""
    return sweep / "runs" / name


class End(NamedTuple):
    """State of a run."""

    status: str
    message: str = ""  # reason why it ended early
    summary: dict[str, Any] | None = None


def end_of(folder: Path) -> End:
    """Read the state of a run from its folder."""
    summary = read_object(folder / "summary.json")
    if summary is not None:
        return End(_status(summary), summary.get("diverged", ""), summary)
    return End(**(read_object(folder / _ENDED) or {"status": MISSING}))


def _status(summary: Mapping[str, Any]) -> str:
    return DIVERGED if "diverged" in summary else DONE


def note_end(folder: Path, result: dict[str, Any] | Exception | None) -> End:
    """Store how a run ended that left no summary.

    Args:
        folder: the run's.
        result: result of `run_batch`: its summary, an error, or None if a pruner stopped it.

    Returns:
        The state of the run, with the result in words as message.
    """
    if isinstance(result, FolderLocked):  # another process does this run
        return End(MISSING, str(result))
    if isinstance(result, dict):
        return End(_status(result), brief(result))
    if result is None:
        return mark(folder, STOPPED, "stopped by the pruner")
    return mark(folder, FAILED, message_of(result))


def mark(folder: Path, status: str, message: str) -> End:
    """Store that a run ended without a summary; a later start deletes it."""
    folder.mkdir(parents=True, exist_ok=True)
    ended = {"status": status, "message": message}
    write_atomically(folder / _ENDED, encode_json(ended, indent=1) + "\n")
    return End(status, message)


def unmark(folder: Path) -> None:
    """Delete how a run ended, because it starts again."""
    (folder / _ENDED).unlink(missing_ok=True)


def message_of(error: BaseException) -> str:
    """Return why a run failed: the message for a user's mistake, otherwise type and place."""
    if message := command_line.message_of(error):
        return message
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in place)
    return f"{type(error).__name__}: {error}{where}"


def unfinished(sweep: Path, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """List the runs without a summary that were not stopped."""
    return [run for run in runs if end_of(folder_of(sweep, run.name)).status in (MISSING, FAILED)]


def brief(summary: Mapping[str, Any]) -> str:
    """Return a run's result in a few words."""
    accuracy = summary.get("test_accuracy")
    said = []
    if accuracy is not None and math.isfinite(accuracy):
        said.append(f"test accuracy {accuracy:.1%}")
    if summary.get("selected_round", summary.get("rounds")) != summary.get("rounds"):
        said.append(
            f"{summary['selected_test_accuracy']:.1%} in the round of the best validation accuracy"
        )
    return ", ".join(said) or "done"


def table(sweep: Path, plan: Plan) -> list[dict[str, Any]]:
    """Return a row per run, in the order of the plan: its name, its state, its swept fields, its
    summary.

    Times and memory are left out, so that a sweep that was killed and resumed gives the same table.
    """
    rows = []
    for run in plan.runs:
        end = end_of(folder_of(sweep, run.name))
        swept = {field: run.point.get(field) for field in plan.fields}
        row = {"run": run.name, "status": end.status, **swept, "message": end.message}
        rows.append(row | _scalars(end.summary or {}, {*row, "diverged"}))
    return rows


def _scalars(summary: Mapping[str, Any], taken: Collection[str]) -> dict[str, Any]:
    """Return the numbers of a summary, except those about machine or clock, and those of its
    predictions, by name.
    """
    found = {
        name: value
        for name, value in summary.items()
        if not isinstance(value, dict | list)
        and name not in taken
        and not any(part in name for part in _MEASURED)
    }
    for one in summary.get("predictions", ()):
        scores = [name for name in ("accuracy", "balanced_accuracy") if name in one]
        found |= {f"{one['name']}_{name}": one[name] for name in scores}
    return found


def write(sweep: Path, plan: Plan) -> list[dict[str, Any]]:
    """Write `results.csv` as a whole; return the rows."""
    with FileLock(sweep / ".results.lock"):  # jobs of a cluster write when they end
        rows = table(sweep, plan)
        columns = dict.fromkeys(name for row in rows for name in row)
        columns["message"] = columns.pop("message", None)  # last
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(sweep / "results.csv", text.getvalue())
    return rows
