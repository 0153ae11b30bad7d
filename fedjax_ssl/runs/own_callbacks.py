"""A user's own callbacks and metrics: checked at the start, and called so that an error costs no
block of rounds.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from jaxtyping import Float

from fedjax_ssl.config import ConfigError, own_metrics
from fedjax_ssl.data.federation.federated_data import real_rows
from fedjax_ssl.errors import UserError, naming
from fedjax_ssl.folder.files import plain_value
from fedjax_ssl.own_code import check_arguments, number_from, where
from fedjax_ssl.runs.build import Built
from fedjax_ssl.runs.callbacks import Block, Callback
from fedjax_ssl.runs.processes import Team

_WANTED = "a list of functions of a fedjax_ssl.runs.Block"


class OwnCallbacks:
    """The user's functions as one callback.

    Attributes:
        stopped: one of them ended the run early.
    """

    def __init__(self, functions: Iterable[Callback], team: Team):
        """Check that the functions can be called.

        Args:
            functions: functions, called in this order.
            team: all processes; if one of them stops, all stop.

        Raises:
            UserError: it is no list, or something in it is no function of one argument.
        """
        self._functions = checked(functions)
        self._team = team
        self.stopped = False

    def __call__(self, block: Block) -> bool:
        """Call the functions; return whether one of them stops the run.

        Raises:
            UserError: as `call`, or a function of another process raised an error.
            Exception: what a function raises. The row is then as it was before this function, and
                those after it are not called.
        """
        stopped = False
        for function in self._functions:
            failed: Exception | None = None
            stop = False
            try:
                stop = call(function, block)
            except Exception as error:
                failed = error
            # before any error is raised, because all processes wait here
            someone_failed = self._team.any(failed is not None)
            if failed is not None:
                raise failed
            if someone_failed:
                raise UserError("a callback of another process raised an error; its log has it")
            if self._team.any(stop):  # processes might not agree
                stopped = True
                self.stopped |= not block.last
                block = block._replace(last=True)
        return stopped


def checked(functions: Iterable[Callback]) -> tuple[Callback, ...]:
    """Return callbacks as a tuple.

    Raises:
        UserError: they are no list, or something in it is no function of one argument.
    """
    if isinstance(functions, str) or not isinstance(functions, Iterable):
        hint = f": callbacks=[{_name(functions)}]" if callable(functions) else ""
        raise UserError(f"callbacks is {functions!r}; it has to be {_WANTED}{hint}")
    found = tuple(functions)
    for function in found:
        if not callable(function):
            raise UserError(f"callbacks has {function!r} in it; it has to be {_WANTED}")
        takes = "one argument, a fedjax_ssl.runs.Block"
        check_arguments(f"callback {_name(function)}", function, ("a block",), takes)
    return found


def call(function: Callback, block: Block) -> bool:
    """Call a user's own function with a block; return whether it stops the run.

    Columns that it adds to the row become Python numbers.

    Raises:
        UserError: it returned anything but True, False or None, or put something else into the row
            than a number in a column of its own.
        Exception: an error of the function. In both cases the row is unchanged.
    """
    before = dict(block.row)
    try:
        returned = function(block)
        added = _added(function, block.row, before)
        stop = _stops(function, returned)
    except Exception:
        block.row.clear()
        block.row.update(before)
        raise
    block.row.update(added)
    return stop


def _added(
    function: Callback, row: dict[str, Any], before: dict[str, Any]
) -> dict[str, bool | int | float]:
    """Return the columns that a function added, as Python numbers."""
    told = f"callback {_name(function)}"
    # By identity: old values may be arrays.
    lost = [name for name in before if name not in row or row[name] is not before[name]]
    if lost:
        raise UserError(
            f"{told} changed the column {lost[0]!r} of a row; it can add columns, under other "
            f"names ({where(function)})"
        )
    found = {}
    for name in row.keys() - before.keys():
        value = row[name]
        try:
            number = plain_value(value)
        except TypeError:
            number = None
        if not isinstance(name, str) or not isinstance(number, bool | int | float):
            shape = f" {list(value.shape)}" if getattr(value, "shape", ()) else ""
            came = f"{type(value).__name__}{shape}"
            raise UserError(
                f"{told} put {came} into the column {name!r}; a column has a text as its name and "
                f"one number in every row ({where(function)})"
            )
        found[name] = number
    return {name: found[name] for name in row if name in found}


def _stops(function: Callback, returned: Any) -> bool:
    """Return whether a function returned True; refuse anything but True, False and None."""
    if returned is None:
        return False
    truth = isinstance(returned, bool) or getattr(returned, "dtype", None) == np.bool_
    if truth and not getattr(returned, "shape", ()):
        return bool(returned)
    raise UserError(
        f"callback {_name(function)} returned {type(returned).__name__}; it has to return True, "
        f"which stops the run, or False or nothing ({where(function)})"
    )


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


class OwnMetrics:
    """The functions (labels [n], probabilities [n, K]) -> number of `config.metrics`, as a callback
    that calls them on the host and adds their columns.
    """

    def __init__(self, built: Built, team: Team):
        """Try the functions, before anything is compiled.

        Args:
            built: the run; test and validation examples that have a label are scored.
            team: all processes; the numbers are those of the first one.

        Raises:
            ConfigError: a function raises, or returns no number, for random probabilities; or
                there is no global model.
        """
        config = built.experiment.config
        federation = built.federation
        self._team = team
        self._functions = own_metrics(config)
        if self._functions and built.method.recipe.alone:
            raise ConfigError(
                "config.metrics names "
                f"{', '.join(name for name in config.metrics if ':' in name)}, but with "
                f"config.federated.name={config.federated.name!r} clients train alone: there is "
                "no global model whose probabilities it could score"
            )
        tables = {"test": (federation.test_index, federation.num_test)} if self._functions else {}
        if self._functions and federation.valid_index.shape[0]:
            tables["validation"] = federation.valid_index, federation.num_valid
        self._labels = {
            kind: np.asarray(federation.labels)[real_rows(*table)] for kind, table in tables.items()
        }
        draw = np.random.default_rng(0).dirichlet
        for kind, labels in self._labels.items():
            self._score(kind, draw(np.ones(federation.num_classes), len(labels)).astype(np.float32))

    def __call__(self, block: Block) -> None:
        """Take the log-probabilities out of a block's metrics and score them.

        Raises:
            ConfigError: a function raises, or returns no number. The row can be stored without it.
        """
        taken = {kind: block.row.pop(f"{kind}_log_probs") for kind in self._labels}
        found: dict[str, float] = {}
        for kind, log_probs in taken.items():
            found |= self._score(kind, np.exp(log_probs))
        if self._functions:
            block.row.update(self._team.values_from_first(found))

    def _score(self, kind: str, probabilities: Float[np.ndarray, "n K"]) -> dict[str, float]:
        labels = self._labels[kind]
        known = labels >= 0
        given = labels[known], probabilities[: len(labels)][known]
        with naming("metrics"):
            return {
                f"{kind}_{name}": number_from(name, function, *given) if known.any() else math.nan
                for name, function in self._functions.items()
            }
