"""Privacy accountant: epsilon after a number of rounds, and the noise for a budget.

The computations are those of dp-accounting, which is loaded on use. Neighbouring federations differ
by one client.
"""

import functools
import importlib
import logging
import math
from typing import Any, NamedTuple

from fedjax_ssl.errors import ConfigError, counted, how_to_install
from fedjax_ssl.runs import Earlier

# Steps of the privacy loss: dp-accounting's default, and coarser ones for a search, which gives
# slightly more noise.
_STEP = 1e-4
_COARSE_STEP = 1e-3
# With little noise, losses are so large that steps get wider: at most this many steps in the losses
# of one round and of all rounds; with more noise, in those of all rounds. Epsilon stays an upper
# bound.
_LITTLE_NOISE = 0.25
_MOST_STEPS = 5e4
_MOST_STEPS_OF_ALL = 1e7
_TAIL = 12  # deviations beyond which the tail of a loss is cut
_ACCURACY = 1e-3  # relative accuracy of a noise that is solved for
_MOST_NOISE = 1e5
_LEAST_NOISE = 0.1
_LEAST_NOISE_GIVEN = 1e-3  # at this noise one round has an epsilon of half a million


class Sampled(NamedTuple):
    """Sampling of cohorts: every client with the same probability, into a fixed number of slots."""

    clients: int  # clients in the federation, N
    expected: int  # clients of a round on average, n: the fixed denominator
    slots: int  # most clients of a round

    @property
    def probability(self) -> float:
        """Probability n/N that a client is drawn."""
        return self.expected / self.clients


class Account(NamedTuple):
    """A mechanism and its costs.

    Example:
        >>> from fedjax_ssl.contrib.privacy._account import Account, Sampled
        >>> account = Account(Sampled(clients=100, expected=10, slots=100), 1e-3, "rdp", noise=1.0)
        >>> account.cost(800)  # doctest: +SKIP
        19.15
    """

    cohorts: Sampled
    delta: float
    accountant: str  # pld or rdp
    noise: float  # deviation of the noise in units of the clip norm
    steps: tuple[tuple[Sampled, int], ...] = ()
    # ^ with private steps: how clients draw batches, and their steps a round; the costs are those
    # of the client whose examples pay most
    earlier: Earlier = Earlier()  # privacy spent before the run

    def cost(self, rounds: int) -> float:
        """Return epsilon after these rounds, with what was spent before."""
        return self.earlier.epsilon + (_epsilon(self, rounds, _STEP) if rounds else 0.0)

    @property
    def whole_delta(self) -> float:
        """Delta that belongs to this epsilon."""
        return self.earlier.delta + self.delta

    def rounds_within(self, epsilon: float, most: int) -> int:
        """Return the largest number of rounds that cost at most epsilon, up to `most`."""
        if self.cost(most) <= epsilon:
            return most
        enough = 0
        too_many = most
        while too_many - enough > 1:
            middle = (enough + too_many) // 2
            if self.cost(middle) <= epsilon:
                enough = middle
            else:
                too_many = middle
        return enough


def opened(
    account: Account,
    settings: Any,
    number: int,
    unit: str,
    rounds: int,
) -> Account:
    """Return an account with the delta and the noise of a run.

    Args:
        account: account without delta and noise, with earlier costs.
        settings: settings of the mechanism, with `noise`, `epsilon` and `delta`.
        number: number of units, of which a single one is hidden.
        unit: "client", or "example".
        rounds: rounds of the run.

    Raises:
        ValueError: the bound is meaningless, or no noise reaches the budget.
        ConfigError: dp-accounting is not installed.
    """
    delta = number**-1.1 if settings.delta is None else settings.delta
    if delta >= 1 / number:
        raise ValueError(
            f"delta is {delta:g} for {counted(number, unit)}: with 1/{number} and more, all "
            f"data of one might be published; give less, such as delta="
            f"{min(0.1 / number, number**-1.1):.2g}"
        )
    noise = settings.noise
    if noise is None and settings.epsilon is None:
        raise ValueError("neither noise nor epsilon is given; give one of them, or both")
    if noise == 0:
        raise ValueError(
            "noise is 0, whose epsilon is infinite; give more, epsilon in its place, or leave "
            "name=none"
        )
    if noise is not None and noise < _LEAST_NOISE_GIVEN:
        raise ValueError(
            f"noise is {float(noise):g}, whose epsilon is beyond counting; give at least "
            f"{_LEAST_NOISE_GIVEN:g}, epsilon in its place, or leave name=none"
        )
    earlier = account.earlier
    account = account._replace(delta=delta, noise=float(noise or math.nan))
    left = None if settings.epsilon is None else settings.epsilon - earlier.epsilon
    if left is not None and left <= 0:
        raise ValueError(
            f"epsilon is {settings.epsilon:g}, and config.start_from has spent "
            f"{earlier.epsilon:.4g} already; give a larger epsilon"
        )
    if noise is None:
        assert left is not None
        account = account._replace(noise=solved(account, left, rounds))
    return account


