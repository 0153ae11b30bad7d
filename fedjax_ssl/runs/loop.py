"""Runs in their folders: prepared, advanced block by block, and ended with predictions and a
summary.

run -> Run(record, prepared) -> advance: [compile, rounds, evaluation, row, checkpoint] ... ->
predictions, summary
"""

import contextlib
import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np

from fedjax_ssl import config as configs
from fedjax_ssl import data, models
from fedjax_ssl.errors import counted
from fedjax_ssl.federated import BY_CLIENT, CLIENT_MODELS, tree_bytes
from fedjax_ssl.folder.checkpoint import Checkpoints
from fedjax_ssl.folder.environment import device_description
from fedjax_ssl.folder.files import Closing, bytes_in_words, encode_json
from fedjax_ssl.folder.progress import Progress
from fedjax_ssl.folder.record import NoRecord, Record
from fedjax_ssl.folder.resume import LENGTHS, UNCOMPARED
from fedjax_ssl.folder.writers import WriterSettings, check_writers
from fedjax_ssl.prediction import one_shot
from fedjax_ssl.runs import divergence, model_file, profile
from fedjax_ssl.runs.advice import (
    check_cohorts,
    check_labels,
    check_weighting,
    idle_clients,
    note_loss,
    note_missing_labels,
    weights_in_words,
)
from fedjax_ssl.runs.compile import Inputs, Prepared, Shared, described, with_examples
from fedjax_ssl.runs.own_metrics import OwnMetrics
from fedjax_ssl.runs.processes import Preempted, Team, share_out
from fedjax_ssl.runs.residence import Feed
from fedjax_ssl.runs.scores import score_run
from fedjax_ssl.runs.summary import (
    describe_placement,
    out_of_patience,
    selected,
    summarize,
    what_was_predicted,
    why_nobody_trained,
)

Watch = Callable[[Mapping[str, Any]], bool]  # metric row -> whether the run is to stop here
_LISTED = 10_000  # clients in partition.txt at most
_LONG = 5.0  # seconds of a checkpoint that are worth a line
# Columns by which a run decides how it goes on; the others are on the disk.
_DECISIVE = ("round", "validation_accuracy", "loss", "local_steps", divergence.DIVERGED_ROUNDS)


