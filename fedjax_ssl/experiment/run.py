"""Runs with their folders: one, or several that one program trains together."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_collections

from fedjax_ssl import config as configs
from fedjax_ssl import tracking
from fedjax_ssl.distributed import Team
from fedjax_ssl.experiment import longer
from fedjax_ssl.experiment.active_run import ActiveRun, Watch
from fedjax_ssl.experiment.programs import Around
from fedjax_ssl.experiment.shared import Shared

# Fields that change how a run is watched, where it finds its data or what is done with the trained network, but not
# the network.
UNCOMPARED = (*tracking.WATCHING, "prediction")


class Point(NamedTuple):
    """A run to be done."""

    config: ml_collections.ConfigDict  # as a config file returns it
    workdir: str | Path
    watch: Watch | None = None  # is told every metric row, and may stop the run


def run(
    config: ml_collections.ConfigDict, workdir: str | Path, team: Team | None = None, shared: Shared | None = None
) -> dict[str, Any]:
    """Runs an experiment in a run folder, or goes on with the one that is there.

    The same config on the same folder resumes from the last checkpoint and ends in the same numbers, bit for bit.

    Args:
        config: as a config file returns it.
        workdir: the run folder; see `fedjax_ssl.tracking.RunFolder`. Of several processes, only process 0 uses it.
        team: from `fedjax_ssl.distributed.start`, where several processes train one federation: all of them call this.
        shared: what the runs of a process share, so that they compile once; nothing by default.

    Returns:
        What `summary.json` holds.

    Raises:
        ConfigError: a setting cannot be used.
        DatasetUnavailable: the dataset is not on disk and could not be downloaded.
        ConfigMismatch: the folder holds a run with another config.
        CheckpointError: the folder's checkpoints cannot be used.
        Preempted: a process of several was asked to end; the checkpoint is saved.
    """
    team = team or Team()
    resolved = configs.resolve(config)
    common = resolved.to_dict()
    del common["distributed"]  # this and how a machine finds its data is its own
    for own in ("root", "download", "timeout"):
        del common["data"][own]
    team.check_same("config", repr(common), "Give every process the same command and the same config file.")
    with team.watched(), _opened(resolved, workdir, team, shared or Shared()) as active:
        advance([active])
        assert active.summary is not None, "nobody watched it, so that nobody stopped it"
        return active.summary


def run_batch(points: Sequence[Point], shared: Shared) -> list[dict[str, Any] | Exception | None]:
    """Runs several experiments at once, vectorized in one program where code and shapes are the same.

    Every run leaves the folder that `run` leaves, and goes on with the one that is there. Its numbers are those of
    `run` but for rounding: vectorized products add in another order.

    Args:
        points: the runs, in different folders. Where the device is too small for all, they end with `OutOfMemory`.
        shared: what the runs of the process share.

    Returns:
        For every run its summary, None where it was stopped, or the exception that ended it; the others go on.
    """
    results: list[dict[str, Any] | Exception | None] = [None] * len(points)
    with contextlib.ExitStack() as stack:
        active: dict[int, ActiveRun] = {}
        for place, point in enumerate(points):
            try:
                opened = _opened(configs.resolve(point.config), point.workdir, Team(), shared, point.watch, quiet=True)
                active[place] = stack.enter_context(opened)
            except Exception as error:
                results[place] = error
        try:
            advance(list(active.values()))
        except Exception as error:
            results = [
                error if place in active and not active[place].done else result for place, result in enumerate(results)
            ]
        for place, one in active.items():
            results[place] = results[place] or one.summary
    return results


@contextlib.contextmanager
def _opened(
    resolved: ml_collections.ConfigDict,
    workdir: str | Path,
    team: Team,
    shared: Shared,
    watch: Watch | None = None,
    quiet: bool = False,
) -> Iterator[ActiveRun]:
    # Sums that are not exact depend on the number of devices.
    ignored = UNCOMPARED if resolved.federated.reduce == "fast" else (*UNCOMPARED, "federated.devices")
    writers = tracking.WriterSettings(**resolved.tracking)
    with configs.naming("tracking"):
        tracking.check_writers(writers)
    with (
        tracking.Record(
            workdir, resolved.to_dict(), ignore=ignored, undecided=longer.FIELDS, writers=writers, quiet=quiet
        )
        if team.writes
        else tracking.NoRecord(workdir) as record,
        ActiveRun(record, shared.experiment(resolved), shared, team, watch) as active,
    ):
        active.start()
        yield active


def advance(runs: Sequence[ActiveRun]) -> None:
    """Brings runs to their end: those that are behind first, all at the same round in one program.

    Args:
        runs: of the same `Shared`.
    """
    while waiting := [one for one in runs if not one.done]:
        if complete := [one for one in waiting if not one.block]:
            complete[0].finish()
            continue
        first = min(waiting, key=lambda one: one.round)
        together = [one for one in waiting if one.kind == first.kind]
        begin = time.perf_counter()
        inputs = [one.feed.block(one.round, one.block) for one in together]
        waited = time.perf_counter() - begin  # for examples that come from the host
        rows, states, compiling, training = first.shared.programs.advance(
            first.code,
            [one.state for one in together],
            inputs,
            first.block,
            Around(first.compiling, first.running),
        )
        for one, row, state in zip(together, rows, states, strict=True):
            row["seconds"] += waited / len(together)
            row["client_updates_per_second"] = row["clients"] / row["seconds"]
            one.take(row, state, compiling / len(together), (waited + training) / len(together))
