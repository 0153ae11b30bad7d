"""`features`: examples as encoded features, with stored views in place of augmentation, and their
folders, which the command `features` writes block by block.

A folder holds the dataset without its inputs, as `cache` keeps datasets; `features.json`, the
description of data and encoder; and an array in half precision for each split, [n, 1 + weak +
strong, d] for the training examples and [n, 1, d] for the test examples. The length of an array
shows how much is done, so a kill or a full disk loses one block at most.
"""

import dataclasses
import io
import json
import os
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from flax.traverse_util import flatten_dict
from numpy.lib import format as npy

from fedjax_ssl.checks import Whole
from fedjax_ssl.data.dataset import Dataset, Names, StoredViews
from fedjax_ssl.data.reading.cache import load_converted, save
from fedjax_ssl.data.reading.own import BadData, Place, given_path
from fedjax_ssl.data.reading.register import dataset
from fedjax_ssl.data.sources.npz import Arrays, read_npz
from fedjax_ssl.data.views import ENCODE

INPUTS: Names = ("inputs", "test_inputs")
FACTS = "features.json"
KIND = np.dtype(np.float16)


@dataset(
    "features",
    "features of an encoder: path= a folder of `fedjax-ssl features`, or an .npz file",
    terms="yours",
    kind="own",
)
def load_features(
    *, path: Place = None, strong_views: Annotated[int | None, Whole(0)] = None
) -> Dataset:
    """Load features of examples and of their views.

    A folder is what the command `features` has written; labels, clients and names are those of the
    dataset that it encoded. An `.npz` file has the arrays of the dataset `npz`, where `inputs` are
    floating point, [n, d], or [n, views, d]: the example as it is, weak views, strong views.
    `test_inputs` are [t, d], or of the same form.

    Args:
        path: the folder, or the file.
        strong_views: number of strong views in an `.npz` file, which come last; by default half of
            the views, rounded down.

    Returns:
        The dataset, with `views`.

    Raises:
        DatasetUnavailable: nothing is there, or the `.npz` cannot be read.
        ValueError: the features are not whole, or do not fit; says what was found.
    """
    place = given_path(
        "features", path, "a folder that `fedjax-ssl features` has written, or an .npz file", "any"
    )
    if place.is_dir():
        if strong_views is not None:
            raise BadData(
                place,
                f"strong_views is {strong_views}, but the folder says itself which views are "
                "strong; leave it out",
            )
        return load_encoded(place)
    taken: Arrays = {}

    def aside(arrays: Arrays) -> None:
        """Put one number in place of every example's features, which have one more axis."""
        for name in INPUTS:
            if name not in arrays:
                continue
            taken[name] = _features(name, arrays[name])
            arrays[name] = np.zeros((len(taken[name]), 1), np.float32)

    bare = read_npz(place, aside=aside)
    inputs = taken["inputs"]
    test = taken.get("test_inputs", inputs[:0])
    if test.shape[1:] not in (inputs.shape[1:], (1, inputs.shape[2])):
        raise BadData(
            place, f"test_inputs has shape {test.shape}, inputs {inputs.shape}; they must be alike"
        )
    others = inputs.shape[1] - 1
    strong = others // 2 if strong_views is None else strong_views
    if strong > others:
        raise BadData(
            place,
            f"strong_views is {strong}, but an example has {others} views beside itself; {ENCODE}",
        )
    made: dict[str, Any] = {"train": dataclasses.replace(bare.train, x=inputs)}
    if bare.test is not None:
        same = np.broadcast_to(test, (len(test), *inputs.shape[1:]))
        made["test"] = dataclasses.replace(bare.test, x=same)
    views = StoredViews(others - strong, strong)
    return dataclasses.replace(bare, name="features", **made, views=views)


