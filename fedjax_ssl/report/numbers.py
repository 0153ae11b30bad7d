"""The numbers by which runs are compared, with means, paired differences, and their texts."""

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas
from scipy import stats

from fedjax_ssl.errors import counted
from fedjax_ssl.folder.files import bytes_in_words
from fedjax_ssl.folder.stored_run import StoredRun

# Counts of a block of rounds, and its time: axes of curves, not results.
_COUNTS = (
    "round",
    "rounds",
    "seed",
    "clients",
    "local_steps",
    "examples",
    "dropped_clients",
    "lost_clients",
    "bytes_up",
    "bytes_down",
    "seconds",
    "client_updates_per_second",
    "optimizer_state_bytes",
    "labels_seen",
)
_FROM_SUMMARY = (
    "selected_test_accuracy",
    "best_test_accuracy",
    "compile_seconds",
    "train_seconds",
    "client_updates_per_second",
    "examples_per_second",
    "peak_memory_bytes",
)
_ABOUT = ("group", "counts", "run", "seed", "state", "finished")  # columns without numbers
_OF_A_PREDICTOR = ("accuracy", "balanced_accuracy", "coverage")
_USUAL = ("test_accuracy", "test_client_accuracy", "validation_accuracy")
_SHARES = ("accuracy", "coverage", "f1", "auroc", "ece", "recall", "precision", "tenth", "spread")
_LESS_IS_BETTER = {
    "loss",
    "brier",
    "ece",
    "bytes",
    "seconds",
    "memory",
    "error",
    "dropped",
    "spread",
}
COSTS = {"sent, both ways": "bytes", "local steps": "", "training time": "s"}  # title -> unit
LEVEL = 0.95
TELLING = 3  # with fewer seeds, a difference cannot be told from chance
METHOD = (
    "Paired by seed: the mean of the differences over the seeds that both groups have, and its "
    f"{LEVEL:.0%} t interval, mean ± t(0.975, n - 1) · s / √n, with s the standard deviation of "
    "these differences. Each interval stands for itself: nothing is corrected for the number of "
    "rows."
)


class Metric(NamedTuple):
    """A number with one value per run, after its last round."""

    name: str
    # ^ name in `metrics.csv` or `summary.json`; PREDICTOR_accuracy for a predictor's accuracy on
    # new examples
    unit: str  # "%" for shares, "bytes", "s", or ""
    better: int  # 1 if more is better, -1 if less is, 0 if undecided

    @property
    def title(self) -> str:
        """The name in words."""
        return self.name.replace("_", " ")


def metric(name: str) -> Metric:
    """Return unit and direction of a metric, from the words of its name."""
    words = name.split("_")
    if name.startswith("confidence"):
        return Metric(name, "%", 0)
    if "per_second" in name:
        return Metric(name, "", 1)
    better = -1 if _LESS_IS_BETTER.intersection(words) else 0
    if words[-1] in _SHARES:
        return Metric(name, "%", better or 1)
    if "bytes" in words:
        return Metric(name, "bytes", better)
    return Metric(name, "s" if words[-1] == "seconds" else "", better)


def metrics_of(frame: pandas.DataFrame) -> list[Metric]:
    """List the metrics of the runs: the usual ones first, and last the best on test data, which is
    not a fair result.
    """
    names = [name for name in frame if not name.startswith("cost ") and name not in _ABOUT]

    def rank(name: str) -> tuple[int, bool, bool]:
        usual = _USUAL.index(name) if name in _USUAL else len(_USUAL)
        return usual, name.startswith("best_"), not name.endswith("accuracy")

    return [metric(name) for name in sorted(names, key=rank)]


def numbers_of(run: StoredRun) -> dict[str, float]:
    """Read the metrics of a run after its last round, and its costs ("cost TITLE"); infinity stands
    for a value that is not finite.
    """
    summary = run.summary or {}
    # Without rows, nothing was trained, or another program wrote the summary.
    last = run.rows[-1] if run.rows else summary
    found = {name: value for name, value in last.items() if name not in _COUNTS}
    found |= {name: summary[name] for name in _FROM_SUMMARY if name in summary}
    scores = summary.get("scores")
    if isinstance(scores, dict):
        found |= {
            f"test_{name}": value for name, value in scores.items() if name.startswith("top_")
        }
        if len(scores.get("classes", ())) == 2:  # two classes: sensitivity and specificity
            recalls = zip(scores["classes"], scores.get("recall", ()), strict=False)
            found |= {f"test_{name}_recall": value for name, value in recalls}
    predictions = summary.get("predictions")
    for one in predictions if isinstance(predictions, list) else []:
        if isinstance(one, dict) and "name" in one:
            found |= {f"{one['name']}_{score}": one.get(score) for score in _OF_A_PREDICTOR}
    found |= {
        "cost sent, both ways": _total(run, "bytes_up", "bytes_down"),
        "cost local steps": _total(run, "local_steps"),
        "cost training time": found.get("train_seconds"),
    }
    return {
        name: float(value) if math.isfinite(value) else math.inf
        for name, value in found.items()
        if is_number(value)
    }


def _total(run: StoredRun, *names: str) -> float | None:
    """Add counts over all rows of a run; None if a row lacks all of them."""
    counts: list[Any] = [row.get(name) for row in run.rows for name in names]
    return math.fsum(counts) if counts and all(map(is_number, counts)) else None


