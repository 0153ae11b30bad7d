"""What `config.privacy` names, as a run uses it. Mechanisms are contributed."""

from typing import Any, Protocol

import ml_collections
from jaxtyping import Array

from fedjax_ssl import config as configs
from fedjax_ssl.config import naming
from fedjax_ssl.federated import Recipe
from fedjax_ssl.federated.uploads import PRIVACY
from fedjax_ssl.runs.earlier import Earlier, earlier_of


class Account(Protocol):
    """Costs of a run's privacy."""

    noise: Any  # deviation of the noise in units of the clip norm
    cohorts: Any  # how clients are drawn

    @property
    def whole_delta(self) -> float:
        """Delta of `cost`."""

    def cost(self, rounds: int) -> float:
        """Return epsilon after these rounds, with what was spent before the run."""


class PrivateRun(Protocol):
    """Account of a run, as a callback that adds columns."""

    @property
    def account(self) -> Account:
        """Its costs."""

    @property
    def limit(self) -> int:
        """The last round within the budget."""

    def __call__(self, block: Any) -> None:
        """Add epsilon so far to the row of a `Block`."""

    def summary(self, rounds: int) -> dict[str, Any]:
        """Give the fields of `summary.json` beside epsilon, after these rounds."""

    def lines(self, params: Any) -> list[str]:
        """Say what is protected, at which price, and what is not."""

    def beyond(self) -> list[str]:
        """Say what weakens this epsilon."""


class Mechanism(Protocol):
    """Settings of the mechanism that hides clients or examples; its numbers may be traced."""

    noise: Any  # None: solved for the budget

    def slots_of(self, clients: int, expected: int) -> int:
        """Return the most clients of a round, of which so many are expected."""

    def account(
        self, sizes: tuple[int, int], labelled: tuple[int, int], config: Any, earlier: Earlier
    ) -> Account:
        """Return the account of a run's costs.

        Args:
            sizes: clients of the federation that train, and of a round on average.
            labelled: examples with a label of the client with the fewest, if any, and of that with
                the most.
            config: resolved.
            earlier: spent before the run.
        """

    def private(self, recipe: Recipe, noise: float | Array, cohorts: Any) -> Recipe:
        """Return the private form of a method, with nothing around it.

        Raises:
            ConfigError: more would become known of the clients than the mechanism hides.
        """

    def in_run(self, account: Any, rounds: int, outside: tuple[str, ...] = ()) -> PrivateRun:
        """Return its account in a run; `outside` is not counted in epsilon, in words."""


def privacy_of(config: Any) -> Mechanism | None:
    """Return the privacy settings of a resolved config, or of a dictionary like one, in which
    numbers may be traced; None: there is none.
    """
    section = config["privacy"]
    with naming("privacy"):
        return PRIVACY.build(section["name"], **configs.options(section))


def account_of(
    config: ml_collections.ConfigDict, clients: int, expected: int, labelled: tuple[int, int]
) -> Account | None:
    """Return the account of a run; None: it has no privacy.

    Args:
        config: resolved.
        clients: of the federation that train.
        expected: of a round on average.
        labelled: as in `Mechanism.account`.

    Raises:
        ConfigError: the bound would say nothing, no noise reaches the budget, or dp-accounting is
            not installed.
    """
    mechanism = privacy_of(config)
    if mechanism is None:
        return None
    with naming("privacy"):
        return mechanism.account((clients, expected), labelled, config, earlier_of(config))
