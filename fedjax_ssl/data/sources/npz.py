"""`npz`: the user's own arrays."""

import math
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fedjax_ssl.checks import In, Whole
from fedjax_ssl.data.correspondence import check_correspondence
from fedjax_ssl.data.dataset import Dataset, Split, check_finite, check_labels
from fedjax_ssl.data.reading.problems import EMBEDDED, DatasetUnavailable
from fedjax_ssl.data.reading.proportions import read_proportions
from fedjax_ssl.data.reading.register import dataset

KERAS_NAMES = {"x_train": "inputs", "y_train": "labels", "x_test": "test_inputs", "y_test": "test_labels"}
NEEDED = ("inputs", "labels")
OPTIONAL = (
    *("client", "test_inputs", "test_labels", "test_client"),
    *("class_names", "coarse", "correspondence", "set"),
)
# What reading damaged bytes raises; of the last line, for compressions and passwords that nobody meant, and for sizes.
_DAMAGES = (
    *(OSError, EOFError, zipfile.BadZipFile, zlib.error, struct.error, SyntaxError, LookupError),
    *(NotImplementedError, RuntimeError, OverflowError, MemoryError),
)


@dataset(
    "npz",
    "your own arrays: path= an .npz file with `inputs`, `labels` and, if known, `client`",
    terms="yours",
    kind="own",
)
def load_npz(
    *,
    path: Path | str | None = None,
    num_classes: Annotated[int | None, Whole(2)] = None,
    input_max: Annotated[float | None, In("(0, inf)")] = None,
    proportions: Path | str | None = None,
) -> Dataset:
    """Load an `.npz` file of arrays (no pickled objects).

    Read are `inputs`, `labels` and, where present, `client`, `test_inputs`, `test_labels`, `test_client`,
    `class_names`, `coarse`, `correspondence` and `set`; also Keras' names `x_train`, `y_train`, `x_test`, `y_test`.
    Inputs are uint8 or floating point, [n, features], [n, H, W] (grey; a channel axis is added) or [n, H, W, C].
    Labels are 0 to K - 1, -1 = no label, and so is every test label without `test_labels`. Clients are integers or
    strings in any numbering, shared between train and test. `coarse` holds labels 0 to J - 1 of the training
    examples in a second label space, -1 = none, and `correspondence` [J, K] the probabilities of these labels given
    each class; `set` holds the set of each training example, numbered from 0 within its client, -1 = in none.

    Args:
        path: the file.
        num_classes: K. By default it follows from the labels, and then every class must occur.
        input_max: the stored value that maps to 1.0; by default 255 for uint8 and 1 for floating point.
        proportions: CSV file with the class shares of each client's sets; see `fedjax_ssl.data.reading.proportions`.

    Returns:
        The dataset, named "npz".

    Raises:
        DatasetUnavailable: a file is missing or the `.npz` cannot be read.
        ValueError: arrays are missing or do not fit; the message names the array and what was found.
    """
    if path is None:
        raise ValueError('load("npz") needs path=, the .npz file with the arrays `inputs` and `labels`.')
    path = Path(path).expanduser()
    arrays = _Arrays(path)
    inputs, test_inputs = arrays.inputs("inputs"), arrays.inputs("test_inputs")
    labels = arrays.whole("labels", len(inputs))
    test_labels = None
    if test_inputs is not None:
        test_labels = arrays.whole("test_labels", len(test_inputs))
        test_labels = np.full(len(test_inputs), -1) if test_labels is None else test_labels
    names = arrays.class_names(num_classes, [part for part in (labels, test_labels) if part is not None])
    check_labels(f"{path}: labels", labels, len(names))
    if test_labels is not None:
        check_labels(f"{path}: test_labels", test_labels, len(names))
    client, test_client, client_names = arrays.clients(len(inputs), len(test_inputs) if test_inputs is not None else 0)
    coarse, correspondence, coarse_names = arrays.coarse(len(inputs), len(names))
    sets, set_shares = arrays.whole("set", len(inputs), lowest=-1), None
    if proportions is not None:
        if sets is None or client is None or client_names is None:
            raise arrays.wrong(
                "class shares of sets are given, but not the arrays `set` and `client` that they describe"
            )
        set_shares = read_proportions(proportions, names, client_names, client, sets)
    return Dataset(
        name="npz",
        train=Split(inputs, labels, client, coarse, sets),
        test=None if test_inputs is None or test_labels is None else Split(test_inputs, test_labels, test_client),
        class_names=names,
        client_names=client_names,
        input_max=input_max if input_max is not None else (255.0 if inputs.dtype == np.uint8 else 1.0),
        coarse_names=coarse_names,
        correspondence=correspondence,
        set_shares=set_shares,
        extra={"path": str(path)},
    )


