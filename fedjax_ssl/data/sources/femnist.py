"""`femnist`: handwritten characters by writer, in the forms that it is published in.

fedjax's two SQLite files, TensorFlow Federated's SQLite file, the HDF5 files of TensorFlow
Federated and FedML, and the JSON files that LEAF's scripts make. All have pixels from 0 (ink) to 1
(background); ink comes out high, as uint8.

Source: Caldas et al., LEAF: A Benchmark for Federated Settings, 2018; Cohen et al., EMNIST, IJCNN
2017.
"""

import contextlib
import importlib
import itertools
import json
import math
import shutil
import sqlite3
import string
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np

from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.reading import tff
from fedjax_ssl.data.reading.archives import Files, RemoteFile
from fedjax_ssl.data.reading.cache import facts_of, kept_for, raw_folder
from fedjax_ssl.data.reading.formats import DAMAGED, LARGEST, FormatError, damage, read_tar
from fedjax_ssl.data.reading.problems import DatasetUnavailable, Place, not_here
from fedjax_ssl.data.reading.register import published
from fedjax_ssl.errors import how_to_install

CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
EXAMPLES = (671_585, 77_483)
SHAPE = (28, 28)
VALUES = math.prod(SHAPE)
SPLITS = ("train", "test")
SQLITE = tuple(f"federated_emnist_{split}.sqlite" for split in SPLITS)
LZMA = "emnist_all.sqlite.lzma"
HDF5_TAR = "fed_emnist.tar.bz2"
HDF5 = tuple(f"fed_emnist_{split}.h5" for split in SPLITS)
LARGEST_JSON = 1 << 30  # bytes of one file; LEAF writes 100 writers into one, some 100 MB
TERMS = (
    "from NIST Special Database 19; cite Cohen et al. (2017), EMNIST, and Caldas et al. (2018), "
    "LEAF"
)
SUBSTITUTE = (
    'run the same experiment on the embedded stand-in, load("glyphs"): --config '
    "configs/femnist_xclp.py:glyphs"
)
FILES = {
    "fedjax": tuple(
        RemoteFile(f"https://storage.googleapis.com/gresearch/fedjax/emnist/{name}")
        for name in SQLITE
    ),
    "tff": (RemoteFile(f"{tff.HOST}/{LZMA}"),),
    "hdf5": (
        RemoteFile(
            f"{tff.HOST}/{HDF5_TAR}",
            mirrors=(f"https://fedml.s3-us-west-1.amazonaws.com/{HDF5_TAR}",),
        ),
    ),
}

Form = Literal["fedjax", "tff", "hdf5", "leaf"]


class Part(NamedTuple):
    """Examples of one split with the writer of each."""

    x: np.ndarray  # uint8 [n, 28, 28, 1]
    y: np.ndarray  # int32 [n]
    client: np.ndarray  # int32 [n], positions in `names`
    names: Sequence[str]  # writers


Writer = tuple[str, Any, int]  # name, {"pixels": [n, 28, 28] from 0 to 1, "label": [n]}, and n


def load_leaf(*, root: Place = None, path: Place = None, form: str = "leaf") -> Dataset:
    """Read LEAF's JSON files in `train/` and `test/` of a folder, once."""
    folder = raw_folder("femnist", root, path)
    files = {split: sorted((folder / split).glob("*.json")) for split in SPLITS}
    if not files["train"]:
        remedies = [
            "get LEAF (https://github.com/TalwalkarLab/leaf), run data/femnist/preprocess.sh "
            "with the options of your paper and Pillow 9,\n    and give path= the folder "
            "data/femnist/data, which has train/ and test/, or copy both into "
            f"{raw_folder('femnist', root, None)}",
            "leave form='leaf' out: the default form is downloaded, with 3,400 writers",
        ]
        looked = [f"{folder / 'train'}/*.json"]
        raise not_here(
            "femnist", looked, remedies, instead=SUBSTITUTE, state="here as LEAF's JSON files"
        )

    def make() -> Dataset:
        try:
            parts = []
            for paths in files.values():
                if paths:
                    writers = itertools.chain.from_iterable(map(_leaf_writers, paths))
                    parts.append(_joined(paths[0].parent, writers))
            return replace(_dataset(parts), extra={"terms": TERMS})
        except (FormatError, OSError) as error:
            raise DatasetUnavailable(
                f"femnist: {error}\nTo go on, let LEAF's preprocess.sh make the files again, or "
                f"{SUBSTITUTE}"
            ) from error

    every = [file for paths in files.values() for file in paths]
    return kept_for(root, "femnist", folder, "leaf", facts_of(every), make)


