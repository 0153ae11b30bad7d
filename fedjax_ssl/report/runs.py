"""From folders to a report: groups of runs that differ in their seed alone, and one data frame
of all runs.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas

from fedjax_ssl.errors import UserError, counted
from fedjax_ssl.folder.folder import COMPARED, WATCHING, flat_config
from fedjax_ssl.folder.stored_run import StoredRun, find_runs, on_other_data, read_run
from fedjax_ssl.registry import did_you_mean
from fedjax_ssl.report.numbers import COSTS, Cell, Metric, compare, metrics_of, numbers_of

_FIRST = (
    "method.name",
    "data.name",
    "partition.name",
    "supervision.name",
    "model.name",
    "federated.name",
)
# Fields that decide which examples a seed is tested on.
_TEST_DATA = (
    *("data.name", "data.path", "data.pool_splits", "data.test_clients", "data.left_out_client"),
    *("data.test_fraction", "data.client_test_fraction"),
)
_NAMED = 4  # folders in a sentence about several


class ReportError(UserError):
    """A report that cannot be made; the message says what to give instead."""


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Runs with one config and different seeds.

    Attributes:
        name: says what differs from the other groups.
        parts: the name piece by piece, by the fields that are named.
        config: the fields that are compared, by dotted names; None stands for a default and is left
            out.
        runs: one per seed, in the order of the seeds.
        doubled: runs with a seed that is there already; they are not counted.
    """

    name: str
    parts: dict[str, str]
    config: dict[str, Any]
    runs: list[StoredRun]
    doubled: list[StoredRun]

    @property
    def finished(self) -> list[StoredRun]:
        """Runs that came to their end."""
        return [run for run in self.runs if run.finished]

    @property
    def diverged(self) -> int:
        """How many of the finished runs diverged."""
        return sum(run.state != "finished" for run in self.finished)

    @property
    def counts(self) -> str:
        """The finished runs in words: "3", "2 of 3", "3, 1 diverged"."""
        done = len(self.finished)
        lost = self.diverged
        return f"{done}{f' of {len(self.runs)}' * (done < len(self.runs))}{f', {lost} diverged' * bool(lost)}"


@dataclasses.dataclass(frozen=True)
class Report:
    """Everything that a page shows.

    Attributes:
        runs: all that were read, in the order they were found.
        groups: runs with one config.
        frame: the numbers of the runs, a row each, by number of the group, seed and whether the run
            counts. NaN: none was written; infinity: not finite.
        baseline: one of the groups.
        metrics: numbers that some run has.
        metric: the one that the page starts with.
        problems: a sentence for everything that could not be read or is not counted.
    """

    runs: list[StoredRun]
    groups: list[Group]
    frame: pandas.DataFrame
    baseline: Group
    metrics: list[Metric]
    metric: Metric
    problems: list[str]

    def cells(self, metric: Metric) -> list[Cell]:
        """Compare the groups in a metric, by finished runs alone."""
        values = [self._values(place, metric.name).dropna() for place in range(len(self.groups))]
        base = self.groups.index(self.baseline)
        return [
            compare(values[place], None if place == base or self.apart(group) else values[base])
            for place, group in enumerate(self.groups)
        ]

    def apart(self, group: Group) -> list[str]:
        """Says how a group's runs differ from the baseline's so that they are no pairs; an empty
        list: they are.
        """
        ours, theirs = (
            {run.config["seed"]: run.summary or {} for run in one.finished}
            for one in (group, self.baseline)
        )
        pairs = [(ours[seed], theirs[seed]) for seed in ours.keys() & theirs.keys()]
        others = any(
            group.config.get(field) != self.baseline.config.get(field) for field in _TEST_DATA
        )
        found = []
        for field, words in COMPARED.items():  # of which older runs do not tell: there settings do
            differ = [
                one[field] != other[field]
                for one, other in pairs
                if field in one and field in other
            ]
            if any(differ or [field == "test_fingerprint" and others]):
                found.append(words)
        return found

    @property
    def rows(self) -> Iterator[tuple[Group, Cell, list[float | None]]]:
        """Every group with its cell in the chosen metric and its costs."""
        return zip(self.groups, self.cells(self.metric), self.costs, strict=True)

    @functools.cached_property
    def costs(self) -> list[list[float | None]]:
        """Mean costs of each group's finished runs, in the order of `COSTS`; None where a run
        does not tell.
        """
        columns = [
            [self._values(place, f"cost {title}") for title in COSTS]
            for place in range(len(self.groups))
        ]
        return [
            [float(one.mean()) if len(one) and one.notna().all() else None for one in row]
            for row in columns
        ]

    def _values(self, group: int, column: str) -> pandas.Series:
        """Look the values of a group's finished runs up, by seed; NaN where a run has none."""
        groups, counts = (self.frame.index.get_level_values(level) for level in ("group", "counts"))
        rows = self.frame[(groups == group) & counts].droplevel(["group", "counts"])
        return rows[column] if column in rows else pandas.Series(dtype=float)


