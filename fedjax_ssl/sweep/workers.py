"""Worker processes of this machine, and their runs."""

import collections
import contextlib
import dataclasses
import math
import multiprocessing
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax

from fedjax_ssl import command_line, gpus, processor
from fedjax_ssl.errors import counted, note
from fedjax_ssl.runs.loop import Point, run_batch
from fedjax_ssl.runs.program import OutOfMemory
from fedjax_ssl.runs.shared import Shared
from fedjax_ssl.sweep import results
from fedjax_ssl.sweep import sweep_plan as plans
from fedjax_ssl.sweep.sweep_plan import Plan, PlannedRun

# Runs that are worth another process, whose start takes some seconds, and parts of a large sweep
# for each worker.
_WORTH_A_START = 25
_PARTS = 4
_SPAWN = multiprocessing.get_context("spawn")


class Started(NamedTuple):
    """Runs that start in a worker."""

    runs: Sequence[str]


class Ended(NamedTuple):
    """A run that ended in a worker, or together with it."""

    run: str
    end: results.End
    seconds: float = 0.0


Event = Started | Ended | str  # a text is a note
Tell = Callable[[Event], None]


class Task(NamedTuple):
    """A function and its arguments for one process; `tell` comes before them."""

    work: Callable[..., None]
    arguments: tuple[Any, ...]
    runs: Sequence[PlannedRun] = ()


def do_tasks(
    tasks: Iterable[Task],
    processes: int,
    take: Callable[[Any], None] = lambda event: None,
    ended: Callable[[Task, int], list[Task]] = lambda task, code: [],
    notes: Iterable[str] = (),
) -> None:
    """Do tasks in separate processes, which end when this one does; print their notes once.

    Each process is bound to a GPU, if there are any, and several on one GPU share its memory.

    Args:
        tasks: in the order of their starts.
        processes: most processes at a time; they share the cores and the GPUs.
        take: called with every event that is no note.
        ended: task and exit code -> tasks to do next.
        notes: notes that were already shown.

    Raises:
        ConfigError: the free memory of the GPUs is too small for so many processes.
    """
    shown = set(notes)
    waiting = list(tasks)
    processes = min(processes, len(waiting))
    gpus.check(gpus.found(), processes)
    idle = list(range(processes))  # numbers of processes, which decide their GPUs
    busy = dict[Connection, tuple[BaseProcess, Task, int]]()
    try:
        while waiting or busy:
            while waiting and idle:
                sharers = min(processes, len(waiting) + len(busy))
                task = waiting.pop(0)
                place = idle.pop(0)
                connection, process = _start(
                    task,
                    max(processor.threads() // sharers, 1) if sharers > 1 else None,
                    gpus.environment(gpus.found(), place, processes),
                )
                busy[connection] = process, task, place
            for ready in cast(list[Connection], wait(list(busy))):
                try:
                    event = ready.recv()
                except (EOFError, OSError):
                    process, task, place = busy.pop(ready)
                    process.join()
                    idle.append(place)
                    waiting = [*ended(task, process.exitcode or 0), *waiting]
                else:
                    if not isinstance(event, str):
                        take(event)
                    elif event not in shown:
                        shown.add(event)
                        command_line.print_note(event)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt("the same command goes on with what is missing") from stop
    finally:
        for process, *_ in busy.values():
            process.terminate()
        for process, *_ in busy.values():
            process.join()


def _start(
    task: Task, threads: int | None, environment: Mapping[str, str]
) -> tuple[Connection, BaseProcess]:
    receiver, sender = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=_work, args=(sender, threads, environment, task))
    with _no_interrupts():
        process.start()
    sender.close()
    return receiver, process


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back. A process started meanwhile never gets it; this one does, and ends the
    others.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # starting it later would let Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(
    sender: Connection, threads: int | None, environment: Mapping[str, str], task: Task
) -> None:
    """Do a task in a process that is configured like that of a run."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(environment)  # CUDA reads it when JAX first computes
    if threads is not None:
        processor.start(threads)
    set_up()
    with command_line.notes_instead_of_warnings(sender.send):
        task.work(sender.send, *task.arguments)


def how_it_ended(code: int) -> str:
    """Describe the end of a process that did not end by itself, from its exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    memory = "; was the memory enough?" if code == -signal.SIGKILL else ""
    return f"ended by {signal.Signals(-code).name}{memory}"


