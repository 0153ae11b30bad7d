"""checkpoints/rows.jsonl: a second copy of the metric rows; every checkpoint names the beginning that is its own.

Rows are appended before the checkpoint that counts them is saved. So a checkpoint stays as small as the state, and what
is written for the rows grows with their number, not with its square.
"""

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedjax_ssl.runs.files import write_atomically

Mark = Mapping[str, Any]  # "bytes": how many there are, "sha256": of these


class RowsCopy:
    """The copy of one run, extended at every checkpoint.

    Attributes:
        path: the file.
    """

    def __init__(self, checkpoint_folder: Path):
        """Reads and writes nothing yet.

        Args:
            checkpoint_folder: made by the first `extend`.
        """
        self.path = checkpoint_folder / "rows.jsonl"
        self._digest, self._size = hashlib.sha256(), 0

    def find(self, mark: Mark | None, log: bytes) -> bytes | None:
        """Finds the rows of a checkpoint.

        Args:
            mark: what `extend` returned before the checkpoint was saved, None where there is no such checkpoint.
            log: what `metrics.jsonl` holds; its beginning is taken where it is what the mark names.

        Returns:
            The rows' lines; None where neither file has them.
        """
        parts = (_beginning(log, mark), _beginning(self._content(), mark))
        return next((part for part in parts if part is not None), None)

    def start(self, log: bytes) -> None:
        """Has the copy hold what the log holds; call it before `extend`.

        Args:
            log: what `metrics.jsonl` holds when a run starts or goes on.
        """
        if self.path.is_dir():
            shutil.rmtree(self.path)
        if log != self._content():
            self.path.parent.mkdir(exist_ok=True)
            write_atomically(self.path, log)
        self._digest, self._size = hashlib.sha256(log), len(log)

    def extend(self, lines: Iterable[bytes]) -> Mark:
        """Appends rows and puts them on the disk before it returns.

        Args:
            lines: of `metrics.jsonl` since the last call.

        Returns:
            What a checkpoint has to hold so that `restore` finds all rows so far.
        """
        self.path.parent.mkdir(exist_ok=True)
        with open(self.path, "ab") as file:
            for line in lines:
                file.write(line)
                self._digest.update(line)
                self._size += len(line)
            file.flush()
            os.fsync(file.fileno())
        return {"bytes": self._size, "sha256": self._digest.hexdigest()}

    def _content(self) -> bytes:
        return self.path.read_bytes() if self.path.is_file() else b""


def _beginning(content: bytes, mark: Mark | None) -> bytes | None:
    """The part of a file that a mark names, None where the file has other bytes."""
    if mark is None:
        return None
    part = content[: mark["bytes"]]
    return part if hashlib.sha256(part).hexdigest() == mark["sha256"] else None