def read(
    paths: Sequence[str | Path], *, metric: str | None = None, baseline: str | None = None
) -> Report:
    """Read run folders, sorts them into groups and chooses what they are compared by.

        report = read(["runs/sweep"], baseline="fedavg")
        print(report.frame.groupby("group")["test_accuracy"].mean())

    Args:
        paths: run folders, or folders that hold some at any depth.
        metric: a column of `metrics.csv`, or a number of `summary.json`; the test accuracy by
            default.
        baseline: as for `choose_baseline`.

    Raises:
        ReportError: there is no run, or no such metric or group.
        RunFolderError: a path does not exist.
    """
    found = [read_run(path) for path in find_runs(paths)]
    problems = [f"{run.path}: {problem}" for run in found for problem in run.problems]
    runs = [run for run in found if run.config]
    places = " ".join(map(str, paths))
    if not runs:
        reasons = "".join(f"\n  {line}" for line in problems[:10])
        raise ReportError(
            f"no run in {places}: no folder there holds the config.json of a run. Give a "
            "--workdir of `fedjax-ssl run`, the folder of a sweep, or a folder above "
            f"them.{reasons}"
        )
    started = [run for run in runs if run.rows or run.summary]
    problems += _together(
        "no result, left out", [run for run in runs if not (run.rows or run.summary)]
    )
    if not started:
        raise ReportError(
            f"no run in {places} has a result yet: none of {counted(len(runs), 'run')} has a "
            "metric row"
        )
    groups = group_runs(started)
    problems += [
        f"{run.path}: seed {run.config['seed']} of {group.name} is there already, not counted"
        for group in groups
        for run in group.doubled
    ]
    problems += _together(
        "not finished, not in the numbers", [run for run in started if not run.finished]
    )
    lost = [run for run in started if run.finished and run.state != "finished"]
    problems += _together("diverged, the numbers are of what was left", lost)
    changed = on_other_data((run, run.config, run.summary) for run in started)
    problems += _together(
        "on other data than another run with the same settings of config.data", changed
    )
    if len(groups) > 1 and (few := [group.name for group in groups if len(group.finished) == 2]):
        problems.append(
            f"two seeds say little: the intervals of {len(few)} groups rest on two runs; run five "
            "or more"
        )
    frame = _frame(started, groups)
    metrics = metrics_of(frame)
    if not metrics:
        raise ReportError(f"no run in {places} has a metric: their rows hold counts alone")
    base = choose_baseline(groups, baseline)
    report = Report(
        started, groups, frame, base, metrics, _choose_metric(metrics, metric), problems
    )
    for words in COMPARED.values():
        apart = [group.name for group in groups if words in report.apart(group)]
        problems += _together(f"no difference to {base.name}, {words}", apart, "; ")
    return report


def _together(what: str, things: Sequence[StoredRun | str], between: str = ", ") -> list[str]:
    """Says one thing of several runs or groups."""
    named = [
        one
        if isinstance(one, str)
        else f"{one.path} ({one.state})"
        if one.rows or one.ended
        else str(one.path)
        for one in things[:_NAMED]
    ]
    more = f" and {len(things) - _NAMED} more" if len(things) > _NAMED else ""
    return [f"{what}: {between.join(named)}{more}"] if things else []


def _frame(runs: Sequence[StoredRun], groups: Sequence[Group]) -> pandas.DataFrame:
    counted = {id(run): number for number, group in enumerate(groups) for run in group.runs}
    doubled = {id(run): number for number, group in enumerate(groups) for run in group.doubled}
    keys = [
        ((counted | doubled)[id(run)], run.config["seed"], run.finished and id(run) in counted)
        for run in runs
    ]
    index = pandas.MultiIndex.from_tuples(keys, names=["group", "seed", "counts"])
    return pandas.DataFrame([numbers_of(run) for run in runs], index=index)


