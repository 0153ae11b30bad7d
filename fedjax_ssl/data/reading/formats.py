"""Files in an unknown format, cut short or damaged: one error that names them; and members of tar
archives.
"""

import contextlib
import tarfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, TypeVar

T = TypeVar("T")


class FormatError(ValueError):
    """A file is not in its format, or is cut short or damaged; the message names it."""


@contextlib.contextmanager
def damage(path: Path | str, where: str = "") -> Iterator[None]:
    """Turn a library's errors about broken bytes into one FormatError that names the file."""
    try:
        yield
    except FormatError:
        raise
    except Exception as error:
        raise FormatError(
            f"{path}{where} is cut short, damaged or in another format: {error}"
        ) from error


def read_tar(
    path: Path, wanted: Collection[str], read: Callable[[str, IO[bytes], int], T]
) -> dict[str, T]:
    """Read members of a compressed tar archive, without writing them to the paths in it.

    Args:
        path: the archive.
        wanted: file names, in any folder of the archive; all of them must exist.
        read: turns file name, content and length in bytes of a member into a value.

    Returns:
        The values by file name.

    Raises:
        FormatError: the file is no such archive, or a member is not there.
    """
    found: dict[str, T] = {}
    others = []
    with damage(path), tarfile.open(path, "r:*") as archive:
        for member in archive:
            name = Path(member.name).name
            file = archive.extractfile(member) if member.isfile() else None
            if file is None or name not in wanted:
                others.append(name)
                continue
            found[name] = read(name, file, member.size)
    if missing := [name for name in wanted if name not in found]:
        raise FormatError(
            f"{path} has no {', '.join(missing)}; found: "
            f"{', '.join([*found, *others]) or 'nothing'}."
        )
    return found
