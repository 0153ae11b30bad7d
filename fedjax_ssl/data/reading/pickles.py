"""Pickles of arrays, without what makes pickles dangerous: arrays, text, numbers, lists and dicts,
or nothing.

A pickle names the functions that its reader calls. Here a handful of names stand for functions of
this file, which make arrays and nothing else; any other name ends the reading.
"""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedjax_ssl.data.reading.formats import DAMAGED, LARGEST, FormatError

# stands for the class, which makes arrays of any length, and objects of raw bytes
_ARRAY = "numpy.ndarray"


def read_pickle(path: Path) -> Any:
    """Read a pickle of arrays, also one of Python 2 with text in Latin-1.

    Raises:
        FormatError: it names a function or class that arrays do not need, is longer than 8 GiB, cut
            short or damaged.
    """
    length = path.stat().st_size
    if length > LARGEST:
        raise FormatError(f"{path} has {length:,} bytes; more than {LARGEST:,} are not read.")
    try:
        with open(path, "rb") as file:
            return _Unpickler(file, encoding="latin1").load()
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
    except (pickle.UnpicklingError, *DAMAGED) as error:
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
    """Return an array whose values stand in the pickle, as protocol 5 has them."""
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
