"""What a run's start has cost of privacy: the runs that its first weights were trained by."""

import hashlib
import math
from pathlib import Path
from typing import Any, NamedTuple

import ml_collections

from fedjax_ssl.config import ConfigError
from fedjax_ssl.folder.stored_run import read_run


class Earlier(NamedTuple):
    """Private rounds before a run began, at `config.start_from`. Epsilons and deltas add up."""

    epsilon: float = 0.0  # of all of them
    delta: float = 0.0  # likewise
    rounds: int = 0  # likewise
    outside: tuple[str, ...] = ()
    # ^ training that is in no epsilon, in words: "runs/open, trained without privacy"

    def fields(self, rounds: int) -> dict[str, Any]:
        """Give what `summary.json` keeps for a run that goes on from this one after some rounds."""
        return {"private_rounds": self.rounds + rounds, "outside_epsilon": list(self.outside)}


def start_digest(place: str) -> int:
    """Return 32 bits that tell one start of a private run from another: from the bytes of a file of
    weights, or from a run's config and rows.

    Args:
        place: `config.start_from`.
    """
    path = Path(place).expanduser()
    files = [path] if path.is_file() else [path / "config.json", path / "metrics.jsonl"]
    found = hashlib.sha256()
    for file in files:
        found.update(file.read_bytes() if file.exists() else b"")
    return int.from_bytes(found.digest()[:4], "big")


def earlier_of(config: ml_collections.ConfigDict) -> Earlier:
    """Return the private rounds before a private run began; nothing if it starts from random
    weights.

    Raises:
        ConfigError: it starts from a private run that has no summary, or is gone.
    """
    place = config.start_from
    if not place:
        return Earlier()
    folder = Path(place).expanduser()
    if folder.is_file():
        return Earlier(outside=(f"{place}, of whose training a file says nothing",))
    run = read_run(folder)
    if not run.config:
        raise ConfigError(
            f"config.start_from: {place} is no run folder (any more), and epsilon has to count "
            "what it has spent; put it back"
        )
    name = run.config.get("privacy", {}).get("name", "none")
    if name == "none":
        return Earlier(outside=(f"{place}, trained without privacy",))
    summary = run.summary or {}
    if "epsilon" not in summary:
        raise ConfigError(
            f"config.start_from: {place} is a private run without a summary, so that its epsilon "
            "is not known; let its own command end it"
        )
    outside = tuple(summary.get("outside_epsilon", ()))
    rounds = summary.get("private_rounds", summary["rounds"])
    if name != config.privacy.name:
        whom = {"gaussian": "clients", "dp_sgd": "single examples"}
        return Earlier(
            rounds=rounds,
            outside=(*outside, f"{place}, whose privacy.name={name} is that of {whom[name]}"),
        )
    return Earlier(summary["epsilon"], summary.get("delta", math.nan), rounds, outside)
