"""The command line of the benchmarks: `fedjax-ssl bench [--workloads W2,W5]`."""

import argparse
import concurrent.futures
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import jax

from experiments.benchmarks import WORKLOADS, Workload, measure
from fedjax_ssl import processor
from fedjax_ssl.checks import In, OneOf, Whole
from fedjax_ssl.command_line import notes_instead_of_warnings
from fedjax_ssl.errors import ConfigError, check_known, naming
from fedjax_ssl.federated import PLACEMENTS

_ALLOWED = {
    **dict.fromkeys(("repeats", "rounds", "threads", "devices"), Whole(1)),
    **dict.fromkeys(("scale", "limit", "smoke"), In("(0, inf)")),
    "placement": OneOf(PLACEMENTS),
    "platform": OneOf(("gpu", "tpu", "cpu")),
}
# Workloads of --smoke, short compiles first: the time may be over before the last one.
_SMOKE = (
    ("W2", ""),
    ("W5", ""),
    ("W1", ""),
    ("W3", ""),
    ("W8", "64 seeds"),
    ("W7", "ProtoFSSL"),
    ("W7", "XCLP"),
)
_NO_TIME = "not run: the time was over"
# (title, field, form, factor)
_COLUMNS: tuple[tuple[str, str, str, float], ...] = (
    ("workload", "workload", "{}", 1),
    ("variant", "variant", "{}", 1),
    ("examples/s", "examples_per_second", "{:,.0f}", 1),
    ("clients/s", "client_updates_per_second", "{:,.1f}", 1),
    ("steps/s", "local_steps_per_second", "{:,.0f}", 1),
    ("rounds/s", "rounds_per_second", "{:,.3g}", 1),
    ("s per round", "seconds_per_round", "{:.3g}", 1),
    ("processor s", "processor_seconds_per_round", "{:.3g}", 1),
    ("compile s", "compile_seconds", "{:.1f}", 1),
    ("peak GB", "peak_memory_bytes", "{:.2f}", 1e-9),
    ("of peak", "fraction_of_peak", "{:.1%}", 1),
)


def main(arguments: list[str]) -> int:
    """Measure workloads and print them, a JSON object per line or a table; progress goes to
    standard error.

    Returns:
        0; 1 if a workload ended without a result.

    Raises:
        ConfigError: a mistake of the user.
    """
    given = options(arguments)
    with notes_instead_of_warnings():
        chosen = _check(given)
        if given.platform is not None and not _in_process(
            "", partial(_check_platform, given.platform), given
        ):
            return 1
        return _print(_measured(given, chosen), given.json)


def options(arguments: list[str]) -> argparse.Namespace:
    """Read the options of a measurement."""
    listing = "\n".join(f"  {name}  {workload.title}" for name, (workload, *_) in WORKLOADS.items())
    parser = argparse.ArgumentParser(
        prog="fedjax-ssl bench",
        description=f"Speed of federated rounds on fake data.\n\nworkloads:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--workloads", help="with commas between; all by default")
    add("--json", action="store_true", help="one JSON object per line instead of the table")
    add("--repeats", type=int, default=5, help="timed blocks of rounds; rates are medians (5)")
    add("--rounds", type=int, help="rounds per block; the workload's own by default")
    add(
        "--scale",
        type=float,
        default=1.0,
        help="factor on clients, clients per round and rounds (1)",
    )
    add(
        "--limit",
        type=float,
        default=120.0,
        help="seconds after which no further block starts (120)",
    )
    add(
        "--threads", type=int, help="threads of the CPU, as config.threads; one per core by default"
    )
    add("--devices", type=int, help="devices that share each cohort, as config.federated.devices")
    add(
        "--placement",
        help=(
            "placement of clients, where the workload leaves it open: "
            f"{_ALLOWED['placement'].words()}"
        ),
    )
    add(
        "--heap",
        action="store_true",
        help="leave large buffers to the C library (slower where it reuses its heap)",
    )
    add(
        "--one-process",
        action="store_true",
        help=(
            "all workloads in this process; otherwise each has its own, so that peak memory is "
            "its own"
        ),
    )
    add(
        "--smoke",
        nargs="?",
        type=float,
        const=5.0,
        metavar="MINUTES",
        help=(
            "a first measurement of a new machine within so many minutes (5): each workload has "
            "its share of the time, programs are compiled anew, and one that does not fit into "
            "memory is noted; without --workloads: "
        )
        + ", ".join(f"{name} {variant}".rstrip() for name, variant in _SMOKE),
    )
    add(
        "--platform",
        help=f"what it has to run on: {_ALLOWED['platform'].words()}; what is here by default",
    )
    return parser.parse_args(arguments)


