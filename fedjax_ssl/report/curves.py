"""Curves of a group: mean and spread over its seeds after every evaluation, over rounds and over what they cost."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_ssl.report.groups import Group
from fedjax_ssl.report.metrics import is_number
from fedjax_ssl.runs.stored_run import StoredRun

# What a curve is drawn over, and the columns whose running sum it is; None: the column as it is.
AXES: dict[str, tuple[str, ...] | None] = {
    "round": None,
    "bytes": ("bytes_up", "bytes_down"),
    "seconds": ("seconds",),
    "local_steps": ("local_steps",),
}


def curves_of(group: Group, metrics: Sequence[str], points: int) -> dict[str, Any]:
    """The curves of a group: of its finished runs, or of all where none is finished.

    A point is a round that all these runs have evaluated. Numbers are cut to the digits that a picture shows.

    Args:
        group: any.
        metrics: columns of the rows.
        points: at most so many, evenly spread; the first and the last one are kept.

    Returns:
        "x": by axis, means over the runs, None where a run does not have it. "y": by metric (mean, deviation), where a
        run of the group has it; gaps are None. The deviation is None of a single run.
    """
    runs = [run for run in group.finished or group.runs if run.rows]
    if not runs:
        return {"x": {}, "y": {}}
    common = set.intersection(*({row["round"] for row in run.rows} for run in runs))
    rounds = _thinned(sorted(common), points)
    x = {axis: _mean([_axis(run, columns, rounds) for run in runs]) for axis, columns in AXES.items()}
    y = {}
    for name in metrics:
        values = np.array([_column(run, name, rounds) for run in runs])
        if np.isfinite(values).any():
            spread = _plain(values.std(axis=0, ddof=1)) if len(runs) > 1 else None
            y[name] = (_plain(values.mean(axis=0)), spread)
    return {"x": x, "y": y}


def _thinned(rounds: list[int], points: int) -> list[int]:
    if len(rounds) <= points:
        return rounds
    return [rounds[index] for index in np.linspace(0, len(rounds) - 1, points).round().astype(int)]


def _axis(run: StoredRun, columns: tuple[str, ...] | None, rounds: Sequence[int]) -> list[float]:
    if columns is None:
        return [float(number) for number in rounds]
    steps = [sum(_number(row.get(column)) for column in columns) for row in run.rows]
    sums = dict(zip((row["round"] for row in run.rows), itertools.accumulate(steps), strict=True))
    return [sums[number] for number in rounds]


def _column(run: StoredRun, name: str, rounds: Sequence[int]) -> list[float]:
    values = {row["round"]: row.get(name) for row in run.rows}
    return [_number(values[number]) for number in rounds]


def _number(value: Any) -> float:
    return float(value) if is_number(value) and math.isfinite(value) else math.nan


def _mean(values: list[list[float]]) -> list[float | None] | None:
    means = np.mean(values, axis=0)
    return _plain(means) if np.isfinite(means).all() else None


def _plain(values: np.ndarray) -> list[float | None]:
    return [short(value) for value in values.tolist()]


def short(value: float | None) -> float | None:
    """The value with five digits, None where it is not finite: what a picture can show."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded.is_integer() else rounded
