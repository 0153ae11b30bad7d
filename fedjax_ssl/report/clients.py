"""How accuracy is spread over clients: from the worst client to the best, and the worst tenth in one number."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_ssl.report.curves import short
from fedjax_ssl.report.groups import Group

_POINTS = 61


class Profile(NamedTuple):
    """Accuracies of the clients of a group, in [0, 1]; every number is a mean over its runs.

    Attributes:
        clients: how many have one, at most.
        mean: over clients.
        worst_tenth: mean over the tenth of the clients with the lowest accuracies, at least one client.
        lowest: of all clients.
        curve: accuracies by share of the clients, from the lowest to the highest, evenly spaced.
    """

    clients: int
    mean: float
    worst_tenth: float
    lowest: float
    curve: list[float | None]


def profile(runs: Sequence[Sequence[float]]) -> Profile:
    """Sums up accuracies of clients.

    Args:
        runs: the accuracies of a run's clients, for at least one run with at least one client.
    """
    ordered = [np.sort(np.asarray(run, np.float64)) for run in runs]
    worst = [run[: math.ceil(len(run) / 10)].mean() for run in ordered]
    most = max(map(len, ordered))
    places = np.linspace(0, 1, min(most, _POINTS))
    curves = [np.interp(places, np.linspace(0, 1, len(run)), run) for run in ordered]
    return Profile(
        most,
        float(np.mean([run.mean() for run in ordered])),
        float(np.mean(worst)),
        float(np.mean([run[0] for run in ordered])),
        [short(value) for value in np.mean(curves, axis=0).tolist()],
    )


def profiles_of(groups: Sequence[Group]) -> dict[str, dict[int, Profile]]:
    """By what was measured and by number of the group, where clients' accuracies were logged."""
    found: dict[str, dict[int, Any]] = {}
    for index, group in enumerate(groups):
        for name in dict.fromkeys(name for run in group.runs for name in run.clients):
            given = [list(run.clients[name].values()) for run in group.runs if run.clients.get(name)]
            found.setdefault(name, {})[index] = profile(given)
    return found
