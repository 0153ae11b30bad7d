"""Shared parts of all commands: messages instead of tracebacks, and the compilation cache."""

import contextlib
import ctypes
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax

from fedjax_ssl import data, folder, gpus, own_code, processor, runs
from fedjax_ssl.config import ConfigError, ConfigNote, check_field
from fedjax_ssl.errors import INTERRUPTED, UserError, counted, note

USER_ERRORS = (
    UserError,
    ConfigError,
    data.DatasetUnavailable,
    folder.CheckpointError,
    folder.FolderLocked,
    folder.RunFolderError,
)


# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3


def use_compilation_cache() -> None:
    """Keep compiled programs between runs, in $JAX_COMPILATION_CACHE_DIR or
    ~/.cache/fedjax_ssl/compiled.
    """
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update(
            "jax_compilation_cache_dir", str(Path.home() / ".cache" / "fedjax_ssl" / "compiled")
        )
    # Small programs too: a run has hundreds, which took half of its second start.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def map_large_buffers() -> bool:
    """Make the C library map every buffer of 16 MB or more separately, and keep the memory of
    smaller ones.

    glibc raises that threshold by itself, up to 32 MB, when a large buffer is freed. On a virtual
    machine the second and every later call of a program of convolutions then took 2.7 times as long
    as the first one. A program's own buffer is that large; the scratch of single operations is not,
    and mapping that takes time. A fixed threshold also makes glibc return the end of its heap
    whenever 128 kB are free there, and the system then clears that scratch memory in every local
    step. So up to 64 MB of it are kept (docs/speed.md).

    Returns:
        Whether the C library supports this; only glibc does.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = {_M_MMAP_THRESHOLD: 2**24, _M_TRIM_THRESHOLD: 2**26, _M_TOP_PAD: 2**24}
    return all(mallopt(name, value) for name, value in settings.items())


def use_processor(threads: int | None, devices: int | None = None) -> None:
    """Configure the start of JAX's backend; without effect after the first computation.

    Args:
        threads: threads of the pool; None: one per core, or what the environment allows.
        devices: devices that share each cohort; None: one per thread.

    Raises:
        ConfigError: less than one thread, $JAX_PLATFORMS names a platform that is not installed, or
            other processes fill the GPU.
    """
    check_field("threads", threads)
    processor.check_platform()
    gpus.take_what_is_free()
    cores = processor.cores()
    pool, variable = processor.allowed()
    # The config is checked later, and then refuses nonsense.
    if not isinstance(devices, int) or not 0 < devices <= processor.MOST_DEVICES:
        devices = None
    if devices and devices > cores:
        note(
            f"config.federated.devices is {devices} on {counted(cores, 'core')}: more devices do "
            "not make it faster"
        )
    elif devices and (threads or pool) < devices:
        given = f"config.threads is {threads}" if threads else f"${variable} is {pool}"
        note(f"{given}; {devices} devices need {devices}")
    processor.start(threads, devices)


def leave(error: BaseException) -> int:
    """End a command on an error, with one message if it is the user's or comes from the user's own
    code.

    Args:
        error: error that reached the command. With $FEDJAX_SSL_DEBUG it is raised again. The
            message of a KeyboardInterrupt says what the same command does next; the interrupted
            code sets it.

    Returns:
        The exit code: 2, the error's own, or 130 after Ctrl-C.

    Raises:
        BaseException: `error`, if it is a fault of this package.
    """
    if isinstance(error, KeyboardInterrupt):
        return runs.leave(INTERRUPTED, "\n" + "; ".join(["stopped", *map(str, error.args)]))
    message = None if os.environ.get("FEDJAX_SSL_DEBUG") else message_of(error)
    if message is None:
        raise error
    return runs.leave(getattr(error, "exit_code", 2), f"error: {message}")


def message_of(error: BaseException) -> str | None:
    """Return the message for a mistake in settings, files or the user's own code, with its place;
    None: a fault of this package.
    """
    if isinstance(error, OSError) and error.filename is not None and own_code.place(error) is None:
        return f"{error.filename} cannot be used: {error.strerror}"
    if isinstance(error, RuntimeError) and str(error).startswith("Unable to initialize backend"):
        # JAX's own sentence for a missing driver or device.
        platforms = os.environ.get("JAX_PLATFORMS")
        said = f" (JAX_PLATFORMS={platforms})" if platforms else ""
        return f"JAX finds no device to compute on{said}: {str(error).splitlines()[0]}"
    if not isinstance(error, USER_ERRORS):
        return own_code.blame(error)
    cause = error.__cause__
    place = None if cause is None or isinstance(cause, ConfigError) else own_code.place(cause)
    return str(error) if place is None or place in str(error) else f"{error} ({place})"


def print_note(text: str) -> None:
    """Show a note."""
    print(f"note: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def notes_instead_of_warnings(
    show_note: Callable[[str], None] = print_note, shown: Iterable[str] = ()
) -> Iterator[set[str]]:
    """Show warnings of this package as one line each, once, without the source line that Python
    prints.

    Args:
        show_note: shows one note; a worker sends it to its parent process.
        shown: notes that were already shown.

    Yields:
        All notes shown so far.
    """
    said = set(shown)

    def show(message: Warning | str, *details: Any, **more: Any) -> None:
        if str(message) not in said:
            said.add(str(message))
            show_note(str(message))

    with warnings.catch_warnings():
        for category in (ConfigNote, folder.CheckpointDamaged, folder.FolderMended):
            warnings.simplefilter("always", category)
        warnings.showwarning = show
        yield said
