"""One process at a time in a run folder."""

import contextlib
import errno
import json
import os
import socket
import time
import warnings
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_NO_LOCKING = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


class FolderLocked(RuntimeError):
    """Another process works in this run folder."""


class FolderLock:
    """Holds a folder for this process until `release`, or until the process ends in whatever way.

    The operating system keeps the lock (flock on `folder/.lock`) and drops it with the process, so a lock
    left by a killed process needs no clean-up and a reused process number cannot be mistaken for the owner.
    The file's content, process and host, serves the message only. Where the file system or the operating
    system offers no such locks, a warning says so and the run goes on without one.
    """

    def __init__(self, folder: str | os.PathLike):
        """Takes the lock.

        Args:
            folder: an existing folder.

        Raises:
            FolderLocked: a living process holds it; the message names process, host and start.
        """
        self._path = Path(folder) / ".lock"
        self._file: IO[str] | None = open(self._path, "a+", encoding="utf-8")  # noqa: SIM115
        try:
            self._take(self._file)
        except BaseException:
            self.release()
            raise

    def _take(self, file: IO[str]) -> None:
        try:
            if fcntl is None:
                raise OSError(errno.ENOSYS, "no flock")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderLocked(
                f"{self._path.parent} is in use by {self._owner(file)}. "
                "A run folder serves one run at a time: wait for it, stop it, or give another --workdir."
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKING:
                raise
            warnings.warn(
                f"{self._path.parent} is on a file system without locks: do not start a second run there.", stacklevel=4
            )
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        with contextlib.suppress(OSError):  # a full disk: the lock holds, only the message of others knows less
            file.truncate(0)
            os.write(file.fileno(), json.dumps(owner).encode())

    @staticmethod
    def _owner(file: IO[str]) -> str:
        file.seek(0)
        try:
            owner = json.load(file)
            return f"process {owner['pid']} on host {owner['host']} (since {owner['since']})"
        except (ValueError, KeyError, TypeError):
            return "another process"

    def release(self) -> None:
        """Gives the folder back; a second call does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()
