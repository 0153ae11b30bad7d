"""Cores, threads and memory that this process may use."""

import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path

from fedjax_ssl.errors import ConfigError

# Most devices that a processor is split into.
MOST_DEVICES = 64
# JAX's platforms, and the extra of JAX that installs them.
INSTALL = {"cuda": "cuda12", "gpu": "cuda12", "rocm": "rocm", "tpu": "tpu"}
_ONE_THREAD = "xla_cpu_multi_thread_eigen=false"


def cores() -> int:
    """Count the processor cores that this process may use; a container's share is rounded up."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = Path("/sys/fs/cgroup/cpu.max")
    quota, _, period = (
        share.read_text().strip().partition(" ") if share.is_file() else ("max", "", "")
    )
    return (
        min(here, max(-(-int(quota) // int(period)), 1))
        if quota.isdigit() and period.isdigit()
        else here
    )


def allowed() -> tuple[int, str]:
    """Return the threads that the environment allows, with the variable that says so; by default
    one per core, and "".

    $NPROC is the size of XLA's thread pool. XLA does not read $OMP_NUM_THREADS, but a user who sets
    it means this.
    """
    for name in ("NPROC", "OMP_NUM_THREADS"):
        count = os.environ.get(name, "")
        if count.isdigit() and (name == "NPROC" or int(count) < cores()):
            return max(int(count), 1), name
    return (1, "XLA_FLAGS") if _ONE_THREAD in os.environ.get("XLA_FLAGS", "") else (cores(), "")


def threads() -> int:
    """Count the cores that XLA's thread pool can keep busy."""
    return min(cores(), allowed()[0])


def check_platform() -> None:
    """Raise ConfigError if $JAX_PLATFORMS names an accelerator for which JAX is not installed. JAX
    is not imported.
    """
    asked = os.environ.get("JAX_PLATFORMS", "").split(",")
    if asked[0] not in INSTALL:
        return
    plugins = " ".join(found.name for found in importlib.metadata.entry_points(group="jax_plugins"))
    there = {
        "cuda": "cuda" in plugins,
        "gpu": "cuda" in plugins or "rocm" in plugins,
        "rocm": "rocm" in plugins,
        "tpu": importlib.util.find_spec("libtpu") is not None,
    }
    if not there[asked[0]]:
        raise ConfigError(
            f"JAX_PLATFORMS={','.join(asked)}, but JAX's part for {asked[0]} is not installed: "
            f"pip install 'jax[{INSTALL[asked[0]]}]', or leave JAX_PLATFORMS out, for the CPU"
        )


GIVEN = allowed()  # before `start` sets $NPROC itself


def start(threads: int | None = None, devices: int | None = None) -> None:
    """Make a device of each core, with one thread each; without effect if JAX has computed before.

    A program on one of several devices uses the threads of all. Without arguments, a number of
    devices that was already configured in JAX stays.

    Args:
        threads: threads of all devices together; None: as many as `allowed`.
        devices: number of devices, at most `MOST_DEVICES`; None: one for each core or thread.
    """
    jax = sys.modules.get("jax")  # may not be imported yet
    told = (
        "JAX_NUM_CPU_DEVICES" in os.environ if jax is None else jax.config.jax_num_cpu_devices >= 0
    )
    if told and threads is None and devices is None:
        return
    pool = threads or allowed()[0]
    devices = devices or min(pool, cores())
    forced = "host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if jax is not None:
        try:
            jax.config.update(
                "jax_num_cpu_devices", jax.config.jax_num_cpu_devices if forced else devices
            )
        except RuntimeError:  # JAX has already computed
            return
    elif not forced:
        os.environ["JAX_NUM_CPU_DEVICES"] = str(devices)
    if threads or devices != cores() or pool != cores():
        os.environ["NPROC"] = str(max(pool, devices))


def memory() -> int | None:
    """Count the bytes of memory that this process may use; None if the system does not say."""
    limits = []
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    group = Path("/sys/fs/cgroup/memory.max")  # the limit of a container
    if group.is_file() and (text := group.read_text().strip()).isdigit():
        limits.append(int(text))
    return min(limits, default=None)
