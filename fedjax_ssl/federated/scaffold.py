"""SCAFFOLD: control variates take out the drift of clients whose gradients differ.

Source: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020, Algorithm 1
with option II. In its notation c is the server's variate and c_i that of client i.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from fedjax_ssl.federated.optimizers import FederatedOptimizer, Grouped, Local, Numbers, Report, weighted_mean

PyTree = Any


def scaffold(server_learning_rate: float | Array = 1.0) -> FederatedOptimizer:
    """SCAFFOLD, for local SGD without momentum.

    A local step is w <- w - rate (g - c_i + c). Afterwards c_i+ = c_i - c + (w_global - w_i) / (steps * rate), the
    model moves by `server_learning_rate` times the weighted mean change of the clients, and c by 1/C times the sum of
    c_i+ - c_i over the clients that trained. All variates start at 0. A client that was not drawn, took no step or
    was dropped keeps its variate. The state holds C + 1 vectors of the model's size.

    Local optimizers that do more than subtract rate times gradient (momentum, Adam, clipping) would make
    (w_global - w_i) / (steps * rate) something else than a mean gradient; a config with one is refused.

    Args:
        server_learning_rate: 1 adopts the mean model, as FedAvg does.

    Raises:
        ValueError: if the rate is negative.
    """
    if isinstance(server_learning_rate, (int, float)) and server_learning_rate < 0:
        raise ValueError(f"SCAFFOLD: server_learning_rate is {server_learning_rate}; it must be >= 0")

    def init(params: Grouped, num_clients: int) -> PyTree:
        everyone = jax.tree.map(lambda w: jnp.zeros((num_clients, *w.shape), w.dtype), params)
        return {"server": jax.tree.map(jnp.zeros_like, params), "clients": everyone}

    def send(state: PyTree, ids: Int[Array, " p"]) -> PyTree:
        """c - c_i: in both places where the variates are used, it is their difference that counts."""
        return jax.tree.map(lambda h, table: h - table.at[ids].get(mode="clip"), state["server"], state["clients"])

    def correct(gradient: Grouped, params: Grouped, anchor: Grouped, variates: PyTree) -> Grouped:
        return {group: jax.tree.map(jnp.add, g, variates[group]) for group, g in gradient.items()}

    def report(local: Local) -> Report:
        distance = local.num_steps.astype(local.weight.dtype) * local.learning_rate
        moved = (local.weight > 0) & (distance > 0)  # a rate of 0 says nothing about the gradient
        scale = jnp.where(moved, 1.0 / jnp.where(moved, distance, 1.0), 0.0)
        update = jax.tree.map(lambda w, w0: scale * (w0 - w), local.params, local.anchor)  # mean of a local step
        summed = {
            "weight": local.weight,
            "change": jax.tree.map(lambda w, w0: local.weight * (w - w0), local.params, local.anchor),
            "update": update,
            "moved": moved.astype(local.weight.dtype),
        }
        return Report(summed, {"variate": jax.tree.map(jnp.subtract, update, local.variates), "moved": moved})

    def apply(
        state: PyTree, anchor: Grouped, summed: PyTree, kept: PyTree, ids: Int[Array, " p"], counts: Bool[Array, " p"]
    ) -> tuple[Grouped, PyTree]:
        change = weighted_mean(summed["change"], summed["weight"])
        params = jax.tree.map(lambda w, d: w + server_learning_rate * d, anchor, change)

        def move(h: Array, table: Array, update: Array) -> Array:
            return h + (update - summed["moved"] * h) / table.shape[0]  # c_i+ - c_i is the mean update less c

        def keep(table: Array, new: Array) -> Array:
            # Rows of clients that keep their variate go where empty slots of the cohort go: outside.
            rows = jnp.where(counts & kept["moved"], ids, table.shape[0])
            return table.at[rows].set(new, mode="drop")

        server = jax.tree.map(move, state["server"], state["clients"], summed["update"])
        return params, {"server": server, "clients": jax.tree.map(keep, state["clients"], kept["variate"])}

    def sends(params: Grouped) -> Numbers:
        size = sum(values.size for values in jax.tree.leaves(params))
        return Numbers(down=size, up=size)  # c, and c_i+ - c_i: clients know their own variate

    return FederatedOptimizer(init, send, correct, report, apply, sends)
