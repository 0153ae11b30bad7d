"""Measurements as a table."""

from collections.abc import Iterable
from typing import Any

_COLUMNS = (
    ("workload", "workload", "{}"),
    ("variant", "variant", "{}"),
    ("examples/s", "examples_per_second", "{:,.0f}"),
    ("clients/s", "client_updates_per_second", "{:,.1f}"),
    ("steps/s", "local_steps_per_second", "{:,.0f}"),
    ("rounds/s", "rounds_per_second", "{:,.3g}"),
    ("s per round", "seconds_per_round", "{:.3g}"),
    ("processor s", "processor_seconds_per_round", "{:.3g}"),
    ("compile s", "compile_seconds", "{:.1f}"),
    ("peak GB", "peak_memory_bytes", "{:.2f}"),
    ("of peak", "fraction_of_peak", "{:.1%}"),
    ("padding", "padded_share", "{:.1%}"),
)
_SCALES = {"peak_memory_bytes": 1e-9}


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Rows of `measure` as a Markdown table, with what they mean and what they were measured on below it."""
    rows = list(rows)
    cells = [[_cell(row[field], form, _SCALES.get(field, 1)) for _, field, form in _COLUMNS] for row in rows]
    titles = [title for title, _, _ in _COLUMNS]
    widths = [max(len(line[i]) for line in (titles, *cells)) for i in range(len(titles))]

    def line(values: list[str]) -> str:
        padded = (
            value.ljust(width) if i < 2 else value.rjust(width)
            for i, (value, width) in enumerate(zip(values, widths, strict=True))
        )
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * width if i < 2 else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    below = [f"{row['workload']}: {row['title']}" for row in rows]
    below += [f"{row['workload']}: {row['note']}" for row in rows if row["note"]]
    below += [
        f"{row['workload']} {row['variant']}: one block, cold: it took longer than --limit"
        for row in rows
        if not row["warm"]
    ]
    peak = max(row["product_operations_per_second"] for row in rows)
    below.append(
        f"{rows[0]['device']}, matrix product {peak / 1e9:,.0f} GFLOP/s; "
        + ", ".join(f"{name} {version}" for name, version in rows[0]["versions"].items())
    )
    return "\n".join([line(titles), line(rule), *map(line, cells), "", *dict.fromkeys(below)])


def _cell(value: Any, form: str, scale: float) -> str:
    if value is None:
        return ""
    return form.format(value if isinstance(value, str) else scale * value)
