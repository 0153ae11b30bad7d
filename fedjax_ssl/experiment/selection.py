"""Which model of a run is chosen by its validation accuracy, and when waiting for a better one ends."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

Row = Mapping[str, Any]


def selected(config: ml_collections.ConfigDict, rows: Sequence[Row]) -> Row | None:
    """The metric row of the model that is chosen.

    A model may be chosen from the end of stage 1 on, and from `config.select_from` on; where a run ends before that, it
    is its last one.

    Args:
        config: resolved.
        rows: of the run so far.

    Returns:
        The first row of the best validation accuracy; None without validation examples.
    """
    if not rows or "validation_accuracy" not in rows[-1]:
        return None
    first = min(max(config.method.get("warmup_rounds", 0), config.select_from), rows[-1]["round"])
    return max((row for row in rows if row["round"] >= first), key=_accuracy)


def out_of_patience(config: ml_collections.ConfigDict, rows: Sequence[Row]) -> bool:
    """Whether the run ends here because `early_stopping.patience` evaluations have brought no better model.

    Args:
        config: resolved.
        rows: of the run so far.
    """
    patience = config.early_stopping.patience
    best = None if patience is None else selected(config, rows)  # which looks at all rows
    return best is not None and sum(row["round"] > best["round"] for row in rows) >= patience


def _accuracy(row: Row) -> float:
    value = float(row["validation_accuracy"])
    return -1.0 if math.isnan(value) else value
