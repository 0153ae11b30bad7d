"""The command line of the benchmarks: `fedjax-ssl bench`, or `python -m fedjax_ssl.bench [--workloads W2,W5]`.

With `--target h100`, programs are compiled for a device that is not here and read, instead of run and timed; with
`--smoke`, they are run on the device that is here, beside the bounds that are read from them.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fedjax_ssl import runs
from fedjax_ssl.benchmarks import (
    NO_TIME,
    PLATFORMS,
    SMOKE,
    TARGETS,
    WORKLOADS,
    AheadOptions,
    Compiled,
    Options,
    SmokeOptions,
    ahead_table,
    beside_bounds,
    check_devices,
    check_page,
    compile_config,
    compile_workload,
    config_of,
    device_here,
    measure,
    prepare,
    smoke_table,
    table,
    without_numbers,
    write_section,
)
from fedjax_ssl.benchmarks.agreement import ALLOWED, compare_convolutions
from fedjax_ssl.checks import check_choices, check_numbers, check_whole_numbers
from fedjax_ssl.command_line import USER_ERRORS, notes_instead_of_warnings
from fedjax_ssl.config import ConfigError, naming
from fedjax_ssl.federated import PLACEMENTS
from fedjax_ssl.registry import did_you_mean

# Options by what they are for.
_NOT_AHEAD = ("repeats", "limit", "threads", "heap", "smoke")
_ONLY_AHEAD = ("configs",)
_NOT_SMOKE = ("threads", "heap", "devices")
_ONLY_SMOKE = ("platform", "docs")


def command(arguments: list[str]) -> int:
    """`main`, without the program's name in front: `fedjax-ssl bench`."""
    return main(["bench", *arguments])


def main(arguments: list[str]) -> int:
    """Measures or compiles workloads and prints them, a JSON object per line or a table; progress to standard error.

    Returns:
        0; 1 if a workload ended without a result; 2 for a mistake of the user, after one message on standard error.
    """
    parser = _parser()
    given = parser.parse_args(arguments[1:])
    try:
        with notes_instead_of_warnings():
            if given.smoke is None:
                _refuse(parser, given, _ONLY_SMOKE, "needs --smoke: it is for measurements beside their bounds")
            if given.target is not None:
                _refuse(parser, given, _NOT_AHEAD, "does nothing with --target: programs are compiled and not run")
                return _print(_ahead(given), given.json, Compiled.row, ahead_table)
            _refuse(parser, given, _ONLY_AHEAD, "needs --target: it is for programs that are compiled and not run")
            if given.smoke is not None:
                _refuse(parser, given, ("limit",), "does nothing with --smoke: its minutes are for all workloads")
                _refuse(parser, given, _NOT_SMOKE, "does nothing with --smoke: it is for measurements on a CPU")
                return _smoke(given)
            return _print(_measured(given), given.json, lambda row: row, table)
    except USER_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    listing = "\n".join(f"  {name}  {workload.title}" for name, workload in WORKLOADS.items())
    parser = argparse.ArgumentParser(
        prog="fedjax-ssl bench",
        description=f"Speed of federated rounds on fake data.\n\nworkloads:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--workloads", help="with commas between; all by default")
    parser.add_argument("--json", action="store_true", help="one JSON object per line instead of the table")
    parser.add_argument("--repeats", type=int, default=5, help="timed blocks of rounds; rates are medians (5)")
    parser.add_argument("--rounds", type=int, help="rounds per block; the workload's own by default")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on clients, clients per round and rounds (1)")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which no further block starts (120)")
    parser.add_argument("--threads", type=int, help="of the CPU, as config.threads; one per core by default")
    parser.add_argument("--placement", help=f"of clients, where the workload leaves it open: {', '.join(PLACEMENTS)}")
    parser.add_argument(
        "--heap", action="store_true", help="leave large buffers to the C library (slower where it reuses its heap)"
    )
    parser.add_argument(
        "--one-process",
        action="store_true",
        help="all workloads in this process; otherwise each has its own, so that peak memory is its own",
    )
    parser.add_argument(
        "--target",
        metavar="DEVICE",
        help="compile for a device that is not here and tell what its program does, with bounds of its times: "
        f"{', '.join(TARGETS)}; needs the extra aot-gpu or aot-tpu",
    )
    parser.add_argument(
        "--configs",
        help="with --target: shipped configs instead of workloads, with commas between, arguments after a colon; data "
        "that would have to be downloaded, and files of your own, are random examples of such shapes",
    )
    parser.add_argument(
        "--smoke",
        nargs="?",
        type=float,
        const=5.0,
        metavar="MINUTES",
        help="measure on the accelerator that is here, each time beside its bound, for so many minutes (5); workloads "
        f"without --workloads: {', '.join(f'{name} {variant}'.rstrip() for name, variant in SMOKE)}",
    )
    parser.add_argument(
        "--platform", help=f"with --smoke: what it has to run on: {', '.join(PLATFORMS)}; what is here by default"
    )
    parser.add_argument(
        "--docs",
        type=Path,
        metavar="PAGE",
        help="with --smoke: write the table to this page too, between its markers: docs/benchmarks.md",
    )
    parser.add_argument(
        "--devices",
        type=int,
        default=1,
        help="so many of them share each cohort; of a CPU up to one per core, with --target so many of the target, and "
        "the collectives of a round are counted (1)",
    )
    return parser


