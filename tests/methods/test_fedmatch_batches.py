"""Batches in stored order: how many steps, which examples, and the learning rate of a plateau."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.federated import Client, Now
from fedjax_ssl.methods.fedmatch import first_plateau, next_plateau
from fedjax_ssl.methods.parts.matched_batches import Bounds, matched_batches, steps_per_epoch


@functools.cache
def program(sampler):
    """The schedule as a compiled function of (labelled, examples)."""

    def schedule(labelled, examples):
        nothing = jnp.zeros(0, jnp.int32)
        client = Client(jnp.zeros((), jnp.int32), nothing, nothing, labelled, examples, {}, ())
        return sampler.schedule(jax.random.key(0), client, Now(jnp.zeros((), jnp.int32)))

    return jax.jit(schedule)


def batches(sampler, labelled: int, examples: int) -> list[tuple[list, list]]:
    """Labelled and unlabelled examples of every step."""
    drawn = jax.device_get(program(sampler)(*np.asarray([labelled, examples], np.int32)))
    streams = ("labelled", "unlabelled")
    return [
        tuple(drawn.positions[s][step][drawn.masks[s][step]].tolist() for s in streams)
        for step in range(drawn.num_steps)
    ]


def used(steps: list[tuple[list, list]], stream: int) -> list[int]:
    """All examples of a stream, step after step."""
    return [example for step in steps for example in step[stream]]


def test_steps_are_rounded_half_to_even() -> None:
    """FedMatch section 13, check 16, and its edge: less than half a batch is one step."""
    counts = np.array([550, 650, 50, 49, 1, 0, 150], np.int32)
    steps = jax.jit(steps_per_epoch)
    assert steps(counts, 100).tolist() == [6, 6, 1, 1, 1, 0, 2] and int(steps(50, 10)) == 5


def test_labelled_examples_decide_the_steps_of_a_client_that_has_some() -> None:
    """50 labels in batches of 10 are 5 steps; 490 unlabelled examples 98 a step, 510 are 102;
    each is used once.
    """
    for unlabelled, each in ((490, 98), (510, 102)):
        found = batches(
            matched_batches(10, None, 1, Bounds(50, 50, unlabelled)), 50, 50 + unlabelled
        )
        assert [len(step[1]) for step in found] == [each] * 5
        assert used(found, 0) == list(range(50))
        assert used(found, 1) == list(range(50, 50 + unlabelled))
    fixed = batches(matched_batches(10, 100, 1, Bounds(50, 50, 490)), 50, 540)
    assert [len(step[1]) for step in fixed] == [100, 100, 100, 100, 90]


def test_clients_that_lack_one_kind_of_examples() -> None:
    sampler = matched_batches(10, None, 2, Bounds(54, 4, 550))
    # round(5.5) = 6 steps of 100, the last one of 50, in each of two epochs
    found = batches(sampler, 0, 550)
    assert [len(step[1]) for step in found] == [100, 100, 100, 100, 100, 50] * 2
    found = batches(sampler, 54, 54)  # round(5.4) = 5 steps of 10, and 4 that are not used
    assert (
        [step for step in found[:5]]
        == [(list(range(10 * i, 10 * i + 10)), []) for i in range(5)]
        == found[5:]
    )
    assert batches(sampler, 0, 0) == []
    assert batches(sampler, 4, 10) == [([0, 1, 2, 3], [4, 5, 6, 7, 8, 9])] * 2


@pytest.mark.thorough
def test_shuffled_epochs_use_the_same_examples() -> None:
    sampler = matched_batches(10, None, 2, Bounds(20, 20, 40), shuffle=True)
    found = batches(sampler, 20, 60)
    for epoch in (found[:2], found[2:]):
        assert sorted(used(epoch, 0)) == list(range(20))
        assert sorted(used(epoch, 1)) == list(range(20, 60))
    assert found[:2] != found[2:] and found[0][0] != list(range(10))


def test_the_rate_falls_where_the_loss_does_not(float64) -> None:
    """FedMatch section 13, check 15: an equal loss is no improvement, and an improvement
    restores the patience.
    """
    losses = [1, 0.9, 0.95, 0.9, 0.91, 0.92, 0.93, 0.89, 0.95, 0.95, 0.95, 0.95, 0.95, float("nan")]
    step = jax.jit(lambda state, loss: next_plateau(state, loss, 5))
    state = first_plateau(5)
    rates = []
    for loss in losses:
        state = step(state, loss)
        rates.append(1e-3 * float(state.factor))
    np.testing.assert_allclose(rates, [1e-3] * 6 + [1e-3 / 3] * 6 + [1e-3 / 9] * 2, rtol=1e-12)
    assert float(state.best) == 0.89 and int(state.patience) == 4
