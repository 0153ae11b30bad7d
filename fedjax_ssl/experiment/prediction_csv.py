"""Predictions as CSV: a line per new example, a line per client."""

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_ssl.data import Dataset, FederatedData, client_names
from fedjax_ssl.experiment.prediction import Predicted


def predictions_csv(
    dataset: Dataset, federation: FederatedData, outcomes: Sequence[Predicted], natural: bool = True
) -> str:
    """A line per new example: where it is, whose it is, true and predicted labels; `natural`: clients have names."""
    classes = dataset.class_names
    client = np.asarray(federation.test_client)
    place = np.flatnonzero(client >= 0)
    rows = np.asarray(federation.test_index)[place]
    truth = np.asarray(federation.labels)[rows]
    names = client_names(dataset, federation, natural)
    header, columns = ["split", "row", "client", "label"], []
    for one in outcomes:
        header += [one.job.name, f"{one.job.name}_confidence"]
        columns.append([_class_name(classes, label) for label in np.asarray(one.found.labels)[place]])
        columns.append([f"{value:.4f}" for value in np.asarray(one.found.confidence)[place]])
        if one.found.coarse is not None:
            header.append(f"{one.job.name}_coarse")
            found = np.asarray(one.found.coarse)[place]
            columns.append([_class_name(federation.coarse_names, label) for label in found])
    train = len(dataset.train)
    lines = (
        [
            "train" if row < train else "test",
            int(row if row < train else row - train),
            names[client[where]],
            _class_name(classes, label),
            *(column[i] for column in columns),
        ]
        for i, (where, row, label) in enumerate(zip(place, rows, truth, strict=True))
    )
    return _csv([header, *lines])


def clients_csv(
    dataset: Dataset, federation: FederatedData, outcomes: Sequence[Predicted], natural: bool = True
) -> str:
    """Arguments as of `predictions_csv`; a line per client that has new examples, with counts and all scores."""
    client = np.asarray(federation.test_client)
    new = np.bincount(client[client >= 0], minlength=federation.num_clients + federation.num_new_clients)
    nothing = np.zeros(federation.num_new_clients, np.int32)
    examples, labelled = (
        np.concatenate([np.asarray(counts), nothing]) for counts in (federation.num_examples, federation.num_labelled)
    )
    names = client_names(dataset, federation, natural)
    header = ["client", "training_examples", "labelled_examples", "new_examples"]
    header += [f"{one.job.name}_{score}" for one in outcomes for score in ("accuracy", "balanced_accuracy")]
    scores = [
        np.asarray(values)
        for one in outcomes
        for values in (one.scores.client_accuracy, one.scores.client_balanced_accuracy)
    ]
    lines = (
        [names[c], examples[c], labelled[c], new[c], *("" if np.isnan(s[c]) else f"{s[c]:.4f}" for s in scores)]
        for c in np.flatnonzero(new).tolist()
    )
    return _csv([header, *lines])


def _class_name(names: Sequence[str], label: int) -> str:
    return names[label] if label >= 0 else ""


def _csv(lines: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
