"""Runs over several processes and machines: connecting, agreeing, and ending together.

By default, a process with an exception waits for the others at its exit, while they wait for it in
the next sum: no process ends, and nothing is printed. So here it ends at once, and the others
notice.
"""

import contextlib
import faulthandler
import hashlib
import logging
import os
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_ssl import processor
from fedjax_ssl.config import ConfigError, check_field
from fedjax_ssl.folder.checkpoint import is_key, rebuild
from fedjax_ssl.folder.files import decode_json, encode_json

PyTree = Any
# Exit codes, besides 1 (exception), 2 (mistake of the user) and 130 (Ctrl-C).
STALLED = 3
PREEMPTED = 75  # sysexits.h's "temporary failure, try again"
_VARIABLES = {
    "coordinator": "FEDJAX_SSL_COORDINATOR",
    "num_processes": "FEDJAX_SSL_NUM_PROCESSES",
    "process_id": "FEDJAX_SSL_PROCESS_ID",
}
_LIMITS = ("heartbeat_seconds", "shutdown_seconds", "initialization_seconds", "stall_minutes")
# At its own limit the runtime aborts with a stack trace; our message comes before that.
_GRACE_SECONDS = 20


class Preempted(SystemExit):
    """All processes have saved the same checkpoint because one of them was asked to end."""

    def __init__(self) -> None:
        super().__init__(PREEMPTED)


class Settings(NamedTuple):
    """Place of a process in a run over several; the first three fields are None if the cluster
    provides them.
    """

    coordinator: str | None  # "host:port" of process 0
    num_processes: int | None
    process_id: int | None
    heartbeat_seconds: int  # a process without a sign of life for this long counts as dead
    shutdown_seconds: int  # longest wait for the other processes at the end
    initialization_seconds: int  # longest wait for the other processes at the start
    stall_minutes: float
    # ^ a process gives up after this time without a finished block of rounds; 0: never