def time_left(waiting: Sequence[str], spent: Mapping[str, Sequence[float]], workers: int) -> str:
    """Estimate how long runs will take: like finished runs of the same method, or like all if there
    are none.

    Args:
        waiting: methods of the remaining runs.
        spent: seconds of every finished run, by method.
        workers: runs at a time.

    Returns:
        In words, after a comma; "" if it is unknown, or all are done.
    """
    everything = [seconds for of_method in spent.values() for seconds in of_method]
    if not waiting or not everything:
        return ""
    seconds = sum(statistics.mean(spent.get(method) or everything) for method in waiting)
    new = len(set(waiting).difference(spent))
    unknown = f", with {counted(new, 'method')} not timed so far" if new else ""
    return (
        f", about {timedelta(seconds=math.ceil(seconds / min(workers, len(waiting))))} "
        f"left{unknown}"
    )


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker was started by another process"
    parent.join()
    os._exit(1)


def set_up() -> None:
    """Prepare a process for runs."""
    command_line.use_compilation_cache()
    command_line.map_large_buffers()


def do_runs(tell: Tell, sweep: Path, names: Collection[str], at_once: int | None = None) -> None:
    """Do runs of a sweep, program by program. A failed run is marked, and the others continue.

    Args:
        tell: called when a run starts or ends.
        sweep: folder with a `sweep.json`.
        names: the runs to do.
        at_once: runs at a time, see `in_batches`.
    """
    plan = plans.load(sweep)
    assert plan is not None, "it was written before"
    chosen = ([run for run in runs if run.name in names] for runs in plan.programs)
    programs = list(filter(None, chosen))
    first = programs[0][0].config
    command_line.use_processor(first["threads"], first["federated"]["devices"])

    def start(batch: Sequence[Point]) -> None:
        tell(Started([Path(point.workdir).name for point in batch]))

    for runs in programs:
        points = [Point(plans.config_of(run), results.folder_of(sweep, run.name)) for run in runs]
        shared = Shared(own_process=len(programs) == 1)
        with contextlib.suppress(Exception):  # a run that cannot be built reports it itself
            # All runs of the program get equal shapes, including those of other workers.
            program = [run for run in plan.runs if run.program == runs[0].program]
            shared.align([plans.config_of(run) for run in program])
        batches = in_batches(points, shared, at_once, start)
        for run, point, (result, seconds) in zip(runs, points, batches, strict=True):
            tell(Ended(run.name, results.note_end(Path(point.workdir), result), seconds))


