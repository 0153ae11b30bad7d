"""FedUL: Lu et al., Federated learning from only unlabeled data with class-conditional-sharing
clients, ICLR 2022.

Errors in %, mean and population standard deviation over three seeds. Values of L1, sets and
networks are those of the released code where the paper prints none; docs/methods/fedul.md lists
what differs.
"""

METHODS = {
    "FedPL": "fedpl",
    "FedLLP": "fedllp",
    "FedLLP-VAT": "fedllp_vat",
    "FedUL": "fedul",
    "FedAvg 10%": "fedavg",
}
# Sets as the paper's text fixes them, of one size and without the same image twice, and the class
# shares of its balanced tests. All other rows have the released code's sets, and the training
# images' shares.
TEXT = "FedUL, the text's sets"
TEXT_SETS = {
    "supervision.protocol": "equal",
    "supervision.shared_shares": False,
    "supervision.test_prior": "uniform",
}
CIFAR10 = {
    "data.name": "cifar10",
    "data.std": (0.2023, 0.1994, 0.2010),
    "augment.name": "crop_flip",
    "augment.pixels": 0,
    "augment.degrees": None,
    "model.name": "resnet18",
    "model.stem": "imagenet_unpooled",
}
L1 = {"MNIST": {10: 1e-5, 20: 5e-6, 40: 2e-6}, "CIFAR-10": {10: 2e-5, 20: 1e-5, 40: 4e-6}}
VAT = {"MNIST": (5e-4, 0.01), "CIFAR-10": (0.05, 6.0)}
IMAGES = {"MNIST": 48_000, "CIFAR-10": 40_000}
# Two cores: the paper's network with a quarter of the channels, a twenty-fourth of the images, a
# fraction of the rounds. All methods take twenty steps a round: FedLLP goes once or twice through
# its sets, a set a step.
STEPS = 20
IMAGES_SMALL = 2_000
WHOLE_SETS = "a step goes through a set, a round through all"
SMALL = {
    "seeds": 3,
    "rounds": 10,
    "eval_every": 5,
    "data.pools": (IMAGES_SMALL // 10, 50, 200),
    "data.validation_fraction": 0.0,
    "data.balanced_test": False,
    "model.width_factor": 0.25,
    "optimizer.learning_rate": 1e-3,
    "optimizer.batch_size": 32,
}
# FedUL alone: a fifth of the images, a tenth of the rounds.
ALONE = {
    "seeds": 3,
    "rounds": 10,
    "data.pools": (1000, 200, 500),
    "data.validation_fraction": 0.0,
    "data.balanced_test": False,
    "model.width_factor": 0.25,
    "optimizer.learning_rate": 1e-3,
    "optimizer.batch_size": 32,
}


def cell(method: str, dataset: str, split: str, sets: int, clients: int = 5) -> dict | None:
    """Settings of a method at a split and number of sets."""
    settings = dict(CIFAR10) if dataset == "CIFAR-10" else {}
    if clients != 5:
        settings["partition.num_clients"] = clients
    settings["config"] = f"mnist_fedul:{sets},{split},{method}"
    settings["small"] = {"optimizer.local_steps": STEPS}
    if method == "fedavg":
        if dataset == "CIFAR-10":
            settings["model.dropout_rate"] = None
        return settings
    settings["method.l1"] = L1[dataset].get(sets, L1[dataset][10])
    if method.startswith("fedllp"):
        settings["method.set_size"] = 3 * IMAGES[dataset] // clients // sets // 2
        settings["small"] = {
            "method.set_size": 3 * IMAGES_SMALL // clients // sets // 2,
            "optimizer.local_epochs": max(STEPS // sets, 1),
        }
        if sets > STEPS:
            settings["small"]["steps"] = WHOLE_SETS
    if method == "fedllp_vat":
        settings["method.vat_weight"], settings["method.vat_radius"] = VAT[dataset]
        settings["method.ramp_epochs"] = 20
    if dataset == "CIFAR-10" and method == "fedul":
        settings["supervision.shared_shares"] = False  # the released code's loader of this one cell
    return settings


def benchmark(clients: int, places: list) -> dict:
    """The table of methods x (dataset, split, sets)."""
    cells: dict = {}
    for dataset, split, sets in places:
        label = f"{dataset} {split}, {sets} sets"
        words = split.lower().replace("-", "")
        for row, method in METHODS.items():
            # FedAvg once per dataset and split
            there = method != "fedavg" or sets == 10
            cells[row, label] = cell(method, dataset, words, sets, clients) if there else None
        cells[TEXT, label] = cell("fedul", dataset, words, sets, clients) | TEXT_SETS
    return {
        "rows": {row: {} for row in (*METHODS, TEXT)},
        "columns": {label: {} for _, label in cells},
        "cells": cells,
        "small": SMALL,
    }


PLACES = [
    (dataset, split, sets)
    for dataset in VAT
    for split in ("IID", "Non-IID")
    for sets in (10, 20, 40)
]


# Table E.12: 10, 20, 30, 40 and 50 sets.
UNEQUAL = (("MNIST", "IID"), ("CIFAR-10", "IID"), ("MNIST", "Non-IID"), ("CIFAR-10", "Non-IID"))


def unequal(method: str, dataset: str, split: str) -> dict:
    """Settings of a method whose clients have different numbers of sets."""
    settings = cell(method, dataset, split.lower().replace("-", ""), 10)
    if method == "fedavg":
        return settings
    settings |= {"supervision.sets": None, "supervision.set_counts": (10, 20, 30, 40, 50)}
    if method.startswith("fedllp"):
        settings["small"] = {**settings["small"], "optimizer.local_epochs": 1, "steps": WHOLE_SETS}
    return settings


# Kaggle's slices with one kind of bleeding, and as many healthy ones as the paper has in training
# (Table D.7).
RSNA = {
    "data.name": "rsna_hemorrhage",
    "data.size": 224,
    "data.num_classes": None,
    "data.healthy": 18_802,
    "data.max_images": 66_000,
    "data.client_test_fraction": 0.1,
}
RSNA_METHODS = {
    "FedPL": {"method.name": "fedpl"},
    "FedUL": {},
    "FedAvg 10%": {
        "method.name": "fedavg",
        "supervision.name": "fraction",
        "supervision.fraction": 0.1,
        "supervision.sets": None,
        "supervision.protocol": None,
    },
}
SYSTEMS = [f"{sets} hospitals, {row}" for sets in (12, 24, 48) for row in ("FedPL", "FedUL")]
SYSTEMS.append("FedAvg 10%")


def ablation(columns: dict, small: dict = ALONE) -> dict:
    """A figure of FedUL alone, on MNIST's non-iid split with ten sets."""
    return {"rows": {"FedUL": {}}, "columns": columns, "small": small}


EPOCHS = {f"E = {count}": {"optimizer.local_epochs": count} for count in (1, 4, 16)}
BATCHES = {
    "B = 16": {"optimizer.batch_size": 16},
    "B = 128": {"optimizer.batch_size": 128},
    "B = all": {
        "optimizer.batch_size": 9_600,
        "method.drop_last": False,
        "small": {"optimizer.batch_size": 2_000},
    },
}
NO_BATCH = {field: value for field, value in ALONE.items() if field != "optimizer.batch_size"}

TABLES = {
    "fedul-table1": benchmark(5, PLACES),
    "fedul-table-e13": benchmark(10, PLACES),
    "fedul-table-e12": {
        "rows": {row: {} for row in METHODS},
        "columns": {f"{dataset} {split}": {} for dataset, split in UNEQUAL},
        "cells": {
            (row, f"{dataset} {split}"): unequal(method, dataset, split)
            for row, method in METHODS.items()
            for dataset, split in UNEQUAL
        },
        "small": SMALL,
    },
    "fedul-table2": {
        "settings": RSNA,
        "rows": {
            row: {
                **RSNA_METHODS[row.rpartition(", ")[2]],
                **({"supervision.sets": int(row[:2])} if row[:2].isdigit() else {}),
            }
            for row in SYSTEMS
        },
        "columns": {f"HS{number + 1}": {"metric": f"client_error:{number}"} for number in range(5)},
        "small": {
            "rounds": 10,
            "data.size": 64,
            "data.max_images": 3000,
            "data.healthy": 800,
            "model.width_factor": 0.25,
            "optimizer.local_steps": STEPS,
        },
    },
    "fedul-figure3a": ablation(
        {"0": {}} | {str(noise): {"supervision.noise": noise} for noise in (0.1, 0.2, 0.4, 0.8)}
    ),
    "fedul-figure3b": ablation(
        {
            f"{5 * clients}k": {
                "partition.num_clients": clients,
                "partition.max_examples": 5_000,
                "small": {"name": f"{2 * clients}k"},
            }
            for clients in range(1, 6)
        },
        {**ALONE, "partition.max_examples": 2_000},
    ),
    "fedul-figure3c": ablation(EPOCHS),
    "fedul-figure3d": ablation(BATCHES, NO_BATCH),
    "fedul-table-e11": {"rows": BATCHES, "columns": EPOCHS, "small": NO_BATCH},
    "fedul-table-d8": {
        "rows": {
            f"{dataset}, {name}": {}
            for dataset in VAT
            for name in ("FedPL", "FedLLP", "FedLLP-VAT", "FedUL")
        },
        "columns": {
            "seconds, Non-IID": {"metric": "seconds_per_round"},
            "seconds, IID": {"metric": "seconds_per_round"},
            "GFLOP": {"metric": "forward_gflop"},
        },
        "cells": {
            (f"{dataset}, {name}", column): cell(METHODS[name], dataset, split, 10)
            for dataset in VAT
            for name in ("FedPL", "FedLLP", "FedLLP-VAT", "FedUL")
            for column, split in (
                ("seconds, Non-IID", "noniid"),
                ("seconds, IID", "iid"),
                ("GFLOP", "iid"),
            )
        },
        "small": {**SMALL, "rounds": 6, "seeds": 1},
    },
}
