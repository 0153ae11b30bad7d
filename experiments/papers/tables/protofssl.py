"""ProtoFSSL: Kim, Park, Sohn, Shu and Kim, Federated semi-supervised learning with prototypical
networks, 2022.

Accuracies in %; the number of runs behind them is not known. Settings are those of the released
code at the time of the paper (docs/methods/protofssl.md).
"""

from experiments.papers import without_unlabelled

MU = {"CIFAR-10": 1e-2, "SVHN": 1e-3, "STL-10": 1e-2}  # of FedProx with ProtoFSSL
# ... with all labels, and with labels only
MU_SL = {"CIFAR-10": 1e-2, "SVHN": 1e-4, "STL-10": 1e-2}
MU_FIXMATCH = {"CIFAR-10": 0.1, "SVHN": 0.1, "STL-10": 0.01}
FILES = {"CIFAR-10": "cifar10", "SVHN": "svhn", "STL-10": "stl10"}
COLUMNS = {
    "CIFAR-10 IID": {},
    "CIFAR-10 Non-IID": {},
    "SVHN IID": {},
    "SVHN Non-IID": {},
    "STL-10": {},
}
NETWORK = {"model.name": "resnet9"}
# Episodes of a round, and at the scale small as many steps of every other method.
STEPS = 10
SUPERVISED = {
    **NETWORK,
    "method.name": "fedavg",
    "optimizer.batch_size": 32,
    "optimizer.local_epochs": 2,
    "federated.weighting": "uniform",
    "small": {"optimizer.local_steps": STEPS},
}
FIXMATCH = {
    **NETWORK,
    "method.name": "fixmatch",
    "method.threshold": 0.95,
    "method.mask_mean": "confident",
    "method.unlabelled_weight": 0.01,
    "method.unlabelled_ratio": 10,
    "method.augment_labelled": False,
    "augment.name": "translate",
    "strong_augment.name": "fixmatch",
    "optimizer.batch_size": 10,
    "optimizer.local_epochs": 2,
    "federated.weighting": "uniform",
}
FEDMATCH = {
    "method.name": "fedmatch",
    "method.preset": "code",
    "method.num_helpers": 2,
    "method.helper_interval": 10,
    "model.name": "fedmatch_resnet9",
    "model.norm": None,
    "strong_augment.name": "randaugment_fedmatch",
    "optimizer.name": "sgd",
    "optimizer.average_state": False,
    "optimizer.batch_size": 10,
    "optimizer.local_epochs": 1,
    "federated.weighting": "uniform",
    "small": {
        "optimizer.learning_rate": 3e-3,
        "method.l2_weight": 3.3,
        "optimizer.local_epochs": STEPS // 5,  # of five steps through 50 labels
    },
}
ROWS = {
    "FedAvg-SL": SUPERVISED,
    "FedProx-SL": SUPERVISED,
    "FedAvg": SUPERVISED,
    "FedProx": SUPERVISED,
    "FixMatch-FedAvg": FIXMATCH,
    "FixMatch-FedProx": FIXMATCH,
    "FedMatch": FEDMATCH,
    "ProtoFSSL-FedAvg": {},
    "ProtoFSSL-FedProx": {},
    "FedRGD": {"value": "last"},
    "ProtoFSSL (with BN)-FedAvg": {},
    "ProtoFSSL (with BN)-FedProx": {},
}
# The same methods at the same steps, with a weight of 0 on the unlabelled loss; "FedAvg" is the
# labelled-only baseline.
NO_LOSS = {"method.unlabelled_weight": 0.0}
CONTROLS = {
    without_unlabelled("ProtoFSSL-FedAvg"): NO_LOSS,
    without_unlabelled("FixMatch-FedAvg"): {**FIXMATCH, **NO_LOSS},
    without_unlabelled("FedMatch"): {
        **FEDMATCH,
        "method.agreement_weight": 0.0,
        "method.kl_weight": 0.0,
    },
}
ROWS |= CONTROLS


FORMULAS = {
    "MixMatch-FedAvg": "mixmatch",
    "FixMatch-FedAvg": "fixmatch",
    "FedMatch": "fedmatch",
}
# Table 3 at the scale small: ten steps of 50 images without a label.
FIFTY_UNLABELLED = {
    "ProtoFSSL": {"method.num_unlabelled": 50},
    "FixMatch": {"method.unlabelled_ratio": 5, "optimizer.local_epochs": 1},
    "FedMatch": {"method.unlabelled_batch_size": 50, "method.shuffle": True},
}


