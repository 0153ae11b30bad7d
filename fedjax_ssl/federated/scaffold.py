"""SCAFFOLD: control variates take out the drift of clients whose gradients differ.

Source: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020, Algorithm 1
with option II. In its notation c is the server's variate and c_i that of client i.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedjax_ssl.checks import check_weights
from fedjax_ssl.federated import optimizers
from fedjax_ssl.federated.optimizers import FederatedOptimizer, Grouped, Local, Numbers, Report, Turn

PyTree = Any


def scaffold(server_learning_rate: float | Array = 1.0) -> FederatedOptimizer:
    """SCAFFOLD, for local SGD without momentum.

    A local step is w <- w - rate (g - c_i + c). Afterwards c_i+ = c_i - c + (w_global - w_i) / (steps * rate), the
    model moves by `server_learning_rate` times the weighted mean change of the clients, and c by 1/C times the sum of
    c_i+ - c_i over the clients that trained. All variates start at 0. A client that was not drawn, took no step or
    was dropped keeps its variate. Every client keeps one vector of the model's size, the server another.

    Local optimizers that do more than subtract rate times gradient (momentum, Adam, clipping) would make
    (w_global - w_i) / (steps * rate) something else than a mean gradient; a config with one is refused.

    Args:
        server_learning_rate: 1 adopts the mean model, as FedAvg does.

    Raises:
        ValueError: if the rate is negative.
    """
    check_weights(server_learning_rate=server_learning_rate)

    def send(state: PyTree, kept: PyTree, turn: Turn) -> PyTree:
        """c - c_i: in both places where the variates are used, it is their difference that counts."""
        return jax.tree.map(jnp.subtract, state, kept)

    def correct(gradient: Grouped, params: Grouped, anchor: Grouped, received: PyTree) -> Grouped:
        return {group: jax.tree.map(jnp.add, g, received[group]) for group, g in gradient.items()}

    def report(local: Local) -> Report:
        distance = local.num_steps.astype(local.learning_rate.dtype) * local.learning_rate
        trained = jnp.any(jnp.stack(list(local.weights.values())) > 0)
        moved = trained & (distance > 0)  # a rate of 0 says nothing about the gradient
        scale = jnp.where(moved, 1.0 / jnp.where(moved, distance, 1.0), 0.0)
        update = jax.tree.map(lambda w, w0: scale * (w0 - w), local.params, local.anchor)  # mean of a local step
        summed = {**optimizers.weighted_change(local).summed, "update": update, "moved": moved.astype(scale.dtype)}
        variate = jax.tree.map(
            lambda u, difference, old: jnp.where(moved, u - difference, old), update, local.received, local.kept
        )
        return Report(summed, variate)

    def apply(state: PyTree, anchor: Grouped, summed: PyTree, turn: Turn) -> tuple[Grouped, PyTree]:
        change = optimizers.weighted_mean(summed["change"], summed["weight"])
        params = jax.tree.map(lambda w, d: w + server_learning_rate * d, anchor, change)
        # c_i+ - c_i is the mean update less c.
        variate = jax.tree.map(
            lambda c, update: c + (update - summed["moved"] * c) / turn.num_clients, state, summed["update"]
        )
        return params, variate

    def nothing(params: Grouped) -> PyTree:
        return jax.tree.map(jnp.zeros_like, params)

    def sends(params: Grouped) -> Numbers:
        size = sum(values.size for values in jax.tree.leaves(params))
        return Numbers(down=size, up=size)  # c, and c_i+ - c_i: clients know their own variate

    return FederatedOptimizer(nothing, apply, send=send, keep=nothing, correct=correct, report=report, sends=sends)
