"""The points of a sweep: `--set FIELD=VALUES`, `--seeds`, and their combinations."""

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_ssl.config import ConfigError

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"(?:(log|linear):)?({_NUMBER})\.\.({_NUMBER})")
Settings = dict[str, Any]  # dotted field -> value, or its text


class Range(NamedTuple):
    """All numbers between two bounds, both included."""

    low: float
    high: float
    log: bool  # evenly spaced on a logarithmic scale
    whole: bool  # whole numbers only

    def at(self, share: float) -> float | int:
        """Return the number at this share of the range; 0 gives the lowest, 1 the highest."""
        low, high = (self.low, self.high + 1) if self.whole else (self.low, self.high)
        number = low * (high / low) ** share if self.log else low + share * (high - low)
        if self.whole:
            return min(int(number), int(self.high))
        return float(f"{number:.6g}")  # short enough to type again


class Axis(NamedTuple):
    """A field and its values."""

    field: str
    values: tuple[str, ...] | Range


def parse_axis(text: str) -> Axis:
    """Read `--set FIELD=VALUES`.

    VALUES are separated by commas, but not inside brackets or quotes: `0.03,0.1`, `(64,64),(128,)`,
    `'network,xclp'`. Or they are a range: `0.001..1` is spread evenly in the logarithm,
    `linear:0..1` evenly, `1..10` over whole numbers.

    Raises:
        ConfigError: the text has another form.
    """
    field, equals, values = text.partition("=")
    field = field.strip().removeprefix("config.")
    if not equals or not field or not values.strip():
        raise ConfigError(
            f"--set {text!r} is not of the form FIELD=VALUES; for example --set "
            "optimizer.learning_rate=0.03,0.1"
        )
    if found := _RANGE.fullmatch(values.strip()):
        return Axis(field, _range(text, found))
    given = tuple(_unquoted(part.strip()) for part in _split(values))
    if "" in given:
        raise ConfigError(
            f"--set {text!r} has an empty value between its commas; write None for no value"
        )
    if repeated := [value for value in dict.fromkeys(given) if given.count(value) > 1]:
        raise ConfigError(f"--set {text!r} names {repeated[0]} twice")
    return Axis(field, given)


def pairs(option: str, texts: Sequence[str], form: str) -> dict[str, str]:
    """Read an option of the form NAME=VALUE, given any number of times.

    Raises:
        ConfigError: a text is not of this form, or a name is there twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value:
            raise ConfigError(f"{option} {text!r} is not of the form {form}")
        if name in found:
            raise ConfigError(f"{option} names {name} twice")
        found[name] = value
    return found


MOST_SEEDS = 10_000  # a larger number is taken for a single seed


def parse_seeds(text: str | None) -> tuple[int, ...] | None:
    """Read `--seeds`: a number N for 0 to N - 1, or seeds with commas between.

    Raises:
        ConfigError: it is neither.
    """
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts) or (len(parts) == 1 and int(text) < 1):
        raise ConfigError(
            f"--seeds is {text!r}; give their number (5 for 0 to 4), or the seeds (0,7,11)"
        )
    given = tuple(map(int, parts))
    if len(given) == 1 and given[0] > MOST_SEEDS:
        raise ConfigError(
            f"--seeds is {text}, the number of seeds, and more than {MOST_SEEDS:,}; a single seed "
            f"is given as --set seed={text}"
        )
    if len(set(given)) < len(given):
        raise ConfigError(f"--seeds is {text!r}: a seed is there twice")
    return given if len(given) > 1 else tuple(range(given[0]))


def points(
    axes: Sequence[Axis],
    seeds: Sequence[int] | None,
    *,
    zipped: bool = False,
    random: int | None = None,
    seed: int = 0,
) -> list[Settings]:
    """List the points of a sweep, in the order of the plan.

    Args:
        axes: every field once.
        seeds: every point runs with all of these; None: the config's own seed.
        zipped: the first values of all axes make the first point, and so on, in place of all
            combinations.
        random: number of random points; a larger number begins with the same points.
        seed: random seed of the points.

    Raises:
        ConfigError: a field twice, axes that cannot be zipped, or a range without `random`.
    """
    _check(axes, zipped, random)
    if seeds is not None and any(axis.field == "seed" for axis in axes):
        raise ConfigError(
            "seed has values of its own beside --seeds; give one of the two, or --seeds 4,5 for "
            "these seeds"
        )
    if random is not None:
        combinations = [_draw(axes, seed, number) for number in range(random)]
    elif zipped:
        combinations = list(zip(*(axis.values for axis in axes), strict=True))
    else:
        combinations = list(itertools.product(*(axis.values for axis in axes)))
    found = [
        {axis.field: value for axis, value in zip(axes, values, strict=True)}
        for values in combinations
    ]
    return found if seeds is None else [{**point, "seed": one} for point in found for one in seeds]


def _check(axes: Sequence[Axis], zipped: bool, random: int | None) -> None:
    fields = [axis.field for axis in axes]
    if repeated := [field for field in fields if fields.count(field) > 1]:
        raise ConfigError(
            f"--set {repeated[0]} is given twice; put all its values into one: {repeated[0]}=A,B,C"
        )
    ranges = [axis.field for axis in axes if isinstance(axis.values, Range)]
    if random is not None and zipped:
        raise ConfigError("--zip and --random exclude each other; use one of them")
    if random is not None and random < 1:
        raise ConfigError(f"--random is {random}; it must be at least 1")
    if ranges and random is None:
        raise ConfigError(
            f"--set {ranges[0]} is a range; say how many points to draw (--random 20), or list "
            "its values"
        )
    if zipped:
        counts = {axis.field: len(axis.values) for axis in axes}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{field} has {count}" for field, count in counts.items())
            raise ConfigError(f"--zip needs as many values of every field, but {listed}")
        if not axes:
            raise ConfigError("--zip goes with --set; give the fields that change together")


def _draw(axes: Sequence[Axis], seed: int, number: int) -> tuple[Any, ...]:
    shares = np.random.default_rng([seed, number]).random(len(axes))
    return tuple(
        axis.values.at(share)
        if isinstance(axis.values, Range)
        else axis.values[int(share * len(axis.values))]
        for axis, share in zip(axes, shares.tolist(), strict=True)
    )


def _range(text: str, found: re.Match[str]) -> Range:
    low = float(found[2])
    high = float(found[3])
    whole = found[1] is None and all(re.fullmatch(r"[-+]?\d+", part) for part in found.groups()[1:])
    log = found[1] == "log" or (found[1] is None and not whole)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(
            f"--set {text!r}: the first number of a range must be below the second one"
        )
    if log and low <= 0:
        raise ConfigError(
            f"--set {text!r}: a range in the logarithm starts above 0; or write linear:{found[0]}"
        )
    return Range(low, high, log, whole)


def _unquoted(value: str) -> str:
    """Remove the quotes around a whole value."""
    if len(value) > 1 and value[0] in "'\"" and value.find(value[0], 1) == len(value) - 1:
        return value[1:-1]
    return value


def _split(values: str) -> list[str]:
    """Cut at commas outside of brackets and quotes."""
    parts = [""]
    depth = 0
    quote = ""
    for letter in values:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        else:
            depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
