"""Rounds in one compiled loop, and the evaluation after them."""

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from fedjax_ssl import federated
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import Method, ServerState
from fedjax_ssl.federated.contract import Metrics

ROUNDS = "rounds"  # scope in which rounds are traced: profiles and compiled programs show this name
# Metric: consecutive rounds up to this one without any finite update.
DIVERGED_ROUNDS = "diverged_rounds"
TOTALS = ("bytes_down", "bytes_up", "local_steps", "examples", "clients", "dropped_clients")
TOTALS_IF_THERE = ("lost_clients",)  # totals of runs with unreliable clients


def blocks(end: int, every: int, done: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the blocks of rounds up to `end`, with an evaluation after each: (rounds before it, its
    length).

    Args:
        end: the last round.
        every: rounds between evaluations, counted from the first round.
        done: rounds that are done.
    """
    while done < end:
        rounds = min(every - done % every, end - done)
        yield done, rounds
        done += rounds


def run_rounds(
    method: Method,
    key: Key[Array, ""],
    state: ServerState,
    federation: FederatedData,
    rounds: int,
    saved: int | None = None,
) -> tuple[ServerState, Metrics]:
    """Run rounds in one compiled loop.

    With a round `saved`, the metrics also have the clients' models of that round, as
    `CLIENT_MODELS`; then the method is executed with `keep_models`.

    Returns:
        (state, metrics): "round" is the number of rounds done; counts and bytes are sums,
        "diverged_rounds" counts the rounds at the end in which no update was finite, everything
        else is the mean over the rounds in which it was defined.
    """

    def one_round(
        carry: tuple[ServerState, Any], _: Any = None
    ) -> tuple[tuple[ServerState, Any], Metrics]:
        state, info = method.round(key, carry[0], federation)
        if saved is None:
            return (state, None), info
        models = info.pop(federated.CLIENT_MODELS, None)
        due = state.round == saved
        if method.recipe.on_host:
            return (state, models if due else carry[1]), info
        return (state, jax.tree.map(partial(jnp.where, due), models, carry[1])), info

    kept: Any = None
    if saved and not method.recipe.on_host:
        shapes = jax.eval_shape(
            lambda s: method.round(key, s, federation)[1].get(federated.CLIENT_MODELS), state
        )
        kept = jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), shapes)
    with jax.named_scope(ROUNDS):
        if method.recipe.on_host:
            (state, kept), infos = _one_by_one(one_round, (state, kept), rounds)
        else:
            (state, kept), infos = jax.lax.scan(one_round, (state, kept), length=rounds)

    def summed(name: str, values: Any) -> Any:
        if isinstance(values, federated.Count):
            return values.of_all_rounds()
        if name in TOTALS_IF_THERE:  # missing in stages in which only the server trains
            return jnp.nansum(values)
        return jnp.sum(values) if name in TOTALS else jnp.nanmean(values)

    metrics = {name: summed(name, values) for name, values in infos.items()}
    metrics |= {federated.CLIENT_MODELS: kept} if saved else {}
    return state, {"round": state.round, **metrics, DIVERGED_ROUNDS: _rounds_in_vain(infos)}


def _rounds_in_vain(infos: Metrics) -> Int[Array, ""]:
    """Count the last rounds in a row in which every update was dropped."""
    dropped = infos["dropped_clients"] > 0
    if "server_dropped" in infos:
        dropped = dropped | (infos["server_dropped"] > 0)
    in_vain = dropped & (infos["local_steps"] == 0)
    return jnp.sum(jnp.cumprod(in_vain[::-1].astype(jnp.int32)), dtype=jnp.int32)


def _one_by_one(
    one_round: Callable[[Any], tuple[Any, Metrics]], carry: Any, rounds: int
) -> tuple[Any, Metrics]:
    """Scan rounds that cannot be traced; a metric that a stage lacks is NaN."""
    infos: list[Metrics] = []
    for _ in range(rounds):
        carry, info = one_round(carry)
        infos.append(info)
    missing = jnp.full((), jnp.nan)
    names = sorted(set().union(*infos))
    by_name = {name: [info.get(name, missing) for info in infos] for name in names}
    return carry, {
        name: sum(values, start=federated.count(0))
        if isinstance(values[0], federated.Count)
        else jnp.stack(values)
        for name, values in by_name.items()
    }


def run_block(
    method: Method,
    state: ServerState,
    key: Key[Array, ""],
    federation: FederatedData,
    rounds: int,
    metrics: Collection[str] = (),
    saved: int | None = None,
) -> tuple[ServerState, Metrics]:
    """Run a block: rounds, and the evaluation after them, with further `metrics`.

    The result is that of `run_rounds`; every other metric is a scalar, except `BY_CLIENT` and
    `GLOBAL_BY_CLIENT` of `fedjax_ssl.federated`.
    """
    state, infos = run_rounds(method, key, state, federation, rounds, saved)
    return state, {**infos, **federated.evaluate(method, state, federation, metrics=metrics)}
