"""ProxyFL: CVPR 2026, arXiv:2602.21078, whose tables have SAGE's federation and its numbers too.

20 clients, 8 in a round, ResNet-8 of four times the width; single runs, without a spread. Rows of
methods that are not in this package (FlexMatch, FedLabel, FedLoke, FedDure, FedDB), and of FedMatch,
whose networks and batches are its own, are left out.
"""

from experiments.papers import LABELLED_ONLY, without_unlabelled

ALPHAS = ("0.1", "0.5", "1")
# Dataset -> its name in a config; labels of each class; local steps of SAGE's code.
DATASETS = {
    "CIFAR-10": ("cifar10", 500, 95),
    "CIFAR-100": ("cifar100", 50, 95),
    "SVHN": ("svhn", 460, 140),
    "CINIC-10": ("cinic10", 900, 175),
}
FIXMATCH = {"method.unlabelled_ratio": 2, "method.labelled_too": True, "optimizer.local_epochs": 1}
PLAIN = {"method.name": "fedavg", "optimizer.local_epochs": 1}
ALL_LABELS = {"supervision.name": "all"}
SYSTEMS = {
    "FedAvg": PLAIN,
    "FedProx": {**PLAIN, "federated.name": "fedprox"},
    "FedAvg, all labels": {**PLAIN, **ALL_LABELS},
    "FixMatch, local labels": {"method.name": "fixmatch", **FIXMATCH},
    "FixMatch, global labels": {
        "method.name": "fixmatch",
        "method.labels_from": "global",
        **FIXMATCH,
    },
    "FixMatch with FedProx": {
        "method.name": "fixmatch",
        "federated.name": "fedprox",
        **FIXMATCH,
    },
    "SAGE": {"method.name": "sage"},
    "ProxyFL": {},
}
NO_LOSS = {"method.unlabelled_weight": 0.0}
CONTROLS = {
    # its contrast is in the loss with this weight
    without_unlabelled("ProxyFL"): NO_LOSS,
    without_unlabelled("SAGE"): {**SYSTEMS["SAGE"], **NO_LOSS},
    without_unlabelled("FixMatch, local labels"): {**SYSTEMS["FixMatch, local labels"], **NO_LOSS},
}
SYSTEMS |= CONTROLS
PARTS = {
    "FixMatch, global labels": {**SYSTEMS["FixMatch, global labels"]},
    "tuning alone": {"method.contrast_weight": 0.0},
    "contrast alone": {"method.tuning_epochs": 0},
    "ProxyFL": {},
    without_unlabelled("ProxyFL"): NO_LOSS,
    LABELLED_ONLY: PLAIN,
}
# Two cores: the digits by writer, with the views of docs/methods/baselines.md.
SMALL = {
    "seeds": 5,
    "rounds": 60,
    "eval_every": 10,
    "data.name": "digits",
    "data.test_clients": 3,
    "partition.name": "natural",
    "partition.num_clients": None,
    "partition.alpha": None,
    "partition.labels_per_class": None,
    "supervision.name": "per_client",
    "supervision.labels": 5,
    "augment.name": "shift",
    "augment.pixels": 1,
    "augment.fill": "constant",
    "strong_augment.name": "rotate",
    "model.name": "mlp",
    "optimizer.batch_size": 5,
    "optimizer.local_epochs": 1,
    "optimizer.local_steps": 20,
    "federated.cohort_size": 10,
}


def place(dataset: str, alpha: str) -> str:
    """A column's name."""
    return f"{dataset}, {alpha}"


COLUMNS = {
    place(dataset, alpha): {"config": f"{name}_proxyfl:{alpha}"}
    for dataset, (name, _, _) in DATASETS.items()
    for alpha in ALPHAS
}
COLUMNS[place("CIFAR-10", "0.1")]["small"] = {"name": "digits"}


def cells(rows: dict, labels: int = 1) -> dict:
    """Settings of systems in all columns, with so many times the labels of Table 1."""
    found = {}
    for row, settings in rows.items():
        for dataset, (_, per_class, steps) in DATASETS.items():
            own = dict(settings)
            if settings.get("method.name", "proxyfl") not in ("sage", "proxyfl"):
                own["optimizer.local_steps"] = steps
            if labels > 1:
                own["partition.labels_per_class"] = labels * per_class
            found |= {(row, place(dataset, alpha)): own for alpha in ALPHAS}
    return found


def systems(rows: dict, labels: int = 1) -> dict:
    """A table of systems on all datasets."""
    own = {"small": {"supervision.name": "all", "supervision.labels": None}}
    return {
        "rows": {row: own if row == "FedAvg, all labels" else {} for row in rows},
        "columns": COLUMNS,
        "cells": cells(rows, labels),
        "small": SMALL,
    }


TABLES = {
    "proxyfl-table1": systems(SYSTEMS),
    "proxyfl-table6": systems(
        {row: own for row, own in SYSTEMS.items() if row != "FedAvg, all labels"}, labels=2
    ),
    "proxyfl-table2": systems(PARTS),
}
