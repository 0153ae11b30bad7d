"""Clients from a federation's tables, and their state between rounds, in one table that is read by
client id.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from fedjax_ssl.data import FederatedData, rounds_of_a_part
from fedjax_ssl.federated.contract import (
    Client,
    Kept,
)

PyTree = Any


def part_of(
    data: FederatedData, number: Int[Array, ""], num_rounds: int | None
) -> Int[Array, ""] | int:
    """Return the number of the part of unlabelled examples that clients have in a round; 0 if these
    do not come in parts.

    Args:
        data: the federation.
        number: rounds before this one.
        num_rounds: rounds of the run; None: not known.

    Raises:
        ValueError: neither the federation nor the run says for how many rounds a part stays.
    """
    if data.num_parts == 1:
        return 0
    if data.rounds_per_part is None and num_rounds is None:
        raise ValueError(
            f"unlabelled examples come in {data.num_parts} parts, in a run of unknown length; say "
            "for how many rounds each is there: config.partition.rounds_per_part"
        )
    each = rounds_of_a_part(data.num_parts, data.rounds_per_part, num_rounds or 0)
    return jnp.minimum(number // each, data.num_parts - 1)


def all_clients(data: FederatedData, part: Int[Array, ""] | int = 0) -> Client:
    """Return all C clients of a federation.

    Args:
        data: the federation.
        part: part of their unlabelled examples, from `part_of`.
    """
    return clients_of(data, jnp.arange(data.num_clients, dtype=jnp.int32), part=part)


def clients_of(
    data: FederatedData,
    ids: Int[Array, " p"],
    valid: Bool[Array, " p"] | None = None,
    part: Int[Array, ""] | int = 0,
) -> Client:
    """Gather clients; an empty cohort slot is a client without examples.

    Args:
        data: the federation.
        ids: the clients' ids.
        valid: False for an empty slot; all are filled by default.
        part: part of their unlabelled examples, from `part_of`. The other parts are left out.
    """
    present = jnp.ones(ids.shape, bool) if valid is None else valid
    rows = data.index[ids]
    num_examples = jnp.where(present, data.num_examples[ids], 0)
    num_labelled = jnp.where(present, data.num_labelled[ids], 0)
    column = jnp.arange(rows.shape[1], dtype=jnp.int32)
    place: Array | None = None
    before = jnp.zeros_like(num_labelled)
    if data.num_parts > 1:
        each = (num_examples - num_labelled) // data.num_parts
        num_examples = num_labelled + each
        before = part * each
        column = column[: data.max_labelled + data.max_unlabelled_at_once]
        place = jnp.where(column < num_labelled[:, None], column, column + before[:, None])
        place = jnp.minimum(place, rows.shape[1] - 1)
        rows = jnp.take_along_axis(rows, place, axis=1)
    real = column < num_examples[:, None]
    weak = data.weak
    if weak is not None:
        tables = replace(
            weak, prior=jnp.broadcast_to(weak.prior, (data.num_clients, *weak.prior.shape))
        )
        weak = jax.tree.map(lambda table: table[ids], tables)
        labels = weak.labels
        known = jnp.where(present, weak.num_examples, 0)
        if place is not None:
            labels = jnp.take_along_axis(labels, place, axis=1)
            known = jnp.clip(known - before, 0, num_examples - num_labelled)
        weak = replace(weak, labels=jnp.where(real, labels, -1), num_examples=known)
    return Client(
        ids,
        rows,
        # The same example may have a label at another client.
        observed=jnp.where(column < num_labelled[:, None], data.observed[rows], -1),
        num_labelled=num_labelled,
        num_examples=num_examples,
        sent={},
        sent_by_optimizer=(),
        weak=weak,
    )


def without_examples(clients: Client, kept: Bool[Array, " p"]) -> Client:
    """Return the clients with no examples where `kept` is False, so that no batch is drawn for
    them.
    """
    weak = clients.weak
    if weak is not None:
        weak = replace(weak, num_examples=jnp.where(kept, weak.num_examples, 0))
    return clients._replace(
        num_labelled=jnp.where(kept, clients.num_labelled, 0),
        num_examples=jnp.where(kept, clients.num_examples, 0),
        weak=weak,
    )


def server_as_client(data: FederatedData) -> Client:
    """Return the server as the only client of a federation of its own, leading axis 1."""
    rows = data.server_index[None]
    count = data.num_server[None]
    real = jnp.arange(rows.shape[1], dtype=jnp.int32) < count[:, None]
    observed = jnp.where(real, data.observed[rows], -1)
    return Client(
        jnp.zeros((1,), jnp.int32), rows, observed, count, count, sent={}, sent_by_optimizer=()
    )


def gather_states(kept: Kept, ids: Int[Array, " p"]) -> Kept:
    """Return the rows of a cohort; rows of empty slots have any values.

    Args:
        kept: states of all clients.
        ids: ids of the cohort.
    """
    return jax.tree.map(lambda x: x.at[ids].get(mode="clip"), kept)


def write_states(kept: Kept, new: Kept, ids: Int[Array, " p"], counts: Bool[Array, " p"]) -> Kept:
    """Return the table after a round. A client that did not train or was dropped keeps its old
    state.

    Args:
        kept: states of all clients.
        new: new states of the cohort, leading axis p; terms without a new state are left out.
        ids: ids of the cohort.
        counts: True for clients that trained and were kept.
    """
    terms = {**gather_states(kept, ids).terms, **new.terms}
    new = new._replace(terms={name: terms[name] for name in kept.terms})

    def put(x: Array, new: Array) -> Array:
        return x.at[jnp.where(counts, ids, x.shape[0])].set(new.astype(x.dtype), mode="drop")

    return jax.tree.map(put, kept, new)
