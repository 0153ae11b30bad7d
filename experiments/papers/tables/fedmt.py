"""FedMT: Zhang et al., Federated learning with mixed-type labels, arXiv:2210.02042, version 4.

Our text of the paper ends before its experiments: tables without numbers are what its sections
name, with SemiFL's settings. The curves are those that the authors published.
"""

from experiments.papers import without_unlabelled

COARSE_GONE = {"supervision.server_labels": None, "supervision.correspondence": None}
AT_SERVER = {**COARSE_GONE, "supervision.name": "server"}
SECOND_HEAD = {"model.aux_head": True}
STAGES = {"method.coarse_rounds": 400, "optimizer.schedule_rounds": 400, **SECOND_HEAD}
SMALL_STAGES = {"small": {"method.coarse_rounds": 15, "optimizer.schedule_rounds": 15}}
ALL_EXAMPLES = {"method.projection_examples": "all"}
SYSTEMS = {
    "server alone": {"method.name": "single", **AT_SERVER},
    "SemiFL": {"method.name": "semifl", **AT_SERVER},
    "FedTrans": {"method.name": "fedtrans", **STAGES, **SMALL_STAGES},
    "FedTrans, head alone": {
        "method.name": "fedtrans",
        "method.finetune": "head",
        **STAGES,
        **SMALL_STAGES,
    },
    "FedRep": {
        "method.name": "fedrep",
        **SECOND_HEAD,
        "small": {"method.head_epochs": 5},
    },
    "FedMT(T)": {},
    "FedMT(T), all examples": {**ALL_EXAMPLES, "method.gate": "none"},
    "FedMT(E)": {"method.correspondence": "estimated"},
    "FedMT(E), all examples": {"method.correspondence": "estimated", **ALL_EXAMPLES},
    "FedAvg, all class labels": {"method.name": "fedavg", **COARSE_GONE, "supervision.name": "all"},
}
# FedMT without losses on pseudo-labels, with that on coarse labels. SemiFL without its own is the
# server alone, the labelled-only baseline.
NO_LOSS = {"method.fix_weight": 0.0, "method.mix_weight": 0.0}
CONTROLS = {
    without_unlabelled(row): {**SYSTEMS[row], **NO_LOSS} for row in ("FedMT(T)", "FedMT(E)")
}
SYSTEMS |= CONTROLS
NO_SERVER = ("FedRep", "FedAvg, all class labels")  # without epochs at the server
SPLITS = {"iid": "iid", "Dirichlet 0.3": "0.3", "Dirichlet 0.1": "0.1"}
# Two cores: MNIST's digits by the shape of their strokes.
SMALL = {
    "seeds": 3,
    "rounds": 30,
    "eval_every": 5,
    "data.name": "mnist",
    "data.pools": (1000, 0, 500),
    "partition.name": "iid",
    "partition.num_clients": 20,
    "partition.alpha": None,
    "partition.min_examples": None,
    "partition.skip_full": None,
    "augment.name": "none",
    "augment.pixels": None,
    "strong_augment.name": "none",
    "model.name": "mlp",
    "optimizer.learning_rate": 0.1,
    "optimizer.local_epochs": 2,
}


def cell(row: str, labels: int, split: str = "iid") -> dict:
    """Settings of a system at a number of labels and a split."""
    settings = {**SYSTEMS[row], "config": f"cifar100_fedmt:{labels},known,{split}"}
    own = dict(settings.pop("small", {}))
    if row not in NO_SERVER:
        own |= {"method.server_epochs": 10, "method.server_batch_size": 10}
    elif row == "FedRep":
        own |= {"method.server_batch_size": 10}
    if settings.get("supervision.name") == "server":
        settings["supervision.labels"] = labels
        own["supervision.labels"] = 50
    elif "supervision.server_labels" not in settings:
        own |= {"supervision.server_labels": 50, "supervision.correspondence": "shape"}
    return {**settings, "small": own}


