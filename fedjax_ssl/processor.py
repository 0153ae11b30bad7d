"""What this process may use of the processor."""

import os


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> int:
    """Cores that XLA's pool of threads can keep busy; $NPROC is its size, one thread per core by default."""
    given = os.environ.get("NPROC", "")
    return min(cores(), max(int(given), 1)) if given.isdigit() else cores()
