"""From runs to one page: everything that `assets/report.html` shows, worked out and put in."""

import datetime
import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

import fedjax_ssl
from fedjax_ssl.errors import counted
from fedjax_ssl.report.clients import Profile, profiles_of
from fedjax_ssl.report.comparison import COSTS, Cell, compare, costs_of, difference_text, spread_text
from fedjax_ssl.report.curves import AXES, curves_of, short
from fedjax_ssl.report.effects import effects_of
from fedjax_ssl.report.exports import header
from fedjax_ssl.report.groups import Group, comes_with_a_name, differing_fields, text_of
from fedjax_ssl.report.metrics import Metric, value_of, written
from fedjax_ssl.report.pictures import pictures_of
from fedjax_ssl.report.reading import Report
from fedjax_ssl.report.statistics import METHOD, Spread
from fedjax_ssl.runs.folder import SEARCH_FILE, SWEEP_FILE
from fedjax_ssl.runs.stored_run import StoredRun

_BEST = 7  # groups that charts start with: one colour each
_NUMBERS = 160_000  # in all curves of a page, about six bytes each
_MOST_CURVES = 300  # groups
Profiles = Mapping[str, Mapping[int, Profile]]  # measure -> number of the group -> accuracy over its clients


def render(report: Report, command: str) -> str:
    """The page as HTML. It asks for nothing from anywhere: style, script, data and pictures are in it.

    Args:
        report: with at least one group.
        command: that makes it, to be shown.
    """
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    asset = resources.files("fedjax_ssl.report").joinpath("assets")
    style, script, page = (asset.joinpath(f"report.{kind}").read_text("utf-8") for kind in ("css", "js", "html"))
    values = _values(report)
    return environment.from_string(page).render(
        values, style=style, script=script, command=command, version=fedjax_ssl.__version__
    )


def _values(report: Report) -> dict[str, Any]:
    """What the page is filled with, section by section."""
    groups, metric = report.groups, report.metric
    problems = list(report.problems)
    cells = {one.name: compare(groups, report.baseline, one) for one in report.metrics}
    curves, effects, profiles = _curves(report), effects_of(groups), profiles_of(groups)
    pictures = pictures_of(groups, problems)
    axes = [axis for axis in AXES if any(one["x"].get(axis) for one in curves if one)]
    sections = {
        "results": "Results",
        "curves": "Curves" if axes else "",
        "settings": "Effects" if effects else "",
        "clients": "Clients" if profiles else "",
        "data": "Data" if pictures else "",
        "configs": "Configs",
        "runs": "Runs",
        "versions": "Versions",
    }
    titles = header(metric, report.baseline)
    return {
        "title": _title(report),
        "facts": _facts(report),
        "made": datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        "sections": [(anchor, name) for anchor, name in sections.items() if name],
        "problems": problems,
        "method": METHOD,
        "metrics": report.metrics,
        "metric": metric,
        "best": min(_BEST, len(groups)),
        "baseline": report.baseline.name,
        "headings": (titles.metric, titles.difference),
        "costs": [(title, unit) for title, (_, unit, _) in zip(titles.costs, COSTS, strict=True)],
        "rows": [_row(group, cell, report) for group, cell in zip(groups, cells[metric.name], strict=True)],
        "has_curves": bool(axes),
        "axes": axes,
        "effects": effects,
        "measures": list(profiles),
        "clients": _clients(profiles, groups),
        "pictures": [{**one._asdict(), "seed": one.source.config["seed"]} for one in pictures],
        **_configs([group.config for group in groups]),
        "runs": _runs(report),
        **_environments(report.runs),
        "payload": _payload(report, cells, curves, effects, profiles),
    }


def _clients(profiles: Profiles, groups: Sequence[Group]) -> list[dict[str, Any]]:
    """A line per measure and group of the table about clients."""
    return [
        {
            "measure": measure,
            "group": index,
            "name": groups[index].name,
            "clients": one.clients,
            "shares": (one.mean, one.worst_tenth, one.lowest),
        }
        for measure, found in profiles.items()
        for index, one in found.items()
    ]