class _Arrays:
    """The arrays of a file by the names of this source, each checked where it is taken."""

    def __init__(self, path: Path):
        self.path = path
        arrays, names = _read(path)
        found = ", ".join(f"`{name}`" for name in names) or "nothing"
        self.arrays = {KERAS_NAMES.get(name, name): values for name, values in arrays.items()}
        if len(self.arrays) < len(arrays):
            raise self.wrong(f"some arrays are there under both names, `inputs` and Keras' `x_train`; found: {found}")
        missing = [name for name in NEEDED if name not in self.arrays]
        missing += ["test_inputs"] * ("test_labels" in self.arrays and "test_inputs" not in self.arrays)
        if missing:
            raise ValueError(
                f"{path} has no array {' and '.join(f'`{name}`' for name in missing)}; found: {found}. Needed are "
                "`inputs` and `labels` (or Keras' `x_train` and `y_train`); optional are "
                f"{', '.join(f'`{name}`' for name in OPTIONAL)}."
            )

    def wrong(self, text: str) -> ValueError:
        return ValueError(f"{self.path}: {text}.")

    def inputs(self, name: str) -> Any:
        """Take images or features; None: they are not there."""
        if (values := self.arrays.get(name)) is None:
            return None
        if values.dtype != np.uint8 and values.dtype.kind != "f":
            allowed = "uint8 (images) and floating point (features)"
            raise self.wrong(f"{name} has dtype {values.dtype}; allowed are {allowed}")
        if values.ndim not in (2, 3, 4) or 0 in values.shape:
            allowed = "[n, features], [n, H, W] and [n, H, W, C]"
            raise self.wrong(f"{name} has shape {values.shape}; allowed are {allowed}")
        if values.ndim == 4 and values.shape[1] in (1, 3) and values.shape[3] not in (1, 3):
            shape = f"{values.shape}, which looks like [n, C, H, W]"
            raise self.wrong(f"{name} has shape {shape}; transpose it to [n, H, W, C]")
        check_finite(f"{self.path}: {name}", values)
        largest = np.finfo(np.float32).max
        if values.dtype.itemsize > 4 and (beyond := np.abs(values) > largest).any():
            row = int(np.flatnonzero(beyond.reshape(len(values), -1).any(axis=1))[0])
            raise self.wrong(
                f"{name} has a value beyond {largest:.3g} in row {row}; single precision, in which a run computes, "
                "ends there: scale the features"
            )
        return values[..., None] if values.ndim == 3 else values

    def whole(self, name: str, length: int, lowest: int | None = None, text: bool = False) -> Any:
        """Take one whole number (or text) per example; None: the array is not there."""
        if (values := self.arrays.get(name)) is None:
            return None
        if values.dtype.kind not in ("iuSU" if text else "iu"):
            kinds = "clients are integers or strings" if text else "labels must be integers, -1 = no label"
            raise self.wrong(f"{name} has dtype {values.dtype}; {kinds}")
        if values.shape != (length,):
            raise self.wrong(f"{name} has shape {values.shape}; expected ({length},), one per example")
        if lowest is not None and values.dtype.kind == "i" and (values < lowest).any():
            row = int(np.flatnonzero(values < lowest)[0])
            none = ", -1 = in none" if lowest < 0 else ""
            raise self.wrong(f"{name} is {values[row]} in row {row}; they are numbered from 0 on{none}")
        if values.dtype.kind == "u":  # beside signed numbers they would become floating point
            beyond = np.flatnonzero(values > np.iinfo(np.int64).max)
            if len(beyond):
                raise self.wrong(
                    f"{name} is {values[beyond[0]]} in row {beyond[0]}; allowed are whole numbers below 2**63. Number "
                    "them anew, or save the names of clients as strings"
                )
            return values.astype(np.int64)
        return values

    def class_names(self, num_classes: int | None, labels: Sequence[np.ndarray]) -> tuple[str, ...]:
        """Take the names of the classes, or their numbers."""
        if (values := self.arrays.get("class_names")) is not None:
            if values.ndim != 1 or values.dtype.kind not in "SUiu":
                found = f"shape {values.shape} and dtype {values.dtype}"
                raise self.wrong(f"class_names has {found}; it must be [K], a name for each class")
            names = tuple(name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in values)
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise self.wrong(f"class_names has {twice[0]!r} more than once")
            if num_classes not in (None, len(names)):
                raise self.wrong(f"class_names has {len(names)} names, but num_classes is {num_classes}")
            return names
        if num_classes is None:
            present = np.unique(np.concatenate(labels))
            present = present[present >= 0]
            if len(present) < 2:
                raise self.wrong(
                    f"labels holds {len(present)} classes, so the number of classes does not follow from it. "
                    "Pass num_classes=, or add labels: at least two classes are needed"
                )
            num_classes = int(present[-1]) + 1
            absent = np.setdiff1d(np.arange(min(num_classes, len(present) + 1)), present)
            if len(absent):
                raise self.wrong(
                    f"labels run from {present[0]} to {present[-1]} but only {len(present)} of these {num_classes} "
                    f"classes occur; class {absent[0]} is the first without an example. Renumber the classes 0 to "
                    f"{len(present) - 1}, or pass num_classes={num_classes} if the gaps are meant"
                )
        return tuple(str(k) for k in range(num_classes))

    def coarse(self, length: int, num_classes: int) -> tuple[Any, np.ndarray | None, tuple[str, ...] | None]:
        """Take labels in the coarse space, correspondence and names of the coarse classes."""
        labels, matrix = self.whole("coarse", length), self.arrays.get("correspondence")
        if labels is None and matrix is not None:
            raise self.wrong("correspondence is there but coarse, the labels it is about, is not")
        if labels is None:
            return None, None, None
        if matrix is None:
            num_coarse = int(labels.max()) + 1
            if num_coarse < 2:
                raise self.wrong(
                    f"coarse has no label above {labels.max()}, but at least two coarse classes are needed; add "
                    "labels, or the array `correspondence`, whose rows say how many there are"
                )
        else:
            if matrix.dtype.kind not in "iuf":
                raise self.wrong(f"correspondence has dtype {matrix.dtype}; it must hold numbers")
            matrix = matrix.astype(np.float64)
            check_correspondence(f"{self.path}: correspondence", matrix, num_classes)
            num_coarse = matrix.shape[0]
        check_labels(f"{self.path}: coarse", labels, num_coarse)
        return labels, matrix, tuple(str(label) for label in range(num_coarse))

    def clients(self, length: int, test_length: int) -> tuple[Any, Any, tuple[str, ...] | None]:
        """Take clients of training and test examples by number, and their names."""
        client = self.whole("client", length, lowest=0, text=True)
        test_client = self.whole("test_client", test_length, lowest=0, text=True)
        if client is None and test_client is not None:
            raise self.wrong("test_client is there but client is not; clients are named by the training examples")
        if client is None:
            return None, None, None
        both = [client] if test_client is None else [client, test_client]
        if len({values.dtype.kind in "SU" for values in both}) > 1:
            raise self.wrong("client and test_client must both be integers or both be strings")
        names, ids = np.unique(np.concatenate(both), return_inverse=True)
        ids = ids.astype(np.int32)
        return ids[:length], None if test_client is None else ids[length:], tuple(str(name) for name in names)


