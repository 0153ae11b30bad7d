"""Give all commands the same messages instead of tracebacks, and the compilation cache."""

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


# from glibc's malloc.h
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
    # Small programs too: a run has hundreds, and they were half of its second start.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def map_large_buffers() -> bool:
    """Make the C library map every buffer of 16 MB or more anew, and keep the memory of smaller
    ones.

    glibc raises that threshold by itself, up to 32 MB, when a large buffer is freed. On a virtual
    machine the second and every later call of a program of convolutions then took 2.7 times as long
    as the first one. A program's own buffer is that large; the scratch of single operations is not,
    and mapping that takes time. A threshold that is given also makes glibc give the end of its heap
    back whenever 128 kB are free there: that scratch is then cleared by the system in every local
    step. So up to 64 MB of it are kept (docs/speed.md).

    Returns:
        Whether the C library could be told so; only glibc can.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = {_M_MMAP_THRESHOLD: 2**24, _M_TRIM_THRESHOLD: 2**26, _M_TOP_PAD: 2**24}
    return all(mallopt(name, value) for name, value in settings.items())


def use_processor(threads: int | None, devices: int | None = None) -> None:
    """Set with what JAX's backend starts; without effect once something was computed.

    Args:
        threads: threads of the pool; None: one per core, or what the environment allows.
        devices: that share each cohort; None: one per thread.

    Raises:
        ConfigError: less than one thread, $JAX_PLATFORMS names what JAX has no part for, or other
            processes fill the GPU.
    """
    check_field("threads", threads)
    processor.check_platform()
    gpus.take_what_is_free()
    cores = processor.cores()
    pool, variable = processor.allowed()
    # A config is checked later; what makes no sense here is refused there.
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
    """End a command on an error: one message where it is the user's, or was raised in code of the
    user's own.

    Args:
        error: that reached the command. With $FEDJAX_SSL_DEBUG set it is raised again. The message
            of a KeyboardInterrupt says what the same command does now; only who was at work knows
            what is kept.

    Returns:
        The exit code: 2, what the error says of its own, or 130 after Ctrl-C.

    Raises:
        BaseException: `error`, where it is a fault of ours.
    """
    if isinstance(error, KeyboardInterrupt):
        return runs.leave(INTERRUPTED, "\n" + "; ".join(["stopped", *map(str, error.args)]))
    message = None if os.environ.get("FEDJAX_SSL_DEBUG") else message_of(error)
    if message is None:
        raise error
    return runs.leave(getattr(error, "exit_code", 2), f"error: {message}")


def message_of(error: BaseException) -> str | None:
    """Say what a mistake in settings, files or the user's own code was, and where; None: it is a
    fault of ours.
    """
    if isinstance(error, OSError) and error.filename is not None and own_code.place(error) is None:
        return f"{error.filename} cannot be used: {error.strerror}"
    if isinstance(error, RuntimeError) and str(error).startswith("Unable to initialize backend"):
        # JAX's own sentence for a driver or a device that is not there.
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
    """Show what our code warns about as one line each, once, without the source line that Python
    prints.

    Args:
        show_note: what shows one; a worker tells it to the process that started it.
        shown: notes that were shown before.

    Yields:
        All that were shown so far.
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
