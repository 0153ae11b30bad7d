"""XCLP: Scott, Yeo and Lampert, Cross-client label propagation, TMLR 2023.

The numbers of the paper's tables are not in the text that the settings are from, so that none stand
here. Settings are those of the text; where it has none, those of the released code
(docs/methods/xclp.md). XCLP itself is the released code's: similarities to the power 3, labels
divided by their class, confidences by the largest, weights of the classes. Rows of Tables 4 and 5
have the text's in their place.
"""

from experiments.papers import without_unlabelled

# Tables 4 and 5: a method after 1,500 rounds on the labels alone, or from the start.
STAGE1 = {"rounds": 1500}
BOTH = {"rounds": 3000, "method.warmup_rounds": 1500}
METHODS = {
    "FedAvg (labeled only)": {"method.name": "fedavg", **STAGE1},
    "FedAvg+perclientLP": {"method.name": "per_client_lp", "method.similarity": "lsh", **BOTH},
    "FedAvg+network": {
        "method.name": "network_pseudo_label",
        "method.augment_predictions": True,
        **BOTH,
    },
    "FedMatch": {
        "method.name": "fedmatch",
        "strong_augment.name": "randaugment_fedmatch",
        "method.patience": 37,  # half of a client's rounds, as in FedMatch's paper
        "augment.name": "none",
        "optimizer.learning_rate": 1e-3,
        "optimizer.schedule": "constant",
        "optimizer.schedule_rounds": None,
        "optimizer.weight_decay": 0.0,
        "optimizer.local_epochs": 1,
        "optimizer.batch_size": 10,
        **STAGE1,
    },
    "FedSiam": {
        "method.name": "fedsiam",
        "method.warmup_rounds": 0,
        "model.aux_head": True,
        "model.normalize_features": False,
        **STAGE1,
    },
    "FedSem+": {"method.name": "fedsem", **BOTH},
    "FedAvg+XCLP": dict(BOTH),
}
TEXT = {  # what the paper's text has where the released code has something else
    "power": {"method.similarity_power": 1.0},
    "norm": {"method.label_norm": "none"},
    "weights": {"method.confidence_scale": "none", "method.class_weighting": "none"},
}
# XCLP's steps on labels alone: those of its second stage, through both stages.
CONTROL = without_unlabelled("FedAvg+XCLP")
# Its schedule is as long as those of both stages: it would end at the rate 0 after two thirds.
METHODS[CONTROL] = {
    "method.name": "fedavg",
    "rounds": BOTH["rounds"],
    "optimizer.schedule_rounds": 4000,
}
METHODS |= {f"FedAvg+XCLP, the text's {name}": {**BOTH, **TEXT[name]} for name in TEXT}
METHODS["FedAvg+XCLP, all of the text's"] = {
    **BOTH,
    **TEXT["power"],
    **TEXT["norm"],
    **TEXT["weights"],
}
# Two cores: a fifth of the clients with a quarter of the images and as many labels each, a small
# network, few rounds. A client has 105 images without a label, so that two epochs of ten at a time
# are the steps of stage 2; all other methods take as many.
STEPS = 20
SMALL_STAGE1 = {"rounds": 36}
SMALL_BOTH = {"rounds": 72, "method.warmup_rounds": 36}
POOLS = {10: (230, 50, 200), 50: (310, 50, 200)}  # labels of a client -> images of a class
SMALL = {
    "seeds": 3,
    "eval_every": 12,
    "data.pools": POOLS[50],
    "data.validation_fraction": 0.0,
    "partition.num_clients": 20,
    "supervision.labelled_clients": 20,
    "model.name": "cnn",
    "model.width_factor": 0.5,
    "model.dropout": False,
    "model.normalize_features": None,
    "optimizer.batch_size": 10,
    "optimizer.learning_rate": 0.03,
    "optimizer.local_epochs": 2,
    "optimizer.schedule_rounds": 48,
}
for method in METHODS.values():
    method["small"] = dict(SMALL_BOTH if method["rounds"] == BOTH["rounds"] else SMALL_STAGE1)
METHODS["FedAvg (labeled only)"]["small"] |= {"optimizer.local_steps": STEPS}
METHODS[CONTROL]["small"] = {
    "rounds": SMALL_BOTH["rounds"],
    "optimizer.local_steps": STEPS,
    "optimizer.schedule_rounds": 96,
}
METHODS["FedMatch"]["small"] |= {
    "optimizer.schedule_rounds": None,
    "optimizer.local_epochs": STEPS,
    "optimizer.learning_rate": 3e-3,
    "method.l2_weight": 3.3,
    "method.patience": 4,
    "method.unlabelled_batch_size": 10,
    "method.shuffle": True,
}
# A longer scale: the columns' labels unreduced, so that a client has 50 or 250, and 200 images
# without one; twenty steps a round in both stages.
MEDIUM_STAGE1 = {"rounds": 60}
MEDIUM_BOTH = {"rounds": 120, "method.warmup_rounds": 60}
MEDIUM = {
    "optimizer.local_steps": STEPS,
    "optimizer.schedule_rounds": 80,
}
for method in METHODS.values():
    method["medium"] = dict(MEDIUM_BOTH if method["rounds"] == BOTH["rounds"] else MEDIUM_STAGE1)
