"""The command line of the benchmarks: `fedjax-ssl bench`, or `python -m fedjax_ssl.bench [--workloads W2,W5]`.

With `--target h100`, programs are compiled for a device that is not here and read, instead of run and timed.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from fedjax_ssl.benchmarks import (
    TARGETS,
    WORKLOADS,
    AheadOptions,
    Compiled,
    Options,
    ahead_table,
    check_devices,
    compile_config,
    compile_workload,
    measure,
    prepare,
    table,
)
from fedjax_ssl.checks import check_choices, check_numbers, check_whole_numbers
from fedjax_ssl.command_line import USER_ERRORS, notes_instead_of_warnings
from fedjax_ssl.config import ConfigError, find, naming
from fedjax_ssl.federated import PLACEMENTS
from fedjax_ssl.registry import did_you_mean

# Options by what they are for.
_ONLY_MEASURED = ("repeats", "limit", "threads", "heap")
_ONLY_AHEAD = ("configs", "devices")


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
            if given.target is None:
                _refuse(parser, given, _ONLY_AHEAD, "needs --target: it is for programs that are compiled and not run")
                return _print(_measured(given), given.json, lambda row: row, table)
            _refuse(parser, given, _ONLY_MEASURED, "does nothing with --target: programs are compiled and not run")
            return _print(_ahead(given), given.json, Compiled.row, ahead_table)
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
        "that would have to be downloaded are random images of the same shape",
    )
    parser.add_argument(
        "--devices",
        type=int,
        default=1,
        help="with --target: so many of them share each cohort, and the collectives of a round are counted (1)",
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
        check_whole_numbers(**{flag: flags[flag] for flag in ("--repeats", "--rounds", "--threads") if flag in flags})
        check_numbers("(0, inf)", **{flag: flags[flag] for flag in ("--scale", "--limit")})
        check_choices(PLACEMENTS, **{flag: flags[flag] for flag in ("--placement",) if flag in flags})
        check_choices(TARGETS, **{flag: flags[flag] for flag in ("--target",) if flag in flags})


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
    options = Options(given.repeats, given.rounds, given.scale, given.limit, given.placement, given.heap, given.threads)
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
    for name in shipped:
        find(name)
    check_devices(given.target, given.devices)
    prepare(given.target)
    options = AheadOptions(given.target, given.rounds, given.scale, given.placement, given.devices)
    for name, variant in _variants(names):
        yield _in_process(f"{name} {variant}", partial(compile_workload, name, variant, options), given.one_process)
    for name in shipped:
        yield _in_process(name, partial(compile_config, name, options), given.one_process)


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
