"""The command line of the benchmarks: `fedjax-ssl bench`, or `python -m fedjax_ssl.bench [--workloads W2,W5]`."""

import argparse
import concurrent.futures
import json
import multiprocessing
import sys
from collections.abc import Iterator
from typing import Any

from fedjax_ssl.benchmarks import WORKLOADS, Options, measure, table
from fedjax_ssl.checks import check_choices, check_numbers, check_whole_numbers
from fedjax_ssl.command_line import USER_ERRORS, notes_instead_of_warnings
from fedjax_ssl.config import ConfigError, naming
from fedjax_ssl.federated import PLACEMENTS
from fedjax_ssl.registry import did_you_mean


def command(arguments: list[str]) -> int:
    """`main`, without the program's name in front: `fedjax-ssl bench`."""
    return main(["bench", *arguments])


def main(arguments: list[str]) -> int:
    """Measures workloads and prints them, a JSON object per line or a table; progress goes to standard error.

    Returns:
        0; 1 if a workload ended without a result; 2 for a mistake of the user, after one message on standard error.
    """
    options = _parser().parse_args(arguments[1:])
    try:
        names = _names(options.workloads)
        chosen = _options(options)
        rows, failures = [], 0
        with notes_instead_of_warnings():
            for row in _measured(names, chosen, options.one_process):
                if row is None:
                    failures += 1
                elif options.json:
                    print(json.dumps(row), flush=True)
                else:
                    rows.append(row)
        if rows:
            print(table(rows))
    except USER_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    listing = "\n".join(f"  {name}  {workload.title}" for name, workload in WORKLOADS.items())
    parser = argparse.ArgumentParser(
        prog="fedjax-ssl bench",
        description=f"Speed of federated rounds on fake data.\n\nworkloads:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="with commas between; all by default")
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
    return parser


def _names(given: str) -> list[str]:
    names = [name.strip() for name in given.split(",")]
    for name in names:
        if name not in WORKLOADS:
            hint = did_you_mean(name.upper(), WORKLOADS)
            raise ConfigError(f"unknown workload {name!r}.{hint} Allowed, with commas between: {', '.join(WORKLOADS)}")
    return names


def _options(given: argparse.Namespace) -> Options:
    flags = {f"--{name}": value for name, value in vars(given).items() if value is not None}
    with naming():
        check_whole_numbers(**{flag: flags[flag] for flag in ("--repeats", "--rounds", "--threads") if flag in flags})
        check_numbers("(0, inf)", **{flag: flags[flag] for flag in ("--scale", "--limit")})
        check_choices(PLACEMENTS, **{flag: flags[flag] for flag in ("--placement",) if flag in flags})
    return Options(given.repeats, given.rounds, given.scale, given.limit, given.placement, given.heap, given.threads)


def _measured(names: list[str], options: Options, one_process: bool) -> Iterator[dict[str, Any] | None]:
    """Rows as they come; None for a workload whose process died."""
    for name in names:
        for variant in WORKLOADS[name].variants:
            print(f"{name} {variant.name}".rstrip() + " ...", file=sys.stderr, flush=True)
            if one_process:
                yield measure(name, variant.name, options)
                continue
            context = multiprocessing.get_context("spawn")
            with concurrent.futures.ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
                try:
                    yield pool.submit(measure, name, variant.name, options).result()
                except concurrent.futures.process.BrokenProcessPool:
                    print(
                        f"error: the process of {name} died, most likely for want of memory; try --scale",
                        file=sys.stderr,
                    )
                    yield None


if __name__ == "__main__":
    sys.exit(main(sys.argv))
