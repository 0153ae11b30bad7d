"""Where a run's examples lie: all on the device, or on the host, from where each block of rounds gets its cohorts'.

Who takes part in a round follows from the run's key and the round alone, so the examples of the coming block are known
while the present one computes, and a thread brings them. The program is the same, and so is every number it gives.
"""

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from fedjax_ssl import distributed, federated, processor
from fedjax_ssl.backend import backend
from fedjax_ssl.config import ConfigError
from fedjax_ssl.data import (
    Drawn,
    FederatedData,
    HostInputs,
    LoadedInputs,
    NotOnDevice,
    most_rows,
    with_cohorts,
)
from fedjax_ssl.experiment.build import Experiment, build_method, execution_of, prediction_settings
from fedjax_ssl.experiment.programs import Code, Inputs
from fedjax_ssl.federated import Method
from fedjax_ssl.federated.memory import USABLE, tree_bytes
from fedjax_ssl.tracking import bytes_in_words
from fedjax_ssl.words import counted

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
    if jax.process_count() > 1:
        return False  # machines may differ, and their programs must not
    memory = processor.memory() if backend() == "cpu" else federated.device_memory()
    return memory is not None and size > SHARE * memory


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
    needed = bytes_on_device(experiment, federation)
    if execution.memory is not None and needed > USABLE * execution.memory:
        return (
            f"the examples of two blocks of {config.eval_every} rounds take up to {bytes_in_words(needed)}, and the "
            f"device has {bytes_in_words(execution.memory)}. Lower config.eval_every or config.federated.cohort_size"
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


def bytes_on_device(experiment: Experiment, federation: FederatedData) -> int:
    """Bytes of a device that examples take at most: of the block that computes, and of the one that is brought.

    Args:
        experiment: with or without `host`.
        federation: of it.
    """
    if experiment.host is None:
        return tree_bytes(federation.inputs)
    config = experiment.config
    width = most_rows(federation, min(config.eval_every, config.rounds) * _cohort_size(experiment, federation))
    return 3 * tree_bytes(federation.inputs) + 2 * experiment.host.bytes_of(width)


def _cohort_size(experiment: Experiment, federation: FederatedData) -> int:
    return min(experiment.config.federated.cohort_size or federation.num_clients, federation.num_clients)


class Feed:
    """Gives every block of rounds its inputs. Use it as a context manager, or call `close` at the end."""

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
        self._federation, self._key = federation, jax.random.key(experiment.config.seed)
        self._size, self._every = _cohort_size(experiment, federation), experiment.config.eval_every
        self._rounds = experiment.config.rounds
        self._draw = None if method.cohort is None else jax.jit(partial(cohorts_of, method), static_argnames="rounds")
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
        following = min(self._every - after % self._every, self._rounds - after)
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
        always = self._always()
        block = min(self._every, self._rounds)
        width = most_rows(self._federation, block * self._size)
        kept, coming, all_of_them = map(
            bytes_in_words, (tree_bytes(always.values), self._host.bytes_of(width), self._host.nbytes)
        )
        return (
            f"examples stay on the host ({all_of_them}); on the device are {len(always.values):,} for evaluation and "
            f"server ({kept}) and those of the clients of {counted(block, 'round')} (at most {width:,}, "
            f"{coming}){', while the next ones are brought' * (block < self._rounds)}"
        )

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
        width = most_rows(self._federation, drawn.ids.shape[0] * self._size)
        loaded = with_cohorts(self._host, self._always(), self._federation, drawn, width)
        loaded = distributed.share_out(loaded, self._mesh)
        return self._inputs._replace(federation=dataclasses.replace(self._inputs.federation, inputs=loaded))


def cohorts_of(
    method: Method, key: Key[Array, ""], start: Int[Array, ""], federation: FederatedData, *, rounds: int
) -> Drawn:
    """Who takes part in some rounds.

    Args:
        method: with `cohort`.
        key: of the run.
        start: rounds before these.
        federation: of the run.
        rounds: how many.
    """
    draw = method.cohort
    assert draw is not None
    numbers = start + jnp.arange(rounds, dtype=jnp.int32)
    return Drawn(start, *jax.lax.map(lambda number: draw(key, number, federation), numbers))