def _refuse(parser: argparse.ArgumentParser, given: argparse.Namespace, names: tuple[str, ...], why: str) -> None:
    """Raises ConfigError for an option that would do nothing."""
    for name in names:
        if getattr(given, name) != parser.get_default(name):
            raise ConfigError(f"--{name} {why}")


def _names(given: str | None) -> list[str]:
    names = list(WORKLOADS) if given is None else [name.strip() for name in given.split(",")]
    for name in names:
        if name not in WORKLOADS:
            hint = did_you_mean(name.upper(), WORKLOADS)
            raise ConfigError(f"unknown workload {name!r}.{hint} Allowed, with commas between: {', '.join(WORKLOADS)}")
    return names


def _check(given: argparse.Namespace) -> None:
    flags = {f"--{name}": value for name, value in vars(given).items() if value is not None}
    with naming():
        whole = ("--repeats", "--rounds", "--threads", "--devices")
        check_whole_numbers(**{flag: flags[flag] for flag in whole if flag in flags})
        check_numbers("(0, inf)", **{flag: flags[flag] for flag in ("--scale", "--limit", "--smoke") if flag in flags})
        check_choices(PLACEMENTS, **{flag: flags[flag] for flag in ("--placement",) if flag in flags})
        check_choices(TARGETS, **{flag: flags[flag] for flag in ("--target",) if flag in flags})
        check_choices(PLATFORMS, **{flag: flags[flag] for flag in ("--platform",) if flag in flags})


def _print(
    found: Iterator[Any], as_json: bool, row_of: Callable[[Any], dict[str, Any]], show: Callable[[list[Any]], str]
) -> int:
    """Prints results as they come, or a table of them; None is one whose process died."""
    results, failures = [], 0
    for one in found:
        if one is None:
            failures += 1
        elif as_json:
            print(json.dumps(row_of(one)), flush=True)
        else:
            results.append(one)
    if results:
        print(show(results))
    return 1 if failures else 0


def _measured(given: argparse.Namespace) -> Iterator[dict[str, Any] | None]:
    """Rows as they come; None for a workload whose process died."""
    names = _names(given.workloads)
    _check(given)
    options = Options(
        given.repeats,
        given.rounds,
        given.scale,
        given.limit,
        given.placement,
        given.heap,
        given.threads,
        given.devices,
    )
    for name, variant in _variants(names):
        yield _in_process(f"{name} {variant}", partial(measure, name, variant, options), given.one_process)


def _ahead(given: argparse.Namespace) -> Iterator[Compiled | None]:
    """Compiled programs as they come; None for one whose process died."""
    _check(given)
    if given.configs is not None and (given.workloads is not None or given.scale != 1.0):
        raise ConfigError(
            "--configs takes the place of --workloads, and --scale is for workloads; give one or the other"
        )
    names = [] if given.configs is not None else _names(given.workloads)
    shipped = [] if given.configs is None else [name.strip() for name in given.configs.split(",")]
    check_devices(given.target, given.devices)
    options = AheadOptions(given.target, given.rounds, given.scale, given.placement, given.devices)
    for name in shipped:
        config_of(name, options)
    prepare(given.target)
    for name, variant in _variants(names):
        yield _in_process(f"{name} {variant}", partial(compile_workload, name, variant, options), given.one_process)
    for name in shipped:
        yield _in_process(name, partial(compile_config, name, options), given.one_process)