def systems(columns: dict, rows: tuple = tuple(SYSTEMS)) -> dict:
    """A table of systems; columns: labels at the server, split, and further words of a column."""
    return {
        "rows": {row: {} for row in rows},
        "columns": {column: words for column, (_, _, words) in columns.items()},
        "cells": {
            (row, column): cell(row, labels, split)
            for row in rows
            for column, (labels, split, _) in columns.items()
        },
        "small": SMALL,
    }


def curve(row: str, number: int) -> dict:
    """A point of a curve; at the small scale, of a twenty-fifth of the rounds."""
    settings = cell(row.replace("FedMT", "FedMT(T)"), 2_000)
    return settings | {"small": {**settings["small"], "value": ("round", number // 25)}}


# Column -> settings of the clients with coarse labels, and at the small scale.
SPACES = {
    "20 superclasses": ({}, {}, "three shapes"),
    "20 superclasses or 100 classes, by client": (
        {"supervision.correspondence": "superclass,identity"},
        {"supervision.correspondence": "shape,parity"},
        "three shapes or parity, by client",
    ),
    "20 superclasses, a fifth of the labels any of them": (
        {"supervision.overlap": 0.2},
        {},
        "shapes, a fifth any",
    ),
}


def space(row: str, column: str) -> dict:
    """Settings of a system in label spaces."""
    settings = cell(row, 2_000)
    (large, small, _) = SPACES[column]
    if settings.get("supervision.name") == "server":
        return settings
    return {**settings, **large, "small": {**settings["small"], **small}}


ROUNDS = (50, 100, 200, 300, 400, 500, 600, 700, 800)
MATRIX = {
    "test accuracy": {},
    "coarse accuracy": {"metric": "test_coarse_accuracy"},
    "pseudo-labels right": {"metric": "pseudo_label_accuracy"},
    "confident examples": {"metric": "pseudo_label_coverage"},
    "largest error of the matrix": {"metric": "correspondence_error"},
}
FEDMT = tuple(row for row in SYSTEMS if row.startswith("FedMT") and row not in CONTROLS)
SPACED = ("server alone", "SemiFL", "FedRep", *FEDMT, *CONTROLS)
CURVES = ("FedMT", "SemiFL", without_unlabelled("FedMT"), "server alone")

TABLES = {
    "fedmt-systems": systems(
        {
            "2,000 labels": (2_000, "iid", {"small": {"name": "50 labels"}}),
            "1,000 labels": (1_000, "iid", {}),
        }
    ),
    "fedmt-splits": systems({name: (2_000, split, {}) for name, split in SPLITS.items()}),
    "fedmt-matrix": systems({name: (2_000, "iid", words) for name, words in MATRIX.items()}, FEDMT),
    "fedmt-spaces": {
        "rows": {row: {} for row in SPACED},
        "columns": {column: {"small": {"name": words[2]}} for column, words in SPACES.items()},
        "cells": {(row, column): space(row, column) for row in SPACED for column in SPACES},
        "small": SMALL,
    },
    "fedmt-weights": {
        "rows": {
            "projection": {},
            "fix": {},
            "mix": {},
        },
        "columns": {f"{weight:g}": {} for weight in (0, 0.1, 1, 10)},
        "cells": {
            (kind, f"{weight:g}"): {f"method.{kind}_weight": float(weight)}
            for kind in ("projection", "fix", "mix")
            for weight in (0, 0.1, 1, 10)
        },
        "small": {
            **SMALL,
            "seeds": 2,
            "supervision.server_labels": 50,
            "supervision.correspondence": "shape",
            "method.server_epochs": 10,
            "method.server_batch_size": 10,
        },
    },
    "fedmt-curves": {
        "settings": {"eval_every": 50},
        "rows": {row: {} for row in CURVES},
        "columns": {
            f"{one}": {"value": ("round", one), "small": {"name": f"{one // 25}"}} for one in ROUNDS
        },
        "cells": {(row, f"{number}"): curve(row, number) for row in CURVES for number in ROUNDS},
        "small": {
            **SMALL,
            "rounds": 32,
            "eval_every": 2,
        },
    },
}
