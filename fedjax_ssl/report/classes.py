"""Scores by class: recall, precision and F1 of the groups, and their confusion matrices."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas

from fedjax_ssl.report.numbers import written
from fedjax_ssl.report.runs import Group

MOST_GROUPS = 7
_MOST_CLASSES = 100
_SCORES = {"Recall": "recall", "Precision": "precision", "F1": "f1"}


def scores_of(groups: Sequence[Group], problems: list[str]) -> dict[str, dict[str, Any]]:
    """Find the detailed scores of the finished runs of groups.

    Args:
        groups: groups of the report; the first `MOST_GROUPS` with scores count, if their runs have
            the same classes.
        problems: a sentence is added for every group whose scores are damaged.

    Returns:
        By name of the group: "by_class", a data frame with a row per class, means over the runs of
        recall, precision, F1 and support; "confusion", a data frame [true, predicted] of counts of
        all runs, or None.
    """
    found: dict[str, dict[str, Any]] = {}
    for group in groups:
        given = [summary.get("scores") for summary in group.summaries.values()]
        scores = [one for one in given if isinstance(one, dict) and "classes" in one]
        if not scores or len(scores[0]["classes"]) > _MOST_CLASSES or len(found) == MOST_GROUPS:
            continue
        try:
            found[group.name] = _joined(
                [one for one in scores if one["classes"] == scores[0]["classes"]]
            )
        except (ValueError, TypeError, LookupError) as error:
            problems.append(f"{group.name}: its scores by class cannot be shown: {error}")
    return found


def _joined(scores: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    classes = scores[0]["classes"]
    names = (*_SCORES.values(), "support")
    tables = [
        pandas.DataFrame({name: one[name] for name in names}, classes, dtype=float)
        for one in scores
    ]
    confusion = None
    if all("confusion" in one for one in scores):
        counts = np.sum([one["confusion"] for one in scores], axis=0)
        confusion = pandas.DataFrame(counts, classes, classes)
    by_class = pandas.concat(tables).groupby(level=0, sort=False).mean()
    return {"by_class": by_class, "confusion": confusion}


def tables_of(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, pandas.DataFrame]:
    """Make a table for each score as text: a row per class, a column per group, and the number of
    examples.
    """
    tables = {name: one["by_class"] for name, one in scores.items()}
    support = pandas.DataFrame({name: one["support"] for name, one in tables.items()})
    examples = support.mean(axis=1).round().astype(int)
    found = {}
    for title, score in _SCORES.items():
        table = pandas.DataFrame({name: one[score] for name, one in tables.items()})
        texts = table.astype(object).where(table.notna(), None).map(lambda one: written(one, "%"))
        found[title] = texts.assign(examples=examples).rename_axis("class").reset_index()
    return found
