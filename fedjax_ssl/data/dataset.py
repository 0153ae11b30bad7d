"""Datasets: the arrays that every source returns, on the host, checked once when they are made."""

import functools
import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np

from fedjax_ssl.objectives.channel_checks import check_correspondence

Names = tuple[str, ...]
# Inputs up to this many bytes are identified by all their bytes; larger ones by a block of each
# example in the middle.
KNOWN_WHOLE = 1 << 30
KNOWN_BLOCK = 1 << 12
_BLOCK = 1 << 22  # values that are checked at once


def distinct(values: np.ndarray) -> np.ndarray:
    """Return the different values, sorted; `np.unique` of NumPy 2.4 takes a hundred times as long
    for a million values.
    """
    values = np.sort(values)
    return values[np.append(True, values[1:] != values[:-1])[: len(values)]]


def rows_of(clients: Sequence[Any]) -> dict[Any, np.ndarray]:
    """List the rows of every client, int [m]."""
    rows: dict[Any, list[int]] = {}
    for row, client in enumerate(clients):
        rows.setdefault(client, []).append(row)
    return {client: np.array(found) for client, found in rows.items()}


def in_one_form(text: str) -> str:
    """Write a name in one form: 7 for "7.0", "+7" and " 7", accents as one letter.

    Spreadsheets add ".0" to whole numbers if a cell of the column is empty.
    """
    plain = unicodedata.normalize("NFC", text.strip())
    return re.sub(r"^\+?(-?\d+)(\.0*|,00?)?$", r"\1", plain)


