"""Local steps that clients will take, as far as they are known before training."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated.client_states import all_clients
from fedjax_ssl.federated.contract import Now, Stage


def who_trains(stages: tuple[Stage, ...], data: FederatedData) -> Bool[Array, " C"]:
    """Return which clients have a local step, as far as that follows from their sizes and
    labels.
    """
    clients = all_clients(data)
    key = jax.random.key(0)
    now = Now(jnp.zeros((), jnp.int32))
    found = jnp.zeros(data.num_clients, bool)
    for stage in stages:
        if stage.clients is None:
            continue
        sampler = stage.clients.sampler
        trains = clients.num_examples > 0
        if stage.labelled_quota == "only":
            trains = trains & (stage.count_labels(clients) > 0)
        if not sampler.reads_sent:  # otherwise the steps depend on what is sent
            schedule = sampler.schedule
            steps = jax.vmap(lambda client, draw=schedule: draw(key, client, now).num_steps)
            trains = trains & (steps(clients) > 0)
        found = found | trains
    return found
