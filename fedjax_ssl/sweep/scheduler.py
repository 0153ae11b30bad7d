"""Deals the programs of a plan to worker processes of this machine, shows progress, and has the tables written."""

import contextlib
import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from fedjax_ssl import processor
from fedjax_ssl.command_line import print_note
from fedjax_ssl.sweep import results
from fedjax_ssl.sweep.plan import Plan, PlannedRun

WORKER = "fedjax_ssl.sweep.worker"
WHAT_FOLLOWS = "the same command goes on with what is missing"  # after Ctrl-C


class Task(NamedTuple):
    """Runs of one program for one worker."""

    program: int
    runs: list[PlannedRun]


class Worker(NamedTuple):
    """A process that does a task."""

    process: subprocess.Popen
    task: Task


class Ended(NamedTuple):
    """What a sweep came to."""

    done: int
    failed: int
    stopped: int
    missing: int


def tasks(sweep: Path, plan: Plan, workers: int) -> list[Task]:
    """What is to do, a task per program; programs that would leave workers idle at the end are cut into parts.

    Of five programs for two workers, two are dealt to each, and the fifth is cut in two.
    """
    programs = [(runs[0].program, results.unfinished(sweep, runs)) for runs in plan.programs]
    # The longest first, so that workers end together.
    waiting = sorted(((number, runs) for number, runs in programs if runs), key=lambda one: -len(one[1]))
    last = len(waiting) % workers
    whole = [Task(number, runs) for number, runs in waiting[: len(waiting) - last]]
    parts = math.ceil(workers / max(last, 1))
    cut = [Task(number, runs[place::parts]) for number, runs in waiting[len(whole) :] for place in range(parts)]
    return [*whole, *(task for task in cut if task.runs)]


def execute(sweep: Path, plan: Plan, workers: int, notes: Iterable[str] = (), show: IO[str] | None = None) -> Ended:
    """Does all runs that are missing, and writes the tables after every program.

    Args:
        sweep: folder of the sweep.
        plan: what is in its `sweep.json`.
        workers: processes at a time.
        notes: that were shown already; those of all workers are shown once.
        show: where progress goes; standard output by default.

    Returns:
        How many runs stand where.
    """
    waiting = tasks(sweep, plan, workers)
    report = _Report(sum(len(task.runs) for task in waiting), notes, show or sys.stdout)
    told: queue.Queue[tuple[Worker, dict[str, Any] | None]] = queue.Queue()
    busy: list[Worker] = []
    results.write(sweep, plan)
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                busy.append(_start(sweep, waiting.pop(0), min(workers, len(waiting) + len(busy) + 1), told))
            worker, event = told.get()
            if event is not None:
                report.take(event)
                continue
            busy.remove(worker)
            rest = _after(sweep, worker, report)
            waiting = [*([Task(worker.task.program, rest)] if rest else []), *waiting]
            results.write(sweep, plan)
    finally:
        stop_processes([worker.process for worker in busy])
        rows = results.write(sweep, plan)
    counts = [sum(row["status"] == status for row in rows) for status in _STATUSES]
    return Ended(*counts)


def stop_processes(processes: Sequence[subprocess.Popen]) -> None:
    """Ends processes that still run, and closes what leads to them."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


_STATUSES = (results.DONE, results.FAILED, results.STOPPED, results.MISSING)


def _start(sweep: Path, task: Task, at_a_time: int, told: queue.Queue) -> Worker:
    process = subprocess.Popen(
        [sys.executable, "-m", WORKER, str(sweep)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment_of(at_a_time),
        start_new_session=True,  # Ctrl-C is for this process, which ends its workers
    )
    worker = Worker(process, task)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        # It stays open: the worker ends when this process does.
        print(json.dumps([run.name for run in task.runs]), file=process.stdin, flush=True)
    threading.Thread(target=_listen, args=(worker, told), daemon=True).start()
    return worker


def import_path() -> str:
    """Where this process imports from, as $PYTHONPATH of another one."""
    return os.pathsep.join(filter(None, sys.path))


def environment_of(workers: int) -> dict[str, str]:
    """The environment of one of several workers: it imports what this process can, and has its share of the cores."""
    environment = {**os.environ, "PYTHONPATH": import_path()}
    if workers > 1 and "NPROC" not in environment:
        environment["NPROC"] = str(max(processor.cores() // workers, 1))
    return environment


def _listen(worker: Worker, told: queue.Queue) -> None:
    assert worker.process.stdout is not None
    for line in worker.process.stdout:
        with contextlib.suppress(ValueError):
            told.put((worker, json.loads(line)))
    worker.process.wait()
    told.put((worker, None))  # the last thing that is read of it


def _after(sweep: Path, worker: Worker, report: "_Report") -> list[PlannedRun]:
    """What a worker that ended has left over: nothing, or those after the run that it died in, which has failed."""
    stop_processes([worker.process])
    left = [run for run in worker.task.runs if run.name not in report.ended]
    code = worker.process.returncode
    if not left or not code:
        return []
    dead = [run for run in left if run.name in report.started] or left
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    hint = "; was the memory enough?" if code == -signal.SIGKILL else ""
    for run in dead:
        message = f"its process ended {how}{hint}"
        results.mark(results.folder_of(sweep, run.name), results.FAILED, message)
        report.take({"event": "end", "run": run.name, "status": results.FAILED, "message": message, "seconds": 0.0})
    return [run for run in left if run not in dead]


class _Report:
    """Lines about runs that ended, and the time that is left."""

    def __init__(self, total: int, notes: Iterable[str], show: IO[str]):
        self._total, self._show, self._begin = total, show, time.monotonic()
        self._notes = set(notes)
        self.started: set[str] = set()
        self.ended: set[str] = set()

    def take(self, event: dict[str, Any]) -> None:
        if event["event"] == "start":
            self.started.update(event["runs"])
            return
        if event["event"] == "note":
            if event["text"] not in self._notes:
                self._notes.add(event["text"])
                print_note(event["text"])
            return
        self.ended.add(event["run"])
        failed = "" if event["status"] == results.DONE else f"{event['status']}: "
        left = ""
        if len(self.ended) < self._total:
            seconds = (time.monotonic() - self._begin) / len(self.ended) * (self._total - len(self.ended))
            left = f", about {in_words(seconds)} left"
        line = f"[{len(self.ended)}/{self._total}] {event['run']}: {failed}{event['message']}"
        print(f"{line} ({event['seconds']:.1f} s{left})", file=self._show, flush=True)


def in_words(seconds: float) -> str:
    """A time that is guessed: "40 s", "3 min", "2 h 10 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def names(runs: Sequence[PlannedRun], most: int = 3) -> str:
    """The first names of runs, for a message."""
    shown = ", ".join(run.name for run in runs[:most])
    return shown if len(runs) <= most else f"{shown}, ... ({len(runs)} in all)"
