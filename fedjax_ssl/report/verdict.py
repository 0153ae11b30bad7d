"""The verdict of a report, in a sentence: the best method, its lead, and whether it may be
chance.
"""

import math

from fedjax_ssl.errors import counted
from fedjax_ssl.report.numbers import COSTS, LEVEL, TELLING, Cell, Metric, mean_text, written
from fedjax_ssl.report.runs import Group, Report

_SELECTED = "selected_test_accuracy"
_UNEQUAL_STEPS = 1.2  # times as many local steps as another group that are worth a sentence


def verdict(report: Report) -> str:
    """Return a sentence on the best group in the report's metric, and its difference from the
    baseline and from the next one, over common seeds; "" if no two groups can be ranked.
    """
    metric = report.metric
    others = [one for one in report.groups if one is not report.baseline and report.apart(one)]
    ranked = _ranked(report, metric, others)
    if len(ranked) < 2:
        return ""
    best, second = ranked[:2]
    own = mean_text(report.cell(metric, best, best), metric.unit)
    unit = " %" if metric.unit == "%" else ""
    said = [f"{best.name} is the best of {len(ranked)} groups in {metric.title}: {own}{unit}."]
    if report.baseline in ranked and best is not report.baseline:
        said.append(f"That is {_apart(report, best, report.baseline, ' (baseline)')}.")
    if second is not report.baseline:
        said.append(f"It is {_apart(report, best, second, ', the next')}.")
    selected = next((one for one in report.metrics if one.name == _SELECTED), None)
    if metric.name == "test_accuracy" and selected is not None:
        by_selected = _ranked(report, selected, others)
        if len(by_selected) == len(ranked) and by_selected[0] is not best:
            said.append(
                f"But {by_selected[0].name} is the best of the models that `predict` uses, of the "
                f"round with the best validation accuracy: --metric {_SELECTED}."
            )
    said += _unequal_steps(report, best, [one for one in ranked if one is not best])
    if len(ranked) > 3:
        said.append("The best of many groups is in part the luckiest.")
    if others:
        other = f"{counted(len(others), 'other group')} with other test examples or labels"
        said.append(f"{other}: not compared here.")
    return " ".join(said)


def _ranked(report: Report, metric: Metric, without: list[Group]) -> list[Group]:
    """List the groups that have a finite mean, the best first."""
    means = {
        place: cell.mean * metric.better
        for place, cell in enumerate(report.cells(metric))
        if cell.mean is not None and math.isfinite(cell.mean) and metric.better
    }
    order = [report.groups[place] for place in sorted(means, key=lambda one: -means[one])]
    return [group for group in order if group not in without]


def _unequal_steps(report: Report, best: Group, others: list[Group]) -> list[str]:
    """Return a note on the ratio of local steps between the best group and the baseline, or
    otherwise the next group, if they differ.
    """
    other = report.baseline if report.baseline in others else others[0]
    place = list(COSTS).index("local steps")
    costs = report.costs
    own, its = (costs[report.groups.index(one)][place] for one in (best, other))
    if not own or not its or max(own / its, its / own) < _UNEQUAL_STEPS:
        return []
    return [
        f"It took {own / its:.2g} times the local steps of {other.name}: with "
        "--optimizer.local_steps=N all take the same number."
    ]


def _apart(report: Report, best: Group, other: Group, role: str) -> str:
    metric = report.metric
    cell = report.cell(metric, best, other)
    words = f"{other.name}{role}"
    if cell.difference is None:
        return f"not to be compared with {words}: no common seed"
    if cell.difference == 0:
        return f"level with {words}"
    points = "points" if metric.unit == "%" else metric.unit
    size = f"{written(abs(cell.difference), metric.unit)} {points}".rstrip()
    way = "above" if cell.difference > 0 else "below"
    return f"{size} {way} {words}, {_chance(cell, metric.unit)}"


def _chance(cell: Cell, unit: str) -> str:
    seeds = counted(cell.pairs, "common seed")
    if cell.low is None or cell.pairs < TELLING:
        return f"on {seeds}, which cannot tell a difference from chance: run five or more"
    ends = " to ".join(written(end, unit, sign=True) for end in (cell.low, cell.high))
    interval = f"{LEVEL:.0%} interval {ends} over {seeds}"
    return f"{'more than chance' if cell.sign else 'which may be chance'} ({interval})"
