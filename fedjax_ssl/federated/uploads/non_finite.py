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
    """Return the transform that loses an upload of which a number is not finite.

    The engine drops some clients itself, with it or without. One whose loss, parameters or batch
    statistics are not finite after training is put back to where it began before its terms collect
    anything, so that no transform sees what it trained; one whose weight, optimizer or kept state
    is not finite is lost after the transforms. This looks at all that the upload holds, what terms
    send too, as the transforms before it left it.
    """

    def at_client(key: Array, upload: Upload, trained: ClientResult, state: Any) -> Upload:
        sound = is_finite(upload)
        return upload._replace(arrived=upload.arrived & sound)

    return UploadTransform("drop_non_finite", at_client=at_client)
