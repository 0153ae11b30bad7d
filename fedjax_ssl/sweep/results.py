"""What became of the runs, read from the folders that workers left, and their results as one table."""

import contextlib
import csv
import importlib
import importlib.util
import io
import math
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedjax_ssl import own_code
from fedjax_ssl.command_line import USER_ERRORS
from fedjax_ssl.runs.files import decode_json, encode_json, write_atomically
from fedjax_ssl.runs.summary import read_summary
from fedjax_ssl.sweep.plan import Plan, PlannedRun

DONE, FAILED, STOPPED, MISSING = "done", "failed", "stopped", "missing"
_ENDED = "ended.json"  # in the folder of a run that ended without a summary
# What a summary says of the machine and of the clock: two sweeps of the same runs differ in it.
_MEASURED = ("seconds", "per_second", "peak_memory", "versions", "device", "command")


def folder_of(sweep: Path, name: str) -> Path:
    """The folder of a run."""
    return sweep / "runs" / name


def status_of(folder: Path) -> tuple[str, str]:
    """Where a run stands, and why it ended early."""
    if (folder / "summary.json").exists():
        return DONE, ""
    if (folder / _ENDED).exists():
        ended = decode_json((folder / _ENDED).read_text(encoding="utf-8"))
        return ended["status"], ended["message"]
    return MISSING, ""


def mark(folder: Path, status: str, message: str = "") -> None:
    """Says that a run ended without a summary; a later start forgets it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / _ENDED, encode_json({"status": status, "message": message}, indent=1) + "\n")


def unmark(folder: Path) -> None:
    """Forgets how a run ended, as it starts again."""
    (folder / _ENDED).unlink(missing_ok=True)


def message_of(error: BaseException) -> str:
    """What is said about a run that failed: a mistake in its settings or in one's own code, else type and place."""
    if isinstance(error, USER_ERRORS):
        return str(error)
    if message := own_code.blame(error):
        return message
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in place)
    return f"{type(error).__name__}: {error}{where}"


def table(sweep: Path, plan: Plan) -> list[dict[str, Any]]:
    """A row per run, in the order of the plan: its name, where it stands, what was swept, its summary.

    Times and memory are left out, so that a sweep that was killed and went on ends in the same table.
    """
    rows = []
    for run in plan.runs:
        folder = folder_of(sweep, run.name)
        status, message = status_of(folder)
        row: dict[str, Any] = {"run": run.name, "status": status}
        row |= {field: run.point.get(field) for field in plan.fields}
        if status == DONE:
            row |= _scalars(read_summary(folder / "summary.json"), row)
        rows.append(row | {"message": message})
    return rows


def _scalars(summary: Mapping[str, Any], taken: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        name: value
        for name, value in summary.items()
        if not isinstance(value, dict | list) and name not in taken and not any(part in name for part in _MEASURED)
    }
    for one in summary.get("predictions", ()):
        for name in ("accuracy", "balanced_accuracy"):
            if name in one:
                found[f"{one['name']}_{name}"] = one[name]
    return found


def write(sweep: Path, plan: Plan) -> list[dict[str, Any]]:
    """Writes `results.csv` and, with pyarrow, `results.parquet`, each as a whole; returns the rows."""
    with exclusively(sweep, ".results.lock"):
        rows = table(sweep, plan)
        columns = [name for name in dict.fromkeys(name for row in rows for name in row) if name != "message"]
        columns.append("message")
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(sweep / "results.csv", text.getvalue())
        _write_parquet(sweep / "results.parquet", rows, columns)
    return rows


def has_parquet() -> bool:
    """Whether `results.parquet` can be written."""
    return importlib.util.find_spec("pyarrow") is not None


def _write_parquet(path: Path, rows: list[dict[str, Any]], columns: list[str]) -> None:
    if not has_parquet():
        return
    arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    built = arrow.table({name: _column(arrow, [row.get(name) for row in rows]) for name in columns})
    buffer = io.BytesIO()
    parquet.write_table(built, buffer)
    write_atomically(path, buffer.getvalue())


def _column(arrow: Any, values: list[Any]) -> Any:
    """Numbers stay numbers; a column of several kinds (a list for one run, None for another) is text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and kinds != {int}:
        return arrow.array([None if value is None else float(value) for value in values], arrow.float64())
    if len(kinds) == 1 and kinds <= {int, str, bool}:
        return arrow.array(values)
    return arrow.array([None if value is None else str(value) for value in values], arrow.string())


def unfinished(sweep: Path, runs: list[PlannedRun]) -> list[PlannedRun]:
    """The runs that have no summary and were not stopped."""
    return [run for run in runs if status_of(folder_of(sweep, run.name))[0] not in (DONE, STOPPED)]


def brief(summary: Mapping[str, Any]) -> str:
    """A run's result in a few words."""
    accuracy = summary.get("test_accuracy")
    said = [] if accuracy is None or not math.isfinite(accuracy) else [f"test accuracy {accuracy:.1%}"]
    if "selected_test_accuracy" in summary:
        said.append(f"selected {summary['selected_test_accuracy']:.1%}")
    return ", ".join(said) or "done"


@contextlib.contextmanager
def exclusively(sweep: Path, lock: str) -> Iterator[None]:
    """One process at a time, of those that take the same lock; tasks of a cluster write the tables when they end."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with open(sweep / lock, "a", encoding="utf-8") as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
