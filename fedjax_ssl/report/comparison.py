"""The numbers of a report: every group's mean and spread, and its difference to the baseline, metric by metric."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedjax_ssl.report.groups import Group
from fedjax_ssl.report.metrics import Metric, total, value_of, written
from fedjax_ssl.report.statistics import Difference, Spread, paired_difference, spread
from fedjax_ssl.runs.stored_run import StoredRun

# What a run costs: title, unit, value of a run.
COSTS: tuple[tuple[str, str, Callable[[StoredRun], float | None]], ...] = (
    ("sent, both ways", "bytes", lambda run: total(run, "bytes_up", "bytes_down")),
    ("local steps", "", lambda run: total(run, "local_steps")),
    ("training time", "s", lambda run: value_of(run, "train_seconds")),
)
_TEST_DATA = ("name", "path", "pool_splits", "test_clients", "left_out_client", "test_fraction", "client_test_fraction")


class Cell(NamedTuple):
    """What a group reached in a metric; `difference` is None of the baseline itself and where nothing is comparable."""

    spread: Spread | None
    difference: Difference | None


def compare(groups: Sequence[Group], baseline: Group, metric: Metric) -> list[Cell]:
    """A cell per group, of finished runs alone.

    Args:
        groups: of a report.
        baseline: one of them.
        metric: of the runs.
    """
    by_seed = [_by_seed(group, metric.name) for group in groups]
    reference, tested = by_seed[groups.index(baseline)], _tested_on(baseline)
    cells = []
    for group, values in zip(groups, by_seed, strict=True):
        comparable = group is not baseline and _tested_on(group) == tested
        cells.append(Cell(spread(list(values.values())), paired_difference(values, reference) if comparable else None))
    return cells


def costs_of(group: Group) -> list[Spread | None]:
    """Mean costs of the finished runs, in the order of `COSTS`; None where a run does not tell."""
    found = []
    for _, _, cost in COSTS:
        values = [cost(run) for run in group.finished]
        known = [value for value in values if value is not None]
        found.append(spread(known) if len(known) == len(values) else None)
    return found


def spread_text(value: Spread | None, unit: str) -> str:
    """For example "91.4 ± 0.6"."""
    if value is None:
        return "-"
    mean = written(value.mean, unit)
    return mean if value.deviation is None else f"{mean} ± {written(value.deviation, unit)}"


def difference_text(cell: Cell, unit: str) -> str:
    """For example "+1.2 [+0.4, +2.0]", with the number of pairs where it is not that of the runs."""
    value = cell.difference
    if value is None or cell.spread is None:
        return "-"
    text = written(value.mean, unit, sign=True)
    if value.low is not None:
        text += f" [{written(value.low, unit, sign=True)}, {written(value.high, unit, sign=True)}]"
    pairs = f" ({value.pairs} {'pair' if value.pairs == 1 else 'pairs'})"
    return text if value.pairs == cell.spread.number else text + pairs


def _tested_on(group: Group) -> list[Any]:
    """What decides which examples a seed is tested on."""
    return [group.config.get(f"data.{field}") for field in _TEST_DATA]


def _by_seed(group: Group, name: str) -> dict[int, float]:
    values = {run.config["seed"]: value_of(run, name) for run in group.finished}
    return {seed: value for seed, value in values.items() if value is not None}
