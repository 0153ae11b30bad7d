"""Data: sources, partitions, supervision, augmentation; everything ends as `FederatedData` on the device."""

from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.federation.federate import federate
from fedjax_ssl.data.federation.federated_data import FederatedData, validate
from fedjax_ssl.data.federation.report import plot_partition, report
from fedjax_ssl.data.federation.weak_labels import WeakLabels
from fedjax_ssl.data.images.augmentation import augmentation
from fedjax_ssl.data.options import accepted_options
from fedjax_ssl.data.sources.fetch import DatasetUnavailable
from fedjax_ssl.data.sources.load import available, load
from fedjax_ssl.data.standardization import STANDARDIZATIONS, normalizer, standardized

__all__ = [
    "STANDARDIZATIONS",
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
    "standardized",
    "validate",
]
