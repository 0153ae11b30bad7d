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
from fedjax_ssl.data.sources.cache import data_root, fingerprint, kept
from fedjax_ssl.data.sources.entries import Archive, RemoteFile
from fedjax_ssl.data.sources.femnist_forms import HDF5, SPLITS, TAR, TAR_URLS, leaf_files, read_hdf5, read_leaf
from fedjax_ssl.data.sources.fetch import DatasetUnavailable
from fedjax_ssl.data.sources.formats import FormatError

FEMNIST_CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
FEMNIST_WRITERS = 3_400
FEMNIST_EXAMPLES = {"train": 671_585, "test": 77_483}

Form = Literal["fedjax", "tff", "hdf5", "leaf"]

logger = logging.getLogger(__name__)


def read_femnist(files: Mapping[str, Path]) -> Dataset:
    """Federated EMNIST, 62 classes, from fedjax's two SQLite files; clients are writers, the same in both."""
    read = partial(formats.read_fedjax_sqlite, num_classes=len(FEMNIST_CLASSES))
    return _compared(_by_writer({split: read(files[f"federated_emnist_{split}.sqlite"]) for split in SPLITS}))


def _read_hdf5(files: Mapping[str, Path]) -> Dataset:
    return _compared(_by_writer(read_hdf5(files, len(FEMNIST_CLASSES))))


def _by_writer(parts: Mapping[str, formats.ClientArrays]) -> Dataset:
    writers = sorted({name for part in parts.values() for name in part.names})
    number = {name: i for i, name in enumerate(writers)}
    splits = {
        split: Split(part.x, part.y, np.array([number[name] for name in part.names], np.int32)[part.client])
        for split, part in parts.items()
    }
    return Dataset(
        name="femnist",
        train=splits["train"],
        test=splits.get("test"),
        class_names=FEMNIST_CLASSES,
        client_names=tuple(writers),
        mean=(0.0,),  # by convention values stay in 0 .. 1
        std=(1.0,),
    )


def _compared(dataset: Dataset) -> Dataset:
    """The same; a difference from the published counts is said."""
    found = (len(dataset.client_names or ()), len(dataset.train), 0 if dataset.test is None else len(dataset.test))
    published = (FEMNIST_WRITERS, FEMNIST_EXAMPLES["train"], FEMNIST_EXAMPLES["test"])
    if found != published:
        logger.warning(
            "femnist has %d writers and %d + %d examples; the published set has %d writers and %d + %d",
            *(*found, *published),
        )
    return dataset


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


def femnist(form: Form = "fedjax") -> Archive:
    """The entry of federated EMNIST in one of its published forms.

    Raises:
        ValueError: of LEAF's files, which everybody makes for themselves.
    """
    if form == "fedjax":
        return FEMNIST
    if form == "hdf5":
        archive = RemoteFile(TAR, TAR_URLS)
        return replace(FEMNIST, files=(archive,), alternatives=(HDF5,), read=_read_hdf5, variant=form, version=1)
    if form == "leaf":
        raise ValueError("femnist with form='leaf' is made by LEAF's scripts; there are no files to compare with")
    file = RemoteFile(tff.EMNIST_FILE, (f"{tff.HOST}/{tff.EMNIST_FILE}",))
    read = partial(tff.read_emnist, class_names=FEMNIST_CLASSES)
    counts = FEMNIST_EXAMPLES["train"], FEMNIST_EXAMPLES["test"]
    return replace(FEMNIST, files=(file,), read=read, variant=form, version=1, examples=counts)


def load_femnist(
    *,
    root: str | Path | None = None,
    path: str | Path | None = None,
    download: bool = True,
    form: Form = "fedjax",
) -> Dataset:
    """Loads federated EMNIST, by writer.

    Args:
        root: folder of all datasets.
        path: folder with the original files.
        download: whether the network may be used; LEAF's files are not downloaded.
        form: fedjax's two SQLite files; the SQLite or the HDF5 files of TensorFlow Federated, with the same examples,
            in another order; or the JSON files that LEAF's scripts make, with more writers.

    Returns:
        Dataset with inputs uint8 [n, 28, 28, 1], ink high.

    Raises:
        DatasetUnavailable: it is neither here nor to be had, or damaged.
    """
    if form != "leaf":
        return load_archive(femnist(form), root=root, path=path, download=download)
    home = data_root(root) / FEMNIST.name
    folder = home / "raw" if path is None else Path(path).expanduser()
    files = leaf_files(folder)
    if not files["train"]:
        raise DatasetUnavailable(
            "femnist is not here as LEAF's JSON files.\n"
            f"  looked  {folder / 'train'}/*.json\n"
            "To go on, do one of these:\n"
            "  - get LEAF (https://github.com/TalwalkarLab/leaf), run data/femnist/preprocess.sh with the options of "
            "your paper and Pillow 9,\n    and give path= the folder data/femnist/data, which has train/ and test/, or "
            f"copy both into {home / 'raw'}\n"
            "  - leave form='leaf' out: the default form is downloaded, with 3,400 writers\n"
            f"  - {FEMNIST.substitute}"
        )

    def make() -> Dataset:
        try:
            dataset = _by_writer(read_leaf(files, len(FEMNIST_CLASSES)))
        except (FormatError, OSError) as error:
            raise DatasetUnavailable(
                f"femnist: {error}\nTo go on, let LEAF's preprocess.sh make the files again, or {FEMNIST.substitute}"
            ) from error
        return replace(dataset, extra={"terms": FEMNIST.terms})

    stats = [(str(file.relative_to(folder)), file.stat()) for paths in files.values() for file in paths]
    listed = [(name, status.st_size, status.st_mtime_ns) for name, status in stats]
    return kept(home / f"leaf-{fingerprint(str(folder.resolve()))}", fingerprint([1, listed]), make)
