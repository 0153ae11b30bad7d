"""From a report to one page: the values for `assets/report.html`, and the page itself."""

import contextlib
import datetime
import os
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import pandas

import fedjax_ssl
from fedjax_ssl.errors import counted
from fedjax_ssl.folder.folder_lock import SEARCH_FILE, SWEEP_FILE, RunFolderError, read_stored
from fedjax_ssl.folder.stored_run import StoredRun
from fedjax_ssl.report.classes import scores_of, tables_of
from fedjax_ssl.report.curves import AXES, Map, curves_of, maps_of, profiles_of
from fedjax_ssl.report.numbers import (
    LEVEL,
    METHOD,
    Metric,
    around_text,
    cost_texts,
    difference_text,
    headings,
    mean_text,
    short,
    written,
)
from fedjax_ssl.report.runs import Group, Report, table_of, text_of
from fedjax_ssl.report.verdict import verdict

GENERATOR = '<meta name="generator" content="fedjax_ssl'
_ASSETS = ("report.css", "report.js", "uplot.css", "uplot.js")
_BEST = 7  # groups that charts show at first, one colour each
_NUMBERS = 160_000  # numbers in all curves of a page, about six bytes each
_MOST_CURVES = 300  # groups with curves
_MOST_MAPS = 12


def render(report: Report, command: str) -> str:
    """Make the page as HTML. It loads nothing: style, script and data are inside.

    Args:
        report: report with at least one group.
        command: command that makes the page, shown at its end.
    """
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    assets = resources.files("fedjax_ssl.report").joinpath("assets")
    groups = report.groups
    problems = list(report.problems)
    curves = _curves(report)
    scores = scores_of(groups, problems)
    profiles = profiles_of(groups)
    payload = {
        "metric": report.metric.name,
        "metrics": {one.name: _packed(one, report) for one in report.metrics},
        "groups": [group.name for group in groups],
        "baseline": groups.index(report.baseline),
        "best": min(_BEST, len(groups)),
        "curves": curves,
        "clients": profiles,
    }
    configs, common = _configs(groups)
    return environment.from_string(assets.joinpath("report.html").read_text("utf-8")).render(
        {name.replace(".", "_"): assets.joinpath(name).read_text("utf-8") for name in _ASSETS},
        version=fedjax_ssl.__version__,
        command=command,
        made=datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        report=report,
        metrics=_by_kind(report.metrics),
        payload=payload,
        title=_title(groups),
        facts=_facts(groups),
        method=METHOD,
        titles=headings(report.metric, report.baseline.name),
        costs=[list(zip(costs, cost_texts(costs), strict=True)) for costs in report.costs],
        axes=[axis for axis in AXES if any(one["x"].get(axis) for one in curves if one)],
        clients=_html(_clients(groups, profiles)),
        classes={title: _html(table) for title, table in tables_of(scores).items()},
        confusions={
            name: _html(one["confusion"], "matrix", index=True)
            for name, one in scores.items()
            if one["confusion"] is not None
        },
        verdict=verdict(report),
        maps=_maps(groups, problems),
        level=f"{LEVEL:.0%}",
        problems=problems,
        configs=[_html(one, "configs") if len(one) else "" for one in configs],
        common=common,
        runs=_html(_runs(report)),
        environments=_html(_environments(groups), "configs"),
        commands=_commands(report.frame["run"]),
    )


def _html(table: pandas.DataFrame, kind: str = "sortable", index: bool = False) -> str:
    """Write a table as HTML, with its texts escaped."""
    text = table.to_html(index=index, classes=kind, border=0, justify="unset", na_rep="-")
    head, begin, body = text.replace("<th></th>", "<td></td>").partition("<tbody>")
    head = head.replace("<th>", '<th scope="col">')
    return head + begin + body.replace("<th>", '<th scope="row">')


def _curves(report: Report) -> list[dict[str, Any] | None]:
    """Make the curves of every group; if there are too many, of the baseline and the first ones
    alone, so that the page stays small.
    """
    columns = {name for run in report.frame["run"] for name in (run.rows[-1] if run.rows else ())}
    names = [one.name for one in report.metrics if one.name in columns]
    wanted = [report.baseline, *report.groups][:_MOST_CURVES]
    points = _NUMBERS // (min(len(report.groups), _MOST_CURVES) * (len(AXES) + 2 * len(names)))
    points = min(max(points, 15), 200)
    return [curves_of(group, names, points) if group in wanted else None for group in report.groups]


def _packed(metric: Metric, report: Report) -> dict[str, Any]:
    """Pack a metric for template and script: "cells" has a list per group, texts first."""
    cells = []
    for cell in report.cells(metric):
        numbers = (cell.mean, cell.deviation, cell.difference, cell.low, cell.high)
        texts = (mean_text(cell, metric.unit), difference_text(cell, metric.unit))
        # 1 if the interval is better than the baseline, -1 if it is worse.
        around = around_text(cell, metric.unit)
        cells.append([*texts, cell.sign * metric.better, *map(short, numbers), around])
    difference = headings(metric, report.baseline.name)[3]
    return {**metric._asdict(), "title": metric.title, "difference": difference, "cells": cells}


def _maps(groups: Sequence[Group], problems: list[str]) -> list[Map]:
    """Find the maps to show. If there are too many, the first ones are shown, and a problem says
    so.
    """
    found = maps_of(groups)
    if len(found) > _MOST_MAPS:
        problems.append(f"of {len(found)} maps over two numbers the first {_MOST_MAPS} are shown")
    return found[:_MOST_MAPS]


