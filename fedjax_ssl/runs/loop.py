"""Runs with their folders: one, or several that one program trains together."""

import contextlib
import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_collections

from fedjax_ssl import config as configs
from fedjax_ssl import data, models
from fedjax_ssl.errors import counted
from fedjax_ssl.federated import BY_CLIENT
from fedjax_ssl.runs import divergence, longer, model_file, predict
from fedjax_ssl.runs.build import (
    Experiment,
    build_method,
    check_labels,
    check_weighting,
    execution_of,
    note_missing_labels,
    prediction_settings,
)
from fedjax_ssl.runs.compile import Around, code_of, described, inputs_of
from fedjax_ssl.runs.environment import device_description
from fedjax_ssl.runs.files import Closing
from fedjax_ssl.runs.folder import WATCHING
from fedjax_ssl.runs.predict import clients_csv, predictions_csv
from fedjax_ssl.runs.processes import Preempted, Team, share_out
from fedjax_ssl.runs.record import NoRecord, Record
from fedjax_ssl.runs.residence import Feed
from fedjax_ssl.runs.shared import Shared
from fedjax_ssl.runs.summary import (
    describe_placement,
    out_of_patience,
    selected,
    summarize,
    what_was_predicted,
    why_nobody_trained,
)
from fedjax_ssl.runs.writers import WriterSettings, check_writers

# Fields that change how a run is watched, where it finds its data or what is done with the trained network, but not
# the network.
UNCOMPARED = (*WATCHING, "prediction")


Watch = Callable[[Mapping[str, Any]], bool]  # metric row -> whether the run is to stop here


# Columns by which a run decides how it goes on; the others are on the disk.
_DECISIVE = ("round", "validation_accuracy", "loss", "local_steps", divergence.DIVERGED_ROUNDS)


