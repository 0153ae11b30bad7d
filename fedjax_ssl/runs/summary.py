"""Facts about a run, in words and in summary.json: placement, the reason why no client trained, the
chosen model.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

from fedjax_ssl import federated
from fedjax_ssl.folder.environment import command, device_description, peak_memory_bytes, versions
from fedjax_ssl.folder.files import bytes_in_words
from fedjax_ssl.runs.rounds import TOTALS, TOTALS_IF_THERE

Row = Mapping[str, Any]
_LAST = (  # fields copied from the last row, if it has them
    *("test_balanced_accuracy", "test_loss", "test_macro_f1", "test_ece", "test_auroc"),
    *("test_client_accuracy", "test_client_accuracy_worst_tenth", "test_client_accuracy_spread"),
    *("test_client_global_accuracy", "test_client_global_accuracy_worst_tenth"),
    "test_client_gain",
    *("pseudo_label_accuracy", "pseudo_label_coverage"),
    *("epsilon", "clip_norm"),
    *("analytic_gflop", "analytic_megabytes", "as_run_forward_gflop", "as_run_gflop"),
)


def why_nobody_trained(row: dict[str, Any]) -> str:
    """Return why a block of rounds has no local step."""
    if dropped := int(row["dropped_clients"]):
        return (
            f"what {dropped} clients returned was not finite, and no other had anything to learn "
            "from"
        )
    return "no client had anything to learn from"


def describe_placement(choice: federated.Choice, backend: str) -> str:
    """Describe how a cohort's clients run, for example "clients at once: 48 in lanes, about 210 MB
    each of 60 GB".

    Args:
        choice: from the engine.
        backend: platform that JAX computes on.
    """
    if choice.placement == "sequential":
        return "clients one after another" + (" (CPU)" if backend == "cpu" else "")
    how = {"lanes": " in lanes", "chunked": " in chunks", "vmap": ", all of them"}[choice.placement]
    line = f"clients at once: {choice.clients_at_once}{how}"
    if choice.bytes_per_client is None or choice.limit is None:
        return line
    each, limit = map(bytes_in_words, (choice.bytes_per_client, choice.limit))
    return f"{line}, about {each} each of {limit}"


def what_was_predicted(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """Return the settings that decide the predictions of a trained network; empty if there are
    none.
    """
    return config.prediction.to_dict() if config.prediction.predictors else {}


def summarize(
    config: ml_collections.ConfigDict,
    rows: list[dict[str, Any]],
    seconds: Mapping[str, float],
    predictions: list[dict[str, Any]],
) -> dict[str, Any]:
    """Gather the fields of `summary.json`.

    Args:
        config: resolved config of the run.
        rows: all metric rows.
        seconds: "compile_seconds" and "train_seconds", the latter without compiling.
        predictions: from `fedjax_ssl.runs.prediction_files.summary_of`.

    Returns:
        The fields in the order of the file. `test_accuracy` is the last row's, `best_test_accuracy`
        the highest (not a fair result, because it uses the test set); both are None without test
        data. Rates are per second of `train_seconds`, None if nothing was trained; bytes are for
        all clients and rounds; `command` is the last start's.
    """
    last = rows[-1] if rows else {}
    trained = seconds["train_seconds"]
    totals = {name: sum(int(row[name]) for row in rows) for name in TOTALS}
    given = [row["test_accuracy"] for row in rows if row.get("test_accuracy") is not None]
    accuracies = [value for value in given if math.isfinite(value)]
    fields: dict[str, Any] = {
        "method": config.method.name,
        "dataset": config.data.name,
        "seed": config.seed,
        "rounds": last["round"] if last else config.rounds,
        "test_accuracy": accuracies[-1] if accuracies else None,
        "best_test_accuracy": max(accuracies, default=None),
        "compile_seconds": seconds["compile_seconds"],
        "train_seconds": trained,
        "client_updates_per_second": totals["clients"] / trained if trained > 0 else None,
        "examples_per_second": totals["examples"] / trained if trained > 0 else None,
        "peak_memory_bytes": peak_memory_bytes(),
        **{name: totals[name] for name in ("bytes_up", "bytes_down")},
        "versions": versions(),
        "device": device_description(),
        "command": command(),
        **{name: totals[name] for name in ("dropped_clients", "local_steps")},
        **{name: sum(row[name] for row in rows) for name in TOTALS_IF_THERE if name in last},
        **{name: last[name] for name in _LAST if name in last},
    }
    if last and last["round"] < config.rounds:
        fields["stopped_early"] = True
    if predictions:
        fields |= {"predictions": predictions, "prediction": what_was_predicted(config)}
    if (chosen := selected(config, rows)) is not None:
        shown = dict.fromkeys(
            ("round", "validation_accuracy", "test_accuracy", config.early_stopping.metric)
        )
        fields |= {f"selected_{name}": chosen[name] for name in shown if name in chosen}
    return fields


def selected(config: ml_collections.ConfigDict, rows: Sequence[Row]) -> Row | None:
    """Return the metric row of the chosen model.

    A model can be chosen from the end of stage 1 on, and from `config.select_from` on; if a run
    ends before that, its last model is chosen.

    Args:
        config: resolved.
        rows: rows of the run so far.

    Returns:
        The first row of the best `config.early_stopping.metric`; None without validation examples.
        If clients have their own models, validation examples do not score these, so it is the last
        row, unless the config sets more than the default.
    """
    if not rows or "validation_accuracy" not in rows[-1]:
        return None
    if of_own_models(config, rows[-1]) and not asks_for_selection(config):
        return rows[-1]
    first = min(max(config.method.get("warmup_rounds", 0), config.select_from), rows[-1]["round"])
    metric = config.early_stopping.metric
    sign = -1.0 if config.early_stopping.direction == "minimize" else 1.0

    def goodness(row: Row) -> float:
        # A row from before the metric was set has none.
        value = sign * float(row.get(metric, math.nan))
        # scores that are not numbers: their greatest is class 0
        undefined = math.isnan(value) or math.isnan(row.get("validation_loss", 0.0))
        return -math.inf if undefined else value

    return max((row for row in rows if row["round"] >= first), key=goodness)


def of_own_models(config: ml_collections.ConfigDict, row: Row) -> bool:
    """Return whether clients predict with their own models beside a global one, which the
    validation scores describe.

    Args:
        config: resolved.
        row: any row of the run. With the metric "clients", a global model has accuracies by client
            too, if test examples belong to clients.
    """
    if config.method.name == "alone" or config.federated.name == "local":
        return False
    if "test_client_global_accuracy" in row or "clients" not in config.metrics:
        return "test_client_accuracy" in row
    accuracy = row.get("test_client_accuracy", 0.0)
    return accuracy is None or math.isnan(accuracy)


def asks_for_selection(config: ml_collections.ConfigDict) -> bool:
    """Return whether the config itself says which round is chosen."""
    asked = config.early_stopping
    by_default = asked.metric == "validation_accuracy"
    return asked.patience is not None or not by_default or config.select_from > 0


def out_of_patience(config: ml_collections.ConfigDict, rows: Sequence[Row]) -> bool:
    """Return whether the run ends here because `early_stopping.patience` evaluations brought no
    better model.

    Args:
        config: resolved.
        rows: rows of the run so far.
    """
    patience = config.early_stopping.patience
    best = None if patience is None else selected(config, rows)  # reads all rows
    return best is not None and sum(row["round"] > best["round"] for row in rows) >= patience
