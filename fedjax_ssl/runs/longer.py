"""More rounds for a run that is there: whether it ends as a run would that had been that long from the beginning."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import ml_collections
from jaxtyping import Array, Key

from fedjax_ssl import config as configs
from fedjax_ssl.data import FederatedData
from fedjax_ssl.runs.build import Experiment, build_method

FIELDS = ("rounds", "optimizer.schedule_rounds")  # those that may change then


def why_not(
    experiment: Experiment,
    federation: FederatedData,
    key: Key[Array, ""],
    changes: Mapping[str, tuple[Any, Any]],
    checkpoints: Sequence[int],
) -> str:
    """Why a run cannot go on under a config whose `FIELDS` have changed; empty where it can.

    Args:
        experiment: with the config as it is now.
        federation: of the run.
        key: of the run.
        changes: stored value and the one now of `FIELDS` that differ.
        checkpoints: rounds that can be restored.

    Returns:
        A sentence or two for the user.
    """
    config = experiment.config
    old, new = changes.get("rounds", (config.rounds, config.rounds))
    if new < old:
        return f"A run can get longer, but this one has {old} rounds already."
    schedule = config.optimizer.schedule
    if "optimizer.schedule_rounds" in changes and schedule != "constant":
        over, instead = changes["optimizer.schedule_rounds"]
        return (
            f"Its learning rates followed a {schedule} over {over} rounds, and over {instead} they would have been "
            f"others. --config.optimizer.schedule_rounds={over} keeps them."
        )
    if checkpoints and not _aligned(checkpoints, config.eval_every):
        return (
            f"Its checkpoints are of round {' and '.join(map(str, checkpoints))}, where a longer run has no evaluation "
            f"(config.eval_every is {config.eval_every}), so that its metrics could not be the same."
        )
    before = ml_collections.ConfigDict(config.to_dict())
    for name, (value, _) in changes.items():
        before.update_from_flattened_dict({name: value})
    programs = [_round(experiment._replace(config=one), federation, key) for one in (before.lock(), config)]
    return "" if programs[0] == programs[1] else _something_else(config)


def restorable(checkpoints: Sequence[int], eval_every: int) -> int:
    """The last round from which a longer run can go on; 0: from the start."""
    return max(_aligned(checkpoints, eval_every), default=0)


def _aligned(checkpoints: Sequence[int], eval_every: int) -> list[int]:
    return [round for round in checkpoints if round % eval_every == 0]


def _round(experiment: Experiment, federation: FederatedData, key: Key[Array, ""]) -> str:
    """The program of a round, as text. What decides it is the same where this is the same."""
    method = build_method(experiment, federation)
    state = jax.eval_shape(method.init, key, federation)
    with configs.naming("method"):
        return jax.jit(method.round).lower(key, state, federation).as_text()


def _something_else(config: ml_collections.ConfigDict) -> str:
    those = [(f"method.{name}", value) for name, value in config.method.items() if name.endswith(("_rounds", "_steps"))]
    if (config.partition.get("parts") or 1) > 1:
        those.append(("partition.rounds_per_part", config.partition.rounds_per_part))
    settings = ", ".join(f"config.{name}={value}" for name, value in those)
    return (
        f"A round of method {config.method.name!r} is another one in a longer run: something in it stretches over all "
        "rounds, such as a ramp-up, annealing or a schedule of its own, or examples that come in parts."
        + (f" If one of these says over how many rounds, give it the old number: {settings}." if settings else "")
    )
