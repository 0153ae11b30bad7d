"""The page's curves as figures of a paper: PDF or SVG, at the width of a column."""

import io
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_ssl.errors import did_you_mean
from fedjax_ssl.pictures import use_matplotlib
from fedjax_ssl.report.charts import AXES, curves_of, effects_of, profiles_of
from fedjax_ssl.report.numbers import headings
from fedjax_ssl.report.runs import Report, ReportError
from fedjax_ssl.report.scores import panels_of, scored_groups

_TITLES = {
    "reliability": ("probability (%)", "right (%)"),
    "roc": ("false alarms (%)", "found (%)"),
}
_DASHES = ("-", "--", ":", "-.")
_LONG = 24  # characters of a name, from which on a legend has one column


class Curves(NamedTuple):
    """What one chart of the page shows. Where a title has "(%)", values are shares in [0, 1]."""

    across: str
    up: str
    lines: dict[str, Sequence[Any]]  # by name: points (x, y, deviation or None)
    log: bool = False  # across, on a logarithmic scale


def figure(report: Report, curve: str, kind: str) -> bytes:
    """Draw curves: means over the runs, and a deviation over seeds around them.

    Args:
        report: any.
        curve: one of `curves_in`.
        kind: "pdf" or "svg".

    Raises:
        ReportError: the runs have no such curve.
    """
    use_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    known = curves_in(report)
    if curve not in known:
        raise ReportError(
            f"--curve {curve}: there is none.{did_you_mean(curve, known)} These runs have: "
            f"{', '.join(known)}"
        )
    across, up, lines, log = known[curve]
    columns = 1 if max(map(len, lines)) > _LONG else 2
    height = 2.3 + 0.15 * math.ceil(len(lines) / columns)  # the legend takes none of the axes'
    drawing = Figure(figsize=(3.4, height), layout="constrained")
    axes = drawing.subplots()
    if curve in _TITLES:
        axes.plot([0, 100], [0, 100], color="grey", linewidth=0.8, linestyle="--")
    scale = [100 if "(%)" in title else 1 for title in (across, up, up)]
    # of curves that meet, each is thinner than those below it
    widths = np.linspace(2.5 if len(lines) > 1 else 1, 1, len(lines))
    for number, (name, points) in enumerate(lines.items()):
        x, mean, spread = np.array(points, float).T * np.array(scale)[:, None]
        marker = "o" if len(x) < 8 else ""
        width = widths[number]
        dashes = _DASHES[number // 10 % len(_DASHES)]  # colours begin again after ten
        axes.plot(x, mean, dashes, label=name, linewidth=width, marker=marker, markersize=2 + width)
        axes.fill_between(x, mean - spread, mean + spread, alpha=0.2, linewidth=0)
    axes.set(xlabel=across, ylabel=up, xscale="log" if log else "linear")
    if curve == "bytes":
        axes.xaxis.set_major_formatter(EngFormatter("B"))
    axes.spines[["top", "right"]].set_visible(False)
    # below the axes, where it hides no curve
    legend = drawing.legend(loc="outside lower left", frameon=False, fontsize=7, ncols=columns)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a "$" in a name is one
    content = io.BytesIO()
    dated = {"Date": None} if kind == "svg" else None
    drawing.savefig(content, format=kind, bbox_inches="tight", metadata=dated)
    return content.getvalue()


def curves_in(report: Report) -> dict[str, Curves]:
    """List the curves of a report by name: over rounds and costs, by a number that was swept, over
    the clients from worst to best, and those of the scores.
    """
    groups = report.groups
    plain = report.metric._replace(name=re.sub("^(selected|best)_", "", report.metric.name))
    found: dict[str, Curves] = {}
    lines: dict[str, Sequence[Any]]
    over = {group.name: curves_of(group, [plain.name], 400) for group in groups}
    for axis in AXES:
        lines = {}
        for name, one in over.items():
            if one["x"].get(axis) and plain.name in one["y"]:
                mean, spread = one["y"][plain.name]
                band = spread or [None] * len(mean)
                lines[name] = list(zip(one["x"][axis], mean, band, strict=True))
        found[axis] = Curves(axis.replace("_", " "), headings(plain, "")[2], lines)
    cells = report.cells(report.metric)
    for effect in effects_of(groups):
        field = effect["field"].rpartition(".")[2]
        lines = {
            line["name"] or "all": [
                (x, cells[place].mean, cells[place].deviation) for x, place in line["points"]
            ]
            for line in effect["lines"]
        }
        found[field] = Curves(field, headings(report.metric, "")[2], lines, effect["log"])
    for measure, profiles in profiles_of(groups).items():
        lines = {}
        for place, one in profiles.items():
            worst_first = one["curve"]
            last = max(len(worst_first) - 1, 1)
            lines[groups[place].name] = [(x / last, y, None) for x, y in enumerate(worst_first)]
        name = "clients" if measure == "model" else f"clients_{measure}"
        found[name] = Curves("clients, from worst to best (%)", "accuracy (%)", lines)
    for name, by_group in panels_of(groups, scored_groups(groups), report.positive).items():
        lines = {groups[place].name: points for place, points in by_group.items()}
        found[name] = Curves(*_TITLES[name], lines)
    return {name: one for name, one in found.items() if one.lines}
