# mypy: implicit-reexport
"""One run from its config to its results, in the order of reading: build, compile, loop, record,
checkpoint, predict.

Names are imported when they are first used, so that folders are read and reported without jax.
"""

from typing import TYPE_CHECKING

from fedjax_ssl.lazy import attach

if TYPE_CHECKING:
    from fedjax_ssl.runs.build import Experiment, build_method, federate, load_experiment
    from fedjax_ssl.runs.checkpoint import CheckpointDamaged, CheckpointError, Checkpoints
    from fedjax_ssl.runs.compile import Shared
    from fedjax_ssl.runs.environment import command, device_description, peak_memory_bytes, versions
    from fedjax_ssl.runs.files import bytes_in_words, write_atomically, write_output
    from fedjax_ssl.runs.folder import FolderLocked, FolderMended, RunFolder, RunFolderError
    from fedjax_ssl.runs.loop import Point, run, run_batch
    from fedjax_ssl.runs.processes import (
        PREEMPTED,
        STALLED,
        Team,
        leave,
        run_devices,
        settings,
        share_out,
        start,
    )
    from fedjax_ssl.runs.record import NoRecord, Record
    from fedjax_ssl.runs.stored_run import StoredRun, find_runs, read_run

__getattr__, __dir__ = attach(__name__)
