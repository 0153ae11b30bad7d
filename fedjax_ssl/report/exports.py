"""Exports the table of a report to a paper or a spreadsheet: Markdown, LaTeX, CSV."""

import functools
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas

from fedjax_ssl.report.charts import curves_of
from fedjax_ssl.report.numbers import (
    COSTS,
    METHOD,
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
    titles, *rows = (
        [re.sub(r"([\\|`*_<>\[\]])", r"\\\1", " ".join(cell.split())) for cell in row]
        for row in (table.columns, *table.to_numpy())
    )
    text = markdown_table(titles, rows)
    return f"{text}\n\nMean ± standard deviation over seeds. {METHOD}\n"


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table in Markdown: texts left, in the first column, and numbers right."""
    lines = [titles, ["---", *["---:"] * (len(titles) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def latex(report: Report) -> str:
    """Write a tabular that needs the package booktabs."""

    def one_line(text: str) -> str:
        return " ".join(text.split())

    table = lines(report).map(one_line).rename(columns=one_line)
    text = table.to_latex(index=False, escape=True, column_format=f"l{'r' * (table.shape[1] - 1)}")
    method = METHOD.replace("√", "sqrt ").replace("·", "*").replace("±", "+-")
    return (
        "% needs \\usepackage{booktabs}; mean and standard deviation over seeds.\n"
        f"% {method}\n" + text.replace("±", r"$\pm$")
    )


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
    table = pandas.DataFrame(rows, dtype=object).map(_harmless)
    return table.to_csv(index=False, lineterminator="\n")


def _harmless(value: Any) -> Any:
    """Write NaN, which pandas would leave out, and keeps spreadsheets from taking a text for a
    formula.
    """
    if isinstance(value, list):
        value = ",".join(map(str, value))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@")):
        return f"'{value}"
    return value


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
    dated = {"Date": None} if kind == "svg" else None
    drawing.savefig(content, format=kind, bbox_inches="tight", metadata=dated)
    return content.getvalue()


EXPORTS: dict[str, tuple[str, Callable[[Report], str | bytes]]] = {
    "md": (".md", markdown),
    "latex": (".tex", latex),
    "csv": (".csv", comma_separated),
    "pdf": (".pdf", functools.partial(figure, "pdf")),
    "svg": (".svg", functools.partial(figure, "svg")),
}
