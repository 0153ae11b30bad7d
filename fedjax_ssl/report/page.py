"""From a report to one page: everything that `assets/report.html` shows, worked out and put in."""

import base64
import contextlib
import datetime
import functools
import html
import io
import json
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas
from PIL import Image

import fedjax_ssl
from fedjax_ssl.errors import counted
from fedjax_ssl.folder.citations import entries
from fedjax_ssl.folder.folder import SEARCH_FILE, SWEEP_FILE, RunFolderError, read_stored
from fedjax_ssl.folder.stored_run import StoredRun
from fedjax_ssl.methods import described
from fedjax_ssl.report.charts import AXES, Map, curves_of, effects_of, maps_of, profiles_of
from fedjax_ssl.report.mistakes import mistakes_of
from fedjax_ssl.report.numbers import (
    LEVEL,
    METHOD,
    Metric,
    around_text,
    compare,
    cost_texts,
    difference_text,
    headings,
    mean_text,
    numbers_of,
    short,
    written,
)
from fedjax_ssl.report.runs import Group, Report, table_of, text_of
from fedjax_ssl.report.scores import (
    Scored,
    confusion_picture,
    panels_of,
    scored_groups,
    two_classes,
)
from fedjax_ssl.report.verdict import verdict

_BEST = 7  # groups that charts start with: one colour each
_NUMBERED = 20  # classes up to which a confusion matrix has numbers in it
_NUMBERS = 160_000  # in all curves of a page, about six bytes each
_MOST_CURVES = 300  # groups
_MOST_MAPS = 12
# sections of a config that decide who holds which data
_DATA = ("data", "partition", "supervision")
# pixels and colours of a picture, lines of the table under it
_WIDTH = 900
_COLOURS = 48
_LINES = 60
_PICTURES = 1_200_000  # bytes of all pictures of a page


def render(
    report: Report, command: str, folders: Sequence[str] = (), *, mistakes: bool = False
) -> str:
    """Make the page as HTML. It asks for nothing from anywhere: style, script, data and pictures
    are in it.

    Args:
        report: with at least one group.
        command: the command that makes it, shown at its end.
        folders: that were given; `made_of` reads them.
        mistakes: show test images that are taken for something else, from the runs' data.
    """
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    asset = resources.files("fedjax_ssl.report").joinpath("assets")
    style, script, page = (
        asset.joinpath(f"report.{kind}").read_text("utf-8") for kind in ("css", "js", "html")
    )
    groups = report.groups
    problems = list(report.problems)
    titles = headings(report.metric, report.baseline.name)
    environments = _environments(report.runs)
    scored = scored_groups(groups, problems)
    payload: dict[str, Any] = {
        "metric": report.metric.name,
        "metrics": {one.name: _packed(one, report) for one in report.metrics},
        "groups": [group.name for group in groups],
        "baseline": groups.index(report.baseline),
        "best": min(_BEST, len(groups)),
        "curves": _curves(report),
        "effects": effects_of(groups),
        "clients": profiles_of(groups),
        "panels": panels_of(groups, scored, report.positive),
    }
    return environment.from_string(page).render(
        style=style,
        script=script,
        version=fedjax_ssl.__version__,
        command=command,
        folders=json.dumps(folders),
        metrics=_by_kind(report.metrics),
        mistakes=mistakes_of(groups, problems) if mistakes else {},
        made=datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        report=report,
        payload=payload,
        title=_title(groups),
        facts=_facts(groups),
        method=METHOD,
        titles=titles,
        costs=[list(zip(costs, cost_texts(costs), strict=True)) for costs in report.costs],
        axes=[axis for axis in AXES if any(one["x"].get(axis) for one in payload["curves"] if one)],
        pictures=_pictures(groups, problems),
        scores=_scores(report, scored),
        verdict=verdict(report),
        maps=_maps(groups, problems),
        level=f"{LEVEL:.0%}",
        methods=_methods(groups),
        problems=problems,
        configs=_configs([group.config for group in groups]),
        runs=_runs(report),
        environments=environments,
        environment_names=list(dict.fromkeys(name for _, one in environments for name in one)),
        commands=_commands(report.runs),
    )


def _curves(report: Report) -> list[dict[str, Any] | None]:
    """Make the curves of every group; of very many, of the baseline and the first ones alone:
    the page stays small.
    """
    columns = {name for run in report.runs for name in (run.rows[-1] if run.rows else ())}
    names = [one.name for one in report.metrics if one.name in columns]
    wanted = [report.baseline, *report.groups][:_MOST_CURVES]
    points = _NUMBERS // (min(len(report.groups), _MOST_CURVES) * (len(AXES) + 2 * len(names)))
    points = min(max(points, 15), 200)
    return [curves_of(group, names, points) if group in wanted else None for group in report.groups]


