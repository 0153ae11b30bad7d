"""Which options the named partitions, supervisions and augmentations take."""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from fedjax_ssl.data.federation.partition import PARTITIONS
from fedjax_ssl.data.federation.supervision import SUPERVISIONS
from fedjax_ssl.data.images.augmentation import AUGMENTATIONS

_KINDS: dict[str, tuple[Mapping[str, Callable[..., Any]], tuple[str, ...]]] = {
    "partition": (PARTITIONS, ("num_clients",)),
    "supervision": (SUPERVISIONS, ("labelled_clients", "which")),
    "augmentation": (AUGMENTATIONS, ()),
}


def accepted_options(kind: str, name: str) -> tuple[str, ...] | None:
    """The options that a choice takes, those common to its kind included.

    Args:
        kind: "partition", "supervision" or "augmentation".
        name: a choice of that kind.

    Returns:
        Names of options, or None if there is no such choice (building it says which there are).
    """
    table, common = _KINDS[kind]
    return (*signature(table[name]).parameters, *common) if name in table else None
