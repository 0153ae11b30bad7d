"""The privacy mechanism of a run, by `config.privacy`, and the privacy that the run spent before it
started, by the runs behind its first weights. Mechanisms are contributed.
"""

import hashlib
import math
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import ml_collections
from jaxtyping import Array

from fedjax_ssl import config as configs
from fedjax_ssl.config import ConfigError, naming
from fedjax_ssl.federated import Recipe
from fedjax_ssl.federated.uploads import PRIVACY
from fedjax_ssl.folder.stored_run import read_run


class Earlier(NamedTuple):
    """Private rounds before a run, behind `config.start_from`. Epsilons and deltas add up."""

    epsilon: float = 0.0  # sum over all of them
    delta: float = 0.0  # likewise
    rounds: int = 0  # likewise
    outside: tuple[str, ...] = ()
    # ^ training that no epsilon counts, in words: "runs/open, trained without privacy"

    def fields(self, rounds: int) -> dict[str, Any]:
        """Return the fields of `summary.json` for a later run that starts from this one."""
        return {"private_rounds": self.rounds + rounds, "outside_epsilon": list(self.outside)}


def start_digest(place: str) -> int:
    """Return 32 bits that identify the start of a private run, from the bytes of a weights file, or
    from a run's config and rows.

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
        ConfigError: it starts from a private run without a summary, or one that is gone.
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


class Account(Protocol):
    """Base of the privacy accounts of a run."""

    noise: Any  # deviation of the noise in units of the clip norm
    cohorts: Any  # sampling of the cohorts

    @property
    def whole_delta(self) -> float:
        """Delta that belongs to `cost`."""

    def cost(self, rounds: int) -> float:
        """Return epsilon after these rounds, including earlier runs."""


class PrivateRun(Protocol):
    """Base of the account of a run, as a callback that adds columns."""

    @property
    def account(self) -> Account:
        """Its account."""

    @property
    def limit(self) -> int:
        """The last round within the privacy budget."""

    def __call__(self, block: Any) -> None:
        """Add epsilon so far to the row of a `Block`."""

    def summary(self, rounds: int) -> dict[str, Any]:
        """Return the fields of `summary.json` besides epsilon, after these rounds."""

    def lines(self, params: Any) -> list[str]:
        """Return lines on what is protected, at which cost, and what is not."""

    def beyond(self) -> list[str]:
        """Return the facts that weaken this epsilon."""


class Mechanism(Protocol):
    """Base of the settings of a privacy mechanism; its numbers may be traced."""

    noise: Any  # None: solved for the budget

    def slots_of(self, clients: int, expected: int) -> int:
        """Return the most clients of a round, from their expected number."""

    def account(
        self, sizes: tuple[int, int], labelled: tuple[int, int], config: Any, earlier: Earlier
    ) -> Account:
        """Return the account of a run's costs.

        Args:
            sizes: number of training clients in the federation, and in a round on average.
            labelled: fewest labelled examples of a client with any, and most.
            config: resolved.
            earlier: privacy spent before the run.
        """

    def private(self, recipe: Recipe, noise: float | Array, cohorts: Any) -> Recipe:
        """Return the private form of a method; no wrapper may be around it.

        Raises:
            ConfigError: the method reveals more about clients than the mechanism can hide.
        """

    def in_run(self, account: Any, rounds: int, outside: tuple[str, ...] = ()) -> PrivateRun:
        """Return its account in a run; `outside` names training that epsilon does not count, in
        words.
        """


def privacy_of(config: Any) -> Mechanism | None:
    """Return the privacy settings of a resolved config, or of such a dictionary, with numbers that
    may be traced; None: no privacy.
    """
    section = config["privacy"]
    with naming("privacy"):
        return PRIVACY.build(section["name"], **configs.options(section))


def account_of(
    config: ml_collections.ConfigDict, clients: int, expected: int, labelled: tuple[int, int]
) -> Account | None:
    """Return the account of a run; None: no privacy.

    Args:
        config: resolved.
        clients: number of training clients.
        expected: clients of a round on average.
        labelled: as in `Mechanism.account`.

    Raises:
        ConfigError: the bound is meaningless, no noise reaches the budget, or dp-accounting is not
            installed.
    """
    mechanism = privacy_of(config)
    if mechanism is None:
        return None
    with naming("privacy"):
        return mechanism.account((clients, expected), labelled, config, earlier_of(config))
