"""The table of a report for a paper or a spreadsheet: Markdown, LaTeX, CSV."""

import csv
import io
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedjax_ssl.report.comparison import COSTS, Cell, costs_of, difference_text, spread_text
from fedjax_ssl.report.groups import Group
from fedjax_ssl.report.metrics import Metric
from fedjax_ssl.report.statistics import LEVEL, METHOD

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


class Line(NamedTuple):
    """A line of the table as text, or the titles of its columns."""

    group: str
    runs: str
    metric: str
    difference: str
    costs: tuple[str, ...]

    @property
    def cells(self) -> list[str]:
        """All columns, from left to right."""
        return [self.group, self.runs, self.metric, self.difference, *self.costs]


def header(metric: Metric, baseline: Group) -> Line:
    """Titles of the columns of `lines`."""
    unit = {"%": " (%)", "s": " (s)"}.get(metric.unit, "")
    points = {"%": "points, "}.get(metric.unit, "")
    return Line(
        group="group",
        runs="runs",
        metric=f"{metric.title}{unit}",
        difference=f"difference to {baseline.name} ({points}{LEVEL:.0%} interval)",
        costs=tuple(f"{title} (s)" if unit_ == "s" else title for title, unit_, _ in COSTS),
    )


def lines(groups: Sequence[Group], cells: Sequence[Cell], metric: Metric) -> list[Line]:
    """The table as text, a line per group."""
    return [
        Line(
            group=group.name,
            runs=str(len(group.finished)),
            metric=spread_text(cell.spread, metric.unit),
            difference=difference_text(cell, metric.unit),
            costs=tuple(
                spread_text(cost and cost._replace(deviation=None), unit)
                for cost, (_, unit, _) in zip(costs_of(group), COSTS, strict=True)
            ),
        )
        for group, cell in zip(groups, cells, strict=True)
    ]


def markdown(groups: Sequence[Group], cells: Sequence[Cell], metric: Metric, baseline: Group) -> str:
    """A table for a README; mean ± standard deviation over seeds, and how the interval is made below it."""
    titles = header(metric, baseline).cells
    rows = [titles, ["---", *["---:"] * (len(titles) - 1)], *(line.cells for line in lines(groups, cells, metric))]
    text = [f"| {' | '.join(map(_markdown, row))} |" for row in rows]
    return "\n".join([*text, "", f"Mean ± standard deviation over seeds. {METHOD}"]) + "\n"


def latex(groups: Sequence[Group], cells: Sequence[Cell], metric: Metric, baseline: Group) -> str:
    """A tabular that needs the package booktabs."""
    titles = header(metric, baseline).cells
    body = [" & ".join(map(_latex, line.cells)) + r" \\" for line in lines(groups, cells, metric)]
    return (
        "\n".join(
            [
                "% needs \\usepackage{booktabs}; mean and standard deviation over seeds.",
                f"% {METHOD.replace('√', 'sqrt ').replace('·', '*').replace('±', '+-')}",
                f"\\begin{{tabular}}{{l{'r' * (len(titles) - 1)}}}",
                r"\toprule",
                " & ".join(map(_latex, titles)) + r" \\",
                r"\midrule",
                *body,
                r"\bottomrule",
                r"\end{tabular}",
            ]
        )
        + "\n"
    )


def comma_separated(groups: Sequence[Group], cells: Sequence[Cell], metric: Metric, baseline: Group) -> str:
    """Unrounded numbers in the metric's own unit (shares in [0, 1]); a column per field that names a group."""
    fields = list(dict.fromkeys(field for group in groups for field in group.parts))
    numbers = ["runs", "mean", "deviation", "pairs", "difference", "low", "high"]
    costs = [title.replace(", ", " ").replace(" ", "_") for title, _, _ in COSTS]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["group", *fields, "metric", *numbers, "baseline", *costs])
    for group, cell in zip(groups, cells, strict=True):
        found = [*(cell.spread or (0, None, None)), *(cell.difference or (0, None, None, None))]
        writer.writerow(
            [
                _harmless(group.name),
                *(_harmless(group.config.get(field)) for field in fields),
                metric.name,
                *map(_number, found),
                _harmless(baseline.name),
                *(_number(cost.mean if cost else None) for cost in costs_of(group)),
            ]
        )
    return text.getvalue()


EXPORTS: dict[str, tuple[str, Callable[[Sequence[Group], Sequence[Cell], Metric, Group], str]]] = {
    "md": (".md", markdown),
    "latex": (".tex", latex),
    "csv": (".csv", comma_separated),
}


def _markdown(cell: str) -> str:
    return re.sub(r"([\\|`*_<>\[\]])", r"\\\1", " ".join(cell.split())) if cell.strip("-:") else cell


def _latex(cell: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(cell.split()))


def _number(value: float | None) -> Any:
    return "" if value is None else value if math.isfinite(value) else str(value)


def _harmless(value: Any) -> Any:
    """A text that a spreadsheet does not take for a formula."""
    if isinstance(value, list):
        value = ",".join(map(str, value))
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value
