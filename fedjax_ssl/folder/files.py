"""Atomic writing of files, and values as JSON."""

import contextlib
import errno
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from fedjax_ssl.errors import UserError


class Closing:
    """A context manager that calls `close` at its end."""

    def close(self) -> None:
        """Release the resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NAMES = {repr(value): name for name, value in _NON_FINITE.items()}


def write_atomically(
    path: str | os.PathLike, content: str | bytes | Iterable[bytes | memoryview]
) -> None:
    """Write a file so that a reader, or a run after a crash, finds the old content or the new,
    never a part.

    The content goes to a temporary file beside it, to the disk, and then takes the file's name. The
    temporary name is fixed: what a killed process left behind is overwritten by the next one. So
    one process at a time may write a given path; the lock of the run folder sees to that.

    Args:
        path: the file; its folder must exist.
        content: text, written as UTF-8, bytes, or pieces of bytes that are made as they are
            written.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            whole = content.encode() if isinstance(content, str) else content
            file.writelines([whole] if isinstance(whole, bytes) else whole)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (Exception, KeyboardInterrupt):
        with contextlib.suppress(OSError):  # the first error is the one to report
            temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_output(path: Path, content: str | bytes) -> None:
    """Write the output of a command for --output, with its parent folders.

    Raises:
        UserError: it cannot be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror}. Give another --output."
        ) from error


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; file systems that do not support this for folders are ignored."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def plain_value(value: Any) -> Any:
    """Turn NumPy and JAX scalars, tuples and paths into what JSON knows.

    A 16 or 32 bit float becomes the shortest decimal that reads back as the same value (0.1, not
    0.10000000149011612).

    Args:
        value: None, a bool, number, string, path, array with one element, or lists and mappings of
            these.

    Returns:
        The same with Python types only; non-finite floats stay floats.

    Raises:
        TypeError: another type, or an array with several elements.
    """
    if hasattr(value, "dtype") and getattr(value, "size", 0) == 1:
        scalar = np.asarray(value).reshape(())[()]
        if isinstance(scalar, np.float16 | np.float32):
            return float(str(scalar))
        return scalar.item() if isinstance(scalar, np.generic) else float(scalar)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(
        f"{type(value).__name__} {str(value)[:60]!r} is no single number, string or None"
    )


def encode_json(value: Any, *, indent: int | None = None) -> str:
    """Write valid JSON; the non-finite floats become the strings "NaN", "Infinity" and "-Infinity".

    JSON has no such numbers, and null would look like a missing value. Python's float(), NumPy and
    pandas read these strings as the numbers they stand for.
    """
    text = json.dumps(
        _map_leaves(_name_non_finite, plain_value(value)), indent=indent, allow_nan=False
    )
    # A list of plain values is on one line. Strings have no raw line break, so all line breaks are
    # between values.
    return (
        text
        if indent is None
        else re.sub(r"\[\n[^][{}]*\]", lambda found: re.sub(r"\n\s*", " ", found[0]), text)
    )


def decode_json(text: str) -> Any:
    """Read what encode_json wrote, with the non-finite floats as floats again."""
    return _map_leaves(
        lambda one: _NON_FINITE.get(one, one) if isinstance(one, str) else one, json.loads(text)
    )


def _map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to all leaves that are no mapping or list; `jax.tree.map` would sort
    names.
    """
    if isinstance(value, dict):
        return {name: _map_leaves(change, item) for name, item in value.items()}
    return (
        [_map_leaves(change, item) for item in value] if isinstance(value, list) else change(value)
    )


def _name_non_finite(value: Any) -> Any:
    return _NAMES.get(repr(value), value) if isinstance(value, float) else value


_FULL = (errno.ENOSPC, errno.EDQUOT)


class StorageError(UserError):
    """A file of a run could not be written; what was saved before is untouched.

    Attributes:
        exit_code: exit code of a command that ends by it, sysexits.h's "error while doing I/O".
    """

    exit_code = 74


@contextlib.contextmanager
def storing(path: Path, safe: Callable[[], str], size: int | None = None) -> Iterator[None]:
    """Turn an error of the operating system into a `StorageError`.

    Args:
        path: file that is being written, where the error does not name it.
        safe: gives a sentence about the files that are on the disk all the same.
        size: bytes that are about to be written, where they are known.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:  # a library's error about the content
            raise
        file = Path(error.filename or path)
        needed = "" if size is None else f" It takes {bytes_in_words(size)}."
        what = (
            f"{path} cannot be written: {error.strerror} ({file.name}).{needed}{_free(error, path)}"
        )
        raise StorageError(f"{what} {safe()}") from error


def _free(error: OSError, path: Path) -> str:
    """Return the free space of the disk and advice, in words."""
    if error.errno not in _FULL:
        return ""
    folder = next(one for one in (path, *path.absolute().parents) if one.exists())
    free = shutil.disk_usage(folder).free
    many = " or it has no free inode (`df -i`)" if free > 2**20 else ""
    return f" The disk has {bytes_in_words(free)} left{many}. Make room there, or move the folder."


def bytes_in_words(count: float) -> str:
    """Write a count with a decimal prefix, 12,300,000 as "12.3 MB"."""
    power = min(4, int(math.log10(count) // 3)) if count >= 1000 else 0
    return f"{count / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"
