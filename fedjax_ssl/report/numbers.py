"""The numbers that runs are compared by, with means, paired differences, and their texts."""

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas
from scipy import stats

from fedjax_ssl.folder.files import bytes_in_words
from fedjax_ssl.folder.stored_run import StoredRun

# Counts of a block of rounds and the time that it took: curves are drawn over them, and they are no
# results.
_COUNTS = (
    *(
        "round",
        "clients",
        "local_steps",
        "examples",
        "dropped_clients",
        "bytes_up",
        "bytes_down",
        "seconds",
    ),
    *("client_updates_per_second", "optimizer_state_bytes", "labels_seen"),
)
_FROM_SUMMARY = (
    *("selected_test_accuracy", "best_test_accuracy", "compile_seconds", "train_seconds"),
    *("client_updates_per_second", "examples_per_second", "peak_memory_bytes"),
)
_USUAL = ("test_accuracy", "test_client_accuracy", "validation_accuracy")
_SHARES = ("accuracy", "coverage", "f1", "auroc", "ece", "recall", "precision", "tenth", "spread")
_LESS_IS_BETTER = (
    "loss",
    "brier",
    "ece",
    "bytes",
    "seconds",
    "memory",
    "error",
    "dropped",
    "spread",
)
COSTS = {"sent, both ways": "bytes", "local steps": "", "training time": "s"}  # title -> unit
LEVEL = 0.95
METHOD = (
    "Paired by seed: the mean of the differences over the seeds that both groups have, and its "
    f"{LEVEL:.0%} t interval, mean ± t(0.975, n - 1) · s / √n, with s the standard deviation of "
    "these differences. Each interval stands for itself: nothing is corrected for the number of "
    "rows."
)


class Metric(NamedTuple):
    """A number that every run has one value of, after its last round."""

    name: str
    # ^ as in `metrics.csv` or `summary.json`; PREDICTOR_accuracy for a predictor's accuracy on new
    # examples
    unit: str  # "%" for shares, "bytes", "s", or ""
    better: int  # 1 where more is better, -1 where less is, 0 where nobody can say

    @property
    def title(self) -> str:
        """The name as words."""
        return self.name.replace("_", " ")


def metric(name: str) -> Metric:
    """Tells unit and direction of a metric from the words of its name."""
    words = name.split("_")
    if name.startswith("confidence"):
        return Metric(name, "%", 0)
    unit = (
        "%"
        if words[-1] in _SHARES
        else "bytes"
        if "bytes" in words
        else "s"
        if words[-1] == "seconds"
        else ""
    )
    if "per_second" in name:
        return Metric(name, "", 1)
    if any(word in words for word in _LESS_IS_BETTER):
        return Metric(name, unit, -1)
    return Metric(name, unit, 1 if unit == "%" else 0)


def metrics_of(frame: pandas.DataFrame) -> list[Metric]:
    """List the metrics of the runs, the usual ones first, and last the best on test data, which
    is no fair result.
    """
    names = [name for name in frame if not name.startswith("cost ")]
    ordered = sorted(
        names, key=lambda name: (name.startswith("best_"), name.split("_")[-1] != "accuracy")
    )
    return [
        metric(name)
        for name in dict.fromkeys([*(name for name in _USUAL if name in names), *ordered])
    ]


def numbers_of(run: StoredRun) -> dict[str, float]:
    """Read the metrics of a run after its last round, and its costs ("cost TITLE"); infinity =
    not finite.
    """
    summary = run.summary or {}
    found = {
        name: value
        for name, value in (run.rows[-1] if run.rows else {}).items()
        if name not in _COUNTS
    }
    found |= {name: summary[name] for name in _FROM_SUMMARY if name in summary}
    if not run.rows:  # nothing was trained, or another program wrote the summary
        found |= {
            name: value
            for name, value in summary.items()
            if name not in (*_COUNTS, "rounds", "seed")
        }
    scores = summary.get("scores")
    for name, value in scores.items() if isinstance(scores, dict) else ():
        if name == "brier" or name.startswith("top_"):
            found[f"test_{name}"] = value
    given = summary.get("predictions")
    for one in given if isinstance(given, list) else []:
        if isinstance(one, dict) and "name" in one:
            scores = ("accuracy", "balanced_accuracy", "coverage")
            found |= {f"{one['name']}_{score}": one.get(score) for score in scores}
    found |= {
        "cost sent, both ways": _total(run, "bytes_up", "bytes_down"),
        "cost local steps": _total(run, "local_steps"),
        "cost training time": found.get("train_seconds"),
    }
    numbers = {name: float(value) for name, value in found.items() if is_number(value)}
    return {name: value if math.isfinite(value) else math.inf for name, value in numbers.items()}


def _total(run: StoredRun, *names: str) -> float | None:
    """Add counts over all rows of a run; None where a row has none of them."""
    counts: list[Any] = [row.get(name) for row in run.rows for name in names]
    return math.fsum(counts) if counts and all(map(is_number, counts)) else None


