"""FedMatch: Jeong, Yoon, Yang and Hwang, Federated semi-supervised learning with inter-client
consistency, ICLR 2021.

Mean and standard deviation over three runs, in %. Labels are at the clients (LC) or at the server
(LS).
"""

from collections.abc import Iterable

from experiments.papers import LABELLED_ONLY, without_unlabelled

# Baselines: lambda_s = 10, lambda_u = 1, batches of 10 and 100, one network of one part.
BASELINE = {
    "method.name": "fixmatch",
    "method.labelled_weight": 10.0,
    "method.unlabelled_weight": 1.0,
    "method.unlabelled_ratio": 10,
    "method.augment_labelled": False,
    "method.threshold": 0.85,
    "optimizer.weight_decay": 2e-4,
}
UDA = {**BASELINE, "method.name": "uda", "method.threshold": 0.8, "method.temperature": 0.4}
del UDA["method.augment_labelled"]
SL = {
    **BASELINE,
    "supervision.name": "all",
    "supervision.labels": None,
    "partition.parts": 1,
}
AVERAGE = {"federated.name": "fedavg", "federated.weighting": "examples"}
PROX = {"federated.name": "fedprox", "federated.mu": 1e-2}
KINDS = {"SL": SL, "UDA": UDA, "FixMatch": BASELINE}
ROWS = {
    f"{name}-{kind}": {**way, **KINDS[kind]}
    for kind in KINDS
    for name, way in (("FedAvg", AVERAGE), ("FedProx", PROX))
}
ROWS["FedMatch"] = {"small": {"method.l2_weight": 3.3}}  # the rate times it is the paper's
# The same methods at the same steps, with a weight of 0 on the unlabelled loss. What is left of
# FixMatch under FedAvg is the labelled-only baseline.
NO_LOSS = {"method.unlabelled_weight": 0.0}
NO_CONSISTENCY = {"method.agreement_weight": 0.0, "method.kl_weight": 0.0}
CONTROLS = {
    without_unlabelled("FedMatch"): {**ROWS["FedMatch"], **NO_CONSISTENCY},
    **{
        without_unlabelled(f"FedProx-{kind}"): {**ROWS[f"FedProx-{kind}"], **NO_LOSS}
        for kind in ("UDA", "FixMatch")
    },
    LABELLED_ONLY: {**ROWS["FedAvg-FixMatch"], **NO_LOSS},
}
OWN_CONTROLS = {name: CONTROLS[name] for name in (without_unlabelled("FedMatch"), LABELLED_ONLY)}
ROWS |= CONTROLS
WHERE = {"LC": "lc", "LS": "ls"}
SPLITS = {"IID": "iid", "NonIID": "noniid"}
SERVER_COUNTS = "a client takes five; the server's ten of a round are counted among them"
SERVER_ALONE = "clients have nothing to train; the server takes its ten a round"
BATCH = {
    f"{split} {where}": {
        "config": f"cifar10_fedmatch:{WHERE[where]},{SPLITS[split]}",
        "small": {"steps": SERVER_COUNTS} if where == "LS" else {},
    }
    for split in SPLITS
    for where in WHERE
}


# Two cores: a network of two narrow convolutions, a fifth of the clients, with fewer images each,
# fewer rounds at a higher rate. All methods take five steps a round at a client.
STEPS = 5
NETWORK = {
    "model.name": "cnn",
    "model.width_factor": 0.5,
    "model.dropout": False,
    "model.pad": None,
    "model.colours": None,
}
UNLABELLED = 100  # images of a client of the batch task
RATE = {"optimizer.learning_rate": 3e-3}
SMALL = {
    "seeds": 3,
    "rounds": 25,
    "eval_every": 5,
    "data.pools": (300, 50, 200),
    "data.pool_splits": False,
    "data.test_fraction": 0.0,
    "data.validation_fraction": 0.0,
    "partition.num_clients": 20,
    **NETWORK,
    **RATE,
}
SMALL_STREAM = {
    "seeds": 3,
    "rounds": 20,
    "eval_every": 10,
    "data.pools": (350, 30, 100),
    "data.pool_splits": False,
    "data.test_fraction": 0.0,
    "data.validation_fraction": 0.0,
    "partition.rounds_per_part": 2,
    **NETWORK,
    **RATE,
}


