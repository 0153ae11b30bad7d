"""From folders to a report: groups of runs that differ by seed alone, and one data frame of all
runs.
"""

import dataclasses
import json
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas

from fedjax_ssl.checks import required
from fedjax_ssl.data.sites_apart import remedy
from fedjax_ssl.errors import UserError, counted
from fedjax_ssl.folder.folder_lock import COMPARED, flat_config
from fedjax_ssl.folder.progress import no_protection
from fedjax_ssl.folder.stored_run import StoredRun, find_runs, on_other_data, only_class, read_run
from fedjax_ssl.registry import did_you_mean
from fedjax_ssl.report.numbers import COSTS, Cell, Metric, compare, known, metrics_of, numbers_of

_FIRST = (
    "method.name",
    "data.name",
    "partition.name",
    "supervision.name",
    "model.name",
    "federated.name",
)
_NAMED = 4  # folders named in a sentence about several


class ReportError(UserError):
    """A report that cannot be made; the message says what to give instead."""


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """Runs with one config and different seeds.

    Attributes:
        name: differences from the other groups, in words.
        parts: parts of the name, by field.
        config: compared fields, by dotted names; None stands for a default and is left out.
        frame: rows of `read_runs`, one per seed, by seed.
    """

    name: str
    parts: dict[str, str]
    config: dict[str, Any]
    frame: pandas.DataFrame

    @property
    def runs(self) -> list[StoredRun]:
        """The runs that count, in the order of their seeds."""
        return list(self.frame["run"])

    @property
    def finished(self) -> pandas.DataFrame:
        """Rows of the runs that finished."""
        return self.frame[self.frame["finished"]]

    @property
    def summaries(self) -> dict[int, dict[str, Any]]:
        """Summaries of the finished runs, by seed."""
        return {seed: run.summary or {} for seed, run in self.finished["run"].items()}

    @property
    def of_one_class(self) -> tuple[str, int] | None:
        """The class that finished runs predict for all test examples, with the number of such runs;
        None if there are none.
        """
        classes = map(only_class, self.summaries.values())
        found = [one for one in classes if one is not None]
        return (", ".join(dict.fromkeys(found)), len(found)) if found else None

    @property
    def diverged(self) -> int:
        """Number of finished runs that diverged."""
        return int((self.finished["state"] != "finished").sum())

    @property
    def labels_text(self) -> str:
        """The number of labels of finished runs: "55", "52 to 55", or "-"."""
        told = sorted(
            {one["labels_seen"] for one in self.summaries.values() if "labels_seen" in one}
        )
        return " to ".join(map(str, dict.fromkeys((*told[:1], *told[-1:])))) or "-"

    @property
    def counts(self) -> str:
        """The number of finished runs, in words: "3", "2 of 3", "3, 1 diverged"."""
        text = str(len(self.finished))
        if len(self.finished) < len(self.frame):
            text += f" of {len(self.frame)}"
        if self.diverged:
            text += f", {self.diverged} diverged"
        return text


