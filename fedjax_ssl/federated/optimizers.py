"""Federated optimizers: how local training is corrected and how clients' results become the next global model.

Parameters reach these functions as a `dict` of group -> few arrays (`fedjax_ssl.federated.packing`). Sources: FedAvg
(McMahan et al., AISTATS 2017), FedProx (Li et al., MLSys 2020), FedOpt (Reddi et al., ICLR 2021).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.federated.local_optimizer import standard_promotion

PyTree = Any
Grouped = dict[str, PyTree]  # parameter group -> arrays


class Report(NamedTuple):
    """What one client contributes to the server's step."""

    summed: PyTree  # added over the cohort in client order
    kept: PyTree  # stacked over the cohort


class Local(NamedTuple):
    """One client's local training, as a federated optimizer sees it."""

    anchor: Grouped  # parameters as received
    params: Grouped  # parameters after local training
    weight: Float[Array, ""]  # aggregation weight; 0 if the client trained nothing or its update was dropped
    num_steps: Int[Array, ""]
    learning_rate: Float[Array, ""]
    variates: PyTree  # as received


class Numbers(NamedTuple):
    """How many numbers a federated optimizer sends to and from each client beside the model."""

    down: int
    up: int


class FederatedOptimizer(NamedTuple):
    """Pure functions; combine with every method."""

    init: Callable[[Grouped, int], PyTree]  # (parameters, number of clients) -> state
    send: Callable[[PyTree, Int[Array, " p"]], PyTree]  # (state, ids) -> variates, leading axis p
    correct: Callable[[Grouped, Grouped, Grouped, PyTree], Grouped]
    # ^ (gradient, params, anchor, variates) -> gradient, each of one group at a time but the variates, which are whole
    report: Callable[[Local], Report]
    apply: Callable[[PyTree, Grouped, PyTree, PyTree, Int[Array, " p"], Bool[Array, " p"]], tuple[Grouped, PyTree]]
    # ^ (state, anchor, summed, kept, ids, which clients count) -> (parameters, state)
    sends: Callable[[Grouped], Numbers] = lambda params: Numbers(
        0, 0
    )  # for the count of bytes; of a client's parameters


def fedavg() -> FederatedOptimizer:
    """FedAvg: the next model is the weighted mean of the clients' models.

    Written as anchor + weighted mean of the clients' changes, so that a round in which nobody trained changes nothing.
    """
    return fedopt(None)


def fedprox(mu: float) -> FederatedOptimizer:
    """FedProx: FedAvg whose local objective has mu/2 ||w - w_global||^2 added; mu = 0 is FedAvg.

    Args:
        mu: strength of the proximal term, >= 0.

    Raises:
        ValueError: if mu is negative.
    """
    if isinstance(mu, (int, float)) and mu < 0:
        raise ValueError(f"FedProx: mu is {mu}; it must be >= 0")

    return fedavg()._replace(correct=proximal(mu))


def proximal(mu: float | Array) -> Callable[[Grouped, Grouped, Grouped, PyTree], Grouped]:
    """The correction by the gradient of mu/2 ||w - w_global||^2."""

    def correct(gradient: Grouped, params: Grouped, anchor: Grouped, variates: PyTree) -> Grouped:
        return jax.tree.map(lambda g, w, w0: g + mu * (w - w0), gradient, params, anchor)

    return correct


def fedopt(server_optimizer: optax.GradientTransformation | None) -> FederatedOptimizer:
    """FedOpt: the mean change of the clients is a pseudo-gradient for a server-side optimizer.

    Args:
        server_optimizer: for example `optax.adam(1e-2, b1=0.9, b2=0.99, eps=1e-3)` for FedAdam, `optax.yogi` for
            FedYogi, or `optax.sgd(1.0, momentum=0.5)` for FedAvgM (server momentum: v <- momentum v + g,
            W <- W - rate v for the pseudo-gradient g; Hsu et al., 2019). None applies the mean change as it is, which
            is FedAvg.
    """

    def init(params: Grouped, num_clients: int) -> PyTree:
        return () if server_optimizer is None else server_optimizer.init(params)

    def report(local: Local) -> Report:
        change = jax.tree.map(lambda w, w0: local.weight * (w - w0), local.params, local.anchor)
        return Report({"weight": local.weight, "change": change}, ())

    def apply(
        state: PyTree, anchor: Grouped, summed: PyTree, kept: PyTree, ids: Array, counts: Array
    ) -> tuple[Grouped, PyTree]:
        change = weighted_mean(summed["change"], summed["weight"])
        if server_optimizer is None:
            return jax.tree.map(jnp.add, anchor, change), state
        updates, new_state = standard_promotion(server_optimizer).update(
            jax.tree.map(jnp.negative, change), state, anchor
        )
        moved = optax.apply_updates(anchor, updates)
        trained = summed["weight"] > 0
        return _where(trained, moved, anchor), _where(trained, new_state, state)

    return FederatedOptimizer(
        init=init,
        send=lambda state, ids: (),
        correct=lambda gradient, params, anchor, variates: gradient,
        report=report,
        apply=apply,
    )


def weighted_mean(totals: PyTree, weight: Float[Array, ""]) -> PyTree:
    """Weighted sums divided by the sum of the weights; 0 where nothing has weight."""
    scale = jnp.where(weight > 0, 1.0 / jnp.where(weight > 0, weight, 1.0), 0.0)
    return jax.tree.map(lambda total: scale * total, totals)


def _where(condition: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)
