"""Clients whose unlabelled examples come in parts, one after another, as in FedMatch's streaming task."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from fedjax_ssl.data.federation.dealing import count_groups, rank_within
from fedjax_ssl.data.federation.weak_labels import Entries


def rounds_of_a_part(parts: int, given: int | None, num_rounds: int) -> int:
    """How many rounds a part is there for; the last one stays to the end.

    Args:
        parts: T.
        given: what the config says; None: the rounds of the run are divided by the parts.
        num_rounds: of the run.
    """
    return given or max(num_rounds // parts, 1)


def in_parts(
    key: Key[Array, ""],
    entries: Entries,
    labels: Int[Array, " N"],
    parts: int,
    num_clients: int,
    num_classes: int,
) -> Entries:
    """Cuts every client's unlabelled examples into parts with the same class counts.

    Of every class with n unlabelled examples at a client, a random floor(n / parts) go to each part; the rest is dealt
    to nobody. So all parts of a client have the same size, and in its table they follow each other.

    Args:
        key: typed PRNG key.
        entries: of all clients; those whose label is seen are in no part.
        labels: ground truth, which decides the parts alone; examples of unknown class are a class of their own.
        parts: T.
        num_clients: C.
        num_classes: K.

    Returns:
        The entries that are left, part after part; dropped ones are nobody's.
    """
    assert entries.labelled is not None
    streamed = (entries.client >= 0) & ~entries.labelled
    kind = labels[entries.row]
    kind = jnp.where(kind >= 0, kind, num_classes)
    cell = jnp.where(streamed, entries.client * (num_classes + 1) + kind, -1)
    each = count_groups(cell, num_clients * (num_classes + 1))[jnp.maximum(cell, 0)] // parts
    part = rank_within(key, cell) // jnp.maximum(each, 1)
    dropped = streamed & ((each == 0) | (part >= parts))
    entries = entries._replace(client=jnp.where(dropped, -1, entries.client))
    order = jnp.argsort(jnp.where(streamed, part, 0), stable=True)
    return jax.tree.map(lambda values: values[order], entries)
