"""Grouped averaging: the slots of a cohort form groups with one model each, and groups mix through
few members only.

Source: the public code of "Improving semi-supervised federated learning by reducing the gradient
diversity of models" (FedRGD; Zhang et al., IEEE Big Data 2021, arXiv 2008.11364). Shapes: p
clients, m replicas of the server, S groups.
"""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fedjax_ssl.checks import Whole, checked
from fedjax_ssl.federated.contract import Grouped, RoundContext
from fedjax_ssl.federated.messages import Total
from fedjax_ssl.federated.optimizers import (
    Added,
    FederatedOptimizer,
    Local,
    fedavg,
    mean_scale,
)
from fedjax_ssl.federated.setup import Facts

PyTree = Any
CODE_SIZES = {47: (10, 10, 10, 10, 7)}  # group sizes in the authors' EMNIST runs


class Averaging(NamedTuple):
    """Groups of clients that are averaged together; the next global model is the plain mean of
    the S group models.
    """

    weights: Float[np.ndarray, "S slots"]
    # ^ weights of every slot in every group's next model; rows sum to 1
    starts: Int[np.ndarray, " slots"]
    # ^ the group whose model a slot starts from; S: the global model


def averaging(
    sizes: tuple[int, ...], num_replicas: int, broadcast_global: bool = False
) -> Averaging:
    """Return the slots of all groups in turn, followed by the replicas of the server.

    With replicas, clients start from the model of their group and replicas from the global one, so
    that the groups mix through the replicas alone. Without, two client slots are the bridge: the
    first of group 0 and the last of group 1 start from the global model.

    Args:
        sizes: client slots of each group.
        num_replicas: one per group; 1: a member of every group; 0: no replicas.
        broadcast_global: every slot starts from the global model.

    Raises:
        ValueError: another number of replicas, or none and not two groups.
    """
    num_groups = len(sizes)
    num_clients = sum(sizes)
    if num_replicas not in (0, 1, num_groups):
        raise ValueError(
            f"{num_replicas} replicas of the server for {num_groups} groups; allowed: 0, 1, "
            f"{num_groups}"
        )
    if not num_replicas and not broadcast_global and num_groups != 2:
        raise ValueError(
            f"{num_groups} groups without replicas of the server never mix; use 2 groups, which "
            "two clients bridge, broadcast_global, or a method whose server is a member of the "
            "average"
        )
    group = np.repeat(np.arange(num_groups), sizes)
    of_replicas = (
        np.eye(num_groups) if num_replicas == num_groups else np.ones((num_groups, num_replicas))
    )
    weights = np.concatenate([np.eye(num_groups)[:, group], of_replicas], axis=1)
    starts = np.concatenate([group, np.full(num_replicas, num_groups)])
    if broadcast_global:
        starts[:] = num_groups
    elif not num_replicas:
        starts[[0, num_clients - 1]] = num_groups
    return Averaging(weights / weights.sum(axis=1, keepdims=True), starts.astype(np.int32))


def default_sizes(cohort_size: int) -> tuple[int, ...]:
    """Choose groups of about ten clients, at least two groups: the authors' sizes if they are
    known, otherwise nearly equal sizes.
    """
    return CODE_SIZES.get(cohort_size) or equal_sizes(cohort_size, max(2, round(cohort_size / 10)))


