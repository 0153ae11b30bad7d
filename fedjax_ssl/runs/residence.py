"""Place a run's examples: all on the device, or on the host, from which each block of rounds loads
those of its cohorts.

The cohort of a round follows from the run's key and the round alone. So the examples of the next
block are known while the current one runs, and a thread loads them. If several devices share the
cohorts, the device of each client is known too: each device gets its own clients' examples only,
from its own process. Results are the same as with examples on the device, except if devices share
the cohorts with `reduce="fast"`, because their sums depend on the device of each client.
"""

import dataclasses
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from jaxtyping import Array, Int, Key

from fedjax_ssl import config as configs
from fedjax_ssl import data, federated, processor
from fedjax_ssl.backend import backend
from fedjax_ssl.data import (
    Drawn,
    FederatedData,
    HostInputs,
    LoadedInputs,
    NotOnDevice,
    clients_of_devices,
)
from fedjax_ssl.errors import counted
from fedjax_ssl.federated import Method, tree_bytes
from fedjax_ssl.folder.files import bytes_in_words
from fedjax_ssl.runs.build import Built, Experiment, cohort_size_of
from fedjax_ssl.runs.processes import Team, share_out

SHARE = 0.5  # share of the device's memory for examples; the rest is for the round


def on_host(experiment: Experiment) -> Experiment:
    """Leave an experiment's inputs on the host, if `config.data.residence` says so or they are
    large.
    """
    asked = experiment.config.data.residence
    host = HostInputs(experiment.dataset)
    away = asked == "host" or (asked == "auto" and _too_large(host.nbytes))
    return experiment._replace(host=host if away else None)


def _too_large(size: int) -> bool:
    memory = processor.memory() if backend() == "cpu" else federated.own_memory()
    # Machines may differ, but their programs must not.
    return Team().any(memory is not None and size > SHARE * memory)


def why_not_on_host(config: ml_collections.ConfigDict, built: Built | None = None) -> str:
    """Return why a run cannot train with its inputs on the host, and what to do; "" if it can.

    Args:
        config: resolved.
        built: the run with its inputs on the host, which is checked too.
    """
    graphs = [name for name in configs.predictors(config) if name != "network"]
    if graphs:
        return (
            f"config.prediction.predictors names {', '.join(graphs)}, whose graph has all "
            "clients' examples. Use --config.data.residence=device, or leave the prediction out"
        )
    if built is not None and (built.method.cohort is None or _looks_at_all(built)):
        return (
            f"{config.method.name} looks at the examples of all clients in a round, and only the "
            "cohort's would be on the device. Use --config.data.residence=device, or a method "
            "that learns from its cohort"
        )
    return ""


def _looks_at_all(built: Built) -> bool:
    """Return whether a round reads the rows of all clients; rounds that call host functions report
    it when they run.
    """
    key = jax.random.key(0)
    try:
        state = jax.eval_shape(built.method.init, key, built.federation)
        if not built.method.recipe.on_host:
            jax.eval_shape(built.method.round, key, state, built.federation)
    except NotOnDevice:
        return True
    return False


