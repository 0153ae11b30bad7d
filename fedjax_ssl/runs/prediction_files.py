"""Files about the predictions of a run: rows of `summary.json`, and tables by example and by
client.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from fedjax_ssl.data import Dataset, FederatedData, client_names
from fedjax_ssl.folder.rows import csv_text
from fedjax_ssl.prediction.one_shot import Predicted


def summary_of(outcomes: Sequence[Predicted]) -> list[dict[str, Any]]:
    """Return the outcomes as in `summary.json`.

    Args:
        outcomes: outcomes of one run.

    Returns:
        For each one its name and settings, "new_examples", "coverage" (share of the new examples
        with a predicted label), accuracies in [0, 1] (left out if no new example has a true label),
        and "seconds" of all variants that share its graph, compiling included.
    """
    rows = []
    for outcome in outcomes:
        scores = jax.tree.map(lambda values: np.asarray(values, np.float64), outcome.scores)
        scored = scores["client_examples"] > 0
        row: dict[str, Any] = {
            **outcome.job._asdict(),
            "new_examples": int(scores["examples"]),
            "coverage": float(scores["coverage"]),
        }
        if scored.any():
            row |= {
                "accuracy": float(scores["accuracy"]),
                "balanced_accuracy": float(scores["balanced_accuracy"]),
                "mean_client_accuracy": float(scores["client_accuracy"][scored].mean()),
                "lowest_client_accuracy": float(scores["client_accuracy"][scored].min()),
                "mean_client_balanced_accuracy": float(
                    scores["client_balanced_accuracy"][scored].mean()
                ),
            }
        row["seconds"] = outcome.seconds
        if outcome.protocol_bytes is not None:
            row["protocol_bytes"] = outcome.protocol_bytes
        rows.append(row)
    return rows


def predictions_csv(
    dataset: Dataset, federation: FederatedData, outcomes: Sequence[Predicted], natural: bool = True
) -> str:
    """Write a line per new example: its place, client, true and predicted labels; `natural`:
    clients have names.
    """
    place = np.flatnonzero(np.asarray(federation.test_client) >= 0)
    columns = example_columns(dataset, federation, place, natural)
    for one in outcomes:
        columns[one.job.name] = _named(one.found.labels[place], dataset.class_names)
        columns[f"{one.job.name}_confidence"] = np.asarray(one.found.confidence)[place]
        if one.found.coarse is not None:
            columns[f"{one.job.name}_coarse"] = _named(
                one.found.coarse[place], federation.coarse_names
            )
    return as_csv(columns)


def example_columns(
    dataset: Dataset, federation: FederatedData, place: np.ndarray, natural: bool = True
) -> dict[str, Any]:
    """Return columns that identify some test examples: line or file if known, split and row,
    client, label.

    Args:
        dataset: dataset of the federation.
        federation: not traced.
        place: entries of `federation.test_index`.
        natural: clients have names.
    """
    rows = np.asarray(federation.test_index)[place]
    train = len(dataset.train)
    columns: dict[str, Any] = {}
    splits = [split for split in (dataset.train, dataset.test) if split is not None]
    if any(split.names is not None for split in splits):
        names = [
            np.full(len(split), "") if split.names is None else split.names for split in splits
        ]
        columns["input"] = np.concatenate(names)[rows]
    # The last one is for -1, no client.
    clients = np.array([*client_names(dataset, federation, natural), ""], object)
    return columns | {
        "split": np.where(rows < train, "train", "test"),
        "row": np.where(rows < train, rows, rows - train),
        "client": clients[np.asarray(federation.test_client)[place]],
        "label": _named(np.asarray(federation.labels)[rows], dataset.class_names),
    }


def _named(labels: Array | np.ndarray, classes: Sequence[str]) -> list[str]:
    return [classes[label] if label >= 0 else "" for label in np.asarray(labels)]


def clients_csv(
    dataset: Dataset, federation: FederatedData, outcomes: Sequence[Predicted], natural: bool = True
) -> str:
    """Write a line per client with new examples: counts and all scores; arguments as for
    `predictions_csv`.
    """
    client = np.asarray(federation.test_client)
    new = np.bincount(
        client[client >= 0], minlength=federation.num_clients + federation.num_new_clients
    )
    rows = np.flatnonzero(new)
    names = np.asarray(client_names(dataset, federation, natural), object)
    examples, labelled = (
        np.pad(np.asarray(counts), (0, federation.num_new_clients))
        for counts in (federation.num_examples, federation.num_labelled)
    )
    columns: dict[str, Any] = {
        "client": names[rows],
        "training_examples": examples[rows],
        "labelled_examples": labelled[rows],
        "new_examples": new[rows],
    }
    for one in outcomes:
        for score in ("accuracy", "balanced_accuracy"):
            by_client = np.asarray(one.scores[f"client_{score}"])
            columns[f"{one.job.name}_{score}"] = by_client[rows]
    return as_csv(columns)


def as_csv(
    table: Mapping[str, Sequence | np.ndarray] | Sequence[Mapping[str, Any]], numbers: str = "%.4f"
) -> str:
    """Write columns, or rows with the same keys, as CSV, with this format of floats, and empty
    cells for None and NaN.
    """

    def cell(value: Any) -> Any:
        if isinstance(value, float | np.floating):
            return "" if math.isnan(value) else numbers % value
        return value

    if isinstance(table, Mapping):
        rows: Iterable[Iterable[Any]] = zip(*table.values(), strict=True)
        names: Iterable[str] = table
    else:
        rows = (row.values() for row in table)
        names = table[0]
    return csv_text([names, *(map(cell, row) for row in rows)])