def config(column: str, full: bool = False, norm: str = "none", network: str = "resnet8") -> str:
    """The config of a data set and split, with all labels or with few."""
    dataset, _, split = column.partition(" ")
    kind = (split or "IID").lower().replace("-", "") + ("_full" if full else "")
    return f"cifar10_protofssl:{kind},{norm},{network},{FILES[dataset]}"


def cell3(row: str, column: str) -> dict | None:
    """A cell of Table 3."""
    dataset = column.partition(" ")[0]
    prox = row.endswith("FedProx") or row.startswith("FedProx")
    if row == "FedRGD":
        variant = "client,noniid" if "Non" in column else "client"
        return {"config": f"cifar10_fedrgd:{variant}"} if dataset == "CIFAR-10" else None
    full = row.endswith("-SL")
    if full and dataset == "STL-10":
        return None
    settings: dict = {"config": config(column, full, "bn" if "BN" in row else "none")}
    if prox:
        penalty = MU_FIXMATCH if "FixMatch" in row else MU if "Proto" in row else MU_SL
        settings |= {"federated.name": "fedprox", "federated.mu": penalty[dataset]}
    for method, fields in FIFTY_UNLABELLED.items():
        if method in row:
            settings["small"] = fields
    return settings


# Two cores: 20 clients with as many examples each, three of them a round, a network of two
# convolutions, fewer rounds.
SMALL = {
    "seeds": 3,
    "rounds": 30,
    "eval_every": 5,
    "select_from": 10,
    "data.pools": (1080, 50, 200),
    "partition.num_clients": 20,
    "model.name": "cnn",
    "model.norm": None,
    "model.width_factor": 0.5,
    "model.dropout": False,
    "federated.cohort_size": 3,
}
# Half of the paper's rounds: so many local steps that prototypes of five labels could tell more.
MEDIUM = {
    "rounds": 150,
    "eval_every": 10,
    "select_from": 50,
}
IID = {"IID": "CIFAR-10 IID", "Non-IID": "CIFAR-10 Non-IID"}

# Table 4: networks and norms.
NORMS = {"None": "none", "BN": "bn", "GN": "gn", "sBN": "sbn"}
TABLE4 = (
    ("FedAvg-SL", "ResNet9", "None"),
    ("FedAvg-SL", "ResNet9", "BN"),
    ("FedAvg-SL", "ResNet9", "GN"),
    ("FedAvg-SL", "ResNet9", "sBN"),
    ("FedAvg-SL", "ResNet18", "sBN"),
    ("ProtoFSSL", "ResNet8", "None"),
    ("ProtoFSSL", "ResNet8", "BN"),
    ("ProtoFSSL", "ResNet8", "GN"),
    ("ProtoFSSL", "ResNet8", "sBN"),
    ("ProtoFSSL", "ResNet17", "sBN"),
    ("ProtoFSSL", "ResNet8", "HeteroFL's sBN"),
)


def row4(method: str, network: str, norm: str) -> dict:
    """A row of Table 4 but for its config."""
    if method == "ProtoFSSL":
        return {"method.static_batch_norm": True} if "HeteroFL" in norm else {}
    return {
        **SUPERVISED,
        "model.name": {"ResNet9": "resnet9", "ResNet18": "proto_resnet18"}[network],
    }


def config4(method: str, network: str, norm: str, column: str) -> str:
    """The config of a cell of Table 4."""
    own = "resnet17" if network == "ResNet17" else "resnet8"
    return config(column, method == "FedAvg-SL", NORMS.get(norm, "bn"), own)


# Table 9: noise on prototypes, with batch norm.
TABLE9 = ("none", "0.01", "0.05", "0.1", "0.5", "5.0", "10.0")
FULL_NONIID = (249, 78, 20, 20, 20, 15, 20, 20, 20, 78)


def labels3(labels: int, split: str) -> dict:
    """Figure 3: so many labelled images of a client's 540."""
    each = labels // 10
    rest = (54 - each,) if split == "iid" else tuple(max(count - each, 0) for count in FULL_NONIID)
    return {"supervision.labels": each, "partition.balanced": each, "partition.counts": rest}


