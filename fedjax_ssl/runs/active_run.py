"""A run in progress: its parts, its rounds so far, and the step by one block of rounds.

How it opens is in `start_run.py`, how it ends in `finish_run.py`.
"""

import contextlib
import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import ml_collections
import numpy as np

from fedjax_ssl import config as configs
from fedjax_ssl.federated import BY_CLIENT, GLOBAL_BY_CLIENT, ServerState
from fedjax_ssl.folder.files import encode_json
from fedjax_ssl.folder.folder_lock import CODE_FOLDER
from fedjax_ssl.folder.progress import Progress
from fedjax_ssl.folder.run_folder import RunFolder
from fedjax_ssl.folder.writers import Writers
from fedjax_ssl.runs import model_file, own_sources
from fedjax_ssl.runs.build import Built
from fedjax_ssl.runs.callbacks import Block, Callback
from fedjax_ssl.runs.own_callbacks import OwnCallbacks
from fedjax_ssl.runs.privacy import PrivateRun
from fedjax_ssl.runs.processes import Team
from fedjax_ssl.runs.program import Advanced, Inputs, Program, described, with_examples
from fedjax_ssl.runs.residence import Feed
from fedjax_ssl.runs.rounds import blocks
from fedjax_ssl.runs.summary import describe_placement


