"""Gives each block of rounds the examples that it needs from the host.

Who takes part in a round follows from the run's key and the round alone, so the examples of the coming block are known
while the present one computes, and a thread brings them. The numbers are those of examples on the device, but where
devices share the cohorts with `reduce="fast"`: their sums follow from who trains where.
Where several devices share the cohorts, it follows as well who trains on which device, so that each gets its own
clients' examples only, from the process that it belongs to.
"""

import dataclasses
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from fedjax_ssl import distributed, federated
from fedjax_ssl.data import (
    DealtInputs,
    Drawn,
    FederatedData,
    HostInputs,
    LoadedInputs,
    clients_of_devices,
    deal_out,
    most_rows,
    with_cohorts,
)
from fedjax_ssl.experiment.build import Experiment
from fedjax_ssl.experiment.programs import Code, Inputs
from fedjax_ssl.experiment.residence import clients_on_a_device, cohort_size_of, devices_apart
from fedjax_ssl.federated import Method
from fedjax_ssl.federated.memory import tree_bytes
from fedjax_ssl.tracking import bytes_in_words
from fedjax_ssl.words import counted


class Feed:
    """Gives every block of rounds its inputs. Use it as a context manager, or call `close` at the end.

    Attributes:
        held: which clients' examples the devices of this process have in the first block, for the log; empty where all
            devices have the same.
    """

    def __init__(self, experiment: Experiment, federation: FederatedData, method: Method, code: Code, inputs: Inputs):
        """Keeps what is the same for all blocks.

        Args:
            experiment: of the run.
            federation: of the run, in this process.
            method: of the run.
            code: of its programs, with the devices that share it.
            inputs: of its programs, on these devices.
        """
        self._inputs, self._mesh, self._host = inputs, code.mesh, experiment.host
        self._experiment, self._federation, self._key = experiment, federation, jax.random.key(experiment.config.seed)
        self._every, self._rounds = experiment.config.eval_every, experiment.config.rounds
        self._devices, self.held = devices_apart(code.on_host, code.mesh), ""
        self._room = 0  # on a device, where everybody takes part in every round
        self._dealt: tuple[list[np.ndarray], LoadedInputs] | None = None
        draw = partial(cohorts_of, method, devices=self._devices)
        self._draw = None if method.cohort is None else jax.jit(draw, static_argnames="rounds")
        self._coming: tuple[tuple[int, int], Future[Inputs]] | None = None
        self._thread: ThreadPoolExecutor | None = None

    def __enter__(self) -> "Feed":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits for what is being brought, and forgets it."""
        self._coming = None
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None

    def block(self, start: int, rounds: int) -> Inputs:
        """The inputs of a block of rounds; those of the next one are brought from now on.

        Args:
            start: rounds before the block.
            rounds: of the block.
        """
        if self._host is None:
            return self._inputs
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="examples")
        asked = self._coming[1] if self._coming is not None and self._coming[0] == (start, rounds) else None
        found = self._bring(self._drawn(start, rounds)) if asked is None else asked.result()
        after = start + rounds
        following = self._rounds_after(after)
        self._coming = None
        if following > 0:
            # Drawn here, in front of the block on its device: behind it, nothing would be read before it is done.
            drawn = self._drawn(after, following)
            self._coming = (after, following), self._thread.submit(self._bring, drawn)
        return found

    def describe(self) -> str:
        """A line for the log; empty where everything is on the device."""
        if self._host is None:
            return ""
        always, block = self._always(), min(self._every, self._rounds)
        width = self._most_rows(block)
        kept, coming, all_of_them, loaded = map(
            bytes_in_words,
            (tree_bytes(always.values), self._host.bytes_of(width), self._host.nbytes, self._host.in_memory),
        )
        where, whose, more = "the device", f"of {counted(block, 'round')}", block < self._rounds
        if self._devices > 1:
            everybody = cohort_size_of(self._experiment, self._federation) == self._federation.num_clients
            where = f"each of the {self._devices} devices"
            whose = "that it trains" + f" in {counted(block, 'round')}" * (not everybody)
            more = more and not everybody
        size = f"{all_of_them}, of which the source has loaded {loaded}" if self._host.in_memory else all_of_them
        return (
            f"examples stay on the host ({size}); on {where} are {len(always.values):,} for evaluation and server "
            f"({kept}) and those of the clients {whose} (at most {width:,}, {coming})"
            f"{', while the next ones are brought' * more}"
        )

    def _most_rows(self, rounds: int) -> int:
        clients = clients_on_a_device(self._experiment, self._federation, rounds, self._devices)
        return most_rows(self._federation, clients)

    def _always(self) -> LoadedInputs:
        inputs = self._federation.inputs
        assert isinstance(inputs, LoadedInputs)
        return inputs

    def _drawn(self, start: int, rounds: int) -> Drawn:
        assert self._draw is not None, "otherwise everything is on the device"
        drawn: Drawn = self._draw(self._key, jnp.int32(start), self._federation, rounds=rounds)
        return drawn

    def _bring(self, drawn: Drawn) -> Inputs:
        assert self._host is not None, "otherwise everything is on the device"
        loaded = self._deal(self._host, drawn) if self._devices > 1 else self._load(self._host, drawn)
        return self._inputs._replace(
            federation=dataclasses.replace(self._inputs.federation, inputs=cast(Array, loaded))
        )

    def _load(self, host: HostInputs, drawn: Drawn) -> LoadedInputs:
        width = self._most_rows(drawn.ids.shape[0])
        loaded = with_cohorts(host, self._always(), self._federation, drawn, width)
        return distributed.share_out(loaded, self._mesh)

    def _deal(self, host: HostInputs, drawn: Drawn) -> LoadedInputs:
        always = self._inputs.federation.inputs
        assert isinstance(always, LoadedInputs) and self._mesh is not None
        clients = clients_of_devices(drawn, self._devices)
        if self._dealt is None or not all(map(np.array_equal, self._dealt[0], clients)):
            width = self._width(drawn)
            self._dealt = clients, deal_out(host, always, self._federation, clients, width, self._mesh)
        self.held = self.held or self._describe_held(host, drawn, clients)
        drawn = distributed.share_out(drawn, self._mesh)
        return DealtInputs(always.values, always.place, drawn, own=self._dealt[1], mesh=self._mesh)

    def _width(self, drawn: Drawn) -> int:
        """Examples that a device has room for, the same in all blocks, so that they share a program."""
        if cohort_size_of(self._experiment, self._federation) < self._federation.num_clients:
            return self._most_rows(drawn.ids.shape[0])
        if not self._room:  # the largest clients are no good bound here, where only stages and samplers leave any out
            sizes = np.asarray(self._federation.num_examples).astype(np.int64)
            for start, rounds in self._blocks(int(drawn.first)):
                clients = clients_of_devices(self._drawn(start, rounds), self._devices)
                self._room = max(self._room, *(int(sizes[ids].sum()) for ids in clients))
        return self._room

    def _blocks(self, start: int) -> Iterator[tuple[int, int]]:
        """First round and number of rounds of every block from `start` on."""
        while start < self._rounds:
            rounds = self._rounds_after(start)
            yield start, rounds
            start += rounds

    def _rounds_after(self, start: int) -> int:
        return min(self._every - start % self._every, self._rounds - start)

    def _describe_held(self, host: HostInputs, drawn: Drawn, clients: list[np.ndarray]) -> str:
        assert self._mesh is not None
        here = [ids for device, ids in zip(self._mesh.devices.flat, clients, strict=True) if _is_here(device)]
        each = [int(np.asarray(self._federation.num_examples)[ids].sum()) for ids in here]
        have = f"the {counted(len(here), 'device')} of this process {'have' if len(here) > 1 else 'has'}"
        count = len(np.unique(np.concatenate(here)))
        first, last = int(drawn.first) + 1, int(drawn.first) + len(drawn.ids)
        when = f"round {first}" if first == last else f"rounds {first} to {last}"
        loaded = f"; the source has loaded {bytes_in_words(host.in_memory)}" if host.in_memory else ""
        return (
            f"{have} the examples of {count:,} of {self._federation.num_clients:,} clients in {when} "
            f"({sum(each):,}, {bytes_in_words(host.bytes_of(sum(each)))}){loaded}"
        )


def _is_here(device: jax.Device) -> bool:
    return device.process_index == jax.process_index()


def cohorts_of(
    method: Method,
    key: Key[Array, ""],
    start: Int[Array, ""],
    federation: FederatedData,
    *,
    rounds: int,
    devices: int = 1,
) -> Drawn:
    """Who takes part in some rounds.

    Args:
        method: with `cohort`.
        key: of the run.
        start: rounds before these.
        federation: of the run.
        rounds: how many.
        devices: to which the clients of a round are dealt by their number of examples, if more than one.
    """
    draw = method.cohort
    assert draw is not None
    numbers = start + jnp.arange(rounds, dtype=jnp.int32)
    ids, valid = jax.lax.map(lambda number: draw(key, number, federation), numbers)
    if devices == 1:
        return Drawn(start, ids, valid)
    sizes = jnp.where(valid, federation.num_examples[ids], 0)
    sizes = jnp.pad(sizes, ((0, 0), (0, -sizes.shape[1] % devices)))
    return Drawn(start, ids, valid, jax.lax.map(lambda each: federated.deal(each, devices), sizes))
