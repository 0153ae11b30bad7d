"""NVIDIA GPUs of this machine, as their driver lists them, and how processes share them."""

import csv
import functools
import importlib.metadata
import os
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from fedjax_ssl.errors import ConfigError, counted, note

# With fewer bytes, no process is worth starting: CUDA and its libraries take about half of it.
LEAST = 2**30
# Share of a GPU's memory that JAX takes by default, and share of the free memory for processes
# here.
_OF_ALL = 0.75
_OF_FREE = 0.9
_SHARE = "XLA_CLIENT_MEM_FRACTION"
# Variables by which a user sets the memory of a process.
_MEMORY = (
    _SHARE,
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
)
_LIST = ("nvidia-smi", "--query-gpu=uuid,name,memory.total,memory.free")


class Gpu(NamedTuple):
    """A GPU that JAX can compute on."""

    id: str  # name in $CUDA_VISIBLE_DEVICES
    name: str
    total: int  # bytes of its memory
    free: int  # bytes not taken by any process


@functools.cache
def found() -> tuple[Gpu, ...]:
    """List the GPUs that this process may use, without JAX, which would take their memory.

    Returns:
        Empty if JAX is configured for something else or lacks CUDA support, or if the driver does
        not list GPUs.
    """
    asked = os.environ.get("JAX_PLATFORMS", "").split(",")[0]
    plugins = [one.name for one in importlib.metadata.entry_points(group="jax_plugins")]
    if asked not in ("", "cuda", "gpu") or not any("cuda" in name for name in plugins):
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = () if visible is None else (f"--id={visible}",)
    command = [*_LIST, "--format=csv,noheader,nounits", *chosen]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    rows = list(csv.reader(said.stdout.splitlines(), skipinitialspace=True))
    if not all(total.isdigit() and free.isdigit() for _, _, total, free in rows):
        return ()  # a GPU that shares memory with the processor reports no number
    return tuple(
        Gpu(id, name, 2**20 * int(total), 2**20 * int(free)) for id, name, total, free in rows
    )


def environment(gpus: Sequence[Gpu], place: int, processes: int) -> dict[str, str]:
    """Return the environment variables that bind a process to a GPU, with its part of the memory.

    Args:
        gpus: GPUs of the machine.
        place: number of the process, from 0.
        processes: number of processes at a time; they are dealt to the GPUs in turn.

    Returns:
        Variables of its environment; none without GPUs.
    """
    if not gpus:
        return {}
    bound = {"CUDA_VISIBLE_DEVICES": gpus[place % len(gpus)].id}
    return bound | _memory(gpus[place % len(gpus)], _sharers(place, len(gpus), processes))


def check(gpus: Sequence[Gpu], processes: int) -> None:
    """Refuse more processes than fit into the free memory; note if other processes fill a GPU.

    Args:
        gpus: GPUs of the machine.
        processes: number of processes at a time.

    Raises:
        ConfigError: a process would have less than `LEAST`.
    """
    for place, gpu in enumerate(gpus[:processes]):
        sharers = _sharers(place, len(gpus), processes)
        has = f"{gpu.name} has {_gigabytes(gpu.free)} of {_gigabytes(gpu.total)} GB free"
        if gpu.free < LEAST:
            raise ConfigError(
                f"{has}: other processes fill it, which nvidia-smi names. Wait for them, or name "
                "another GPU with CUDA_VISIBLE_DEVICES"
            )
        if _OF_FREE * gpu.free / sharers < LEAST:
            most = int(_OF_FREE * gpu.free / LEAST)
            raise ConfigError(
                f"{has}, too little for {sharers} processes on it: at most {most}, of at least "
                f"{_gigabytes(LEAST)} GB each; lower --workers, which is {processes} on "
                f"{counted(len(gpus), 'GPU')}"
            )
        if gpu.free < _OF_ALL * gpu.total:
            note(f"{has}: other processes have the rest, and this command goes by what is free")


def take_what_is_free() -> None:
    """Make JAX, before it computes, take no more than the free memory of its GPU.

    Raises:
        ConfigError: almost nothing is free.
    """
    if set(_MEMORY).isdisjoint(os.environ):
        check(found()[:1], 1)
        os.environ.update(*(_memory(gpu, 1) for gpu in found()[:1]))


def _sharers(place: int, gpus: int, processes: int) -> int:
    """Count the processes on the GPU of a process."""
    return len(range(place % gpus, processes, gpus))


def _memory(gpu: Gpu, sharers: int) -> dict[str, str]:
    """Return the variable for a process's share of a GPU; empty if JAX's own choice, or the user's,
    is enough.
    """
    share = _OF_FREE * gpu.free / gpu.total / sharers
    own_choice = sharers == 1 and gpu.free >= _OF_ALL * gpu.total
    return {} if own_choice or not set(_MEMORY).isdisjoint(os.environ) else {_SHARE: f"{share:.3f}"}


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:.1f}"
