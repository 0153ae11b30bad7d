"""Callbacks between the compiled blocks of rounds: functions of a `Block`, which may stop the
run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_collections

from fedjax_ssl.errors import counted
from fedjax_ssl.federated import ServerState
from fedjax_ssl.folder.progress import Progress
from fedjax_ssl.folder.run_folder import RunFolder
from fedjax_ssl.folder.writers import Writers
from fedjax_ssl.runs import divergence
from fedjax_ssl.runs.processes import Preempted, Team
from fedjax_ssl.runs.program import Program
from fedjax_ssl.runs.summary import out_of_patience, selected, why_nobody_trained

# Columns by which a run decides how it goes on; the others are on the disk.
_DECISIVE = (
    *("round", "validation_accuracy", "loss", "local_steps", divergence.DIVERGED_ROUNDS),
    *("test_client_accuracy", "test_client_global_accuracy"),  # whether clients have own models
)


class Block(NamedTuple):
    """Rounds up to an evaluation; callbacks are called after them.

    Attributes:
        row: metrics of the evaluation by column of `metrics.csv`; a callback may add columns of its
            own, which hold a number each (a bool, or a NumPy or JAX scalar is one).
        state: the server's state after it. The next block reuses its memory: keep a copy by
            `jax.device_get(...)`.
        clients: test accuracy by client name, if test examples belong to clients.
        models: models of the clients of round `config.save_clients`, with a leading axis, if it is
            one of these rounds; otherwise None.
        program: the run's functions, and its dataset and federation: `program.built.federation`,
            `program.predict(state, None, inputs)`. None in `fs.train`.
        rounds: number of rounds of the block.
        last: no block follows; also True if an earlier callback stopped the run.
    """

    row: dict[str, Any]
    state: ServerState
    clients: Mapping[str, float]
    models: Any
    program: Program | None
    rounds: int
    last: bool


Callback = Callable[[Block], bool | None]  # True: stop the run after this block


class History:
    """Rows of a run, as far as later decisions need them.

    Attributes:
        rows: all rows, of which a few columns are kept.
    """

    def __init__(self, config: ml_collections.ConfigDict, rows: list[dict[str, Any]]):
        self._config = config
        self._columns = (*_DECISIVE, config.early_stopping.metric)
        self.rows = [self._part(row) for row in rows]

    def _part(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {name: row[name] for name in self._columns if name in row}

    def __call__(self, block: Block) -> None:
        """Store the row."""
        self.rows.append(self._part(block.row))

    @property
    def last_is_best(self) -> bool:
        """Whether the last row is that of the best model so far."""
        return bool(self.rows) and selected(self._config, self.rows) is self.rows[-1]


@dataclass(frozen=True)
class Divergence:
    """Counts the rounds without a finite update, over the blocks."""

    history: History

    def __call__(self, block: Block) -> None:
        """Add the column if the count is not 0."""
        divergence.carry(block.row, self.history.rows, block.rounds)


@dataclass(frozen=True)
class Rows:
    """Writes the row, and the accuracies of clients, to the folder."""

    folder: RunFolder

    def __call__(self, block: Block) -> None:
        """Put the row on the disk."""
        self.folder.append(block.row, block.clients)


@dataclass(frozen=True)
class Viewers:
    """Shows the row in TensorBoard or Weights & Biases."""

    writers: Writers

    def __call__(self, block: Block) -> None:
        """Send the row."""
        self.writers.write(block.row)


@dataclass(frozen=True)
class Best:
    """Keeps the best model by validation."""

    folder: RunFolder
    history: History

    def __call__(self, block: Block) -> None:
        """Keep the model in memory if it is the best; the next checkpoint writes it."""
        if self.history.last_is_best:
            self.folder.keep_best(block.row["round"], block.state)


@dataclass(frozen=True)
class ClientModels:
    """Saves the models of the clients of one round."""

    folder: RunFolder
    number: int
    say: Callable[[str], None]

    def __call__(self, block: Block) -> None:
        """Save the models if the round is in this block."""
        if not 0 <= block.row["round"] - self.number < block.rounds:
            return
        if block.models is None:
            self.say(f"config.save_clients names round {self.number}, in which no client trained")
        else:
            self.folder.save_clients(self.number, block.models)


@dataclass(frozen=True)
class Report:
    """Reports evaluations and problems to a person."""

    progress: Progress
    config: ml_collections.ConfigDict
    history: History

    def __call__(self, block: Block) -> None:
        """Print a line, and the notes."""
        row = block.row
        self.progress.update(row["round"], row)
        said = divergence.note(row, self.history.rows[:-1], block.rounds, self.config)
        if said:
            self.progress.note(said)
        if not row["local_steps"] and not row.get(divergence.DIVERGED_ROUNDS):
            rounds = counted(block.rounds, "round")
            why = why_nobody_trained(row)
            self.progress.note(f"nobody trained in the last {rounds}: {why}")


@dataclass(frozen=True)
class EarlyStopping:
    """Stops the run when it has waited long enough for a better model."""

    config: ml_collections.ConfigDict
    history: History

    def __call__(self, block: Block) -> bool:
        """Return whether `config.early_stopping.patience` is used up."""
        return out_of_patience(self.config, self.history.rows)


class Checkpoint:
    """Saves checkpoints: when one is due, after the last block, and before all processes end
    because one of them was asked to.
    """

    def __init__(
        self,
        folder: RunFolder | None,
        team: Team,
        config: ml_collections.ConfigDict,
        seconds: dict[str, float],
    ):
        """Save nothing yet.

        Args:
            folder: the folder, in the process that writes.
            team: all processes.
            config: resolved.
            seconds: of compiling and training so far, which go on with a checkpoint.
        """
        self._folder = folder
        self._team = team
        self._config = config
        self._seconds = seconds

    def __call__(self, block: Block) -> None:
        """Save the state, if it is time.

        Raises:
            Preempted: one of several processes was asked to end.
        """
        config = self._config
        round = block.row["round"]
        preempted = not block.last and self._team.preempted(-(-round // config.eval_every))
        every = config.checkpoint_every * config.eval_every
        due = every and round % every == 0
        if self._folder is not None and (block.last or preempted or due):
            self._folder.save(round, block.state, self._seconds)
        if preempted:
            raise Preempted
