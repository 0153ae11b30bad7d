"""Runs whose training has diverged: no update is finite any more, so the model never changes
again.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np
from flax.traverse_util import flatten_dict

from fedjax_ssl.config.fields import get
from fedjax_ssl.runs.rounds import DIVERGED_ROUNDS
from fedjax_ssl.runs.summary import selected

Row = Mapping[str, Any]
EXIT_CODE = 4  # exit code of a diverged run; 3 and 75 are in `fedjax_ssl.runs.processes`
# A mean loss beyond all doubt: an untrained network has the logarithm of the number of classes,
# times a weight.
_HUGE = 1e8
_USUAL = {  # field -> values up to this are seldom the reason
    "optimizer.learning_rate": 0.0,
    "federated.server_learning_rate": 1.0,
    "optimizer.weight_decay": 1.0,
    "federated.mu": 1.0,
}
_USUAL_IN_METHOD = 1e3


def carry(row: dict[str, Any], before: Sequence[Row], rounds: int) -> int:
    """Add the count of diverged rounds in earlier blocks to that of this block; the row keeps it if
    it is not 0.

    If no client learned anything in the whole block, the mean loss becomes nan.

    Args:
        row: metrics of the block, with `DIVERGED_ROUNDS` as `fedjax_ssl.runs.rounds` counts it.
        before: earlier rows.
        rounds: length of the block.

    Returns:
        Rounds without any finite update, up to this one.
    """
    found = int(row.pop(DIVERGED_ROUNDS, 0))
    if not found:
        return 0
    if found == rounds:
        row["loss"] = math.nan
        found += int(before[-1].get(DIVERGED_ROUNDS, 0)) if before else 0
    row[DIVERGED_ROUNDS] = found
    return found


def note(row: Row, before: Sequence[Row], rounds: int, config: ml_collections.ConfigDict) -> str:
    """Return a note if a block diverged for the first time or is about to; otherwise "".

    Args:
        row: metrics of the block, after `carry`.
        before: earlier rows.
        rounds: length of the block.
        config: resolved.
    """
    found = row.get(DIVERGED_ROUNDS, 0)
    if found and not (before and before[-1].get(DIVERGED_ROUNDS)):
        dropped = int(row["dropped_clients"])
        losses = [
            one["loss"]
            for one in (*before, row)
            if one["local_steps"] and math.isfinite(one["loss"])
        ]
        whose = (
            f"{dropped} of the {int(row['clients'])} updates of clients"
            if dropped
            else "those of the server"
        )
        largest = (
            f"the largest mean loss before was {max(losses):.3g}"
            if losses
            else "no loss was finite before"
        )
        first = row["round"] - found + 1
        last = "round" if rounds == 1 else f"{rounds} rounds"
        return (
            f"training has diverged: from round {first} on no update was "
            f"finite (left out in the last {last}: {whose}); {largest}. "
            f"{_what_to_do(config, first)}"
        )
    huge = row["loss"] if not found and math.isfinite(row["loss"]) and row["loss"] > _HUGE else 0
    if huge and all(one["loss"] <= _HUGE for one in before):
        return (
            f"the loss of local training is {huge:.3g}, as where training diverges. "
            f"{_what_to_lower(config)}"
        )
    return ""


def ended(state: Any, rows: Sequence[Row], config: ml_collections.ConfigDict) -> dict[str, Any]:
    """Return the summary's fields of a run that ended without recovering; empty for all others.

    Args:
        state: after the last round.
        rows: all rows of the run.
        config: resolved.

    Returns:
        "diverged_in_round": the first round without a finite update, or the last one if the model
        itself is not finite. "diverged": a sentence for the user.
    """
    if not rows:
        return {}
    last = rows[-1]
    found = int(last.get(DIVERGED_ROUNDS, 0))
    if not found and _finite(state.params):
        return {}
    first = last["round"] - found + 1 if found else last["round"]
    best = selected(config, rows)
    metric = config.early_stopping.metric
    if best is not None and math.isfinite(best.get(metric, math.nan)):
        saved = (
            f"The model of round {best['round']}, of the best {metric.replace('_', ' ')}, is in "
            "best/."
        )
    elif found and first > 1:
        saved = (
            f"The model of round {first - 1}, which nothing has changed since, is in checkpoints/."
        )
    else:
        saved = "No model of this run has learned anything."
    what = (
        f"from round {first} on no update was finite"
        if found
        else "the model after the last round is not finite"
    )
    sentence = f"training has diverged: {what}. {_what_to_do(config, first)} {saved}"
    return {"diverged_in_round": first, "diverged": sentence}


def _finite(params: Any) -> bool:
    leaves = [leaf for leaf in jax.tree.leaves(params) if np.issubdtype(leaf.dtype, np.floating)]
    return all(bool(np.isfinite(np.asarray(leaf.addressable_data(0))).all()) for leaf in leaves)


def _what_to_do(config: ml_collections.ConfigDict, first: int) -> str:
    own = (
        " If the loss is not finite from the first step on, look in your own loss or network for a "
        "logarithm, a root or a division of numbers that can be 0 or negative."
    )
    return _what_to_lower(config) + own * (first == 1)


def _what_to_lower(config: ml_collections.ConfigDict) -> str:
    own = flatten_dict(config.method.to_dict(), sep=".")
    limits = _USUAL | {f"method.{name}": _USUAL_IN_METHOD for name in own}
    values = {field: get(config, field) for field in limits}
    given = [
        f"config.{field} ({value:g})"
        for field, value in values.items()
        if isinstance(value, int | float) and value > limits[field]
    ]
    clip = (
        ""
        if config.optimizer.clip_norm is not None
        else ", or limit gradients by config.optimizer.clip_norm"
    )
    return f"Lower {' or '.join(given) or 'the weights of the method'}{clip}."