@dataclasses.dataclass(frozen=True)
class Report:
    """All contents of a page.

    Attributes:
        frame: rows of `read_runs` with a result, with the number of their "group"; "counts" is
            False for a run that is not finished, or a repeated seed.
        groups: runs with one config.
        baseline: one of the groups.
        metrics: numbers that some run has.
        metric: metric that the page shows first.
        problems: a sentence for everything that could not be read or does not count.
        columns: field whose values are the columns of an exported table; None: a row per group.
    """

    frame: pandas.DataFrame
    groups: list[Group]
    baseline: Group
    metrics: list[Metric]
    metric: Metric
    problems: list[str]
    columns: str | None = None

    def cells(self, metric: Metric) -> list[Cell]:
        """Compare the groups with the baseline in a metric, over finished runs."""
        return [self.cell(metric, one, self.baseline) for one in self.groups]

    def cell(self, metric: Metric, group: Group, base: Group) -> Cell:
        """Compare a group with another one in a metric, over finished runs."""
        ours, theirs = (one.finished[metric.name].dropna() for one in (group, base))
        alone = group is base or self.apart(group, base)
        return compare(ours, None if alone else theirs)

    def apart(self, group: Group, base: Group | None = None) -> list[str]:
        """Return how a group's runs differ from another one's, by default the baseline's, so that
        they form no pairs; empty if they do.
        """
        other = base or self.baseline
        theirs = other.summaries
        pairs = [(one, theirs[seed]) for seed, one in group.summaries.items() if seed in theirs]
        ours, others = (
            {field: value for field, value in one.config.items() if field.startswith("data.")}
            for one in (group, other)
        )
        found = []
        for field, words in COMPARED.items():
            told = [pair for pair in pairs if all(field in summary for summary in pair)]
            if told:
                differ = any(one[field] != another[field] for one, another in told)
            else:  # older runs have no such facts: settings decide
                differ = field == "test_fingerprint" and ours != others
            if differ:
                found.append(words)
        return found

    @property
    def costs(self) -> list[list[float | None]]:
        """Mean costs of each group's finished runs, in the order of `COSTS`; None if a run has no
        value.
        """
        names = [f"cost {title}" for title in COSTS]
        means = [one.finished.reindex(columns=names).mean(skipna=False) for one in self.groups]
        return [list(map(known, row)) for row in means]


@required
def read_runs(paths: str | Path | Sequence[str | Path]) -> pandas.DataFrame:
    """Read run folders, including damaged and unfinished ones.

        read_runs(["runs/sweep"]).groupby("seed")["test_accuracy"].mean()

    Args:
        paths: run folders, or folders that contain some at any depth; or a single one.

    Returns:
        A row per folder, by its path: "run" (its content), "seed", "state", "finished", and the
        numbers after the last round; NaN: missing, infinity: not finite.

    Raises:
        RunFolderError: a path does not exist.
    """
    rows = {
        str(run.path): {
            "run": run,
            "seed": run.config.get("seed"),
            "state": run.state,
            "finished": run.finished,
            **numbers_of(run),
        }
        for run in map(read_run, find_runs(paths))
    }
    return pandas.DataFrame.from_dict(rows, orient="index")


