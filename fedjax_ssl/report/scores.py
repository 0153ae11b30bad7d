"""Scores by class of the groups: recall, precision and F1, confusion matrices, reliability
diagrams, and ROC curves of two classes.
"""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas
from PIL import Image

from fedjax_ssl.report.numbers import short
from fedjax_ssl.report.runs import Group

# in the table and with pictures
MOST_GROUPS = 7
MOST_CLASSES = 100
_BY_CLASS = ("recall", "precision", "f1", "support")
# of a chart: (x, y, deviation or None)
Points = list[tuple[float | None, ...]]


def scored_groups(groups: Sequence[Group]) -> dict[int, list[Mapping[str, Any]]]:
    """Find the detailed scores of the finished runs of groups, by number of the group: runs of
    the same classes.
    """
    found: dict[int, list[Mapping[str, Any]]] = {}
    needed = {*_BY_CLASS, "classes", "reliability"}
    for place, group in enumerate(groups):
        given = [summary.get("scores") for summary in group.summaries.values()]
        scores = [one for one in given if isinstance(one, dict) and needed <= {*one}]
        if scores and len(scores[0]["classes"]) <= MOST_CLASSES and len(found) < MOST_GROUPS:
            found[place] = [one for one in scores if one["classes"] == scores[0]["classes"]]
    return found


def by_class(scores: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Average recall, precision, F1 and support over runs, a row per class; NaN where no run has
    a value.
    """
    tables = [
        pandas.DataFrame({name: one[name] for name in _BY_CLASS}, one["classes"], dtype=float)
        for one in scores
    ]
    return pandas.concat(tables).groupby(level=0, sort=False).mean()


def confusion(scores: Sequence[Mapping[str, Any]]) -> np.ndarray | None:
    """Add up the confusion matrices [true][predicted] of runs; None where a run has none."""
    if not all("confusion" in one for one in scores):
        return None
    return np.sum([one["confusion"] for one in scores], axis=0)


def confusion_picture(counts: np.ndarray) -> bytes:
    """Draw shares of the true class as a PNG, a pixel per cell: white and black pages show through
    where there is little.
    """
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    pixels = np.empty((*counts.shape, 4), np.uint8)
    pixels[..., :3] = (0, 114, 178)
    pixels[..., 3] = np.round(255 * shares)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def reliability(scores: Sequence[Mapping[str, Any]]) -> Points:
    """Points of the reliability diagram of the examples of all runs: the mean probability of the
    likeliest class and the share that is right, by bin that has examples.
    """
    tables = [pandas.DataFrame(one["reliability"], dtype=float) for one in scores]
    sums = pandas.concat([one.mul(one.examples, axis=0) for one in tables]).groupby(level=0).sum()
    examples = sum(one.examples for one in tables)
    means = sums.div(examples, axis=0)[examples > 0]
    return [(short(x), short(y), None) for x, y in zip(means.probability, means.right, strict=True)]


class TwoClasses(NamedTuple):
    """Runs of two classes, one of which is looked for: a value of each run."""

    auc: list[float]
    sensitivity: list[float]
    specificity: list[float]
    curve: Points  # ROC curve: false positives, true positives and their deviation over the runs


def two_classes(group: Group, positive: str) -> TwoClasses | None:
    """Score the finished runs of a group by their `test_predictions.csv`; None where no run has
    such a file with examples of two classes.

    Args:
        group: any.
        positive: the class that is looked for.
    """
    found = []
    grid = np.linspace(0, 1, 101)
    for run in group.finished:
        try:
            table = pandas.read_csv(
                run.path / "test_predictions.csv",
                dtype={"label": str, "prediction": str},
                keep_default_na=False,  # a class may be called so
            )
            table = table[table.label != ""]
            sick = (table.label == positive).to_numpy()
            score = table[f"probability_{positive}"].to_numpy(float)
            claimed = (table.prediction == positive).to_numpy()
        except (OSError, ValueError, LookupError, AttributeError):  # not written, or damaged
            continue
        if sick.any() and not sick.all():
            false, true = roc(sick, score)
            area = float(np.trapezoid(true, false))
            rates = claimed[sick].mean(), 1 - claimed[~sick].mean()
            found.append((area, *map(float, rates), np.interp(grid, false, true)))
    if not found:
        return None
    auc, sensitivity, specificity, curves = map(list, zip(*found, strict=True))
    spread = np.std(curves, axis=0, ddof=1) if len(curves) > 1 else [math.nan] * len(grid)
    points = zip(grid, np.mean(curves, axis=0), spread, strict=True)
    return TwoClasses(auc, sensitivity, specificity, [tuple(map(short, one)) for one in points])


def panels_of(groups: Sequence[Group], positive: str | None) -> dict[str, dict[int, Points]]:
    """Make the charts of the scores, by number of the group: "reliability", and "roc" of groups of
    two classes, of which the second is looked for where `positive` is None.
    """
    scores = scored_groups(groups)
    curves: dict[int, Points] = {}
    for place, given in scores.items():
        classes = given[0]["classes"]
        if len(classes) == 2 and (found := two_classes(groups[place], positive or classes[1])):
            curves[place] = found.curve
    return {
        "reliability": {place: reliability(one) for place, one in scores.items()},
        "roc": curves,
    }


def roc(positive: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Trace the ROC curve: shares of false and of true positives, from the highest threshold to the
    lowest; equal scores are one step.

    Args:
        positive: bool [n], of both kinds.
        score: [n], higher where positive is likelier.

    Example:
        >>> import numpy as np
        >>> roc(np.array([True, False, True]), np.array([0.9, 0.5, 0.5]))
        (array([0., 0., 1.]), array([0. , 0.5, 1. ]))
    """
    order = np.argsort(-score)
    steps = np.append(np.flatnonzero(np.diff(score[order])), len(score) - 1)
    hits = np.cumsum(positive[order])[steps]
    false = np.append(0, steps + 1 - hits)
    return false / false[-1], np.append(0, hits) / hits[-1]