@functools.lru_cache(maxsize=256)
def solved(account: Account, epsilon: float, rounds: int) -> float:
    """Return the noise for a budget, at most a thousandth above the least.

    Args:
        account: its noise does not matter.
        epsilon: the budget.
        rounds: of the run.

    Raises:
        ValueError: no noise reaches it.
    """

    from scipy.optimize import brentq  # slow to import, and few runs need it

    def above(log_noise: float) -> float:
        tried = account._replace(noise=math.exp(log_noise))
        return _epsilon(tried, max(rounds, 1), _COARSE_STEP) - epsilon

    low = high = 0.0
    while above(high) > 0:
        low = high
        high += 1.0
        if math.exp(high) > _MOST_NOISE:
            raise ValueError(
                f"no noise up to {_MOST_NOISE:g} reaches epsilon {epsilon:g} in "
                f"{counted(rounds, 'round')} at delta {account.delta:.3g}; give a larger epsilon"
            )
    while low == high or above(low) <= 0:
        high = low
        low -= 0.5
        if math.exp(low) < _LEAST_NOISE:
            return math.exp(high)
    return math.exp(brentq(above, low, high, xtol=_ACCURACY / 2) + _ACCURACY / 2)


@functools.lru_cache(maxsize=256)
def _epsilon(account: Account, rounds: int, step: float) -> float:
    """Return epsilon after some rounds, with privacy losses in steps of this size."""
    if account.steps:
        return max(
            _epsilon(account._replace(cohorts=drawn, steps=()), rounds * steps, step)
            for drawn, steps in account.steps
        )
    cohorts = account.cohorts
    if account.accountant == "pld":
        step = _wide_enough(step, account.noise, rounds)
        loss = _loss_of_a_round(cohorts, account.noise, step)
        return float(loss.self_compose(rounds).get_epsilon_for_delta(account.delta))
    dp_accounting, _, rdp = _library()
    event = dp_accounting.GaussianDpEvent(account.noise)
    if cohorts.probability < 1:
        event = dp_accounting.PoissonSampledDpEvent(cohorts.probability, event)
    accountant = rdp.RdpAccountant()
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns about small orders that are left out
    accountant.compose(event, rounds)
    logger.setLevel(level)
    return float(accountant.get_epsilon(account.delta))


def _wide_enough(step: float, noise: float, rounds: int) -> float:
    """Return the step of the privacy loss, doubled until the number of steps is small enough."""
    mean = 0.5 / noise**2
    least = rounds * mean / _MOST_STEPS_OF_ALL
    if noise < _LITTLE_NOISE:
        least = max(least, (mean + _TAIL / noise) / _MOST_STEPS)
    return step * 2 ** max(math.ceil(math.log2(least / step)), 0)


@functools.lru_cache(maxsize=32)
def _loss_of_a_round(cohorts: Sampled, noise: float, step: float) -> Any:
    """Return the distribution of the privacy loss of one round, in steps of this size."""
    _, distribution, _ = _library()
    if cohorts.slots < cohorts.clients:
        return distribution.from_truncated_subsampled_gaussian_mechanism(
            dataset_size=cohorts.clients,
            sampling_probability=cohorts.probability,
            truncated_batch_size=cohorts.slots,
            noise_multiplier=noise,
            value_discretization_interval=step,
        )
    return distribution.from_gaussian_mechanism(
        noise, sampling_prob=cohorts.probability, value_discretization_interval=step
    )


def _library() -> tuple[Any, Any, Any]:
    """Import dp-accounting: (itself, distributions of privacy loss, Renyi accounts)."""
    try:
        names = (
            "dp_accounting",
            "dp_accounting.pld.privacy_loss_distribution",
            "dp_accounting.rdp",
        )
        accounting, distribution, rdp = map(importlib.import_module, names)
    except ImportError as error:
        raise ConfigError(
            f"config.privacy needs dp-accounting: {how_to_install('privacy')}"
        ) from error
    return accounting, distribution, rdp