def _by_kind(metrics: Sequence[Metric]) -> dict[str, list[Metric]]:
    """Sort metrics by kind, for a menu."""
    kinds: dict[str, list[Metric]] = {"test examples": [], "validation examples": [], "others": []}
    for one in metrics:
        first = one.name.removeprefix("selected_").removeprefix("best_").partition("_")[0]
        kinds.get(f"{first} examples", kinds["others"]).append(one)
    return {kind: some for kind, some in kinds.items() if some}


def _title(groups: Sequence[Group]) -> str:
    datasets = sorted({str(group.config.get("data.name", "?")) for group in groups})
    methods = sorted({str(group.config["method.name"]) for group in groups})
    named = ", ".join(methods) if len(methods) <= 4 else f"{len(methods)} methods"
    return f"{named} on {', '.join(datasets)}"


def _facts(groups: Sequence[Group]) -> list[str]:
    runs = [run for group in groups for run in group.runs]
    seeds = sorted({len(group.runs) for group in groups})
    states = Counter(re.split("[,:]", run.state)[0] for run in runs)
    few = f"{seeds[0]} to " * (len(seeds) > 1)
    return [
        counted(len(runs), "run"),
        counted(len(groups), "group"),
        f"{few}{counted(seeds[-1], 'seed')} each",
        *(f"{number} {state}" for state, number in states.items() if state != "finished"),
    ]


def _clients(groups: Sequence[Group], profiles: dict[str, dict[int, Any]]) -> pandas.DataFrame:
    """List the accuracies over the clients, one row per measure and group."""
    return pandas.DataFrame(
        {
            "group": groups[place].name,
            "accuracy of": measure,
            "clients": one["clients"],
            "mean (%)": written(one["mean"], "%"),
            "worst tenth (%)": written(one["worst_tenth"], "%"),
            "lowest (%)": written(one["lowest"], "%"),
        }
        for measure, found in profiles.items()
        for place, one in found.items()
    )


def _configs(groups: Sequence[Group]) -> tuple[list[pandas.DataFrame], dict[str, str]]:
    """Lay out the fields that differ as tables, a row per field and a column per group, those that
    belong to a name apart; and list the fields that are the same everywhere.
    """
    configs = [group.config for group in groups]
    fields = table_of(configs)
    differing = pandas.DataFrame(
        {group.name: [text_of(group.config.get(one)) for one in fields] for group in groups},
        fields.columns,
    )
    of_a_name = [_belongs_to_a_name(field, configs, fields) for field in fields]
    tables = [
        differing[[one == belongs for one in of_a_name]].rename_axis("field").reset_index()
        for belongs in (False, True)
    ]
    common = {name: text_of(value) for name, value in configs[0].items() if name not in fields}
    return tables, common


def _belongs_to_a_name(field: str, configs: Sequence[dict[str, Any]], fields: Any) -> bool:
    """Return whether a field differs only because one choice has it, as "xclp" has
    `method.alpha`.
    """
    name = f"{field.rpartition('.')[0]}.name"
    if field == name or name not in fields:
        return False
    has = [field in config for config in configs]
    with_it = fields[has]
    alone = not set(with_it[name]) & set(fields[[not one for one in has]][name])
    return alone and with_it[field].nunique() == 1


def _runs(report: Report) -> pandas.DataFrame:
    """List folder, group, state, seed and value of every run."""
    frame = report.frame
    metric = report.metric
    top = os.path.commonpath([run.path.resolve().parent for run in frame["run"]])
    values = frame[metric.name].where(frame["finished"]).astype(object)
    return pandas.DataFrame(
        {
            "folder": [os.path.relpath(run.path.resolve(), top) for run in frame["run"]],
            "group": [report.groups[place].name for place in frame["group"]],
            "state": frame["state"],
            "seed": frame["seed"],
            headings(metric, "")[2]: values.where(values.notna(), None).map(
                lambda one: written(one, metric.unit)
            ),
        }
    )


def _environments(groups: Sequence[Group]) -> pandas.DataFrame:
    """List the environments of the finished runs: a column per combination, with its number of
    runs.
    """
    found = Counter[tuple[tuple[str, str], ...]]()
    for summary in (one for group in groups for one in group.summaries.values()):
        versions = summary.get("versions")
        named = versions if isinstance(versions, dict) else {}
        named = {**named, "device": summary.get("device")}
        found[tuple((str(one), str(value)) for one, value in named.items() if value)] += 1
    columns = [
        pandas.Series(dict(pairs), name=counted(number, "run")) for pairs, number in found.items()
    ]
    return (
        pandas.concat(columns, axis=1).rename_axis("").reset_index()
        if columns
        else pandas.DataFrame()
    )


def _commands(runs: Sequence[StoredRun]) -> list[str]:
    """List the typed commands: a run's own, or that of its sweep."""
    own = [
        _sweep_command(run.path.resolve().parent.parent) or (run.summary or {}).get("command")
        for run in runs
    ]
    return list(dict.fromkeys(str(command) for command in own if command))


def _sweep_command(folder: Path) -> str | None:
    def build(content: Any) -> str:
        return shlex.join(map(str, content["command"]))

    for name in (SWEEP_FILE, SEARCH_FILE):
        with contextlib.suppress(OSError, RunFolderError):  # then the runs' own commands are shown
            if command := read_stored(folder / name, build):
                return command
    return None