@published(
    "femnist",
    "749,068 handwritten characters by 3,400 writers, 28x28x1, 62 classes; downloaded",
    terms=TERMS,
    files=lambda form: FILES[form],
    examples=EXAMPLES,
    alternatives=lambda form: (HDF5,) if form == "hdf5" else (),
    folders={"leaf": load_leaf},
    substitute=SUBSTITUTE,
    version=2,
)
def read_femnist(files: Files, form: Form = "fedjax") -> Dataset:
    """Read federated EMNIST, by writer.

    Args:
        files: files of the form.
        form: fedjax's two SQLite files; the SQLite or the HDF5 files of TensorFlow Federated, with
            the same examples, in another order; or the JSON files that LEAF's scripts make, with
            more writers, which are not downloaded.

    Returns:
        Dataset with inputs uint8 [n, 28, 28, 1], ink high.

    Raises:
        DatasetUnavailable: h5py is not installed, for HDF5.
        FormatError: a file is not in its form, or damaged.
    """
    if form == "tff":
        splits = tff.read_splits(
            files[LZMA], ("all_train", "all_test"), "pixels", (*SHAPE, 1), {"label": len(CLASSES)}
        )
        return _dataset([_of_rows(rows) for rows in splits.values()])
    if form == "hdf5":
        with _unpacked(files) as paths:
            return _dataset([_read_hdf5(paths[name]) for name in HDF5])
    return _dataset([read_sqlite(files[name]) for name in SQLITE])


def _of_rows(rows: tff.Rows) -> Part:
    names, client = np.unique(rows.client, return_inverse=True)
    return Part(rows.x, rows.labels["label"], client, names.tolist())


def _dataset(parts: Sequence[Part]) -> Dataset:
    writers = sorted({name for part in parts for name in part.names})
    number = {name: place for place, name in enumerate(writers)}
    splits = []
    for part in parts:
        client = np.array([number[name] for name in part.names], np.int32)[part.client]
        splits.append(Split(part.x, part.y, client))
    return Dataset(
        "femnist",
        splits[0],
        splits[1] if len(splits) > 1 else None,
        class_names=CLASSES,
        client_names=tuple(writers),
        mean=(0.0,),  # by convention values stay in 0 .. 1
        std=(1.0,),
    )


def read_sqlite(path: Path) -> Part:
    """Read one split in fedjax's form.

    Table `federated_data(client_id, data, num_examples)`; `data` is zlib-compressed msgpack of
    `pixels` float32 [n, 28, 28] and `label` int32 [n].

    Raises:
        FormatError: no SQLite file of this form, cut short, or with content out of range; names the
            client.
    """
    return _joined(path, _sqlite_writers(path))


