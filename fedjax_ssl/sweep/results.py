"""Reads from the run folders how each run ended, and writes the results as one table."""

import csv
import importlib
import importlib.util
import io
import math
import re
import traceback
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from fedjax_ssl import command_line
from fedjax_ssl.folder.files import decode_json, encode_json, write_atomically
from fedjax_ssl.runs.summary import read_summary
from fedjax_ssl.sweep.plan import Plan, PlannedRun

DONE = "done"
DIVERGED = "diverged"
FAILED = "failed"
STOPPED = "stopped"
MISSING = "missing"
_ENDED = "ended.json"  # in the folder of a run that ended without a summary
_NAME = re.compile(r"0\d+")  # a client's, whose zeros are kept
# Fields of a summary about the machine and the clock: two sweeps of the same runs differ in them.
_MEASURED = ("seconds", "per_second", "peak_memory", "versions", "device", "command")


def folder_of(sweep: Path, name: str) -> Path:
    """Names the folder of a run."""
    return sweep / "runs" / name


def status_of(folder: Path) -> tuple[str, str, dict[str, Any]]:
    """Read where a run stands, why it ended early, and its summary, which is empty without one."""
    if (folder / "summary.json").exists():
        summary = read_summary(folder / "summary.json")
        return DIVERGED if "diverged" in summary else DONE, summary.get("diverged", ""), summary
    if (folder / _ENDED).exists():
        ended = decode_json((folder / _ENDED).read_text(encoding="utf-8"))
        return ended["status"], ended["message"], {}
    return MISSING, "", {}


def mark(folder: Path, status: str, message: str = "") -> None:
    """Note that a run ended without a summary; a later start forgets it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(
        folder / _ENDED, encode_json({"status": status, "message": message}, indent=1) + "\n"
    )


def unmark(folder: Path) -> None:
    """Forgets how a run ended, as it starts again."""
    (folder / _ENDED).unlink(missing_ok=True)


def message_of(error: BaseException) -> str:
    """Says why a run failed: the user's mistake as every command says it, else type and place."""
    if message := command_line.message_of(error):
        return message
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in place)
    return f"{type(error).__name__}: {error}{where}"


def unfinished(sweep: Path, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """List the runs that have no summary and were not stopped."""
    return [run for run in runs if status_of(folder_of(sweep, run.name))[0] in (MISSING, FAILED)]


def brief(summary: Mapping[str, Any]) -> str:
    """Says a run's result in a few words."""
    accuracy = summary.get("test_accuracy")
    said = (
        [] if accuracy is None or not math.isfinite(accuracy) else [f"test accuracy {accuracy:.1%}"]
    )
    if "selected_test_accuracy" in summary:
        said.append(f"selected {summary['selected_test_accuracy']:.1%}")
    return ", ".join(said) or "done"


def table(sweep: Path, plan: Plan) -> list[dict[str, Any]]:
    """Make a row per run, in the order of the plan: its name, where it stands, what was swept, its
    summary.

    Times and memory are left out, so that a sweep that was killed and went on ends in the same
    table.
    """
    rows = []
    for run in plan.runs:
        status, message, summary = status_of(folder_of(sweep, run.name))
        swept = {field: run.point.get(field) for field in plan.fields}
        row = {"run": run.name, "status": status, **swept, "message": message}
        rows.append(row | scalars(summary, {*row, "diverged"}))
    return rows


def scalars(summary: Mapping[str, Any], taken: Collection[str] = ()) -> dict[str, Any]:
    """Take the numbers of a summary that are not about machine or clock, and those of its
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
        found |= {
            f"{one['name']}_{name}": one[name]
            for name in ("accuracy", "balanced_accuracy")
            if name in one
        }
    return found


def write(sweep: Path, plan: Plan) -> list[dict[str, Any]]:
    """Write `results.csv` and, with pyarrow, `results.parquet`, each as a whole; returns the
    rows.
    """
    with FileLock(sweep / ".results.lock"):  # jobs of a cluster write when they end
        rows = table(sweep, plan)
        columns = [
            name
            for name in dict.fromkeys(name for row in rows for name in row)
            if name != "message"
        ]
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, [*columns, "message"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(sweep / "results.csv", text.getvalue())
        if has_parquet():
            names = [
                one for one in columns if any(_NAME.fullmatch(str(row.get(one))) for row in rows)
            ]
            write_atomically(sweep / "results.parquet", _parquet(text.getvalue(), names))
    return rows


def has_parquet() -> bool:
    """Says whether `results.parquet` can be written."""
    return importlib.util.find_spec("pyarrow") is not None


def _parquet(text: str, names: Sequence[str]) -> bytes:
    read = importlib.import_module("pyarrow.csv")
    parquet = importlib.import_module("pyarrow.parquet")
    kept = dict.fromkeys(names, importlib.import_module("pyarrow").string())
    found = read.read_csv(
        io.BytesIO(text.encode()),
        parse_options=read.ParseOptions(newlines_in_values=True),
        convert_options=read.ConvertOptions(
            null_values=[""], strings_can_be_null=True, column_types=kept
        ),
    )
    buffer = io.BytesIO()
    parquet.write_table(found, buffer)
    return buffer.getvalue()
