"""How a run opens in its folder: checked, gone on with where the last start left it, and told.

start_run -> folder, program (build.py, compile.py), checks (advice.py)
-> _start: the last checkpoint, or the state before the first round
-> Run (active_run.py), the report to a person, callbacks (callbacks.py)
"""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_collections

from fedjax_ssl import config as configs
from fedjax_ssl import data
from fedjax_ssl.federated import ServerState
from fedjax_ssl.folder.citations import CITATIONS_FILE, TOOL, entries, used_in
from fedjax_ssl.folder.progress import Progress
from fedjax_ssl.folder.run_folder import RunFolder
from fedjax_ssl.folder.writers import WriterSettings, check_writers, open_writers
from fedjax_ssl.runs import advice, fine_tuning, own_sources, plots
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
    Profile,
    Report,
    Rows,
    Viewers,
)
from fedjax_ssl.runs.compile import Inputs, Program
from fedjax_ssl.runs.notes import start_notes
from fedjax_ssl.runs.own_callbacks import OwnCallbacks
from fedjax_ssl.runs.own_metrics import OwnMetrics
from fedjax_ssl.runs.processes import Team, share_out
from fedjax_ssl.runs.residence import Feed
from fedjax_ssl.runs.shared import Shared
from fedjax_ssl.runs.summary import out_of_patience, what_was_predicted

_LISTED = 10_000  # clients in partition.txt at most


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
    """Open a run folder, build the run, and give it, ready for its next block; a run that is
    complete already has its summary.

    Args:
        config: resolved.
        workdir: the folder; only the process that writes uses it.
        team: the processes that train it.
        shared: datasets and programs of this process.
        callbacks: the user's own.
        quiet: print nothing.
        pictures: draw the partition and the curves in the end.

    Raises:
        UserError: a callback cannot be called.
        ConfigError: a setting cannot be used.
        CheckpointError: the folder's checkpoints cannot be used.
        RunFolderError: the run began on other data.
    """
    begin = time.perf_counter()
    _check_debugging()
    own = OwnCallbacks(callbacks, team)
    viewers = WriterSettings(**config.tracking)
    with configs.naming("tracking"):
        check_writers(viewers)
    # Sums that are not exact depend on the number of devices.
    exact = ("federated.devices",) if config.federated.reduce != "fast" else ()
    path = Path(workdir)
    with contextlib.ExitStack() as stack:
        folder = None
        if team.writes:
            folder = RunFolder(
                path,
                config.to_dict(),
                ignore=(*configs.fields_that(lambda one: one.goes_on == "always"), *exact),
                lengths=configs.fields_that(lambda one: one.goes_on == "longer"),
                places=configs.fields_that(lambda one: one.goes_on == "moved"),
            )
            stack.enter_context(folder)
        stream = None
        if quiet or folder is None:
            stream = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        begun = team.values_from_first(folder is not None and folder.begun)
        program = shared.program(_without_what_is_gone(config) if begun else config)
        built = program.built
        team.check_same(
            "data",
            built.federation,
            "Give every machine the same files, the same hardware and the same versions.",
        )
        advice.check(built)
        fine_tuning.check(built)
        own_metrics = OwnMetrics(built, team)
        privacy = privacy_of_run(built)
        end = config.rounds if privacy is None else privacy.limit
        start = _start(program, shared, folder, team)
        program = start.program
        built = program.built
        history = History(config, start.rows)
        feed = None
        if built.experiment.host is not None:
            feed = stack.enter_context(Feed(built, program.inputs.key))
        delta = 0.0 if privacy is None else privacy.account.whole_delta
        progress = Progress(end, start_round=start.round, stream=stream, delta=delta)
        stack.enter_context(progress)
        natural = config.partition.name == "natural"
        run = Run(
            path=path,
            folder=folder,
            program=program,
            shared=shared,
            team=team,
            names=data.client_names(built.experiment.dataset, built.federation, natural),
            template=start.template,
            round=start.round,
            state=start.state,
            inputs=start.inputs,
            feed=feed,
            seconds=start.seconds,
            before=dict(start.seconds),
            begin=begin,
            progress=progress,
            profile=Profile(path / "profile", config) if config.profile and folder else None,
            own=own,
            privacy=privacy,
            pictures=pictures,
            over=start.round >= end or out_of_patience(config, history.rows),
        )
        _tell(run)
        run.summary = _summary(run)
        if run.summary is None:
            with configs.naming("tracking"):
                run.writers = open_writers(
                    viewers if folder is not None else WriterSettings(),
                    path,
                    config=config.to_dict(),
                    resume_round=run.round,
                )
            stack.enter_context(run.writers)
            accounts = [] if privacy is None else [privacy]
            run.adding = [Divergence(history), *accounts, own_metrics, own]
            run.callbacks = _callbacks(run, history)
        yield run


