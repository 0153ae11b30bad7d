"""Measurements as a table."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from fedjax_ssl.benchmarks.ahead import Compiled
from fedjax_ssl.benchmarks.hlo import COLLECTIVES, Part
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
# (title, field, form, factor)
_SMOKE_COLUMNS = (
    ("workload", "workload", "{}", 1),
    ("variant", "variant", "{}", 1),
    ("ms a round", "seconds_per_round", "{:.3g}", 1e3),
    ("bound, round", "bound_seconds_per_round", "{:.3g}", 1e3),
    ("ratio", "round_over_bound", "{:.2f}", 1),
    ("ms a step", "seconds_per_step", "{:.3g}", 1e3),
    ("bound, step", "bound_seconds_per_step", "{:.3g}", 1e3),
    ("ratio", "step_over_bound", "{:.2f}", 1),
    ("kernels a step", "kernels_per_step", "{:,.0f}", 1),
    ("host round trips", "host_round_trips_per_step", "{:.0f}", 1),
    ("kernels beside steps", "kernels_per_round", "{:,.0f}", 1),
    ("program MB", "program_bytes", "{:,.1f}", 1e-6),
    ("peak MB", "peak_memory_bytes", "{:,.1f}", 1e-6),
    ("compile s", "compile_seconds", "{:.1f}", 1),
)


def _kernels(part: Part) -> str | None:
    return f"{part.num_kernels:,.0f}" if part.kernels else None


def _milliseconds(seconds: float) -> str | None:
    return f"{1e3 * seconds:.3g}" if seconds else None


def _bound(one: Compiled, part: Part) -> str | None:
    return _milliseconds(TARGETS[one.target].seconds(part))


_AheadColumn = tuple[str, Callable[[Compiled], str | None]]
_AHEAD_COLUMNS: tuple[_AheadColumn, ...] = (
    ("workload", lambda one: one.workload),
    ("variant", lambda one: one.variant),
    ("clients", lambda one: f"{one.choice.placement} {one.choice.clients_at_once}" if one.choice else None),
    ("kernels a step", lambda one: _kernels(one.reading.step)),
    ("host round trips", lambda one: f"{one.reading.step.host_round_trips:.0f}"),
    ("MB a step", lambda one: f"{one.reading.step.bytes / 1e6:,.1f}"),
    ("GFLOP a step", lambda one: f"{one.reading.step.operations / 1e9:.3g}"),
    ("ms a step", lambda one: _milliseconds(one.bound_seconds_per_step)),
    ("kernels beside steps", lambda one: _kernels(one.reading.round)),
    ("ms a round", lambda one: _milliseconds(one.bound_seconds_per_round or 0)),
    ("kernels an evaluation", lambda one: _kernels(one.reading.evaluation)),
    ("ms", lambda one: _bound(one, one.reading.evaluation)),
    ("kernels a graph", lambda one: _kernels(one.reading.graph)),
    ("ms", lambda one: _bound(one, one.reading.graph)),
    ("s a run", lambda one: f"{one.bound_seconds_per_run:.3g}" if one.bound_seconds_per_run else None),
    ("temporaries MB", lambda one: f"{one.temporary_bytes / 1e6:,.1f}"),
    ("compile s", lambda one: f"{one.compile_seconds:.1f}"),
)


def _exchanged(one: Compiled, kind: str) -> str | None:
    for found in one.reading.collectives():
        if found.kind == kind:
            return f"{found.times:,.4g} ({found.bytes / 1e6:,.3g} MB)"
    return None


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


def _run_of(one: Compiled) -> str:
    rounds, bounds = one.length.rounds or (), one.bound_seconds_per_stage
    if len(bounds) == 1:
        text = f"{sum(rounds):,} rounds with their local steps"
    else:
        stages = [f"{count:,} of {_milliseconds(bound or 0)} ms" for count, bound in zip(rounds, bounds, strict=True)]
        text = f"rounds with their local steps, by stage {', '.join(stages)}"
    return text + (f" and {one.length.evaluations:,} evaluations" if one.length.evaluations else "")


def ahead_table(compiled: Iterable[Compiled]) -> str:
    """Programs for a device that is not here as a Markdown table, with what the numbers mean below it."""
    compiled = list(compiled)
    target, shared = TARGETS[compiled[0].target], max(one.devices for one in compiled)
    shared_by: list[_AheadColumn] = [(kind, partial(_exchanged, kind=kind)) for kind in COLLECTIVES]
    columns = [*_AHEAD_COLUMNS, *(column for column in shared_by if any(map(column[1], compiled)))]
    cells = [[read(one) or "" for _, read in columns] for one in compiled]
    launch = f"{target.launch * 1e6:.0f} us a kernel, " if target.launch else ""
    below = [
        f"{target.title}: compiled here, not run there. Times are bounds: {launch}{target.bandwidth / 1e12:.2f} TB/s, "
        f"{target.peak / 1e12:,.0f} TFLOP/s.",
        "Host round trips are those of a step: loops whose end is not known, and conditionals. Beside its steps, a "
        "round's loops are multiplied out. A round's ms are with its steps. Bytes are operands and results of every "
        "kernel, so that what a cache keeps counts too.",
    ]
    below += [
        f"{one.workload} {one.variant}".rstrip() + f": a run is {_run_of(one)}"
        for one in compiled
        if one.bound_seconds_per_run
    ]
    if shared > 1:
        below.append(
            f"{shared} devices share each cohort; numbers are those of one device. Collectives of a round, with the "
            "bytes of their results on one device; their time between devices is in no bound."
        )
    below += [
        f"{one.workload} {one.variant}".rstrip()
        + f": {len(one.reading.loops)} kinds of local steps; the one that moves the most bytes is shown"
        for one in compiled
        if len(one.reading.loops) > 1
    ]
    return "\n".join([*_markdown([title for title, _ in columns], cells), "", *below])


def smoke_table(rows: Iterable[dict[str, Any]], command: str) -> str:
    """Rows of `beside_bounds` as a Markdown table, with what they mean and what they were measured on below it.

    Args:
        rows: at least one.
        command: that measured them.
    """
    rows = list(rows)
    columns = [column for column in _SMOKE_COLUMNS if any(row[column[1]] is not None for row in rows)]
    cells = [[_cell(row[field], form, factor) for _, field, form, factor in columns] for row in rows]
    measured = next((row for row in rows if row["seconds_per_round"] is not None), rows[0])
    target = TARGETS.get(measured["target"] or "")
    if target is None:
        bounds = "There are no bounds for this device."
    else:
        launch = f"{target.launch * 1e6:.0f} us a kernel, " if target.launch else ""
        bounds = (
            f"A bound follows from the program that was measured: {launch}{target.bandwidth / 1e12:.2f} TB/s, "
            f"{target.peak / 1e12:,.0f} TFLOP/s; a round's has its steps in it."
        )
    below = [
        f"Times are measured, medians of up to {max(row['blocks'] or 0 for row in rows)} blocks of rounds on one "
        f"device; a step's is the difference to rounds with twice the local epochs, where there was time. {bounds}",
        "program: arguments, results and temporaries of the compiled rounds; peak: the most in use of the device, on a "
        "CPU of the process, with the data.",
    ]
    below += [f"{row['workload']} {row['variant']}".rstrip() + f": {row['note']}" for row in rows if row["note"]]
    below += [
        f"{row['workload']} {row['variant']}".rstrip() + ": one block, cold: it took long"
        for row in rows
        if row["warm"] is False
    ]
    below += [f"scale {scale}: a part of each workload" for scale in sorted({row["scale"] for row in rows} - {1.0})]
    below.append(
        f"{measured['device'] or 'no device'}; "
        + ", ".join(f"{name} {version}" for name, version in measured["versions"].items())
    )
    titles = [title for title, *_ in columns]
    return "\n".join([*_markdown(titles, cells), "", *(f"- {line}" for line in below), f"- command: `{command}`"])


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


def _cell(value: Any, form: str, scale: float) -> str:
    if value is None:
        return ""
    return form.format(value if isinstance(value, str) else scale * value)
