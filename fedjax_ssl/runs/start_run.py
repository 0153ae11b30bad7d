"""The start of a run on one page: from a resolved config through dataset, federation, method,
program and folder to the state of its next round.

`notes.py` has its notes, `active_run.py` the step by one block, and `finish_run.py` the end.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import ml_collections

from fedjax_ssl import config as configs
from fedjax_ssl import data
from fedjax_ssl.federated import ServerState
from fedjax_ssl.folder.progress import Progress
from fedjax_ssl.folder.run_folder import RunFolder
from fedjax_ssl.folder.writers import WriterSettings, check_writers, open_writers
from fedjax_ssl.runs import advice, own_sources
from fedjax_ssl.runs.active_run import Run
from fedjax_ssl.runs.build import privacy_of_run
from fedjax_ssl.runs.callbacks import (
    Best,
    Callback,
    Checkpoint,
    ClientModels,
    Divergence,
    EarlyStopping,
    History,
    Report,
    Rows,
    Viewers,
)
from fedjax_ssl.runs.devices import check_debugging
from fedjax_ssl.runs.finish_run import summary_of_before
from fedjax_ssl.runs.notes import tell_start
from fedjax_ssl.runs.own_callbacks import OwnCallbacks, OwnMetrics
from fedjax_ssl.runs.processes import Team, share_out
from fedjax_ssl.runs.program import Program
from fedjax_ssl.runs.residence import Feed
from fedjax_ssl.runs.shared import Shared
from fedjax_ssl.runs.summary import out_of_patience


@contextlib.contextmanager
def start_run(
    config: ml_collections.ConfigDict,
    workdir: str | Path,
    team: Team,
    shared: Shared,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
    pictures: bool = True,
) -> Iterator[Run]:
    """Open a run folder, build the run, and return it ready for its next block; a complete run
    already has its summary.

    Args:
        config: resolved.
        workdir: the run folder; only the process that writes uses it.
        team: the processes that train it.
        shared: datasets and programs of this process.
        callbacks: the user's own.
        quiet: print nothing.
        pictures: draw the partition at the end.

    Raises:
        UserError: a callback cannot be called.
        ConfigError: a setting cannot be used.
        CheckpointError: the folder's checkpoints cannot be used.
        RunFolderError: the run began on other data.
    """
    check_debugging()
    if config.profile:  # a cached program may have the scopes of another version
        jax.config.update("jax_compilation_cache_include_metadata_in_key", True)
    own = OwnCallbacks(callbacks, team)
    viewers = WriterSettings(**config.tracking)
    with configs.naming("tracking"):
        check_writers(viewers)
    path = Path(workdir)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(_open(path, config)) if team.writes else None
        if team.values_from_first(folder is not None and folder.begun):
            config = _without_what_is_gone(config)

        program = shared.program(config)
        built = program.built  # dataset, federation and method
        team.check_same(
            "data",
            built.federation,
            "Give every machine the same files, the same hardware and the same versions.",
        )
        advice.check(built)
        own_metrics = OwnMetrics(built, team)
        privacy = privacy_of_run(built)

        if folder is not None:
            folder.check(config, _known_by(program))
        round, state, seconds, rows = _restore(program, folder, team)
        team.connect(built.execution.mesh)
        state, inputs = share_out((state, program.inputs), built.execution.mesh)
        feed = None
        if built.experiment.host is not None:
            feed = stack.enter_context(Feed(built, program.inputs.key))

        end = config.rounds if privacy is None else privacy.limit
        delta = 0.0 if privacy is None else privacy.account.whole_delta
        silent = quiet or folder is None
        stream = stack.enter_context(open(os.devnull, "w", encoding="utf-8")) if silent else None
        progress = stack.enter_context(Progress(end, start_round=round, stream=stream, delta=delta))
        history = History(config, rows)
        natural = config.partition.name == "natural"
        run = Run(
            path=path,
            folder=folder,
            program=program,
            team=team,
            names=data.client_names(built.experiment.dataset, built.federation, natural),
            round=round,
            state=state,
            inputs=inputs,
            feed=feed,
            seconds=seconds,
            progress=progress,
            own=own,
            privacy=privacy,
            pictures=pictures,
            over=round >= end or out_of_patience(config, rows),
        )
        tell_start(run)
        run.summary = summary_of_before(run)
        run.trains = run.summary is None and not run.over
        if folder is not None:
            run.describe(folder.temperature())
        if run.summary is None:
            shown = viewers if folder is not None else WriterSettings()
            with configs.naming("tracking"):
                writers = open_writers(shown, path, config=config.to_dict(), resume_round=round)
            run.writers = stack.enter_context(writers)
            accounts = [] if privacy is None else [privacy]
            run.adding = [Divergence(history), *accounts, own_metrics, own]
            run.callbacks = _callbacks(run, history)
        yield run


def _open(path: Path, config: ml_collections.ConfigDict) -> RunFolder:
    # Sums that are not exact depend on the number of devices.
    exact = ("federated.devices",) if config.federated.reduce != "fast" else ()
    return RunFolder(
        path,
        config.to_dict(),
        ignore=(*configs.fields_that(lambda one: one.goes_on == "always"), *exact),
        lengths=configs.fields_that(lambda one: one.goes_on == "longer"),
        places=configs.fields_that(lambda one: one.goes_on == "moved"),
    )


def _without_what_is_gone(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Leave out the place of the first weights if it is gone, because a checkpoint has all
    weights.
    """
    places = {"model.weights": config.model.get("weights"), "start_from": config.start_from}
    if config.privacy.name != "none":
        del places["start_from"]  # these runs spent some epsilon
    gone = {
        name: None
        for name, place in places.items()
        if place and not Path(place).expanduser().exists()
    }
    changed = ml_collections.ConfigDict(config.to_dict())
    with changed.ignore_type():
        changed.update_from_flattened_dict(gone)
    return changed.lock() if gone else config


def _known_by(program: Program) -> dict[str, Any]:
    """Return the facts about data and code that must be the same when a run goes on."""
    experiment = program.built.experiment
    return {
        "data": experiment.known_by,
        "split": program.split,
        "draws": own_sources.draws(),
        "code": own_sources.code(experiment.config),
    }


def _restore(
    program: Program, folder: RunFolder | None, team: Team
) -> tuple[int, ServerState, dict[str, float], list[dict[str, Any]]]:
    """Load the last checkpoint, or initialize.

    Returns:
        (rounds done, state after these on one device, "compile_seconds" and "train_seconds" of
        earlier starts, rows), the same in all processes.
    """
    found = None
    rows: list[dict[str, Any]] = []
    if folder is not None:
        found = folder.restore(program.template())
        rows = folder.rows()
    nothing = {"compile_seconds": 0.0, "train_seconds": 0.0}
    round, state, seconds = team.from_first(found or (0, program.init(), nothing))
    return round, state, seconds, team.values_from_first(rows)


def _callbacks(run: Run, history: History) -> list[Callback]:
    """List the callbacks after a block, in this order, once its row has all columns."""
    config = run.config
    say = run.progress.note
    folder = run.folder
    found: list[Callback] = []
    if folder is not None:
        number = configs.saved_round(config)
        found += [ClientModels(folder, number, say)] if number else []
        found += [Rows(folder), Viewers(run.writers)]
    found.append(history)
    if folder is not None:
        found.append(Best(folder, history))
    return [
        *found,
        Report(run.progress, config, history),
        EarlyStopping(config, history),
        lambda block: run.team.feed(),
        Checkpoint(folder, run.team, config, run.seconds),
    ]
