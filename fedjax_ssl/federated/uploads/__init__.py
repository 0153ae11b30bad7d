"""Upload transforms: what happens to an upload between a client and the sum."""

# For users who run mypy --strict.
# mypy: implicit-reexport

from typing import TYPE_CHECKING

from fedjax_ssl.lazy import attach

if TYPE_CHECKING:
    from fedjax_ssl.federated.uploads.non_finite import drop_non_finite
    from fedjax_ssl.federated.uploads.privacy import PRIVACY, Gaussian, Sampled, private_sum
    from fedjax_ssl.federated.uploads.registry import UPLOADS, upload_transforms
    from fedjax_ssl.federated.uploads.sums import SUMS, Summation
    from fedjax_ssl.federated.uploads.transform import (
        EVERYTHING,
        UploadTransform,
        chain,
        check_covers,
        identity,
    )

__getattr__, __dir__ = attach(__name__)
