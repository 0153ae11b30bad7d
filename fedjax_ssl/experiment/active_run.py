"""A run on its way in its folder: prepared, advanced block by block, and ended with predictions and a summary."""

import contextlib
import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from typing import Any

import jax

from fedjax_ssl import config as configs
from fedjax_ssl import data, distributed, models, tracking
from fedjax_ssl.distributed import Team
from fedjax_ssl.experiment import divergence, longer, model_file, prediction
from fedjax_ssl.experiment.build import Experiment, build_method, execution_of, prediction_settings
from fedjax_ssl.experiment.feed import Feed
from fedjax_ssl.experiment.fit import check_labels, check_weighting, note_missing_labels
from fedjax_ssl.experiment.outcome import describe_placement, summarize, what_was_predicted, why_nobody_trained
from fedjax_ssl.experiment.prediction_csv import clients_csv, predictions_csv
from fedjax_ssl.experiment.programs import code_of, described, inputs_of
from fedjax_ssl.experiment.selection import out_of_patience, selected
from fedjax_ssl.experiment.shared import Shared
from fedjax_ssl.federated import BY_CLIENT
from fedjax_ssl.tracking.files import Closing
from fedjax_ssl.words import counted

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
        record: tracking.Record | tracking.NoRecord,
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
        prediction.check(self._asked, self.federation)
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
        self.state, self.inputs = distributed.share_out((self.state, self.inputs), self.code.mesh)
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
            device=tracking.device_description(),
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
            raise distributed.Preempted
        self._draw_data()  # not before the first numbers, which it would delay

    def finish(self) -> None:
        """Makes the predictions that are asked for, and writes the summary."""
        self._draw_data()
        last = self.state
        if self.config.early_stopping.patience is not None:  # what follows is about the model that was chosen
            here = jax.tree.map(lambda leaf: leaf.addressable_data(0), self.state)
            _, best, _ = self._team.from_first(self.record.restore_best(self._template) or (0, here, {}))
            self.state = distributed.share_out(best, self.code.mesh)
        config, dataset = self.config, self._experiment.dataset
        diverged = divergence.ended(last, self.record.rows(), config)
        natural, outcomes = config.partition.name == "natural", []
        for outcome in prediction.predict(
            self._asked, self.method, self.state, *self.inputs[1:], self.code.mesh, self._progress.note
        ):
            outcomes.append(outcome)
            self.record.write_predictions(
                predictions_csv(dataset, self.federation, outcomes, natural),
                clients_csv(dataset, self.federation, outcomes, natural),
            )
            self._team.feed()
        rows = self.record.rows()
        summary = summarize(config, rows, self._seconds, prediction.summary_of(outcomes)) | diverged
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
