"""FedNova: clients' changes are normalized by their numbers of local steps.

References:
    Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated
    Optimization, NeurIPS 2020, sections 4 and 5. Client i takes tau_i steps, and a_i holds the
    weight of each step's gradient in its change.
"""

from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_ssl.checks import In, checked
from fedjax_ssl.federated import (
    PLAIN_SGD,
    Added,
    FederatedOptimizer,
    Grouped,
    Local,
    LocalSettings,
    Numbers,
    PyTree,
    RoundContext,
    Total,
    fedprox,
    weighted,
    weighted_mean,
)


@checked
def fednova(
    mu: Annotated[float | Array, In("[0, inf)")] = 0.0, *, local: LocalSettings = PLAIN_SGD
) -> FederatedOptimizer:
    """FedNova: w <- w + tau_eff sum_i p_i (w_i - w) / ||a_i||_1 with tau_eff = sum_i p_i ||a_i||_1.

    p_i is the client's share of the aggregation weights. Where all clients take equally many steps
    this is FedAvg (FedProx with mu), up to rounding.

    Args:
        mu: pull towards the global model: mu/2 ||w - w_global||^2 is added to the local objective.
        local: the clients' optimizer. ||a_i||_1 follows from SGD's momentum; of others (Adam,
            RMSProp) it is taken to be tau_i.

    Raises:
        ValueError: if mu is negative, or its product with the rate is not below 1.
    """
    shrinkage = mu * local.learning_rate
    if isinstance(shrinkage, float) and shrinkage >= 1:
        raise ValueError(
            f"mu is {mu} and config.optimizer.learning_rate {local.learning_rate}; with fednova "
            "their product must be below 1"
        )

    def report(client: Local) -> tuple[PyTree, PyTree]:
        norm = client.num_steps.astype(client.learning_rate.dtype)
        if local.name == "sgd":
            norm = step_norm(
                client.num_steps,
                local.momentum,
                mu * client.learning_rate,
                nesterov=local.nesterov,
            )
        return norm, ()

    def add(client: Local, norm: PyTree) -> Added:
        shares = {
            g: jnp.where(norm > 0, w / jnp.where(norm > 0, norm, 1.0), 0.0)
            for g, w in client.weights.items()
        }
        norms = {g: w * norm for g, w in client.weights.items()}
        return client.weights, weighted(client.change, shares), norms

    def apply(
        state: PyTree, anchor: Grouped, total: Total, context: RoundContext
    ) -> tuple[Grouped, PyTree]:
        norm = weighted_mean(total.reported, total.weights)
        change = weighted_mean(total.update, total.weights)
        moved = {
            g: jax.tree.map(lambda w, d, n=norm[g]: w + n * d, anchor[g], change[g]) for g in anchor
        }
        return moved, state

    def sends(params: Grouped) -> Numbers:
        return Numbers(down=0, up=1)  # ||a_i||_1

    return fedprox(mu)._replace(report=report, add=add, apply=apply, sends=sends)


def step_norm(
    num_steps: Int[Array, ""],
    momentum: float | Array = 0.0,
    shrinkage: float | Array = 0.0,
    *,
    nesterov: bool = False,
) -> Float[Array, ""]:
    """Return ||a||_1 of local SGD: the distance that equal gradients of size 1 move a client, in
    learning rates.

    It is computed by taking the steps, so that momentum and proximal term can be combined: tau
    without either; [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho) with momentum rho; (1 - (1 -
    s)^tau) / s with shrinkage s.

    Args:
        num_steps: tau.
        momentum: rho, in [0, 1).
        shrinkage: s, learning rate times mu, below 1 (above, gradients may count negatively).
        nesterov: Nesterov momentum.
    """

    def step(_: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        distance, velocity = state
        gradient = 1.0 - shrinkage * distance
        velocity = momentum * velocity + gradient
        return distance + (gradient + momentum * velocity if nesterov else velocity), velocity

    return jax.lax.fori_loop(0, num_steps, step, (jnp.zeros(()), jnp.zeros(())))[0]
