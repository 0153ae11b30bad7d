"""`fedjax-ssl sweep`: from the command line to a plan, and on to workers, a cluster or a search."""

import argparse
import contextlib
import importlib.metadata
import io
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from fedjax_ssl import command_line, data, gpus, processor
from fedjax_ssl import config as configs
from fedjax_ssl.cli import Parser, one_of
from fedjax_ssl.cli import parser as new_parser
from fedjax_ssl.config import ConfigError
from fedjax_ssl.data.sites_apart import remedy
from fedjax_ssl.errors import counted
from fedjax_ssl.folder.folder_lock import FolderLock, RunFolderError
from fedjax_ssl.folder.stored_run import on_other_data, only_class
from fedjax_ssl.runs.divergence import EXIT_CODE
from fedjax_ssl.sweep import axes, cluster, results, search, workers
from fedjax_ssl.sweep import sweep_plan as plans
from fedjax_ssl.sweep.sweep_plan import Plan, PlannedRun, names_of

_EXAMPLES = """\
examples:
  fedjax-ssl sweep digits_xclp --seeds 5
  fedjax-ssl sweep digits_xclp --seeds 5 --set method.name=fedavg,xclp --set rounds=20,50
  fedjax-ssl sweep digits_xclp --set method.alpha=0.9,0.99 --set method.num_neighbors=5,10 --zip
  fedjax-ssl sweep digits_xclp --random 20 --set optimizer.learning_rate=0.001..1
  fedjax-ssl sweep my_study.py            # a file with get_sweep(), which yields configs
  fedjax-ssl sweep digits_xclp --set data.validation_fraction=0.2 --search optuna --trials 50 \\
      --set optimizer.learning_rate=0.001..1
"""


def main(arguments: list[str]) -> int:
    """Plan a sweep, show the plan, and run it.

    Args:
        arguments: command line without program and subcommand.

    Returns:
        0; 1 if runs failed; 4, as of a single run, if some diverged.

    Raises:
        ConfigError: and other errors at the start of a run; `fedjax_ssl.cli.main` turns them into
            messages.
    """
    given = parser().parse_args(list(_with_fields(arguments)))
    said = contextlib.redirect_stdout(io.StringIO()) if given.quiet else contextlib.nullcontext()
    with said, command_line.notes_instead_of_warnings() as notes:
        return _sweep(given, ["fedjax-ssl", "sweep", *arguments], notes)


def parser() -> Parser:
    """Make the parser of the command line."""
    parser = new_parser(
        "sweep",
        "Trains many runs of a config: one for each combination of values and seeds, each in its "
        f"own folder.\n\n{_EXAMPLES}",
        hint=_about_fields,
    )
    add = parser.add_argument
    add("config", help="a config's name, NAME:ARGUMENT, a file, or a file with get_sweep()")
    values = "values with commas between, or LOW..HIGH; --FIELD=VALUE for one value"
    add("--set", action="append", default=[], metavar="FIELD=VALUES", help=values)
    add(
        "--seeds",
        metavar="N",
        help="run each point with seeds 0 to N - 1, or with those listed (0,7,11)",
    )
    add(
        "--zip",
        action="store_true",
        help="pair the values of all fields instead of combining them",
    )
    add("--random", type=int, metavar="N", help="train N points with values drawn at random")
    add(
        "--random-seed",
        type=int,
        default=0,
        metavar="S",
        help="random seed of --random and --search (default: 0)",
    )
    add("--workdir", metavar="FOLDER", help="folder of the sweep (default: runs/sweep_CONFIG)")
    add(
        "--workers",
        type=int,
        metavar="N",
        help="processes at a time (default: one per GPU, or one per core)",
    )
    add("--quiet", action="store_true", help="print nothing but notes and errors")
    add("--dry-run", action="store_true", help="show the plan and do nothing")
    add = parser.add_argument_group(
        "search", "let Optuna choose the points by the validation accuracy"
    ).add_argument
    needs = "needs validation data, such as --set data.validation_fraction=0.2"
    add("--search", type=one_of("search", ("optuna",)), metavar="optuna", help=needs)
    add(
        "--trials",
        type=int,
        metavar="N",
        help="trials of the study, over all workers (default: 50)",
    )
    for kind, names in (("sampler", search.SAMPLERS), ("pruner", search.PRUNERS)):
        text = f"{', '.join(names)} (default: {next(iter(names))})"
        add(f"--{kind}", type=one_of(kind, names), metavar="NAME", help=text)
    add(
        "--storage",
        metavar="URL",
        help="storage of the study (default: a journal in the sweep's folder)",
    )
    add(
        "--study",
        metavar="NAME",
        help="name of the study in the storage (default: the name of the sweep's folder)",
    )
    add = parser.add_argument_group(
        "cluster", "an array of jobs, one per program, through submitit"
    ).add_argument
    where = "submit the programs and return: to slurm, or local for processes of this machine"
    add("--submit", type=one_of("cluster", ("slurm", "local")), metavar="CLUSTER", help=where)
    add(
        "--slurm",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of Slurm, for example partition=gpu or gpus_per_node=1",
    )
    add("--hours", type=float, metavar="H", help="time limit of a job (default: 24)")
    add(
        "--print",
        action="store_true",
        dest="show",
        help="show what would be submitted and do nothing",
    )
    return parser


