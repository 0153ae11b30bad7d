"""Numbers that differ from client to client, or from round to round, as a config writes them.

A number is that of all clients. `uniform:LOW:HIGH`, `beta:A:B` and `lognormal:MEDIAN:SIGMA` are
distributions over clients. A file has a column per client, in their order, and one row, or a row
per round.
"""

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from fedjax_ssl.checks import Declaration, In
from fedjax_ssl.errors import UserError, did_you_mean
from fedjax_ssl.federated.setup import Facts
from fedjax_ssl.keys import named_key

DISTRIBUTIONS = {
    "uniform": "uniform:LOW:HIGH",
    "beta": "beta:A:B",
    "lognormal": "lognormal:MEDIAN:SIGMA",
}
_POSITIVE = In("(0, inf)")
FILES = (".csv", ".npy")


class ClientNumbers(NamedTuple):
    """A number per client and round."""

    of: Callable[[Key[Array, ""], Int[Array, ""], Int[Array, " n"]], Float[Array, " n"]]
    # ^ (run key, round, client ids) -> numbers
    least: float = 0.0  # no client has less; 0: not known
    most: float = float("inf")  # no client has more; inf: not known


@dataclasses.dataclass(frozen=True)
class ByClient(Declaration):
    """Numbers in an interval: one for all clients, a distribution over them, or a file."""

    interval: str

    def check(self, name: str, value: Any) -> None:
        if not isinstance(value, str):
            In(self.interval).check(name, value)
        elif not value.endswith(FILES):
            _distribution(name, value, self.interval)

    def words(self) -> str:
        forms = ", ".join(DISTRIBUTIONS.values())
        return f"a number in {self.interval}; or by client: {forms}, or a file ending in .csv, .npy"


def numbers_by_client(
    name: str, given: float | Array | str, interval: str, facts: Facts, each_round: bool = False
) -> ClientNumbers:
    """Read what a setting says of every client.

    Args:
        name: of the setting, for messages; it also tells its draws from those of others.
        given: a number, which may be traced, a distribution or a file.
        interval: as of `In`, that all numbers have to be in.
        facts: clients and rounds, which a file has to have.
        each_round: a distribution is drawn from anew in every round, not once for the run.

    Raises:
        ValueError: a number outside the interval, an unknown distribution, or a file that cannot
            be read, is of another shape or ends before the run.

    Example:
        >>> facts = fs.federated.Facts(num_clients=3, cohort_size=3, rounds=10)
        >>> speed = numbers_by_client("speed", "uniform:1:2", "(0, inf)", facts)
        >>> found = speed.of(jax.random.key(0), jnp.int32(4), jnp.arange(3))
        >>> bool(((found >= 1) & (found < 2)).all())
        True
    """
    if not isinstance(given, str):
        In(interval).check(name, given)
        known = (given, given) if isinstance(given, (int, float)) else (0.0, float("inf"))
        return ClientNumbers(
            lambda key, number, ids: jnp.full(ids.shape, given, jnp.result_type(float)),
            *map(float, known),
        )
    if given.endswith(FILES):
        return _of_table(_table(name, given, interval, facts))
    form, first, second = _distribution(name, given, interval)

    def of(key: Key[Array, ""], number: Int[Array, ""], ids: Int[Array, " n"]) -> Array:
        own = named_key(key, name)
        if each_round:
            own = jax.random.fold_in(own, number)
        keys = jax.vmap(lambda client: jax.random.fold_in(own, client))(ids)
        return jax.vmap(lambda one: _draw(one, form, first, second))(keys)

    if form == "uniform":
        return ClientNumbers(of, first, second)
    return ClientNumbers(of, 0.0, 1.0 if form == "beta" else float("inf"))


def _draw(key: Key[Array, ""], form: str, first: float, second: float) -> Float[Array, ""]:
    if form == "uniform":
        return jax.random.uniform(key, minval=first, maxval=second)
    if form == "beta":
        return jax.random.beta(key, first, second)
    return first * jnp.exp(second * jax.random.normal(key))


def _distribution(name: str, text: str, interval: str) -> tuple[str, float, float]:
    """Read the name of a distribution and its two parameters."""
    form, *given = text.split(":")
    if form not in DISTRIBUTIONS:
        raise ValueError(
            f"{name} is {text!r}.{did_you_mean(form, [*DISTRIBUTIONS])} Allowed: "
            f"{ByClient(interval).words()}"
        )
    try:
        first, second = map(float, given)
    except ValueError:
        raise ValueError(f"{name} is {text!r}; write {DISTRIBUTIONS[form]}") from None
    if form == "uniform":
        for bound in (first, second):
            In(interval).check(f"a bound of {name}", bound)
        if first > second:
            raise ValueError(f"{name} is {text!r}, whose first number is above the second")
        return form, first, second
    for parameter in (first, second):
        _POSITIVE.check(f"a parameter of {name}", parameter)
    if form == "lognormal" and not interval.endswith("inf)"):
        raise ValueError(f"{name} is {text!r}, which goes beyond {interval}; use beta:A:B")
    return form, first, second


class Trace(NamedTuple):
    """What a run knows a file by: a run that gets longer may have a file that does, too."""

    rows: int
    digest: str  # of the numbers in these rows

    @classmethod
    def of(cls, path: str, rows: int | None = None) -> "Trace":
        """Return what the first rows of a file are known by; None: all of them."""
        known = _read("trace", path)[:rows]
        digest = hashlib.blake2b(known.tobytes(), digest_size=8).hexdigest()
        return cls(len(known), digest)


def _read(name: str, path: str) -> np.ndarray:
    """Read the numbers of a file, [rows, columns]."""
    try:
        raw = np.load(path) if path.endswith(".npy") else np.loadtxt(path, delimiter=",", ndmin=2)
        return np.atleast_2d(np.asarray(raw, np.float64))
    except OSError as error:
        raise UserError(f"{name}: {path} cannot be read: {error}") from error
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{name}: {path} has something else than numbers ({error}); give a column per client, "
            "in their order, without a line of names, and one row or a row per round"
        ) from error


def _table(name: str, path: str, interval: str, facts: Facts) -> np.ndarray:
    """Read a table [rounds or 1, C]."""
    table = _read(name, path)
    if table.shape == (facts.num_clients, 1):
        table = table.T
    if table.ndim != 2 or table.shape[1] != facts.num_clients:
        raise UserError(
            f"{name}: {path} has numbers of {table.shape[-1]} clients; {facts.num_clients} train"
        )
    rows = len(table)
    if rows > 1 and facts.rounds is not None and rows < facts.rounds:
        raise UserError(
            f"{name}: {path} ends after {rows} rounds; the run has {facts.rounds}. Give a row for "
            "each of them, or one row for all"
        )
    for row, column in np.argwhere(~np.isfinite(table))[:1]:
        raise UserError(f"{name}: {path} has no number in row {row + 1}, column {column + 1}")
    for value in (table.min(), table.max()):
        In(interval).check(f"{name}: a number of {Path(path).name}", float(value))
    return table


def _of_table(table: np.ndarray) -> ClientNumbers:
    def of(key: Key[Array, ""], number: Int[Array, ""], ids: Int[Array, " n"]) -> Array:
        values = jnp.asarray(table, jnp.result_type(float))
        return values[jnp.minimum(number, len(table) - 1), ids]

    return ClientNumbers(of, float(table.min()), float(table.max()))