def equal_sizes(cohort_size: int, num_groups: int) -> tuple[int, ...]:
    """Return sizes that differ by at most one, smaller ones first.

    Raises:
        ValueError: more groups than clients.
    """
    if num_groups > cohort_size:
        raise ValueError(
            f"{num_groups} groups of {cohort_size} clients per round: a group would be empty"
        )
    return tuple((cohort_size + group) // num_groups for group in range(num_groups))


def _sizes(
    group_sizes: tuple[int, ...] | None, groups: int | None, cohort_size: int | None
) -> tuple[int, ...]:
    """Return the client slots of each group, from the number of groups or from their sizes."""
    if group_sizes is not None:
        if groups is not None:
            raise ValueError(
                f"groups={groups} and group_sizes={tuple(group_sizes)} are both given; give one of "
                "them"
            )
        if not group_sizes:
            raise ValueError("group_sizes is empty; give the sizes of one group or more")
        if cohort_size is not None:
            _check_sizes(group_sizes, cohort_size)
        return tuple(group_sizes)
    if cohort_size is None:
        raise ValueError("the size of the cohort is not known here; give group_sizes")
    return default_sizes(cohort_size) if groups is None else equal_sizes(cohort_size, groups)


def _check_sizes(sizes: tuple[int, ...], cohort_size: int) -> None:
    """Raise ValueError if the groups do not add up to a cohort."""
    if sum(sizes) != cohort_size:
        raise ValueError(
            f"groups of {', '.join(map(str, sizes))} make {sum(sizes)} clients, but {cohort_size} "
            "take part in a round; change group_sizes or the cohort's size"
        )


@checked
def grouped(
    group_sizes: Annotated[tuple[int, ...] | None, Whole(1)] = None,
    groups: Annotated[int | None, Whole(1)] = None,
    broadcast_global: bool = False,
    *,
    facts: Facts | None = None,
) -> FederatedOptimizer:
    """Return FedRGD's grouped averaging; with one group, FedAvg.

    Every round the clients fill the slots in random order. The next model of a group is the mean of
    its members, weighted as in FedAvg. A group without a trained member keeps its model. Clients
    never receive the global model, unless they are a bridge. If the server changes the global model
    outside of the average, only members that start from the global model see it.

    Args:
        group_sizes: clients of each group, in place of `groups`; their sum is the cohort size.
        groups: number of groups, of about equal size; by default groups of about ten clients, at
            least two.
        broadcast_global: all members start from the global model.
        facts: sizes of the run, which `groups` divides.

    Raises:
        ValueError: no group, or one without a slot; when a round is traced, sizes that are not
            those of the cohort, or replicas that do not fit, see `averaging`.
    """
    sizes = _sizes(group_sizes, groups, None if facts is None else facts.cohort_size)
    if len(sizes) == 1:
        return fedavg()
    num_groups = len(sizes)

    def send(state: PyTree, kept: PyTree, context: RoundContext) -> PyTree:
        slots = context.slots
        assert slots is not None
        num_clients = context.valid.shape[0]
        _check_sizes(sizes, num_clients)
        plan = averaging(sizes, slots.shape[0] - num_clients, broadcast_global)
        return {
            "share": jnp.asarray(plan.weights.T, jnp.result_type(float))[slots],
            "start": jnp.asarray(plan.starts)[slots],
        }

    def start(state: PyTree, received: PyTree, common: Grouped) -> Grouped:
        own = jax.tree.map(lambda x: x[jnp.minimum(received["start"], num_groups - 1)], state)
        return jax.tree.map(
            lambda mine, all: jnp.where(received["start"] == num_groups, all, mine), own, common
        )

    def add(local: Local, reported: PyTree) -> Added:
        shares = {
            group: weight * local.sent_by_optimizer["share"]
            for group, weight in local.weights.items()
        }
        totals = {
            group: jax.tree.map(lambda w, own=shares[group]: _outer(own, w), params)
            for group, params in local.params.items()
        }
        return shares, totals, reported

    def apply(
        state: PyTree, anchor: Grouped, total: Total, context: RoundContext
    ) -> tuple[Grouped, PyTree]:
        means = {}
        moved = {}
        for group, weight in total.weights.items():
            scale = mean_scale(weight)
            means[group] = jax.tree.map(
                lambda all, old, scale=scale, weight=weight: jnp.where(
                    _along(weight > 0, all), _along(scale, all) * all, old
                ),
                total.update[group],
                state[group],
            )
            some = jnp.any(weight > 0)
            moved[group] = jax.tree.map(
                lambda mean, old, some=some: jnp.where(some, mean.mean(0), old),
                means[group],
                anchor[group],
            )
        return moved, means

    def many(params):
        return jax.tree.map(lambda w: jnp.stack([w] * num_groups), params)

    return FederatedOptimizer(many, apply, send=send, start=start, add=add, num_groups=num_groups)


def _outer(shares: Float[Array, " S"], values: Array) -> Array:
    return _along(shares, values[None]).astype(values.dtype) * values


def _along(by_group: Array, values: Array) -> Array:
    """Repeat one entry per group along arrays with a leading axis of groups."""
    return by_group.reshape(-1, *[1] * (values.ndim - 1))
