"""Datasets by name; every file of this folder registers the datasets that it reads."""

import importlib
import inspect
import logging
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from fedjax_ssl.data.dataset import Dataset
from fedjax_ssl.data.reading.copies import keep_copies_together
from fedjax_ssl.data.reading.own import BadData, Place
from fedjax_ssl.data.reading.register import ENTRIES, PLACES, Kind
from fedjax_ssl.registry import Registry, check_known

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

_KINDS = get_args(Kind)
_ORDERED = sorted(ENTRIES.items(), key=lambda pair: _KINDS.index(pair[1].kind))
# read what is at path= and nothing else
_LIBRARIES = tuple(name for name, entry in _ORDERED if entry.kind == "library")
OWN = tuple(name for name, entry in _ORDERED if entry.kind == "own")
TERMS = {name: entry.terms for name, entry in _ORDERED}  # licence and whom to cite
SOURCES: Registry[Dataset] = Registry(
    "dataset",
    {name: (entry.load, entry.description) for name, entry in _ORDERED},
    given=(*PLACES, "left_out_client"),
    makes=Dataset,
)
available = SOURCES.available  # () -> names that `load` knows, each with a line about it

logger = logging.getLogger(__name__)


def is_own(name: str) -> bool:
    """Return whether a dataset is the user's: own files, a dataset of another library, or an own
    loader.
    """
    entry = ENTRIES.get(name.partition(":")[0])
    return entry is None or entry.kind in ("own", "library")


def load(
    name: str,
    root: Place = None,
    download: bool = True,
    *,
    path: Place = None,
    left_out_client: int | str | None = None,
    **options: Any,
) -> Dataset:
    """Load a dataset by name.

    A published dataset is looked for in this order: the converted form in `<root>/<name>/`, the
    original files in `<root>/<name>/raw/`, the network.

    Args:
        name: one of `available()`.
        root: folder of all datasets; default $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl.
        download: whether the network may be used.
        path: for "npz" and "table" the file, for "folder" the folder; for published datasets a
            folder with their original files.
        left_out_client: client that a run leaves out, by name or number: statistics ignore its
            rows.
        **options: options of the source, for example writers=20 for "glyphs".

    Returns:
        The dataset, checked.

    Raises:
        ValueError: an unknown name or option, or content that does not fit; says what is allowed.
        DatasetUnavailable: not here and not available, or damaged; the message says what to do.

    Example:
        >>> digits = fs.load_dataset("digits")
        >>> digits.train.x.shape, digits.num_classes, len(digits.client_names)
        ((1797, 8, 8, 1), 10, 14)
    """
    if path and not SOURCES.takes(name, "path"):
        raise ValueError(f"dataset {name!r} takes no path=; got {str(path)!r}")
    if name in _LIBRARIES and "dataset" not in options:
        raise ValueError(f"a dataset of this library is written {name}:NAME, such as {name}:mnist")
    places = {"root": root or None, "path": path or None, "download": download}
    own = {"left_out_client": left_out_client, **places}
    usual = inspect.signature(load).parameters
    taken = inspect.signature(SOURCES.builder(name)).parameters
    given = {  # options that are not given keep the loader's default
        place: value
        for place, value in own.items()
        if place in taken
        and (value != usual[place].default or taken[place].default is inspect.Parameter.empty)
    }
    try:
        dataset = read(name, **given, **options)
    except BadData as error:
        if name in OWN:
            end = "; " if len(error.problems) == 1 else "\n"
            error.args = (f"{error}{end}what is there: fedjax-ssl data check {path}",)
        raise
    for note in dataset.extra.get("notes", ()):
        logger.warning("%s: %s", path if path and name in OWN else name, note)
    return dataset


def read(name: str, **given: Any) -> Dataset:
    """Load a dataset from its source, as `load` does; copies of an example in a user's own or a
    library's dataset stay together.

    Args:
        name: as for `load`.
        **given: places and options that the source takes.
    """
    dataset = SOURCES.build(name, **names_apart(name, given))
    return keep_copies_together(dataset) if is_own(name) else dataset


def names_apart(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Split text at commas for an option with several names, as a command line does; otherwise it
    would be taken letter by letter.
    """
    known = SOURCES.options(name)
    return {
        option: tuple(part.strip() for part in value.split(","))
        if isinstance(value, str) and option in known and known[option].type is tuple
        else value
        for option, value in given.items()
    }
