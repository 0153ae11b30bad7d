"""Data: sources, partitions, supervision, augmentation; everything ends as `FederatedData` on the device."""

from fedjax_ssl.data.augment import augmentation, normalizer
from fedjax_ssl.data.federated_data import FederatedData, federate, validate
from fedjax_ssl.data.fetch import DatasetUnavailable
from fedjax_ssl.data.options import accepted_options
from fedjax_ssl.data.report import plot_partition, report
from fedjax_ssl.data.sources import available, load
from fedjax_ssl.data.types import Dataset, Split
from fedjax_ssl.data.weak import WeakLabels

__all__ = [
    "Dataset",
    "DatasetUnavailable",
    "FederatedData",
    "Split",
    "WeakLabels",
    "accepted_options",
    "augmentation",
    "available",
    "federate",
    "load",
    "normalizer",
    "plot_partition",
    "report",
    "validate",
]
