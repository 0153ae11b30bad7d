"""The numbers of the page's charts: curves over rounds and costs, maps over two settings, accuracy
over clients.
"""

import itertools
import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas

from fedjax_ssl.folder.stored_run import StoredRun
from fedjax_ssl.report.numbers import is_number, short
from fedjax_ssl.report.runs import Group, table_of

# Axes of the curves, each the running sum of some columns; without columns, the column itself.
AXES = {
    "round": (),
    "bytes": ("bytes_up", "bytes_down"),
    "seconds": ("seconds",),
    "local_steps": ("local_steps",),
    "epsilon_spent": (),  # privacy spent so far
}
_MOST_CLIENTS = 61  # points of a curve over clients
_FULL = 0.6  # share of the combinations of two numbers from which on they form a map


def curves_of(group: Group, metrics: Sequence[str], points: int) -> dict[str, Any]:
    """Make the curves of a group from its finished runs, or from all runs if none is finished.

    A point is a round that all these runs have evaluated. Numbers are rounded to the digits that a
    picture shows.

    Args:
        group: the group.
        metrics: columns of the rows.
        points: largest number of points, evenly spread, with the first and the last one.

    Returns:
        "x": by axis, means over the runs, None if a run lacks the axis. "y": by metric (mean,
        deviation), if a run of the group has it; gaps are None. The deviation of a single run is
        None.
    """
    runs = list(group.finished["run"]) or group.runs
    tables = [_rows(run, metrics) for run in runs if run.rows]
    if not tables:
        return {"x": {}, "y": {}}
    rounds = sorted(set.intersection(*(set(table.index) for table in tables)))
    if len(rounds) > points:
        rounds = [
            rounds[place] for place in np.linspace(0, len(rounds) - 1, points).round().astype(int)
        ]
    x = {}
    y = {}
    for name in tables[0]:
        values = np.stack([table.loc[rounds, name] for table in tables])  # [runs, rounds]
        mean = _plain(values.mean(axis=0))
        if name in AXES:
            x[name] = None if None in mean else mean
        elif np.isfinite(values).any():
            y[name] = mean, _plain(values.std(axis=0, ddof=1)) if len(tables) > 1 else None
    return {"x": x, "y": y}


def _rows(run: StoredRun, metrics: Sequence[str]) -> pandas.DataFrame:
    """Return a run's rows by round: a column per axis, then the metrics; NaN for values that are
    not finite.
    """
    table = pandas.DataFrame(run.rows).set_index("round")
    table = table.apply(pandas.to_numeric, errors="coerce").astype(float)
    table = table.replace([math.inf, -math.inf], math.nan)
    found = {
        axis: table.reindex(columns=of).sum(axis=1, skipna=False).cumsum(skipna=False)
        for axis, of in AXES.items()
        if of
    }
    found["round"] = table.index.to_series()
    found["epsilon_spent"] = table.reindex(columns=["epsilon"])["epsilon"]
    return pandas.concat([pandas.DataFrame(found), table.reindex(columns=metrics)], axis=1)


def _plain(values: np.ndarray) -> list[float | None]:
    return [short(value) for value in values.tolist()]


def _name_of(group: Group, fields: Collection[str]) -> str:
    return ", ".join(text for part, text in group.parts.items() if part in fields)


class Map(NamedTuple):
    """Groups that differ only in two numbers."""

    name: str  # the fields that they have in common; "": all groups
    across: str  # field of the columns
    down: str
    columns: list[float]  # values of the columns
    rows: list[float]
    cells: list[list[int | None]]  # number of the group; None: no such group


def maps_of(groups: Sequence[Group]) -> list[Map]:
    """Find pairs of numbers with groups for all or most of their combinations."""
    table = table_of([group.config for group in groups])
    table = table.loc[:, ~table.T.duplicated()]
    numbers = [field for field in table if len(_values(groups, field)) > 1]
    found = []
    for across, down in itertools.combinations(numbers, 2):
        others = [one for one in table if one not in (across, down)]
        members: dict[tuple[str, ...], dict[tuple[float, float], int]] = {}
        for place, group in enumerate(groups):
            at: Any = group.config.get(across), group.config.get(down)
            if all(map(is_number, at)):
                members.setdefault(tuple(table.loc[place, others]), {})[at] = place
        for places in members.values():
            columns, rows = (sorted(set(values)) for values in zip(*places, strict=True))
            if min(len(columns), len(rows)) < 2 or len(places) < _FULL * len(columns) * len(rows):
                continue
            cells = [[places.get((column, row)) for column in columns] for row in rows]
            name = _name_of(groups[next(iter(places.values()))], others)
            found.append(Map(name, across, down, columns, rows, cells))
    return found


def _values(groups: Sequence[Group], field: str) -> set[float]:
    given: list[Any] = [group.config.get(field) for group in groups]
    return set(filter(is_number, given))


def profile(runs: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Sum up the accuracies of a group's clients, in [0, 1]; every number is a mean over the runs.

    Args:
        runs: the accuracies of a run's clients, for at least one run with at least one client.

    Returns:
        "clients" (at most), "mean", "worst_tenth" (mean over the tenth of the clients with the
        lowest accuracies, at least one client), "lowest", and "curve": accuracies by share of the
        clients, from the lowest to the highest.
    """
    most = max(map(len, runs))
    places = np.linspace(0, 1, min(most, _MOST_CLIENTS))
    worst = [np.mean(sorted(run)[: math.ceil(len(run) / 10)]) for run in runs]
    return {
        "clients": most,
        "mean": float(np.mean(list(map(np.mean, runs)))),
        "worst_tenth": float(np.mean(worst)),
        "lowest": float(np.mean(list(map(min, runs)))),
        "curve": _plain(np.mean([np.quantile(run, places) for run in runs], axis=0)),
    }


def profiles_of(groups: Sequence[Group]) -> dict[str, dict[int, dict[str, Any]]]:
    """Make a profile by measure and number of the group, if clients' accuracies were logged."""
    found: dict[str, dict[int, list[list[float]]]] = {}
    for place, group in enumerate(groups):
        for run in group.runs:
            for name, accuracies in run.clients.items():
                if accuracies:
                    runs = found.setdefault(name, {}).setdefault(place, [])
                    runs.append(list(accuracies.values()))
    return {
        name: {place: profile(runs) for place, runs in of_groups.items()}
        for name, of_groups in found.items()
    }