METHODS[CONTROL]["medium"] = {
    "rounds": MEDIUM_BOTH["rounds"],
    "optimizer.schedule_rounds": 160,
}
METHODS["FedMatch"]["medium"] |= {
    "optimizer.local_steps": None,
    "optimizer.schedule_rounds": None,
    "optimizer.local_epochs": STEPS // 5,
    "method.patience": 7,
}
UNEVEN = "clients without labels take fewer steps"


def column4(split: str, clients: int, labels: int) -> dict:
    """A column of Table 4."""
    small = {
        "name": f"{split}, {clients // 5} clients with labels, {labels // 5:,} labels",
        "supervision.labelled_clients": clients // 5,
        "data.pools": POOLS[labels // 100],
    }
    if split == "IID":
        small["supervision.labels"] = labels // 5
    if clients < 100:
        small["steps"] = UNEVEN
    medium = {
        "name": f"{split}, {clients // 5} clients with labels, {labels:,} labels",
        "data.pools": (2 * (labels // 20 + 200), 50, 200),
        "supervision.labels": labels if split == "IID" else labels // (clients // 5),
    }
    return {
        "config": f"cifar10_xclp:{labels},{clients},{split.lower().replace('-', '')}",
        "small": small,
        "medium": medium,
    }


CIFAR10 = {
    f"{split}, {clients} clients with labels, {labels:,} labels": column4(split, clients, labels)
    for split in ("IID", "non-IID")
    for clients in (50, 100)
    for labels in (1000, 5000)
}
# FedMatch goes five steps through 50 labels, and 25 through 250.
FIVE_STEPS = {
    ("FedMatch", column): {
        "small": {"optimizer.local_epochs": STEPS // 5},
        "medium": {"optimizer.local_epochs": 1, "steps": "it goes through its labels once"},
    }
    for column in CIFAR10
    if "5,000" in column
}
LARGER = {"optimizer.batch_size": 50, "optimizer.learning_rate": 0.3}
IMAGENET = {
    "data.name": "mini_imagenet",
    "model.name": "resnet18",
    "model.stem": "imagenet",
    "model.normalize_features": True,
    "augment.name": "rotate,flip",
    "augment.degrees": 10.0,
}
FIFTY = {
    "partition.num_clients": 50,
    "supervision.labelled_clients": 50,
    "supervision.labels": 5000,
    **LARGER,
}
HUNDRED = {"supervision.labels": 10_000, **LARGER}

# Tables 1 to 3 and 6: prediction. Sizes and fractions are ours.
SIZES = {
    f"{share:.0%} of the training images": {"supervision.fraction": share}
    for share in (0.05, 0.1, 0.2, 0.5)
}
SIZES["all training images"] = {"supervision.name": "all", "supervision.fraction": None}
LABELLED = {"prediction.unlabelled": "without", "prediction.variant": "code"}
BOTH_KINDS = {"prediction.unlabelled": "with", "prediction.variant": "code"}
# torchvision's, the user's; another place: --set model.weights=FILE
WEIGHTS = {"model.weights": "efficientnet_b0.npz"}
PRETRAINED = {"config": "fed_isic_predict:pretrained", **WEIGHTS}
FOCAL = {  # FLamby's loss, with 18,597 over the training images of each class
    "loss.name": "focal",
    "loss.class_weights": (5.5813, 2.0472, 7.0204, 26.1194, 9.5369, 101.0707, 92.5224, 38.3443),
}
FINETUNED = {"config": "fed_isic_predict:finetuned", **WEIGHTS, **FOCAL}
FLAMBY = {"augment.name": "flamby", "model.crop": 200}


def scored(predictor: str, metric: str, **settings: object) -> dict:
    """A way of predicting and the column of its score."""
    if predictor != "xclp":
        settings["prediction.groups"] = 1
    labelled = predictor != "network" and settings.get("prediction.unlabelled") == "without"
    return {
        "prediction.predictors": predictor,
        "metric": f"{predictor}{'_labelled' * labelled}_{metric}",
        **settings,
    }


WAYS = {"FedAvg": "network", "per-client LP": "per_client_lp", "XCLP": "xclp"}
FEMNIST = {
    "identity": {"config": "femnist_predict:inputs", "small": {"federated.cohort_size": None}},
    "linear": {"config": "femnist_predict:network", "small": {"rounds": 60}},
}

TABLES = {
    "xclp-table1": {
        "settings": FLAMBY,
        "rows": {
            f"{kind}, {name}": {**config, **scored(WAYS[name], "balanced_accuracy", **LABELLED)}
            for kind, config in (("pretrained", PRETRAINED), ("finetuned", FINETUNED))
            for name in WAYS
            if (kind, name) != ("pretrained", "FedAvg")
        },
        "columns": SIZES,
    },
    "xclp-table2": {
        "settings": {**FLAMBY, **WEIGHTS, **FOCAL},
        "rows": {
            f"Client {number}": {"data.left_out_client": number - 1} for number in range(1, 7)
        },
        "columns": {
            name: scored(WAYS[name], "balanced_accuracy", **{"prediction.variant": "code"})
            for name in ("FedAvg", "XCLP")
        },
    },
    "xclp-table3": {
        "settings": {**FLAMBY, **WEIGHTS, **FOCAL},
        "rows": {
            "FedAvg": scored("network", "balanced_accuracy"),
            "XCLP (labeled)": scored("xclp", "balanced_accuracy", **LABELLED),
            "XCLP (labeled+unlabeled)": scored("xclp", "balanced_accuracy", **BOTH_KINDS),
        },
        "columns": SIZES,
    },
    "xclp-table4": {
        "rows": METHODS,
        "columns": CIFAR10,
        "cells": FIVE_STEPS,
        "small": SMALL,
        "medium": MEDIUM,
    },
    "xclp-table5": {
        "rows": {name: METHODS[name] for name in METHODS if name.startswith("FedAvg")},
        "columns": {
            "CIFAR-100, 5,000 labels": {"data.name": "cifar100", **FIFTY},
            "CIFAR-100, 10,000 labels": {
                "data.name": "cifar100",
                **HUNDRED,
                "small": {"name": "CIFAR-100, 2,000 labels"},
            },
            "Mini-ImageNet, 5,000 labels": {**IMAGENET, **FIFTY},
            "Mini-ImageNet, 10,000 labels": {
                **IMAGENET,
                **HUNDRED,
                "small": {"name": "Mini-ImageNet, 2,000 labels"},
            },
        },
        "small": {**SMALL, "augment.name": "crop_flip", "augment.degrees": None, "model.stem": None}
        | {"data.pools": (41, 10, 20), "supervision.labels": 2000},
    },
    "xclp-table6": {
        "rows": {f"{share:g}": {"supervision.fraction": share} for share in (0.05, 0.1, 0.2, 0.5)},
        "columns": {
            f"{kind}, {name}": {**config, **scored(WAYS[name], "accuracy", **BOTH_KINDS)}
            for kind, config in FEMNIST.items()
            for name in WAYS
            if (kind, name) != ("identity", "FedAvg")
        },
        "small": {
            "seeds": 2,
            "data.name": "glyphs",
            "prediction.groups": 1,
            "eval_every": 20,
        },
    },
    "xclp-section3.3-bits": {
        "settings": BOTH,
        "rows": {"FedAvg+XCLP": {}},
        "columns": {f"{bits}": {"method.num_bits": bits} for bits in (64, 256, 1024, 4096)}
        | {"exact": {"method.similarity": "exact"}},
        "small": {**SMALL, **SMALL_BOTH, "supervision.labels": 1000},
    },
    "xclp-section3.3-dropout": {
        "settings": BOTH,
        "rows": {
            "before the distances": {"small": {}},
            "between distances and row sums": {"small": {}},
        },
        "columns": {f"{share:g}": {} for share in (0.0, 0.1, 0.3, 0.5)},
        "cells": {
            (row, f"{share:g}"): {"participation.lost": share, "participation.lost_when": when}
            if share
            else {}
            for row, when in (
                ("before the distances", "start"),
                ("between distances and row sums", "codes"),
            )
            for share in (0.0, 0.1, 0.3, 0.5)
        },
        "small": {**SMALL, **SMALL_BOTH, "supervision.labels": 1000},
    },
    "xclp-section3-clients": {
        "settings": {"data.validation_fraction": 0.1},
        "rows": {
            "any": {},
            "by size": {"cohort.name": "by_size"},
            "by the square of the size": {"cohort.name": "by_size", "cohort.power": 2.0},
        },
        "columns": {
            "new characters": {},
            "pseudo-labels": {"metric": "pseudo_label_accuracy", "value": "last"},
        },
        "small": {
            "config": "femnist_xclp:glyphs",
            "model.width_factor": 0.5,
            "optimizer.local_epochs": 2,
        },
    },
    "xclp-section3.3-operations": {
        "settings": {"rounds": 10, "method.warmup_rounds": 0},
        "rows": {
            "codes, a client": {"metric": "operations_codes"},
            "distances, a client": {"metric": "operations_distances"},
            "inverse, the server": {"metric": "operations_inverse"},
            "row sums, a client": {"metric": "operations_row_sums"},
        },
        "columns": {"5 clients of 450 examples": {"small": {"name": "5 clients of 225 examples"}}},
        "small": {**SMALL, "seeds": 1, "rounds": 2, "eval_every": 1, "supervision.labels": 1000},
    },
    "xclp-appendix-a-neighbors": {
        "settings": {
            **FLAMBY,
            **WEIGHTS,
            **scored("xclp", "balanced_accuracy", **LABELLED),
            "data.client_test_fraction": 0.2,
        },
        "rows": {f"{bits:,} bits": {"prediction.num_bits": bits} for bits in (1024, 4096)}
        | {"exact cosines": {"prediction.similarity": "exact"}},
        "columns": {f"{count}": {"prediction.num_neighbors": count} for count in (5, 10, 20, 50)},
    },
}
