"""How the processes of a run find each other at its start, and end together whatever happens to one of them.

By default a process with an exception waits at its exit for the others, while they wait for it in the next sum.
Nothing ends and nothing is printed. So here it ends at once.
"""

import logging
import os
import socket
import sys
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NoReturn

import jax

from fedjax_ssl.config import ConfigError
from fedjax_ssl.distributed.settings import PREEMPTED, Settings, settings
from fedjax_ssl.distributed.team import Team, name_of
from fedjax_ssl.distributed.watchdog import Watchdog

# The runtime aborts with a stack trace at its own limit; the message comes before that.
_GRACE_SECONDS = 20


class Preempted(SystemExit):
    """All processes have saved the same checkpoint because one of them was asked to end."""

    def __init__(self) -> None:
        """Gives the exit code."""
        super().__init__(PREEMPTED)


def start(section: Mapping[str, Any]) -> Team:
    """Joins the other processes of a run, if `config.distributed` or the environment names any.

    Call it before any computation of jax. From then on an exception that nobody catches ends this process at once,
    without the barrier of a normal exit, so that the others notice.

    Args:
        section: `config.distributed`.

    Returns:
        The processes as this one sees them; a team of one where nothing was asked for.

    Raises:
        ConfigError: a setting cannot be used, or there is no cluster to detect.
    """
    chosen = settings(section)
    if chosen is None:
        return Team()
    _join(chosen)
    sys.excepthook = _end_at_once
    team = Team(chosen.stall_minutes)
    print(
        f"{team.name}: on {socket.gethostname()}, {jax.local_device_count()} of {jax.device_count()} devices; process "
        "0 writes the results",
        file=sys.stderr,
        flush=True,
    )
    return team


def _join(chosen: Settings) -> None:
    if jax.distributed.is_initialized():
        raise ConfigError("this process belongs to a run over several processes already; start one run per process")
    who = name_of(chosen.process_id, chosen.num_processes)
    if chosen.process_id == 0 and chosen.coordinator is not None:
        _check_port(int(chosen.coordinator.rpartition(":")[2]))
    waiting = Watchdog(
        chosen.initialization_seconds,
        f"{who}: error: the processes did not find each other within {chosen.initialization_seconds:g} seconds. "
        f"Process 0 listens at {chosen.coordinator or 'an address that the cluster gives'}: check that this is its "
        "machine, that the port can be reached from here, that every process was started, each with its own "
        "config.distributed.process_id, and that none has ended with a message of its own. More time: "
        "--config.distributed.initialization_seconds",
        2,
        stacks=False,
    )
    try:
        jax.distributed.initialize(
            chosen.coordinator,
            chosen.num_processes,
            chosen.process_id,
            cluster_detection_method=None if chosen.coordinator is None else "deactivate",
            initialization_timeout=int(chosen.initialization_seconds) + _GRACE_SECONDS,
            heartbeat_timeout_seconds=int(chosen.heartbeat_seconds),
            shutdown_timeout_seconds=int(chosen.shutdown_seconds),
        )
    except ValueError as error:
        if chosen.coordinator is not None:
            raise
        raise ConfigError(
            "config.distributed.auto is set, but this is no job of Slurm, Open MPI, GKE or a TPU that says which "
            "process of how many this is. Give --config.distributed.coordinator, num_processes and process_id "
            f"({error})"
        ) from error
    except RuntimeError as error:
        raise ConfigError(f"{who} cannot join the others: {str(error).splitlines()[0]}") from error
    finally:
        waiting.stop()


def _check_port(port: int) -> None:
    """The runtime of jax 0.10 crashes where it cannot have its port."""
    both = socket.has_dualstack_ipv6()
    try:
        socket.create_server(
            ("", port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both
        ).close()
    except OSError as error:
        raise ConfigError(
            f"config.distributed.coordinator has port {port}, which process 0 cannot open here: {error.strerror}. Give "
            "all processes another one"
        ) from error


def leave(exit_code: int, message: str) -> int:
    """Prints a last message; one process of several then ends at once, so that the others do not wait for it.

    Args:
        exit_code: of the process.
        message: for standard error.

    Returns:
        `exit_code`, where this process is alone.
    """
    if not jax.distributed.is_initialized() or jax.process_count() == 1:
        print(message, file=sys.stderr)
        return exit_code
    print(f"{Team().name}: {message.lstrip()}", file=sys.stderr)
    _exit(exit_code)


def _end_at_once(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """What Python calls for an exception that nobody caught."""
    text = "".join(traceback.format_exception(kind, error, where))
    print(f"{Team().name}: ended by {kind.__name__}\n{text}", file=sys.stderr)
    _exit(130 if issubclass(kind, KeyboardInterrupt) else 1)


def _exit(exit_code: int) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
