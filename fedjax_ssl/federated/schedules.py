"""Learning rates as functions of the round."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from fedjax_ssl.checks import check_choices, check_whole_numbers
from fedjax_ssl.federated.setup import LearningRate

SCHEDULES = ("constant", "cosine", "exponential", "piecewise", "linear", "warmup", "warmup_cosine")


def schedule_name(name: str) -> str:
    """Return our name for a schedule of optax: "exponential" for "exponential_decay"."""
    return name if ":" in name else re.sub(r"(_schedule|_decay|_constant)+$", "", name)


def learning_rate_schedule(
    name: str,
    learning_rate: float | Array,
    schedule_rounds: int = 1,
    *,
    rounds: int = 1,
    schedule_factor: float = 0.1,
    schedule_boundaries: tuple[int, ...] | None = None,
    schedule_staircase: bool = False,
    schedule_warmup: int | None = None,
    schedule_end: float = 0.0,
) -> LearningRate:
    """Return the learning rate for every round; it is constant within the round.

    With n = `schedule_rounds`, the rate stays constant after the last round of the schedule:

    - "constant"; "cosine": rate / 2 * (1 + cos(pi * round / n)), rounds from 0 (XCLP section 5.3,
      there with 2,000 schedule rounds for 1,500 rounds of training);
    - "exponential": rate * factor^(round / n); "piecewise": times the factor at every boundary;
    - "linear": rate * ((1 - end) * (1 - round / n) + end);
    - "warmup": rate * (round + 1) / (w + 1) for the first w = `schedule_warmup` rounds;
      "warmup_cosine": then a cosine down to rate * end in round n.

    Args:
        name: one of these, or "module:function" for a function of the round, a whole number, that
            returns the rate.
        learning_rate: the rate in round 0, or after the warm-up; may be traced.
        schedule_rounds: length of the schedule.
        rounds: rounds of the run, for which a user's own function is evaluated.
        schedule_factor: factor of "exponential" and "piecewise".
        schedule_boundaries: rounds at which "piecewise" changes the rate; by default n / 2 and 3 n
            / 4.
        schedule_staircase: "exponential" changes the rate every n rounds only.
        schedule_warmup: w; by default n / 10, at least 1.
        schedule_end: final rate, as a share of the learning rate.

    Raises:
        ValueError: for an unknown name, fewer than 1 schedule round, a warm-up as long as the
            schedule, or a function whose rate is negative or no number.

    Example:
        >>> rate = fs.federated.learning_rate_schedule("exponential", 0.1, 1, schedule_factor=0.5)
        >>> [float(rate(jnp.int32(number)).round(4)) for number in range(3)]
        [0.1, 0.05, 0.025]
    """
    check_whole_numbers(schedule_rounds=schedule_rounds)
    if ":" in name:
        return _table(name, max(rounds, 1))
    check_choices(SCHEDULES, schedule=name)
    # A plain number stays on the host: a config is checked before JAX starts.
    asarray: Any = jnp.asarray if isinstance(learning_rate, jax.Array) else np.asarray
    rate = asarray(learning_rate, jnp.result_type(float))
    length = schedule_rounds
    warmup = max(length // 10, 1) if schedule_warmup is None else schedule_warmup
    boundaries = (
        (length // 2, length * 3 // 4) if schedule_boundaries is None else schedule_boundaries
    )

    # Not optax's version: its order of operations gives other bits, and it mixes the types of count
    # and rate.
    def cosine(round_number: Int[Array, ""]) -> Float[Array, ""]:
        progress = round_number.astype(rate.dtype) / schedule_rounds
        return rate * 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.minimum(progress, 1.0)))

    if name in ("constant", "cosine"):
        return cosine if name == "cosine" else lambda round_number: jnp.asarray(rate)
    if name == "warmup_cosine" and warmup >= length:
        raise ValueError(
            f"schedule_warmup is {warmup} and schedule_rounds, with the warm-up, {length}; leave "
            "rounds for the cosine"
        )
    first = 1.0 / (warmup + 1)
    factors: Mapping[str, Callable[[], optax.Schedule]] = {
        "exponential": lambda: optax.exponential_decay(
            1.0, length, schedule_factor, staircase=schedule_staircase
        ),
        "piecewise": lambda: optax.piecewise_constant_schedule(
            1.0, dict.fromkeys(boundaries, schedule_factor)
        ),
        "linear": lambda: optax.linear_schedule(1.0, schedule_end, length),
        "warmup": lambda: optax.linear_schedule(first, 1.0, warmup),
        "warmup_cosine": lambda: optax.warmup_cosine_decay_schedule(
            first, 1.0, warmup, length, schedule_end
        ),
    }
    factor = factors[name]()

    def scheduled(round_number: Int[Array, ""]) -> Float[Array, ""]:
        with jax.numpy_dtype_promotion("standard"):
            return rate * jnp.asarray(factor(round_number), rate.dtype)

    return scheduled


def _table(name: str, rounds: int) -> LearningRate:
    """Evaluate a user's own function for every round, before training."""
    from fedjax_ssl.own_code import import_named, number_from, where

    function = import_named("schedule", name)
    # A program may be being traced.
    with jax.ensure_compile_time_eval(), jax.numpy_dtype_promotion("standard"):
        rates = np.array(
            [number_from(f"schedule {name!r}", function, number) for number in range(rounds)],
            np.float32,
        )
    for number in np.flatnonzero(~((rates >= 0) & (rates < np.inf)))[:1]:
        raise ValueError(
            f"schedule {name!r} returned {rates[number]} in round {number}; a learning rate is a "
            f"number of at least 0 ({where(function)})"
        )
    return lambda round_number: jnp.asarray(rates, jnp.result_type(float))[round_number]