def _with_fields(arguments: Sequence[str]) -> Iterator[str]:
    """Turn `--FIELD=VALUE`, the form of `run`, into `--set FIELD=VALUE`.

    Raises:
        ConfigError: there are several values, which `run` would take as a single one.
    """
    for word in arguments:
        field, equals, value = word.partition("=")
        name = _field_of(field) if word.startswith("--") and equals else ""
        if not name:
            yield word
            continue
        if _holds_several(name) and value[:1] not in ("(", "[", "'", '"'):
            value = f"'{value}'"
        values = axes.parse_axis(f"{name}={value}").values
        if len(values) != 1:
            raise ConfigError(
                f"{word} has several values: --set {name}={value} tries each of them; a tuple "
                f"stands in brackets: --{name}='({value})'"
            )
        yield from ("--set", f"{name}={value}")


def _holds_several(field: str) -> bool:
    """Return whether a value of a field is a tuple, whose commas do not separate values."""
    section, _, option = field.partition(".")
    if section == "data" and field not in configs.FIELDS:
        known = data.SOURCES.fields()
        return option in known and known[option].type is tuple
    return field in configs.FIELDS and configs.FIELDS[field].type is tuple


def _field_of(option: str) -> str:
    """Return the field that a command-line option names; "" if it names none."""
    field = option.lstrip("-").removeprefix("config.")
    return field if "." in field or field in configs.FIELDS else ""


def _about_fields(word: str) -> str:
    """Return how to set fields, if a word of the command line looks like one."""
    field = _field_of(word.partition("=")[0])
    if not field:
        return ""
    if field == "seed":
        return " --seeds N makes N runs of each combination; --seed=VALUE is for one."
    return (
        f" Fields of the config are given as --{field}=VALUE, or --set {field}=VALUES for several."
    )


def _sweep(given: argparse.Namespace, command: Sequence[str], notes: set[str]) -> int:
    check_workers(given.workers)
    # Planning is done on the CPU, so that workers have all of an accelerator's memory.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_platforms", "cpu")
    _check_options(given)
    folder = _folder_of(given)
    check_folder(folder, *((plans.FILE, "sweep") if given.search else (search.FILE, "search")))
    if given.search:
        return search.search(given, folder, command, given.workers or default_workers(), notes)
    plan = _plan(given)
    stored = plans.load(folder)
    if stored is not None:
        plan = plans.extended(stored, plan, folder)
    processes = given.workers or default_workers()
    looks_only = given.dry_run or given.show
    if not looks_only:
        (folder / "runs").mkdir(parents=True, exist_ok=True)
    # Taken before the plan is shown, so that a folder in use is refused first. With `--submit`, the
    # jobs take it.
    with contextlib.nullcontext() if looks_only or given.submit else FolderLock(folder):
        for line in (*describe(given.config, plan, folder, processes), *plans.apart(plan)):
            print(line, flush=True)
        if given.dry_run:
            return 0
        if given.show or given.submit:
            return cluster.submit(given, folder, plan, command)
        plans.save(folder, plan, command)
        workers.execute(folder, plan, processes, notes)
        return _say_end(folder, plan)


def _plan(given: argparse.Namespace) -> Plan:
    seeds = axes.parse_seeds(given.seeds)
    if plans.is_sweep_file(given.config):
        if given.set or given.zip or given.random is not None:
            raise ConfigError(
                f"{given.config} yields its configs itself; set fields there, not with --set, "
                "--zip or --random"
            )
        return plans.from_file(given.config, seeds)
    parsed = [axes.parse_axis(text) for text in given.set]
    points = axes.points(
        parsed, seeds, zipped=given.zip, random=given.random, seed=given.random_seed
    )
    return plans.from_settings(given.config, points)


def _check_options(given: argparse.Namespace) -> None:
    """Refuse options without effect."""
    if not given.search:
        refuse_idle(given, ("trials", "sampler", "pruner", "storage", "study"), without="--search")
    if not (given.submit or given.show):
        refuse_idle(given, ("slurm", "hours"), without="--submit")
    if given.hours is not None and given.hours <= 0:
        raise ConfigError(f"--hours is {given.hours:g}; it must be above 0")


def refuse_idle(given: argparse.Namespace, options: Iterable[str], without: str) -> None:
    """Refuse options that have no effect without another one that is missing."""
    for option in options:
        if getattr(given, option) not in (None, []):
            raise ConfigError(f"--{option} does nothing without {without}")


