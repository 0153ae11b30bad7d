"""Replicas of the server that train beside the clients of a round and are members of their average.

A wrapper of the clients' training: the engine knows nothing of it. Shapes: p clients, m replicas.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_ssl.checks import check_whole_numbers
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated.client_states import server_as_client
from fedjax_ssl.federated.local_training import LocalTraining
from fedjax_ssl.federated.messages import Sums
from fedjax_ssl.federated.method import Metrics, ServerState, Stage
from fedjax_ssl.federated.recipe import Recipe
from fedjax_ssl.federated.round import Turn, at_server, train_locally, where_slots
from fedjax_ssl.federated.round_log import with_server, work_done


def with_replicas(recipe: Recipe, number: int = 1, own_statistics: bool = False) -> Recipe:
    """Let the server train beside the clients, as members of the average.

    Every replica draws batches of its own, weighs 1, and is sent what a client before its first
    round would be. Upload transforms do not see replicas: nothing of them leaves the server.

    Args:
        recipe: of one stage. Its server trains at no other time; without one nothing changes.
        number: m.
        own_statistics: batch statistics of the next model are the replicas', not those of all
            members.

    Raises:
        ValueError: m is below 1, or the recipe has several stages or replicas already.

    Example:
        >>> from fedjax_ssl.federated import with_replicas
        >>> def helped(setup: fs.Setup) -> fs.Recipe:
        ...     "SemiFL whose server is a member of the average, and takes no turn of its own."
        ...     return with_replicas(fs.methods.recipe("semifl", setup))
        >>> _ = fs.register("method", "helped", helped)
        >>> fs.load_config("digits", {"method.name": "helped"}).method.name
        'helped'
    """
    check_whole_numbers(number=number)
    if len(recipe.stages) != 1 or recipe.stages[0].around_clients is not None:
        raise ValueError(
            "with_replicas takes a recipe of one stage, around whose clients nothing trains yet"
        )
    (stage,) = recipe.stages
    if stage.server is None:
        return recipe

    def init(state: ServerState, data: FederatedData) -> ServerState:
        state = recipe.init(state, data)
        return state._replace(server=_copies(state.server, number))

    around = partial(_train_beside, number, own_statistics)
    stage = stage._replace(server=stage.server._replace(when=()), around_clients=around)
    return recipe._replace(stages=(stage,), init=init)


def _train_beside(
    number: int,
    own_statistics: bool,
    turn: Turn,
    stage: Stage,
    train_clients: Callable[[Turn], tuple[ServerState, Metrics]],
) -> tuple[ServerState, Metrics]:
    """Train the replicas, then the clients, whose sums the replicas join."""
    training, context, state, *_ = turn
    server = stage.server
    kept = context.clients.kept
    slots = context.slots
    assert server is not None and kept is not None and slots is not None
    # 1. The federated optimizer sends to clients and replicas at once.
    size = slots.shape[0]
    ids = jnp.arange(number, dtype=slots.dtype)
    nothing = _copies(jax.tree.map(jnp.zeros_like, kept.federated), number)
    received = training.federated_optimizer.send(
        state.optimizer,
        jax.tree.map(lambda *x: jnp.concatenate(x), kept.federated, nothing),
        context._replace(slots=jnp.concatenate([slots, size + ids])),
    )

    def sends(part: slice) -> LocalTraining:
        own = jax.tree.map(lambda x: x[part], received)
        optimizer = training.federated_optimizer._replace(send=lambda *_: own)
        return training._replace(federated_optimizer=optimizer)

    # 2. The replicas train; their optimizers go on where they were.
    clients = _copies(server_as_client(turn.data), number)._replace(id=ids)
    beside = turn._replace(training=sends(slice(size, None)))
    own, task = at_server(beside, server, clients, federated=nothing)
    replicas, arrived = train_locally(own, [task]).results[0]
    if server.keep_optimizer:
        keep = partial(where_slots, arrived.counts)
        state = state._replace(server=jax.tree.map(keep, arrived.kept.optimizer, state.server))

    # 3. The clients train.
    def join(clients: Sums) -> Sums:
        averaged = ("update", "statistics", "weight")
        both = {
            name: jax.tree.map(jnp.add, getattr(clients, name), getattr(replicas, name))
            for name in averaged
        }
        if own_statistics:
            both |= {"statistics": replicas.statistics, "weight": replicas.weight}
        return clients._replace(**both)

    turn = turn._replace(training=sends(slice(size)), state=state, join=join)
    state, info = train_clients(turn)
    return state, with_server(info, work_done(replicas.work))


def _copies(tree: Any, number: int) -> Any:
    """Repeat the first entry of arrays."""
    return jax.tree.map(lambda x: jnp.repeat(x[:1], number, axis=0), tree)
