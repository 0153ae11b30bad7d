"""The table of a report for a paper or a spreadsheet: Markdown, LaTeX, CSV."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas

from fedjax_ssl.errors import did_you_mean
from fedjax_ssl.report.numbers import (
    COSTS,
    METHOD,
    Cell,
    cost_texts,
    difference_text,
    headings,
    is_number,
    mean_text,
)
from fedjax_ssl.report.runs import Group, Report, ReportError, text_of

# Marks around bold text, replaced after special characters are escaped.
_BOLD = ("\ue000", "\ue001")


def _rows(report: Report) -> Iterable[tuple[Group, Cell, list[float | None]]]:
    """List every group with its cell in the chosen metric and its costs."""
    return zip(report.groups, report.cells(report.metric), report.costs, strict=True)


def lines(report: Report) -> pandas.DataFrame:
    """Write the table as text, a row per group."""
    unit = report.metric.unit
    rows = [
        [
            group.name,
            group.counts,
            mean_text(cell, unit),
            difference_text(cell, unit),
            group.labels_text,
            *cost_texts(costs),
        ]
        for group, cell, costs in _rows(report)
    ]
    return pandas.DataFrame(rows, columns=headings(report.metric, report.baseline.name))


def crossed(report: Report, field: str) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """Write the means with a column per value of a field, and a row for each combination of the
    other naming fields.

    Returns:
        The texts, and the place of the best value in each column.

    Raises:
        ReportError: groups are not named by this field.
    """
    fields = dict.fromkeys(name for group in report.groups for name in group.parts)
    own = next((name for name in fields if field in (name, name.rpartition(".")[2])), None)
    if own is None:
        raise ReportError(
            f"--columns {field}: groups do not differ in it.{did_you_mean(field, fields)} They "
            f"differ in: {', '.join(fields) or 'nothing'}"
        )
    short = own.rpartition(".")[2]
    # A group that is alone in its row is not named by this field, but has a value of it.
    named = {str(one.config.get(own)): one.parts[own] for one in report.groups if own in one.parts}
    texts: dict[str, dict[str, str]] = {}
    values_of: dict[str, Any] = {}
    goodness: dict[str, dict[str, float]] = {}
    for group, cell, _ in _rows(report):
        row = ", ".join(text for name, text in group.parts.items() if name != own) or "all"
        value = group.config.get(own)
        without = f"no {short}" if value is None else f"{short}={text_of(value)}"
        column = named.get(str(value), without)
        values_of[column] = value
        texts.setdefault(column, {})[row] = mean_text(cell, report.metric.unit)
        goodness.setdefault(column, {})[row] = (cell.mean or math.nan) * report.metric.better
    corner = headings(report.metric, "")[2]
    # Numbers by size; other values follow in the order of the groups.
    order = sorted(
        values_of, key=lambda name: values_of[name] if is_number(values_of[name]) else math.inf
    )
    table = pandas.DataFrame(texts)[order].fillna("-")
    values = pandas.DataFrame(goodness)[order]
    best = values.eq(values.max()) & (values.count() > 1) & (report.metric.better != 0)
    return table.rename_axis(corner).reset_index(), best


def _table(report: Report) -> pandas.DataFrame:
    """Write the table of a paper: a row per group, or rows by columns if the report has `columns`,
    with marks around the best value of a column.
    """
    if report.columns is None:
        return lines(report)
    table, best = crossed(report, report.columns)
    for column in best:
        chosen = best[column].to_numpy()
        table.loc[chosen, column] = [
            _BOLD[0] + text + _BOLD[1] for text in table.loc[chosen, column]
        ]
    return table


def _below(report: Report) -> str:
    return METHOD if report.columns is None else "Bold: the best of a column."


def markdown(report: Report) -> str:
    """Write a table for a README: mean ± standard deviation over seeds, with a line on the
    interval.
    """
    table = _table(report)
    titles, *rows = (
        [re.sub(r"([\\|`*_<>\[\]])", r"\\\1", " ".join(cell.split())) for cell in row]
        for row in (table.columns, *table.to_numpy())
    )
    text = markdown_table(titles, rows).replace(_BOLD[0], "**").replace(_BOLD[1], "**")
    return f"{text}\n\nMean ± standard deviation over seeds. {_below(report)}\n"


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table in Markdown: texts on the left in the first column, numbers on the right."""
    lines = [titles, ["---", *["---:"] * (len(titles) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def latex(report: Report) -> str:
    """Write a tabular that needs the package booktabs."""

    def one_line(text: str) -> str:
        return " ".join(text.split())

    table = _table(report).map(one_line).rename(columns=one_line)
    text = table.to_latex(index=False, escape=True, column_format=f"l{'r' * (table.shape[1] - 1)}")
    method = _below(report).replace("√", "sqrt ").replace("·", "*").replace("±", "+-")
    text = re.sub(r"(?<![\w.])-(?=\d)", "$-$", text)
    return (
        "% needs \\usepackage{booktabs}; mean and standard deviation over seeds.\n"
        f"% {method}\n"
        + text.replace("±", r"$\pm$").replace(_BOLD[0], r"\textbf{").replace(_BOLD[1], "}")
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
            "labels": group.labels_text,
            "baseline": report.baseline.name,
            **dict(zip(titles, costs, strict=True)),
        }
        for group, cell, costs in _rows(report)
    ]
    table = pandas.DataFrame(rows, dtype=object).map(_harmless)
    return table.to_csv(index=False, lineterminator="\n")


def _harmless(value: Any) -> Any:
    """Write NaN, which pandas would leave out, and keep spreadsheets from reading a text as a
    formula.
    """
    if isinstance(value, list):
        value = ",".join(map(str, value))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@")):
        return f"'{value}"
    return value


TABLES: dict[str, tuple[str, Callable[[Report], str]]] = {
    "md": (".md", markdown),
    "latex": (".tex", latex),
    "csv": (".csv", comma_separated),
}