def check_finite(name: str, values: np.ndarray) -> None:
    """Refuse NaN and infinity in a floating-point array; integer arrays always pass.

    Args:
        name: name of the array in the message.
        values: [n, ...].

    Raises:
        ValueError: some value is NaN or infinite; names the array, how many values and the first
            row.
    """
    if not np.issubdtype(values.dtype, np.floating):
        return
    # In blocks, because inputs may be memory-mapped.
    rows_at_once = max(_BLOCK // max(values[:1].size, 1), 1)
    starts = range(0, len(values), rows_at_once)
    if all(np.isfinite(values[start : start + rows_at_once]).all() for start in starts):
        return
    bad = ~np.isfinite(values)
    if bad.any():
        rows = np.flatnonzero(bad.reshape(len(values), -1).any(axis=1))
        raise ValueError(
            f"{name} has {int(bad.sum()):,} values that are NaN or infinite, in {len(rows):,} of "
            f"{len(values):,} rows, first in row {rows[0]}. Remove these rows or fill the values "
            "in before loading."
        )


def check_labels(name: str, labels: np.ndarray, num_classes: int) -> None:
    """Refuse labels outside -1 .. num_classes - 1.

    Args:
        name: name of the array in the message.
        labels: [n] integers, -1 = no label.
        num_classes: number of classes.

    Raises:
        ValueError: some label is out of range; names the array, how many, the first row and its
            value.
    """
    allowed = f"0 to {num_classes - 1} for {num_classes} classes, and -1 for no label"
    _check_range(name, labels, -1, num_classes, allowed, "labels")


def _check_range(
    name: str, values: np.ndarray, lowest: int, bound: int, allowed: str, what: str = "values"
) -> None:
    if len(rows := np.flatnonzero((values < lowest) | (values >= bound))):
        raise ValueError(
            f"{name} has {len(rows):,} {what} out of range, first in row {rows[0]}: "
            f"{values[rows[0]]}. Allowed are {allowed}."
        )


def _as_inputs(values: Any) -> np.ndarray:
    values = np.asarray(values)
    if values.ndim < 2:
        raise ValueError(
            f"Split.x has shape {values.shape}; allowed are [n, features] and [n, height, width, "
            "channels]."
        )
    if values.dtype != np.uint8 and not np.issubdtype(values.dtype, np.floating):
        raise ValueError(
            f"Split.x has dtype {values.dtype}; allowed are uint8 (images as stored) and floating "
            "point."
        )
    # Half precision in a file is not converted: it would then be read into memory.
    as_stored = values.dtype == np.uint8 or (values.dtype == np.float16 and is_mapped(values))
    return values if as_stored else values.astype(np.float32, copy=False)


def is_mapped(array: Any) -> bool:
    """Return whether an array is in a memory-mapped file."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False


class StoredViews(NamedTuple):
    """Numbers of stored views of an example, besides the example itself."""

    weak: int
    strong: int

    @property
    def all(self) -> int:
        """Count the example and its views."""
        return 1 + self.weak + self.strong


def _as_ids(name: str, values: Any, length: int) -> np.ndarray:
    values = np.asarray(values)
    if not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"{name} has dtype {values.dtype}; it must hold integers.")
    if values.shape != (length,):
        raise ValueError(
            f"{name} has shape {values.shape}, Split.x has {length:,} rows; {name} must be "
            f"({length},)."
        )
    limits = np.iinfo(np.int32)
    if values.size and (int(values.min()) < limits.min or int(values.max()) > limits.max):
        raise ValueError(
            f"{name} has values from {values.min()} to {values.max()}, which do not fit into int32."
        )
    return values.astype(np.int32, copy=False)


@dataclass(frozen=True)
class Reading:
    """Conversion of files to inputs, which new files get too; fields of subclasses fit into
    JSON.
    """

    def as_json(self) -> dict[str, Any]:
        """Return the value that `fedjax_ssl.data.reading.cache.reading_from_json` takes."""
        return {"kind": type(self).__name__, **asdict(self)}


@dataclass(frozen=True)
class Split:
    """Examples of one split. Other integer and float widths are converted; anything else is
    refused.

    Raises:
        ValueError: shapes, types or values that do not fit; names the field.
    """

    x: np.ndarray
    # ^ uint8 images [n, H, W, C] as stored, or float32 features [n, ...] (float16 in a file that is
    # memory-mapped); all values finite
    y: np.ndarray  # int32 [n], class of each example, -1 = no label exists
    client: np.ndarray | None = None
    # ^ int32 [n], natural client (writer, centre, patient) of each example
    coarse: np.ndarray | None = None
    # ^ int32 [n], label in a second, mostly coarser space, -1 = none exists
    set: np.ndarray | None = None
    # ^ int32 [n], number of the set within the natural client, from 0; -1 = in none
    names: np.ndarray | None = None
    # ^ str [n], file or line that each example comes from: "north/ill/03.png"
    group: np.ndarray | None = None
    # ^ int32 [n], for example the patient; a group stays on one side of every split; negative = in
    # none

    def __post_init__(self) -> None:
        x = _as_inputs(self.x)
        check_finite("Split.x", x)
        object.__setattr__(self, "x", x)
        for name in ("y", "client", "coarse", "set", "group"):
            values = getattr(self, name)
            if values is not None or name == "y":
                object.__setattr__(self, name, _as_ids(f"Split.{name}", values, len(x)))
        if self.names is not None:
            names = np.asarray(self.names)
            object.__setattr__(self, "names", names)
            if names.shape != (len(x),) or names.dtype.kind not in "UO":
                raise ValueError(
                    f"Split.names has shape {names.shape} and dtype {names.dtype}; give "
                    f"{len(x):,} texts."
                )
        if self.set is not None and len(rows := np.flatnonzero(self.set < -1)):
            raise ValueError(
                f"Split.set is {self.set[rows[0]]} in row {rows[0]}; sets are numbered from 0 on, "
                "-1 = in no set."
            )

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Dataset:
    """A named dataset: `load` returns it, and `federate` cuts it into clients.

    Raises:
        ValueError: parts that do not fit together; names the field.

    Example:
        >>> from fedjax_ssl.data import Split
        >>> x, y = np.eye(4, dtype=np.float32), np.array([0, 1, -1, -1])  # -1: no label
        >>> train = Split(x, y, client=np.array([0, 0, 1, 1]))
        >>> mine = fs.Dataset("mine", train, None, ("cat", "dog"))
        >>> mine.num_classes
        2
    """

    name: str  # name by which it was loaded
    train: Split  # at least one example
    test: Split | None
    # ^ examples of the same shape, or None if the source has no test split
    class_names: Names  # K names; class k is labelled k
    client_names: Names | None = None
    # ^ names of natural clients; client i of both splits is client_names[i]
    input_max: float = 255.0  # the stored value that maps to 1.0
    # Per channel of images or feature of vectors (or one for all), on the scale where input_max is
    # 1.0. None: unknown. A mean of (0,) and a deviation of (1,): inputs are not standardized, by
    # convention.
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None  # positive
    coarse_names: Names | None = None
    # ^ names of the J labels of `Split.coarse`, where there are such labels
    # [J, K], P(coarse label | class), columns sum to 1, or [G, J, K], a matrix for each of the
    # natural clients below; None: nobody knows it.
    correspondence: np.ndarray | None = None
    # [G, O, K], class shares of the sets of the G natural clients that have training examples, in
    # increasing order of client; rows sum to 1, or are 0 on padding. None: nobody knows them.
    set_shares: np.ndarray | None = None
    reading: Reading | None = None
    # ^ conversion of files to inputs; None: inputs were arrays, or it is unknown
    views: StoredViews | None = None
    # ^ inputs are [n, 1 + weak + strong, features]: the example, weak views, strong views; methods
    # draw views from these. None: inputs have no such axis
    extra: Mapping[str, Any] = field(default_factory=dict)
    # ^ source-specific facts, such as the source's options

    def __post_init__(self) -> None:
        where = f"Dataset {self.name!r}:"
        if len(self.train) == 0:
            raise ValueError(f"{where} train has no examples.")
        if not self.class_names:
            raise ValueError(f"{where} class_names is empty; it needs one name per class.")
        if self.test is not None and len(self.test) == 0:
            raise ValueError(f"{where} test has no examples; use test=None for no test split.")
        shapes = [f"{split.x.dtype} {split.x.shape[1:]}" for split in self.splits().values()]
        if len(set(shapes)) > 1:
            raise ValueError(
                f"{where} test inputs are {shapes[1]}, train inputs are {shapes[0]}; they must be "
                "alike."
            )
        for name, split in self.splits().items():
            self._check_split(f"{where} {name}", split)
        clients = 0 if self.train.client is None else len(distinct(self.train.client))
        if self.correspondence is not None:
            self._check_matrices(f"{where} correspondence", self.correspondence, clients)
        if self.set_shares is not None:
            self._check_set_shares(f"{where} set_shares", self.set_shares, clients)
        if not self.input_max > 0:
            raise ValueError(f"{where} input_max is {self.input_max}; it must be positive.")
        if self.views is not None and self.train.x.shape[1:-1] != (self.views.all,):
            raise ValueError(
                f"{where} train inputs have shape {self.train.x.shape}; with {self.views.weak} "
                f"weak and {self.views.strong} strong views they must be [n, {self.views.all}, "
                "features]."
            )
        channels = self.input_shape[-1]
        for name, values in (("mean", self.mean or (0.0,)), ("std", self.std or (1.0,))):
            if len(values) not in (1, channels):
                raise ValueError(
                    f"{where} {name} has {len(values)} values; allowed are 1 and {channels} "
                    "(channels)."
                )
            if not np.isfinite(values).all():
                raise ValueError(f"{where} {name} is {values}; every value must be finite.")
            if name == "std" and min(values) <= 0:
                raise ValueError(f"{where} std is {values}; every value must be positive.")

    def _check_split(self, name: str, split: Split) -> None:
        check_labels(f"{name}.y", split.y, self.num_classes)
        if split.coarse is not None:
            if self.coarse_names is None:
                raise ValueError(f"{name}.coarse is there but coarse_names is not.")
            check_labels(f"{name}.coarse", split.coarse, len(self.coarse_names))
        if split.client is not None:
            bound = np.iinfo(np.int32).max
            if self.client_names is not None:
                bound = len(self.client_names)
            _check_range(f"{name}.client", split.client, 0, bound, f"0 to {bound - 1}")

    def _check_matrices(self, name: str, given: np.ndarray, num_clients: int) -> None:
        one_each = np.ndim(given) == 3
        if one_each and len(given) != num_clients:
            raise ValueError(
                f"{name} is of {len(given)} clients, there are {num_clients} natural ones."
            )
        each = given if one_each else [given]
        for client, matrix in enumerate(each):
            number = client if one_each else None
            check_correspondence(matrix, num_classes=self.num_classes, client=number)
        rows = len(each[0])
        if self.coarse_names is None or rows != len(self.coarse_names):
            raise ValueError(f"{name} has {rows} rows; coarse_names must name each.")

    def _check_set_shares(self, name: str, shares: np.ndarray, num_clients: int) -> None:
        if self.train.set is None or not num_clients:
            raise ValueError(f"{name} is there but train.set or train.client is not.")
        if shares.ndim != 3 or shares.shape[::2] != (num_clients, self.num_classes):
            raise ValueError(
                f"{name} has shape {shares.shape}; it must be [clients, sets, classes] with "
                f"{num_clients} clients and {self.num_classes} classes."
            )
        totals = shares.sum(axis=2)
        # A NaN compares as false, so it is found too.
        if not ((shares >= 0).all() and ((np.abs(totals - 1) < 1e-5) | (totals == 0)).all()):
            raise ValueError(
                f"{name}: the shares of every set must be at least 0 and sum to 1 (or all be 0)."
            )

    def splits(self) -> dict[str, Split]:
        """Return the existing splits, "train" and "test"."""
        return {"train": self.train} | ({} if self.test is None else {"test": self.test})

    @functools.cached_property
    def example_ids(self) -> np.ndarray:
        """Hash every example's input as stored, uint64 [N], training examples first.

        The hash is BLAKE2b with 8 bytes, little-endian. If all inputs together exceed 1 GiB, a
        block in the middle of each example is hashed.
        """
        arrays = [split.x for split in self.splits().values()]
        found = []
        for array in arrays:
            first = 0
            last = array[0].nbytes
            if sum(one.nbytes for one in arrays) > KNOWN_WHOLE and last > KNOWN_BLOCK:
                first = (last - KNOWN_BLOCK) // 2
                last = first + KNOWN_BLOCK
            for row in array:
                content = np.ascontiguousarray(row).reshape(-1).view(np.uint8)[first:last]
                found.append(hashlib.blake2b(content.data, digest_size=8).digest())
        return np.frombuffer(b"".join(found), "<u8")

    @property
    def num_classes(self) -> int:
        """Number of classes, K."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example, as networks see it."""
        return self.train.x.shape[1 if self.views is None else 2 :]


def with_pooled_splits(dataset: Dataset) -> Dataset:
    """Append a dataset's own test examples to its training examples, for runs that hold out their
    own (FedMatch).

    Raises:
        ValueError: it has no test examples, or sets, which belong to clients of the training
            examples.
    """
    train = dataset.train
    test = dataset.test
    if test is None:
        raise ValueError(
            f"pool_splits: dataset {dataset.name!r} has no test examples of its own; leave it out"
        )
    if train.set is not None:
        raise ValueError(
            f"the sets of dataset {dataset.name!r} are of its training examples, so that its test "
            "examples cannot be pooled with them; leave pool_splits and pools out"
        )
    if dataset.views is not None and dataset.views.all > 1:
        raise ValueError(
            f"test examples of dataset {dataset.name!r} have no views to train on; leave "
            "pool_splits and pools out"
        )
    if train.group is not None and test.group is None:
        test = replace(test, group=np.full(len(test), -1, np.int32))
    joined = {}
    for name in (one.name for one in fields(Split)):
        pair = getattr(train, name), getattr(test, name)
        if all(part is not None for part in pair):
            joined[name] = np.concatenate(pair)
    return replace(dataset, train=Split(**joined), test=None)
