"""The numbers that runs are compared by: which there are, a run's value, and how they are written."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fedjax_ssl.registry import did_you_mean
from fedjax_ssl.report.errors import ReportError
from fedjax_ssl.runs.files import bytes_in_words
from fedjax_ssl.runs.stored_run import StoredRun

# Counts of a block of rounds and the time that it took: what the curves are drawn over, and no results.
_COUNTS = (
    "round",
    "clients",
    "local_steps",
    "examples",
    "dropped_clients",
    "bytes_up",
    "bytes_down",
    "seconds",
    "client_updates_per_second",
    "optimizer_state_bytes",
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
_USUAL = ("test_accuracy", "test_client_accuracy", "validation_accuracy")
_SHARES = ("accuracy", "coverage", "f1", "auroc", "ece", "recall", "precision", "tenth", "spread")
_LESS_IS_BETTER = ("loss", "ece", "bytes", "seconds", "memory", "error", "dropped", "spread")


class Metric(NamedTuple):
    """A number that every run has one value of, after its last round.

    Attributes:
        name: as in `metrics.csv` or `summary.json`; PREDICTOR_accuracy for what a predictor reached on new examples.
        unit: "%" for shares, "bytes", "s", or "".
        better: 1 where more is better, -1 where less is, 0 where nobody can say.
    """

    name: str
    unit: str
    better: int

    @property
    def title(self) -> str:
        """The name as words."""
        return self.name.replace("_", " ")


def metric(name: str) -> Metric:
    """What a column's name tells about its values."""
    words = name.split("_")
    if name.startswith("confidence"):
        return Metric(name, "%", 0)
    unit = "%" if words[-1] in _SHARES else "bytes" if "bytes" in words else "s" if words[-1] == "seconds" else ""
    if "per_second" in name:
        return Metric(name, "", 1)
    if any(word in words for word in _LESS_IS_BETTER):
        return Metric(name, unit, -1)
    return Metric(name, unit, 1 if unit == "%" else 0)


def metrics_of(runs: Iterable[StoredRun]) -> list[Metric]:
    """All metrics that some run has, the usual ones first."""
    names: dict[str, None] = {}
    for run in runs:
        names |= dict.fromkeys(_values(run))
    # The best on test data is no fair result: the last one.
    ordered = sorted(names, key=lambda name: (name.startswith("best_"), name.split("_")[-1] not in _SHARES[:1]))
    return [metric(name) for name in dict.fromkeys([*(name for name in _USUAL if name in names), *ordered])]


def choose_metric(known: list[Metric], given: str | None) -> Metric:
    """The metric of that name, or the most usual one.

    Raises:
        ReportError: there is none.
    """
    if given is None:
        return known[0]
    for one in known:
        if one.name == given:
            return one
    names = [one.name for one in known]
    hint = did_you_mean(given, names)
    raise ReportError(f"--metric {given!r} is in none of these runs.{hint} They have: {', '.join(names)}")


def value_of(run: StoredRun, name: str) -> float | None:
    """The run's value of a metric after its last round; None where it has none, NaN where it is not finite."""
    return _values(run).get(name)


def _values(run: StoredRun) -> dict[str, float]:
    last = run.rows[-1] if run.rows else {}
    summary = run.summary or {}
    found = {name: value for name, value in last.items() if name not in _COUNTS}
    found |= {name: summary[name] for name in _FROM_SUMMARY if name in summary}
    if not run.rows:  # nothing was trained, or another program wrote the summary
        found |= {name: value for name, value in summary.items() if name not in (*_COUNTS, "rounds", "seed")}
    for one in _predictions(summary):
        for score in ("accuracy", "balanced_accuracy", "coverage"):
            found[f"{one['name']}_{score}"] = one.get(score)
    return {name: float(value) for name, value in found.items() if is_number(value)}


def _predictions(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = summary.get("predictions")
    return [one for one in given if isinstance(one, dict) and "name" in one] if isinstance(given, list) else []


def total(run: StoredRun, *names: str) -> float | None:
    """The sum of counts over all rows of a run; None where a row has none of them."""
    counts = [row.get(name) for row in run.rows for name in names]
    known = [float(count) for count in counts if count is not None and is_number(count)]
    return math.fsum(known) if known and len(known) == len(counts) else None


def is_number(value: Any) -> bool:
    """Whether this is a number, NaN and the infinities included."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def scaled(value: float, unit: str) -> float:
    """The value in the unit it is written in: shares in percent."""
    return 100 * value if unit == "%" else value


def written(value: float | None, unit: str, *, sign: bool = False) -> str:
    """A value as text, without its unit but for bytes: "91.4", "+0.8", "0.3214", "12 MB".

    Args:
        value: None gives a dash.
        unit: of the metric.
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
        text = f"{size:,.0f}" if size >= 1000 else f"{size:.3g}" if size < 0.1 or size >= 100 else f"{size:.3f}"
    return text if not text.strip("0.") else plus + text  # neither +0.0 nor -0.0