def _read(path: Path) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Read the arrays that this source knows, and the names of all."""
    if not path.is_file():
        raise DatasetUnavailable(
            f"npz: {path} is not {'a file' if path.exists() else 'there'}. Give path= an .npz file with the arrays "
            f"`inputs` and `labels`, or run on data that needs no file: {EMBEDDED}."
        )
    # The file is opened here, because numpy leaves a broken one open.
    with path.open("rb") as file:
        try:
            loaded = np.load(file, allow_pickle=False)
        except (ValueError, *_DAMAGES) as error:
            # NumPy takes what it does not know for pickled objects, and says how to load those.
            why = "it is of another kind" if "pickle" in str(error) else str(error)
            raise DatasetUnavailable(
                f"npz: {path} is not a readable .npz file, or it is cut short: {why}. Save one with np.savez(path, "
                "inputs=..., labels=...)"
            ) from error
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise DatasetUnavailable(
                f"npz: {path} holds one bare array; save both with np.savez(path, inputs=..., labels=...)."
            )
        with loaded:
            if doubled := sorted({name for name in loaded.files if loaded.files.count(name) > 1}):
                raise ValueError(f"{path} holds `{doubled[0]}` more than once; save it again with np.savez.")
            arrays = {
                name: _array(path, loaded, name)
                for name in loaded.files
                if KERAS_NAMES.get(name, name) in (*NEEDED, *OPTIONAL)
            }
            return arrays, tuple(loaded.files)


def _array(path: Path, loaded: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
    try:
        _check_size(loaded, name)
        values = loaded[name]
    except (ValueError, *_DAMAGES) as error:
        if "pickle" in str(error) or "Object" in str(error):  # NumPy's words about Python objects
            raise ValueError(
                f"{path}: array {name!r} holds Python objects, which are refused because they can run code; save it as "
                "an array of numbers, or of strings of one length (dtype=str)."
            ) from error
        raise DatasetUnavailable(f"npz: array {name!r} of {path} is damaged: {error}") from error
    if not isinstance(values, np.ndarray):
        raise DatasetUnavailable(f"npz: {name!r} in {path} is no array; save arrays with np.savez(path, ...)")
    return values


def _check_size(loaded: np.lib.npyio.NpzFile, name: str) -> None:
    """Refuse an array whose header claims more than the file holds, before memory is taken for it."""
    member = f"{name}.npy"
    if loaded.zip is None or member not in loaded.zip.namelist():
        return  # no array: said where it is read
    with loaded.zip.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        claimed, there = math.prod(shape) * dtype.itemsize, loaded.zip.getinfo(member).file_size - file.tell()
    if claimed > there and not dtype.hasobject:
        raise OSError(f"it says that it has shape {shape} of {dtype}, {claimed:,} bytes; the file holds {there:,}")