class Run(Closing):
    """A run on its way in its folder. Use it as a context manager, or call `close` at the end.

    Attributes:
        round: rounds done.
        state: state after these.
        prepared: method and data.
        inputs: arguments of its programs, on all devices that share it; examples may come block by
            block.
        shared: datasets and programs that it shares with the other runs of the process.
        summary: content of `summary.json`, once the run is complete.
        stopped: whether the `watch` function has stopped it; its last checkpoint is saved.
        begin: when it began, data loaded or not, on the clock of `time.perf_counter`.
    """

    def __init__(
        self,
        record: Record | NoRecord,
        prepared: Prepared,
        shared: Shared,
        team: Team,
        watch: Watch | None = None,
    ):
        """Check that method and data fit, and load the last checkpoint or initialize.

        Args:
            record: record in the run's folder.
            prepared: run from `shared`.
            shared: datasets and programs that it shares with the other runs of the process.
            team: the processes that train it.
            watch: told every metric row.

        Raises:
            ConfigError: a setting cannot be used.
            CheckpointError: the folder's checkpoints cannot be used.
            RunFolderError: the run began on other data.
        """
        self.record = record
        self.prepared = prepared
        self.shared = shared
        self._team = team
        self._watch = watch
        self._experiment = prepared.experiment
        self.config = prepared.experiment.config
        self._mesh = prepared.execution.mesh
        self.federation = prepared.inputs.federation
        team.check_same(
            "data",
            self.federation,
            "Give every machine the same files, the same hardware and the same versions.",
        )
        self._check_fit()
        record.compare_data(self._experiment.known_by)
        record.settle(self.config)
        self._template = shared.template(prepared)
        self._describe(record.temperature())
        nothing = {"compile_seconds": 0.0, "train_seconds": 0.0}
        found = record.restore(self._template) or (0, shared.init(prepared), nothing)
        self.round, self.state, self._seconds = team.from_first(found)
        self.summary: dict[str, Any] | None = None
        self.stopped = False
        self._decisive = (*_DECISIVE, self.config.early_stopping.metric)
        self._rows: list[Mapping[str, Any]] = [
            self._kept(row) for row in team.values_from_first(record.rows() or [])
        ]
        natural = self.config.partition.name == "natural"
        self._names = data.client_names(self._experiment.dataset, self.federation, natural)
        self._of_clients: dict[str, float] = {}
        self._said = set[str]()
        # compiling and training, without a run before this one
        self._spent: tuple[float, float] = (0.0, 0.0)
        self._trained = self._seconds["train_seconds"]  # up to the last checkpoint
        self.begin = time.perf_counter()
        self._waited = 0.0
        self._tracing = 0.0
        self._profile: tuple[dict[str, float], str] | None = None
        if self.config.profile:  # a program of the cache may name the scopes of another version
            jax.config.update("jax_compilation_cache_include_metadata_in_key", True)
        team.connect(self._mesh)
        self.state, self.inputs = share_out((self.state, prepared.inputs), self._mesh)
        names = {"summary": "summary.json"}
        if self.config.rounds:
            names |= {"metrics": "metrics.csv", "curves": "curves.png"}
        if configs.predictors(self.config):
            names |= {"predictions": "predictions.csv", "by client": "predictions_by_client.csv"}
        self._files = {what: record.path / name for what, name in names.items()}
        self._open = contextlib.ExitStack()
        self._feed: Feed | None = None
        if self._experiment.host is not None:
            feed = Feed(
                self._experiment, self.federation, prepared.method, self._mesh, prepared.inputs.key
            )
            self._feed = self._open.enter_context(feed)
        self._progress = self._open.enter_context(
            Progress(self.config.rounds, start_round=self.round, stream=record.stream)
        )

    def _check_fit(self) -> None:
        config = self.config
        learner = self.prepared.method
        if not config.rounds:  # without training, predictors need labels
            learner = learner._replace(
                needs=("labels",), needs_all=False, trains_unlabelled=False, check=None
            )
        check_labels(config.supervision.name, config.method.name, learner, self.federation)
        note_missing_labels(config.supervision.name, config.supervision.labels, self.federation)
        check_weighting(config.federated.weighting, learner, self.federation)
        check_cohorts(config, self.federation)
        if config.rounds:
            note_loss(self._experiment, self.federation)
        by_client = (
            config.data.standardize == "client"
            or learner.predict_for is not None
            or learner.apply is None
        )
        if configs.saved_round(config) and by_client:
            raise configs.ConfigError(
                f"config.save_clients is {config.save_clients!r}, but clients have models or "
                "inputs of their own, or a network that does not score classes alone; leave it "
                "out"
            )
        self._own_metrics = OwnMetrics(config, self.federation, self.prepared.method.alone)

    def _describe(self, temperature: dict[str, Any] | None) -> None:
        model = model_file.describe(self._experiment, self.federation) | {
            "temperature": temperature
        }
        self.record.write(self.record.path / "model.json", encode_json(model, indent=1) + "\n")

    def start(self) -> None:
        """Say and write what is about to run; a run that is complete already gets its summary."""
        config = self.config
        progress = self._progress
        method = self.prepared.method
        alone = " (no federation: scores are means over the clients' models)" * method.alone
        counts = {
            name.replace("_", " "): count
            for name, count in self.federation.summary().items()
            if count
        }
        progress.start(
            {
                "device": device_description(1 if self._mesh is None else self._mesh.size),
                "data": f"{config.data.name} ({', '.join(f'{count:,} {name}' for name, count in counts.items())})",
                "method": config.method.name + alone,
                "model": f"{config.model.name} ({models.count_parameters(self._template.params):,} parameters)",
                "rounds": f"{config.rounds}"
                + f", resumed after round {self.round}" * bool(self.round),
                "weights": weights_in_words(config.federated.weighting, method)
                if config.rounds
                else "no training",
                "folder": str(self.record.path),
            }
        )
        progress.note(self._experiment.standardization)
        self._note_saved_clients(configs.saved_round(config))
        if config.rounds:
            for note in idle_clients(
                method, self.federation, self._names, config.optimizer.batch_size
            ):
                progress.note(note)
        if self._feed is not None:
            progress.note(self._feed.describe())
        if self.round == 0:
            count = self.federation.num_clients
            classes = self._experiment.dataset.class_names
            table = data.report(self.federation, classes, self._names[:count], max_rows=_LISTED)
            self.record.write(self.record.path / "partition.txt", table + "\n")
        if not self.block:
            summary = self._team.values_from_first(self.record.summary())
            if summary is not None and summary.get("prediction", {}) == what_was_predicted(config):
                progress.note("this run is complete already")
                if config.profile:
                    progress.note("nothing to profile: the run is finished")
                progress.finish(summary, self._files)
                self.summary = summary
                return
        with configs.naming("tracking"):
            self.record.open_writers()

    @property
    def done(self) -> bool:
        """Tell whether nothing is left to do."""
        return self.stopped or self.summary is not None

    @property
    def kind(self) -> tuple[Hashable, ...]:
        """Key that is the same for runs that one program can advance together."""
        apart = (
            self.prepared.method.on_host
            or self._mesh is not None
            or self._feed is not None
            or self.saving
        )
        alone = id(self) if apart else 0
        return (
            alone,
            self.prepared.code,
            self.round,
            self.block,
            *described((self.state, self.inputs)),
        )

    @property
    def block(self) -> int:
        """Rounds until the next evaluation; 0 when all are done, or waiting for a better model
        is over.
        """
        if out_of_patience(self.config, self._rows):
            return 0
        every = self.config.eval_every
        left = self.config.rounds - self.round
        return min(every - self.round % every, left)

    @property
    def saving(self) -> int | None:
        """Round of the next block whose clients' models are kept, if there is one."""
        number = configs.saved_round(self.config)
        return number if number and self.round < number <= self.round + self.block else None

    def block_inputs(self) -> Inputs:
        """Give the arguments of the next block of rounds, with the examples that it needs from
        the host.
        """
        if self._feed is None:
            return self.inputs
        begin = time.perf_counter()
        inputs = with_examples(self.inputs, self._feed.block(self.round, self.block))
        self._waited += time.perf_counter() - begin
        return inputs

    def compiling(self) -> None:
        """Say that its program is compiled now."""
        self._progress.compiling()

    @contextlib.contextmanager
    def running(self, program: Any) -> Iterator[None]:
        """Say so, and trace a block where `config.profile` asks for it: the last one, which may
        be the first.
        """
        self._progress.training()
        config = self.config
        end = self.round + self.block
        due = end == config.rounds or config.early_stopping.patience is not None
        if not (config.profile and due) or self._profile is not None or not self._team.writes:
            yield
            return
        folder = self.record.path / "profile"
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        begin = time.perf_counter()
        with jax.profiler.trace(str(folder), profiler_options=options):
            yield
            ran = time.perf_counter() - begin
            begin = time.perf_counter()
        text = program.as_text() if hasattr(program, "as_text") else ""
        words = (
            f"rounds {self.round + 1} to {end} and an evaluation, traced in {ran:,.1f} s: {folder}"
        )
        self._profile = (profile.device_shares(text, folder), words)
        self._tracing = time.perf_counter() - begin

    def take(self, row: dict[str, Any], state: Any, compiling: float, training: float) -> None:
        """Keep the results of a block.

        Args:
            row: metrics of the block.
            state: state after it.
            compiling: seconds of compiling.
            training: seconds of training.

        Raises:
            Preempted: a process of several was asked to end; the checkpoint is saved.
        """
        config = self.config
        start = row["round"]
        rounds = self.block
        self._seconds["compile_seconds"] += compiling
        self._seconds["train_seconds"] += training
        self._spent = self._spent[0] + compiling, self._spent[1] + training
        for choice in self.shared.choices(self.prepared):
            self._say_once(describe_placement(choice, jax.default_backend()))
        if self._feed is not None and self._feed.held and self._team.count > 1:
            self._say_once(self._feed.held, by_all=True)
        if self.saving:
            self._save_clients(self.saving, row.pop(CLIENT_MODELS))
        by_client = row.pop(BY_CLIENT, None)
        if by_client is not None:
            named = zip(self._names, by_client.tolist(), strict=True)
            self._of_clients = {name: value for name, value in named if not math.isnan(value)}
        row |= self._team.values_from_first(self._own_metrics.take(row))
        lost = divergence.carry(row, self._rows, rounds)
        said = divergence.note(row, self._rows, rounds, config)
        self.round = start
        self.state = state
        self.record.append(row, self._of_clients)
        self._rows.append(self._kept(row))
        best = selected(config, self._rows)
        if best is self._rows[-1]:
            self.record.keep_best(start, state)
        self._progress.update(start, row)
        if said:
            self._progress.note(said)
        if not row["local_steps"] and not lost:
            self._progress.note(
                f"nobody trained in the last {counted(rounds, 'round')}: {why_nobody_trained(row)}"
            )
        self._team.feed()
        due = config.checkpoint_every * config.eval_every
        last = self.block == 0
        preempted = not last and self._team.preempted(-(-start // config.eval_every))
        self.stopped = not last and self._watch is not None and self._watch(row)
        if preempted or self.stopped or last or (due and start % due == 0):
            begin = time.perf_counter()
            self.record.save(start, state, self._seconds)
            if due and start + due < config.rounds:
                self._note_slow_files(time.perf_counter() - begin)
        if preempted:
            raise Preempted
        self._draw_data()  # not before the first numbers, which it would delay

    def _note_slow_files(self, seconds: float) -> None:
        """Say that a checkpoint took longer than the rounds since the last one."""
        trained = self._seconds["train_seconds"] - self._trained
        self._trained = self._seconds["train_seconds"]
        if seconds > max(trained, _LONG):
            size = bytes_in_words(tree_bytes(self.state))
            much = f"checkpoints, of {size} or twice that, take longer than the rounds between them"
            self._say_once(f"{much}; a larger config.checkpoint_every writes fewer")

    def _kept(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {name: row[name] for name in self._decisive if name in row}

    def _save_clients(self, number: int, cohort: Any) -> None:
        trained = np.zeros(0, bool) if cohort is None else cohort.pop("trained")
        if not trained.any():
            self._progress.note(
                f"config.save_clients names round {number}, in which no client trained"
            )
            return
        self.record.save_clients(number, jax.tree.map(lambda values: values[trained], cohort))

    def _note_saved_clients(self, number: int | None) -> None:
        """Say what the models of clients will take, or why they cannot be had any more."""
        place = self.record.path / "clients"
        if number and number > self.round:
            count = self.config.federated.cohort_size or self.federation.num_clients
            size = bytes_in_words(
                count * tree_bytes((self._template.params, self._template.model_state))
            )
            models = f"models of up to {counted(count, 'client')} are kept of round {number}"
            self._progress.note(f"{models}: {size}, in memory and in {place}")
        elif number and Checkpoints(self.record.path, folder="clients").latest() != number:
            late = "which this folder is past without them: give another --workdir"
            self._progress.note(f"config.save_clients names round {number}, {late}")

    def finish(self) -> None:
        """Make the predictions that are asked for, and write the summary."""
        self._draw_data()
        last = self.state
        here = jax.tree.map(lambda leaf: leaf.addressable_data(0), self.state)
        round, chosen, _ = self.record.restore_best(self._template) or (self.round, here, {})
        # what follows is about the model that was chosen
        if self.config.early_stopping.patience is not None:
            self.state = share_out(self._team.from_first(chosen), self._mesh)
        config = self.config
        dataset = self._experiment.dataset
        rows = self.record.rows() or []
        diverged = divergence.ended(last, rows, config)
        natural = config.partition.name == "natural"
        outcomes = []
        _, key, federation = self.inputs
        method = self.prepared.method
        say = self._progress.note
        for outcome in one_shot.predict(
            config, method, self.state, key, federation, self._mesh, say
        ):
            outcomes.append(outcome)
            for name, table in (
                ("predictions.csv", one_shot.predictions_csv),
                ("predictions_by_client.csv", one_shot.clients_csv),
            ):
                self.record.write(
                    self.record.path / name, table(dataset, self.federation, outcomes, natural)
                )
            self._team.feed()
        summary = summarize(config, rows, self._seconds, one_shot.summary_of(outcomes)) | diverged
        # on one of its devices; the others wait for the summary
        if config.rounds and self._team.writes:
            scored = score_run(self.prepared, self.shared, round, chosen, self._names)
            for line in scored.notes:
                say(line)
            for name, content in scored.files.items():
                self._files[name.removesuffix(".csv").replace("_", " ")] = self.record.path / name
                self.record.write(self.record.path / name, content)
            self._describe(scored.temperature)
            evaluating = min(scored.seconds * len(rows), summary["train_seconds"])
            summary |= {**scored.fields, "evaluate_seconds": evaluating}
        if "selected_round" in summary:
            summary["validation_examples"] = federation.summary()["validation_examples"]
        if config.data.left_out_client is not None:
            summary["left_out_client"] = self._names[federation.num_clients]
        summary |= {
            "data": dict(self._experiment.known_by),
            **data.what_is_compared(dataset, self.federation),
        }
        self.record.finish(rows, summary, title=f"{config.method.name} on {config.data.name}")
        # The others get the summary when the files are there: nobody is at the end before the
        # record is whole.
        summary = self._team.values_from_first(summary)
        self.summary = summary
        self._progress.finish(summary, self._files)
        if self._of_clients:
            self._progress.clients(self._of_clients, self.record.path / "client_accuracy.csv")
        number = configs.saved_round(config)
        if number and number > self.round:
            self._progress.note(
                f"no clients' models are kept: the run stopped after round {self.round}, "
                f"save_clients={config.save_clients} names round {number}"
            )
        if self._profile is not None:
            shares, traced = self._profile
            whole = time.perf_counter() - self.begin - self._tracing
            seconds = profile.run_seconds(shares, *self._spent, self._waited, whole)
            for line in profile.table(seconds, config, traced):
                self._progress.note(line)

    def _draw_data(self) -> None:
        self.record.draw_data(partial(self.shared.draw, self._experiment))

    def _say_once(self, line: str, by_all: bool = False) -> None:
        if line not in self._said:
            self._said.add(line)
            self._progress.note(line)
            if by_all:
                self._team.say(line)

    def close(self) -> None:
        """Take the report off the terminal; a second call does nothing."""
        self._open.close()


class Point(NamedTuple):
    """A run to be done."""

    config: ml_collections.ConfigDict  # as a config file returns it
    workdir: str | Path
    watch: Watch | None = None  # is told every metric row, and may stop the run


def run(
    config: ml_collections.ConfigDict,
    workdir: str | Path,
    team: Team | None = None,
    shared: Shared | None = None,
    *,
    quiet: bool = False,
) -> dict[str, Any]:
    """Run an experiment in a run folder, or go on with the one that is there.

    The same config on the same folder resumes from the last checkpoint and ends in the same
    numbers, bit for bit.

    Args:
        config: a config as a config file returns it.
        workdir: the run folder; see `fedjax_ssl.folder.folder.RunFolder`. Of several processes, only
            process 0 uses it.
        team: from `fedjax_ssl.runs.processes`, where several processes train one federation: all of
            them call this.
        shared: datasets and programs of this process, so that its runs compile once; nothing by
            default.
        quiet: print nothing.

    Returns:
        What `summary.json` holds.

    Raises:
        ConfigError: a setting cannot be used.
        DatasetUnavailable: the dataset is not on disk and could not be downloaded.
        ConfigMismatch: the folder holds a run with another config.
        RunFolderError: the folder holds a run on other data.
        CheckpointError: the folder's checkpoints cannot be used.
        Preempted: a process of several was asked to end; the checkpoint is saved.

    Example:
        >>> config = fs.load_config("digits_fedavg", {"rounds": 2, "eval_every": 1})
        >>> summary = fs.run(config, "runs/first", quiet=True)
        >>> summary["rounds"], 0 < summary["test_accuracy"] < 1
        (2, True)
    """
    team = team or Team()
    resolved = configs.resolve(config)
    common = resolved.to_dict()
    del common["distributed"]  # every process has its own, as it has its own place of the data
    for own in ("root", "download", "timeout"):
        del common["data"][own]
    team.check_same(
        "config", repr(common), "Give every process the same command and the same config file."
    )
    with (
        team.watched(),
        _opened(resolved, workdir, team, shared or Shared(), quiet=quiet) as active,
    ):
        advance([active])
        assert active.summary is not None, "a run without `watch` is not stopped"
        return active.summary


def run_batch(points: Sequence[Point], shared: Shared) -> list[dict[str, Any] | Exception | None]:
    """Run several experiments at once, vectorized in one program where code and shapes are the
    same.

    Every run leaves the folder that `run` leaves, and goes on with the one that is there. Its
    numbers are those of `run` but for rounding: vectorized products add in another order.

    Args:
        points: the runs, in different folders. Where the device is too small for all, they end with
            `OutOfMemory`.
        shared: datasets and programs of the process.

    Returns:
        For every run its summary, None where it was stopped, or the exception that ended it; the
        others go on.
    """
    results: list[dict[str, Any] | Exception | None] = [None] * len(points)
    with contextlib.ExitStack() as stack:
        active: dict[int, Run] = {}
        for place, point in enumerate(points):
            try:
                opened = _opened(
                    configs.resolve(point.config),
                    point.workdir,
                    Team(),
                    shared,
                    point.watch,
                    quiet=True,
                )
                active[place] = stack.enter_context(opened)
            except Exception as error:
                results[place] = error
        try:
            advance(list(active.values()))
        except Exception as error:
            results = [
                error if place in active and not active[place].done else result
                for place, result in enumerate(results)
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
) -> Iterator[Run]:
    begin = time.perf_counter()
    # Sums that are not exact depend on the number of devices.
    ignored = (
        UNCOMPARED if resolved.federated.reduce == "fast" else (*UNCOMPARED, "federated.devices")
    )
    with configs.naming("tracking"):
        check_writers(WriterSettings(**resolved.tracking))
    with (
        Record(workdir, resolved.to_dict(), ignore=ignored, undecided=LENGTHS, quiet=quiet)
        if team.writes
        else NoRecord(workdir) as record,
        Run(record, shared.prepare(resolved), shared, team, watch) as active,
    ):
        active.begin = begin
        active.start()
        yield active


def advance(runs: Sequence[Run]) -> None:
    """Bring runs to their end: those that are behind first, all at the same round in one program.

    Args:
        runs: runs of the same `Shared`.
    """
    while waiting := [one for one in runs if not one.done]:
        if complete := [one for one in waiting if not one.block]:
            complete[0].finish()
            continue
        first = min(waiting, key=lambda one: one.round)
        together = [one for one in waiting if one.kind == first.kind]
        begin = time.perf_counter()
        inputs = [one.block_inputs() for one in together]
        waited = time.perf_counter() - begin  # for examples that come from the host
        states = [one.state for one in together]
        rows, states, compiling, training = first.shared.advance(
            first.prepared,
            states,
            inputs,
            first.block,
            first.compiling,
            first.running,
            first.saving,
        )
        for one, row, state in zip(together, rows, states, strict=True):
            row["seconds"] += waited / len(together)
            row["client_updates_per_second"] = row["clients"] / row["seconds"]
            one.take(row, state, compiling / len(together), (waited + training) / len(together))
