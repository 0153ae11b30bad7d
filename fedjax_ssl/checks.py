"""Checks of arguments, in one wording; real numbers may be traced by a sweep, and those cannot be looked at."""

from collections.abc import Collection
from typing import Any

import numpy as np
from jaxtyping import Array

from fedjax_ssl.registry import did_you_mean

LARGEST_WHOLE = 2**31 - 1  # counts are 32 bits wide on the device
# The run computes in single precision: beyond this a number is infinite, and a positive one below it is 0.
LARGEST, SMALLEST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)


def check_whole_numbers(lowest: int = 1, highest: int = LARGEST_WHOLE, /, **numbers: Any) -> None:
    """Raises ValueError for what is not a whole number of at least `lowest` and at most `highest`."""
    for name, value in numbers.items():
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if whole and value > highest:
            raise ValueError(f"{name} is {value!r}; it must be a whole number from {lowest} to {highest}")
        if not whole or value < lowest:
            raise ValueError(f"{name} is {value!r}; it must be a whole number of at least {lowest}")


def check_numbers(interval: str = "[0, inf)", /, **numbers: Any) -> None:
    """Raises ValueError for what is not a number in an interval, nan among it; a traced number passes.

    Args:
        interval: as in mathematics, for example "[0, 1)": with 0 and without 1. inf belongs to none, and neither does
            what single precision makes of it: a number beyond its largest, or one so near to an end at 0 that belongs
            not to it that it becomes 0.
        **numbers: by the names that a message calls them.
    """
    lowest, highest = map(float, interval[1:-1].split(","))
    for name, value in numbers.items():
        if isinstance(value, (Array, np.ndarray)):
            continue
        real = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        above = real and (value > lowest or (value == lowest and interval[0] == "["))
        if not (above and (value < highest or (value == highest and interval[-1] == "]"))):
            raise ValueError(f"{name} is {value!r}; it must be a number {_in_words(interval)}")
        vanishes = interval.startswith("(0,") and value < SMALLEST
        if vanishes or abs(value) > LARGEST:
            limit = f"at least {SMALLEST:.3g}" if vanishes else f"at most {LARGEST:.3g}"
            raise ValueError(f"{name} is {value!r}; single precision, in which a run computes, takes {limit}")


def _in_words(interval: str) -> str:
    lowest, highest = map(float, interval[1:-1].split(","))
    if lowest == -np.inf:
        return "that is finite"
    half = f"of at least {lowest:g}" if interval[0] == "[" else f"above {lowest:g}"
    return half if highest == np.inf else f"in {interval}"


def check_weights(**weights: Any) -> None:
    """Raises ValueError for what is not a number of at least 0; a traced one passes."""
    check_numbers(**weights)


def check_choices(allowed: Collection[str], /, **given: Any) -> None:
    """Raises ValueError for what is not among the allowed names."""
    for name, choice in given.items():
        if choice not in allowed:
            raise ValueError(f"{name} is {choice!r}.{did_you_mean(choice, allowed)} Allowed: {', '.join(allowed)}")


def check_several(allowed: Collection[str], /, **given: Any) -> None:
    """Raises ValueError for what is not a tuple of different allowed names."""
    for name, choices in given.items():
        if not isinstance(choices, (tuple, list)):
            raise ValueError(f"{name} is {choices!r}; it must be a tuple of names, of {', '.join(allowed)}")
        for choice in choices:
            if choice not in allowed:
                raise ValueError(
                    f"{name} names {choice!r}.{did_you_mean(choice, allowed)} Allowed: {', '.join(allowed)}"
                )
        if len(set(choices)) < len(choices):
            raise ValueError(f"{name} is {tuple(choices)!r}, which names one of them twice")


def is_zero(weight: float | Array) -> bool:
    """Whether a weight is known to be 0; a traced one is not."""
    return isinstance(weight, (int, float)) and weight == 0