def _packed(metric: Metric, report: Report) -> dict[str, Any]:
    """Packs a metric for template and script: in "cells" a list per group, texts first."""
    cells = []
    for cell in report.cells(metric):
        numbers = (cell.mean, cell.deviation, cell.difference, cell.low, cell.high)
        texts = (mean_text(cell, metric.unit), difference_text(cell, metric.unit))
        # 1 where the interval says better than the baseline, -1 where it says worse
        around = around_text(cell, metric.unit)
        cells.append([*texts, cell.sign * metric.better, *map(short, numbers), around])
    difference = headings(metric, report.baseline.name)[3]
    return {**metric._asdict(), "title": metric.title, "difference": difference, "cells": cells}


def _maps(groups: Sequence[Group], problems: list[str]) -> list[Map]:
    """Find the maps that are shown: of very many the first ones, and a sentence says so."""
    found = maps_of(groups)
    if len(found) > _MOST_MAPS:
        problems.append(f"of {len(found)} maps over two numbers the first {_MOST_MAPS} are shown")
    return found[:_MOST_MAPS]


def made_of(page: str) -> list[str] | None:
    """Tell which folders a page is the report of; None where it is no page of `render`."""
    if found := re.search('<meta name="runs" content="([^"]*)">', page):
        folders: list[str] = json.loads(html.unescape(found[1]))
        return folders
    return [] if '<meta name="generator" content="fedjax_ssl' in page else None


def _by_kind(metrics: Sequence[Metric]) -> dict[str, list[Metric]]:
    """Sort metrics by what they are of, for a menu."""
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


