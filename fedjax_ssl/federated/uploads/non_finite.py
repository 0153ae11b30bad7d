"""Uploads with values that are not finite."""

from typing import Any

from jaxtyping import Array

from fedjax_ssl.federated.contract import ClientResult
from fedjax_ssl.federated.messages import Upload
from fedjax_ssl.federated.uploads.transform import (
    UploadTransform,
    is_finite,
)


def drop_non_finite() -> UploadTransform:
    """Return the transform that drops uploads with a number that is not finite.

    The engine itself already drops some clients. If a client's loss, parameters or batch statistics
    are not finite after training, it is put back to its start before its terms collect anything, so
    that no transform sees them. If its weight, optimizer or kept state is not finite, its upload is
    lost after the transforms. This transform checks the whole upload, including uploads of terms,
    as the transforms before it left it.
    """

    def at_client(key: Array, upload: Upload, trained: ClientResult, state: Any) -> Upload:
        sound = is_finite(upload)
        return upload._replace(arrived=upload.arrived & sound)

    return UploadTransform("drop_non_finite", at_client=at_client)
