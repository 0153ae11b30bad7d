"""Batch schedules: the examples of a client in each of its local steps.

A schedule is drawn once per client and round. Shapes follow static bounds, so draws must not depend
on padding. Therefore every permutation sorts bits drawn by position: the bits of a prefix stay the
same when the array grows.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from fedjax_ssl.checks import check_whole_numbers
from fedjax_ssl.federated.contract import (
    AtClient,
    AtServer,
    Client,
    Now,
    Sampler,
    Schedule,
    Stage,
    Term,
    never,
)
from fedjax_ssl.keys import named_key

LOCAL_STEPS = "local_steps"  # name of the term that counts a client's steps


def masked_permutation(
    key: Key[Array, ""], count: Int[Array, ""], size: int
) -> Int[Array, " size"]:
    """Return a random permutation of 0..count-1, followed by the positions count..size-1 in order.

    Args:
        key: typed PRNG key.
        count: number of real positions.
        size: static length, at least `count`. The result's first `count` entries do not depend on
            it.

    Returns:
        int32 [size].
    """
    bits = jax.random.bits(key, (size,))
    padding = jnp.arange(size, dtype=jnp.int32) >= count
    return jnp.lexsort((jnp.where(padding, jnp.zeros_like(bits), bits), padding)).astype(jnp.int32)


def cycled_permutations(
    key: Key[Array, ""], count: Int[Array, ""], length: int, max_count: int
) -> Int[Array, " length"]:
    """Return an endless stream of fresh permutations of 0..count-1, cut at `length`.

    Args:
        key: typed PRNG key.
        count: examples in one pass, at most `max_count`; 0 gives zeros.
        length: static length of the stream.
        max_count: static bound of `count`; a pass is always drawn as a whole, the last one too.

    Returns:
        int32 [length].
    """
    total = length + max_count
    draws = jnp.arange(total, dtype=jnp.int32)
    one_pass = jnp.maximum(count, 1)
    order = jnp.lexsort((jax.random.bits(key, (total,)), draws // one_pass))
    return order[:length].astype(jnp.int32) % one_pass


def batches_per_epoch(
    count: Int[Array, ""], batch_size: int, skip_single: bool = False
) -> Int[Array, ""]:
    """Count the batches of one pass over `count` examples, including a last partial one.

    Args:
        count: examples.
        batch_size: examples per batch.
        skip_single: leave out a last batch of one example, unless it is the only one; batch norm
            fails on a single row once an image has shrunk to one pixel.
    """
    if not skip_single:
        return -(-count // batch_size)
    return jnp.maximum(-(-(count - 1) // batch_size), jnp.minimum(count, 1))


@cache  # cached, because private steps recognize their batches by this object
def labelled_epochs(
    batch_size: int, local_epochs: int, max_labelled: int, skip_single: bool = False
) -> Sampler:
    """Return a sampler of epochs over the labelled examples: stream "labelled", freshly shuffled,
    with the last partial batch.

    This is local training of FedAvg (McMahan et al., AISTATS 2017) and stage 1 of FedAvg+XCLP.

    Args:
        batch_size: examples per local step.
        local_epochs: passes over the labelled examples per round.
        max_labelled: static bound of labelled examples per client.
        skip_single: see `batches_per_epoch`.
    """
    return epochs(
        "labelled",
        lambda client: client.num_labelled,
        batch_size,
        local_epochs,
        max_labelled,
        skip_single=skip_single,
    )


def known_epochs(
    batch_size: int, local_epochs: int, max_known: int, drop_last: bool = False
) -> Sampler:
    """Return a sampler of epochs over the examples with a class label or a weak label: stream
    "labelled".

    If all of these have class labels, batches and random draws are the same as in
    `labelled_epochs`.

    Args:
        batch_size: examples per local step.
        local_epochs: passes over these examples per round.
        max_known: static bound of such examples per client.
        drop_last: leave out the last partial batch of an epoch, and clients with less than a batch.
    """
    return epochs(
        "labelled", lambda client: client.num_known, batch_size, local_epochs, max_known, drop_last
    )


def epochs(
    stream: str,
    count: Callable[[Client], Int[Array, ""]],
    batch_size: int,
    local_epochs: int,
    max_count: int,
    drop_last: bool = False,
    skip_single: bool = False,
) -> Sampler:
    """Return a sampler of epochs over the first `count(client)` examples of a client, freshly
    shuffled.

    Args:
        stream: name of the stream.
        count: client -> number of its examples that are used, at most `max_count`.
        batch_size: examples per local step.
        local_epochs: passes per round.
        max_count: static bound.
        drop_last: leave out the last partial batch of an epoch.
        skip_single: see `batches_per_epoch`.
    """
    size = max(max_count, 1)
    steps = local_epochs * -(-size // batch_size)

    def steps_of(number: Int[Array, ""]) -> Int[Array, ""]:
        return (
            number // batch_size
            if drop_last
            else batches_per_epoch(number, batch_size, skip_single)
        )

    def schedule(key: Key[Array, ""], client: Client, now: Now) -> Schedule:
        number = count(client)
        orders = _permutation_per_epoch(named_key(key, "labelled"), number, size, local_epochs)
        per_epoch = steps_of(number)
        epoch, within = _divide(jnp.arange(steps, dtype=jnp.int32), per_epoch)
        slot = within[:, None] * batch_size + jnp.arange(batch_size, dtype=jnp.int32)
        mask = (slot < number) & (epoch < local_epochs)[:, None]
        positions = orders[epoch[:, None], jnp.minimum(slot, size - 1)]
        return Schedule({stream: positions}, {stream: mask}, local_epochs * per_epoch)

    def going_on(steps: int) -> Sampler:
        def schedule(key: Key[Array, ""], client: Client, now: Now) -> Schedule:
            number = count(client)
            done = _steps_done(client)
            per_epoch = steps_of(number)
            one_pass = jnp.maximum(number, 1)
            epoch, within = _divide(done + jnp.arange(steps, dtype=jnp.int32), per_epoch)
            # All passes that this round touches, from its first to its last, are drawn as a whole.
            draws = jnp.arange(steps * batch_size + 2 * size, dtype=jnp.int32)
            run_key = key if now.run_key is None else now.run_key
            own = jax.random.fold_in(named_key(run_key, LOCAL_STEPS), client.id)
            bits = jax.vmap(
                lambda pass_, place: jax.random.bits(
                    jax.random.fold_in(jax.random.fold_in(own, pass_), place)
                )
            )
            order = jnp.lexsort(
                (bits(epoch[0] + draws // one_pass, draws % one_pass), draws // one_pass)
            )
            slot = within[:, None] * batch_size + jnp.arange(batch_size, dtype=jnp.int32)
            mask = (slot < number) & (per_epoch > 0)
            place = (epoch - epoch[0])[:, None] * one_pass + jnp.minimum(slot, one_pass - 1)
            positions = (order % one_pass)[place].astype(jnp.int32)
            return Schedule(
                {stream: positions},
                {stream: mask},
                jnp.where(per_epoch > 0, steps, 0).astype(jnp.int32),
            )

        return Sampler(schedule, equal_steps=True)

    return Sampler(schedule, going_on=going_on)


def with_local_steps(stage: Stage, steps: int) -> Stage:
    """Return the stage with a fixed number of local steps a round in place of epochs.

    Epochs over labelled examples continue from round to round. A client keeps its number of steps
    so far; everything else follows from its id and the run's key, and a client whose update is
    dropped takes its steps again. Batches with unlabelled examples come from endless sequences,
    which begin anew in every round. Clients without examples for the batches do not train.

    Raises:
        ValueError: the method sets its own number of steps.
    """
    check_whole_numbers(local_steps=steps)
    clients = stage.clients
    if clients is None:
        return stage
    go_on = clients.sampler.going_on
    if go_on is None:
        raise ValueError(
            f"config.optimizer.local_steps is {steps}, but this method draws its batches "
            "otherwise than in passes over examples; leave local_steps out and give "
            "config.optimizer.local_epochs, or use a method such as 'fedavg' or 'fixmatch'"
        )
    counter = AtClient(
        keep=lambda params, model_state, client: jnp.zeros((), jnp.int32),
        remember=lambda trained: _steps_done(trained.client) + trained.num_steps,
    )
    no_loss = Term(
        LOCAL_STEPS,
        (),
        lambda step: jnp.zeros(()),
        group=clients.terms[0].group,
        server=AtServer(participates=never),
        client=counter,
    )
    # A term with a state at the clients counts their steps.
    return stage._replace(clients=clients._replace(sampler=go_on(steps))).with_terms(no_loss)


def _steps_done(client: Client) -> Int[Array, ""]:
    """Count the local steps of a client before this round."""
    return jnp.zeros((), jnp.int32) if client.kept is None else client.kept.terms[LOCAL_STEPS]


def mixed_epochs(
    batch_size: int,
    local_epochs: int,
    max_labelled: int,
    max_unlabelled: int,
) -> Sampler:
    """Return a sampler of batches as in stage 2 of FedAvg+XCLP: stream "mixed" with 2 * batch_size
    slots.

    A client with labels: batch_size labelled examples from an endless reshuffle, then batch_size
    unlabelled ones; an epoch is floor(unlabelled / batch_size) steps, at least one, through a fresh
    permutation of the unlabelled examples. A client without labels: batches of 2 * batch_size over
    its examples, the last partial one kept. A client without unlabelled examples: ceil(labelled /
    batch_size) steps with only the labelled half.

    Args:
        batch_size: labelled and unlabelled examples per local step, each.
        local_epochs: epochs per round.
        max_labelled: static bound of labelled examples per client.
        max_unlabelled: static bound of unlabelled examples per client.
    """
    size = max(max_unlabelled, 1)
    steps = local_epochs * max(
        size // batch_size, -(-size // (2 * batch_size)), -(-max_labelled // batch_size), 1
    )

    def schedule(key: Key[Array, ""], client: Client, now: Now) -> Schedule:
        labelled = client.num_labelled
        unlabelled = client.num_examples - labelled
        with_labels = labelled > 0
        per_epoch = jnp.where(
            with_labels & (unlabelled > 0),
            jnp.maximum(unlabelled // batch_size, 1),
            jnp.where(with_labels, -(-labelled // batch_size), -(-unlabelled // (2 * batch_size))),
        )
        epoch, within = _divide(jnp.arange(steps, dtype=jnp.int32), per_epoch)
        column = jnp.arange(batch_size, dtype=jnp.int32)

        orders = _permutation_per_epoch(
            named_key(key, "unlabelled"), unlabelled, size, local_epochs
        )
        stride = jnp.where(with_labels, batch_size, 2 * batch_size)
        left = within[:, None] * stride + column
        right = jnp.where(with_labels, left, left + batch_size)

        def unlabelled_at(slot: Int[Array, "S b"]) -> Int[Array, "S b"]:
            return labelled + orders[epoch[:, None], jnp.minimum(slot, size - 1)]

        cycle = cycled_permutations(
            named_key(key, "labelled"), labelled, steps * batch_size, max_labelled
        )
        first_half = jnp.where(with_labels, cycle.reshape(steps, batch_size), unlabelled_at(left))
        positions = jnp.concatenate([first_half, unlabelled_at(right)], axis=1)
        running = (epoch < local_epochs)[:, None]
        masks = jnp.concatenate(
            [running & (with_labels | (left < unlabelled)), running & (right < unlabelled)], axis=1
        )
        return Schedule({"mixed": positions}, {"mixed": masks}, local_epochs * per_epoch)

    def going_on(steps: int) -> Sampler:
        def schedule(key: Key[Array, ""], client: Client, now: Now) -> Schedule:
            labelled = client.num_labelled
            unlabelled = client.num_examples - labelled
            with_labels = labelled > 0
            whole = 2 * steps * batch_size
            others = labelled + cycled_permutations(
                named_key(key, "unlabelled"), unlabelled, whole, size
            )
            # A client without labels fills both halves with unlabelled examples.
            halves = others.reshape(steps, 2, batch_size)
            known = cycled_permutations(
                named_key(key, "labelled"), labelled, whole // 2, max(max_labelled, 1)
            )
            left = jnp.where(with_labels, known.reshape(steps, batch_size), halves[:, 0])
            one_half = others[: whole // 2].reshape(steps, batch_size)
            right = jnp.where(with_labels, one_half, halves[:, 1])
            real = jnp.stack([client.num_examples > 0, unlabelled > 0])
            mask = jnp.broadcast_to(jnp.repeat(real, batch_size), (steps, 2 * batch_size))
            positions = jnp.where(mask, jnp.concatenate([left, right], axis=1), 0)
            taken = jnp.where(real[0], steps, 0).astype(jnp.int32)
            return Schedule({"mixed": positions}, {"mixed": mask}, taken)

        return Sampler(schedule, equal_steps=True)

    return Sampler(schedule, going_on=going_on)


def in_turn(*samplers: Sampler) -> Sampler:
    """Return a sampler that takes all steps of one sampler, then all steps of the next; the streams
    of the other samplers are empty meanwhile.

    With a parameter group per sampler, groups are trained one after another: a group without a row
    takes no step (FedRep's head, then its body).

    Args:
        *samplers: the samplers; their streams need different names.
    """

    def schedule(key: Key[Array, ""], client: Client, now: Now) -> Schedule:
        drawn = [
            one.schedule(jax.random.fold_in(key, n), client, now) for n, one in enumerate(samplers)
        ]
        bounds = [jax.tree.leaves(one.masks)[0].shape[0] for one in drawn]
        step = jnp.arange(sum(bounds), dtype=jnp.int32)
        start = jnp.zeros((), jnp.int32)
        positions: dict[str, Array] = {}
        masks: dict[str, Array] = {}
        for one, bound in zip(drawn, bounds, strict=True):
            own = jnp.clip(step - start, 0, bound - 1)
            end = start + one.num_steps
            mine = ((step >= start) & (step < end))[:, None]
            masks |= {name: mask[own] & mine for name, mask in one.masks.items()}
            positions |= {
                name: jnp.where(mine, table[own], 0) for name, table in one.positions.items()
            }
            start = end
        return Schedule(positions, masks, start)

    return Sampler(schedule, reads_sent=any(one.reads_sent for one in samplers))


def _permutation_per_epoch(
    key: Key[Array, ""], count: Int[Array, ""], size: int, local_epochs: int
) -> Int[Array, "E size"]:
    keys = jax.vmap(lambda epoch: jax.random.fold_in(key, epoch))(jnp.arange(local_epochs))
    return jax.vmap(lambda k: masked_permutation(k, count, size))(keys)


def _divide(
    step: Int[Array, " S"], per_epoch: Int[Array, ""]
) -> tuple[Int[Array, " S"], Int[Array, " S"]]:
    """Return the epoch of a step and its place within the epoch; if an epoch has no steps, all
    steps are past the last epoch.
    """
    safe = jnp.maximum(per_epoch, 1)
    beyond = jnp.iinfo(jnp.int32).max
    return jnp.where(per_epoch > 0, step // safe, beyond), step % safe


class Steps(NamedTuple):
    """Number of local steps of each client in a round."""

    of: Callable[[Client], Int[Array, ""]]
    most: int  # static bound


def passes(
    batch_size: int,
    unlabelled_batch_size: int,
    local_epochs: int,
    max_labelled: int,
    max_unlabelled: int,
) -> Steps:
    """Return the steps of passes over the unlabelled examples, the last batch filled up; over the
    labelled ones if there are no others.

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
        return local_epochs * jnp.where(
            unlabelled > 0, -(-unlabelled // unlabelled_batch_size), labelled_steps
        )

    return Steps(
        of,
        local_epochs
        * max(-(-max_unlabelled // unlabelled_batch_size), -(-max_labelled // batch_size), 1),
    )


def fixed_steps(number: int) -> Steps:
    """Return the same number of steps for every client with an example.

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
    max_known: int | None = None,
) -> Sampler:
    """Return a sampler of streams "labelled" and "unlabelled", each an endless sequence of fresh
    permutations, cut into whole batches.

    A client with fewer examples than a batch repeats some of them within it. A stream for which it
    has no examples is all padding.

    Args:
        batch_size: examples of "labelled" per step.
        unlabelled_batch_size: examples of "unlabelled" per step.
        steps: local steps per round.
        max_labelled: static bound of labelled examples per client.
        max_unlabelled: static bound of unlabelled examples per client.
        labelled_too: the stream "unlabelled" has all examples of the client; its losses do not read
            labels.
        max_known: static bound of examples per client with a class label or a weak label. If given,
            examples with a weak label are in "labelled" too; they are always in "unlabelled".

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
            order = cycled_permutations(
                named_key(key, name), count, steps.most * size, max(most, 1)
            )
            mask = jnp.broadcast_to(running & (count > 0), (steps.most, size))
            return jnp.where(mask, start + order.reshape(steps.most, size), 0), mask

        known = client.num_labelled if max_known is None else client.num_known
        bound = max_labelled if max_known is None else max_known
        labelled = stream("labelled", jnp.zeros_like(first), known, bound, batch_size)
        unlabelled = stream(
            "unlabelled", first, client.num_examples - first, most, unlabelled_batch_size
        )
        positions = {"labelled": labelled[0], "unlabelled": unlabelled[0]}
        return Schedule(
            positions,
            {"labelled": labelled[1], "unlabelled": unlabelled[1]},
            taken.astype(jnp.int32),
        )

    sizes = (batch_size, unlabelled_batch_size)
    bounds = (max_labelled, max_unlabelled)

    def going_on(number: int) -> Sampler:
        fixed = Steps(lambda client: jnp.where(steps.of(client) > 0, number, 0), number)
        taken = paired_batches(*sizes, fixed, *bounds, labelled_too, max_known)
        return taken._replace(equal_steps=True)

    return Sampler(schedule, going_on=going_on)