def _smoke(given: argparse.Namespace) -> int:
    """Measures workloads beside their bounds, prints them, and writes them to a page where one is given."""
    chosen = list(SMOKE if given.workloads is None else _variants(_names(given.workloads)))
    _check(given)
    if given.docs is not None:
        check_page(given.docs)
    device = _in_process("looking for a device", partial(device_here, given.platform), given.one_process)
    if device is None:
        return 1
    if device.target is None:
        what = "no accelerator was found" if device.platform == "cpu" else f"nothing is known of {device.kind}"
        print(f"note: {what}; times are measured, without bounds", file=sys.stderr)
    wrong = device.platform == "gpu" and not _own_kernels_agree(given.one_process)
    rows: list[dict[str, Any]] = []
    show = partial(smoke_table, command=runs.command())
    died = _print(_beside_bounds(given, chosen, rows), given.json, lambda row: row, show)
    measured_on = [row["device"] for row in rows if row["seconds_per_round"] is not None]
    if given.docs is not None and measured_on:
        write_section(given.docs, measured_on[0], show(rows))
        print(f"written to {given.docs}", file=sys.stderr)
    return died or int(wrong or any(row["note"] not in ("", NO_TIME) for row in rows))


def _own_kernels_agree(one_process: bool) -> bool:
    """Compares this package's convolution kernels with products over patches, and says what came out."""
    try:
        found = _in_process(
            "comparing own convolution kernels with products over patches", compare_convolutions, one_process
        )
    except Exception as error:  # whatever a compiler raises
        wrong = f"own convolution kernels do not run here: {str(error).splitlines()[0]}"
    else:
        if found is None:  # the process died, which was told
            wrong = "own convolution kernels could not be compared"
        elif found.off is None:
            print(f"own convolution kernels are not taken on this GPU: {found.why}", file=sys.stderr)
            return True
        else:
            wrong = (
                f"own convolution kernels and products over patches differ by at most {100 * found.off:.2g} % of the "
                "largest value"
            )
            if found.off <= ALLOWED:
                print(wrong, file=sys.stderr)
                return True
            wrong += ", which is more than rounding explains"
    print(f"error: {wrong}; --model.lowering=xla trains without them", file=sys.stderr)
    return False


def _beside_bounds(
    given: argparse.Namespace, chosen: list[tuple[str, str]], rows: list[dict[str, Any]]
) -> Iterator[dict[str, Any] | None]:
    """Rows as they come, which are added to `rows`; None for a workload whose process died."""
    end = time.monotonic() + 60 * given.smoke
    for place, (name, variant) in enumerate(chosen):
        left = end - time.monotonic()
        seconds = left / (len(chosen) - place)
        options = SmokeOptions(given.repeats, given.rounds, given.scale, given.placement, seconds)
        if left > 0:
            work = partial(beside_bounds, name, variant, options)
            row = _in_process(f"{name} {variant}", work, given.one_process)
        else:
            row = without_numbers(name, variant, given.scale, NO_TIME)
        if row is not None:
            rows.append(row)
        yield row


def _variants(names: list[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        for variant in WORKLOADS[name].variants:
            yield name, variant.name


def _in_process(title: str, work: Callable[[], Any], one_process: bool) -> Any:
    """The result of something that is done in this process or in one of its own; None if that died."""
    print(f"{title.rstrip()} ...", file=sys.stderr, flush=True)
    if one_process:
        return work()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        try:
            return pool.submit(work).result()
        except concurrent.futures.process.BrokenProcessPool:
            print(
                f"error: the process of {title.rstrip()} died, most likely for want of memory; try --scale",
                file=sys.stderr,
            )
            return None


if __name__ == "__main__":
    sys.exit(main(sys.argv))
