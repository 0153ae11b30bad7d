"""Cores, threads and memory that this process may use."""

import os
from pathlib import Path


def cores() -> int:
    """Count the processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> int:
    """Count the cores that XLA's pool of threads can keep busy; $NPROC is its size, one thread per core by default."""
    given = os.environ.get("NPROC", "")
    return min(cores(), max(int(given), 1)) if given.isdigit() else cores()


def memory() -> int | None:
    """Count the bytes of the machine's memory that this process may use; None where the system does not tell."""
    limits = []
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    group = Path("/sys/fs/cgroup/memory.max")  # the limit of a container
    if group.is_file() and (text := group.read_text().strip()).isdigit():
        limits.append(int(text))
    return min(limits, default=None)
