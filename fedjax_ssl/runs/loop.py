"""One run, or several at once, from a config to the summary: block by block, with callbacks between
the blocks.

run -> start_run (start_run.py) -> Run (active_run.py)
-> loop: [rounds and evaluation (program.py), callbacks (callbacks.py)] ...
-> finish (finish_run.py): predictions, scores, summary
"""

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_collections

from fedjax_ssl import config as configs
from fedjax_ssl.checks import required
from fedjax_ssl.errors import note
from fedjax_ssl.runs.active_run import Run
from fedjax_ssl.runs.callbacks import Callback
from fedjax_ssl.runs.finish_run import finish
from fedjax_ssl.runs.notes import quiet_notes
from fedjax_ssl.runs.processes import Team
from fedjax_ssl.runs.program import Advanced
from fedjax_ssl.runs.shared import Shared
from fedjax_ssl.runs.start_run import start_run


def loop(runs: Sequence[Run]) -> None:
    """Bring runs to their end, block by block. Runs that are behind go first, and runs at the same
    round share one program. A run that a user's callback stops is not finished here.

    A run that fails gets its `error`; the others continue.

    Args:
        runs: runs of the same `Shared`.
    """
    while waiting := [one for one in runs if not one.ended]:
        complete = [one for one in waiting if one.over]
        if complete:
            with _ending(complete[:1]):
                finish(complete[0])
            continue
        first = min(waiting, key=lambda one: one.round)
        together = [one for one in waiting if one.kind == first.kind]
        with _ending(together):
            advanced = _advance(together)
            for place, one in enumerate(together):
                with _ending([one]):
                    one.take(advanced, place)


@contextlib.contextmanager
def _ending(runs: Sequence[Run]) -> Iterator[None]:
    """End these runs, and no others, if an error is raised."""
    try:
        yield
    except Exception as error:
        for one in runs:
            one.error = error


def _advance(together: Sequence[Run]) -> Advanced:
    """Run the next block of runs of one kind."""
    first = together[0]
    begin = time.perf_counter()
    inputs = [one.block_inputs() for one in together]
    waited = time.perf_counter() - begin  # waiting for examples from the host
    states = [one.state for one in together]
    advanced = first.program.advance(
        states, inputs, first.rounds, first.progress.compiling, first.running, first.saved
    )
    for row in advanced.rows:
        row["seconds"] += waited / len(together)
        row["client_updates_per_second"] = row["clients"] / row["seconds"]
    return advanced._replace(training=waited + advanced.training)


class Point(NamedTuple):
    """A run to do."""

    config: ml_collections.ConfigDict  # resolved
    workdir: str | Path
    callbacks: Sequence[Callback] = ()  # called after every block; they may stop the run


@required
def run(
    config: ml_collections.ConfigDict,
    workdir: str | Path,
    team: Team | None = None,
    shared: Shared | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
) -> dict[str, Any]:
    """Run an experiment in a run folder, or continue the run in that folder.

    The same config on the same folder resumes from the last checkpoint and gives the same numbers,
    bit for bit.

    Args:
        config: a config as a config file returns it.
        workdir: the run folder; see `fedjax_ssl.folder.RunFolder`. With several processes, only
            process 0 uses it.
        team: from `fedjax_ssl.runs.processes`, if several processes train one federation: then all
            of them call this.
        shared: datasets and programs of this process, so that its runs compile once; new by
            default.
        callbacks: a list of functions of a `fedjax_ssl.runs.Block`, called in this order after
            every evaluation. They may add columns to its row, with one number each. A callback that
            returns True ends the run, with predictions and summary. If one raises an error, row and
            checkpoint are saved first. With several processes, each calls its own.
        quiet: print only notes about the data, on standard error.

    Returns:
        The content of `summary.json`.

    Raises:
        ConfigError: a setting cannot be used.
        UserError: a callback cannot be called, returned anything but True, False or None, or
            changed a row otherwise than by columns of numbers of its own.
        DatasetUnavailable: the dataset is not on disk and could not be downloaded.
        ConfigMismatch: the folder holds a run with another config.
        RunFolderError: the folder holds a run on other data.
        CheckpointError: the folder's checkpoints cannot be used.
        Preempted: one of several processes was asked to end; the checkpoint is saved.

    Example:
        >>> config = fs.load_config("digits_fedavg", {"rounds": 2, "eval_every": 1})
        >>> summary = fs.run(config, "runs/first", quiet=True)
        >>> summary["rounds"], 0 < summary["test_accuracy"] < 1
        (2, True)
    """
    team = team or Team()
    resolved = configs.resolve(config)
    common = resolved.to_dict()
    del common["distributed"]  # differs by process, as the place of the data does
    for own in ("root", "download"):
        del common["data"][own]
    team.check_same(
        "config", repr(common), "Give every process the same command and the same config file."
    )
    with (
        team.watched(),
        start_run(resolved, workdir, team, shared or Shared(), callbacks, quiet) as active,
    ):
        if quiet and active.folder is not None:
            for line in quiet_notes(active):
                print(f"note: {line}", file=sys.stderr)
        loop([active])
        if active.error is not None:
            raise active.error
        if active.stopped:
            finish(active)
        assert active.summary is not None
        return active.summary


def _notes_of(runs: Iterable[Run]) -> Iterator[str]:
    """List the notes of runs, each line once. Of runs that differ by seed alone, only the first one
    is asked.
    """
    first_of: dict[str, Run] = {}
    for one in runs:
        settings = {name: value for name, value in one.config.to_dict().items() if name != "seed"}
        first_of.setdefault(repr(settings), one)
    yield from dict.fromkeys(line for one in first_of.values() for line in quiet_notes(one))


def run_batch(points: Sequence[Point], shared: Shared) -> list[dict[str, Any] | Exception | None]:
    """Run several experiments at once, vectorized in one program if code and shapes are the same.

    Every run writes the same folder as `run`, and continues an existing one. Its numbers are those
    of `run` except for rounding, because vectorized products add in another order.

    Args:
        points: the runs, in different folders. If the device is too small for all together, they
            end with `OutOfMemory`.
        shared: datasets and programs of the process.

    Returns:
        For every run its summary; None if a callback stopped it, which leaves a checkpoint and no
        summary; or the exception that ended it. The other runs continue.
    """
    results: list[dict[str, Any] | Exception | None] = [None] * len(points)
    with contextlib.ExitStack() as stack:
        active: dict[int, Run] = {}
        for place, point in enumerate(points):
            try:
                one = start_run(
                    point.config,
                    point.workdir,
                    Team(),
                    shared,
                    point.callbacks,
                    quiet=True,
                    pictures=False,
                )
                active[place] = stack.enter_context(one)
            except Exception as error:
                results[place] = error
        for line in _notes_of(active.values()):
            note(line)
        loop(list(active.values()))
        for place, run_here in active.items():
            results[place] = run_here.error or run_here.summary
    return results
