"""`mini_imagenet`: 600 small photographs of each of 100 classes of ImageNet.

Source: Vinyals et al., Matching Networks for One Shot Learning, NeurIPS 2016; Ravi and Larochelle,
ICLR 2017.

Its files are pickles of arrays, and are read safely. A pickle names the functions that its reader
calls. Here a handful of names stand for functions of this file, which only make arrays; any other
name is an error.
"""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.reading.fetch import Facts, Files, RemoteFile
from fedjax_ssl.data.reading.formats import FormatError
from fedjax_ssl.data.reading.register import published

NAME = "mini_imagenet"
SIDE = 84
SPLITS = ("train", "test")
TEST_SHARE = 6  # one image in six of a class is a test image: 100 of 600
HOST = "https://zenodo.org/record/7978538/files"
PICKLES = tuple(f"mini-imagenet-cache-{part}.pkl" for part in ("train", "validation", "test"))
TERMS = (
    "images from ImageNet, for non-commercial research; cite Vinyals et al. (2016) and Ravi and "
    "Larochelle (2017)"
)


@published(
    NAME,
    "60,000 photographs, 84x84x3, 100 classes; downloaded, 1.3 GB",
    terms=TERMS,
    files=tuple(RemoteFile(f"{HOST}/{name}") for name in PICKLES),
    facts=Facts(50_000, 10_000, (SIDE, SIDE, 3), 100),
)
def read_pickles(files: Files) -> Dataset:
    """Read Mini-ImageNet with all 100 classes in training and test examples.

    The pickles are split by class, for few-shot learning. Here the 600 images of every class are
    joined, and a sixth of them, always the same ones, are test images.

    Args:
        files: pickles of `image_data` uint8 [n, 84, 84, 3] and `class_dict`, rows by name of the
            class.

    Returns:
        Dataset with inputs uint8 [n, 84, 84, 3]; there are no natural clients.

    Raises:
        FormatError: a file is not in this form, damaged, or would run code.
    """
    images: dict[str, np.ndarray] = {}
    for path in files.values():
        for name, rows in _classes(path).items():
            if name in images:
                raise FormatError(f"{path} has the class {name}, which another file has too.")
            images[name] = rows
    generator = np.random.default_rng(0)
    parts: dict[str, tuple[list, list]] = {split: ([], []) for split in SPLITS}  # images and labels
    for label, name in enumerate(sorted(images)):
        rows = images[name]
        order = generator.permutation(len(images[name]))
        few = len(rows) // TEST_SHARE
        for split, part in (("test", order[:few]), ("train", order[few:])):
            parts[split][0].append(rows[np.sort(part)])
            parts[split][1].append(np.full(len(part), label, np.int32))
    train, test = (Split(*map(np.concatenate, parts[split])) for split in SPLITS)
    return Dataset(
        name=NAME, train=train, test=test if len(test) else None, class_names=tuple(sorted(images))
    )


def _classes(path: Path) -> dict[str, np.ndarray]:
    """Return the images [n, 84, 84, 3] of each class in a file."""
    content = read_pickle(path)
    if not isinstance(content, dict) or not {"image_data", "class_dict"} <= content.keys():
        raise FormatError(f"{path} has no image_data and class_dict.")
    images = content["image_data"]
    classes = content["class_dict"]
    found = type(images).__name__
    if isinstance(images, np.ndarray):
        found = f"{images.dtype} {images.shape}"
    if not found.startswith("uint8") or images.shape[1:] != (SIDE, SIDE, 3):
        raise FormatError(
            f"{path}: image_data is {found}; expected is uint8 (n, {SIDE}, {SIDE}, 3)."
        )
    found_rows = {}
    for name, rows in classes.items() if isinstance(classes, dict) else [("class_dict", None)]:
        whole = np.asarray(rows) if isinstance(rows, list | np.ndarray) else np.empty(0)
        fits = whole.ndim == 1 and whole.dtype.kind in "iu" and len(whole)
        if not fits or whole.min() < 0 or whole.max() >= len(images):
            raise FormatError(
                f"{path}: the rows of class {name!r} are no list of numbers below {len(images):,}."
            )
        found_rows[str(name)] = images[whole]
    return found_rows


# This class makes arrays of any length, and objects of raw bytes.
_ARRAY = "numpy.ndarray"


def read_pickle(path: Path) -> Any:
    """Read a pickle of arrays, also one of Python 2 with text in Latin-1.

    Raises:
        FormatError: it names a function or class that arrays do not need, is cut short or
            damaged.
    """
    try:
        with open(path, "rb") as file:
            return _Unpickler(file, encoding="latin1").load()
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
    except Exception as error:
        raise FormatError(f"{path} is cut short, damaged or no pickle: {error}") from error


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (found := _NAMES.get((module.replace("numpy._core", "numpy.core"), name))) is None:
            raise FormatError(
                f"this pickle calls {module}.{name}, which no array needs and which could run "
                "code; it is not read."
            )
        return found


def _start_array(kind: object, shape: tuple[int, ...], code: bytes) -> np.ndarray:
    """Return an empty array, which the pickle then fills; NumPy itself always starts with this
    shape.
    """
    if kind != _ARRAY or shape != (0,):
        raise FormatError(
            f"this pickle starts an array of {kind} with the shape {shape}; it is not read."
        )
    return np.ndarray(shape, np.int8)


def _dtype(code: str, *more: Any) -> np.dtype:
    found = np.dtype(code, *more)
    if found.hasobject:
        raise FormatError("this pickle has an array of Python objects; it is not read.")
    return found


def _scalar(dtype: np.dtype, content: bytes) -> Any:
    return np.frombuffer(content, dtype)[0]


def _filled(
    content: bytes, dtype: np.dtype, shape: tuple[int, ...], order: Literal["C", "F"]
) -> np.ndarray:
    """Return an array whose values are in the pickle, as in protocol 5."""
    return np.frombuffer(content, dtype).reshape(shape, order=order)


def _bytes(text: str, encoding: str) -> bytes:
    """Read bytes as Python 3 writes them for readers of Python 2."""
    if encoding not in ("latin1", "latin-1"):
        raise FormatError(f"this pickle has bytes in the encoding {encoding!r}; it is not read.")
    return text.encode("latin1")


_NAMES: dict[tuple[str, str], Callable | str] = {
    ("numpy", "ndarray"): _ARRAY,
    ("numpy", "dtype"): _dtype,
    ("numpy.core.multiarray", "_reconstruct"): _start_array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy.core.numeric", "_frombuffer"): _filled,
    ("_codecs", "encode"): _bytes,
}
