"""Which process of a run this is, from `config.distributed` and the environment."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedjax_ssl.config import ConfigError, check_field

# Exit codes, beside 1 (exception), 2 (mistake of the user) and 130 (Ctrl-C).
STALLED = 3
PREEMPTED = 75  # sysexits.h's "temporary failure, try again"
VARIABLES = {
    "coordinator": "FEDJAX_SSL_COORDINATOR",
    "num_processes": "FEDJAX_SSL_NUM_PROCESSES",
    "process_id": "FEDJAX_SSL_PROCESS_ID",
}
_LIMITS = ("heartbeat_seconds", "shutdown_seconds", "initialization_seconds", "stall_minutes")


class Settings(NamedTuple):
    """Of one process in a run over several; the first three are None where the cluster tells them."""

    coordinator: str | None  # "host:port" of process 0
    num_processes: int | None
    process_id: int | None
    heartbeat_seconds: int  # without a sign of life: then a process counts as dead
    shutdown_seconds: int  # for which a process waits for the others when it ends
    initialization_seconds: int  # for which processes wait for each other when they start
    stall_minutes: float  # without a finished block of rounds: then a process gives up; 0: never


def settings(section: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Settings | None:
    """Reads `config.distributed`; what is None there is looked up in the environment.

    Args:
        section: `config.distributed`.
        environment: may hold FEDJAX_SSL_COORDINATOR, FEDJAX_SSL_NUM_PROCESSES and FEDJAX_SSL_PROCESS_ID, so that
            the same command can be given on every machine.

    Returns:
        None: the run is one process.

    Raises:
        ConfigError: naming the field, its value and what is allowed.
    """
    limits = {field: section[field] for field in _LIMITS}
    for field, value in limits.items():
        check_field(f"distributed.{field}", value)
    given = {
        field: section[field] if section[field] is not None else environment.get(name) or None
        for field, name in VARIABLES.items()
    }
    there = [field for field, value in given.items() if value is not None]
    if section["auto"]:
        if there:
            raise ConfigError(
                f"config.distributed.auto takes {' and '.join(there)} from the cluster (Slurm, Open MPI, TPU, GKE), "
                f"but {_places(there)} is set as well; use one of them"
            )
        return Settings(None, None, None, **limits)
    if not there:
        return None
    if len(there) < len(VARIABLES):
        missing = [field for field in VARIABLES if field not in there]
        raise ConfigError(
            f"config.distributed has {' and '.join(there)} but no {' and no '.join(missing)}. A run over several "
            f"processes needs all three: give {_places(missing)}; a run of one process needs none"
        )
    count, index = (_whole_number(field, given[field]) for field in ("num_processes", "process_id"))
    if count < 1:
        raise ConfigError(f"config.distributed.num_processes is {count}; it must be at least 1")
    if not 0 <= index < count:
        raise ConfigError(
            f"config.distributed.process_id is {index}; with {count} processes it must be 0..{count - 1}, another one "
            "in each process"
        )
    coordinator = str(given["coordinator"])
    _check_address(coordinator)
    return None if count == 1 else Settings(coordinator, count, index, **limits)


def _places(fields: list[str]) -> str:
    return " and ".join(f"--config.distributed.{field} (or ${VARIABLES[field]})" for field in fields)


def _whole_number(field: str, value: Any) -> int:
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"${VARIABLES[field]} is {value!r}; it must be a whole number") from None


def _check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(
            f"config.distributed.coordinator is {address!r}; it must be host:port of process 0, for example "
            "10.0.0.1:45671"
        )
