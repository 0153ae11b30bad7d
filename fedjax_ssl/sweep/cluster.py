"""`--submit`: an array of jobs, one per program, submitted by submitit; each may be preempted and
started again.
"""

import argparse
import dataclasses
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedjax_ssl import command_line, gpus
from fedjax_ssl.config import ConfigError
from fedjax_ssl.errors import counted
from fedjax_ssl.folder.folder_lock import FolderLock
from fedjax_ssl.sweep import axes, results, workers
from fedjax_ssl.sweep import sweep_plan as plans
from fedjax_ssl.sweep.sweep_plan import Plan, names_of, needed
from fedjax_ssl.sweep.workers import Task

# Starts of a job that reached its time limit; each one goes on from its checkpoints.
_STARTS = 1000


@dataclasses.dataclass(frozen=True)
class Job:
    """The runs of one program, as a job does them; picklable."""

    sweep: Path  # folder, which must have the same path in the job
    names: tuple[str, ...]  # runs of one program

    def __call__(self) -> dict[str, int]:
        """Do the missing runs, a part on each GPU if there are several, and write the tables;
        return the number of runs by status.
        """
        plan = plans.load(self.sweep)
        assert plan is not None, "it was written before the job was handed in"
        own = [run for run in plan.runs if run.name in self.names]
        missing = [run.name for run in results.unfinished(self.sweep, own)]
        try:
            with command_line.notes_instead_of_warnings():
                if len(gpus.found()) > 1:
                    workers.execute(self.sweep, plan, len(gpus.found()), only=own)
                elif missing:
                    workers.set_up()
                    workers.do_runs(partial(print, flush=True), self.sweep, missing)
        finally:
            rows = results.write(self.sweep, plan)
        return dict(Counter(row["status"] for row in rows if row["run"] in self.names))

    def checkpoint(self) -> Any:
        """Return the job that submitit submits again after preemption or a timeout."""
        return needed("submitit", "--submit").helpers.DelayedSubmission(self)


def submit(given: argparse.Namespace, folder: Path, plan: Plan, command: Sequence[str]) -> int:
    """Submit the missing runs of a sweep, or show what would be submitted.

    Args:
        given: parsed command line.
        folder: the sweep's.
        plan: its runs.
        command: the words of the command line.

    Returns:
        0.

    Raises:
        ConfigError: an option that cannot be used, no Slurm here, or submitit is not installed.
    """
    cluster = given.submit or "slurm"
    waiting = workers.tasks(folder, plan, 1)
    options = options_of(given.slurm)
    hours = 24.0 if given.hours is None else given.hours
    if not waiting:
        print(f"all runs are done: {folder / 'results.csv'}")
        return 0
    several = str(options.get("gpus_per_node", "1")).rpartition(":")[2]
    most = max(len(task.runs) for task in waiting)
    if several.isdecimal() and int(several) > 1:
        idle = f"; the largest has {counted(most, 'run')}, so that GPUs idle" * (
            most < int(several)
        )
        print(f"every job deals its runs to {several} GPUs{idle}")
    if given.show:
        settings = "".join(f", {name}={value}" for name, value in options.items())
        print(
            f"an array of {counted(len(waiting), 'job')} for {cluster}, {hours:g} h each{settings}:"
        )
        for number, task in enumerate(waiting):
            print(
                f"  {number}: program {number}, {counted(len(task.runs), 'run')}: "
                f"{names_of(task.runs)}"
            )
        return 0
    with FolderLock(folder):
        plans.save(folder, plan, command)
        results.write(folder, plan)
        jobs = hand_in(waiting, folder, cluster, options, hours)
    print(
        f"handed in {counted(len(jobs), 'job')}: {', '.join(job.job_id for job in jobs)}; logs: "
        f"{folder / 'jobs'}"
    )
    print(
        f"{folder / 'results.csv'} is written as they end; the same command hands in what is "
        "missing then"
    )
    return 0


def hand_in(
    waiting: Sequence[Task], folder: Path, cluster: str, options: Mapping[str, Any], hours: float
) -> list[Any]:
    """Submit tasks as one array; return submitit's jobs.

    Args:
        waiting: tasks, one job each.
        folder: the sweep's.
        cluster: "slurm" or "local".
        options: Slurm's, as submitit calls them.
        hours: time limit of a job.

    Raises:
        ConfigError: there is no such cluster here, or it refuses.
    """
    library = needed("submitit", "--submit")
    # Jobs import the same modules as this process; Slurm passes the environment on.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        executor = library.AutoExecutor(
            folder / "jobs", cluster=cluster, slurm_max_num_timeout=_STARTS
        )
        named = {}
        if cluster == "slurm":
            named = {f"slurm_{name}": value for name, value in options.items()}
        minutes = max(round(60 * hours), 1)
        executor.update_parameters(timeout_min=minutes, name=f"sweep_{folder.name}", **named)
        names = (tuple(run.name for run in task.runs) for task in waiting)
        with executor.batch():
            return [executor.submit(Job(folder.resolve(), some)) for some in names]
    except Exception as error:
        raise ConfigError(f"nothing was handed in to {cluster}: {error}") from error


def options_of(texts: Sequence[str]) -> dict[str, Any]:
    """Read `--slurm NAME=VALUE`.

    Raises:
        ConfigError: the text has another form, or a name is repeated.
    """
    given = axes.pairs("--slurm", texts, "NAME=VALUE, for example gpus_per_node=1")
    return {
        name.replace("-", "_"): int(value) if value.isdecimal() else value
        for name, value in given.items()
    }
