"""Gradients of a cohort at the averaged models: a second pass over its examples, for the log alone.

It is local training whose optimizer adds gradients up and moves nothing, so that views, losses and placement are those
of training. What it finds goes to metrics and nowhere else.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated.client import (
    ClientProgress,
    ClientUpdate,
    Download,
    LocalTraining,
    Plan,
    Task,
    client_update,
)
from fedjax_ssl.federated.clients import server_as_client
from fedjax_ssl.federated.method import Client, GradientPass, Metrics, Params, ServerState
from fedjax_ssl.federated.optimizers import Groups, fedavg
from fedjax_ssl.federated.packing import packing
from fedjax_ssl.federated.placement import train_cohort
from fedjax_ssl.keys import named_key

PyTree = Any


class Members(NamedTuple):
    """Who is passed over: the cohort, and with `server` the server once for every group."""

    task: Task
    place: Callable[..., tuple[PyTree, PyTree]]  # as for training, see `fedjax_ssl.federated.placement.train_cohort`
    server: Task | None


def run_gradient_pass(
    asked: GradientPass,
    members: Members,
    training: LocalTraining,
    data: FederatedData,
    broadcast: Download,
    clients: Client,
    valid: Bool[Array, " p"],
    after: ServerState,
) -> Metrics:
    """The metrics of a pass at the models of a round's end; NaN in rounds without one.

    Args:
        asked: what of the gradients goes to the log, and when.
        members: who.
        training: as in the round.
        data: the federation.
        broadcast: what the clients received in the round.
        clients: the cohort with what it received, leading axis p; those who had nothing to train on have no examples.
        valid: False on slots without a client.
        after: the state after averaging.
    """
    groups = training.federated_optimizer.groups
    still = _standing_still(training)
    now = _at_the_averaged_models(training, groups, broadcast, after)

    def update_of(task: Task) -> Callable[[Download], ClientUpdate]:
        return lambda broadcast: _reporting(client_update(still, task, broadcast), still, asked, groups.number, after)

    def run() -> Metrics:
        in_group = jax.vmap(lambda _, received: jnp.argmax(groups.membership(received)))(clients.id, clients.received)
        there = clients._replace(received=in_group.astype(jnp.int32), kept=_without_optimizer(clients))
        summed, _ = members.place(update_of(members.task), now, there, valid)
        if members.server is not None:
            each = jnp.arange(groups.number, dtype=jnp.int32)
            one = jax.tree.map(lambda x: jnp.repeat(x, groups.number, axis=0), server_as_client(data))
            there = one._replace(id=each, received=each)
            beside = now._replace(key=named_key(now.key, "server"))
            more, _ = train_cohort(update_of(members.server), beside, there, jnp.ones((groups.number,), bool))
            summed = jax.tree.map(jnp.add, summed, more)
        return asked.log(summed)

    if asked.every == 1:
        return run()
    shapes = jax.eval_shape(run)
    return jax.lax.cond((broadcast.now.number + 1) % asked.every == 0, run, lambda: _nothing(shapes))


def _nothing(shapes: PyTree) -> Metrics:
    return jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan, x.dtype), shapes)


def _summing() -> optax.GradientTransformation:
    """An optimizer whose state is the sum of the gradients, and which moves nothing."""

    def init(params: PyTree) -> PyTree:
        return jax.tree.map(jnp.zeros_like, params)

    def update(gradient: PyTree, total: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        return jax.tree.map(jnp.zeros_like, gradient), jax.tree.map(jnp.add, total, gradient)

    return optax.GradientTransformation(init, update)


def _standing_still(training: LocalTraining) -> LocalTraining:
    """Local training that sums plain gradients of the losses, at the model of the group that a client received."""

    def start(models: PyTree, group: Int[Array, ""], common: PyTree) -> PyTree:
        return jax.tree.map(lambda x: x[group], models)

    return training._replace(
        optimizer=_summing(),
        keep_optimizer=False,
        keep_by_slot=False,
        average_optimizer=False,
        federated_optimizer=fedavg()._replace(start=start),
        upload=None,
        receive=None,
    )


def _at_the_averaged_models(
    training: LocalTraining, groups: Groups, broadcast: Download, after: ServerState
) -> Download:
    shared = {group: packing(after.params[group]).pack(after.params[group]) for group in training.shared}
    return broadcast._replace(
        key=named_key(broadcast.key, "gradient pass"),
        params=after.params,
        model_state=after.model_state,
        optimizer=groups.models(after.optimizer, shared),
        local_optimizer={},
    )


def _without_optimizer(clients: Client) -> PyTree:
    return None if clients.kept is None else clients.kept._replace(optimizer={})


def _reporting(
    update: ClientUpdate, training: LocalTraining, asked: GradientPass, num_groups: int, state: ServerState
) -> ClientUpdate:
    """The same steps, at whose end the sum of the gradients is reported; one that is not finite counts for nothing."""

    def finish(client: Client, plan: Plan, end: ClientProgress) -> tuple[PyTree, PyTree]:
        sums: Params = {g: packing(state.params[g]).unpack(end.optimizer[g][g]) for g in training.shared}
        counts = plan.num_steps > 0
        for values in jax.tree.leaves(sums):
            counts = counts & jnp.all(jnp.isfinite(values))
        sums = jax.tree.map(lambda x: jnp.where(counts, x, jnp.zeros_like(x)), sums)
        member: Float[Array, " G"] = jnp.where(counts, jax.nn.one_hot(client.received, num_groups), 0.0)
        return asked.report(sums, member), ()

    return update._replace(finish=finish)