def steps(row: str, where: str, stream: bool = False, each: int = 5) -> dict:
    """Settings with which a method takes `STEPS` steps a round at the scale small.

    Args:
        row: names the method.
        where: "LC" or "LS".
        stream: the task is the streaming one.
        each: labels of a class at a client.
    """
    labels = 10 * each if where == "LC" else 0
    row = "FixMatch" if row == LABELLED_ONLY else row.partition(without_unlabelled(""))[0]
    if row.endswith("SL"):
        whole = {("LC", False): UNLABELLED + labels, ("LC", True): 350, ("LS", True): 250}
        found: dict = {"optimizer.batch_size": whole.get((where, stream), UNLABELLED) // STEPS}
        return found | ({"partition.rounds_per_part": None} if stream else {})
    if row.endswith(("UDA", "FixMatch")):
        if stream:
            return {"optimizer.local_epochs": STEPS, "method.unlabelled_ratio": 3}
        few = each <= 5
        return {
            "optimizer.batch_size": 10 if few else 20,
            "method.unlabelled_ratio": 2 if few else 1,
        }
    if not labels:
        if stream:
            return {"optimizer.local_epochs": STEPS}
        return {"method.unlabelled_batch_size": 20}
    found = {
        "optimizer.local_epochs": max(STEPS // each, 1),
        "optimizer.batch_size": max(labels // STEPS, 10),
    }
    return found | ({"method.unlabelled_batch_size": 20} if each < STEPS else {})


def cell(row: str, column: str, stream: bool = False, each: int = 5) -> dict:
    """A cell of a table of methods; with labels at the server where a column ends with LS, all
    labels at the clients too where learning is supervised.
    """
    where = "LS" if column.endswith("LS") else "LC"
    small = {"small": steps(row, where, stream, each)}
    if where == "LS" and row in CONTROLS and not row.startswith("FedMatch"):
        small["small"] |= {"steps": SERVER_ALONE}
    supervised = row.endswith("SL") and where == "LS"
    return small | ({"supervision.server_labels": 1000} if supervised else {})


def cells(rows: Iterable[str], columns: Iterable[str], stream: bool = False) -> dict:
    """Cells of rows and columns."""
    return {(row, column): cell(row, column, stream) for row in rows for column in columns}


COSTS = {way.upper(): {**ROWS["FedMatch"], "metric": way} for way in ("s2c", "c2s")}

# The streaming task: the mean test accuracy of the models of all ten clients after their training.
LOCAL = {"federated.name": "local"}
STREAMING = {f"Local-{kind}": {**LOCAL, **KINDS[kind], "metric": "test_accuracy"} for kind in KINDS}
STREAMING |= {f"FedProx-{kind}": {**PROX, **KINDS[kind]} for kind in KINDS}
STREAMING["FedMatch"] = ROWS["FedMatch"]
STREAMING |= CONTROLS
STREAMS = {
    where: {
        "config": f"mnist_fedmatch:{WHERE[where]}",
        "small": {"steps": SERVER_COUNTS} if where == "LS" else {},
    }
    for where in WHERE
}
FASHION = {"data.name": "fashion_mnist", "metrics": ("clients", "f1", "ece", "local")}
# Ablations: FedMatch on the batch task with labels at clients, iid.
PARTS = {
    "FedMatch": ROWS["FedMatch"],
    "without decomposition": {"method.decomposition": "none"},
    "without sigma": {"method.decomposition": "without_sigma", **ROWS["FedMatch"]},
    "without psi": {"method.decomposition": "without_psi", **ROWS["FedMatch"]},
    **OWN_CONTROLS,
}
ROUNDS = {f"{rounds}": {"rounds": rounds} for rounds in (50, 100, 150, 200)}
ROUNDS["200"]["small"] = {"name": "25"}
PER_CLASS = {
    f"{labels}": {
        "supervision.labels": labels,
        "partition.balanced": labels,
        "small": {"data.pools": (2 * (UNLABELLED + 10 * labels), 50, 200)},
    }
    for labels in (1, 5, 10, 20)
}


def by_class(rows: Iterable[str]) -> dict:
    """Cells of so many labels of a class."""
    return {(row, each): cell(row, "LC", each=int(each)) for row in rows for each in PER_CLASS}


# The ablations' baseline at their steps.
BASELINE_STEPS = {(LABELLED_ONLY, rounds): cell(LABELLED_ONLY, "LC") for rounds in ROUNDS}
ALEXNET = {"model.name": "fedmatch_alexnet"}


def without_network(small: dict) -> dict:
    """A small scale with a quarter of the channels of the network that a table has."""
    rest = {field: value for field, value in small.items() if field not in NETWORK}
    return {**rest, "model.width_factor": 0.25}


COHORTS = {
    f"batch IID LC, F = {size / 100:.2f}": {
        "config": "cifar10_fedmatch:lc,iid",
        "federated.cohort_size": size,
        "small": {"name": f"batch IID LC, F = {size / 20:.2f}"},
    }
    for size in (5, 10, 20)
}
STREAMING6 = {
    f"streaming {where}": {
        **FASHION,
        **STREAMS[where],
        "metric": "local_test_accuracy",
        "small": without_network(SMALL_STREAM) | {"partition.num_clients": 10},
    }
    for where in WHERE
}

TABLES = {
    "fedmatch-table1": {
        "rows": ROWS,
        "columns": BATCH,
        "cells": cells(ROWS, BATCH),
        "small": SMALL,
    },
    "fedmatch-table1-costs": {
        "rows": COSTS,
        "columns": BATCH,
        "cells": {(way, column): cell("FedMatch", column) for way in COSTS for column in BATCH},
        "small": SMALL,
    },
    "fedmatch-table2": {
        "settings": FASHION,
        "rows": STREAMING,
        "columns": STREAMS,
        "cells": cells(STREAMING, STREAMS, stream=True)
        | {(f"Local-{kind}", "LS"): None for kind in KINDS},
        "small": SMALL_STREAM,
    },
    "fedmatch-table2-costs": {
        "settings": FASHION,
        "rows": COSTS,
        "columns": STREAMS,
        "cells": {
            (way, where): cell("FedMatch", where, stream=True) for way in COSTS for where in WHERE
        },
        "small": SMALL_STREAM,
    },
    "fedmatch-table5": {
        "rows": {
            "FedProx-UDA": ROWS["FedProx-UDA"],
            "FedProx-FixMatch": ROWS["FedProx-FixMatch"],
            "FedMatch without decomposition": PARTS["without decomposition"],
            "FedMatch": PARTS["FedMatch"],
            **CONTROLS,
        },
        "columns": PER_CLASS,
        "cells": by_class(
            (
                "FedProx-UDA",
                "FedProx-FixMatch",
                "FedMatch without decomposition",
                "FedMatch",
                *CONTROLS,
            )
        ),
        "small": SMALL,
    },
    "fedmatch-table6": {
        "settings": ALEXNET,
        "rows": ROWS,
        "columns": STREAMING6 | COHORTS,
        "cells": cells(ROWS, STREAMING6, stream=True) | cells(ROWS, COHORTS),
        "small": without_network(SMALL),
    },
    "fedmatch-figure-a": {
        "rows": {
            "FedMatch": ROWS["FedMatch"],
            "without inter-client consistency": {
                "method.num_helpers": 0,
                "method.kl_weight": 0.0,
                **ROWS["FedMatch"],
            },
            **OWN_CONTROLS,
        },
        "columns": ROUNDS,
        "cells": BASELINE_STEPS,
        "small": SMALL,
    },
    "fedmatch-figure-b": {
        "rows": PARTS,
        "columns": ROUNDS,
        "cells": BASELINE_STEPS,
        "small": SMALL,
    },
    "fedmatch-figure-c": {
        "settings": {"metrics": ("local",), "partition.num_clients": 50, "supervision.labels": 5},
        "rows": {name: PARTS[name] for name in ("FedMatch", "without decomposition")},
        "columns": {
            "as received": {"metric": "received_labelled_accuracy"},
            "after local training": {"metric": "local_labelled_accuracy"},
        },
        "small": SMALL,
    },
    "fedmatch-figure-d": {
        "rows": {name: PARTS[name] for name in ("FedMatch", "without decomposition")}
        | {name: ROWS[name] for name in ("FedProx-UDA", "FedProx-FixMatch", *CONTROLS)},
        "columns": PER_CLASS,
        "cells": by_class(
            ("FedMatch", "without decomposition", "FedProx-UDA", "FedProx-FixMatch", *CONTROLS)
        ),
        "small": SMALL,
    },
}