def in_batches(
    points: Sequence[Point],
    shared: Shared,
    at_once: int | None = None,
    start: Callable[[Sequence[Point]], None] = lambda batch: None,
) -> Iterator[tuple[dict[str, Any] | Exception | None, float]]:
    """Do runs of one program, vectorized; half as many at a time if the device has too little
    memory.

    Args:
        points: the runs.
        shared: shared parts of the runs in this process.
        at_once: runs at a time; by default all of them, or one if `vectorizes` is False.
        start: called with the runs that start.

    Yields:
        For every run the result of `run_batch`, and its share of the seconds.
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
            note(f"{len(batch)} runs at a time do not fit on the device: {count} at a time")
            continue
        seconds = (time.perf_counter() - begin) / len(batch)
        yield from ((result, seconds) for result in ended)
        waiting = waiting[count:]


def vectorizes(point: Point, shared: Shared) -> bool:
    """Return whether runs like this one are faster together than one after another, that is, on a
    single device that is no CPU.

    On a CPU, vectorized runs take longer than the same runs one after another (docs/speed.md, W8).
    """
    if jax.default_backend() == "cpu":
        return False
    try:
        experiment = shared.experiment(point.config)
    except Exception:  # the run itself reports the error
        return False
    return (experiment.config.federated.devices or 1) <= 1 and experiment.host is None


def tasks(sweep: Path, plan: Plan, workers: int, together: bool = False) -> list[Task]:
    """Make a task of every program with runs to do; programs that would leave workers idle are cut
    into parts.

    Of five programs for two workers, two are dealt to each, and the fifth is cut in two. Programs
    of very many runs are cut on processors, so that no worker waits long for a slow method. Later
    parts come last; those that start later find the program that the first one has compiled. With
    `together` every worker does many programs in one process, as is faster for runs that take less
    time than its start.
    """
    programs = [results.unfinished(sweep, runs) for runs in plan.programs]
    if together:
        runs = [run for program in programs for run in program]
        # Neighbours share a program and go to one worker.
        size = max(math.ceil(len(runs) / workers), 1)
        dealt = [runs[start : start + size] for start in range(0, len(runs), size)]
    else:
        dealt = _cut(programs, workers)
    return [task_of(sweep, runs) for runs in dealt]


def _cut(programs: Sequence[list[PlannedRun]], workers: int) -> list[list[PlannedRun]]:
    """Cut programs into parts, see `tasks`."""
    # Longest first, so that workers end together.
    waiting = sorted(filter(None, programs), key=len, reverse=True)
    last = len(waiting) % workers  # programs that would leave workers idle
    largest = math.inf
    if workers > 1 and not gpus.found():  # a GPU does all runs of a program at once
        total = sum(map(len, waiting))
        largest = max(math.ceil(total / (_PARTS * workers)), _WORTH_A_START)
    counts = []
    for place, runs in enumerate(waiting):
        least = math.ceil(workers / last) if place >= len(waiting) - last else 1
        counts.append(max(least, math.ceil(len(runs) / largest)))
    cut = sorted(zip(waiting, counts, strict=True), key=lambda pair: -pair[1])
    return [
        runs[place::count]
        for place in range(max(counts, default=0))
        for runs, count in cut
        if place < min(count, len(runs))
    ]


def task_of(sweep: Path, runs: Sequence[PlannedRun]) -> Task:
    """Make a task of some runs."""
    return Task(do_runs, (sweep, [run.name for run in runs]), runs)


def execute(
    sweep: Path,
    plan: Plan,
    workers: int,
    notes: Iterable[str] = (),
    together: bool = False,
    only: Collection[PlannedRun] | None = None,
) -> None:
    """Do all missing runs, and write the tables after every task.

    Args:
        sweep: folder of the sweep.
        plan: plan of the sweep, as in its `sweep.json`.
        workers: processes at a time.
        notes: notes that were already shown; notes of all workers are shown once.
        together: see `tasks`.
        only: do only these runs of the plan.
    """
    chosen = plan if only is None else dataclasses.replace(plan, runs=tuple(only))
    todo = tasks(sweep, chosen, workers, together)
    methods = {run.name: run.config["method"]["name"] for task in todo for run in task.runs}
    spent = collections.defaultdict[str, list[float]](list)
    started = set[str]()
    over = set[str]()

    def take(event: Started | Ended) -> None:
        if isinstance(event, Started):
            started.update(event.runs)
            return
        run, end, seconds = event
        over.add(run)
        if end.status != results.FAILED:
            spent[methods[run]].append(seconds)
        failed = "" if end.status == results.DONE else f"{end.status}: "
        waiting = [method for name, method in methods.items() if name not in over]
        left = time_left(waiting, spent, workers)
        line = f"[{len(over)}/{len(methods)}] {run}: {failed}{end.message}"
        print(f"{line} ({seconds:.1f} s{left})", flush=True)

    def ended(task: Task, code: int) -> list[Task]:
        left = [run for run in task.runs if run.name not in over] if code else []
        dead = [run for run in left if run.name in started] or left
        for run in dead:
            folder = results.folder_of(sweep, run.name)
            end = results.mark(folder, results.FAILED, f"its process {how_it_ended(code)}")
            take(Ended(run.name, end))
        results.write(sweep, plan)
        rest = [run for run in left if run not in dead]
        return [task_of(sweep, rest)] if rest else []

    results.write(sweep, plan)
    try:
        do_tasks(todo, workers, take, ended, notes)
    finally:
        results.write(sweep, plan)
