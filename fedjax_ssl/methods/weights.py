"""Weights of losses: real numbers, which a sweep may trace; only those that are not traced can be looked at."""

from jaxtyping import Array


def check_weights(**weights: float | Array) -> None:
    """Raises ValueError for a negative weight; a traced one cannot be looked at."""
    for name, weight in weights.items():
        if isinstance(weight, (int, float)) and weight < 0:
            raise ValueError(f"{name} is {weight}; it must be >= 0")


def is_zero(weight: float | Array) -> bool:
    """Whether a weight is known to be 0; a traced one is not."""
    return isinstance(weight, (int, float)) and weight == 0