def _features(name: str, values: np.ndarray) -> np.ndarray:
    """Return features as [n, views, d]."""
    if values.dtype.kind != "f" or values.ndim not in (2, 3) or 0 in values.shape:
        raise ValueError(
            f"{name} has shape {values.shape} and dtype {values.dtype}; features are floating "
            "point, [n, d] or [n, views, d]"
        )
    single = values.astype(np.float32)
    return single[:, None] if single.ndim == 2 else single


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Description of a folder of features; it fits into JSON."""

    data: dict[str, Any]  # fingerprint of the examples
    encoder: dict[str, Any]  # facts that identify the encoder
    augmentation: dict[str, Any]
    # ^ names and settings of the weak and the strong augmentation, and the seed
    weak: int  # weak views of a training example
    strong: int
    width: int  # numbers of a feature vector
    block: int  # examples that are encoded at once
    sizes: dict[str, int]  # examples by split
    version: int = 1

    def views_of(self, split: str) -> int:
        """Return the number of stored rows of an example: itself and its views."""
        return StoredViews(self.weak, self.strong).all if split == "train" else 1

    def row_bytes(self, split: str) -> int:
        """Return the bytes of an example."""
        return self.views_of(split) * self.width * KIND.itemsize

    @property
    def nbytes(self) -> int:
        """Return the bytes of all arrays."""
        return sum(count * self.row_bytes(split) for split, count in self.sizes.items())

    def differences(self, other: "Encoded") -> list[str]:
        """Return the facts in which another folder differs from this one."""
        here = flatten_dict(dataclasses.asdict(self), sep=".")
        there = flatten_dict(dataclasses.asdict(other), sep=".")
        return [
            f"{name} is {there.get(name)}, was {here.get(name)}"
            for name in here | there
            if here.get(name) != there.get(name)
        ]


def read_facts(folder: Path) -> Encoded | None:
    """Read the description of a folder; None if nothing was encoded into it.

    Raises:
        BadData: its description is damaged.
    """
    file = folder / FACTS
    if not file.is_file():
        return None
    try:
        return Encoded(**json.loads(file.read_text("utf-8")))
    except (ValueError, TypeError) as error:
        raise BadData(
            folder, f"{FACTS} is damaged ({error}); encode into another folder"
        ) from error


def begin(folder: Path, dataset: Dataset, facts: Encoded) -> None:
    """Make the folder: everything of the dataset but its inputs, then the description."""
    folder.mkdir(parents=True, exist_ok=True)
    bare: Any = {
        name: dataclasses.replace(split, x=np.zeros((len(split), 1), np.uint8))
        for name, split in dataset.splits().items()
    }
    extra = {"encoded": dataset.name}
    without: Any = {"input_max": 1.0, "mean": None, "std": None, "reading": None, "extra": extra}
    save(dataclasses.replace(dataset, name="features", **bare, **without), folder)
    (folder / FACTS).write_text(json.dumps(dataclasses.asdict(facts), indent=1), "utf-8")


def array_file(folder: Path, split: str) -> Path:
    """Return the path of a split's features."""
    return folder / f"{split}_features.npy"


class Rows:
    """The array of one split, to which blocks of examples are added.

    Attributes:
        done: examples written so far.
    """

    def __init__(self, folder: Path, facts: Encoded, split: str):
        """Open the array, and cut off a partial block."""
        self._file = array_file(folder, split)
        self._shape = (facts.views_of(split), facts.width)
        self._row_bytes = facts.row_bytes(split)
        total = facts.sizes[split]
        header = _header((total, *self._shape))
        self._start = len(header)
        if not self._file.exists() or self._file.stat().st_size < self._start:
            self._file.write_bytes(header)
        there = (self._file.stat().st_size - self._start) // self._row_bytes
        self.done = total if there >= total else there // facts.block * facts.block
        self._cut()

    def add(self, features: np.ndarray) -> None:
        """Add features [b, views, d]; on a full disk, earlier blocks are kept.

        Raises:
            OSError: they cannot be written.
        """
        try:
            with self._file.open("ab") as file:
                file.write(np.ascontiguousarray(features, KIND).tobytes())
        except OSError:
            self._cut()
            raise
        self.done += len(features)

    def first(self, count: int) -> np.ndarray:
        """Read the features of the first examples without views, [count, d]."""
        values = count * self._row_bytes // KIND.itemsize
        read = np.fromfile(self._file, KIND, values, offset=self._start)
        return read.reshape(-1, *self._shape)[:, 0]

    def _cut(self) -> None:
        os.truncate(self._file, self._start + self.done * self._row_bytes)


def _header(shape: tuple[int, ...]) -> bytes:
    """Make the header of an `.npy` file."""
    written = io.BytesIO()
    facts = {"descr": npy.dtype_to_descr(KIND), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(written, facts)
    return written.getvalue()


def load_encoded(folder: Path) -> Dataset:
    """Open a folder of features, memory-mapped.

    Raises:
        BadData: it holds none, not all of them, or parts that do not belong together.
    """
    facts = read_facts(folder)
    if facts is None:
        raise BadData(
            folder,
            f"there is no {FACTS}; make it with `fedjax-ssl features CONFIG --output {folder}`",
        )
    bare = load_converted(folder)
    sizes = None if bare is None else {name: len(split) for name, split in bare.splits().items()}
    if bare is None or sizes != facts.sizes:
        raise BadData(folder, f"labels and clients do not belong to {FACTS}; encode again")
    splits: dict[str, Any] = {}
    for name, split in bare.splits().items():
        splits[name] = dataclasses.replace(split, x=_mapped(folder, facts, name))
    views = StoredViews(facts.weak, facts.strong)
    return dataclasses.replace(bare, **splits, views=views)


def _mapped(folder: Path, facts: Encoded, split: str) -> np.ndarray:
    """Map the array of a split; a test example is repeated, without memory, in place of its
    views.
    """
    file = array_file(folder, split)
    count = facts.sizes[split]
    header = _header((count, facts.views_of(split), facts.width))
    there = file.stat().st_size - len(header) if file.exists() else 0
    if there != count * facts.row_bytes(split):
        done = max(there, 0) // facts.row_bytes(split)
        raise BadData(
            folder,
            f"{done:,} of {count:,} {split} examples are encoded; the command that made the folder "
            "goes on with the others",
        )
    mapped = np.load(file, mmap_mode="r")
    shape = (count, StoredViews(facts.weak, facts.strong).all, facts.width)
    if mapped.shape == shape:
        return mapped
    # Not `np.broadcast_to`, whose result does not show that it is mapped.
    row, _, value = mapped.strides
    return np.ndarray(shape, KIND, buffer=mapped, strides=(row, 0, value))