def group_runs(runs: Iterable[StoredRun]) -> list[Group]:
    """Sorts runs with a config into groups, in the order of their first runs."""
    found: dict[str, tuple[dict[str, Any], list[StoredRun]]] = {}
    for run in runs:
        fields = flat_config(run.config, ignore=("seed", *WATCHING))
        fields["data.left_out_client"] = (run.summary or {}).get(
            "left_out_client", fields.get("data.left_out_client")
        )
        config = {name: value for name, value in fields.items() if value is not None}
        found.setdefault(json.dumps(config, sort_keys=True), (config, []))[1].append(run)
    groups = []
    for parts, (config, members) in zip(
        _names([config for config, _ in found.values()]), found.values(), strict=True
    ):
        kept: dict[int, StoredRun] = {}
        for run in sorted(
            members, key=lambda run: (run.summary is not None, len(run.rows)), reverse=True
        ):
            kept.setdefault(run.config["seed"], run)
        doubled = [run for run in members if kept[run.config["seed"]] is not run]
        groups.append(
            Group(
                ", ".join(parts.values()),
                parts,
                config,
                [kept[seed] for seed in sorted(kept)],
                doubled,
            )
        )
    return groups


def table_of(configs: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Make a table of the fields that differ: a row per config, a column per field, cells as JSON.

    Fields that name something go first, then they are as in the configs.
    """
    texts = pandas.DataFrame(
        {field: json.dumps(value) for field, value in one.items()} for one in configs
    )
    differing = texts.columns[texts.nunique(dropna=False) > 1]

    def rank(field: str) -> tuple[int, bool, bool]:
        # `rounds` before `optimizer.schedule_rounds`, which follows it where it is not given.
        return (
            _FIRST.index(field) if field in _FIRST else len(_FIRST),
            not field.endswith(".name"),
            "." in field,
        )

    return texts[sorted(differing, key=rank)].fillna("null")


def _names(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Names groups as shortly as can be: by fields that tell groups apart that the fields before
    do not.
    """
    table = table_of(configs)
    block = pandas.Series(0, table.index)
    named: list[list[str]] = [[] for _ in configs]
    for field in table:
        told = table[field].groupby(block).transform("nunique") > 1
        for place in table.index[told]:
            named[place].append(field)
        block = table[field].groupby([block, table[field]]).ngroup()
    used = {field for fields in named for field in fields}
    if not used:
        return [{"method.name": str(config["method.name"])} for config in configs]
    return [
        {field: _named(field, config.get(field), used) for field in fields}
        for fields, config in zip(named, configs, strict=True)
    ]


def _named(field: str, value: Any, used: set[str]) -> str:
    if field == "method.name":
        return str(value)
    section, _, own = field.rpartition(".")
    short = section if own == "name" else own
    clash = any(
        other != field and (other.rpartition(".")[2] == short or other == short) for other in used
    )
    return f"{field if clash else short}={text_of(value)}"


def text_of(value: Any) -> str:
    """Write a setting as a person would."""
    if isinstance(value, list):
        return ",".join(map(text_of, value))
    return f"{value:g}" if isinstance(value, float) else "-" if value is None else str(value)


def choose_baseline(groups: Sequence[Group], given: str | None) -> Group:
    """Find the group that the others are compared with.

    Args:
        groups: at least one.
        given: a group's name, words that are in the name of one group only, the folder of one of
            its runs, or None: the first group.

    Raises:
        ReportError: no group, or several.
    """
    if given is None:
        return groups[0]
    for group in groups:
        if given == group.name or any(str(run.path) == given.rstrip("/") for run in group.runs):
            return group
    words = set(re.split("[ ,=]+", given))
    matching = [group for group in groups if words <= set(re.split("[ ,=]+", group.name))]
    if len(matching) == 1:
        return matching[0]
    names = [group.name for group in matching or groups]
    listing = "".join(f"\n  {name}" for name in names[:20]) + ("\n  ..." if len(names) > 20 else "")
    if matching:
        raise ReportError(
            f"--baseline {given!r} fits {len(matching)} groups; name one of them:{listing}"
        )
    raise ReportError(
        f"unknown group: --baseline {given!r}.{did_you_mean(given, names)} There are:{listing}"
    )


def _choose_metric(known: Sequence[Metric], given: str | None) -> Metric:
    names = [one.name for one in known]
    if given is None or given in names:
        return known[0 if given is None else names.index(given)]
    hint = did_you_mean(given, names)
    raise ReportError(
        f"--metric {given!r} is in none of these runs.{hint} They have: {', '.join(names)}"
    )
