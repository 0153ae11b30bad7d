"""(FL)^2, SAGE, ProxyFL, CBAFed and ProtoFSSL on CIFAR-10 and similar datasets, with the settings
of their papers and codes.
"""

from typing import Literal

import ml_collections

from fedjax_ssl.config import ConfigError, default
from fedjax_ssl.data.federation.published_partitions import FEDMATCH_SHARES
from fedjax_ssl.methods.parts.recommended import SEMIFL_OPTIMIZERS
from fedjax_ssl.presets.variants import Count, Split

# (FL)^2's mean and deviation, pixels in [0, 1].
FL2_MEAN = {"cifar10": (0.485, 0.456, 0.406), "cifar100": (129.3 / 255, 124.1 / 255, 112.4 / 255)}
FL2_STD = {"cifar10": (0.229, 0.224, 0.225), "cifar100": (68.2 / 255, 65.4 / 255, 70.4 / 255)}
# SAGE's code standardizes by CIFAR-10's numbers in training for every dataset, and by others in
# testing.
SAGE_TRAIN = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
SAGE_TEST = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "cinic10": ((0.4789, 0.4723, 0.4305), (0.2421, 0.2383, 0.2587)),
    "svhn": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
}
# SAGE's rounds, labelled images of each class, local steps: five epochs of whole batches of 128.
SAGE_RUNS = {
    "cifar10": (300, 500, 95),
    "cifar100": (500, 50, 95),
    "cinic10": (400, 900, 175),
    "svhn": (150, 460, 140),
}
# ProtoFSSL: training, validation and test examples of each class; clients, and labels of each class
# at each client.
POOLS = {"cifar10": (5400, 300, 300), "svhn": (5400, 200, 200), "stl10": (1000, 150, 150)}
CLIENTS = 100
LABELS = 5
# Unlabelled examples of class k at client c, by (k - c) mod 10, besides `LABELS` labelled ones.
UNLABELLED = {"iid": (49,), "noniid": FEDMATCH_SHARES}
# From the authors' later code, where labelled images are also unlabelled ones: one less of the
# preferred class.
UNLABELLED_OVERLAP = {"iid": (49,), "noniid": (243, *FEDMATCH_SHARES[1:])}
# Labels and data are skewed alike, from the same code.
SKEWED_LABELS = (23, 5, 5, 5, 3, 3, 3, 3, 0, 0)
SKEWED = (243, 49, 49, 49, 25, 25, 25, 25, 0, 0)
STL10_LABELS = 10
STL10_UNLABELLED = 980
ProtoSplit = Literal[
    "iid",
    "noniid",
    "xnid",
    "iid_full",
    "noniid_full",
    "iid_overlap",
    "noniid_overlap",
    "xnid_overlap",
]


def fl2_on_cifar(
    dataset: str, labels: Count | None = None, split: Split = "iid"
) -> ml_collections.ConfigDict:
    """(FL)^2: labels at the server, 100 clients without any, 10 per round.

    Args:
        dataset: "cifar10" (WRN-28-2, radius 0.1) or "cifar100" (WRN-28-8, radius 1).
        labels: labels at the server; by default four of each class.
        split: "iid" or a Dirichlet concentration.
    """
    config = default("fl2")
    small = dataset == "cifar10"
    config.update(rounds=800, eval_every=10, checkpoint_every=5)
    config.data.update(name=dataset, mean=FL2_MEAN[dataset], std=FL2_STD[dataset])
    semifl_clients(config, split)
    config.supervision.update(name="server", labels=labels or (40 if small else 400))
    config.strong_augment.name = "randaugment_fl2"
    config.model.update(name="wrn28", widen=2 if small else 8)
    config.method.rho = 0.1 if small else 1.0
    config.optimizer.update(learning_rate=0.03, keep_state=True, batch_size=32, local_epochs=5)
    return config


def fedmatch(dataset: str, where: str, channels: float) -> ml_collections.ConfigDict:
    """FedMatch with labels at clients ("lc") or at the server ("ls"), official splits pooled.

    Args:
        dataset: "cifar10" or "mnist".
        where: place of the labels.
        channels: share of the network's channels.
    """
    config = default("fedmatch")
    config.data.update(name=dataset, pool_splits=True, test_fraction=0.05)
    config.data.update(
        validation_fraction=3 / 57, standardize="none"
    )  # pixels / 255, as in the code
    config.partition.update(name="fedmatch", balanced=5 if where == "lc" else 0)
    config.supervision.update(name="server", labels=1000)
    if where == "lc":
        config.supervision.update(name="per_class", labels=5)
    config.strong_augment.name = "randaugment_fedmatch"
    config.model.update(name="fedmatch_resnet9", width_factor=channels)
    config.optimizer.learning_rate = 1e-3
    return config


def semifl_clients(config: ml_collections.ConfigDict, split: Split) -> None:
    """Set SemiFL's split, cohort, weak view and optimizers, which (FL)^2 and FedMT also use.

    Args:
        config: the experiment.
        split: "iid" or a Dirichlet concentration.
    """
    config.partition.update(name="random", num_clients=100)
    if split != "iid":
        config.partition.update(name="dirichlet", alpha=split, min_examples=10, skip_full=True)
    config.augment.name = "crop_flip"
    config.update_from_flattened_dict(SEMIFL_OPTIMIZERS)
    config.federated.cohort_size = 10


