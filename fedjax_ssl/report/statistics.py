"""Mean and spread over seeds, and differences to a baseline over the seeds that both have."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.95
METHOD = (
    f"Paired by seed: the mean of the differences over the seeds that both groups have, and its {LEVEL:.0%} t "
    "interval, mean ± t(0.975, n - 1) · s / √n, with s the standard deviation of these differences. Each interval "
    "stands for itself: nothing is corrected for the number of rows."
)


class Spread(NamedTuple):
    """Values over seeds; `deviation` is the sample standard deviation, None for a single value."""

    number: int
    mean: float
    deviation: float | None


class Difference(NamedTuple):
    """A paired difference; `low` and `high` are the ends of its interval, None for a single pair."""

    pairs: int
    mean: float
    low: float | None
    high: float | None

    @property
    def sign(self) -> int:
        """1 or -1 where the interval does not hold zero, else 0."""
        if self.low is None or self.high is None:
            return 0
        return 1 if self.low > 0 else -1 if self.high < 0 else 0


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and sample standard deviation; None of no values, NaN where one is not finite."""
    if not values:
        return None
    if not all(map(math.isfinite, values)):
        return Spread(len(values), math.nan, None)
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Spread(len(values), float(np.mean(values)), deviation)


def paired_difference(values: Mapping[int, float], baseline: Mapping[int, float]) -> Difference | None:
    """The mean of values - baseline over common seeds, with the t interval of `METHOD`.

    Args:
        values: by seed.
        baseline: by seed.

    Returns:
        None where no seed is common or a difference is not finite.
    """
    differences = np.array([values[seed] - baseline[seed] for seed in sorted(values.keys() & baseline.keys())])
    count = len(differences)
    if not count or not np.isfinite(differences).all():
        return None
    mean = float(differences.mean())
    if count == 1:
        return Difference(count, mean, None, None)
    half = float(stdtrit(count - 1, (1 + LEVEL) / 2) * differences.std(ddof=1) / math.sqrt(count))
    return Difference(count, mean, mean - half, mean + half)
