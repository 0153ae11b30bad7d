"""A run on its way in its folder: opened where the last start left it, and taken forward block by
block.
"""

import contextlib
import math
import os
import time
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import ml_collections

from fedjax_ssl import config as configs
from fedjax_ssl import data
from fedjax_ssl.federated import BY_CLIENT
from fedjax_ssl.folder.checkpoint import Checkpoints
from fedjax_ssl.folder.files import encode_json
from fedjax_ssl.folder.progress import Progress
from fedjax_ssl.folder.resume import LENGTHS, UNCOMPARED
from fedjax_ssl.folder.run_folder import RunFolder
from fedjax_ssl.folder.writers import WriterSettings, check_writers, open_writers
from fedjax_ssl.runs import advice, model_file
from fedjax_ssl.runs.about_data import about_data
from fedjax_ssl.runs.callbacks import (
    Best,
    Block,
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
from fedjax_ssl.runs.compile import Advanced, Inputs, Program, described, with_examples
from fedjax_ssl.runs.own_metrics import OwnMetrics
from fedjax_ssl.runs.processes import Team, share_out
from fedjax_ssl.runs.residence import Feed
from fedjax_ssl.runs.shared import Shared
from fedjax_ssl.runs.summary import (
    describe_placement,
    out_of_patience,
    what_was_predicted,
)

_LISTED = 10_000  # clients in partition.txt at most


@contextlib.contextmanager
def opened(
    config: ml_collections.ConfigDict,
    workdir: str | Path,
    team: Team,
    shared: Shared,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
) -> Iterator["Run"]:
    """Open a run folder, build the run, and give it, ready for its next block.

    Args:
        config: resolved.
        workdir: the folder; only the process that writes uses it.
        team: the processes that train it.
        shared: datasets and programs of this process.
        callbacks: the user's own.
        quiet: print nothing.
    """
    begin = time.perf_counter()
    with configs.naming("tracking"):
        check_writers(WriterSettings(**config.tracking))
    # Sums that are not exact depend on the number of devices.
    exact = ("federated.devices",) if config.federated.reduce != "fast" else ()
    with contextlib.ExitStack() as stack:
        folder = None
        if team.writes:
            folder = stack.enter_context(
                RunFolder(
                    workdir, config.to_dict(), ignore=(*UNCOMPARED, *exact), undecided=LENGTHS
                )
            )
        stream = None
        if quiet or folder is None:
            stream = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        program = shared.program(config)
        run = Run(Path(workdir), folder, program, shared, team, callbacks, begin)
        run.open(stack, stream)
        yield run


class Run:
    """A run on its way.

    Attributes:
        config: resolved.
        path: its folder.
        folder: the files there, in the process that writes; None in others.
        team: the processes that train it.
        mesh: devices that share it; None: one.
        names: of the clients.
        progress: the report to a person.
        writers: viewers.
        profile: where the time goes, if that is asked for.
        seconds: of compiling and training, of earlier starts too; `before` has those of these.
        template: shapes and types of the state.
        of_clients: accuracies of clients after the last evaluation.
        round: rounds done.
        state: state after these.
        inputs: arguments of its programs, on all devices that share it; examples may come block by
            block.
        program: its compiled functions, and what it is made of.
        over: no block follows.
        stopped: a callback of the user's has ended it before its time; it has no summary yet.
        summary: content of `summary.json`, once the run is complete.
    """

    def __init__(
        self,
        path: Path,
        folder: RunFolder | None,
        program: Program,
        shared: Shared,
        team: Team,
        callbacks: Sequence[Callback],
        begin: float,
    ):
        """Check that method and data fit, and load the last checkpoint or initialize.

        Args:
            path: the folder.
            folder: its files, in the process that writes.
            program: the run's.
            shared: datasets and programs that it shares with the other runs of the process.
            team: the processes that train it.
            callbacks: the user's own.
            begin: when it began, data loaded or not, on the clock of `time.perf_counter`.

        Raises:
            ConfigError: a setting cannot be used.
            CheckpointError: the folder's checkpoints cannot be used.
            RunFolderError: the run began on other data.
        """
        self.path = path
        self.program = program
        self.summary: dict[str, Any] | None = None
        self.stopped = False
        built = program.built
        self.config = config = built.experiment.config
        self.folder = folder
        self._shared = shared
        self.team = team
        self._own = tuple(callbacks)
        self.begin = begin
        self.mesh = built.execution.mesh
        team.check_same(
            "data",
            built.federation,
            "Give every machine the same files, the same hardware and the same versions.",
        )
        advice.check(built)
        self._own_metrics = OwnMetrics(built, team)
        if folder is not None:
            folder.compare_data(built.experiment.known_by)
            folder.settle(config)
        self.template = program.template()
        found = None
        rows: list[dict[str, Any]] = []
        if folder is not None:
            self.describe(folder.temperature())
            found = folder.restore(self.template)
            rows = folder.rows()
        nothing = {"compile_seconds": 0.0, "train_seconds": 0.0}
        self.round, self.state, self.seconds = team.from_first(
            found or (0, program.init(), nothing)
        )
        self.before = dict(self.seconds)  # seconds of earlier starts
        self._history = History(config, team.values_from_first(rows))
        self.over = self.round == config.rounds or out_of_patience(config, self._history.rows)
        self.names = data.client_names(
            built.experiment.dataset, built.federation, config.partition.name == "natural"
        )
        self.of_clients: dict[str, float] = {}
        self._said = set[str]()
        self.waited = 0.0
        team.connect(self.mesh)
        self.state, self.inputs = share_out((self.state, program.inputs), self.mesh)
        self.profile = None
        if config.profile and folder is not None:
            self.profile = Profile(path / "profile", config)
        self._feed: Feed | None = None

    def open(self, stack: contextlib.ExitStack, stream: Any) -> None:
        """Say and write what is about to run; a run that is complete already gets its summary.

        Args:
            stack: closes what is opened here.
            stream: for the report to the person; None: standard output.
        """
        config = self.config
        built = self.program.built
        folder = self.folder
        if built.experiment.host is not None:
            self._feed = stack.enter_context(Feed(built, self.program.inputs.key))
        self.progress = stack.enter_context(
            Progress(config.rounds, start_round=self.round, stream=stream)
        )
        say = self.progress.note
        self.progress.start(advice.describe_start(built, self.template, self.round, self.path))
        for line in self._notes():
            say(line)
        if self.round == 0 and folder is not None:
            count = built.federation.num_clients
            table = data.report(
                built.federation,
                built.experiment.dataset.class_names,
                self.names[:count],
                max_rows=_LISTED,
            )
            folder.write("partition.txt", table + "\n")
        if self._take_summary():
            return
        viewers = WriterSettings(**config.tracking) if folder is not None else WriterSettings()
        with configs.naming("tracking"):
            self.writers = open_writers(
                viewers, self.path, config=config.to_dict(), resume_round=self.round
            )
        stack.enter_context(self.writers)
        self._callbacks = self._all_callbacks()

    def _notes(self) -> Iterator[str]:
        """List what a person is told before the first block."""
        config = self.config
        built = self.program.built
        yield built.experiment.standardization
        yield from about_data(built, self.template, self.names)
        number = configs.saved_round(config)
        if number:
            yield from self._notes_of_saved_clients(number)
        if config.rounds:
            yield from advice.idle_clients(
                built.method, built.federation, self.names, config.optimizer.batch_size
            )
        if self._feed is not None:
            yield self._feed.describe()

    def _take_summary(self) -> bool:
        """Take the summary of a run that is complete already, and say so; tell whether it is."""
        found = None if self.folder is None else self.folder.summary()
        summary = self.team.values_from_first(found)
        if summary is None or summary.get("prediction", {}) != what_was_predicted(self.config):
            return False
        # a callback may have stopped it
        if not (self.over or summary.get("stopped_early")):
            return False
        self.progress.note("this run is complete already")
        if self.config.profile:
            self.progress.note("nothing to profile: the run is finished")
        self.progress.finish(summary, self._files_that_are_there())
        self.summary = summary
        return True

    def _files_that_are_there(self) -> dict[str, Path]:
        """Files of a complete run; says which are gone, and draws the curves anew."""
        if self.folder is None:
            return {}
        curves = self.path / "curves.png"
        if self.config.rounds and not curves.exists():
            self.draw_curves()
        gone = [path.name for path in self.files.values() if not path.exists()]
        if gone:
            self.progress.note(f"gone from {self.path}: {', '.join(gone)}")
        return {what: path for what, path in self.files.items() if path.exists()}

    def _all_callbacks(self) -> list[Callback]:
        """List what is called after a block, in this order."""
        config = self.config
        say = self.progress.note
        history = self._history
        found: list[Callback] = [self._own_metrics, Divergence(history), *self._own]
        if self.folder is not None:
            number = configs.saved_round(config)
            found += [ClientModels(self.folder, number, say)] if number else []
            found += [Rows(self.folder), Viewers(self.writers)]
        found.append(history)
        if self.folder is not None:
            found.append(Best(self.folder, history))
        return [
            *found,
            Report(self.progress, config, history),
            EarlyStopping(config, history),
            lambda block: self.team.feed(),
            Checkpoint(self.folder, self.team, config, self.seconds, say),
            lambda block: self.draw_data(),  # not before the first numbers, which it would delay
        ]

    @property
    def files(self) -> dict[str, Path]:
        """The files of the folder that a person is told of in the end."""
        names = {"summary": "summary.json"}
        if self.config.rounds:
            names |= {"metrics": "metrics.csv", "curves": "curves.png"}
        if configs.predictors(self.config):
            names |= {"predictions": "predictions.csv", "by client": "predictions_by_client.csv"}
        return {what: self.path / name for what, name in names.items()}

    @property
    def kind(self) -> tuple[Hashable, ...]:
        """Key that is the same for runs that one program can advance together."""
        built = self.program.built
        apart = (
            built.method.on_host
            or self.mesh is not None
            or self._feed is not None
            or self.saved is not None
        )
        alone = id(self) if apart else 0
        shapes = described((self.state, self.inputs))
        return (alone, self.program.code, self.round, self.rounds, *shapes)

    @property
    def rounds(self) -> int:
        """Rounds of the next block."""
        every = self.config.eval_every
        return min(every - self.round % every, self.config.rounds - self.round)

    @property
    def saved(self) -> int | None:
        """Round of the next block whose clients' models are kept, if there is one."""
        number = configs.saved_round(self.config)
        return number if number and self.round < number <= self.round + self.rounds else None

    def block_inputs(self) -> Inputs:
        """Give the arguments of the next block of rounds, with the examples that it needs from
        the host.
        """
        if self._feed is None:
            return self.inputs
        begin = time.perf_counter()
        inputs = with_examples(self.inputs, self._feed.block(self.round, self.rounds))
        self.waited += time.perf_counter() - begin
        return inputs

    def compiling(self) -> None:
        """Say that its program is compiled now."""
        self.progress.compiling()

    def running(self, program: Any) -> contextlib.AbstractContextManager[None]:
        """Say that its next block runs now, by this program; it may be profiled."""
        self.progress.training()
        if self.profile is None:
            return contextlib.nullcontext()
        return self.profile.around(program, self.round, self.round + self.rounds)

    def take(self, advanced: Advanced, place: int) -> None:
        """Take the results of a block, and call all callbacks.

        Args:
            advanced: results of several runs.
            place: of this run among them.

        Raises:
            Preempted: a process of several was asked to end; the checkpoint is saved.
        """
        count = len(advanced.rows)
        self.seconds["compile_seconds"] += advanced.compiling / count
        self.seconds["train_seconds"] += advanced.training / count
        for choice in self.program.choices:
            self._say_once(describe_placement(choice, jax.default_backend()))
        if self._feed is not None and self._feed.held and self.team.count > 1:
            self._say_once(self._feed.held, by_all=True)
        row = advanced.rows[place]
        by_client = row.pop(BY_CLIENT, None)
        if by_client is not None:
            named = zip(self.names, by_client.tolist(), strict=True)
            self.of_clients = {name: value for name, value in named if not math.isnan(value)}
        rounds = self.rounds
        self.round = row["round"]
        self.state = advanced.states[place]
        block = Block(
            row,
            self.state,
            self.of_clients,
            _of_trained(advanced.models),
            self.program,
            rounds,
            last=self.round == self.config.rounds,
        )
        for callback in self._callbacks:
            stop = bool(callback(block))
            if callback in self._own:
                stop = self.team.any(stop)  # processes might not agree
                self.stopped |= stop and not block.last
            if stop:
                block = block._replace(last=True)
        self.over = block.last

    def _notes_of_saved_clients(self, number: int) -> Iterator[str]:
        """Say what the models of clients will take, or why they cannot be had any more."""
        if number > self.round:
            count = self.config.federated.cohort_size or self.program.built.federation.num_clients
            yield advice.saved_clients(number, count, self.template, self.path / "clients")
        elif Checkpoints(self.path, folder="clients").latest() != number:
            yield (
                f"config.save_clients names round {number}, which this folder is past without "
                "them: give another --workdir"
            )

    def describe(self, temperature: dict[str, Any] | None) -> None:
        built = self.program.built
        model = model_file.describe(built.experiment, built.federation)
        content = encode_json(model | {"temperature": temperature}, indent=1)
        if self.folder is not None:
            self.folder.write("model.json", content + "\n")

    def draw_data(self) -> None:
        if self.folder is not None:
            experiment = self.program.built.experiment
            self.folder.draw_data(partial(self._shared.draw, experiment))

    def draw_curves(self) -> None:
        if self.folder is not None:
            built = self.program.built
            name = f"{self.config.method.name} on {self.config.data.name}"
            examples = int(built.federation.num_valid)
            self.folder.draw_curves(examples, title=name, stages=built.method.stages)

    def _say_once(self, line: str, by_all: bool = False) -> None:
        if line not in self._said:
            self._said.add(line)
            self.progress.note(line)
            if by_all:
                self.team.say(line)


def _of_trained(cohort: Any) -> Any:
    """Give the models of those clients of a cohort that have trained; None: nobody has."""
    if cohort is None:
        return None
    trained = cohort.pop("trained")
    return jax.tree.map(lambda values: values[trained], cohort) if trained.any() else None