def _sqlite_writers(path: Path) -> Iterator[Writer]:
    from flax import serialization  # takes a moment to import

    uri = f"{path.resolve().as_uri()}?mode=ro"
    with damage(path), contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
        columns = {row[1] for row in database.execute("PRAGMA table_info(federated_data)")}
        if not columns >= {"client_id", "data", "num_examples"}:
            raise FormatError(
                f"{path} is not in fedjax's form: it has no table federated_data(client_id, data, "
                "num_examples)."
            )
        for client_id, data, count in database.execute(
            "SELECT client_id, data, num_examples FROM federated_data"
        ):
            name = tff.as_name(client_id)
            with damage(path, f" (client {name})"):
                unpacker = zlib.decompressobj()
                # Twice what the examples take.
                most = 4096 + 8 * min(count, LARGEST // VALUES) * (VALUES + 1)
                content = unpacker.decompress(data, most)
                if not unpacker.eof:
                    raise ValueError(f"incomplete, or more than {count} examples")
                example = serialization.msgpack_restore(content)
            yield name, example, count


@contextlib.contextmanager
def _unpacked(files: Files) -> Iterator[Files]:
    """Give the two HDF5 files; those of an archive in a temporary folder beside it."""
    if HDF5_TAR not in files:
        yield files
        return
    with tempfile.TemporaryDirectory(dir=files[HDF5_TAR].parent) as folder:

        def unpack(name: str, content: IO[bytes], _: int) -> Path:
            with (Path(folder) / name).open("wb") as file:
                shutil.copyfileobj(content, file, 1 << 24)
            return Path(folder) / name

        yield read_tar(files[HDF5_TAR], HDF5, unpack)


def _read_hdf5(path: Path) -> Part:
    """Read one split of groups `examples/<writer>/` with `pixels` float32 [n, 28, 28] and
    `label` int32 [n].
    """
    try:
        h5py: Any = importlib.import_module("h5py")
    except ImportError as error:
        raise DatasetUnavailable(
            f"{path} is an HDF5 file, which needs: {how_to_install('h5')}. Or leave "
            "form='hdf5' out: the default form needs nothing more and has the same examples."
        ) from error

    def inside(group: Any, name: str, kind: Any) -> Any:
        """Open a member that lies in this file: HDF5 could have any file of the machine read in
        its place.
        """
        link = group.get(name, getlink=True)
        if not isinstance(link, h5py.HardLink):
            raise FormatError(
                f"{path} has no {group.name.rstrip('/')}/{name}, or it points to another place."
            )
        found: Any = group[name]
        values = kind is h5py.Dataset
        if not isinstance(found, kind) or (values and (found.external or found.is_virtual)):
            raise FormatError(
                f"{path}: {found.name} is no {kind.__name__.lower()} with content of its own."
            )
        if values and found.size > LARGEST // VALUES:
            raise FormatError(
                f"{path}: {found.name} states {found.size:,} values, which are not read."
            )
        return found

    with damage(path), h5py.File(path, "r") as file:
        group = inside(file, "examples", h5py.Group)

        def read(name: str) -> Writer:
            writer = inside(group, name, h5py.Group)
            example = {part: inside(writer, part, h5py.Dataset)[()] for part in ("pixels", "label")}
            return name, example, len(example["label"])

        return _joined(path, map(read, group))


def _leaf_writers(path: Path) -> Iterator[Writer]:
    """Read a file of LEAF's: `users`, `num_samples`, and `user_data` with `x` (rows of 784) and
    `y` of each.
    """
    length = path.stat().st_size
    if length > LARGEST_JSON:
        raise FormatError(f"{path} has {length:,} bytes; more than {LARGEST_JSON:,} are not read.")
    with damage(path):
        content = json.loads(path.read_bytes())
        users = content["user_data"]
        if not isinstance(users, dict) or set(users) != set(content["users"]):
            raise ValueError("users and user_data do not name the same writers")
    for name in sorted(users):
        try:
            user = users.pop(name)  # so that the lists of a writer go when the arrays are there
            labels = np.array(user["y"])
            pixels = np.array(user["x"], np.float32).reshape(len(labels), *SHAPE)
        except DAMAGED as error:
            raise FormatError(
                f"{path}: writer {name} has no x of rows of {VALUES} numbers, and y: {error}"
            ) from error
        yield name, {"pixels": pixels, "label": labels}, len(labels)


def _joined(path: Path, writers: Iterator[Writer]) -> Part:
    """Put the examples of all writers together, in the order of their names."""
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    total = 0
    for name, example, count in writers:
        if not isinstance(example, dict) or not {"pixels", "label"} <= example.keys():
            raise FormatError(f"{path}: client {name} has no `pixels` and `label`.")
        pixels = np.asarray(example["pixels"])
        labels = np.asarray(example["label"])
        if pixels.shape != (count, *SHAPE) or labels.shape != (count,):
            raise FormatError(
                f"{path}: client {name} has pixels {pixels.shape} and labels {labels.shape} for "
                f"{count} examples of {SHAPE}."
            )
        if count and not (pixels.min() >= 0 and pixels.max() <= 1):
            raise FormatError(f"{path}: client {name} has pixels outside 0 to 1, or NaN.")
        if labels.dtype.kind not in "iu":
            raise FormatError(
                f"{path}: client {name} has labels of the type {labels.dtype}; they are whole "
                "numbers."
            )
        if count and not (labels.min() >= 0 and labels.max() < len(CLASSES)):
            raise FormatError(f"{path}: client {name} has labels outside 0 to {len(CLASSES) - 1}.")
        if name in found:
            raise FormatError(f"{path} has the writer {name} twice.")
        total += count
        if total > LARGEST // VALUES:
            raise FormatError(
                f"{path} has more than {LARGEST // VALUES:,} examples, which are not read."
            )
        ink = np.rint(255.0 * (1.0 - pixels)).astype(np.uint8)
        found[name] = ink[..., None], labels.astype(np.int32)
    if not total:
        raise FormatError(f"{path} holds no examples.")
    names = sorted(found)
    images, labels = zip(*(found[name] for name in names), strict=True)
    client = np.repeat(np.arange(len(names)), [len(one) for one in labels])
    return Part(np.concatenate(images), np.concatenate(labels), client, names)
