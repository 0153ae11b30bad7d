"""What a run leaves behind: its folder, metric rows, checkpoints, progress, summary and curves."""

from fedjax_ssl.tracking.checkpoints import CheckpointDamaged, CheckpointError, Checkpoints
from fedjax_ssl.tracking.curves import plot_curves
from fedjax_ssl.tracking.environment import command, device_description, git_commit, peak_memory_bytes, versions
from fedjax_ssl.tracking.files import write_atomically, write_output
from fedjax_ssl.tracking.lock import FolderLock, FolderLocked
from fedjax_ssl.tracking.metric_log import MetricLog
from fedjax_ssl.tracking.progress import Progress, bytes_in_words
from fedjax_ssl.tracking.record import NoRecord, Record
from fedjax_ssl.tracking.run_folder import (
    SEARCH_FILE,
    SWEEP_FILE,
    WATCHING,
    ConfigMismatch,
    FolderMended,
    RunFolder,
    RunFolderError,
    config_differences,
    flat_config,
    read_stored,
)
from fedjax_ssl.tracking.storage import StorageError
from fedjax_ssl.tracking.stored_run import StoredRun, find_runs, natural_order, read_run
from fedjax_ssl.tracking.summary import read_summary, summarize, write_summary
from fedjax_ssl.tracking.terminal import Console
from fedjax_ssl.tracking.writers import (
    WRITERS,
    WriterFailed,
    Writers,
    WriterSettings,
    check_writers,
    open_writers,
)
