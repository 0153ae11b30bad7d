"""A run in progress: its parts, its rounds so far, and the step by one block of rounds.

`start_run.py` opens a run, and `finish_run.py` ends it.
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
    """A run in progress.

    Attributes:
        path: its folder.
        folder: the files there, in the process that writes; None in others.
        program: its compiled functions, and its dataset, federation and method.
        team: the processes that train it.
        names: names of the clients.
        round: rounds done.
        state: state after these.
        inputs: arguments of its programs, on all devices that share it; examples may be loaded
            block by block.
        feed: loads examples from the host; None: they are on the device.
        seconds: seconds of compiling and training, including earlier starts.
        progress: the report to a person.
        own: callbacks of the user's own.
        over: no block follows.
        trains: whether this start trains rounds; a complete run trains none.
        writers: viewers.
        adding: callbacks that are called first, and add columns to the row of a block.
        callbacks: callbacks that are called next; they write, report and decide.
        summary: content of `summary.json`, once the run is complete.
        error: exception that ended it; None: none.
        of_clients: accuracies by client after the last evaluation.
        of_clients_by_global: the same for the global model, if clients also have their own models.
        privacy: its privacy account; None: it has no privacy.
        pictures: draw its partition at the end.
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
    trains: bool = True
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
        """Whether a user's callback ended the run early."""
        return self.own.stopped

    @property
    def ended(self) -> bool:
        """Whether the run is over; if a callback stopped it, its summary may still be written."""
        return self.stopped or self.summary is not None or self.error is not None

    @property
    def files(self) -> dict[str, Path]:
        """Files of the folder that are named at the end."""
        names = {"summary": "summary.json"}
        if self.config.rounds:
            names["metrics"] = "metrics.csv"
        if configs.predictors(self.config):
            names |= {"predictions": "predictions.csv", "by client": "predictions_by_client.csv"}
        return {what: self.path / name for what, name in names.items()}

    @property
    def kind(self) -> tuple[Hashable, ...]:
        """Key that is the same for runs that can share a program."""
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
        """The last round: the config's, or the one that uses up the privacy budget."""
        return self.config.rounds if self.privacy is None else self.privacy.limit

    @property
    def saved(self) -> int | None:
        """Round of the next block whose clients' models are saved, if there is one."""
        number = configs.saved_round(self.config)
        return number if number and self.round < number <= self.round + self.rounds else None

    def block_inputs(self) -> Inputs:
        """Return the arguments of the next block of rounds, with the examples that it needs from
        the host.
        """
        if self.feed is None:
            return self.inputs
        return with_examples(self.inputs, self.feed.block(self.round, self.rounds))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Report that the next block runs now; with `config.profile`, the last block, or the first
        that may be the last, is traced by jax.profiler.
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
            place: place of this run among them.

        Raises:
            Preempted: one of several processes was asked to end; the checkpoint is saved.
            Exception: an error of the user's own code; row and checkpoint are saved.
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
        # First the callbacks that add columns, including the user's. Their errors wait until the
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
        """Add to an error of the user's own code how to go on."""
        line = (
            f"the rounds up to {self.round} are saved; the same call goes on after them. Columns "
            "that code of your own adds may be missing in the last row"
        )
        error.add_note(line)
        self.progress.note(line)

    def describe(self, temperature: dict[str, Any] | None) -> None:
        """Write `model.json`, with the fitted temperature if there is one."""
        if self.folder is None:
            return
        model = model_file.describe(
            self.built.experiment, self.built.federation, self.program.split
        )
        if self.trains or self.folder.code_before is None:
            self.folder.store_code(own_sources.copies(self.config))
        else:
            model["code"] = self.folder.code_before
        content = encode_json(model | {"temperature": temperature}, indent=1)
        self.folder.write("model.json", content + "\n")
        seen = model_file.labels_seen(self.built.experiment, self.built.federation)
        if seen is not None:
            self.folder.write(model_file.SEEN, seen)

    def _of_tested(self, by_client: np.ndarray | None) -> dict[str, float]:
        """Return the accuracies by name, for clients with test examples; new clients are last."""
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
    """Return the models of the clients of a cohort that trained; None if no client trained."""
    if cohort is None:
        return None
    trained = cohort.pop("trained")
    return jax.tree.map(lambda values: values[trained], cohort) if trained.any() else None
