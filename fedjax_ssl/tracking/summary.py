"""summary.json: what came out of a run, and what it took."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_ssl.tracking.environment import command, device_description, peak_memory_bytes, versions
from fedjax_ssl.tracking.files import decode_json, encode_json, write_atomically


def summarize(
    rows: Sequence[Mapping[str, Any]],
    *,
    method: str,
    dataset: str,
    seed: int,
    rounds: int,
    compile_seconds: float,
    train_seconds: float,
    client_updates: int,
    examples: int,
    bytes_up: int,
    bytes_down: int,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Gathers the fields of `summary.json`.

    Args:
        rows: the metric rows; "test_accuracy" is read from those that have it.
        method: name of the method.
        dataset: name of the data set.
        seed: the run seed.
        rounds: finished rounds.
        compile_seconds: time spent tracing and compiling.
        train_seconds: time spent in rounds and evaluations, without compiling.
        client_updates: local trainings done in `train_seconds`.
        examples: examples gone through in `train_seconds`, once per local epoch.
        bytes_up: sent by all clients in all rounds.
        bytes_down: sent to all clients in all rounds.
        extra: further fields, such as the last pseudo-label accuracy; they may not replace one of the above.

    Returns:
        The fields in the order of the file. `test_accuracy` is the last row's, `best_test_accuracy` the
        highest (which looks at the test set and is no fair result); both are None without test data. The
        rates are per second of `train_seconds`, None where nothing was trained; `command` is that of the last start.

    Raises:
        ValueError: `extra` has a field that is there already.
    """
    given = [row["test_accuracy"] for row in rows if row.get("test_accuracy") is not None]
    accuracies = [value for value in given if math.isfinite(value)]
    fields: dict[str, Any] = {
        "method": method,
        "dataset": dataset,
        "seed": seed,
        "rounds": rounds,
        "test_accuracy": accuracies[-1] if accuracies else None,
        "best_test_accuracy": max(accuracies, default=None),
        "compile_seconds": compile_seconds,
        "train_seconds": train_seconds,
        "client_updates_per_second": client_updates / train_seconds if train_seconds > 0 else None,
        "examples_per_second": examples / train_seconds if train_seconds > 0 else None,
        "peak_memory_bytes": peak_memory_bytes(),
        "bytes_up": bytes_up,
        "bytes_down": bytes_down,
        "versions": versions(),
        "device": device_description(),
        "command": command(),
    }
    if doubled := fields.keys() & (extra or {}).keys():
        raise ValueError(f"extra names {sorted(doubled)}, which the summary has already; choose other names")
    return {**fields, **(extra or {})}


def write_summary(path: str | os.PathLike, summary: Mapping[str, Any]) -> None:
    """Writes the summary whole or not at all.

    Args:
        path: `summary.json` in the run folder.
        summary: from `summarize`.
    """
    write_atomically(path, encode_json(summary, indent=2) + "\n")


def read_summary(path: str | os.PathLike) -> dict[str, Any]:
    """Reads what `write_summary` wrote.

    Args:
        path: `summary.json` in a run folder.

    Returns:
        The fields.
    """
    return decode_json(Path(path).read_text(encoding="utf-8"))
