"""Data: sources, partitions, supervision and augmentation; the result is a `FederatedData` on the
device.
"""

# For users who run mypy --strict.
# mypy: implicit-reexport

from typing import TYPE_CHECKING

from fedjax_ssl.lazy import attach

if TYPE_CHECKING:
    from fedjax_ssl.data.check import Checked, check, remarks, source_of
    from fedjax_ssl.data.dataset import Dataset, Split, StoredViews, with_pooled_splits
    from fedjax_ssl.data.federation.federate import Drawing, federate
    from fedjax_ssl.data.federation.federated_data import (
        FederatedData,
        WeakLabels,
        client_names,
        client_number,
        natural_names,
        pooled,
        rounds_of_a_part,
        validate,
        what_is_compared,
    )
    from fedjax_ssl.data.federation.held_out import HeldOut
    from fedjax_ssl.data.federation.host_inputs import (
        RESIDENCES,
        Drawn,
        HostInputs,
        LoadedInputs,
        NotLoaded,
        NotOnDevice,
        clients_of_devices,
        load_examples,
        most_rows,
    )
    from fedjax_ssl.data.federation.partition import PARTITIONS
    from fedjax_ssl.data.federation.report import plot_partition, report
    from fedjax_ssl.data.federation.splits import (
        federate_by_file,
        holds_validation,
        split_hash,
        split_path,
        write_split,
    )
    from fedjax_ssl.data.federation.supervision import SUPERVISIONS
    from fedjax_ssl.data.images.augmentation import AUGMENTATIONS, augmentation
    from fedjax_ssl.data.reading.own import BadData, DatasetUnavailable
    from fedjax_ssl.data.sources import (
        OWN,
        SOURCES,
        TERMS,
        available,
        is_own,
        load,
    )
    from fedjax_ssl.data.standardization import (
        STANDARDIZATIONS,
        for_prediction,
        normalizer,
        standardized,
    )
    from fedjax_ssl.data.views import drawn_views, views_in_words

__getattr__, __dir__ = attach(__name__)
