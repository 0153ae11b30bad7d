"""ProxyFL: CVPR 2026, arXiv:2602.21078, whose tables have SAGE's federation and its numbers too.

20 clients, 8 in a round, ResNet-8 of four times the width; single runs, without a spread. Rows of
methods that are not in this package (FedLabel, FedLoke, FedDure, FedDB), and of FedMatch, whose
networks and batches are its own, are left out.
"""

from experiments.papers import LABELLED_ONLY, Table, without_unlabelled
from experiments.papers.claims import Claim, above

SOURCE = "arXiv:2602.21078, "
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
    "FlexMatch": {
        "method.name": "fixmatch",
        "method.threshold_rule": "flexmatch",
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
# Columns: dataset by dataset, Dirichlet 0.1, 0.5 and 1.
TENTH = {
    "FedAvg": "69.60 68.88 69.39 34.08 33.21 35.31 82.40 83.40 78.60 57.17 60.09 61.54",
    "FedProx": "68.58 69.53 68.00 34.20 34.07 34.88 81.67 83.77 83.77 58.05 60.71 62.82",
    "FedAvg, all labels": "90.46 91.24 91.32 67.98 68.83 69.10 94.11 94.41 94.40 77.82 80.42 81.29",
    "FixMatch, local labels": (
        "82.98 84.36 84.69 49.32 49.67 49.55 89.68 91.33 91.91 68.02 70.67 72.69"
    ),
    "FixMatch, global labels": (
        "84.56 86.05 86.66 48.96 51.80 52.19 90.50 91.94 92.31 71.67 73.26 74.80"
    ),
    "FixMatch with FedProx": (
        "84.60 85.49 86.95 48.42 48.51 49.33 90.46 91.36 91.25 68.62 70.67 72.69"
    ),
    "FlexMatch": "84.21 86.00 86.57 49.91 51.39 51.79 52.58 55.59 60.50 69.20 71.87 73.42",
    "SAGE": "87.05 88.05 89.08 54.18 55.82 56.06 93.85 94.27 94.65 74.59 75.74 76.68",
    "ProxyFL": "88.56 90.00 89.96 57.50 58.75 58.24 95.09 95.18 95.26 77.98 78.96 79.59",
}
FIFTH = {
    "FedAvg": "86.37 87.06 87.97 45.72 46.57 47.55 88.37 89.05 89.97 66.24 68.29 69.21",
    "FedProx": "86.78 88.11 88.44 45.96 47.33 47.89 87.99 88.56 91.10 65.53 69.57 69.91",
    "FixMatch, local labels": (
        "87.22 89.61 89.23 56.80 57.35 57.59 93.66 94.11 94.21 72.51 75.14 76.03"
    ),
    "FixMatch, global labels": (
        "88.55 89.69 89.83 57.02 57.85 57.85 93.89 94.12 94.17 76.14 77.35 77.82"
    ),
    "FixMatch with FedProx": (
        "87.47 89.46 89.56 57.44 57.91 57.87 93.60 93.93 94.05 72.36 75.15 76.06"
    ),
    "FlexMatch": "76.36 78.66 78.76 58.24 58.44 58.79 56.94 58.58 62.19 73.32 75.75 75.95",
    "SAGE": "89.87 90.53 90.54 60.86 61.49 62.01 94.31 94.56 94.68 77.51 78.23 78.77",
    "ProxyFL": "90.97 91.22 91.51 62.57 63.09 63.19 95.03 95.40 95.34 80.80 81.02 81.46",
}
PARTS = {
    "FixMatch, global labels": {**SYSTEMS["FixMatch, global labels"]},
    "tuning alone": {"method.contrast_weight": 0.0},
    "contrast alone": {"method.tuning_epochs": 0},
    "ProxyFL": {},
    without_unlabelled("ProxyFL"): NO_LOSS,
    LABELLED_ONLY: PLAIN,
}
ABLATION = {
    "FixMatch, global labels": TENTH["FixMatch, global labels"],
    "tuning alone": "87.59 89.23 89.71 54.86 56.58 57.09 94.29 94.49 94.53 77.15 79.03 79.31",
    "contrast alone": "87.81 89.58 89.66 57.21 57.98 57.74 94.82 94.69 95.15 77.80 78.04 78.57",
    "ProxyFL": TENTH["ProxyFL"],
}
# Two cores: the digits by writer, with the views of docs/methods/consistency.md.
SMALL = {
    "name": "Digits by writer, five labels each: test accuracy in %",
    "other": "digits by writer in place of CIFAR-10 by class",
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
DIFFERS = (
    "momentum starts anew in every round; in the code one buffer serves all clients",
    "one run of the paper each; last or best round is not stated",
)


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


def systems(name: str, title: str, source: str, paper: dict, rows: dict, labels: int = 1) -> Table:
    """A table of systems on all datasets."""
    rows = {
        row: own
        for row, own in rows.items()
        if row in paper or row in CONTROLS or row == LABELLED_ONLY
    }
    own = {}
    if "FedAvg, all labels" in rows:
        own["FedAvg, all labels"] = {
            "small": {"supervision.name": "all", "supervision.labels": None}
        }
    return Table(
        name=name,
        title=title,
        source=SOURCE + source,
        config="cifar10_proxyfl",
        rows={row: own.get(row, {}) for row in rows},
        columns=COLUMNS,
        cells=cells(rows, labels),
        paper={row: tuple(numbers.split()) for row, numbers in paper.items()},
        small=SMALL,
        small_cells={"columns": [place("CIFAR-10", "0.1")]},
        reduced=(
            "the digits of 14 writers, five labels each; one hidden layer; 60 rounds of 20 steps; "
            "weak views are moved by a pixel, strong ones turned"
        ),
        differs=DIFFERS,
        steps=20,
    )


TABLES = (
    systems(
        "proxyfl-table1",
        "Test accuracy with a tenth of the labels, by dataset and Dirichlet concentration, in %",
        "Table 1",
        TENTH,
        SYSTEMS,
    ),
    systems(
        "proxyfl-table6",
        "Test accuracy with a fifth of the labels, by dataset and Dirichlet concentration, in %",
        "Table 6; its labels of each class are twice those of Table 1's code",
        FIFTH,
        SYSTEMS,
        labels=2,
    ),
    systems(
        "proxyfl-table2",
        "Parts of ProxyFL: test accuracy with a tenth of the labels, in %",
        "Table 2",
        ABLATION,
        PARTS,
    ),
)

CIFAR = (place("CIFAR-10", "0.1"),)
UNTOLD = (
    "run on digits by writer alone, which says nothing of CIFAR-10; there ProxyFL is -3.1 ± 5.1 points "
    "over SAGE by seed (five seeds)"
)
UNTOLD_PARTS = (
    "run on digits by writer alone; there contrast alone is +1.5 ± 1.7 points over FixMatch by seed, "
    "tuning alone -1.9 ± 5.1 (five seeds)"
)
CLAIMS = (
    Claim(
        paper="ProxyFL",
        text="ahead of SAGE, of FixMatch and of labels alone",
        source="Table 1",
        pairs=above(
            "proxyfl-table1",
            "ProxyFL",
            ("SAGE", "FixMatch, global labels", "FixMatch, local labels", "FedAvg"),
            CIFAR,
        ),
        unlabelled=True,
        baseline="FedAvg",
        lacks=UNTOLD,
    ),
    Claim(
        paper="ProxyFL",
        text="each of its two parts alone is ahead of FixMatch with global labels",
        source="Table 2",
        pairs=[
            *above("proxyfl-table2", "tuning alone", ("FixMatch, global labels",), CIFAR),
            *above("proxyfl-table2", "contrast alone", ("FixMatch, global labels",), CIFAR),
        ],
        baseline=LABELLED_ONLY,
        lacks=UNTOLD_PARTS,
    ),
)
