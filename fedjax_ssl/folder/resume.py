"""Resuming a run: whether its folder's config allows it, and whether the run may get longer."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_collections


def other_start(stored: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Say how a run's data, split or random numbers differ from those it began with; empty if they
    are the same. Facts that the start did not store are not compared.

    Args:
        stored: what the start left in `model.json`.
        now: the same as of now.
    """
    data = stored.get("data")
    said = []
    for name, value in now["data"].items():
        before = data.get(name) if isinstance(data, dict) else value
        if before != value:
            both = isinstance(before, int) and isinstance(value, int)
            number = f"{before:,} -> {value:,}" if both else "changed"
            said.append(f"{name.replace('_', ' ')}: {number}")
    if said:
        return (
            f"on other data than these (stored -> now). {'; '.join(said)}. Give it the data that "
            "it began on, or start a run on these with another --workdir."
        )
    draws = stored.get("draws", {})
    others = [name for name, value in now["draws"].items() if draws.get(name, value) != value]
    if others:
        said = [f"{name}: {draws[name]} -> {now['draws'][name]}" for name in others]
        back = " ".join(f"{name.upper()}={draws[name]}" for name in others)
        return (
            f"with other random numbers or types of JAX (stored -> now): {'; '.join(said)}. Set "
            f"them back ({back}), or give another --workdir."
        )
    before = stored.get("split", now["split"])
    if before != now["split"]:
        return (
            f"on another split of these data (stored -> now): {before} -> {now['split']}. Give it "
            "the split that it began on, or another --workdir."
        )
    return ""


def changed_code(stored: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """Return the user's own modules whose text has changed."""
    then = stored.get("code", {})
    return [name for name, digest in now.items() if then.get(name, digest) != digest]


def why_not_longer(
    config: ml_collections.ConfigDict,
    changes: Mapping[str, tuple[Any, Any]],
    checkpoints: Sequence[int],
) -> str:
    """Return why a run cannot go on with changed lengths; "" if it can.

    Then it ends like a run with this length from the start.

    Args:
        config: resolved, as it is now.
        changes: stored value and the one now of lengths that differ.
        checkpoints: rounds that can be restored.

    Returns:
        A sentence or two for the user.
    """
    old, new = changes.get("rounds", (config.rounds, config.rounds))
    if new < old:
        return f"A run can get longer, but this one has {old} rounds already."
    schedule = config.optimizer.schedule
    if "optimizer.schedule_rounds" in changes and schedule != "constant":
        over, instead = changes["optimizer.schedule_rounds"]
        return (
            f"Its learning rates followed a {schedule} over {over} rounds, and over {instead} "
            f"they would have been others. --config.optimizer.schedule_rounds={over} keeps them."
        )
    if checkpoints and not restorable(checkpoints, config.eval_every):
        return (
            f"Its checkpoints are of round {' and '.join(map(str, checkpoints))}, where a longer "
            f"run has no evaluation (config.eval_every is {config.eval_every}), so that its "
            "metrics could not be the same."
        )
    if settings := ", ".join(f"config.{name}={value}" for name, value in _over_all_rounds(config)):
        return (
            "Something in it stretches over all rounds of the run, so that rounds of a longer "
            f"one are others: {settings}. A run that is to get longer needs a number there from "
            "its start."
        )
    return ""


def restorable(checkpoints: Sequence[int], eval_every: int) -> int:
    """Return the last round from which a longer run can go on; 0: the start."""
    return max((round for round in checkpoints if round % eval_every == 0), default=0)


def _over_all_rounds(config: ml_collections.ConfigDict) -> Iterator[tuple[str, Any]]:
    """Find lengths that are not given, so that they equal the run's.

    In a method these are fields NAME_rounds and NAME_steps where its field NAME chooses something.
    """
    method = config.method.to_dict()
    parts = {f"method.{name}": own for name, own in method.items() if isinstance(own, dict)}
    for section, own in {"method": method, **parts}.items():
        for field, value in own.items():
            what, _, unit = field.rpartition("_")
            if unit in ("rounds", "steps") and not value:
                chosen = [own[name] for name in own if name == what or name.endswith(f"_{what}")]
                if any(choice not in (None, False, "none", "run") for choice in chosen):
                    yield f"{section}.{field}", value
    if (config.partition.get("parts") or 1) > 1 and config.partition.get("rounds_per_part") is None:
        yield "partition.rounds_per_part", None
    if config.privacy.name != "none" and config.privacy.noise is None:
        yield "privacy.noise", None
