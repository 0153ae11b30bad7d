"""Measurements as a table."""

from collections.abc import Callable, Iterable
from typing import Any

from fedjax_ssl.benchmarks.ahead import Compiled
from fedjax_ssl.benchmarks.hlo import Part
from fedjax_ssl.benchmarks.targets import TARGETS

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


def _kernels(part: Part) -> str | None:
    return f"{part.num_kernels:,.0f}" if part.kernels else None


def _milliseconds(seconds: float) -> str | None:
    return f"{1e3 * seconds:.3g}" if seconds else None


_AHEAD_COLUMNS: tuple[tuple[str, Callable[[Compiled], str | None]], ...] = (
    ("workload", lambda one: one.workload),
    ("variant", lambda one: one.variant),
    ("clients", lambda one: f"{one.choice.placement} {one.choice.clients_at_once}" if one.choice else None),
    ("kernels a step", lambda one: _kernels(one.steps)),
    ("asks the host", lambda one: f"{one.steps.host_round_trips:.0f}"),
    ("MB a step", lambda one: f"{one.steps.bytes / 1e6:,.1f}"),
    ("GFLOP a step", lambda one: f"{one.steps.operations / 1e9:.3g}"),
    ("ms a step", lambda one: _milliseconds(one.bound_seconds_per_step)),
    ("kernels a round", lambda one: _kernels(one.round)),
    ("ms a round", lambda one: _milliseconds(one.seconds(one.round))),
    ("an evaluation", lambda one: _kernels(one.evaluation)),
    ("ms", lambda one: _milliseconds(one.seconds(one.evaluation))),
    ("a graph", lambda one: _kernels(one.graph)),
    ("ms", lambda one: _milliseconds(one.seconds(one.graph))),
    ("temporaries MB", lambda one: f"{one.temporary_bytes / 1e6:,.1f}"),
    ("estimated MB", lambda one: f"{one.estimated_bytes / 1e6:,.1f}"),
    ("compile s", lambda one: f"{one.compile_seconds:.1f}"),
)


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Rows of `measure` as a Markdown table, with what they mean and what they were measured on below it."""
    rows = list(rows)
    cells = [[_cell(row[field], form, _SCALES.get(field, 1)) for _, field, form in _COLUMNS] for row in rows]
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
    return "\n".join([*_markdown([title for title, _, _ in _COLUMNS], cells), "", *dict.fromkeys(below)])


def ahead_table(compiled: Iterable[Compiled]) -> str:
    """Programs for a device that is not here as a Markdown table, with what the numbers mean below it."""
    compiled = list(compiled)
    titles = [title for title, _ in _AHEAD_COLUMNS]
    cells = [[_ahead_cell(read, one) for _, read in _AHEAD_COLUMNS] for one in compiled]
    target = TARGETS[compiled[0].target]
    launch = f"{target.launch * 1e6:.0f} us a kernel, " if target.launch else ""
    below = [
        f"{target.title}: compiled here, not run there. Times are bounds: {launch}{target.bandwidth / 1e12:.2f} TB/s, "
        f"{target.peak / 1e12:,.0f} TFLOP/s.",
        "Beside its steps, a round's loops are multiplied out; bytes are operands and results of every kernel, so that "
        "what a cache keeps counts too. asks the host: loops whose end is not known and conditionals, per step.",
    ]
    below += [
        f"{one.workload} {one.variant}".rstrip()
        + f": {one.num_kinds} kinds of local steps; the one that moves the most bytes is shown"
        for one in compiled
        if one.num_kinds > 1
    ]
    return "\n".join([*_markdown(titles, cells), "", *below])


def _markdown(titles: list[str], cells: list[list[str]]) -> list[str]:
    widths = [max(len(line[i]) for line in (titles, *cells)) for i in range(len(titles))]

    def line(values: list[str]) -> str:
        padded = (
            value.ljust(width) if i < 2 else value.rjust(width)
            for i, (value, width) in enumerate(zip(values, widths, strict=True))
        )
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * width if i < 2 else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    return [line(titles), line(rule), *map(line, cells)]


def _ahead_cell(read: Callable[[Compiled], str | None], one: Compiled) -> str:
    return read(one) or ""


def _cell(value: Any, form: str, scale: float) -> str:
    if value is None:
        return ""
    return form.format(value if isinstance(value, str) else scale * value)
