"""Scores by class of the groups: a table, and confusion matrix and reliability diagram as a
picture each.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas

from fedjax_ssl.report.runs import Group

# in the table and with pictures
MOST_GROUPS = 7
MOST_CLASSES = 100
_BY_CLASS = ("recall", "precision", "f1", "support")
_NUMBERED = 20  # classes up to which a confusion matrix has numbers in it


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


def pictures_of(scores: Sequence[Mapping[str, Any]]) -> list[tuple[str, bytes]]:
    """Draw the confusion matrix, where the runs have it, and the reliability diagram of the
    examples of all runs.

    Returns:
        What each shows, and the picture as PNG.
    """
    from matplotlib.figure import Figure

    classes = scores[0]["classes"]
    found = []
    if all("confusion" in one for one in scores):
        counts = np.sum([one["confusion"] for one in scores], axis=0)
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        figure = Figure(figsize=(5.2, 4.6), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        axes.set(xlabel="predicted class", ylabel="true class")
        if len(classes) <= _NUMBERED:
            axes.set_xticks(range(len(classes)), classes, rotation=90)
            axes.set_yticks(range(len(classes)), classes)
            for (row, column), count in np.ndenumerate(counts):
                colour = "white" if shares[row, column] > 0.5 else "black"
                axes.text(
                    column, row, str(count), ha="center", va="center", fontsize=7, color=colour
                )
        figure.colorbar(image, label="share of the true class")
        found.append(("Confusion matrix", _png(figure)))
    tables = [pandas.DataFrame(one["reliability"], dtype=float) for one in scores]
    # The means of a bin over the examples of all runs, of bins that have some.
    sums = pandas.concat([one.mul(one.examples, axis=0) for one in tables]).groupby(level=0).sum()
    examples = sum(one.examples for one in tables)
    means = sums.div(examples, axis=0)[examples > 0]
    figure = Figure(figsize=(5.2, 4.6), layout="constrained")
    axes, below = figure.subplots(2, sharex=True, height_ratios=(3, 1))
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--")
    axes.plot(means.probability, means.right, marker="o")
    axes.set(ylabel="share that is right", xlim=(0, 1), ylim=(0, 1))
    count = len(examples)
    below.bar((np.arange(count) + 0.5) / count, examples, width=0.9 / count)
    below.set(xlabel="probability of the predicted class", ylabel="examples")
    found.append(("Reliability diagram", _png(figure)))
    return found


def _png(figure: Any) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110)
    return content.getvalue()
