"""Upload transforms by name.

`config.uploads` names them in their order, `fs.register("upload", name, builder)` adds one, and
"module:function" is one of your own.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedjax_ssl.registry import Registry, contributed

if TYPE_CHECKING:
    from fedjax_ssl.federated.setup import Facts
    from fedjax_ssl.federated.uploads.transform import UploadTransform

UPLOADS: "Registry[UploadTransform]" = Registry(
    "upload transform",
    {},
    given=("facts",),
    makes="fedjax_ssl.federated.uploads.transform:UploadTransform",
)


def no_privacy() -> None:
    """Hide nothing: anyone who sees the model may learn about a client's data."""


def no_faults(share: float, factor: float) -> None:
    """Make no faults: every client behaves correctly."""


FAULTS: "Registry[Any]" = Registry("fault", {"none": no_faults, **contributed("fault")})


# Mechanisms of `config.privacy`, see `fedjax_ssl.runs.privacy.Mechanism`.
PRIVACY: "Registry[Any]" = Registry("privacy", {"none": no_privacy, **contributed("privacy")})


def upload_transforms(
    names: Sequence[str], facts: "Facts | None" = None
) -> "tuple[UploadTransform, ...]":
    """Build upload transforms.

    Args:
        names: names of `UPLOADS`, or "module:function".
        facts: sizes of the run, for builders with a parameter of this name.

    Raises:
        ValueError: a name is unknown, or a builder returned no transform.
    """
    return tuple(UPLOADS.build(name, facts=facts) for name in names)
