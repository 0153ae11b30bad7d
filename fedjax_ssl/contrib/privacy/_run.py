"""The privacy of a run between its blocks: epsilon in every row, the end at the budget, and lines
for the user.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedjax_ssl.contrib.privacy._account import Account
from fedjax_ssl.errors import ConfigError, counted
from fedjax_ssl.folder import no_protection
from fedjax_ssl.models import count_parameters
from fedjax_ssl.runs import Block

_LOGGED = (
    "scores, losses and counts in metrics.csv, and a model, a round or a temperature chosen by "
    "them; names of classes and columns; noise follows from config.seed, which has to stay secret"
)
# Ratio of a round's noise to the largest mean update, beyond which little is learned.
_HOPELESS = 20


@dataclass(frozen=True)
class PrivateRun:
    """Account of a run, as a callback that adds columns.

    Attributes:
        account: of its mechanism.
        settings: of `config.privacy`.
        rounds: that the config asks for.
        outside: what of this config no epsilon counts, in words.
    """

    account: Account
    settings: Any
    rounds: int
    outside: tuple[str, ...] = ()

    def __call__(self, block: Block) -> None:
        """Add epsilon so far, and an adaptive clip norm."""
        block.row["epsilon"] = self.account.cost(block.row["round"])
        if getattr(self.settings, "quantile", None) is not None:
            block.row["clip_norm"] = float(block.state.uploads[-1].norm)

    @cached_property
    def limit(self) -> int:
        """The last round within the budget.

        Raises:
            ConfigError: not even one round is within the budget.
        """
        budget = self.settings.epsilon
        if budget is None or not self.rounds:
            return self.rounds
        limit = self.account.rounds_within(budget, self.rounds)
        if not limit:
            raise ConfigError(
                f"config.privacy.epsilon is {budget:g}, but one round with noise "
                f"{self.account.noise:.4g} costs {self.account.cost(1):.4g}; give a larger "
                "epsilon, or more noise"
            )
        return limit

    def summary(self, rounds: int) -> dict[str, Any]:
        """Return the fields of `summary.json` besides epsilon, after these rounds."""
        return {
            "delta": self.account.whole_delta,
            "noise": self.account.noise,
            "budget_spent": self.limit < self.rounds,
            **self.account.earlier.fields(rounds),
        }

    def lines(self, params: Any) -> list[str]:
        """Return lines on what is protected, at which cost, and what is not.

        Args:
            params: parameters of the network, or their shapes.
        """
        noise = self.account.noise
        cohorts = self.account.cohorts
        if self.account.steps:
            return [*self._of_examples(), *self.beyond(), *self._end()]
        drawn = f"all {cohorts.clients} clients in every round"
        if cohorts.probability < 1:
            drawn = (
                f"each of {cohorts.clients} clients drawn with probability "
                f"{cohorts.probability:.4g}, at most {cohorts.slots} in a round"
            )
        lines = [
            f"privacy of one client more or less: epsilon {self.account.cost(self.limit):.4g} at "
            f"delta {self.account.whole_delta:.3g} after {counted(self.limit, 'round')}, noise "
            f"{noise:.4g} times the clip norm, {drawn} ({self.account.accountant})",
            f"outside this epsilon: {_LOGGED}",
        ]
        lines += [*self.beyond(), *self._end()]
        length = noise * math.sqrt(count_parameters(params)) / cohorts.expected
        if length > _HOPELESS:
            lines.append(
                f"the noise of a round is {length:,.0f} times as long as the mean update can be "
                f"(noise {noise:.4g}, {count_parameters(params):,} parameters, about "
                f"{counted(cohorts.expected, 'client')}): little will be learned; more clients, a "
                "smaller network or a larger epsilon help"
            )
        return lines

    def _of_examples(self) -> list[str]:
        """Return the cost of private steps, in words."""
        drawn, steps = max(self.account.steps, key=lambda one: one[0].probability * one[1])
        return [
            f"privacy of one example more or less at a client, also from the server: epsilon "
            f"{self.account.cost(self.limit):.4g} at delta {self.account.whole_delta:.3g} after "
            f"{counted(self.limit, 'round')}, noise {self.account.noise:.4g} times the clip norm "
            f"of a gradient; a client of {counted(drawn.clients, 'example')} takes "
            f"{counted(steps, 'step')} a round and draws each of them with probability "
            f"{drawn.probability:.4g}",
            f"outside this epsilon: how many examples a client has, {_LOGGED}",
        ]

    def beyond(self) -> list[str]:
        """Return facts that weaken this epsilon: its delta, and training before the run."""
        delta = self.account.whole_delta
        earlier = self.account.earlier
        lines = []
        if weak := no_protection(delta):
            whom = "an example" if self.account.steps else "a client"
            lines.append(
                f"epsilon {self.account.cost(self.limit):.4g} is {weak}: with this probability all "
                f"data of {whom} may be shown; have more of them, or set config.privacy.delta to "
                "0.001 or less"
            )
        if earlier.epsilon:
            lines.append(
                f"this epsilon counts the {counted(earlier.rounds, 'private round')} before "
                f"config.start_from too: epsilon {earlier.epsilon:.4g} and delta "
                f"{earlier.delta:.3g} of it"
            )
        lines += [
            f"outside this epsilon: config.start_from, {one}: its weights may show all that it "
            "learned from these clients"
            for one in earlier.outside
        ]
        return lines + [f"outside this epsilon: {one}" for one in self.outside]

    def _end(self) -> list[str]:
        if self.limit == self.rounds:
            return []
        return [
            f"the budget epsilon={self.settings.epsilon:g} is spent after round {self.limit} of "
            f"{self.rounds}: the run ends there"
        ]