def is_number(value: Any) -> bool:
    """Return whether this is a number, including NaN and infinities."""
    return isinstance(value, int | float) and not isinstance(value, bool)


class Cell(NamedTuple):
    """The values of a group in a metric, and their differences to the baseline, seed by seed."""

    runs: int = 0
    mean: float | None = None  # NaN if a value is not finite
    deviation: float | None = None  # sample standard deviation; None for a single value
    pairs: int = 0  # seeds shared with the baseline
    difference: float | None = None  # mean over the pairs; None if nothing is comparable
    low: float | None = None  # bounds of the interval of `METHOD`; None for a single pair
    high: float | None = None

    @property
    def sign(self) -> int:
        """1 or -1 if the interval excludes zero, otherwise 0, also with too few pairs."""
        if self.low is None or self.high is None or self.pairs < TELLING:
            return 0
        return (self.low > 0) - (self.high < 0)

    @property
    def around(self) -> float | None:
        """Half of the interval of the mean over seeds, t(0.975, n - 1) · s / √n; None for a single
        value.
        """
        if self.deviation is None:
            return None
        return float(stats.t.ppf((1 + LEVEL) / 2, self.runs - 1)) * self.deviation / self.runs**0.5


def compare(values: pandas.Series, baseline: pandas.Series | None = None) -> Cell:
    """Return the statistics of values, and of their differences to the baseline's.

        compare(pandas.Series({0: 0.85, 1: 0.84}), pandas.Series({0: 0.80, 1: 0.83}))

    Args:
        values: by seed.
        baseline: values of the baseline by seed; None if the two cannot be compared.
    """
    cell = Cell(len(values), math.nan)
    if np.isfinite(values).all():
        cell = Cell(len(values), known(values.mean()), known(values.std()))
    if baseline is None:
        return cell
    seeds = values.index.intersection(baseline.index).sort_values()
    ours = values[seeds]
    theirs = baseline[seeds]
    if not len(seeds) or not np.isfinite([ours, theirs]).all():
        return cell
    with warnings.catch_warnings():
        # A single pair has no interval; if all differences are equal, the interval is a point.
        warnings.simplefilter("ignore", RuntimeWarning)
        low, high = stats.ttest_rel(ours, theirs).confidence_interval(LEVEL)
    difference = float((ours - theirs).mean())
    return cell._replace(pairs=len(seeds), difference=difference, low=known(low), high=known(high))


def known(value: float) -> float | None:
    """Return None for NaN, and other values unchanged."""
    return None if math.isnan(value) else float(value)


def mean_text(cell: Cell, unit: str) -> str:
    """Write a mean, for example "91.4 ± 0.6"."""
    mean = written(cell.mean, unit)
    return mean if cell.deviation is None else f"{mean} ± {written(cell.deviation, unit)}"


def around_text(cell: Cell, unit: str, *, sign: bool = False) -> str:
    """Write the interval of a mean, for example "91.4 ± 0.8"; `sign`: "+91.4 ± 0.8"."""
    mean = written(cell.mean, unit, sign=sign)
    return mean if cell.around is None else f"{mean} ± {written(cell.around, unit)}"


def difference_text(cell: Cell, unit: str) -> str:
    """Write a difference: "+1.2 [+0.4, +2.0]", with the number of pairs if it is not the number of
    runs.
    """
    text = written(cell.difference, unit, sign=True)
    if cell.low is not None:
        text += f" [{written(cell.low, unit, sign=True)}, {written(cell.high, unit, sign=True)}]"
    if cell.difference is not None and cell.pairs != cell.runs:
        text += f" ({counted(cell.pairs, 'pair')})"
    return text


def headings(metric: Metric, baseline: str) -> list[str]:
    """Return the titles of the columns of `lines`."""
    unit = f" ({metric.unit})" if metric.unit in ("%", "s") else ""
    points = "points, " if metric.unit == "%" else ""
    difference = f"difference to {baseline} ({points}{LEVEL:.0%} interval)"
    costs = [f"{title} (s)" if unit == "s" else title for title, unit in COSTS.items()]
    return ["group", "runs", f"{metric.title}{unit}", difference, "labels", *costs]


def cost_texts(costs: Sequence[float | None]) -> list[str]:
    """Write the costs of a group."""
    return list(map(written, costs, COSTS.values()))


def written(value: float | None, unit: str, *, sign: bool = False) -> str:
    """Write a value without its unit, except for bytes: "91.4", "+0.8", "0.3214", "12 MB".

    Args:
        value: None gives a dash.
        unit: the metric's.
        sign: write "+" too.
    """
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "not finite"
    size = abs(value)
    if unit == "bytes":
        text = bytes_in_words(round(size))
    elif unit == "%":
        text = f"{100 * size:.1f}"
    elif unit == "s":
        text = f"{size:.{1 if size < 100 else 0}f}"
    elif size >= 1000:
        text = f"{size:,.0f}"
    elif 0.1 <= size < 100:
        text = f"{size:.3f}"
    else:
        text = f"{size:.3g}"
    if not text.strip("0."):  # neither +0.0 nor -0.0
        return text
    return "-" * (value < 0) + "+" * (sign and value > 0) + text


def short(value: float | None) -> float | None:
    """Round a value to five digits, as pictures show it; None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded.is_integer() else rounded
