"""Local steps that clients will take, as far as they are known before training."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated.client_states import all_clients
from fedjax_ssl.federated.method import ClientKind, Now, Stage


def kinds_of(stage: Stage) -> tuple[ClientKind, ...]:
    """Give the kinds of clients that train: special ones, then all others."""
    return (*stage.kinds, *([] if stage.own_kind is None else [stage.own_kind]))


def who_trains(stages: tuple[Stage, ...], data: FederatedData) -> Bool[Array, " C"]:
    """Tells which clients have a local step, as far as that follows from their sizes and labels."""
    found = jnp.zeros(data.num_clients, bool)
    for mine, steps in _steps_of_kinds(stages, data):
        found = found | (mine if steps is None else mine & (steps > 0))
    return found


def _steps_of_kinds(
    stages: tuple[Stage, ...], data: FederatedData
) -> Iterator[tuple[Bool[Array, " C"], Int[Array, " C"] | None]]:
    """Give for each kind of clients (which clients may be of it, local steps of each client); None
    for steps that depend on what was sent.
    """
    clients = all_clients(data)
    key = jax.random.key(0)
    now = Now(jnp.zeros((), jnp.int32))
    for stage in stages:
        rest = clients.num_examples > 0
        if stage.labelled_quota == "only":
            rest = rest & (stage.count_labels(clients) > 0)
        for kind in kinds_of(stage):
            mine = rest & kind.members(clients)
            schedule = kind.sampler.schedule
            rest = rest & ~mine
            steps = None
            if not kind.sampler.reads_sent:
                steps = jax.vmap(lambda client, draw=schedule: draw(key, client, now).num_steps)(
                    clients
                )
            yield mine, steps
