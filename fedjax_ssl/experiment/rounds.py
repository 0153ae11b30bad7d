"""Rounds in one compiled loop, the evaluation after them, and both as a program that is timed."""

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Key

from fedjax_ssl import federated
from fedjax_ssl.config import ConfigError, naming
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import Method, ServerState
from fedjax_ssl.federated.method import Metrics

TOTALS = ("bytes_down", "bytes_up", "local_steps", "examples", "clients", "dropped_clients")


def run_rounds(
    method: Method, key: Key[Array, ""], state: ServerState, federation: FederatedData, rounds: int
) -> tuple[ServerState, Metrics]:
    """Runs rounds in one compiled loop.

    Returns:
        (state, metrics): "round" is the number of rounds done; counts and bytes are sums, everything else is the mean
        over the rounds in which it was defined.
    """
    if method.on_host:
        state, infos = _one_by_one(method, key, state, federation, rounds)
    else:
        state, infos = jax.lax.scan(lambda s, _: method.round(key, s, federation), state, length=rounds)

    def summed(name: str, values: Any) -> Any:
        if isinstance(values, federated.Count):
            return values.total()
        return jnp.sum(values) if name in TOTALS else jnp.nanmean(values)

    return state, {"round": state.round, **{name: summed(name, values) for name, values in infos.items()}}


def _one_by_one(
    method: Method, key: Key[Array, ""], state: ServerState, federation: FederatedData, rounds: int
) -> tuple[ServerState, Metrics]:
    """What a scan returns, of rounds that cannot be traced; NaN where a stage does not have a metric of another one."""
    infos: list[Metrics] = []
    for _ in range(rounds):
        state, info = method.round(key, state, federation)
        infos.append(info)
    missing = jnp.full((), jnp.nan)
    names = sorted(set().union(*infos))
    return state, {
        name: jax.tree.map(lambda *values: jnp.stack(values), *(info.get(name, missing) for info in infos))
        for name in names
    }


def run_block(
    method: Method, state: ServerState, key: Key[Array, ""], federation: FederatedData, rounds: int
) -> tuple[ServerState, Metrics]:
    """Rounds and the evaluation after them: what a run executes, logs and checkpoints; returns as `run_rounds`."""
    state, infos = run_rounds(method, key, state, federation, rounds)
    return state, {**infos, **federated.evaluate(method, state, federation)}


class Programs:
    """The compiled rounds and evaluation of a run, compiled when first needed and timed apart from running."""

    def __init__(self, method: Method, key: Key[Array, ""], federation: FederatedData, mesh: Mesh | None = None):
        self._method, self._arguments = method, (key, federation)
        # Whole on every device: otherwise a process could not read what lies on those of another one.
        everywhere = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        self._placed: dict[str, Any] = {} if mesh is None else {"in_shardings": everywhere, "out_shardings": everywhere}
        self._compiled: dict[int, Callable[..., tuple[ServerState, Metrics]]] = {}

    def compile(self, state: ServerState, rounds: int) -> Callable[..., tuple[ServerState, Metrics]]:
        """`run_block` as a program of (state, key, federation); the new state takes the place of the old one in memory.

        Raises:
            ConfigError: a setting that a method checks only when it is traced, or not enough memory.
        """
        if self._method.on_host:
            return partial(run_block, self._method, rounds=rounds)
        block = jax.jit(partial(run_block, self._method, rounds=rounds), donate_argnums=0, **self._placed)
        with naming("method"):
            # Traced without their places: what local training reads of them would clash with the places that
            # `shard_map` gives to the clients.
            shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (state, *self._arguments))
            lowered = block.lower(*shapes)
        with _explaining_memory():
            return lowered.compile()

    def advance(self, state: ServerState, rounds: int, seconds: dict[str, float]) -> tuple[dict[str, Any], ServerState]:
        """Runs rounds and an evaluation; adds the time to `seconds`. Returns (metric row, new state)."""
        if rounds not in self._compiled:
            begin = time.perf_counter()
            self._compiled[rounds] = self.compile(state, rounds)
            seconds["compile_seconds"] += time.perf_counter() - begin
        begin = time.perf_counter()
        with _explaining_memory():
            state, metrics = self._compiled[rounds](state, *self._arguments)
            row = {name: value.item() for name, value in federated.to_numbers(jax.device_get(metrics)).items()}
        elapsed = time.perf_counter() - begin
        seconds["train_seconds"] += elapsed
        row["seconds"] = elapsed
        row["client_updates_per_second"] = row["clients"] / elapsed
        return row, state


@contextlib.contextmanager
def _explaining_memory() -> Iterator[None]:
    """Says which settings to lower where a device has not enough memory."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise ConfigError(
            "the device has not enough memory for a round. Lower config.federated.chunk_size (clients at once, which "
            "the run chooses where it is not given; with placement 'chunked' or 'lanes'), config.optimizer.batch_size "
            "or config.federated.cohort_size, try --config.precision=bf16, or share the cohort with "
            f"--config.federated.devices. ({str(error).splitlines()[0]})"
        ) from error
