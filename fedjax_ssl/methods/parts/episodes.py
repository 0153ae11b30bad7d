"""Episodes: local steps on a few examples of every class, as prototypical networks train.

Reference:
    Snell, Swersky, Zemel, Prototypical networks for few-shot learning, NeurIPS 2017; with
    unlabelled queries as in ProtoFSSL, arXiv 2205.13921, algorithm 1.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key

from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated.method import Client, Now, Sampler, Schedule
from fedjax_ssl.federated.sampler import masked_permutation
from fedjax_ssl.keys import named_key

SUPPORT, QUERY, UNLABELLED = "support", "query", "unlabelled"  # streams


def episodes(
    num_steps: int,
    num_classes: int,
    num_support: int,
    num_query: int,
    num_unlabelled: int,
    max_labelled: int,
    first_unlabelled_step: Callable[[Client, Now], Int[Array, ""]],
) -> Sampler:
    """Every step draws anew: `num_support` and `num_query` examples of each class, and unlabelled
    ones.

    Streams "support" [K * num_support] and "query" [K * num_query], class after class, and
    "unlabelled" [num_unlabelled], without repetition within a step. Of a class with n labels, fewer
    than asked for, min(num_support, n - 1) are support and the rest query; a single one is support.
    With fewer unlabelled examples than asked for, all are drawn.

    Args:
        num_steps: local steps of a client that has something to learn from; others take none.
        num_classes: K.
        num_support: support examples of every class, at least 1.
        num_query: labelled queries of every class, at least 1.
        num_unlabelled: unlabelled queries; 0: there is no stream for them.
        max_labelled: static bound of labelled examples per client.
        first_unlabelled_step: (client, round) -> the step from which unlabelled queries are drawn;
            `num_steps`: none are. It may read what terms sent.
    """

    def schedule(key: Key[Array, ""], client: Client, now: Now) -> Schedule:
        size = client.rows.shape[0]
        bound = min(max(max_labelled, 1), size)
        known = jnp.arange(bound, dtype=jnp.int32) < client.num_labelled
        classes = jnp.where(known, client.observed[:bound], -1)
        first = first_unlabelled_step(client, now)
        number = client.num_examples - client.num_labelled

        def one_step(step: Int[Array, ""]) -> tuple[dict[str, Array], dict[str, Array]]:
            step_key = jax.random.fold_in(key, step)
            places, masks = _by_class(
                named_key(step_key, "labelled"), classes, num_classes, num_support, num_query
            )
            if num_unlabelled:
                order = masked_permutation(named_key(step_key, "unlabelled"), number, size)
                taken = min(num_unlabelled, size)
                slot = jnp.arange(taken, dtype=jnp.int32)
                places[UNLABELLED] = jnp.minimum(client.num_labelled + order[:taken], size - 1)
                masks[UNLABELLED] = (slot < number) & (step >= first)
            return places, masks

        positions, masks = jax.vmap(one_step)(jnp.arange(num_steps, dtype=jnp.int32))
        learns = jnp.any(known) | ((number > 0) & (first < num_steps))
        return Schedule(positions, masks, jnp.where(learns, num_steps, 0))

    return Sampler(schedule, reads_sent=True, equal_steps=True)


def check_episodes(
    data: FederatedData,
    num_support: int,
    num_query: int,
    queries: bool = False,
    absent: str = "probability 0 there",
) -> list[str]:
    """Compare the labels that clients have with those that an episode asks for; on the host,
    before training.

    Args:
        data: the federation.
        num_support: support examples of every class.
        num_query: query examples of every class.
        queries: whether support examples are queries too.
        absent: what becomes of a class without labels at a client.

    Returns:
        What somebody should know, a sentence each.

    Raises:
        ValueError: no episode of any client has a query.
    """
    index = np.asarray(data.index)
    known = np.asarray(data.num_labelled)
    classes = np.where(
        np.arange(index.shape[1]) < known[:, None], np.asarray(data.observed)[index], -1
    )
    counts = np.stack([(classes == kind).sum(axis=1) for kind in range(data.num_classes)], axis=1)
    if counts.max() < 2 and not queries:
        raise ValueError(
            "no client has two labels of one class, one for the support of an episode and one "
            f"for a query; give every client {num_support + num_query} labels per class, or 2 at "
            "least"
        )
    notes = []
    if (without := int((known == 0).sum())) and not queries:
        notes.append(
            f"{without} of {known.size} clients have no class labels: they have no prototypes and "
            "never train"
        )
    held = counts[known > 0]
    asked = num_support + num_query
    if fewer := int((held < asked).sum()):
        notes.append(
            f"an episode asks for {asked} labels of every class ({num_support} support, "
            f"{num_query} queries); of {held.size} classes at clients with labels, {fewer} have "
            f"fewer, of which {(held == 0).sum()} have none ({absent}) and {(held == 1).sum()} a "
            "single one (support, never a query)"
        )
    return notes


def support_and_query(
    counts: Int[Array, "*n"], num_support: int, num_query: int
) -> tuple[Int[Array, "*n"], Int[Array, "*n"]]:
    """How many examples of a class are support and query in a step, given its number of labels;
    see `episodes`.
    """
    support = jnp.where(counts > 1, jnp.minimum(num_support, counts - 1), counts)
    return support, jnp.minimum(num_query, counts - support)


def _by_class(
    key: Key[Array, ""],
    classes: Int[Array, " n"],
    num_classes: int,
    num_support: int,
    num_query: int,
) -> tuple[dict[str, Int[Array, " b"]], dict[str, Bool[Array, " b"]]]:
    """Draws support and queries of every class from examples of these classes, -1 = none."""
    group = jnp.where(classes >= 0, classes, num_classes)
    # class after class
    order = jnp.lexsort((jax.random.bits(key, group.shape), group)).astype(jnp.int32)
    counts = jnp.sum(
        group[None] == jnp.arange(num_classes, dtype=group.dtype)[:, None], axis=1, dtype=jnp.int32
    )
    starts = jnp.cumsum(counts) - counts
    support, query = support_and_query(counts, num_support, num_query)

    def slots(begin: Int[Array, " K"], taken: Int[Array, " K"], width: int) -> tuple[Array, Array]:
        column = jnp.arange(width, dtype=jnp.int32)
        mask = column < taken[:, None]
        places = order[jnp.minimum(begin[:, None] + column, order.shape[0] - 1)]
        return jnp.where(mask, places, 0).reshape(-1), mask.reshape(-1)

    drawn = {
        SUPPORT: slots(starts, support, num_support),
        QUERY: slots(starts + support, query, num_query),
    }
    return {name: places for name, (places, _) in drawn.items()}, {
        name: mask for name, (_, mask) in drawn.items()
    }