def is_number(value: Any) -> bool:
    """Says whether this is a number, NaN and the infinities included."""
    return isinstance(value, int | float) and not isinstance(value, bool)


class Cell(NamedTuple):
    """The values of a group in a metric, and their differences to the baseline, seed by seed."""

    runs: int = 0
    mean: float | None = None  # NaN where a value is not finite
    deviation: float | None = None  # sample standard deviation; None of a single value
    pairs: int = 0  # seeds that the baseline has too
    difference: float | None = None  # mean over the pairs; None where nothing is comparable
    low: float | None = None  # ends of the interval of `METHOD`; None of a single pair
    high: float | None = None

    @property
    def sign(self) -> int:
        """1 or -1 where the interval does not hold zero, else 0."""
        return (
            1
            if self.low is not None and self.low > 0
            else -1
            if self.high is not None and self.high < 0
            else 0
        )


def compare(values: pandas.Series, baseline: pandas.Series | None = None) -> Cell:
    """Sum up values, and their differences to those of the baseline.

        compare(pandas.Series([0.85, 0.84], index=[0, 1]), pandas.Series([0.80, 0.83], index=[0, 1]))

    Args:
        values: by seed.
        baseline: by seed; None where the two cannot be compared.
    """
    count = len(values)
    if not np.isfinite(values).all():
        cell = Cell(count, math.nan)
    else:
        cell = Cell(
            count,
            float(values.mean()) if count else None,
            float(values.std()) if count > 1 else None,
        )
    common = values.index.intersection(baseline.index).sort_values() if baseline is not None else []
    if (
        baseline is None
        or not len(common)
        or not np.isfinite([values[common], baseline[common]]).all()
    ):
        return cell
    mean = float((values[common] - baseline[common]).mean())
    pairs = len(common)
    if pairs == 1:
        return cell._replace(pairs=1, difference=mean)
    with warnings.catch_warnings():
        # all differences are the same: the interval is a point
        warnings.simplefilter("ignore", RuntimeWarning)
        ends = stats.ttest_rel(values[common], baseline[common]).confidence_interval(LEVEL)
    return cell._replace(pairs=pairs, difference=mean, low=float(ends.low), high=float(ends.high))


def mean_text(cell: Cell, unit: str) -> str:
    """Write a mean, for example "91.4 ± 0.6"."""
    mean = written(cell.mean, unit)
    return mean if cell.deviation is None else f"{mean} ± {written(cell.deviation, unit)}"


def difference_text(cell: Cell, unit: str) -> str:
    """Write a difference: "+1.2 [+0.4, +2.0]", with the number of pairs where it is not that of
    the runs.
    """
    if cell.difference is None:
        return "-"
    text = written(cell.difference, unit, sign=True)
    if cell.low is not None:
        text += f" [{written(cell.low, unit, sign=True)}, {written(cell.high, unit, sign=True)}]"
    return (
        text
        if cell.pairs == cell.runs
        else f"{text} ({cell.pairs} {'pair' if cell.pairs == 1 else 'pairs'})"
    )


def headings(metric: Metric, baseline: str) -> list[str]:
    """Titles of the columns of `lines`."""
    unit = {"%": " (%)", "s": " (s)"}.get(metric.unit, "")
    points = {"%": "points, "}.get(metric.unit, "")
    difference = f"difference to {baseline} ({points}{LEVEL:.0%} interval)"
    costs = (f"{title} (s)" if unit == "s" else title for title, unit in COSTS.items())
    return ["group", "runs", f"{metric.title}{unit}", difference, *costs]


def cost_texts(costs: Sequence[float | None]) -> list[str]:
    """Write the costs of a group."""
    return [written(cost, unit) for cost, unit in zip(costs, COSTS.values(), strict=True)]


def written(value: float | None, unit: str, *, sign: bool = False) -> str:
    """Write a value without its unit but for bytes: "91.4", "+0.8", "0.3214", "12 MB".

    Args:
        value: None gives a dash.
        unit: the metric's.
        sign: write "+" too.
    """
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "not finite"
    plus = "+" if sign and value > 0 else "-" if value < 0 else ""
    size = abs(value)
    if unit == "bytes":
        return plus + bytes_in_words(round(size))
    if unit == "%":
        text = f"{100 * size:.1f}"
    elif unit == "s":
        text = f"{size:.0f}" if size >= 100 else f"{size:.1f}"
    else:
        text = (
            f"{size:,.0f}"
            if size >= 1000
            else f"{size:.3g}"
            if size < 0.1 or size >= 100
            else f"{size:.3f}"
        )
    return text if not text.strip("0.") else plus + text  # neither +0.0 nor -0.0


def short(value: float | None) -> float | None:
    """Cuts a value to five digits; None where it is not finite: what a picture can show."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded.is_integer() else rounded
