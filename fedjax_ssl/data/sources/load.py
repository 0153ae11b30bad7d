"""`load` and `available`: datasets by name."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

from fedjax_ssl.data.dataset import Dataset
from fedjax_ssl.data.sources.archives import Verified, load_archive, verify_files
from fedjax_ssl.data.sources.catalog import ARCHIVES
from fedjax_ssl.data.sources.digits import TERMS as DIGITS_TERMS
from fedjax_ssl.data.sources.digits import load_digits
from fedjax_ssl.data.sources.emnist import emnist, load_emnist
from fedjax_ssl.data.sources.entries import Archive, Source
from fedjax_ssl.data.sources.fed_isic import TERMS as FED_ISIC_TERMS
from fedjax_ssl.data.sources.fed_isic import load_fed_isic
from fedjax_ssl.data.sources.femnist import femnist, load_femnist
from fedjax_ssl.data.sources.folder import load_folder
from fedjax_ssl.data.sources.glyphs import load_glyphs
from fedjax_ssl.data.sources.huggingface import load_huggingface
from fedjax_ssl.data.sources.mini_imagenet import load_mini_imagenet, mini_imagenet
from fedjax_ssl.data.sources.npz import load_npz
from fedjax_ssl.data.sources.omniglot import load_omniglot, omniglot
from fedjax_ssl.data.sources.rsna import TERMS as RSNA_TERMS
from fedjax_ssl.data.sources.rsna import load_rsna
from fedjax_ssl.data.sources.stl10 import load_stl10, stl10
from fedjax_ssl.data.sources.svhn import load_svhn, svhn
from fedjax_ssl.data.sources.table import load_table
from fedjax_ssl.data.sources.tfds import load_tfds
from fedjax_ssl.registry import Registry, check_known

PLACES = ("root", "path", "download", "source")
ORIGINS: tuple[Source, ...] = get_args(Source)
OWN = ("npz", "folder", "table", "huggingface")  # read what is at path= and nothing else
# Published datasets with options of their own: how they are loaded, and their entry in the catalogue.
LOADERS: dict[str, Callable[..., Dataset]] = {
    "emnist": load_emnist,
    "svhn": load_svhn,
    "stl10": load_stl10,
    "omniglot": load_omniglot,
    "mini_imagenet": load_mini_imagenet,
    "femnist": load_femnist,
}

ENTRIES: dict[str, Callable[..., Archive]] = {
    "emnist": emnist,
    "svhn": svhn,
    "stl10": stl10,
    "omniglot": omniglot,
    "mini_imagenet": mini_imagenet,
    "femnist": femnist,
}

logger = logging.getLogger(__name__)

SOURCES: Registry[Dataset] = Registry(
    "dataset",
    {
        "digits": (load_digits, "1,797 handwritten digits by 14 writers, 8x8x1, 10 classes; in the package"),
        "glyphs": (
            load_glyphs,
            "rendered characters by writer, 28x28x1, 62 classes, a stand-in shaped like FEMNIST; in the package",
        ),
        "npz": (load_npz, "your own arrays: path= an .npz file with `inputs`, `labels` and, if known, `client`"),
        "folder": (
            load_folder,
            "your own images: path= a folder of them by site and class, or with a table of file, label, client",
        ),
        "table": (
            load_table,
            "your own features: path= a CSV or Parquet file with the columns label and, if known, client",
        ),
        "huggingface": (
            load_huggingface,
            "a dataset of Hugging Face's library: path= the folder that save_to_disk wrote, read without that library",
        ),
        **{
            name: (LOADERS.get(name, partial(load_archive, archive)), archive.description)
            for name, archive in ARCHIVES.items()
        },
        "tfds": (
            load_tfds,
            "tfds:NAME, a folder that TensorFlow Datasets prepared, read without TensorFlow",
        ),
        "fed_isic2019": (
            load_fed_isic,
            "23,247 dermoscopic images of 6 centres, 64x64x3 or size=, 8 classes; you place FLamby's folder at path=",
        ),
        "rsna_hemorrhage": (
            load_rsna,
            "slices of heads with one of 5 kinds of bleeding, 128x128x3 or size=; you place Kaggle's files at path=",
        ),
    },
    given=PLACES,
)
TERMS = {  # licence and whom to cite
    "digits": DIGITS_TERMS,
    "glyphs": "part of this package, Apache-2.0",
    **dict.fromkeys(OWN, "yours"),
    **{name: archive.terms for name, archive in ARCHIVES.items()},
    "fed_isic2019": FED_ISIC_TERMS,
    "rsna_hemorrhage": RSNA_TERMS,
    "tfds": "of the dataset: https://www.tensorflow.org/datasets/catalog/overview",
}
available = SOURCES.available  # () -> names that `load` knows, each with a line about it


def load(
    name: str,
    root: str | Path | None = None,
    source: Source = "auto",
    download: bool = True,
    *,
    path: str | Path | None = None,
    **options: Any,
) -> Dataset:
    """Loads a dataset by name.

    A published dataset is looked for in this order: the converted form in `<root>/<name>/`, the original files in
    `<root>/<name>/raw/`, a folder that TensorFlow Datasets has prepared, the network.

    Args:
        name: one of `available()`.
        root: folder of all datasets; default $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl.
        source: of a published dataset, "auto" as above; "original" without TensorFlow Datasets; "tfds" from its folder
            of prepared datasets alone, which is `path`, $TFDS_DATA_DIR or ~/tensorflow_datasets. Any other dataset of
            TensorFlow Datasets is named "tfds:NAME".
        download: whether the network may be used.
        path: for "npz" and "table" the file, for "folder" and "huggingface" the folder; for published datasets a folder
            with their original files.
        **options: of the source, for example writers=20 for "glyphs".

    Returns:
        The dataset, checked.

    Raises:
        ValueError: an unknown name or option, or content that does not fit; says what is allowed.
        DatasetUnavailable: not here and not to be had, or damaged; says what to put where.
    """
    dataset = read(name, root=root, path=path, download=download, source=source, **options)
    for note in dataset.extra.get("notes", ()):
        logger.warning("%s: %s", path or name, note)
    return dataset


def read(
    name: str,
    *,
    root: str | Path | None = None,
    path: str | Path | None = None,
    download: bool = True,
    source: Source = "auto",
    **options: Any,
) -> Dataset:
    """The same without a word about what was skipped, which is in `extra["notes"]`."""
    if path and not SOURCES.takes(name, "path"):
        raise ValueError(f"dataset {name!r} is in the package and takes no path=; got {str(path)!r}")
    check_known("source", source, ORIGINS)
    if name == "tfds" and "dataset" not in options:
        raise ValueError("a dataset of TensorFlow Datasets is written tfds:NAME, such as tfds:mnist")
    if source == "tfds" and not SOURCES.takes(name, "source"):
        raise ValueError(
            f"dataset {name!r} is not in TensorFlow Datasets in this form; leave source='tfds' out. Its datasets as "
            "they are: tfds:NAME"
        )
    places = {"root": root or None, "path": path or None, "download": download, "source": source}
    taken = {place: value for place, value in places.items() if SOURCES.takes(name, place)}
    return SOURCES.build(name, **taken, **options)


def verify(name: str, *, root: str | Path | None = None, **options: Any) -> list[Verified]:
    """Compares the original files of a published dataset with what is published.

    Args:
        name: of a dataset that is downloaded.
        root: folder of all datasets; default $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl.
        **options: of the source, which decide what files there are.

    Returns:
        A line about each file.

    Raises:
        ValueError: an unknown name or option, or a dataset that is not downloaded.
    """
    SOURCES.check(name, options)
    if name not in ARCHIVES:
        raise ValueError(f"dataset {name!r} is not downloaded; those that are: {', '.join(ARCHIVES)}")
    return verify_files(ENTRIES[name](**options) if name in ENTRIES else ARCHIVES[name], root)