@dataclass(eq=False)
class Run:
    """A run on its way.

    Attributes:
        path: its folder.
        folder: the files there, in the process that writes; None in others.
        program: its compiled functions, and what it is made of.
        team: the processes that train it.
        names: of the clients.
        round: rounds done.
        state: state after these.
        inputs: arguments of its programs, on all devices that share it; examples may come block by
            block.
        feed: brings these from the host; None: they are on the device.
        seconds: of compiling and training, of earlier starts too.
        progress: the report to a person.
        own: callbacks of the user's own.
        over: no block follows.
        writers: viewers.
        adding: called first after a block, these among them: they add columns to its row.
        callbacks: called after those; they write, tell and decide.
        summary: content of `summary.json`, once the run is complete.
        error: what ended it, where it could not go on.
        of_clients: accuracies of clients after the last evaluation.
        of_clients_by_global: the same of the global model, where clients have their own beside it.
        privacy: its account; None: it has no privacy.
        pictures: whether its partition is drawn once it is over.
    """

    path: Path
    folder: RunFolder | None
    program: Program
    team: Team
    names: list[str]
    round: int
    state: ServerState
    inputs: Inputs
    feed: Feed | None
    seconds: dict[str, float]
    progress: Progress
    own: OwnCallbacks
    over: bool
    writers: Writers = field(default_factory=lambda: Writers({}))
    adding: list[Callback] = field(default_factory=list)
    callbacks: list[Callback] = field(default_factory=list)
    summary: dict[str, Any] | None = None
    error: Exception | None = None
    of_clients: dict[str, float] = field(default_factory=dict)
    of_clients_by_global: dict[str, float] = field(default_factory=dict)
    privacy: PrivateRun | None = None
    pictures: bool = True
    _traced: bool = False
    _said: set[str] = field(default_factory=set)

    @property
    def built(self) -> Built:
        """The run's dataset, federation, method and devices."""
        return self.program.built

    @property
    def config(self) -> ml_collections.ConfigDict:
        """The config, resolved."""
        return self.built.experiment.config

    @property
    def template(self) -> ServerState:
        """Shapes and types of its state."""
        return self.program.template()

    @property
    def stopped(self) -> bool:
        """Whether a callback of the user's has ended the run early."""
        return self.own.stopped

    @property
    def ended(self) -> bool:
        """Whether the run is over; if it was stopped, its summary may still be written."""
        return self.stopped or self.summary is not None or self.error is not None

    @property
    def files(self) -> dict[str, Path]:
        """The files of the folder that a person is told of in the end."""
        names = {"summary": "summary.json"}
        if self.config.rounds:
            names["metrics"] = "metrics.csv"
        if configs.predictors(self.config):
            names |= {"predictions": "predictions.csv", "by client": "predictions_by_client.csv"}
        return {what: self.path / name for what, name in names.items()}

    @property
    def kind(self) -> tuple[Hashable, ...]:
        """Key that is the same for runs that one program can advance together."""
        apart = (
            self.built.method.recipe.on_host
            or self.built.execution.mesh is not None
            or self.feed is not None
            or self.saved is not None
        )
        alone = id(self) if apart else 0
        shapes = described((self.state, self.inputs))
        return (alone, self.program.code, self.round, self.rounds, *shapes)

    @property
    def rounds(self) -> int:
        """Rounds of the next block."""
        _, rounds = next(blocks(self.end, self.config.eval_every, self.round))
        return rounds

    @property
    def end(self) -> int:
        """The last round: the config's, or the one that spends the privacy budget."""
        return self.config.rounds if self.privacy is None else self.privacy.limit

    @property
    def saved(self) -> int | None:
        """Round of the next block whose clients' models are kept, if there is one."""
        number = configs.saved_round(self.config)
        return number if number and self.round < number <= self.round + self.rounds else None

    def block_inputs(self) -> Inputs:
        """Give the arguments of the next block of rounds, with the examples that it needs from
        the host.
        """
        if self.feed is None:
            return self.inputs
        return with_examples(self.inputs, self.feed.block(self.round, self.rounds))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Say that its next block runs now; the last one, or the first that may be it, is traced
        by jax.profiler where `config.profile` asks for it.
        """
        self.progress.training()
        end = self.round + self.rounds
        may_be_last = end == self.config.rounds or self.config.early_stopping.patience is not None
        asked = self.config.profile and self.folder is not None
        if self._traced or not (asked and may_be_last):
            yield
            return
        self._traced = True
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        folder = self.path / "profile"
        with jax.profiler.trace(str(folder), profiler_options=options):
            yield
        self.progress.note(f"rounds {self.round + 1} to {end} and an evaluation, traced: {folder}")

    def take(self, advanced: Advanced, place: int) -> None:
        """Take the results of a block, and call all callbacks.

        Args:
            advanced: results of several runs.
            place: of this run among them.

        Raises:
            Preempted: a process of several was asked to end; the checkpoint is saved.
            Exception: what code of the user's own has raised; row and checkpoint are saved.
        """
        count = len(advanced.rows)
        self.seconds["compile_seconds"] += advanced.compiling / count
        self.seconds["train_seconds"] += advanced.training / count
        for choice in self.program.choices:
            self._say_once(describe_placement(choice, jax.default_backend()))
        if self.feed is not None and self.feed.held and self.team.count > 1:
            self._say_once(self.feed.held, by_all=True)
        row = advanced.rows[place]
        self.of_clients = self._of_tested(row.pop(BY_CLIENT, None))
        self.of_clients_by_global = self._of_tested(row.pop(GLOBAL_BY_CLIENT, None))
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
            last=self.round == self.end,
        )
        # First what adds columns, the user's functions among it. What they raise waits until the
        # block is on the disk.
        failed: Exception | None = None
        try:
            stops = [bool(callback(block)) for callback in self.adding]
        except Exception as error:
            failed = error
            stops = [True]
        block = block._replace(last=block.last or any(stops))
        for callback in self.callbacks:
            if callback(block):
                block = block._replace(last=True)
        self.over = block.last
        if failed is not None:
            self._say_what_is_saved(failed)
            raise failed

    def _say_what_is_saved(self, error: Exception) -> None:
        """Say beside an error in code of the user's own how to go on."""
        line = (
            f"the rounds up to {self.round} are saved; the same call goes on after them. Columns "
            "that code of your own adds may be missing in the last row"
        )
        error.add_note(line)
        self.progress.note(line)

    def describe(self, temperature: dict[str, Any] | None) -> None:
        """Write `model.json`, with the temperature that was fitted, if one was."""
        if self.folder is None:
            return
        model = model_file.describe(
            self.built.experiment, self.built.federation, self.program.split
        )
        content = encode_json(model | {"temperature": temperature}, indent=1)
        self.folder.write("model.json", content + "\n")
        seen = model_file.labels_seen(self.built.experiment, self.built.federation)
        if seen is not None:
            self.folder.write(model_file.SEEN, seen)
        for name, text in own_sources.copies(self.config).items():
            self.folder.write(f"{CODE_FOLDER}/{name}", text)

    def _of_tested(self, by_client: np.ndarray | None) -> dict[str, float]:
        """Name the accuracies of the clients that have test examples; new clients are last."""
        if by_client is None:
            return {}
        named = zip(self.names, by_client.tolist(), strict=False)
        return {name: value for name, value in named if not math.isnan(value)}

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
