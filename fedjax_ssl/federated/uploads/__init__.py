"""Upload transforms: changes of an upload between a client and the sum."""

# For users who run mypy --strict.
# mypy: implicit-reexport

from typing import TYPE_CHECKING

from fedjax_ssl.lazy import attach

if TYPE_CHECKING:
    from fedjax_ssl.federated.uploads.named_transforms import (
        FAULTS,
        PRIVACY,
        UPLOADS,
        upload_transforms,
    )
    from fedjax_ssl.federated.uploads.sums import SUMS, Combine
    from fedjax_ssl.federated.uploads.transform import (
        UploadTransform,
        chain,
        identity,
    )

__getattr__, __dir__ = attach(__name__)
