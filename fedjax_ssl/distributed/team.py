"""The processes of a run as one of them sees them: who writes, what all of them have, when they stop."""

import contextlib
import hashlib
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, PartitionSpec

from fedjax_ssl.config import ConfigError
from fedjax_ssl.distributed.devices import data_of
from fedjax_ssl.distributed.settings import PREEMPTED, STALLED
from fedjax_ssl.distributed.watchdog import Watchdog
from fedjax_ssl.tracking.files import decode_json, encode_json
from fedjax_ssl.tracking.state_arrays import is_key

PyTree = Any


def name_of(index: int | None, count: int | None) -> str:
    """A process in words, for messages."""
    return "a process" if index is None else f"process {index} of {count}"


class Team:
    """All processes of a run. Alone, a process is a team of one, in which nothing here costs anything.

    Every method but `feed` and `say` talks to the other processes: all of them have to call it, in the same order.
    """

    def __init__(self, stall_minutes: float = 0.0):
        """Looks who is there.

        Args:
            stall_minutes: longest time between two calls of `feed` in `watched`, in minutes; 0: no limit.
        """
        self.index, self.count = jax.process_index(), jax.process_count()
        self._stall_minutes = stall_minutes
        self._watchdog: Watchdog | None = None

    @property
    def name(self) -> str:
        """This process in words."""
        return name_of(self.index, self.count)

    @property
    def writes(self) -> bool:
        """Whether this is the process that reads and writes the run folder and reports to a person."""
        return self.index == 0

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Ends the process if nothing is finished for too long: it may wait in a sum for a process that is gone."""
        if self.count == 1 or not self._stall_minutes:
            yield
            return
        self._watchdog = Watchdog(
            60 * self._stall_minutes,
            f"{self.name}: error: no block of rounds was finished for {self._stall_minutes:g} minutes. Another process "
            "hangs or is gone (see its log), or one takes longer: then raise config.distributed.stall_minutes or lower "
            "config.eval_every. The same command goes on from the last checkpoint. Stacks:",
            STALLED,
        )
        try:
            yield
        finally:
            self._watchdog.stop()
            self._watchdog = None

    def feed(self) -> None:
        """Tells the watchdog that something was finished."""
        if self._watchdog is not None:
            self._watchdog.feed()

    def say(self, line: str) -> None:
        """Prints a line of this process's own, which process 0 shows to a person in its own way."""
        if not self.writes:
            print(f"{self.name}: {line}", file=sys.stderr, flush=True)

    def any(self, here: bool) -> bool:
        """Whether something holds in some process; the same answer in all of them.

        Args:
            here: whether it holds in this one.
        """
        return here if self.count == 1 else bool(multihost_utils.process_allgather(np.array(here)).any())

    def preempted(self, step: int) -> bool:
        """Whether all processes shall stop after this step because one of them was asked to end (SIGTERM).

        Args:
            step: counted one by one, the same in all processes.
        """
        if self.count == 1 or not multihost_utils.reached_preemption_sync_point(step):
            return False
        print(
            f"{self.name}: a process was asked to end (SIGTERM), so all of them save a checkpoint and leave with exit "
            f"code {PREEMPTED}; the same command goes on from there",
            file=sys.stderr,
            flush=True,
        )
        return True

    def connect(self, mesh: Mesh | None) -> None:
        """Lets the devices of a mesh find each other while all processes are in step.

        Where sums go through Gloo (CPUs), a process waits 30 seconds for the others at the first sum of a mesh, and
        without limit at later ones. The first sum of a round comes after compiling, which may take one of them longer.
        """
        if self.count == 1 or mesh is None:
            return
        everywhere = PartitionSpec()
        total = jax.shard_map(
            lambda one: jax.lax.psum(one, mesh.axis_names), mesh=mesh, in_specs=everywhere, out_specs=everywhere
        )
        jax.block_until_ready(jax.jit(total)(np.ones((), np.float32)))

    def check_same(self, what: str, value: PyTree, hint: str) -> None:
        """Raises ConfigError in every process unless all of them have the same value.

        Args:
            what: the value in words.
            value: a string, or a tree of arrays that lie in this process.
            hint: what to do where it differs.
        """
        if self.count == 1:
            return
        digest = np.frombuffer(_digest(value), np.uint8)
        everyone = multihost_utils.process_allgather(digest)
        others = [str(index) for index in range(self.count) if (everyone[index] != everyone[0]).any()]
        if others:
            raise ConfigError(f"process {', '.join(others)} of {self.count} has another {what} than process 0. {hint}")

    def values_from_first(self, values: Any) -> Any:
        """What process 0 has, in every process.

        Args:
            values: what JSON can hold; it may differ in the processes.
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
        """The values that process 0 has, in every process, to the last bit.

        Args:
            tree: arrays, typed PRNG keys and Python scalars, of the same structure, shapes and types everywhere.

        Returns:
            The tree, with arrays that lie in this process.
        """
        if self.count == 1:
            return tree
        leaves, structure = jax.tree.flatten(tree)
        # Sent as bytes: a floating-point sum over processes, which is how they are sent, loses the sign of -0.
        raw = [data_of(leaf) for leaf in leaves]
        sent = multihost_utils.broadcast_one_to_all([_bytes_of(array) for array in raw])
        received = [
            np.asarray(one).view(array.dtype).reshape(array.shape) for one, array in zip(sent, raw, strict=True)
        ]
        return jax.tree.unflatten(structure, list(map(_like, leaves, received)))


def _digest(value: PyTree) -> bytes:
    if isinstance(value, str):
        return hashlib.sha256(value.encode()).digest()
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(value):
        array = data_of(leaf)
        found.update(f"{array.dtype}{array.shape}".encode())
        found.update(_bytes_of(array).data)
    return found.digest()


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _like(leaf: Any, array: np.ndarray) -> Any:
    if isinstance(leaf, bool | int | float):
        return array.item()
    if isinstance(leaf, np.ndarray):
        return array
    value = jnp.asarray(array)
    return jax.random.wrap_key_data(value, impl=jax.random.key_impl(leaf)) if is_key(leaf) else value
