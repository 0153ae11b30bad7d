"""The runs of one program, done by this process: what a worker of a sweep does, here or on a cluster.

`python -m fedjax_ssl.sweep.worker FOLDER` reads the names of its runs, a JSON list, from the first line of its standard
input, and writes lines of JSON to standard output: which runs start, how each one ended, what there is to note. It
ends when its standard input does: then whoever started it is gone.
"""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from fedjax_ssl import command_line
from fedjax_ssl import config as configs
from fedjax_ssl.experiment.estimate import runs_that_fit
from fedjax_ssl.experiment.run import Point, run_batch
from fedjax_ssl.experiment.shared import Shared
from fedjax_ssl.federated import device_memory
from fedjax_ssl.sweep import plan as plans
from fedjax_ssl.sweep import results
from fedjax_ssl.sweep.plan import Plan, PlannedRun
from fedjax_ssl.tracking import FolderLocked

Tell = Callable[[dict[str, Any]], None]


def run_program(
    sweep: Path,
    runs: Sequence[PlannedRun],
    tell: Tell,
    program: Sequence[PlannedRun],
    at_once: int | None = None,
) -> None:
    """Does runs of one program, as many at once as the device holds; one after another on a CPU.

    A run that fails is marked and the others go on.

    Args:
        sweep: folder of the sweep.
        runs: that are not done.
        tell: is told of every run that ended: its name, status, message and seconds.
        program: all runs of the program, whoever does them: they get the same shapes.
        at_once: in place of what the memory of the device allows.
    """
    shared = Shared()
    waiting = list(runs)
    fitting = _prepare(program, shared)
    count = at_once or fitting
    while waiting:
        batch, waiting = waiting[:count], waiting[count:]
        tell({"event": "start", "runs": [run.name for run in batch]})
        begin = time.perf_counter()
        for run in batch:
            results.unmark(results.folder_of(sweep, run.name))
        points = [Point(plans.config_of(run), results.folder_of(sweep, run.name)) for run in batch]
        ended = run_batch(points, shared)
        seconds = (time.perf_counter() - begin) / len(batch)
        for run, result in zip(batch, ended, strict=True):
            tell(_ended(sweep, run, result) | {"seconds": seconds})


def _prepare(program: Sequence[PlannedRun], shared: Shared) -> int:
    """Gives the runs of a program the same shapes; returns how many fit on the device at once."""
    try:
        shared.align([configs.resolve(plans.config_of(run)) for run in program])
        return runs_that_fit(plans.config_of(program[0]), shared, device_memory())
    except Exception:  # a run that cannot be says so itself
        return 1


def _ended(sweep: Path, run: PlannedRun, result: Any) -> dict[str, Any]:
    told = {"event": "end", "run": run.name, "status": results.DONE}
    if isinstance(result, FolderLocked):  # somebody else does it
        return told | {"status": results.MISSING, "message": str(result)}
    if isinstance(result, Exception):
        message = results.message_of(result)
        results.mark(results.folder_of(sweep, run.name), results.FAILED, message)
        return told | {"status": results.FAILED, "message": message}
    return told | {"message": results.brief(result)}


def main(arguments: list[str]) -> int:
    """Does runs of one program; see the module.

    Args:
        arguments: the sweep's folder.

    Returns:
        0; what failed is written into the runs' folders.
    """
    sweep, names = Path(arguments[0]), set(json.loads(sys.stdin.readline()))
    end_with_parent()
    found = plans.load(sweep)
    assert found is not None, "who starts a worker has written the plan"
    events = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # what code of a user's own prints is no event
        set_up_and_run(sweep, found, names, lambda told: print(json.dumps(told), file=events, flush=True))
    return 0


def set_up_and_run(sweep: Path, plan: Plan, names: Collection[str], tell: Tell) -> None:
    """Does the named runs, all of one program, in a process of its own that is set up as a run's."""
    runs = [run for run in plan.runs if run.name in names]
    command_line.use_compilation_cache()
    command_line.map_large_buffers()
    command_line.use_processor(runs[0].config["threads"])
    with command_line.notes_instead_of_warnings(lambda text: tell({"event": "note", "text": text})):
        run_program(sweep, runs, tell, [run for run in plan.runs if run.program == runs[0].program])


def end_with_parent() -> None:
    """From now on this process ends when its standard input does."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