def _check(given: argparse.Namespace) -> list[tuple[str, Workload]]:
    """Check the options and list the chosen workloads in all their ways."""
    names = (
        [*WORKLOADS]
        if given.workloads is None
        else [name.strip() for name in given.workloads.split(",")]
    )
    with naming():
        for name in names:
            check_known("workload", name, WORKLOADS)
        for name, allowed in _ALLOWED.items():
            if (value := getattr(given, name)) is not None:
                allowed.check(f"--{name}", value)
    if given.smoke is not None and given.workloads is None:
        return [
            (name, next(one for one in WORKLOADS[name] if one.variant == variant))
            for name, variant in _SMOKE
        ]
    return [(name, workload) for name in names for workload in WORKLOADS[name]]


def _check_platform(asked: str) -> bool:
    """Return True where JAX computes on the platform that was asked for, else raise ConfigError."""
    try:
        device = jax.devices()[0]
        platform = jax.default_backend()
    except RuntimeError as error:
        raise ConfigError(
            f"JAX finds no device to compute on: {str(error).splitlines()[0]}"
        ) from error
    if asked != platform:
        extra = processor.INSTALL.get(asked)
        install = f"; for a {asked.upper()}, pip install 'jax[{extra}]'" if extra else ""
        raise ConfigError(
            f"--platform {asked}: JAX computes on {platform} here ({device.device_kind}). Check "
            f"the driver, $JAX_PLATFORMS and that JAX is installed for the device{install}. "
            "Without --platform, what is here is measured"
        )
    return True


def _measured(
    given: argparse.Namespace, chosen: list[tuple[str, Workload]]
) -> Iterator[dict[str, Any] | None]:
    """Measure workload after workload; None for one whose process died."""
    end = time.monotonic() + 60 * (given.smoke or 0)
    for place, (name, workload) in enumerate(chosen):
        left = end - time.monotonic()
        if given.smoke is not None and left <= 0:
            yield _note(name, workload, _NO_TIME)
            continue
        each = argparse.Namespace(**vars(given))
        # compiling takes its part, and a program that is being compiled is not interrupted
        if given.smoke is not None:
            each.limit = min(given.limit, left / (len(chosen) - place) / 2)
        yield _in_process(
            f"{name} {workload.variant}".rstrip(),
            partial(_measure_or_note, name, workload, each),
            given,
        )


def _measure_or_note(name: str, workload: Workload, given: argparse.Namespace) -> dict[str, Any]:
    if given.smoke is None:
        return measure(name, workload, given)
    # compile seconds are to be those of compiling
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        return measure(name, workload, given)
    except jax.errors.JaxRuntimeError as error:  # not enough memory, for one
        return _note(name, workload, str(error).splitlines()[0])


def _note(name: str, workload: Workload, why: str) -> dict[str, Any]:
    return {
        "workload": name,
        "variant": workload.variant,
        "title": workload.title,
        "note": why,
        "not_measured": why,
    }


def _print(rows: Iterator[dict[str, Any] | None], as_json: bool) -> int:
    """Print rows as they come, or a table of them."""
    shown = []
    failures = 0
    for row in rows:
        failures += row is None or row.get("not_measured", _NO_TIME) != _NO_TIME
        if row is not None and as_json:
            print(json.dumps(row), flush=True)
        elif row is not None:
            shown.append(row)
    if shown:
        print(table(shown))
    return 1 if failures else 0


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Show rows of `measure` as a Markdown table, with what they mean and what they were
    measured on below it.
    """
    rows = list(rows)
    lines = [[title for title, *_ in _COLUMNS]]
    lines += [
        [_cell(row.get(field), form, factor) for _, field, form, factor in _COLUMNS] for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(
        1, ["-" * width if i < 2 else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    )
    shown = [
        " | ".join(f"{cell:{'<' if i < 2 else '>'}{widths[i]}}" for i, cell in enumerate(line))
        for line in lines
    ]
    below = [f"{row['workload']}: {row['title']}" for row in rows]
    below += [f"{row['workload']}: {row['note']}" for row in rows if row["note"]]
    below += [
        f"{row['workload']} {row['variant']}: one block, cold: it took longer than its time"
        for row in rows
        if not row.get("warm", True)
    ]
    if measured := [row for row in rows if "device" in row]:
        peak = max(row["product_operations_per_second"] for row in measured)
        versions = (f"{name} {version}" for name, version in measured[0]["versions"].items())
        below.append(
            f"{measured[0]['device']}, matrix product {peak / 1e9:,.0f} GFLOP/s; "
            f"{', '.join(versions)}"
        )
    return "\n".join([*(f"| {line} |" for line in shown), "", *dict.fromkeys(below)])


def _cell(value: Any, form: str, factor: float) -> str:
    if value is None:
        return ""
    return form.format(value if isinstance(value, str) else factor * value)


def _in_process(title: str, work: Callable[[], Any], given: argparse.Namespace) -> Any:
    """Do some work in this process or in one of its own; None if that died."""
    if title:
        print(f"{title} ...", file=sys.stderr, flush=True)
    if given.one_process:
        return work()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        try:
            return pool.submit(work).result()
        except concurrent.futures.process.BrokenProcessPool:
            print(
                f"error: the process of {title} died, most likely for want of memory; try --scale",
                file=sys.stderr,
            )
            return None
