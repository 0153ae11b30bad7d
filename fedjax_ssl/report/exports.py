"""Exports the table of a report to a paper or a spreadsheet: Markdown, LaTeX, CSV."""

import functools
import io
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas

from fedjax_ssl.report.charts import curves_of
from fedjax_ssl.report.numbers import (
    COSTS,
    METHOD,
    Cell,
    cost_texts,
    difference_text,
    headings,
    mean_text,
)
from fedjax_ssl.report.runs import Report


def lines(report: Report) -> pandas.DataFrame:
    """Write the table as text, a row per group."""
    unit = report.metric.unit
    rows = [
        [
            group.name,
            group.counts,
            mean_text(cell, unit),
            difference_text(cell, unit),
            *cost_texts(costs),
        ]
        for group, cell, costs in report.rows
    ]
    return pandas.DataFrame(rows, columns=headings(report.metric, report.baseline.name))


def markdown(report: Report) -> str:
    """Write a table for a README; mean ± standard deviation over seeds, and how the interval is
    made below it.
    """
    table = lines(report)
    rows = [list(table), ["---", *["---:"] * (table.shape[1] - 1)], *table.to_numpy().tolist()]
    text = [f"| {' | '.join(map(_markdown, row))} |" for row in rows]
    return "\n".join([*text, "", f"Mean ± standard deviation over seeds. {METHOD}"]) + "\n"


def _markdown(cell: str) -> str:
    return (
        re.sub(r"([\\|`*_<>\[\]])", r"\\\1", " ".join(cell.split())) if cell.strip("-:") else cell
    )


def latex(report: Report) -> str:
    """Write a tabular that needs the package booktabs."""
    table = (
        lines(report)
        .map(lambda cell: " ".join(cell.split()))
        .rename(columns=lambda title: " ".join(title.split()))
    )
    text = table.to_latex(index=False, escape=True, column_format=f"l{'r' * (table.shape[1] - 1)}")
    return (
        "% needs \\usepackage{booktabs}; mean and standard deviation over seeds.\n"
        f"% {METHOD.replace('√', 'sqrt ').replace('·', '*').replace('±', '+-')}\n"
    ) + text.replace("±", r"$\pm$")


def comma_separated(report: Report) -> str:
    """Write unrounded numbers, shares in [0, 1], with a column per field that names a group."""
    fields = list(dict.fromkeys(field for group in report.groups for field in group.parts))
    titles = [title.replace(", ", " ").replace(" ", "_") for title in COSTS]
    rows = [
        {
            "group": group.name,
            **{field: group.config.get(field) for field in fields},
            "metric": report.metric.name,
            **cell._asdict(),
            "diverged": group.diverged,
            "baseline": report.baseline.name,
            **dict(zip(titles, costs, strict=True)),
        }
        for group, cell, costs in report.rows
    ]
    columns = dict.fromkeys(
        ("group", *fields, "metric", *Cell._fields, "diverged", "baseline", *titles)
    )
    return (
        pandas.DataFrame(rows, columns=columns, dtype=object)
        .map(_harmless)
        .to_csv(index=False, lineterminator="\n")
    )


def _harmless(value: Any) -> Any:
    """Write NaN, which pandas would leave out, and keeps spreadsheets from taking a text for a
    formula.
    """
    if isinstance(value, list):
        value = ",".join(map(str, value))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return (
        f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value
    )


def figure(kind: str, report: Report) -> bytes:
    """Draws the report's metric over rounds for a column of a paper: means, and a deviation over
    seeds around them.
    """
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(3.4, 2.5))
    scale = 100 if report.metric.unit == "%" else 1
    axes = drawing.subplots()
    name = re.sub("^(selected|best)_", "", report.metric.name)
    for group in report.groups:
        curves = curves_of(group, [name], 400)
        if name in curves["y"]:
            mean, spread = (scale * np.array(one or 0, float) for one in curves["y"][name])
            rounds = curves["x"]["round"]
            axes.plot(rounds, mean, label=group.name, linewidth=1)
            axes.fill_between(rounds, mean - spread, mean + spread, alpha=0.2, linewidth=0)
    axes.set(xlabel="round", ylabel=headings(report.metric._replace(name=name), "")[2])
    axes.spines[["top", "right"]].set_visible(False)
    for text in axes.legend(frameon=False, fontsize=7).get_texts():
        text.set_parse_math(False)  # a "$" in a name is one
    content = io.BytesIO()
    drawing.savefig(
        content,
        format=kind,
        bbox_inches="tight",
        metadata={"Date": None} if kind == "svg" else None,
    )
    return content.getvalue()


EXPORTS: dict[str, tuple[str, Callable[[Report], str | bytes]]] = {
    "md": (".md", markdown),
    "latex": (".tex", latex),
    "csv": (".csv", comma_separated),
    "pdf": (".pdf", functools.partial(figure, "pdf")),
    "svg": (".svg", functools.partial(figure, "svg")),
}
