"""`femnist`: handwritten characters by writer, in the forms that it is published in.

Source: Caldas et al., LEAF: A Benchmark for Federated Settings, 2018; Cohen et al., EMNIST, IJCNN 2017.
"""

import logging
import string
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.sources import formats, tff
from fedjax_ssl.data.sources.archives import load_archive
from fedjax_ssl.data.sources.entries import Archive, RemoteFile

FEMNIST_CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
FEMNIST_WRITERS = 3_400
FEMNIST_EXAMPLES = {"train": 671_585, "test": 77_483}

logger = logging.getLogger(__name__)


def read_femnist(files: Mapping[str, Path]) -> Dataset:
    """Federated EMNIST, 62 classes, from fedjax's two SQLite files; clients are writers, the same in both."""
    parts = {
        split: formats.read_fedjax_sqlite(files[f"federated_emnist_{split}.sqlite"], len(FEMNIST_CLASSES))
        for split in ("train", "test")
    }
    writers = sorted({name for part in parts.values() for name in part.names})
    number = {name: i for i, name in enumerate(writers)}
    found = {split: len(part.y) for split, part in parts.items()}
    if len(writers) != FEMNIST_WRITERS or found != FEMNIST_EXAMPLES:
        logger.warning(
            "femnist has %d writers and %d + %d examples; the published set has %d writers and %d + %d",
            *(len(writers), found["train"], found["test"]),
            *(FEMNIST_WRITERS, FEMNIST_EXAMPLES["train"], FEMNIST_EXAMPLES["test"]),
        )
    splits = {
        split: Split(part.x, part.y, np.array([number[name] for name in part.names], np.int32)[part.client])
        for split, part in parts.items()
    }
    return Dataset(
        name="femnist",
        train=splits["train"],
        test=splits["test"],
        class_names=FEMNIST_CLASSES,
        client_names=tuple(writers),
        mean=(0.0,),  # by convention values stay in 0 .. 1
        std=(1.0,),
    )


FEMNIST = Archive(
    name="femnist",
    description="749,068 handwritten characters by 3,400 writers, 28x28x1, 62 classes; downloaded",
    files=tuple(
        RemoteFile(name, (f"https://storage.googleapis.com/gresearch/fedjax/emnist/{name}",))
        for name in ("federated_emnist_train.sqlite", "federated_emnist_test.sqlite")
    ),
    read=read_femnist,
    terms="from NIST Special Database 19; cite Cohen et al. (2017), EMNIST, and Caldas et al. (2018), LEAF",
    substitute=(
        'run the same experiment on the embedded stand-in, load("glyphs"): --config configs/femnist_xclp.py:glyphs'
    ),
    version=2,
)


def femnist(form: Literal["fedjax", "tff"] = "fedjax") -> Archive:
    """The entry of federated EMNIST in one of its two published forms."""
    if form == "fedjax":
        return FEMNIST
    file = RemoteFile(tff.EMNIST_FILE, (f"{tff.HOST}/{tff.EMNIST_FILE}",))
    read = partial(tff.read_emnist, class_names=FEMNIST_CLASSES)
    counts = FEMNIST_EXAMPLES["train"], FEMNIST_EXAMPLES["test"]
    return replace(FEMNIST, files=(file,), read=read, variant=form, version=1, examples=counts)


def load_femnist(
    *,
    root: str | Path | None = None,
    path: str | Path | None = None,
    download: bool = True,
    form: Literal["fedjax", "tff"] = "fedjax",
) -> Dataset:
    """Loads federated EMNIST, by writer.

    Args:
        root: folder of all datasets.
        path: folder with the original files.
        download: whether the network may be used.
        form: fedjax's two SQLite files, or the one of TensorFlow Federated, whose examples come in another order.

    Returns:
        Dataset with inputs uint8 [n, 28, 28, 1], ink high.

    Raises:
        DatasetUnavailable: it is neither here nor to be had, or damaged.
    """
    return load_archive(femnist(form), root=root, path=path, download=download)