def _configs(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Fields side by side: those that differ, those that differ because they belong to a name,
    and all others.
    """
    table = table_of(configs)
    differing = {}
    belonging = {}
    for field in table:
        if _belongs_to_a_name(field, configs, table):
            belonging[field] = text_of(next(one[field] for one in configs if field in one))
        else:
            differing[field] = [text_of(one.get(field)) for one in configs]
    common = {field: text_of(value) for field, value in configs[0].items() if field not in table}
    return {"differing": differing, "belonging": belonging, "common": common}


def _belongs_to_a_name(field: str, configs: Sequence[Mapping[str, Any]], table: Any) -> bool:
    """Says whether a field differs for the sole reason that one choice has it, as "xclp" has
    `method.alpha`.
    """
    name = f"{field.rpartition('.')[0]}.name"
    if field == name or name not in table:
        return False
    has = table.index.map(lambda place: field in configs[place])
    names = table[name]
    values = table.loc[has, field]
    return values.nunique() == 1 and not set(names[has]) & set(names[~has])


def _runs(report: Report) -> list[tuple[Any, ...]]:
    """List folder, group, state and seed of every run, and its value as number and text."""
    top = os.path.commonpath([run.path.resolve().parent for run in report.runs])
    found = []
    for run, place in zip(report.runs, report.frame.index.get_level_values("group"), strict=True):
        path = os.path.relpath(run.path.resolve(), top)
        group = report.groups[place].name
        value = numbers_of(run).get(report.metric.name) if run.finished else None
        text = written(value, report.metric.unit)
        found.append((path, group, run.state, run.config["seed"], short(value), text))
    return found


def _environments(runs: Sequence[StoredRun]) -> list[tuple[int, dict[str, str]]]:
    """List what the finished runs ran on, every combination once with its number of runs."""
    found = Counter[tuple[tuple[str, str], ...]]()
    for run in runs:
        summary = run.summary or {}
        versions = summary.get("versions")
        named = versions if isinstance(versions, dict) else {}
        named = {**named, "device": summary.get("device")}
        found[tuple((str(one), str(named[one])) for one in named if named[one] is not None)] += 1
    return [(number, dict(pairs)) for pairs, number in found.items() if pairs]


def _commands(runs: Sequence[StoredRun]) -> list[str]:
    """List what was typed: the command of the sweep that a run belongs to, or its own."""
    of_sweep = functools.cache(_sweep_command)
    own = [
        of_sweep(run.path.resolve().parent.parent) or (run.summary or {}).get("command")
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


def _pictures(groups: Sequence[Group], problems: list[str]) -> list[dict[str, Any]]:
    """Show how data lie with the clients: one picture for every kind of federation, small enough
    for a page.

    Args:
        groups: the report's.
        problems: a sentence is added for every picture that cannot be shown.
    """
    kinds: dict[str, list[Group]] = {}
    for group in groups:
        kinds.setdefault(_settings(group.config), []).append(group)
    found = []
    left = _PICTURES
    for settings, members in kinds.items():
        runs = [run for group in members for run in group.runs]
        source = next((run for run in runs if (run.path / "partition.png").exists()), runs[0])
        image = _image(source.path / "partition.png", problems)
        text = _beginning(source.path / "partition.txt")
        if len(image) > left:
            problems.append(
                f"{source.path}: partition.png is left out, the report has too many pictures"
            )
            image = ""
        left -= len(image)
        if image or text:
            found.append(
                {
                    "groups": [group.name for group in members],
                    "settings": settings,
                    "seed": source.config["seed"],
                    "image": image,
                    "text": text,
                }
            )
    return found


def _scores(report: Report, scored: Mapping[int, Scored]) -> dict[str, Any]:
    """Lay out detailed scores: tables with a row per class and a column per group, and confusion
    matrices.
    """
    if not scored:
        return {}
    tables = {place: one.by_class for place, one in scored.items()}
    support = pandas.DataFrame({place: one["support"] for place, one in tables.items()})
    examples = support.mean(axis=1).round().astype(int).to_dict()
    rows = {}
    for title, name in (("Recall", "recall"), ("Precision", "precision"), ("F1", "f1")):
        table = pandas.DataFrame({place: one[name] for place, one in tables.items()}, dtype=float)
        rows[title] = [
            (name, examples[name], [(short(one), _share(one)) for one in row])
            for name, *row in table.itertuples()
        ]
    confusions = [
        (report.groups[place].name, one.examples, _matrix(one.confusion, one.classes))
        for place, one in scored.items()
        if one.confusion is not None
    ]
    found = {"groups": list(scored), "tables": rows, "confusions": confusions}
    return found | _of_two_classes(report, list(scored), list(examples))


def _matrix(counts: np.ndarray, classes: Sequence[str]) -> dict[str, Any]:
    """Lay out a confusion matrix: as numbers with the share of the true class in per cent, and as
    a picture where there are too many classes for numbers.
    """
    if len(classes) > _NUMBERED:
        picture = base64.b64encode(confusion_picture(counts)).decode()
        return {"rows": [], "image": f"data:image/png;base64,{picture}"}
    shares = np.round(100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)).astype(int)
    cells = np.stack([counts, shares], axis=-1).tolist()
    return {"rows": list(zip(classes, cells, strict=True)), "image": ""}


def _of_two_classes(report: Report, places: list[int], classes: list[str]) -> dict[str, Any]:
    """Score groups of two classes for the one that is looked for; no row for other groups."""
    positive = report.positive or classes[-1]
    found = {place: two_classes(report.groups[place], positive) for place in places}
    rows = [
        (report.groups[place].name, [_spread(values) for values in one[:3]])
        for place, one in found.items()
        if one is not None and len(classes) == 2
    ]
    return {"positive": positive, "two_classes": rows}


def _spread(values: Sequence[float]) -> tuple[float | None, str]:
    cell = compare(pandas.Series(values))
    return short(cell.mean), mean_text(cell, "%")


def _share(value: float) -> str:
    return written(None if math.isnan(value) else value, "%")


def _methods(groups: Sequence[Group]) -> dict[str, list[tuple[str, str]]]:
    """Give every method of this package, and every part of a composition, its page: what its file
    says, with its references and BibTeX, as pieces of text and the address that a piece leads to,
    or "".
    """
    found = {}
    used = [
        str(name)
        for group in groups
        for name in (group.config["method.name"], *group.config.get("method.parts", ()))
    ]
    for name in dict.fromkeys(used):
        whole = "\n\n".join([described(name), *entries([name])]).strip()
        if whole:
            pieces = re.split(r"(arXiv \d{4}\.\d{5})", whole)
            found[name] = [
                (one, f"https://arxiv.org/abs/{one[6:]}" if place % 2 else "")
                for place, one in enumerate(pieces)
            ]
    return found


def _settings(config: Mapping[str, Any]) -> str:
    """List the settings that decide how data lie with the clients, without those that are off."""
    chosen = [
        (_DATA.index(section), not name.endswith(".name"), place, f"{name}={text_of(value)}")
        for place, (name, value) in enumerate(config.items())
        if (section := name.partition(".")[0]) in _DATA and value != 0
    ]
    return ", ".join(text for *_, text in sorted(chosen))


def _image(path: Path, problems: list[str]) -> str:
    """Make a data address of a picture in a file. "": there is none."""
    if not path.exists():
        return ""
    try:
        return _address(path)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        problems.append(f"{path.parent}: {path.name} cannot be shown: {error}")
        return ""


def _address(source: Path) -> str:
    """Make a data address of a picture, with few colours: these pictures are shapes and text. What
    is transparent stays so, for dark pages.
    """
    content = io.BytesIO()
    with Image.open(source) as whole:
        picture = whole.convert("RGBA")
        picture.thumbnail((_WIDTH, 2 * _WIDTH))
        few = picture.quantize(_COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        few.save(content, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def _beginning(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[:_LINES] + ["..."] * (len(lines) > _LINES))