def _folder_of(given: argparse.Namespace) -> Path:
    if given.workdir == "":
        raise ConfigError("--workdir is empty; give a folder, or leave it out")
    if given.workdir:
        return Path(given.workdir)
    if plans.is_sweep_file(given.config):
        name = Path(given.config).stem
    else:
        name = configs.find(given.config).run_name
    return Path("runs") / f"sweep_{name}"


def check_folder(folder: Path, others: str, kind: str) -> None:
    """Refuse a folder with other content."""
    if (folder / "config.json").exists():
        raise RunFolderError(f"{folder} is the folder of a single run; give another --workdir")
    if (folder / others).exists():
        raise RunFolderError(
            f"{folder} is the folder of a {kind}, whose results would be lost; give another "
            "--workdir"
        )
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if not there.is_dir():
        raise RunFolderError(f"{there} is a file; give another --workdir")
    if not os.access(there, os.W_OK | os.X_OK):
        raise RunFolderError(
            f"nothing can be written in {there}: permission denied; give another --workdir"
        )


def describe(title: str, plan: Plan, folder: Path, processes: int) -> list[str]:
    """Describe the plan in a few lines."""
    missing = len(results.unfinished(folder, plan.runs))
    there = f", {len(plan.runs) - missing} of them done" if missing < len(plan.runs) else ""
    lines = [
        f"{title}: {counted(len(plan.runs), 'run')}{there}, "
        f"{counted(len(plan.programs), 'compiled program')}"
    ]
    for field in plan.fields:
        given = [str(run.point[field]) for run in plan.runs if field in run.point]
        values = list(dict.fromkeys(given))
        more = f", ... ({len(values)} values)" if len(values) > 8 else ""
        lines.append(f"  {field}: {', '.join(values[:8])}{more}")
    steps = {run.config["optimizer"].get("local_steps") for run in plan.runs}
    if "method.name" in plan.fields and None in steps:
        lines.append(
            "  local steps: each method takes its own number in a round; "
            "for the same number add --set optimizer.local_steps=N"
        )
    at_once = counted(min(processes, missing) or processes, "process", "processes")
    return [*lines, f"  workers: {at_once} at a time", f"  folder: {folder}"]


def check_workers(given: int | None) -> None:
    """Refuse less than one process, and a platform that no process could use."""
    processor.check_platform()
    if given is not None and given < 1:
        raise ConfigError(f"--workers is {given}; it must be at least 1")


def default_workers() -> int:
    """Count the GPUs, because each one vectorizes runs; without GPUs, 1 for another accelerator, or
    the number of cores.
    """
    if gpus.found():
        return len(gpus.found())
    if os.environ.get("JAX_PLATFORMS") == "cpu" or not importlib.metadata.entry_points(
        group="jax_plugins"
    ):
        return processor.cores()
    asked = [sys.executable, "-c", "import jax; print(jax.default_backend())"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    return processor.cores() if found.stdout.split()[-1:] in ([], ["cpu"]) else 1


def _say_end(folder: Path, plan: Plan) -> int:
    ends = [(run, results.end_of(results.folder_of(folder, run.name))) for run in plan.runs]

    def with_status(wanted: str) -> list[PlannedRun]:
        return [run for run, end in ends if end.status == wanted]

    done = counted(len(with_status(results.DONE)), "run")
    print(f"\n{done} of {len(plan.runs)} done: {folder / 'results.csv'}")
    code = 0
    for wanted, what, its_code in (
        (results.DIVERGED, "The table says what to lower.", EXIT_CODE),
        (results.FAILED, "The table says why; the same command tries them again.", 1),
        (results.MISSING, "Another process works on them.", 1),
    ):
        if runs := with_status(wanted):
            said = f"{counted(len(runs), 'run')} {wanted}: {names_of(runs)}. {what}"
            print(said, file=sys.stderr)
            code = its_code
    if changed := on_other_data(
        ((run, run.config, end.summary) for run, end in ends), plans.alike()
    ):
        said = f"on other data than the first run, which have changed: {names_of(changed)}"
        print(said, file=sys.stderr)
    for said in _learned_nothing((run, end.summary) for run, end in ends):
        print(f"note: {said}", file=sys.stderr)
    print(f"compare them: {shlex.join(['fedjax-ssl', 'report', str(folder)])}")
    return code


def _learned_nothing(
    ends: Iterable[tuple[PlannedRun, Mapping[str, Any] | None]],
) -> Iterator[str]:
    """Return a note on runs that predict a single class, with the remedy."""
    stuck = [run for run, summary in ends if summary and only_class(summary) is not None]
    if stuck:
        yield (
            "the model predicts one class for all test examples, as one does that has learned "
            f"nothing, in {names_of(stuck)}: {remedy(stuck[0].config)}"
        )