def steps3(row: str, labels: int) -> dict:
    """Settings of a method with which it takes `STEPS` steps a round, two epochs of five."""
    each = {"FedMatch": {"optimizer.batch_size": labels // 5}}
    if labels == 200:  # 340 images without a label
        each["FixMatch-FedAvg"] = {"method.unlabelled_ratio": 7}
    return {"small": each.get(row.partition(without_unlabelled(""))[0], {})}


def figure3(split: str) -> dict:
    """Figure 3 for one split."""
    return {
        "rows": {
            name: ROWS[name]
            for name in ("FedAvg", "FixMatch-FedAvg", "FedMatch", "ProtoFSSL-FedAvg", *CONTROLS)
        },
        "columns": {f"{labels}": labels3(labels, split) for labels in (50, 100, 200)},
        "cells": {
            (row, f"{labels}"): steps3(row, labels)
            for row in ("FixMatch-FedAvg", "FedMatch", *CONTROLS)
            for labels in (50, 100, 200)
        },
        # non-iid clients have more of some classes
        "small": {**SMALL, "data.pools": (1100, 50, 200)},
    }


def helpers(columns: dict, members: int, rows: dict) -> dict:
    """Figures 4 and 5."""
    return {
        "settings": {"federated.cohort_size": members},
        "rows": rows,
        "columns": columns,
        "small": {**SMALL, "federated.cohort_size": min(members, 10)},
    }


OURS = {"ProtoFSSL": {}}
BOTH = {**OURS, "FedMatch": FEDMATCH}
HELPERS = {f"{number}": {"method.num_helpers": number} for number in (1, 2, 3, 5)}
MORE = {f"{number}": {"method.num_helpers": number} for number in (5, 10, 20, 30)}
INTERVALS = {f"{rounds}": {"method.helper_interval": rounds} for rounds in (1, 2, 5, 10)}

TABLES = {
    "protofssl-table2": {
        "settings": {"rounds": 2, "select_from": 0},
        "rows": {
            **{row: {**NETWORK, "method.name": "fedavg"} for row in FORMULAS},
            "ProtoFSSL": {"method.num_helpers": 2, "small": {"method.num_unlabelled": 10}},
        },
        "columns": {"GFLOP": {"metric": "analytic_gflop"}, "MB": {"metric": "analytic_megabytes"}},
        "cells": {
            (row, column): {"metric": f"cost_{kind}:{method}"}
            for row, method in FORMULAS.items()
            for column, kind in (("GFLOP", "gflop"), ("MB", "megabytes"))
        },
        "small": {
            "seeds": 1,
            "rounds": 1,
            "data.pools": (5400, 10, 10),
            "federated.cohort_size": 1,
            "optimizer.local_epochs": 1,
        },
    },
    "protofssl-table3": {
        "rows": ROWS,
        "columns": COLUMNS,
        "cells": {(row, column): cell3(row, column) for row in ROWS for column in COLUMNS},
        "small": SMALL,
        "medium": MEDIUM,
    },
    "protofssl-table4": {
        "rows": {", ".join(key): row4(*key) for key in TABLE4},
        "columns": {name: {} for name in IID},
        "cells": {
            (", ".join(key), name): {"config": config4(*key, column)}
            for key in TABLE4
            for name, column in IID.items()
        },
        "small": {
            field: SMALL[field]
            for field in SMALL
            if field not in ("model.name", "model.norm", "model.dropout")
        }
        | {"model.width_factor": 0.125, "rounds": 20},
    },
    "protofssl-table7": {
        "rows": {
            f"{number}": {"method.num_unlabelled": number} for number in (10, 20, 30, 50, 100, 200)
        },
        "columns": {name: {"config": config(column)} for name, column in IID.items()},
        "small": SMALL,
    },
    "protofssl-table8": {
        "rows": {
            f"{number} active clients": {
                "federated.cohort_size": number,
                "method.num_helpers": number,
                "small": {"name": "3 active clients"} if number == 5 else {},
            }
            for number in (5, 20)
        },
        "columns": {f"{steps}": {"optimizer.local_epochs": steps} for steps in (1, 2, 5, 10)},
        "small": SMALL,
    },
    "protofssl-table9": {
        "rows": {
            deviation: {"method.proto_noise_std": 0.0 if deviation == "none" else float(deviation)}
            for deviation in TABLE9
        },
        "columns": {column: {"config": config(column, norm="bn")} for column in COLUMNS},
        "small": {
            **SMALL,
        },
    },
    "protofssl-algorithm2": {
        "rows": {"Algorithm 1": {}, "Algorithm 2": {"method.proto_source": "global"}},
        "columns": {"CIFAR-10": {}},
        "small": SMALL,
    },
    "protofssl-figure3-iid": figure3("iid"),
    "protofssl-figure3-noniid": figure3("noniid"),
    "protofssl-figure4a": helpers(HELPERS, 5, BOTH),
    "protofssl-figure4b": helpers(INTERVALS, 5, BOTH),
    "protofssl-figure5a": helpers(MORE, 30, OURS),
    "protofssl-figure5b": helpers(INTERVALS, 30, OURS),
}
