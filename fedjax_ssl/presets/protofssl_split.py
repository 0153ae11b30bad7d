"""The data of ProtoFSSL's tables: pools of CIFAR-10, SVHN and STL-10, and what each of 100 clients gets of them."""

import ml_collections

from fedjax_ssl.config import ConfigError
from fedjax_ssl.data.federation.published_partitions import FEDMATCH_SHARES

POOLS = {"cifar10": (5400, 300, 300), "svhn": (5400, 200, 200), "stl10": (1000, 150, 150)}
CLIENTS, LABELS = 100, 5
# Unlabelled examples of class k at client c, by (k - c) mod 10, beside `LABELS` labelled ones.
UNLABELLED = {"iid": (49,), "noniid": FEDMATCH_SHARES}
# From the authors' later code, where labelled images are unlabelled ones too: one less of the preferred class there.
UNLABELLED_OVERLAP = {"iid": (49,), "noniid": (243, *FEDMATCH_SHARES[1:])}
# Labels and data skewed alike, from the same code.
SKEWED_LABELS, SKEWED = (23, 5, 5, 5, 3, 3, 3, 3, 0, 0), (243, 49, 49, 49, 25, 25, 25, 25, 0, 0)
STL10_LABELS, STL10_UNLABELLED = 10, 980
SPLITS = (
    *("iid", "noniid", "xnid", "iid_full", "noniid_full"),
    *("iid_overlap", "noniid_overlap", "xnid_overlap"),
)


def protofssl_split(config: ml_collections.ConfigDict, dataset: str = "cifar10", split: str = "iid") -> None:
    """Sets dataset, pools, partition and supervision.

    Args:
        config: of the experiment.
        dataset: "cifar10", "svhn", or "stl10", whose unlabelled images are of unknown class.
        split: "iid"; "noniid": unlabelled examples by FedMatch's matrix, labels iid; "xnid": both skewed; "iid_full" or
            "noniid_full": every example has its label, for the upper bounds; "iid_overlap", "noniid_overlap" or
            "xnid_overlap": labelled images are unlabelled ones too, as in the authors' later code.

    Raises:
        ConfigError: an unknown name, or a split that STL-10 cannot have.
    """
    splits = ("iid",) if dataset == "stl10" else SPLITS
    if dataset not in POOLS or split not in splits:
        raise ConfigError(f"no split {split!r} of {dataset!r}; give one of {', '.join(POOLS)} and {', '.join(splits)}")
    config.data.name = dataset
    config.data.pools = POOLS[dataset]
    config.data.standardize = "none"  # pixels / 255, as in the code: distances depend on it
    config.partition.name = "class_counts"
    config.partition.num_clients = CLIENTS
    if dataset == "stl10":
        config.partition.counts, config.partition.unlabelled = (STL10_LABELS,), STL10_UNLABELLED
        config.supervision.name, config.supervision.labels = "per_class", STL10_LABELS
        return
    if split.endswith("_overlap"):
        kind = split.removesuffix("_overlap")
        config.partition.counts = SKEWED if kind == "xnid" else UNLABELLED_OVERLAP[kind]
        config.partition.labelled_counts = SKEWED_LABELS if kind == "xnid" else (LABELS,)
        config.partition.overlap = True
        config.supervision.name = "dealt"
        return
    if split == "xnid":
        config.partition.counts = tuple(map(sum, zip(SKEWED_LABELS, SKEWED, strict=True)))
        config.supervision.name, config.supervision.label_counts = "circulant", SKEWED_LABELS
        return
    config.partition.counts = UNLABELLED[split.removesuffix("_full")]
    config.partition.balanced = LABELS
    config.supervision.name = "all"
    if not split.endswith("_full"):
        config.supervision.name, config.supervision.labels = "per_class", LABELS