@required
def read(
    paths: str | Path | Sequence[str | Path],
    *,
    metric: str | None = None,
    baseline: str | None = None,
    names: Mapping[str, str] = types.MappingProxyType({}),
) -> Report:
    """Read run folders, sort them into groups and choose the metric and the baseline.

        report = read(["runs/sweep"], baseline="fedavg")
        print(report.frame.groupby("group")["test_accuracy"].mean())

    Args:
        paths: run folders, or folders that contain some at any depth; or a single one.
        metric: a column of `metrics.csv`, or a number of `summary.json`; the test accuracy by
            default.
        baseline: see `choose_baseline`.
        names: other names for groups, or for parts of their names.

    Raises:
        ReportError: there is no run, or no such metric or group.
        RunFolderError: a path does not exist.
    """
    frame = read_runs(paths)
    found = list(frame["run"]) if len(frame) else []
    problems = [f"{run.path}: {problem}" for run in found for problem in run.problems]
    runs = [run for run in found if run.config]
    places = " ".join(map(str, [paths] if isinstance(paths, (str, Path)) else paths))
    if not runs:
        reasons = "".join(f"\n  {line}" for line in problems[:10])
        raise ReportError(
            f"no run in {places}: no folder there holds the config.json of a run. Give a "
            "--workdir of `fedjax-ssl run`, the folder of a sweep, or a folder above "
            f"them.{reasons}"
        )
    started = [run for run in runs if run.rows or run.summary]
    waiting = [run for run in runs if not (run.rows or run.summary)]
    problems += _together("no result, left out", _described(waiting))
    if not started:
        raise ReportError(
            f"no run in {places} has a result yet: none of {counted(len(runs), 'run')} has a "
            "metric row"
        )
    frame = frame.loc[[str(run.path) for run in started]].astype({"seed": int})
    groups, frame = group_runs(frame)
    groups = renamed(groups, names)
    going = [run for run in started if not run.finished]
    problems += [
        f"{path}: seed {row['seed']} of {groups[row['group']].name} is there already, not counted"
        for path, row in frame.iterrows()
        if path not in {str(run.path) for run in groups[row["group"]].runs}
    ]
    problems += _together("not finished, not in the numbers", _described(going))
    lost = [run for run in started if run.finished and run.state != "finished"]
    problems += _together("diverged, the numbers are of what was left", _described(lost))
    changed = on_other_data(((run, run.config, run.summary) for run in started), _alike(started))
    problems += _together(
        "on other data than another run with the same settings of config.data", _described(changed)
    )
    for group in groups:
        if (told := group.of_one_class) is not None:
            problems.append(
                f"{group.name} predicts one class, {told[0]!r}, for every test example in "
                f"{told[1]} of {counted(len(group.finished), 'run')}, as one does that has learned "
                f"nothing: {remedy(group.finished['run'].iloc[0].config)}"
            )
    weak = [run for run in started if no_protection((run.summary or {}).get("delta", 0.0))]
    problems += _together("epsilon is no protection, as delta is above 0.001", _described(weak))
    open_start = [run for run in started if (run.summary or {}).get("outside_epsilon")]
    problems += _together(
        "what the weights of config.start_from have learned is not in epsilon",
        _described(open_start),
    )
    told_apart = [(run.summary or {}).get("sites_apart") for run in started]
    problems += dict.fromkeys(one for one in told_apart if one)
    few = [group for group in groups if len(group.finished) == 2]
    if few and len(groups) > 1:
        problems.append(
            f"two seeds say little: the intervals of {len(few)} groups rest on two runs; run five "
            "or more"
        )
    metrics = metrics_of(frame)
    if not metrics:
        raise ReportError(f"no run in {places} has a metric: their rows hold counts alone")
    base = choose_baseline(groups, names.get(baseline or "", baseline))
    report = Report(frame, groups, base, metrics, _choose_metric(metrics, metric), problems)
    for words in COMPARED.values():
        apart = [group.name for group in groups if words in report.apart(group)]
        problems += _together(f"no difference to {base.name}, {words}", apart, "; ")
    return report


def _described(runs: Iterable[StoredRun]) -> list[str]:
    return [f"{run.path} ({run.state})" if run.rows or run.ended else f"{run.path}" for run in runs]


def _together(what: str, names: Sequence[str], between: str = ", ") -> list[str]:
    """Join the same sentence about several runs or groups into one."""
    if not names:
        return []
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return [f"{what}: {between.join(names[:_NAMED])}{more}"]


def _alike(runs: Iterable[StoredRun]) -> set[str]:
    return {field for run in runs for field in run.alike}


def group_runs(frame: pandas.DataFrame) -> tuple[list[Group], pandas.DataFrame]:
    """Sort runs with a config into groups, in the order of their first runs.

    Args:
        frame: rows of `read_runs`.

    Returns:
        The groups, and the rows with the columns "group" and "counts" in front.
    """
    alike = _alike(frame["run"])
    configs: dict[str, dict[str, Any]] = {}
    texts = []
    for run in frame["run"]:
        fields = flat_config(run.config, ignore=("seed", *alike))
        summary = run.summary or {}
        if "left_out_client" in summary:  # the client's name, because the config may have a number
            fields["data.left_out_client"] = summary["left_out_client"]
        config = {name: value for name, value in fields.items() if value is not None}
        texts.append(json.dumps(config, sort_keys=True))
        configs[texts[-1]] = config
    order = {text: number for number, text in enumerate(configs)}
    rows = [len(run.rows) for run in frame["run"]]
    frame = frame.assign(group=[order[text] for text in texts], rows=rows)
    # Among runs with one seed, the one that came furthest.
    best = frame.sort_values(["finished", "rows"], ascending=False, kind="stable")
    best = best[~best.duplicated(["group", "seed"])]
    counts = frame["finished"] & frame.index.isin(best.index)
    frame = frame.drop(columns="rows")
    for place, (name, column) in enumerate((("group", frame.pop("group")), ("counts", counts))):
        frame.insert(place, name, column)
    names = _names(list(configs.values()))
    groups = []
    for number, (config, parts) in enumerate(zip(configs.values(), names, strict=True)):
        own = frame.loc[best.index[best["group"] == number]].set_index("seed").sort_index()
        groups.append(Group(", ".join(parts.values()), parts, config, own))
    return groups, frame


