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
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from fedjax_ssl import command_line
from fedjax_ssl import config as configs
from fedjax_ssl.runs.compile import OutOfMemory
from fedjax_ssl.runs.folder import FolderLocked
from fedjax_ssl.runs.loop import Point, run_batch
from fedjax_ssl.runs.shared import Shared
from fedjax_ssl.sweep import plan as plans
from fedjax_ssl.sweep import results
from fedjax_ssl.sweep.plan import Plan, PlannedRun

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
        at_once: runs at a time; by default all of them, but one on a CPU.
    """
    shared = Shared()
    points = {run.name: Point(plans.config_of(run), results.folder_of(sweep, run.name)) for run in runs}
    names = {str(point.workdir): name for name, point in points.items()}

    def start(batch: Sequence[Point]) -> None:
        tell({"event": "start", "runs": [names[str(point.workdir)] for point in batch]})

    with contextlib.suppress(Exception):  # a run that cannot be says so itself
        shared.align([configs.resolve(plans.config_of(run)) for run in program])
    ended = in_batches(list(points.values()), shared, at_once, start)
    for run, (result, seconds) in zip(runs, ended, strict=True):
        tell(_ended(sweep, run, result) | {"seconds": seconds})


def in_batches(
    points: Sequence[Point],
    shared: Shared,
    at_once: int | None = None,
    start: Callable[[Sequence[Point]], None] = lambda batch: None,
) -> Iterator[tuple[dict[str, Any] | Exception | None, float]]:
    """Does runs of one program, vectorized; half as many at a time where the device has not enough memory for them.

    On a CPU the work is the limit, and vectorized runs take longer than the same runs in turn (docs/benchmarks.md, W8).

    Args:
        points: the runs.
        shared: what the runs of the process share.
        at_once: runs at a time; by default all of them, but one on a CPU, over several devices, or with examples on
            the host.
        start: is told which runs start.

    Yields:
        For every run what `run_batch` returns, and its share of the seconds.
    """
    waiting = list(points)
    count = at_once or (len(waiting) if waiting and vectorizes(waiting[0], shared) else 1)
    while waiting:
        batch = waiting[:count]
        start(batch)
        begin = time.perf_counter()
        for point in batch:
            results.unmark(Path(point.workdir))
        ended = run_batch(batch, shared)
        if len(batch) > 1 and any(isinstance(result, OutOfMemory) for result in ended):
            count = len(batch) // 2
            warnings.warn(
                f"{len(batch)} runs at a time do not fit on the device: {count} at a time",
                configs.ConfigNote,
                stacklevel=1,
            )
            continue
        seconds = (time.perf_counter() - begin) / len(batch)
        yield from ((result, seconds) for result in ended)
        waiting = waiting[count:]


def vectorizes(point: Point, shared: Shared) -> bool:
    """Says whether runs like this one are faster together than in turn."""
    if jax.default_backend() == "cpu":
        return False
    try:
        experiment = shared.experiment(configs.resolve(point.config))
    except Exception:  # the run says so itself
        return False
    return experiment.config.federated.devices <= 1 and experiment.host is None


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
