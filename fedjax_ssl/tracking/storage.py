"""What is said where a disk does not take what a run writes: it is full, read-only, or fails."""

import contextlib
import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from fedjax_ssl.errors import UserError
from fedjax_ssl.tracking.progress import bytes_in_words

_FULL = (errno.ENOSPC, errno.EDQUOT)


class StorageError(UserError):
    """A file of a run could not be written; what was saved before is untouched.

    Attributes:
        exit_code: of a command that ends by it, sysexits.h's "error while doing I/O".
    """

    exit_code = 74


@contextlib.contextmanager
def storing(path: Path, safe: Callable[[], str], size: int | None = None) -> Iterator[None]:
    """Turns an error of the operating system into a `StorageError`.

    Args:
        path: what is being written, where the error does not name it.
        safe: what is on the disk all the same, as a sentence.
        size: bytes that are about to be written, where they are known.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:  # a library's, about the content
            raise
        file = Path(error.filename or path)
        needed = "" if size is None else f" It takes {bytes_in_words(size)}."
        what = f"{path} cannot be written: {error.strerror} ({file.name}).{needed}{_free(error, path)}"
        raise StorageError(f"{what} {safe()}") from error


def _free(error: OSError, path: Path) -> str:
    """How much the disk has left, and what to do."""
    if error.errno not in _FULL:
        return ""
    folder = next(one for one in (path, *path.absolute().parents) if one.exists())
    free = shutil.disk_usage(folder).free
    many = " or it has no free inode (`df -i`)" if free > 2**20 else ""
    return f" The disk has {bytes_in_words(free)} left{many}. Make room there, or move the folder."
