"""Describes a table, and has the sweep's workers do it."""

import contextlib
import json
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import jax

from experiments.papers import page, results, scales
from experiments.papers.scales import Run
from experiments.papers.table import Cell, Table
from fedjax_ssl import data
from fedjax_ssl.errors import counted
from fedjax_ssl.folder.files import write_atomically
from fedjax_ssl.folder.folder_lock import (
    FolderLock,
    RunFolderError,
    config_differences,
    read_stored,
)
from fedjax_ssl.sweep import results as rows
from fedjax_ssl.sweep import sweep_plan as plans
from fedjax_ssl.sweep import workers
from fedjax_ssl.sweep.command import check_folder, default_workers
from fedjax_ssl.sweep.command import describe as describe_plan
from fedjax_ssl.sweep.sweep_plan import Plan

_FILE = "reproduce.json"  # which table a folder is of
_SHOWN = 3
_QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=1"


def describe(
    table: Table, scale: str, cells: Sequence[Cell], runs: Sequence[Run], command: Sequence[str]
) -> list[str]:
    """Say what a table is, its cells, and which data it needs.

    Args:
        table: the table.
        scale: at which it would be run.
        cells: of the table, at this scale.
        runs: of the cells.
        command: words of the command line that asked for it.
    """
    known = data.available()
    lines = [f"{table.name}: {table.title_at(scale)} ({table.source})"]
    for kind in ("row", "column"):
        names = {
            getattr(cell, kind): table.name_at(scale, f"{kind}s", getattr(cell, kind))
            for cell in cells
        }
        shown = [name + f" (here {here})" * (here != name) for name, here in names.items()]
        lines.append(f"  {counted(len(names), kind)}: {'; '.join(shown)}")
    value = table.value if isinstance(table.value, str) else f"mean of the last {table.value[1]}"
    lines.append(f"  metric: {table.metric}, {value}; {counted(table.seeds, 'seed')} in the paper")
    lines += [
        f"  missing: {cell.row}, {cell.column}: {cell.missing}" for cell in cells if cell.missing
    ]
    lines += [f"  differs: {text}" for text in table.differs]
    for name, path, dataset in dict.fromkeys(
        (run.config.data.name, run.config.data.path, run.dataset) for run in runs
    ):
        gone = ", which is not there" * (path is not None and not Path(path).expanduser().exists())
        lines.append(
            f"  data: {dataset}, from {path}{gone}"
            if path
            else f"  data: {name}, {known.get(name, 'your own')}"
        )
    reduced = f"; {table.reduced_at(scale)}" * bool(table.reduced_at(scale))
    ran = len({run.cell.place for run in runs})
    part = f" in {ran} of {counted(len(table.make_cells('paper')), 'cell')}"
    lines.append(f"  scale {scale}: {counted(len(runs), 'run')}{part}{reduced}")
    stored = results.stored(table.name)
    lines += [f"  to run next: {text}" for text in page.to_run(table, stored)]
    lines.append(f"  start it with: {shlex.join([*command, '--run'])}")
    for one in stored:
        minutes = sum(cell.minutes for cell in one.cells)
        lines += [f"\nstored, {one.scale}, {minutes:.0f} minutes:", results.markdown(table, one)]
    return lines


def carry_out(
    table: Table,
    scale: str,
    runs: Sequence[Run],
    folder: Path,
    command: Sequence[str],
    processes: int | None,
    notes: Iterable[str],
) -> results.Result:
    """Do the runs that the folder does not have, and write the table.

    Args:
        table: the table.
        scale: at which it is run.
        runs: of its cells.
        folder: of the table; it may hold other cells of it.
        command: words of the command line.
        processes: at a time; None: as of a sweep.
        notes: shown before.

    Raises:
        ConfigError: data are missing, or the machine cannot hold them.
        RunFolderError: the folder holds something else.
    """
    with contextlib.suppress(RuntimeError):  # an accelerator's memory is for the workers
        jax.config.update("jax_platforms", "cpu")
    check_folder(folder, "search.json", "search")
    _check_owner(folder, table, scale)
    if scale != "smoke":
        scales.check_data(runs)
    wanted = plans.named((run.name, run.config) for run in runs)
    processes = processes or default_workers()
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    with FolderLock(folder):
        plan = _joined(plans.load(folder), wanted, folder)
        write_atomically(folder / _FILE, json.dumps({"table": table.name, "scale": scale}) + "\n")
        plans.save(folder, plan, command)
        by_config = {plans.identity(run.config): run for run in plan.runs}
        own = Plan(plan.fields, tuple(by_config[plans.identity(run.config)] for run in wanted.runs))
        print(
            "\n".join(describe_plan(f"{table.name}, {scale}", own, folder, processes)), flush=True
        )
        if others := len(plan.runs) - len(own.runs):
            print(
                f"  {counted(others, 'other run')} of this folder stay, and are not in the table "
                "of this command"
            )
        try:
            with _quick_programs() if scale == "smoke" else contextlib.nullcontext():
                workers.execute(folder, own, processes, notes, together=scale == "smoke")
        finally:
            rows.write(folder, plan)
            found: dict[tuple[str, str], tuple[Cell, list[Path]]] = {}
            for run in runs:
                name = by_config[plans.identity(plans.plain_value(run.config.to_dict()))].name
                folders = found.setdefault(run.cell.place, (run.cell, []))[1]
                folders.append(rows.folder_of(folder, name))
            result = results.collect(table, scale, list(found.values()), shlex.join(command))
            results.write(table, result, folder)
    return result


@contextlib.contextmanager
def _quick_programs() -> Iterator[None]:
    """Have workers compile without optimizing, which is faster for two short rounds; flags of
    the user win.
    """
    given = os.environ.get("XLA_FLAGS")
    os.environ["XLA_FLAGS"] = " ".join(filter(None, (_QUICK, given)))
    try:
        yield
    finally:
        if given is None:
            del os.environ["XLA_FLAGS"]
        else:
            os.environ["XLA_FLAGS"] = given


def _check_owner(folder: Path, table: Table, scale: str) -> None:
    owner = read_stored(folder / _FILE, lambda content: (content["table"], content["scale"]))
    if owner not in (None, (table.name, scale)):
        raise RunFolderError(
            f"{folder} holds {owner[0]} at scale {owner[1]}; give another --workdir"
        )
    if owner is None and (folder / plans.FILE).exists():
        raise RunFolderError(f"{folder} is the folder of a sweep; give another --workdir")


def _joined(stored: Plan | None, wanted: Plan, folder: Path) -> Plan:
    """Add what is wanted to what the folder has; refuse a cell whose settings have changed."""
    if stored is None:
        return wanted
    known = {run.name: run for run in stored.runs}
    for run in wanted.runs:
        old = known.get(run.name)
        if old is not None and plans.identity(old.config) != plans.identity(run.config):
            lines = config_differences(old.config, run.config, ignore=plans.alike())[:_SHOWN]
            raise RunFolderError(
                f"{folder} has {run.name} with other settings (stored -> now): "
                f"{'; '.join(lines)}. Give another --workdir"
            )
    there = {plans.identity(run.config) for run in wanted.runs}
    others = tuple(run for run in stored.runs if plans.identity(run.config) not in there)
    return plans.extended(stored, Plan(wanted.fields, (*wanted.runs, *others)), folder)
