"""What is said and written about a run: its placement, why nobody trained, its summary."""

from collections.abc import Mapping
from typing import Any

import ml_collections

from fedjax_ssl import federated, tracking
from fedjax_ssl.experiment.rounds import TOTALS
from fedjax_ssl.experiment.selection import selected
from fedjax_ssl.methods.parts.cost_model import COSTS

_LAST = (  # of the last row, where it has them
    *("test_balanced_accuracy", "test_loss", "test_macro_f1", "test_ece", "test_auroc"),
    *("test_client_accuracy", "test_client_accuracy_worst_tenth", "test_client_accuracy_spread"),
    *("pseudo_label_accuracy", "pseudo_label_coverage"),
)


def why_nobody_trained(row: dict[str, Any]) -> str:
    """Why a block of rounds has no local step."""
    if dropped := int(row["dropped_clients"]):
        return f"what {dropped} clients returned was not finite, and no other had anything to learn from"
    return "no client had anything to learn from"


def describe_placement(choice: federated.Choice, backend: str) -> str:
    """How a cohort's clients run, in words, for example "clients at once: 48 in lanes, about 210 MB each of 60 GB".

    Args:
        choice: from the engine.
        backend: what JAX computes on.
    """
    if choice.placement == "sequential":
        return "clients one after another" + (" (CPU)" if backend == "cpu" else "")
    how = {"lanes": " in lanes", "chunked": " in chunks", "vmap": ", all of them"}[choice.placement]
    line = f"clients at once: {choice.clients_at_once}{how}"
    if choice.bytes_per_client is None or choice.limit is None:
        return line
    each, limit = map(tracking.bytes_in_words, (choice.bytes_per_client, choice.limit))
    return f"{line}, about {each} each of {limit}"


def what_was_predicted(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """What decides the predictions of a trained network; nothing if none are asked for."""
    return config.prediction.to_dict() if config.prediction.predictors else {}


def summarize(
    config: ml_collections.ConfigDict,
    rows: list[dict[str, Any]],
    seconds: Mapping[str, float],
    predictions: list[dict[str, Any]],
) -> dict[str, Any]:
    """The fields of `summary.json`.

    Args:
        config: of the run, resolved.
        rows: all metric rows.
        seconds: "compile_seconds" and "train_seconds".
        predictions: from `fedjax_ssl.experiment.prediction.summary_of`.
    """
    last = rows[-1] if rows else {}
    totals = {name: sum(int(row[name]) for row in rows) for name in TOTALS}
    extra: dict[str, Any] = {"dropped_clients": totals["dropped_clients"], "local_steps": totals["local_steps"]}
    for name in (*_LAST, *COSTS):
        if name in last:
            extra[name] = last[name]
    if last and last["round"] < config.rounds:
        extra["stopped_early"] = True
    if predictions:
        extra["predictions"] = predictions
        extra["prediction"] = what_was_predicted(config)
    if (chosen := selected(config, rows)) is not None:
        extra["selected_round"] = chosen["round"]
        extra["selected_validation_accuracy"] = chosen["validation_accuracy"]
        extra["selected_test_accuracy"] = chosen["test_accuracy"]
    return tracking.summarize(
        rows,
        method=config.method.name,
        dataset=config.data.name,
        seed=config.seed,
        rounds=last["round"] if last else config.rounds,
        client_updates=totals["clients"],
        examples=totals["examples"],
        bytes_up=totals["bytes_up"],
        bytes_down=totals["bytes_down"],
        extra=extra,
        **seconds,
    )
