"""Uploads with values that are not finite."""

from typing import Any

from jaxtyping import Array

from fedjax_ssl.federated.messages import Upload
from fedjax_ssl.federated.method import ClientResult
from fedjax_ssl.federated.uploads.transform import (
    EVERYTHING,
    UploadTransform,
    is_finite,
)


def drop_non_finite() -> UploadTransform:
    """Return the transform that loses an upload of which a number is not finite.

    Without it the engine drops a client whose model, loss, weight or kept state is not finite; this
    looks at all that the upload holds, as other transforms left it.
    """

    def at_client(key: Array, upload: Upload, trained: ClientResult, state: Any) -> Upload:
        sound = is_finite(upload)
        return upload._replace(arrived=upload.arrived & sound)

    return UploadTransform("drop_non_finite", at_client=at_client, covers=EVERYTHING)