def renamed(groups: Sequence[Group], names: Mapping[str, str]) -> list[Group]:
    """Rename groups, or parts of their names.

    Raises:
        ReportError: a name that no group and no part of one has.
    """
    known = {text for group in groups for text in (group.name, *group.parts.values())}
    for old in names:
        if old not in known:
            raise ReportError(
                f"--label {old}={names[old]}: no group, and no part of a group's name, is "
                f"{old!r}.{did_you_mean(old, known)} There are: {', '.join(sorted(known)[:20])}"
            )
    found = []
    for group in groups:
        parts = {field: names.get(text, text) for field, text in group.parts.items()}
        name = names.get(group.name, ", ".join(parts.values()))
        found.append(dataclasses.replace(group, name=name, parts=parts))
    return found


def table_of(configs: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Make a table of the fields that differ: a row per config, a column per field, cells as JSON.

    Fields with names of choices go first; the others are in the configs' order.
    """
    texts = pandas.DataFrame(
        {field: json.dumps(value) for field, value in one.items()} for one in configs
    )
    differing = texts.columns[texts.nunique(dropna=False) > 1]

    def rank(field: str) -> tuple[int, bool, bool]:
        # `rounds` before `optimizer.schedule_rounds`, which follows it by default.
        first = _FIRST.index(field) if field in _FIRST else len(_FIRST)
        return first, not field.endswith(".name"), "." in field

    return texts[sorted(differing, key=rank)].fillna("null")


def _names(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Name groups as briefly as possible: by fields that separate groups which the fields before do
    not.
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
    clash = any(other.rpartition(".")[2] == short for other in used - {field})
    return f"{field if clash else short}={text_of(value)}"


def text_of(value: Any) -> str:
    """Write a setting as a person would."""
    if isinstance(value, list):
        return ",".join(map(text_of, value))
    if value is None:
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def choose_baseline(groups: Sequence[Group], given: str | None) -> Group:
    """Return the group that the others are compared with.

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
        if given == group.name or given.rstrip("/") in [str(run.path) for run in group.runs]:
            return group

    def words(text: str) -> set[str]:
        return set(re.split("[ ,=]+", text))

    matching = [group for group in groups if words(given) <= words(group.name)]
    if len(matching) == 1:
        return matching[0]
    names = [group.name for group in matching or groups]
    listing = "".join(f"\n  {name}" for name in names[:20])
    if len(names) > 20:
        listing += "\n  ..."
    if matching:
        raise ReportError(
            f"--baseline {given!r} fits {len(matching)} groups; name one of them:{listing}"
        )
    raise ReportError(
        f"unknown group: --baseline {given!r}.{did_you_mean(given, names)} There are:{listing}"
    )


def _choose_metric(known: Sequence[Metric], given: str | None) -> Metric:
    for one in known:
        if given in (None, one.name):
            return one
    names = [one.name for one in known]
    hint = did_you_mean(given, names)
    raise ReportError(
        f"--metric {given!r} is in none of these runs.{hint} They have: {', '.join(names)}"
    )
