"""What a reader has to know of a number: that training diverged, that it is the first stage's, that
it is chance, that the method took other steps than the rest of its table.
"""

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from experiments.papers.table import Cell, Table
from fedjax_ssl.folder.stored_run import StoredRun

_GREW = 10  # times the first loss, or that of a network that knows nothing
_CHANCE = 1.25  # times the accuracy of guessing
_NEAR = 0.02  # numbers of steps differ from here on; clients are not of one size
_STAGES = ("warmup_rounds", "coarse_rounds")  # fields of methods with a first stage
DIVERGED = "d"
FIRST_STAGE = "s"
CHANCE = "c"
STEPS = "n"
MEANINGS = {
    DIVERGED: f"training diverged: the loss was not finite, or over {_GREW} times the first one",
    FIRST_STAGE: "the model of the first stage, which no later one was better than",
    CHANCE: f"at chance: at most {_CHANCE} times the accuracy of guessing",
    STEPS: "other local steps a round than the table",
}


class Signs(NamedTuple):
    """What a finished run tells beside its number."""

    steps: float | None  # local steps a client took in a round, at the end
    marks: str  # letters of `MEANINGS`


def signs(run: StoredRun, cell: Cell, value: float | None) -> Signs:
    """Look for what makes a number another thing than it seems.

    Args:
        run: finished.
        cell: says which number.
        value: the number.
    """
    trained = [row for row in run.rows if row.get("local_steps")]
    found = ""
    if _diverged(run, trained):
        found += DIVERGED
    method = run.config.get("method", {})
    first = max((method.get(field) or 0 for field in _STAGES), default=0)
    selected = (run.summary or {}).get("selected_round")
    if cell.value == "selected" and selected is not None and selected <= first:
        found += FIRST_STAGE
    classes = _classes(run)
    score = _as_accuracy(cell.metric, value)
    if classes and score is not None and score <= _CHANCE / classes:
        found += CHANCE
    return Signs(_steps(trained), found)


def _diverged(run: StoredRun, trained: Sequence[dict[str, Any]]) -> bool:
    if "diverged" in (run.summary or {}):
        return True
    losses = [math.nan if row.get("loss") is None else float(row["loss"]) for row in trained]
    if not losses:
        return False
    usual = max(abs(losses[0]), math.log(_classes(run) or 10))
    return not all(math.isfinite(loss) and loss <= _GREW * usual for loss in losses)


def _steps(trained: Sequence[dict[str, Any]]) -> float | None:
    """Return the mean of the last row whose clients trained, 0 where the server alone does; a row
    counts the rounds since the one before.
    """
    rows = [row for row in trained if row.get("clients")]
    if not rows:
        return 0.0 if trained else None
    return round(rows[-1]["local_steps"] / rows[-1]["clients"], 2)


def _classes(run: StoredRun) -> int:
    path = run.path / "model.json"
    if not path.is_file():
        return 0
    return len(json.loads(path.read_text(encoding="utf-8"))["class_names"])


def _as_accuracy(metric: str, value: float | None) -> float | None:
    if value is None or not metric.endswith(("accuracy", "test_error")):
        return None
    return 1 - value if metric.endswith("error") else value


def other_steps(table: Table, scale: str, steps: float | None) -> bool:
    """Tell whether a cell took other numbers of steps than the table has at a reduced scale."""
    number = table.steps if scale in ("small", "medium") else ""
    if not isinstance(number, int) or steps is None:
        return False
    return abs(steps - number) > _NEAR * number
