"""Batches of two streams: B labelled examples beside B_U unlabelled ones, as in FixMatch, UDA and MixMatch."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from fedjax_ssl.checks import check_whole_numbers
from fedjax_ssl.federated.method import Client, Now, Sampler, Schedule
from fedjax_ssl.federated.sampler import cycled_permutations
from fedjax_ssl.keys import named_key


class Steps(NamedTuple):
    """How many local steps clients take in a round."""

    of: Callable[[Client], Int[Array, ""]]
    most: int  # static bound


def passes(
    batch_size: int, unlabelled_batch_size: int, local_epochs: int, max_labelled: int, max_unlabelled: int
) -> Steps:
    """Passes over the unlabelled examples, the last batch filled up; over the labelled ones where there are no others.

    Args:
        batch_size: labelled examples per step.
        unlabelled_batch_size: unlabelled examples per step.
        local_epochs: passes per round.
        max_labelled: static bound of labelled examples per client.
        max_unlabelled: static bound of unlabelled examples per client.
    """

    def of(client: Client) -> Int[Array, ""]:
        unlabelled = client.num_examples - client.num_labelled
        labelled_steps = -(-client.num_labelled // batch_size)
        return local_epochs * jnp.where(unlabelled > 0, -(-unlabelled // unlabelled_batch_size), labelled_steps)

    return Steps(of, local_epochs * max(-(-max_unlabelled // unlabelled_batch_size), -(-max_labelled // batch_size), 1))


def fixed_steps(number: int) -> Steps:
    """The same number of steps for every client that has an example.

    Raises:
        ValueError: a number below 1.
    """
    check_whole_numbers(local_steps=number)
    return Steps(lambda client: jnp.where(client.num_examples > 0, number, 0), number)


def paired_batches(
    batch_size: int,
    unlabelled_batch_size: int,
    steps: Steps,
    max_labelled: int,
    max_unlabelled: int,
    labelled_too: bool = False,
) -> Sampler:
    """Streams "labelled" and "unlabelled", each an endless sequence of fresh permutations, cut into whole batches.

    A client with fewer examples than a batch has some of them more than once in it. A stream of which it has none is
    empty, and nothing of it is real.

    Args:
        batch_size: examples of "labelled" per step.
        unlabelled_batch_size: examples of "unlabelled" per step.
        steps: local steps per round.
        max_labelled: static bound of labelled examples per client.
        max_unlabelled: static bound of unlabelled examples per client.
        labelled_too: "unlabelled" goes through all examples of the client; its losses do not read their labels.

    Raises:
        ValueError: a batch size below 1.
    """
    check_whole_numbers(batch_size=batch_size, unlabelled_batch_size=unlabelled_batch_size)

    def schedule(key: Key[Array, ""], client: Client, now: Now) -> Schedule:
        taken = steps.of(client)
        first = jnp.zeros_like(client.num_labelled) if labelled_too else client.num_labelled
        most = max_labelled + max_unlabelled if labelled_too else max_unlabelled
        running = (jnp.arange(steps.most, dtype=jnp.int32) < taken)[:, None]

        def stream(
            name: str, start: Int[Array, ""], count: Int[Array, ""], most: int, size: int
        ) -> tuple[Int[Array, "S b"], Array]:
            order = cycled_permutations(named_key(key, name), count, steps.most * size, max(most, 1))
            mask = jnp.broadcast_to(running & (count > 0), (steps.most, size))
            return jnp.where(mask, start + order.reshape(steps.most, size), 0), mask

        labelled = stream("labelled", jnp.zeros_like(first), client.num_labelled, max_labelled, batch_size)
        unlabelled = stream("unlabelled", first, client.num_examples - first, most, unlabelled_batch_size)
        positions = {"labelled": labelled[0], "unlabelled": unlabelled[0]}
        return Schedule(positions, {"labelled": labelled[1], "unlabelled": unlabelled[1]}, taken.astype(jnp.int32))

    return Sampler(schedule)
