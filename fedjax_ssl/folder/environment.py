"""The machine of a run: versions, commit, device and memory."""

import importlib.metadata
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from fedjax_ssl import processor
from fedjax_ssl.errors import counted

_PACKAGES = ("fedjax_ssl", "jax", "jaxlib", "flax", "optax", "numpy")


def versions(packages: Iterable[str] = _PACKAGES) -> dict[str, str]:
    """Return the versions that affect a run's numbers: Python, the packages, and the commit in a
    checkout.

    Returns:
        Name to version; a package without installed metadata is left out, "git_commit" is there
        only when this package is tracked in a Git checkout and ends in "-dirty" when tracked files
        were changed.
    """
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    commit = git_commit()
    return found if commit is None else {**found, "git_commit": commit}


def command() -> str:
    """Return the command that started this process, or the parent of this worker, as typed.

    A module of this package is written as `python -m`, an installed program by its name.
    """
    program, *rest = sys.argv
    path = Path(program).resolve()
    package = Path(__file__).resolve().parent.parent
    if path.suffix != ".py":
        start = [path.name] if path.is_file() else ["python", program]
    elif path.is_relative_to(package):
        parts = path.relative_to(package.parent).with_suffix("").parts
        start = ["python", "-m", ".".join(parts).removesuffix(".__main__")]
    else:
        start = ["python", program]
    return shlex.join(word for word in [*start, *rest] if word)


def git_commit() -> str | None:
    """Return the commit of the checkout that this package runs from, or None when there is none or
    no Git.

    An installed package inside somebody else's checkout is not tracked there, and so has no commit.
    """
    here = Path(__file__).resolve()
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return None
    return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def device_description(used: int | None = None) -> str:
    """Return the devices that JAX uses in words: "2 x NVIDIA H200" or "CPU (4 cores, 1 of 4
    devices)".

    Args:
        used: devices that share a run's work; None: all that there are.
    """
    import jax  # imported here, because folders are read without it

    devices = jax.devices()
    if devices[0].platform != "cpu":
        kind = devices[0].device_kind
        return kind if len(devices) == 1 else f"{len(devices)} x {kind}"
    parts = [counted(processor.cores(), "core")]
    if processor.threads() != processor.cores():
        because = (
            f" as ${processor.GIVEN[1]} says" if processor.threads() == processor.GIVEN[0] else ""
        )
        parts.append(counted(processor.threads(), "thread") + because)
    some = "" if used in (None, len(devices)) else f"{used} of "
    return f"CPU ({', '.join([*parts, some + counted(len(devices), 'device')])})"


def peak_memory_bytes() -> int:
    """Return the most memory in use so far, in bytes.

    Where the backend counts it (GPU, TPU), this is the peak of the fullest local device. Otherwise
    it is the peak resident size of this process, 0 where the operating system does not tell.
    """
    import jax

    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [stat["peak_bytes_in_use"] for stat in stats if "peak_bytes_in_use" in stat]
    if peaks:
        return int(max(peaks))
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
