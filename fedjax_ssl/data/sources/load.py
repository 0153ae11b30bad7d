"""`load` and `available`: datasets by name."""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_ssl.data.dataset import Dataset
from fedjax_ssl.data.sources.archives import load_archive
from fedjax_ssl.data.sources.catalog import ARCHIVES
from fedjax_ssl.data.sources.digits import load_digits
from fedjax_ssl.data.sources.fed_isic import load_fed_isic
from fedjax_ssl.data.sources.glyphs import load_glyphs
from fedjax_ssl.data.sources.npz import load_npz
from fedjax_ssl.registry import did_you_mean

PLACES = ("root", "path", "download")


class Source(NamedTuple):
    """A dataset that can be loaded by name.

    Attributes:
        load: takes keyword arguments only; `root`, `path` and `download` where it has a use for them.
        description: one line for `available`.
    """

    load: Callable[..., Dataset]
    description: str


SOURCES: dict[str, Source] = {
    "digits": Source(load_digits, "1,797 handwritten digits by 14 writers, 8x8x1, 10 classes; in the package"),
    "glyphs": Source(
        load_glyphs,
        "rendered characters by writer, 28x28x1, 62 classes, a stand-in shaped like FEMNIST; in the package",
    ),
    "npz": Source(load_npz, "your own arrays: path= an .npz file with `inputs`, `labels` and, if known, `client`"),
    **{name: Source(partial(load_archive, archive), archive.description) for name, archive in ARCHIVES.items()},
    "fed_isic2019": Source(
        load_fed_isic,
        "23,247 dermoscopic images of 6 centres, 64x64x3 or size=, 8 classes; you place FLamby's folder at path=",
    ),
}


def available() -> dict[str, str]:
    """The names that `load` knows, each with one line on what it is and whether it needs a download."""
    return {name: source.description for name, source in SOURCES.items()}


def load(
    name: str,
    *,
    root: str | Path | None = None,
    path: str | Path | None = None,
    download: bool = True,
    **options: Any,
) -> Dataset:
    """Loads a dataset by name.

    Args:
        name: one of `available()`.
        root: folder of all datasets; default $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl.
        path: for "npz" the file; for published datasets a folder with their original files.
        download: whether the network may be used.
        **options: of the source, for example writers=20 for "glyphs".

    Returns:
        The dataset, checked.

    Raises:
        ValueError: an unknown name or option, or content that does not fit; says what is allowed.
        DatasetUnavailable: not here and not to be had, or damaged; says what to put where.
    """
    if name not in SOURCES:
        raise ValueError(
            f"Unknown dataset {name!r}.{did_you_mean(name, SOURCES)} Available: {', '.join(sorted(SOURCES))}."
        )
    accepted = inspect.signature(SOURCES[name].load).parameters
    if path and "path" not in accepted:
        raise ValueError(f"Dataset {name!r} is in the package and takes no path=; got {str(path)!r}.")
    allowed = sorted(set(accepted) - set(PLACES))
    for option in options:
        if option not in allowed:
            raise ValueError(
                f"Dataset {name!r} has no option {option!r}.{did_you_mean(option, allowed)} "
                f"Options: {', '.join(allowed) or 'none'}."
            )
    places = {"root": root or None, "path": path or None, "download": download}
    return SOURCES[name].load(**{place: value for place, value in places.items() if place in accepted}, **options)
