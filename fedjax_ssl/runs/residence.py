"""Where a run's examples lie: all on the device, or on the host, from where each block of rounds gets its cohorts'."""

import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int, Key

from fedjax_ssl import federated, processor
from fedjax_ssl.backend import backend
from fedjax_ssl.config import ConfigError
from fedjax_ssl.data import (
    Drawn,
    FederatedData,
    HostInputs,
    LoadedInputs,
    NotOnDevice,
    clients_of_devices,
    load_examples,
    most_rows,
)
from fedjax_ssl.errors import counted
from fedjax_ssl.federated import USABLE, Method, device_memory, tree_bytes
from fedjax_ssl.runs.build import Experiment, build_method, execution_of, prediction_settings
from fedjax_ssl.runs.compile import Code, Inputs
from fedjax_ssl.runs.files import bytes_in_words
from fedjax_ssl.runs.processes import Team, share_out

SHARE = 0.5  # of a device's memory that examples may fill; the rest is for the round


def settled(experiment: Experiment, federation_of: Callable[[Experiment], FederatedData]) -> Experiment:
    """The experiment with its inputs where `config.data.residence` has them.

    Args:
        experiment: with its inputs anywhere.
        federation_of: draws it, where that is needed.

    Raises:
        ConfigError: inputs are to stay on the host, and this run cannot train so.
    """
    experiment = experiment._replace(host=None)
    asked, host = experiment.config.data.residence, HostInputs(experiment.dataset)
    if asked == "device" or (asked == "auto" and not _too_large(host.nbytes)):
        return experiment
    away = experiment._replace(host=host)
    reason = why_not(away, federation_of)
    if not reason:
        return away
    if asked == "auto":
        return experiment
    raise ConfigError(f"config.data.residence is 'host', but {reason}")


def _too_large(size: int) -> bool:
    memory = processor.memory() if backend() == "cpu" else federated.own_memory()
    # Machines may differ, and their programs must not.
    return Team().any(memory is not None and size > SHARE * memory)


def why_not(experiment: Experiment, federation_of: Callable[[Experiment], FederatedData]) -> str:
    """Why a run cannot train with its inputs on the host, and what to do; empty where it can.

    Args:
        experiment: with `host`.
        federation_of: draws it, where that is needed.
    """
    config = experiment.config
    graphs = [name for name in prediction_settings(config).predictors if name != "network"]
    if graphs:
        return (
            f"config.prediction.predictors names {', '.join(graphs)}, whose graph has all clients' examples. Use "
            "--config.data.residence=device, or leave the prediction out"
        )
    federation = federation_of(experiment)
    execution = execution_of(experiment, federation, alone=True)
    method = build_method(experiment, federation, execution=execution)
    if method.cohort is None or _looks_at_all(method, federation):
        return (
            f"{config.method.name} looks at the examples of all clients in a round, and only the cohort's would be on "
            "the device. Use --config.data.residence=device, or a method that learns from its cohort"
        )
    needed = bytes_on_device(experiment, federation, devices_apart(method.on_host, execution.mesh))
    memory = device_memory()
    if memory is not None and needed > USABLE * memory:
        return (
            f"the examples of two blocks of {config.eval_every} rounds take up to {bytes_in_words(needed)}, and the "
            f"device has {bytes_in_words(memory)}. Lower config.eval_every or config.federated.cohort_size"
        )
    return ""


def _looks_at_all(method: Method, federation: FederatedData) -> bool:
    """Whether a round cannot be traced without the rows of all clients; one of host functions says so when it runs."""
    key = jax.random.key(0)
    try:
        state = jax.eval_shape(method.init, key, federation)
        if not method.on_host:
            jax.eval_shape(method.round, key, state, federation)
    except NotOnDevice:
        return True
    return False


def bytes_on_device(experiment: Experiment, federation: FederatedData, devices: int = 1) -> int:
    """Bytes of a device that examples take at most: of the block that computes, and of the one that is brought.

    Args:
        experiment: with or without `host`.
        federation: of it.
        devices: to which the clients of every cohort are dealt.
    """
    if experiment.host is None:
        return tree_bytes(federation.inputs)
    rounds = min(experiment.config.eval_every, experiment.config.rounds)
    width = most_rows(federation, clients_on_a_device(experiment, federation, rounds, devices))
    return 3 * tree_bytes(federation.inputs) + 2 * experiment.host.bytes_of(width)


def cohort_size_of(experiment: Experiment, federation: FederatedData) -> int:
    """Clients of a round: as many as the config says, by default all."""
    return min(experiment.config.federated.cohort_size or federation.num_clients, federation.num_clients)


def clients_on_a_device(experiment: Experiment, federation: FederatedData, rounds: int, devices: int) -> int:
    """Clients that a device trains in a block at most, if nobody is left out where all take part.

    Then a device has the same ones in every round. Where a stage or a sampler leaves some out, it may come to have
    more.

    Args:
        experiment: of the run.
        federation: of it.
        rounds: of the block.
        devices: to which the clients of every cohort are dealt.
    """
    size = cohort_size_of(experiment, federation)
    return -(-size // devices) * (1 if size == federation.num_clients else rounds)


def devices_apart(on_host: bool, mesh: Mesh | None) -> int:
    """The number of devices of which each has other clients' examples.

    Args:
        on_host: rounds call host functions, and have all of a block's examples on each device.
        mesh: devices that share the cohorts.
    """
    return 1 if mesh is None or on_host else mesh.size


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
        loaded = load_examples(host, self._federation, clients_of_devices(drawn), width, drawn)
        return share_out(loaded, self._mesh)

    def _deal(self, host: HostInputs, drawn: Drawn) -> LoadedInputs:
        clients = clients_of_devices(drawn, self._devices)
        if self._dealt is None or not all(map(np.array_equal, self._dealt[0], clients)):
            width = self._width(drawn)
            self._dealt = clients, load_examples(host, self._federation, clients, width, mesh=self._mesh)
        self.held = self.held or self._describe_held(host, drawn, clients)
        return dataclasses.replace(self._dealt[1], drawn=share_out(drawn, self._mesh))

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
