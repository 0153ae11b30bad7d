"""The gradient diversity of a round, for the log: a federated optimizer that also says how its members disagree."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedjax_ssl.federated.optimizers import FederatedOptimizer, Grouped, Local, Report, Turn
from fedjax_ssl.objectives.diversity import check_norm_order, diversity_of_groups, vector_norm

PyTree = Any


def with_gradient_diversity(
    optimizer: FederatedOptimizer, norm_ord: int = 2, squared: bool = True, include_server: bool = True
) -> FederatedOptimizer:
    """The same optimizer, whose rounds have the metric "gradient_diversity".

    Its vectors are the changes of the members in local training, from where each started. Every group has a mean of its
    own (`Groups`), and the diversity is averaged over all members of all groups that trained; see
    `fedjax_ssl.objectives.diversity`. It costs a sum of changes per group.

    Args:
        optimizer: any.
        norm_ord: 2 or 1.
        squared: norms are squared.
        include_server: replicas of the server count.

    Raises:
        ValueError: another `norm_ord`.
    """
    check_norm_order(norm_ord)
    groups = optimizer.groups

    def send(state: PyTree, kept: PyTree, turn: Turn) -> PyTree:
        is_client = jnp.arange(turn.ids.shape[0] + turn.members, dtype=jnp.int32) < turn.ids.shape[0]
        return {"optimizer": optimizer.send(state, kept, turn), "counts": is_client | include_server}

    def start(state: PyTree, received: PyTree, common: Grouped) -> Grouped:
        return optimizer.start(state, received["optimizer"], common)

    def correct(gradient: Grouped, params: Grouped, anchor: Grouped, received: PyTree) -> Grouped:
        return optimizer.correct(gradient, params, anchor, received["optimizer"])

    def report(local: Local) -> Report:
        inner = optimizer.report(local._replace(received=local.received["optimizer"]))
        change = jax.tree.leaves(jax.tree.map(jnp.subtract, local.params, local.anchor))
        trained = jnp.any(jnp.stack(list(local.weights.values())) > 0)
        mine = jnp.where(trained & local.received["counts"], groups.membership(local.received["optimizer"]), 0.0)
        norm = vector_norm(jnp.concatenate([jnp.ravel(x) for x in change]), norm_ord, squared)
        sums = [mine.reshape(-1, *[1] * x.ndim).astype(x.dtype) * x for x in change]
        return Report({"optimizer": inner.summed, "size": mine, "norm": mine * norm, "change": sums}, inner.kept)

    def apply(state: PyTree, anchor: Grouped, summed: PyTree, turn: Turn) -> tuple[Grouped, PyTree]:
        return optimizer.apply(state, anchor, summed["optimizer"], turn)

    def log(summed: PyTree, turn: Turn) -> dict[str, Array]:
        size = summed["size"]
        sums = jnp.concatenate([x.reshape(groups.number, -1) for x in summed["change"]], axis=1)
        means = sums / jnp.maximum(size, 1.0)[:, None]
        norms = jax.vmap(lambda mean: vector_norm(mean, norm_ord, squared))(means)
        diversity = diversity_of_groups(summed["norm"], norms, size)
        return {**optimizer.log(summed["optimizer"], turn), "gradient_diversity": diversity}

    return optimizer._replace(send=send, start=start, correct=correct, report=report, apply=apply, log=log)
