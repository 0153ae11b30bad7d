"""The folder of a run: config, rows, checkpoints and summary, and the progress that a person sees.

Names are imported when they are first used, so that folders are read and reported without jax.
"""

# For users who run mypy --strict.
# mypy: implicit-reexport

from typing import TYPE_CHECKING

from fedjax_ssl.lazy import attach

if TYPE_CHECKING:
    from fedjax_ssl.folder.checkpoint import CheckpointDamaged, CheckpointError, Checkpoints
    from fedjax_ssl.folder.environment import (
        command,
        device_description,
        peak_memory_bytes,
        versions,
    )
    from fedjax_ssl.folder.files import bytes_in_words, write_atomically, write_output
    from fedjax_ssl.folder.folder_lock import FolderLocked, FolderMended, RunFolderError
    from fedjax_ssl.folder.progress import no_protection
    from fedjax_ssl.folder.run_folder import RunFolder
    from fedjax_ssl.folder.stored_run import StoredRun, find_runs, read_run

__getattr__, __dir__ = attach(__name__)