class ActiveRun(Closing):
    """One run. Use it as a context manager, or call `close` at the end.

    Attributes:
        round: rounds done.
        state: after these.
        shared: with the other runs of the process.
        code: what it compiles.
        inputs: of its programs, with the examples that are always on the device.
        feed: gives every block its own.
        summary: what `summary.json` holds, once the run is complete.
        stopped: somebody who watched has stopped it; its last checkpoint is saved.
    """

    def __init__(
        self,
        record: Record | NoRecord,
        experiment: Experiment,
        shared: Shared,
        team: Team,
        watch: Watch | None = None,
    ):
        """Checks that method and data fit, and loads the last checkpoint or initializes.

        Args:
            record: of its folder.
            experiment: from `shared`.
            shared: with the other runs of the process.
            team: the processes that train it.
            watch: is told every metric row.

        Raises:
            ConfigError: a setting cannot be used.
            CheckpointError: the folder's checkpoints cannot be used.
        """
        self.record, self.shared, self._experiment = record, shared, experiment
        self._team, self._watch = team, watch
        config = experiment.config
        self.config, self.federation = config, shared.federation(experiment)
        team.check_same(
            "data", self.federation, "Give every machine the same files, the same hardware and the same versions."
        )
        self._asked = prediction_settings(config)
        predict.check(self._asked, self.federation)
        with configs.naming("data, config.partition or config.supervision"):
            data.validate(self.federation, truth_required=not self._asked.predictors)
        execution = execution_of(experiment, self.federation, alone=True)
        # With the numbers as they are: here they are checked. Programs take them as arguments.
        self.method = build_method(experiment, self.federation, execution=execution)
        self._check_fit()
        self.code = code_of(experiment, execution, self.method)
        self.inputs = inputs_of(config, jax.random.key(config.seed), self.federation)
        self._template = shared.programs.template(self.code, self.inputs)
        self._settle_changes()
        record.describe_model(model_file.describe(experiment, self.federation))
        nothing: dict[str, float] = {"compile_seconds": 0.0, "train_seconds": 0.0}
        found = record.restore(self._template) or (0, shared.programs.init(self.code, self.inputs), nothing)
        self._first_round, self.state, self._seconds = team.from_first(found)
        self.round, self.summary, self.stopped = self._first_round, None, False
        self._rows: list[Mapping[str, Any]] = [_decisive(row) for row in team.values_from_first(record.rows())]
        self._names = data.client_names(experiment.dataset, self.federation, config.partition.name == "natural")
        self._of_clients: dict[str, float] = {}
        self._profiled = False
        team.connect(self.code.mesh)
        self.state, self.inputs = share_out((self.state, self.inputs), self.code.mesh)
        self.feed = Feed(experiment, self.federation, self.method, self.code, self.inputs)
        self._files = record.files(trained=bool(config.rounds), predicted=bool(self._asked.predictors))
        self._open = contextlib.ExitStack()
        self._open.enter_context(self.feed)
        self._progress = self._open.enter_context(record.progress(config.rounds, self.round))
        self._said: set[str] = set()

    def _check_fit(self) -> None:
        config, learner = self.config, self.method
        if not config.rounds:  # without training it is labels that are predicted from
            learner = learner._replace(needs=("labels",), needs_all=False, trains_unlabelled=False, check=None)
        check_labels(config.supervision.name, config.method.name, learner, self.federation)
        note_missing_labels(config.supervision.name, config.supervision.labels, self.federation)
        check_weighting(config.federated.weighting, learner, self.federation)

    def _settle_changes(self) -> None:
        """Lets a run that was complete get longer, or says why it cannot."""
        if not self.record.changes:
            return
        checkpoints = self.record.checkpoints()
        reason = longer.why_not(self._experiment, self.federation, self.inputs.key, self.record.changes, checkpoints)
        if reason:
            self.record.refuse(reason)
        self.record.accept(longer.restorable(checkpoints, self.config.eval_every))

    def start(self) -> None:
        """Says and writes what is about to run; a run that is complete already gets its summary."""
        config, progress = self.config, self._progress
        alone = " (no federation: scores are means over the clients' models)" * self.method.alone
        progress.start(
            method=config.method.name + alone,
            model=config.model.name,
            num_parameters=models.count_parameters(self._template.params),
            dataset=config.data.name,
            counts={name: count for name, count in self.federation.summary().items() if count},
            device=device_description(),
            workdir=self.record.path,
        )
        progress.note(self._experiment.standardization)
        if where := self.feed.describe():
            progress.note(where)
        if self.round == 0:
            count, classes = self.federation.num_clients, self._experiment.dataset.class_names
            table = data.report(self.federation, classes, self._names[:count], max_rows=count)
            self.record.describe_data(table + "\n")
        if not self.block:
            summary = self._team.values_from_first(self.record.summary())
            if summary is not None and summary.get("prediction", {}) == what_was_predicted(config):
                progress.note("this run is complete already")
                progress.finish(summary, self._files)
                self.summary = summary
                return
        with configs.naming("tracking"):
            self.record.open_writers()

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return self.stopped or self.summary is not None

    @property
    def kind(self) -> tuple[Hashable, ...]:
        """The same for runs that one program can advance together."""
        apart = self.code.on_host or self.code.mesh is not None or self._experiment.host is not None
        alone = id(self) if apart else 0
        return alone, self.code.name, self.round, self.block, *described((self.state, self.inputs))

    @property
    def block(self) -> int:
        """Rounds until the next evaluation; 0 when all are done, or waiting for a better model is over."""
        if out_of_patience(self.config, self._rows):
            return 0
        every, left = self.config.eval_every, self.config.rounds - self.round
        return min(every - self.round % every, left)

    def compiling(self) -> None:
        """Says that its program is compiled now."""
        self._progress.compiling()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Says so, and traces the first block where `config.profile` asks for it."""
        self._progress.training()
        if not self.config.profile or self._profiled or not self._team.writes:
            yield
            return
        self._profiled, folder = True, self.record.path / "profile"
        with jax.profiler.trace(str(folder)):
            yield
        self._progress.note(f"profile of {counted(self.block, 'round')} and an evaluation: {folder}")

    def take(self, row: dict[str, Any], state: Any, compiling: float, training: float) -> None:
        """Keeps what a block gave.

        Args:
            row: its metrics.
            state: after it.
            compiling: seconds.
            training: seconds.

        Raises:
            Preempted: a process of several was asked to end; the checkpoint is saved.
        """
        config, start, rounds = self.config, row["round"], self.block
        self._seconds["compile_seconds"] += compiling
        self._seconds["train_seconds"] += training
        for choice in self.shared.programs.choices(self.code):
            self._say_once(describe_placement(choice, jax.default_backend()))
        if self.feed.held and self._team.count > 1:
            self._say_once(self.feed.held, by_all=True)
        by_client = row.pop(BY_CLIENT, None)
        if by_client is not None:
            named = zip(self._names, by_client.tolist(), strict=True)
            self._of_clients = {name: value for name, value in named if not math.isnan(value)}
        lost = divergence.carry(row, self._rows, rounds)
        said = divergence.note(row, self._rows, rounds, config)
        self.round, self.state = start, state
        self.record.append(row, self._of_clients)
        self._rows.append(_decisive(row))
        best = selected(config, self._rows)
        if best is self._rows[-1]:
            self.record.save_best(start, state)
        self._progress.update(start, row)
        if said:
            self._progress.note(said)
        if not row["local_steps"] and not lost:
            self._progress.note(f"nobody trained in the last {counted(rounds, 'round')}: {why_nobody_trained(row)}")
        self._team.feed()
        due = config.checkpoint_every * config.eval_every
        last = self.block == 0
        preempted = not last and self._team.preempted(-(-start // config.eval_every))
        self.stopped = not last and self._watch is not None and self._watch(row)
        if preempted or self.stopped or last or (due and start % due == 0):
            self.record.save(start, state, self._seconds)
        if preempted:
            raise Preempted
        self._draw_data()  # not before the first numbers, which it would delay

    def finish(self) -> None:
        """Makes the predictions that are asked for, and writes the summary."""
        self._draw_data()
        last = self.state
        if self.config.early_stopping.patience is not None:  # what follows is about the model that was chosen
            here = jax.tree.map(lambda leaf: leaf.addressable_data(0), self.state)
            _, best, _ = self._team.from_first(self.record.restore_best(self._template) or (0, here, {}))
            self.state = share_out(best, self.code.mesh)
        config, dataset = self.config, self._experiment.dataset
        diverged = divergence.ended(last, self.record.rows(), config)
        natural, outcomes = config.partition.name == "natural", []
        for outcome in predict.predict(
            self._asked, self.method, self.state, *self.inputs[1:], self.code.mesh, self._progress.note
        ):
            outcomes.append(outcome)
            self.record.write_predictions(
                predictions_csv(dataset, self.federation, outcomes, natural),
                clients_csv(dataset, self.federation, outcomes, natural),
            )
            self._team.feed()
        rows = self.record.rows()
        summary = summarize(config, rows, self._seconds, predict.summary_of(outcomes)) | diverged
        self.record.finish(rows, summary, title=f"{config.method.name} on {config.data.name}")
        # The others get the summary when the files are there: nobody is at the end before the record is whole.
        summary = self._team.values_from_first(summary)
        self.summary = summary
        self._progress.finish(summary, self._files)
        if self._of_clients:
            self._progress.clients(self._of_clients, self.record.path / "client_accuracy.csv")

    def _draw_data(self) -> None:
        self.record.draw_data(partial(self.shared.draw, self._experiment))

    def _say_once(self, line: str, by_all: bool = False) -> None:
        if line not in self._said:
            self._said.add(line)
            self._progress.note(line)
            if by_all:
                self._team.say(line)

    def close(self) -> None:
        """Takes the report off the terminal; a second call does nothing."""
        self._open.close()


def _decisive(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in _DECISIVE if name in row}


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
        workdir: the run folder; see `fedjax_ssl.runs.folder.RunFolder`. Of several processes, only process 0 uses it.
        team: from `fedjax_ssl.runs.processes`, where several processes train one federation: all of them call this.
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
    writers = WriterSettings(**resolved.tracking)
    with configs.naming("tracking"):
        check_writers(writers)
    with (
        Record(workdir, resolved.to_dict(), ignore=ignored, undecided=longer.FIELDS, writers=writers, quiet=quiet)
        if team.writes
        else NoRecord(workdir) as record,
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
