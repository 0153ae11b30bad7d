"""Scores by class of the groups: recall, precision and F1, confusion matrices, reliability
diagrams, and ROC curves of two classes.
"""

import functools
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


class Scored(NamedTuple):
    """Detailed scores of a group's finished runs."""

    classes: list[str]
    examples: int  # of all runs
    by_class: pandas.DataFrame
    # ^ a row per class: means over the runs of recall, precision, F1, NaN where no run has a value,
    # and support
    confusion: np.ndarray | None  # [true][predicted], of all runs; None where a run has none
    reliability: Points
    # ^ of all runs: by bin with examples, the mean probability of the likeliest class and the share
    # that is right


def scored_groups(groups: Sequence[Group], problems: list[str] | None = None) -> dict[int, Scored]:
    """Find the detailed scores of groups, by number of the group.

    Args:
        groups: the report's; the first `MOST_GROUPS` with scores count, of runs of the same
            classes.
        problems: a sentence is added for every group whose scores are damaged.
    """
    found: dict[int, Scored] = {}
    needed = {*_BY_CLASS, "classes", "reliability"}
    for place, group in enumerate(groups):
        given = [summary.get("scores") for summary in group.summaries.values()]
        scores = [one for one in given if isinstance(one, dict) and needed <= {*one}]
        if not scores or len(scores[0]["classes"]) > MOST_CLASSES or len(found) == MOST_GROUPS:
            continue
        try:
            found[place] = _joined(
                [one for one in scores if one["classes"] == scores[0]["classes"]]
            )
        except (ValueError, TypeError, LookupError) as error:
            sentence = f"{group.name}: its scores by class cannot be shown: {error}"
            if problems is not None:
                problems.append(sentence)
    return found


def _joined(scores: Sequence[Mapping[str, Any]]) -> Scored:
    classes = scores[0]["classes"]
    tables = [
        pandas.DataFrame({name: one[name] for name in _BY_CLASS}, classes, dtype=float)
        for one in scores
    ]
    counts = None
    if all("confusion" in one for one in scores):
        counts = np.sum([one["confusion"] for one in scores], axis=0)
    bins = [pandas.DataFrame(one["reliability"], dtype=float) for one in scores]
    sums = pandas.concat([one.mul(one.examples, axis=0) for one in bins]).groupby(level=0).sum()
    examples = sum(one.examples for one in bins)
    means = sums.div(examples, axis=0)[examples > 0]
    return Scored(
        classes,
        sum(one["examples"] for one in scores),
        pandas.concat(tables).groupby(level=0, sort=False).mean(),
        counts,
        [(short(x), short(y), None) for x, y in zip(means.probability, means.right, strict=True)],
    )


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


class TwoClasses(NamedTuple):
    """Runs of two classes, one of which is looked for: a value of each run."""

    auc: list[float]
    sensitivity: list[float]
    specificity: list[float]
    curve: Points  # ROC curve: false positives, true positives and their deviation over the runs


@functools.cache
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


def panels_of(
    groups: Sequence[Group], scored: Mapping[int, Scored], positive: str | None
) -> dict[str, dict[int, Points]]:
    """Make the charts of the scores, by number of the group: "reliability", and "roc" of groups of
    two classes, of which the second is looked for where `positive` is None.
    """
    curves: dict[int, Points] = {}
    for place, one in scored.items():
        if len(one.classes) == 2 and (
            found := two_classes(groups[place], positive or one.classes[1])
        ):
            curves[place] = found.curve
    return {"reliability": {place: one.reliability for place, one in scored.items()}, "roc": curves}


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