def _configs(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Fields side by side: those that differ, those that differ because they belong to a name, and all others."""
    differing = differing_fields(configs)
    with_names = [field for field in differing if comes_with_a_name(field, configs)]
    return {
        "differing": [
            (field, [text_of(config.get(field)) for config in configs])
            for field in differing
            if field not in with_names
        ],
        "with_names": [
            (field, text_of(next(config[field] for config in configs if field in config))) for field in with_names
        ],
        "common": [(field, text_of(value)) for field, value in configs[0].items() if field not in differing],
    }


def _payload(
    report: Report,
    cells: Mapping[str, Sequence[Cell]],
    curves: Sequence[Any],
    effects: Sequence[Any],
    profiles: Profiles,
) -> dict[str, Any]:
    """What the page's script draws and sorts, as JSON."""
    metrics = {
        one.name: {
            "title": one.title,
            "unit": one.unit,
            "better": one.better,
            "difference": header(one, report.baseline).difference,
        }
        for one in report.metrics
    }
    return {
        "metric": report.metric.name,
        "metrics": metrics,
        "groups": [group.name for group in report.groups],
        "baseline": report.groups.index(report.baseline),
        "best": _BEST,
        "table": {one.name: [_packed(cell, one) for cell in cells[one.name]] for one in report.metrics},
        "curves": curves,
        "effects": effects,
        "clients": {measure: {index: one.curve for index, one in found.items()} for measure, found in profiles.items()},
    }


def _curves(report: Report) -> list[dict[str, Any] | None]:
    """Of every group; of very many, of the baseline and the first ones alone, so that the page stays small."""
    columns = {name for run in report.runs for row in run.rows[-1:] for name in row}
    names = [one.name for one in report.metrics if one.name in columns]
    groups = report.groups
    wanted = {id(group) for group in [report.baseline, *groups][:_MOST_CURVES]}
    points = _NUMBERS // (min(len(groups), _MOST_CURVES) * (len(AXES) + 2 * len(names)))
    points = min(max(points, 15), 200)
    return [curves_of(group, names, points) if id(group) in wanted else None for group in groups]


def _row(group: Group, cell: Cell, report: Report) -> dict[str, Any]:
    unit = report.metric.unit
    finished = len(group.finished)
    return {
        "name": group.name,
        "baseline": group is report.baseline,
        "finished": finished,
        "runs": str(finished) if finished == len(group.runs) else f"{finished} of {len(group.runs)}",
        "text": spread_text(cell.spread, unit),
        "value": _mean(cell.spread),
        "difference": "" if cell.difference is None else cell.difference.mean,
        "difference_text": difference_text(cell, unit),
        "sign": _sign(cell, report.metric),
        "costs": [
            (_mean(cost), spread_text(cost and cost._replace(deviation=None), unit))
            for cost, (_, unit, _) in zip(costs_of(group), COSTS, strict=True)
        ],
    }


def _mean(value: Spread | None) -> Any:
    """For an attribute that tables are sorted by: empty where there is nothing."""
    return "" if value is None or short(value.mean) is None else value.mean


def _packed(cell: Cell, metric: Metric) -> list[Any]:
    found, other = cell.spread, cell.difference
    return [
        spread_text(found, metric.unit),
        *((short(found.mean), short(found.deviation)) if found else (None, None)),
        difference_text(cell, metric.unit),
        *((short(other.mean), short(other.low), short(other.high)) if other else (None, None, None)),
        _sign(cell, metric),
    ]


def _sign(cell: Cell, metric: Metric) -> int:
    """1 where the interval says better than the baseline, -1 where it says worse."""
    return cell.difference.sign * metric.better if cell.difference else 0


def _title(report: Report) -> str:
    datasets = sorted({str(group.config.get("data.name", "?")) for group in report.groups})
    methods = sorted({str(group.config["method.name"]) for group in report.groups})
    what = ", ".join(methods) if len(methods) <= 4 else f"{len(methods)} methods"
    return f"{what} on {', '.join(datasets)}"


def _facts(report: Report) -> list[str]:
    runs = [run for group in report.groups for run in group.runs]
    seeds = sorted({len(group.runs) for group in report.groups})
    states = Counter(re.split("[,:]", run.state)[0] for run in runs)
    each = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    facts = [counted(len(runs), "run"), counted(len(report.groups), "group")]
    facts.append(f"{each} {'seed' if seeds == [1] else 'seeds'} each")
    return facts + [f"{number} {state}" for state, number in states.items() if state != "finished"]


def _runs(report: Report) -> list[dict[str, Any]]:
    groups = {id(run): group.name for group in report.groups for run in (*group.runs, *group.doubled)}
    runs = [run for run in report.runs if id(run) in groups]
    top = os.path.commonpath([run.path.resolve().parent for run in runs])
    found = []
    for run in runs:
        value = value_of(run, report.metric.name) if run.state == "finished" else None
        found.append(
            {
                "path": os.path.relpath(run.path.resolve(), top),
                "group": groups[id(run)],
                "seed": run.config["seed"],
                "state": run.state,
                "text": written(value, report.metric.unit),
                "value": "" if short(value) is None else value,
            }
        )
    return found


def _environments(runs: Sequence[StoredRun]) -> dict[str, Any]:
    """What the finished runs ran on, every combination once, and the commands that started them."""
    told = [run.summary for run in runs if run.summary]
    count = Counter(tuple(_environment(summary).items()) for summary in told)
    environments = [(number, dict(pairs)) for pairs, number in count.items() if pairs]
    names = dict.fromkeys(name for _, found in environments for name in found)
    return {"environments": environments, "environment_names": list(names), "commands": _commands(runs)}


def _commands(runs: Sequence[StoredRun]) -> list[str]:
    """What was typed: the command of the sweep that a run belongs to, or its own."""
    of_sweeps: dict[Path, str | None] = {}
    found: dict[str, None] = {}
    for run in runs:
        sweep = run.path.resolve().parent.parent
        if sweep not in of_sweeps:
            of_sweeps[sweep] = _sweep_command(sweep)
        command = of_sweeps[sweep] or (run.summary or {}).get("command")
        if command:
            found[str(command)] = None
    return list(found)


def _sweep_command(folder: Path) -> str | None:
    for name in (SWEEP_FILE, SEARCH_FILE):
        try:
            words = json.loads((folder / name).read_text("utf-8"))["command"]
            return shlex.join(map(str, words))
        except (OSError, ValueError, KeyError, TypeError):  # no sweep, or a damaged file: the runs' own commands
            continue
    return None


def _environment(summary: Mapping[str, Any]) -> dict[str, str]:
    versions = summary.get("versions")
    found = {str(name): str(value) for name, value in versions.items()} if isinstance(versions, dict) else {}
    return found | ({"device": str(summary["device"])} if "device" in summary else {})
