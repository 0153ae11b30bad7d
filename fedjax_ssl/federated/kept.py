"""What clients keep between rounds: one table over all clients, read and written by the ids of the cohort."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Int

from fedjax_ssl.federated.client import LocalTraining
from fedjax_ssl.federated.method import Client, ClientState, Params, Term
from fedjax_ssl.federated.packing import packing

PyTree = Any


def first_kept(
    training: LocalTraining, terms: tuple[Term, ...], params: Params, model_state: PyTree, everyone: Client
) -> ClientState:
    """What all C clients have before their first round, leading axis C."""
    packed = {group: packing(tree).pack(tree) for group, tree in params.items()}
    shared = {group: packed[group] for group in training.shared}
    network, count = training.combine(params), everyone.id.shape[0]

    def alike(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *jnp.shape(x))), tree)

    optimizer = {}
    if training.keep_optimizer:
        optimizer = {group: alike(training.optimizer.init({group: packed[group]})) for group in packed}
    by_term = {
        term.name: jax.vmap(lambda client, term=term: term.client.keep(network, model_state, client))(everyone)
        for term in terms
    }
    return ClientState(
        params=alike({group: packed[group] for group in training.private}),
        optimizer=optimizer,
        terms={name: kept for name, kept in by_term.items() if jax.tree.leaves(kept)},
        federated=alike(training.federated_optimizer.keep(shared)),
        model_state=alike(ravel_pytree(model_state)[0]) if training.federated_optimizer.alone else (),
    )


def gather(kept: ClientState, ids: Int[Array, " p"], slots: Int[Array, " p"] | None = None) -> ClientState:
    """The rows of a cohort; those of empty slots do not matter.

    Args:
        kept: of all clients.
        ids: of the cohort.
        slots: rows with the state of its local optimizers; None: that of every client is in its own row.
    """

    def take(table: PyTree, rows: Int[Array, " p"]) -> PyTree:
        return jax.tree.map(lambda x: x.at[rows].get(mode="clip"), table)

    return take(kept, ids)._replace(optimizer=take(kept.optimizer, ids if slots is None else slots))


def write(
    kept: ClientState,
    new: ClientState,
    ids: Int[Array, " p"],
    counts: Bool[Array, " p"],
    slots: Int[Array, " p"] | None = None,
) -> ClientState:
    """The table after a round. Who trained nothing or was dropped keeps what it had.

    Args:
        kept: of all clients.
        new: of the cohort, leading axis p; terms that remember nothing new are left out.
        ids: of the cohort.
        counts: who trained and was kept.
        slots: as in `gather`.
    """
    terms = {**gather(kept, ids).terms, **new.terms}
    new = new._replace(terms={name: terms[name] for name in kept.terms})

    def put(table: PyTree, values: PyTree, rows: Int[Array, " p"]) -> PyTree:
        def put_leaf(x: Array, new: Array) -> Array:
            return x.at[jnp.where(counts, rows, x.shape[0])].set(new.astype(x.dtype), mode="drop")

        return jax.tree.map(put_leaf, table, values)

    optimizer = put(kept.optimizer, new.optimizer, ids if slots is None else slots)
    return put(kept._replace(optimizer={}), new._replace(optimizer={}), ids)._replace(optimizer=optimizer)


def merge(parts: list[tuple[ClientState, Bool[Array, " p"]]], before: ClientState) -> ClientState:
    """What a cohort keeps where its clients are of several kinds.

    Args:
        parts: by kind, (what the kind's clients keep, which slots are of that kind).
        before: what they kept so far, of which terms take the place that a kind does not have.
    """
    result = before
    for kept, members in parts:
        kept = kept._replace(terms={**before.terms, **{n: v for n, v in kept.terms.items() if n in before.terms}})
        result = jax.tree.map(
            lambda new, old, mask=members: jnp.where(mask.reshape(-1, *[1] * (new.ndim - 1)), new, old), kept, result
        )
    return result