def sage_on_cifar(
    dataset: str, method: str, split: Split = 0.1, standardize: Literal["code"] | None = None
) -> ml_collections.ConfigDict:
    """SAGE's federation: 20 clients with few labelled images each, 8 per round.

    Args:
        dataset: "cifar10" and "cifar100" (250 labelled images at each client), "cinic10" (450) or
            "svhn" (230).
        method: "sage", "proxyfl", "fedavg" or one of the consistency methods such as "fixmatch",
            with SAGE's batches and number of local steps.
        split: "iid" or the concentration of the split in pairs.
        standardize: "code": standardize inputs as in the code, by CIFAR-10's numbers in training
            and by others in testing.
    """
    rounds, per_class, steps = SAGE_RUNS[dataset]
    labels = per_class * (100 if dataset == "cifar100" else 10)
    config = default(method)
    if standardize == "code":
        config.data.mean, config.data.std = SAGE_TRAIN
        config.data.test_mean, config.data.test_std = SAGE_TEST[dataset]
    config.update(rounds=rounds, checkpoint_every=5)
    config.data.name = dataset
    config.partition.update(name="iid", num_clients=20)
    if split == "iid":
        config.supervision.update(name="total", labels=labels, class_balanced=True)
    else:
        config.partition.update(name="paired_dirichlet", alpha=split, labels_per_class=per_class)
        config.supervision.name = "dealt"
    config.augment.name = "crop_flip"
    config.strong_augment.name = "randaugment_sage"
    config.model.name = "resnet8_basic"
    config.optimizer.update(learning_rate=0.1, momentum=0.9, weight_decay=1e-4, batch_size=128)
    if method == "proxyfl" and dataset == "cifar100":
        config.method.tuning_epochs = 10
    if method in ("sage", "proxyfl"):
        config.optimizer.local_epochs = 5
    else:  # epochs of these methods are over labels alone, or in batches of 256
        config.optimizer.update(local_epochs=1, local_steps=steps)
    if "labelled_too" in config.method:
        config.method.update(unlabelled_ratio=2, labelled_too=True)
    config.federated.cohort_size = 8
    return config


def cbafed_on_cifar(dataset: str) -> ml_collections.ConfigDict:
    """CBAFed: one client with labels for all of its images, nine without any; all train in every
    round.

    Args:
        dataset: "cifar10" or "cifar100".
    """
    config = default("cbafed")
    config.method.warmup_epochs = 501 if dataset == "cifar10" else 1001
    # as many rounds as warm-up epochs
    config.rounds = config.method.warmup_rounds + config.method.warmup_epochs
    config.checkpoint_every = 5
    config.data.name = dataset
    config.partition.update(
        name="dirichlet", num_clients=10, alpha=0.8, min_examples=10, skip_full=True
    )
    config.supervision.update(name="all", labelled_clients=1)
    config.augment.name = "resize_crop"
    config.model.update(name="resnet18", stem="imagenet")
    config.optimizer.update(learning_rate=0.03, momentum=0.9, weight_decay=5e-4, clip_norm=5.0)
    config.optimizer.update(keep_state=True, batch_size=64, local_epochs=11)
    config.federated.weighting = "examples"
    return config


def protofssl_split(
    config: ml_collections.ConfigDict, dataset: str = "cifar10", split: ProtoSplit = "iid"
) -> None:
    """Set dataset, pools, partition and supervision.

    Args:
        config: the experiment.
        dataset: "cifar10", "svhn", or "stl10", whose unlabelled images are of unknown class.
        split: "iid"; "noniid": unlabelled examples by FedMatch's matrix, labels iid; "xnid": both
            skewed; "iid_full" or "noniid_full": every example has its label, for the upper bounds;
            "iid_overlap", "noniid_overlap" or "xnid_overlap": labelled images are unlabelled ones
            too, as in the authors' later code.

    Raises:
        ConfigError: a split that STL-10 cannot have.
    """
    if dataset == "stl10" and split != "iid":
        raise ConfigError(
            f"no split {split!r} of 'stl10'; its unlabelled images are of no class: iid"
        )
    # Pixels / 255, as in the code: distances depend on it.
    config.data.update(name=dataset, pools=POOLS[dataset], standardize="none")
    config.partition.update(name="class_counts", num_clients=CLIENTS)
    kind, _, rest = split.partition("_")
    if dataset == "stl10":
        config.partition.update(counts=(STL10_LABELS,), unlabelled=STL10_UNLABELLED)
        config.supervision.update(name="per_class", labels=STL10_LABELS)
    elif rest == "overlap":
        config.partition.counts = SKEWED if kind == "xnid" else UNLABELLED_OVERLAP[kind]
        config.partition.labelled_counts = SKEWED_LABELS if kind == "xnid" else (LABELS,)
        config.partition.overlap = True
        config.supervision.name = "dealt"
    elif split == "xnid":
        config.partition.counts = tuple(map(sum, zip(SKEWED_LABELS, SKEWED, strict=True)))
        config.supervision.update(name="circulant", label_counts=SKEWED_LABELS)
    else:
        config.partition.update(counts=UNLABELLED[kind], balanced=LABELS)
        config.supervision.name = "all"
        if rest != "full":
            config.supervision.update(name="per_class", labels=LABELS)
