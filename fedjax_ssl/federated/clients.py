"""From a federation's tables to `Client`s: all of them, a cohort, and the server as one."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated.method import Client


def all_clients(data: FederatedData) -> Client:
    """All C clients of a federation."""
    return clients_of(data, jnp.arange(data.num_clients, dtype=jnp.int32))


def clients_of(data: FederatedData, ids: Int[Array, " p"], valid: Bool[Array, " p"] | None = None) -> Client:
    """Gathers clients; an empty cohort slot is a client without examples."""
    present = jnp.ones(ids.shape, bool) if valid is None else valid
    rows = data.index[ids]
    num_examples = jnp.where(present, data.num_examples[ids], 0)
    num_labelled = jnp.where(present, data.num_labelled[ids], 0)
    column = jnp.arange(rows.shape[1], dtype=jnp.int32)
    real = column < num_examples[:, None]
    weak = data.weak
    if weak is not None:
        everybody = replace(weak, prior=jnp.broadcast_to(weak.prior, (data.num_clients, *weak.prior.shape)))
        weak = jax.tree.map(lambda table: table[ids], everybody)
        weak = replace(
            weak, labels=jnp.where(real, weak.labels, -1), num_examples=jnp.where(present, weak.num_examples, 0)
        )
    return Client(
        ids,
        rows,
        # Another client may see the label of an example that this one has without.
        observed=jnp.where(column < num_labelled[:, None], data.observed[rows], -1),
        num_labelled=num_labelled,
        num_examples=num_examples,
        sent={},
        received=(),
        weak=weak,
    )


def server_as_client(data: FederatedData) -> Client:
    """The server as the only client of a federation of its own, leading axis 1."""
    rows, count = data.server_index[None], data.num_server[None]
    real = jnp.arange(rows.shape[1], dtype=jnp.int32) < count[:, None]
    observed = jnp.where(real, data.observed[rows], -1)
    return Client(jnp.zeros((1,), jnp.int32), rows, observed, count, count, sent={}, received=())