def settings(
    section: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> Settings | None:
    """Read `config.distributed`, and the environment for values that are None.

    Args:
        section: `config.distributed`.
        environment: environment variables; may have FEDJAX_SSL_COORDINATOR,
            FEDJAX_SSL_NUM_PROCESSES and FEDJAX_SSL_PROCESS_ID, so that the same command can be
            given on every machine.

    Returns:
        The settings; None: the run is one process.

    Raises:
        ConfigError: naming the field, its value and what is allowed.
    """
    for field in _LIMITS:
        check_field(f"distributed.{field}", section[field])
    limits = {field: section[field] for field in _LIMITS}
    given = {
        field: section[field] if section[field] is not None else environment.get(name) or None
        for field, name in _VARIABLES.items()
    }
    there = [field for field, value in given.items() if value is not None]
    missing = [field for field in _VARIABLES if field not in there]
    if section["auto"]:
        if there:
            raise ConfigError(
                f"config.distributed.auto takes {' and '.join(there)} from the cluster (Slurm, "
                f"Open MPI, TPU, GKE), but {_places(there)} is set as well; use one of them"
            )
        return Settings(None, None, None, **limits)
    if not there:
        return None
    if missing:
        raise ConfigError(
            f"config.distributed has {' and '.join(there)} but no {' and no '.join(missing)}. A "
            f"run over several processes needs all three: give {_places(missing)}; a run of one "
            "process needs none"
        )
    for field in ("num_processes", "process_id"):
        if not str(given[field]).removeprefix("-").isdecimal():
            raise ConfigError(
                f"${_VARIABLES[field]} is {given[field]!r}; it must be a whole number"
            )
    coordinator = str(given["coordinator"])
    count, index = (int(str(given[field])) for field in ("num_processes", "process_id"))
    if not 0 <= index < count:
        raise ConfigError(
            f"config.distributed.num_processes is {count} and process_id is {index}; it must be "
            f"0..{max(count - 1, 0)}, another one in each process"
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(
            f"config.distributed.coordinator is {coordinator!r}; it must be host:port of process "
            "0, for example 10.0.0.1:45671"
        )
    return None if count == 1 else Settings(coordinator, count, index, **limits)


def _places(fields: list[str]) -> str:
    return " and ".join(
        f"--config.distributed.{field} (or ${_VARIABLES[field]})" for field in fields
    )


def share_out(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """Put a copy of a tree on every device of a mesh, those of other processes included.

    Args:
        tree: arrays and typed PRNG keys in this process, equal in all processes.
        mesh: mesh of devices; None: return the tree unchanged.

    Returns:
        The tree, replicated over the mesh.
    """
    if mesh is None:
        return tree
    everywhere = NamedSharding(mesh, PartitionSpec())

    def place(leaf: Any) -> jax.Array:
        array = data_of(leaf)
        copies = jax.make_array_from_callback(array.shape, everywhere, lambda index: array[index])
        return (
            jax.random.wrap_key_data(copies, impl=jax.random.key_impl(leaf))
            if is_key(leaf)
            else copies
        )

    return jax.tree.map(place, tree)


def run_devices(num_devices: int) -> Sequence[jax.Device]:
    """Choose the devices that share the work of a run, equally many of every process, in process
    order.

    Args:
        num_devices: `config.federated.devices`, counted over all processes.

    Raises:
        ConfigError: there are fewer, or the processes cannot have equally many.
    """
    count = jax.process_count()
    available = jax.devices()
    if count == 1:
        if num_devices > len(available):
            raise ConfigError(
                f"config.federated.devices is {num_devices}; devices here: "
                f"{len(available)}{_more_devices(available)}"
            )
        return available[:num_devices]
    each, rest = divmod(num_devices, count)
    if rest or not each:
        raise ConfigError(
            f"config.federated.devices is {num_devices}, which counts the devices of all {count} "
            "processes: every process has to own as many of them, so that it must be a multiple "
            f"of {count}; leave it out to use all {len(available)}"
        )
    of_process = [
        [device for device in available if device.process_index == index] for index in range(count)
    ]
    fewest = min(map(len, of_process))
    if each > fewest:
        raise ConfigError(
            f"config.federated.devices is {num_devices}, {each} in each of {count} processes, but "
            f"one of them has {fewest}; allowed: up to {count * fewest}"
        )
    return [device for devices in of_process for device in devices[:each]]


def _more_devices(available: Sequence[jax.Device]) -> str:
    """Return advice to get more devices on a CPU."""
    if available[0].platform != "cpu":
        return ""
    return (
        ". The commands make a CPU as many devices as are asked for, up to "
        f"{processor.MOST_DEVICES}; Python code calls fedjax_ssl.processor.start(devices=...) "
        "before jax computes"
    )


def data_of(leaf: Any) -> np.ndarray:
    """Return a leaf as a host array (a typed PRNG key as its key data); it must be in this
    process.
    """
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def name_of(index: int | None, count: int | None) -> str:
    """Return the name of a process, for messages."""
    return "a process" if index is None else f"process {index} of {count}"


class Team:
    """All processes of a run. A single process is a team of one, in which nothing here costs time.

    Every method except `feed` and `say` communicates with the other processes: all must call it, in
    the same order.
    """

    def __init__(self, stall_minutes: float = 0.0):
        """Find the other processes.

        Args:
            stall_minutes: longest time between two calls of `feed` in `watched`, in minutes; 0: no
                limit.
        """
        self.index = 0
        self.count = 1
        # Otherwise there are no other processes, and the next line would start JAX.
        if jax.distributed.is_initialized():
            self.index = jax.process_index()
            self.count = jax.process_count()
        self._stall_minutes = stall_minutes
        self._watchdog: Watchdog | None = None

    @property
    def name(self) -> str:
        """Name of this process."""
        return name_of(self.index, self.count)

    @property
    def writes(self) -> bool:
        """Whether this process reads and writes the run folder and reports to a person."""
        return self.index == 0

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """End the process if it finishes nothing for too long: it may wait in a sum for a process
        that is gone.
        """
        if self.count == 1 or not self._stall_minutes:
            yield
            return
        self._watchdog = Watchdog(
            60 * self._stall_minutes,
            f"{self.name}: error: no block of rounds was finished for {self._stall_minutes:g} "
            "minutes. Another process hangs or is gone (see its log), or one takes longer: then "
            "raise config.distributed.stall_minutes or lower config.eval_every. The same command "
            "goes on from the last checkpoint. Stacks:",
            STALLED,
        )
        try:
            yield
        finally:
            self._watchdog.stop()
            self._watchdog = None

    def feed(self) -> None:
        """Tell the watchdog that something finished."""
        if self._watchdog is not None:
            self._watchdog.feed()

    def say(self, line: str) -> None:
        """Print a line about this process; process 0 shows it differently."""
        if not self.writes:
            print(f"{self.name}: {line}", file=sys.stderr, flush=True)

    def any(self, here: bool) -> bool:
        """Return whether something holds in some process; the same answer in all.

        Args:
            here: whether it holds in this one.
        """
        return (
            here
            if self.count == 1
            else bool(multihost_utils.process_allgather(np.array(here)).any())
        )

    def preempted(self, step: int) -> bool:
        """Return whether all processes must stop after this step because one of them was asked to
        end (SIGTERM).

        Args:
            step: counted one by one, the same in all processes.
        """
        if self.count == 1 or not multihost_utils.reached_preemption_sync_point(step):
            return False
        print(
            f"{self.name}: a process was asked to end (SIGTERM), so all of them save a checkpoint "
            f"and leave with exit code {PREEMPTED}; the same command goes on from there",
            file=sys.stderr,
            flush=True,
        )
        return True

    def connect(self, mesh: Mesh | None) -> None:
        """Let the devices of a mesh find each other while all processes are in step.

        If sums go through Gloo (CPUs), a process waits 30 seconds for the others at the first sum
        of a mesh, and without limit at later ones. The first sum of a round comes after compiling,
        which may take longer in one process.
        """
        if self.count == 1 or mesh is None:
            return
        everywhere = PartitionSpec()
        total = jax.shard_map(
            lambda one: jax.lax.psum(one, mesh.axis_names),
            mesh=mesh,
            in_specs=everywhere,
            out_specs=everywhere,
        )
        jax.block_until_ready(jax.jit(total)(np.ones((), np.float32)))

    def check_same(self, what: str, value: PyTree, hint: str) -> None:
        """Raise ConfigError in every process unless all of them have the same value.

        Args:
            what: the value in words.
            value: a string, or a tree of arrays that lie in this process.
            hint: advice for a different value.
        """
        if self.count == 1:
            return
        digest = np.frombuffer(_digest(value), np.uint8)
        digests = multihost_utils.process_allgather(digest)
        others = [str(index) for index in range(self.count) if (digests[index] != digests[0]).any()]
        if others:
            raise ConfigError(
                f"process {', '.join(others)} of {self.count} has another {what} than process 0. "
                f"{hint}"
            )

    def values_from_first(self, values: Any) -> Any:
        """Return the value of process 0 in every process.

        Args:
            values: values that JSON can hold; it may differ in the processes.
        """
        if self.count == 1:
            return values
        content = np.frombuffer(encode_json(values).encode(), np.uint8)
        length = int(self.from_first(np.array(content.size, np.int32)))
        padded = np.zeros(length, np.uint8)
        kept = content[:length]
        padded[: kept.size] = kept
        return decode_json(self.from_first(padded).tobytes().decode())

    def from_first(self, tree: PyTree) -> PyTree:
        """Return the arrays of process 0 in every process, to the last bit.

        Args:
            tree: arrays, typed PRNG keys and Python scalars, of the same structure, shapes and
                types everywhere.

        Returns:
            The tree, with arrays that lie in this process.
        """
        if self.count == 1:
            return tree
        leaves, structure = jax.tree.flatten(tree)
        # Sent as bytes, because arrays are sent by a floating-point sum over processes, which loses
        # the sign of -0.
        raw = [data_of(leaf) for leaf in leaves]
        sent = map(
            np.asarray, multihost_utils.broadcast_one_to_all([_bytes_of(array) for array in raw])
        )
        received = [
            one.view(array.dtype).reshape(array.shape) for one, array in zip(sent, raw, strict=True)
        ]
        return jax.tree.unflatten(structure, list(map(rebuild, leaves, received)))


def _digest(value: PyTree) -> bytes:
    found = hashlib.sha256()
    for array in map(data_of, jax.tree.leaves(value)):
        found.update(f"{array.dtype}{array.shape}".encode())
        found.update(_bytes_of(array).data)
    return found.digest()


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class Watchdog:
    """A thread that ends the process if it is not fed for too long.

    A process in a collective operation waits for the others. If one of them is gone, it waits
    forever, and no exception can reach it. So the thread calls `os._exit`, without clean-up. The
    run folder survives this like a kill.
    """

    def __init__(self, seconds: float, message: str, exit_code: int, *, stacks: bool = True):
        """Start the watch.

        Args:
            seconds: longest time between two calls of `feed`.
            message: printed to standard error at the end.
            exit_code: exit code of the process.
            stacks: whether to print the stacks of all threads, which show what the process waited
                for.
        """
        self._seconds = seconds
        self._last = (message, exit_code, stacks)
        self._start()

    def _start(self) -> None:
        self._timer = threading.Timer(self._seconds, _give_up, self._last)
        self._timer.daemon = True
        self._timer.start()

    def feed(self) -> None:
        """Report that something finished."""
        self.stop()
        self._start()

    def stop(self) -> None:
        """End the watch."""
        self._timer.cancel()


def _give_up(message: str, exit_code: int, stacks: bool) -> NoReturn:
    sys.stdout.flush()
    print(message, file=sys.stderr, flush=True)
    if stacks:
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    os._exit(exit_code)  # no clean-up, because that could wait too


def start(section: Mapping[str, Any]) -> Team:
    """Join the other processes of a run, if `config.distributed` or the environment names any.

    Call it before any JAX computation. Afterwards an uncaught exception ends this process at once,
    without the barrier of a normal exit, so that the others notice.

    Args:
        section: `config.distributed`.

    Returns:
        The processes; a team of one by default.

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
        f"{team.name}: on {socket.gethostname()}, {jax.local_device_count()} of "
        f"{jax.device_count()} devices; process 0 writes the results",
        file=sys.stderr,
        flush=True,
    )
    return team


def _join(chosen: Settings) -> None:
    if jax.distributed.is_initialized():
        raise ConfigError(
            "this process belongs to a run over several processes already; start one run per "
            "process"
        )
    who = name_of(chosen.process_id, chosen.num_processes)
    if chosen.process_id == 0 and chosen.coordinator is not None:
        _check_port(int(chosen.coordinator.rpartition(":")[2]))
    waiting = Watchdog(
        chosen.initialization_seconds,
        f"{who}: error: the processes did not find each other within "
        f"{chosen.initialization_seconds:g} seconds. Process 0 listens at "
        f"{chosen.coordinator or 'an address that the cluster gives'}: check that this is its "
        "machine, that the port can be reached from here, that every process was started, each "
        "with its own config.distributed.process_id, and that none has ended with a message of "
        "its own. More time: --config.distributed.initialization_seconds",
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
            "config.distributed.auto is set, but this is no job of Slurm, Open MPI, GKE or a TPU "
            "that says which process of how many this is. Give --config.distributed.coordinator, "
            f"num_processes and process_id ({error})"
        ) from error
    except RuntimeError as error:
        raise ConfigError(f"{who} cannot join the others: {str(error).splitlines()[0]}") from error
    finally:
        waiting.stop()


def _check_port(port: int) -> None:
    """Fail early if the port is taken: jax 0.10 would crash."""
    both = socket.has_dualstack_ipv6()
    try:
        socket.create_server(
            ("", port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both
        ).close()
    except OSError as error:
        raise ConfigError(
            f"config.distributed.coordinator has port {port}, which process 0 cannot open here: "
            f"{error.strerror}. Give all processes another one"
        ) from error


def leave(exit_code: int, message: str) -> int:
    """Print a last message; one process of several then ends at once, so that the others do not
    wait for it.

    Args:
        exit_code: exit code of the process.
        message: for standard error.

    Returns:
        `exit_code`, if this is the only process.
    """
    if not jax.distributed.is_initialized() or jax.process_count() == 1:
        print(message, file=sys.stderr)
        return exit_code
    print(f"{Team().name}: {message.lstrip()}", file=sys.stderr)
    _exit(exit_code)


def _end_at_once(
    kind: type[BaseException], error: BaseException, where: TracebackType | None
) -> None:
    """Report an uncaught exception, and end the process."""
    text = "".join(traceback.format_exception(kind, error, where))
    print(f"{Team().name}: ended by {kind.__name__}\n{text}", file=sys.stderr)
    _exit(130 if issubclass(kind, KeyboardInterrupt) else 1)


def _exit(exit_code: int) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
