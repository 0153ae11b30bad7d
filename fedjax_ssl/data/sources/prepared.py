"""Published datasets from folders that TensorFlow Datasets has prepared: the same examples in another order."""

import dataclasses
import logging
from pathlib import Path

import numpy as np

from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.sources.entries import Archive, Prepared
from fedjax_ssl.data.sources.fetch import DatasetUnavailable
from fedjax_ssl.data.sources.tfds import is_prepared, load_tfds, prepared_folders

logger = logging.getLogger(__name__)


def load_prepared(
    archive: Archive, *, root: str | Path | None, path: str | Path | None = None, download: bool = True
) -> Dataset:
    """The dataset of a catalogue entry as TensorFlow Datasets has it.

    Args:
        archive: the catalogue entry.
        root: folder of all datasets, which keeps the arrays.
        path: the folder of prepared datasets; default $TFDS_DATA_DIR or ~/tensorflow_datasets.
        download: whether it may be downloaded and prepared, which needs TensorFlow.

    Raises:
        DatasetUnavailable: it is not prepared and cannot be, or is damaged, or is not what the entry describes.
        ValueError: TensorFlow Datasets does not have it.
    """
    prepared = archive.prepared
    if prepared is None:
        raise ValueError(
            f"{archive.name} is not in TensorFlow Datasets with these options and the same content; leave "
            "source='tfds' out. Its datasets as they are: tfds:NAME"
        )
    try:
        options = {"input_key": "image", "label_key": "label", **prepared.options}
        found = load_tfds(prepared.name, root=root, path=path, download=download, **options)
        return dataclasses.replace(
            found,
            name=archive.name,
            train=_relabelled(found.train, prepared),
            test=None if found.test is None else _relabelled(found.test, prepared),
            extra={**found.extra, "terms": archive.terms},
            **prepared.facts,
        )
    except ValueError as error:
        raise DatasetUnavailable(
            f"{archive.name}: tfds:{prepared.name} is not what is expected: {error}\nTo go on, prepare it again, or "
            "take the original with source='original' (config.data.source)"
        ) from error


def if_prepared(archive: Archive, root: str | Path | None) -> Dataset | None:
    """The same where it has been prepared, otherwise None; a damaged folder is said and otherwise passed over."""
    if archive.prepared is None or not is_prepared(archive.prepared.name):
        return None
    try:
        found = load_prepared(archive, root=root, download=False)
    except DatasetUnavailable as error:
        logger.warning("%s", str(error).partition("\n")[0])
        return None
    logger.warning(
        "%s is read from %s, as its original files are not here; TensorFlow Datasets has its examples in another "
        "order, so that runs on the two differ. source='original' (config.data.source) takes the original alone",
        archive.name,
        prepared_folders() / archive.prepared.name,
    )
    return found


def _relabelled(split: Split, prepared: Prepared) -> Split:
    """Labels from 0 on; those of examples without one stay -1."""
    return dataclasses.replace(split, y=np.where(split.y < 0, -1, split.y - prepared.first_label))
