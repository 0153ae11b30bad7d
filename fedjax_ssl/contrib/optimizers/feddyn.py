"""FedDyn: clients' objectives are bent towards the federation's optimum.

References:
    Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, as its authors' code
    has it.
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_ssl.checks import In, checked
from fedjax_ssl.federated import (
    Added,
    FederatedOptimizer,
    Grouped,
    Local,
    PyTree,
    RoundContext,
    Total,
    weighted,
    weighted_mean,
)


class _Dynamic(NamedTuple):
    """Message of FedDyn's server to a client. The client itself knows all of it except the sizes of
    the others.
    """

    own: Grouped  # h_k
    strength: Float[Array, ""]  # alpha_k


@checked
def feddyn(alpha: Annotated[float | Array, In("(0, inf)")] = 0.01) -> FederatedOptimizer:
    """FedDyn: every client's objective is bent so that its own optimum becomes the federation's.

    A client minimizes f_k(w) + alpha_k <w, h_k - w_global> + alpha_k/2 ||w||^2 and then adds its
    change to h_k, which starts at 0. The next model is the plain mean of the clients that trained,
    whatever `config.federated.weighting` says, plus the mean of h over all C clients, of which the
    server keeps that mean alone. As in the authors' code, alpha_k is alpha over the client's share
    of the examples times C. Batch statistics are averaged as in FedAvg. Every client keeps one
    vector of the model's size, the server another.

    Args:
        alpha: strength.

    Raises:
        ValueError: if alpha is not above 0.
    """

    def nothing(params: Grouped) -> PyTree:
        return jax.tree.map(jnp.zeros_like, params)

    def send(state: PyTree, kept: PyTree, context: RoundContext) -> _Dynamic:
        sizes = context.all_clients.num_examples.astype(jnp.result_type(float))
        own = context.clients.num_examples.astype(sizes.dtype)
        strength = alpha * jnp.mean(sizes, where=sizes > 0) / jnp.maximum(own, 1.0)
        # Replicas of the server count as clients of the mean size.
        members = jax.tree.leaves(kept)[0].shape[0]
        replicas = jnp.full(members - own.shape[0], alpha, strength.dtype)
        return _Dynamic(kept, jnp.concatenate([strength, replicas]))

    def correct(gradient: Grouped, params: Grouped, anchor: Grouped, received: _Dynamic) -> Grouped:
        own = {group: received.own[group] for group in gradient}
        return jax.tree.map(
            lambda g, w, w0, h: g + (received.strength * (h + w - w0)).astype(g.dtype),
            gradient,
            params,
            anchor,
            own,
        )

    def report(local: Local) -> tuple[PyTree, PyTree]:
        change = weighted(local.change, counts(local))
        return (), jax.tree.map(jnp.add, local.kept, change)

    def counts(local: Local) -> dict[str, Array]:
        return {g: (w > 0).astype(w.dtype) for g, w in local.weights.items()}

    def add(local: Local, reported: PyTree) -> Added:
        return counts(local), weighted(local.change, counts(local)), reported

    def apply(
        state: PyTree, anchor: Grouped, total: Total, context: RoundContext
    ) -> tuple[Grouped, PyTree]:
        change = weighted_mean(total.update, total.weights)
        state = jax.tree.map(
            lambda mean, total: mean + total / context.num_clients, state, total.update
        )
        params = {
            group: jax.tree.map(
                lambda w, d, h, some=total.weights[group] > 0: jnp.where(some, w + d + h, w),
                anchor[group],
                change[group],
                state[group],
            )
            for group in anchor
        }
        return params, state

    return FederatedOptimizer(
        nothing, apply, send=send, keep=nothing, correct=correct, report=report, add=add
    )
