"""Checks of what methods are told; real numbers may be traced by a sweep, and those cannot be looked at."""

from collections.abc import Mapping

from jaxtyping import Array


def check_weights(**weights: float | Array) -> None:
    """Raises ValueError for a negative weight; a traced one cannot be looked at."""
    for name, weight in weights.items():
        if isinstance(weight, (int, float)) and weight < 0:
            raise ValueError(f"{name} is {weight}; it must be >= 0")


def is_zero(weight: float | Array) -> bool:
    """Whether a weight is known to be 0; a traced one is not."""
    return isinstance(weight, (int, float)) and weight == 0


def check_whole_numbers(lowest: int = 1, /, **numbers: int) -> None:
    """Raises ValueError for what is not a whole number of at least `lowest`."""
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
            raise ValueError(f"{name} is {value!r}; it must be a whole number of at least {lowest}")


def check_choices(allowed: Mapping[str, tuple[str, ...]], /, **given: str) -> None:
    """Raises ValueError for what is not among the names allowed for it."""
    for name, choice in given.items():
        if choice not in allowed[name]:
            raise ValueError(f"{name} is {choice!r}; allowed: {', '.join(allowed[name])}")