class Feed:
    """Loads the examples of each block of rounds from the host. Use it as a context manager.

    Attributes:
        held: line for the log: the clients whose examples are on the devices of this process in the
            first block; "" if all devices have the same.
    """

    def __init__(self, built: Built, key: Key[Array, ""]):
        """Prepare values that are the same for all blocks.

        Args:
            built: the run; its experiment has `host`, its method `cohort`.
            key: key of the run.
        """
        experiment = built.experiment
        federation = built.federation
        method = built.method
        mesh = built.execution.mesh
        assert experiment.host is not None
        self._host = experiment.host
        self._federation = federation
        self._mesh = mesh
        self.held = ""
        config = experiment.config
        self._key = key
        self._every = config.eval_every
        self._rounds = config.rounds
        # Rounds that call the host need all of a block's examples on each device.
        self._devices = 1 if mesh is None or method.recipe.on_host else mesh.size
        cohort = cohort_size_of(config, federation.num_clients)
        self._all_take_part = cohort == federation.num_clients
        block = min(self._every, self._rounds)
        clients = -(-cohort // self._devices) * (1 if self._all_take_part else block)
        # Room on a device, the same in all blocks, so that they share a program, unless the cohort
        # size varies.
        self._room = (
            0 if self._all_take_part and self._devices > 1 else data.most_rows(federation, clients)
        )
        self._dealt: tuple[list[np.ndarray], LoadedInputs] | None = None
        self._draw = jax.jit(
            partial(cohorts_of, method, devices=self._devices), static_argnames="rounds"
        )
        self._coming: tuple[tuple[int, int], Future[LoadedInputs]] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="examples")

    def __enter__(self) -> "Feed":
        return self

    def __exit__(self, *raised: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def block(self, start: int, rounds: int) -> LoadedInputs:
        """Return the inputs of a block of rounds, and start to load those of the next one.

        Args:
            start: rounds before the block.
            rounds: length of the block.
        """
        asked = self._coming
        self._coming = None
        if asked is not None and asked[0] == (start, rounds):
            found = asked[1].result()
        else:
            found = self._bring(
                self._draw(self._key, jnp.int32(start), self._federation, rounds=rounds)
            )
        after = start + rounds
        following = min(self._every - after % self._every, self._rounds - after)
        if following > 0:
            # Drawn here, before the block is started on its device: after it, reading would wait
            # for the block.
            drawn = self._draw(self._key, jnp.int32(after), self._federation, rounds=following)
            self._coming = (after, following), self._thread.submit(self._bring, drawn)
        return found

    def _bring(self, drawn: Drawn) -> LoadedInputs:
        clients = clients_of_devices(drawn, self._devices)
        if self._dealt is None or not all(map(np.array_equal, self._dealt[0], clients)):
            sizes = np.asarray(self._federation.num_examples).astype(np.int64)
            self._room = max(self._room, *(int(sizes[ids].sum()) for ids in clients))
            mesh = self._mesh if self._devices > 1 else None
            loaded = data.load_examples(
                self._host, self._federation, clients, self._room, None, mesh
            )
            self._dealt = clients, loaded if self._devices > 1 else share_out(loaded, self._mesh)
            if self._devices > 1 and not self.held:
                self.held = self._describe_held(drawn, clients)
        return dataclasses.replace(self._dealt[1], drawn=share_out(drawn, self._mesh))

    def describe(self) -> str:
        """Return a line for the log about the place of the examples."""
        always = self._federation.inputs
        host = self._host
        block = min(self._every, self._rounds)
        loaded = (
            f", of which the source has loaded {bytes_in_words(host.in_memory)}"
            if host.in_memory
            else ""
        )
        where = "the device" if self._devices == 1 else f"each of the {self._devices} devices"
        whose = "those that it trains" if self._devices > 1 else "the clients"
        again = block < self._rounds and not (self._devices > 1 and self._all_take_part)
        return (
            f"examples stay on the host ({bytes_in_words(host.nbytes)}{loaded}); on {where} are "
            f"those for evaluation and server ({bytes_in_words(tree_bytes(always))}) and those of "
            f"{whose} in {counted(block, 'round')}{', while the next ones are brought' * again}"
        )

    def _describe_held(self, drawn: Drawn, clients: list[np.ndarray]) -> str:
        assert self._mesh is not None
        pairs = zip(self._mesh.devices.flat, clients, strict=True)
        here = [ids for device, ids in pairs if device.process_index == jax.process_index()]
        examples = sum(int(np.asarray(self._federation.num_examples)[ids].sum()) for ids in here)
        have = (
            f"the {counted(len(here), 'device')} of this process "
            f"{'have' if len(here) > 1 else 'has'}"
        )
        first = int(drawn.first) + 1
        last = int(drawn.first) + len(drawn.ids)
        when = f"round {first}" if first == last else f"rounds {first} to {last}"
        loaded = (
            f"; the source has loaded {bytes_in_words(self._host.in_memory)}"
            if self._host.in_memory
            else ""
        )
        return (
            f"{have} the examples of {len(np.unique(np.concatenate(here))):,} of "
            f"{self._federation.num_clients:,} clients in {when} ({examples:,}, "
            f"{bytes_in_words(self._host.bytes_of(examples))}){loaded}"
        )


def cohorts_of(
    method: Method,
    key: Key[Array, ""],
    start: Int[Array, ""],
    federation: FederatedData,
    *,
    rounds: int,
    devices: int = 1,
) -> Drawn:
    """Draw the cohorts of some rounds.

    Args:
        method: method with `cohort`.
        key: key of the run.
        start: rounds before these.
        federation: federation of the run.
        rounds: number of rounds.
        devices: devices to which the clients of a round are dealt by their number of examples, if
            more than one.
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
