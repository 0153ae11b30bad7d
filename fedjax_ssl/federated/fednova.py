"""FedNova: clients that take more local steps do not pull the model their way.

Source: Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020,
sections 4 and 5. In its notation client i takes tau_i steps and a_i holds the weight of each step's gradient in the
client's total change.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_ssl.checks import check_weights
from fedjax_ssl.federated import optimizers
from fedjax_ssl.federated.optimizers import FederatedOptimizer, Grouped, Local, Numbers, Report, Turn

PyTree = Any


def fednova(
    momentum: float | Array = 0.0, mu: float | Array = 0.0, *, nesterov: bool = False, adaptive: bool = False
) -> FederatedOptimizer:
    """FedNova: w <- w + tau_eff sum_i p_i (w_i - w) / ||a_i||_1 with tau_eff = sum_i p_i ||a_i||_1.

    p_i is the client's share of the aggregation weights. Where all clients take equally many steps this is FedAvg
    (FedProx with mu), up to rounding.

    Args:
        momentum: of the local SGD; has to be the local optimizer's.
        mu: strength of the proximal term mu/2 ||w - w_global||^2, which is added to the local objective.
        nesterov: whether that momentum is Nesterov's.
        adaptive: the local optimizer is no SGD (Adam, RMSProp): ||a_i||_1 is taken to be tau_i.

    Raises:
        ValueError: if mu is negative or momentum outside [0, 1).
    """
    check_weights(mu=mu)
    if isinstance(momentum, (int, float)) and not 0 <= momentum < 1:
        raise ValueError(f"FedNova: momentum is {momentum}; it must be in [0, 1)")

    def report(local: Local) -> Report:
        steps = local.num_steps
        norm = steps.astype(local.learning_rate.dtype)
        if not adaptive:
            norm = step_norm(steps, momentum, mu * local.learning_rate, nesterov=nesterov)
        shares = {g: jnp.where(norm > 0, w / jnp.where(norm > 0, norm, 1.0), 0.0) for g, w in local.weights.items()}
        summed = optimizers.weighted_change(local._replace(weights=shares)).summed
        return Report({**summed, "weight": local.weights, "norm": {g: w * norm for g, w in local.weights.items()}})

    def apply(state: PyTree, anchor: Grouped, summed: PyTree, turn: Turn) -> tuple[Grouped, PyTree]:
        norm, change = (optimizers.weighted_mean(summed[name], summed["weight"]) for name in ("norm", "change"))
        moved = {g: jax.tree.map(lambda w, d, n=norm[g]: w + n * d, anchor[g], change[g]) for g in anchor}
        return moved, state

    def sends(params: Grouped) -> Numbers:
        return Numbers(down=0, up=1)  # ||a_i||_1

    return optimizers.fedavg()._replace(correct=optimizers.proximal(mu), report=report, apply=apply, sends=sends)


def step_norm(
    num_steps: Int[Array, ""], momentum: float | Array = 0.0, shrinkage: float | Array = 0.0, *, nesterov: bool = False
) -> Float[Array, ""]:
    """||a||_1 of local SGD: how far equal gradients of size 1 carry a client, in learning rates.

    Found by taking the steps, so that momentum and proximal term may come together: tau without either;
    [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho) with momentum rho; (1 - (1 - s)^tau) / s with shrinkage s.

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