def _check_debugging() -> None:
    """Refuse JAX's search for NaN and infinity, which stand for what is not defined, such as the
    accuracy of a client without test examples.
    """
    for name in ("jax_debug_nans", "jax_debug_infs"):
        if getattr(jax.config, name):
            raise configs.ConfigError(
                f"{name.upper()} is set, and finds the NaN and infinities that stand for what is "
                "not defined, such as the accuracy of a client without test examples; leave it "
                "out: a run says itself from which round on no update is finite"
            )


def _without_what_is_gone(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Leave out where the first weights came from, if it is gone: a checkpoint has all of them."""
    places = {"model.weights": config.model.get("weights"), "start_from": config.start_from}
    if config.privacy.name != "none":
        del places["start_from"]  # which has spent some of epsilon
    gone = {
        name: None
        for name, place in places.items()
        if place and not Path(place).expanduser().exists()
    }
    changed = ml_collections.ConfigDict(config.to_dict())
    with changed.ignore_type():
        changed.update_from_flattened_dict(gone)
    return changed.lock() if gone else config


class _Start(NamedTuple):
    """Start of a run: its state and round, the same in all processes."""

    program: Program  # with what is not trained as the run began with it
    template: ServerState  # shapes and types
    round: int  # rounds done
    state: ServerState  # after these, on all devices that share the run, as are the inputs
    inputs: Inputs
    seconds: dict[str, float]  # "compile_seconds" and "train_seconds" of earlier starts
    rows: list[dict[str, Any]]


def _start(program: Program, shared: Shared, folder: RunFolder | None, team: Team) -> _Start:
    """Load the last checkpoint, or initialize; no copy stays of what is put on several devices."""
    experiment = program.built.experiment
    if folder is not None:
        config = experiment.config
        now = {
            "data": experiment.known_by,
            "split": program.split,
            "draws": own_sources.draws(),
            "code": own_sources.code(config),
        }
        folder.check(config, now)
    template = program.template()
    found = None
    rows: list[dict[str, Any]] = []
    if folder is not None:
        found = folder.restore(template)
        rows = folder.rows()
    nothing = {"compile_seconds": 0.0, "train_seconds": 0.0}
    round, state, seconds = team.from_first(found or (0, program.init(), nothing))
    mesh = program.built.execution.mesh
    team.connect(mesh)
    state, inputs = share_out((state, program.inputs), mesh)
    rows = team.values_from_first(rows)
    return _Start(program, template, round, state, inputs, seconds, rows)


def _tell(run: Run) -> None:
    """Print and store the facts of a run before it starts."""
    say = run.progress.note
    told = advice.describe_start(run.built, run.program.split, run.template, run.round, run.path)
    run.progress.start(told)
    for line in start_notes(run):
        say(line)
    if run.folder is None:
        return
    run.describe(run.folder.temperature())
    if run.round == 0:
        federation = run.built.federation
        table = data.report(
            federation,
            run.built.experiment.dataset.class_names,
            run.names[: federation.num_clients],
            max_rows=_LISTED,
        )
        run.folder.write("partition.txt", table + "\n")
        cited = entries((TOOL, *used_in(run.config.to_dict())))
        run.folder.write(CITATIONS_FILE, "\n\n".join(cited) + "\n")


def _summary(run: Run) -> dict[str, Any] | None:
    """Give the summary of a run that is complete already, and say so; None where it is not."""
    found = None if run.folder is None else run.folder.summary()
    summary: dict[str, Any] | None = run.team.values_from_first(found)
    if summary is None or summary.get("prediction", {}) != what_was_predicted(run.config):
        return None
    # a callback may have stopped it
    if not (run.over or summary.get("stopped_early")):
        return None
    run.progress.note("this run is complete already")
    if run.config.profile:
        run.progress.note("nothing to profile: the run is finished")
    run.progress.finish(summary, _files_that_are_there(run))
    return summary


def _files_that_are_there(run: Run) -> dict[str, Path]:
    """Files of a complete run; says which are gone, and draws pictures that are not there."""
    if run.folder is None:
        return {}
    if run.pictures:
        plots.draw(run, missing=True)
    gone = [path.name for path in run.files.values() if not path.exists()]
    if gone:
        run.progress.note(f"gone from {run.path}: {', '.join(gone)}")
    files = run.files | {"curves": run.path / "curves.png"}
    return {what: path for what, path in files.items() if path.exists()}


def _callbacks(run: Run, history: History) -> list[Callback]:
    """List what is called after a block, once its row has all columns, in this order."""
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
        Checkpoint(folder, run.team, config, run.seconds, say),
    ]
