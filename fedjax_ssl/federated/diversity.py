"""The gradient diversity of a round, for the log: of members' updates, or of gradients at the averaged model."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_ssl.federated.method import GradientPass, Metrics, Params, Sampler
from fedjax_ssl.federated.optimizers import FederatedOptimizer, Grouped, Local, Report, Turn
from fedjax_ssl.objectives.diversity import check_norm_order, diversity_of_groups, vector_norm

PyTree = Any


class Diversity(NamedTuple):
    """How it is measured: every group has a mean of its own, and all members of all groups count alike."""

    norm_ord: int = 2  # 2 or 1
    squared: bool = True  # norms are squared
    include_server: bool = True  # replicas of the server count


USUAL = Diversity()


def with_gradient_diversity(optimizer: FederatedOptimizer, how: Diversity = USUAL) -> FederatedOptimizer:
    """The same optimizer, whose rounds have the metric "gradient_diversity".

    Its vectors are the changes of the members in local training, from where each started. Every group has a mean of its
    own (`Groups`), and the diversity is averaged over all members of all groups that trained; see
    `fedjax_ssl.objectives.diversity`. It costs a sum of changes per group.

    Args:
        optimizer: any.
        how: norms, and who counts.

    Raises:
        ValueError: an order of the norm that is neither 1 nor 2.
    """
    check_norm_order(how.norm_ord)
    groups = optimizer.groups

    def membership(received: PyTree) -> Float[Array, " G"]:
        return groups.membership(received["optimizer"])

    def send(state: PyTree, kept: PyTree, turn: Turn) -> PyTree:
        is_client = jnp.arange(turn.ids.shape[0] + turn.members, dtype=jnp.int32) < turn.ids.shape[0]
        return {"optimizer": optimizer.send(state, kept, turn), "counts": is_client | how.include_server}

    def start(state: PyTree, received: PyTree, common: Grouped) -> Grouped:
        return optimizer.start(state, received["optimizer"], common)

    def correct(gradient: Grouped, params: Grouped, anchor: Grouped, received: PyTree) -> Grouped:
        return optimizer.correct(gradient, params, anchor, received["optimizer"])

    def report(local: Local) -> Report:
        inner = optimizer.report(local._replace(received=local.received["optimizer"]))
        change = jax.tree.map(jnp.subtract, local.params, local.anchor)
        trained = jnp.any(jnp.stack(list(local.weights.values())) > 0)
        mine = jnp.where(trained & local.received["counts"], membership(local.received), 0.0)
        return Report({"optimizer": inner.summed, **_share(change, mine, how)}, inner.kept)

    def apply(state: PyTree, anchor: Grouped, summed: PyTree, turn: Turn) -> tuple[Grouped, PyTree]:
        return optimizer.apply(state, anchor, summed["optimizer"], turn)

    def log(summed: PyTree, turn: Turn) -> dict[str, Array]:
        return {**optimizer.log(summed["optimizer"], turn), "gradient_diversity": _of_shares(summed, how)}

    return optimizer._replace(
        send=send,
        start=start,
        correct=correct,
        report=report,
        apply=apply,
        log=log,
        groups=groups._replace(membership=membership),
    )


def full_gradient_diversity(
    sampler: Sampler,
    how: Diversity = USUAL,
    *,
    server: Sampler | None = None,
    exclude_norm: bool = False,
    every: int = 1,
) -> GradientPass:
    """A gradient pass with the metric "full_gradient_diversity".

    Its vectors are the sums of the members' gradients over a pass over their examples, at the averaged model or at that
    of their group. It costs as much as a local epoch, and a sum of gradients per group.

    Args:
        sampler: batches of the pass.
        how: norms, and who counts.
        server: batches of the server, where it is a member of the average.
        exclude_norm: parameters of norm layers are left out: those of a module that has "norm" in its name.
        every: rounds of which the last one has the metric.

    Raises:
        ValueError: an order of the norm that is neither 1 nor 2.
    """
    check_norm_order(how.norm_ord)

    def report(gradients: Params, member: Float[Array, " G"]) -> PyTree:
        counted = _without_norm_layers(gradients) if exclude_norm else gradients
        return _share(counted, member, how)

    def log(summed: PyTree) -> Metrics:
        return {"full_gradient_diversity": _of_shares(summed, how)}

    return GradientPass(sampler, report, log, every, server if how.include_server else None)


def _without_norm_layers(gradients: Params) -> list[Array]:
    entries = jax.tree_util.tree_leaves_with_path(gradients)
    return [values for path, values in entries if "norm" not in jax.tree_util.keystr(path[-2:-1]).lower()]


def _share(vector: PyTree, member: Float[Array, " G"], how: Diversity) -> dict[str, PyTree]:
    """What a member adds to the sums of its group: 1, the norm of its vector, and the vector."""
    leaves = jax.tree.leaves(vector)
    norm = vector_norm(jnp.concatenate([jnp.ravel(x) for x in leaves]), how.norm_ord, how.squared)
    change = [member.reshape(-1, *[1] * x.ndim).astype(x.dtype) * x for x in leaves]
    return {"size": member, "norm": member * norm, "change": change}


def _of_shares(summed: dict[str, PyTree], how: Diversity) -> Float[Array, ""]:
    """The diversity, of what the members added."""
    size = summed["size"]
    sums = jnp.concatenate([x.reshape(size.shape[0], -1) for x in summed["change"]], axis=1)
    means = sums / jnp.maximum(size, 1.0)[:, None]
    norms = jax.vmap(lambda mean: vector_norm(mean, how.norm_ord, how.squared))(means)
    return diversity_of_groups(summed["norm"], norms, size)
