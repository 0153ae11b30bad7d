"""Batches with equally many labelled and unlabelled steps, in stored order, as in FedMatch's
code.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from fedjax_ssl.federated import Client, Now, Sampler, Schedule
from fedjax_ssl.federated.sampler import masked_permutation
from fedjax_ssl.keys import named_key

UNLABELLED_BATCH = 100  # default number of unlabelled examples per step


class Bounds(NamedTuple):
    """Static bounds of clients' examples."""

    max_labelled: int
    min_labelled: int  # fewest labels of a client with labels
    max_unlabelled: int


def steps_per_epoch(count: Int[Array, ""], batch_size: int) -> Int[Array, ""]:
    """Return round(count / batch_size), with halves to even; at least 1 for any example, and 0
    without examples.
    """
    # Whole numbers only: a floating-point quotient may miss the half.
    whole = count // batch_size
    rest = count % batch_size
    up = (2 * rest > batch_size) | ((2 * rest == batch_size) & (whole % 2 == 1))
    return jnp.where(count > 0, jnp.maximum(whole + up.astype(count.dtype), 1), 0)


def matched_batches(
    batch_size: int,
    unlabelled_batch_size: int | None,
    local_epochs: int,
    bounds: Bounds,
    shuffle: bool = False,
) -> Sampler:
    """Return a sampler of streams "labelled" and "unlabelled": contiguous slices of the client's
    examples in stored order.

    An epoch of a client with labels is round(labelled / batch_size) steps, see `steps_per_epoch`,
    each with the next `batch_size` labelled and the next `unlabelled_batch_size` unlabelled
    examples; by default ceil(unlabelled / steps) of these, so that an epoch uses each once. Without
    labels, an epoch is round(unlabelled / unlabelled_batch_size) steps. Examples left over are not
    used; a slice that reaches beyond the end is shorter.

    Args:
        batch_size: labelled examples per step.
        unlabelled_batch_size: unlabelled examples per step; None: as above, and 100 for clients
            without labels.
        local_epochs: epochs per round.
        bounds: static bounds of the clients' examples.
        shuffle: draw a new order of both streams in every epoch.
    """
    fixed = unlabelled_batch_size or UNLABELLED_BATCH

    def known_steps(count: int, size: int) -> int:
        return max(round(count / size), 1) if count else 0  # Python also rounds halves to even

    most = max(
        known_steps(bounds.max_labelled, batch_size), known_steps(bounds.max_unlabelled, fixed)
    )
    fewest = max(known_steps(bounds.min_labelled, batch_size), 1)
    width = unlabelled_batch_size or max(
        min(fixed, bounds.max_unlabelled), -(-bounds.max_unlabelled // fewest), 1
    )

    def schedule(key: Key[Array, ""], client: Client, now: Now) -> Schedule:
        start = client.num_labelled
        unlabelled = client.num_examples - client.num_labelled
        steps = steps_per_epoch(client.num_labelled, batch_size)
        taken = jnp.full_like(unlabelled, fixed)
        if unlabelled_batch_size is None:
            taken = jnp.where(steps > 0, -(-unlabelled // jnp.maximum(steps, 1)), taken)
        steps = jnp.where(client.num_labelled > 0, steps, steps_per_epoch(unlabelled, fixed))
        step = jnp.arange(local_epochs * most, dtype=jnp.int32)
        epoch = step // jnp.maximum(steps, 1)
        within = step % jnp.maximum(steps, 1)
        running = step < local_epochs * steps

        def slices(
            name: str, count: Int[Array, ""], size: Int[Array, ""], width: int, bound: int
        ) -> tuple:
            column = jnp.arange(width, dtype=jnp.int32)
            slot = within[:, None] * size + column
            mask: Bool[Array, "S b"] = running[:, None] & (column < size) & (slot < count)
            slot = jnp.where(mask, slot, 0)
            if shuffle:
                keys = [
                    jax.random.fold_in(named_key(key, name), number)
                    for number in range(local_epochs)
                ]
                orders = jnp.stack([masked_permutation(one, count, max(bound, 1)) for one in keys])
                slot = orders[jnp.minimum(epoch, local_epochs - 1)[:, None], slot]
            return slot, mask

        whole = jnp.full_like(unlabelled, batch_size)
        labelled = slices("labelled", client.num_labelled, whole, batch_size, bounds.max_labelled)
        others = slices("unlabelled", unlabelled, taken, width, bounds.max_unlabelled)
        positions = {
            "labelled": labelled[0],
            "unlabelled": jnp.where(others[1], start + others[0], 0),
        }
        return Schedule(
            positions, {"labelled": labelled[1], "unlabelled": others[1]}, local_epochs * steps
        )

    return Sampler(schedule)
