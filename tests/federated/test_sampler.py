import functools
from collections import Counter
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.federated import (
    Client,
    Sampler,
    Schedule,
    fixed_steps,
    labelled_epochs,
    mixed_epochs,
    paired_batches,
    passes,
)
from fedjax_ssl.federated.sampler import cycled_permutations, masked_permutation
from tests import toy


def a_client(num_labelled: int, num_examples: int, width: int = 32) -> Client:
    observed = jnp.asarray(np.where(np.arange(width) < num_labelled, 0, -1))
    return Client(
        id=jnp.asarray(0, jnp.int32),
        rows=jnp.zeros(width, jnp.int32),
        observed=observed,
        num_labelled=jnp.asarray(num_labelled, jnp.int32),
        num_examples=jnp.asarray(num_examples, jnp.int32),
        sent={},
        sent_by_optimizer=(),
    )


@functools.cache
def compiled(make: Callable[..., Sampler], *arguments: int) -> Callable[..., Schedule]:
    """The schedule of a sampler; one program for all clients."""
    return jax.jit(make(*arguments).schedule)


def batches(
    make: Callable[..., Sampler], arguments: tuple[int, ...], client: Client, seed: int = 0
) -> list[list[int]]:
    """The unmasked positions of every step that the client takes."""
    schedule = compiled(make, *arguments)(jax.random.key(seed), client, toy.NOW)
    (stream,) = schedule.positions
    steps = int(schedule.num_steps)
    assert steps <= schedule.positions[stream].shape[0]
    positions = np.asarray(schedule.positions[stream])
    masks = np.asarray(schedule.masks[stream])
    assert not masks[steps:].any()
    taken = [list(row[mask]) for row, mask in zip(positions[:steps], masks[:steps], strict=True)]
    assert all(0 <= position < int(client.num_examples) for batch in taken for position in batch)
    return taken


@pytest.mark.parametrize("count", [0, 1, 5, 8])
def test_masked_permutation_permutes_the_real_positions_and_keeps_the_others(count: int) -> None:
    order = masked_permutation(jax.random.key(0), jnp.asarray(count, jnp.int32), 8)
    assert order.dtype == jnp.int32
    assert sorted(order[:count].tolist()) == list(range(count))
    assert order[count:].tolist() == list(range(count, 8))


def test_masked_permutation_does_not_depend_on_the_padding() -> None:
    for count in (1, 4, 7):
        short, long = (
            masked_permutation(jax.random.key(3), jnp.asarray(count, jnp.int32), n) for n in (7, 50)
        )
        assert short[:count].tolist() == long[:count].tolist()


def test_masked_permutation_is_uniform() -> None:
    keys = jax.random.split(jax.random.key(0), 2400)
    orders = jax.vmap(lambda k: masked_permutation(k, jnp.asarray(3, jnp.int32), 4))(keys)
    counts = Counter(tuple(order) for order in np.asarray(orders).tolist())
    # six orders, 400 each, standard deviation 18.3: five deviations fail for fewer than 1 key in
    # 10^5
    assert len(counts) == 6
    assert all(abs(number - 400) < 92 for number in counts.values())


@pytest.mark.parametrize(("count", "length"), [(1, 5), (3, 12), (4, 10), (7, 3)])
def test_cycled_permutations_repeat_nothing_within_a_pass(count: int, length: int) -> None:
    stream = np.asarray(
        cycled_permutations(jax.random.key(1), jnp.asarray(count, jnp.int32), length, 9)
    )
    assert stream.shape == (length,)
    for start in range(0, length, count):
        one_pass = stream[start : start + count]
        assert len(set(one_pass.tolist())) == len(one_pass)
        assert ((one_pass >= 0) & (one_pass < count)).all()


def test_cycled_permutations_reshuffle_and_do_not_depend_on_the_bounds() -> None:
    count = jnp.asarray(6, jnp.int32)
    stream = np.asarray(cycled_permutations(jax.random.key(1), count, 30, 6)).reshape(5, 6)
    assert len({tuple(one_pass) for one_pass in stream.tolist()}) > 1
    longer = cycled_permutations(jax.random.key(1), count, 100, 40)
    assert longer[:30].tolist() == stream.reshape(-1).tolist()


def test_cycled_permutations_of_nothing_are_zeros() -> None:
    assert (
        cycled_permutations(jax.random.key(1), jnp.asarray(0, jnp.int32), 4, 0).tolist() == [0] * 4
    )


@pytest.mark.parametrize(
    ("num_labelled", "batch_size"), [(8, 4), (7, 3), (1, 4), (10, 10), (9, 20)]
)
def test_labelled_epochs_use_every_labelled_example_once_per_epoch(
    num_labelled: int, batch_size: int
) -> None:
    taken = batches(labelled_epochs, (batch_size, 3, 12), a_client(num_labelled, num_labelled + 5))
    per_epoch = -(-num_labelled // batch_size)
    assert len(taken) == 3 * per_epoch
    orders = []
    for start in range(0, len(taken), per_epoch):
        epoch = taken[start : start + per_epoch]
        assert [len(batch) for batch in epoch[:-1]] == [batch_size] * (per_epoch - 1)
        assert len(epoch[-1]) == num_labelled - batch_size * (per_epoch - 1)
        orders.append([position for batch in epoch for position in batch])
        assert sorted(orders[-1]) == list(range(num_labelled))
    if num_labelled > 5:
        assert orders[0] != orders[1]


def test_labelled_epochs_do_not_depend_on_the_bound() -> None:
    client = a_client(7, 12)
    for seed in range(3):
        tight = batches(labelled_epochs, (3, 2, 7), client, seed)
        assert batches(labelled_epochs, (3, 2, 30), client, seed) == tight


@pytest.mark.parametrize(("num_labelled", "num_examples"), [(0, 5), (0, 0)])
def test_labelled_epochs_of_a_client_without_labels_take_no_step(
    num_labelled: int, num_examples: int
) -> None:
    assert batches(labelled_epochs, (4, 2, 8), a_client(num_labelled, num_examples)) == []


@pytest.mark.parametrize(
    ("num_labelled", "num_unlabelled"),
    [(10, 440), (5, 23), (3, 9), (4, 4), (1, 12)],
)
def test_mixed_epochs_of_a_client_with_both(num_labelled: int, num_unlabelled: int) -> None:
    batch_size = 4
    epochs = 3
    client = a_client(num_labelled, num_labelled + num_unlabelled, width=480)
    taken = batches(mixed_epochs, (batch_size, epochs, 12, 450), client)
    per_epoch = num_unlabelled // batch_size  # the remainder is dropped
    assert len(taken) == epochs * per_epoch
    assert all(len(batch) == 2 * batch_size for batch in taken)
    labelled = [position for batch in taken for position in batch[:batch_size]]
    for start in range(0, len(labelled), num_labelled):
        one_pass = labelled[start : start + num_labelled]
        assert len(set(one_pass)) == len(one_pass)
        assert max(one_pass) < num_labelled
    for start in range(0, len(taken), per_epoch):
        unlabelled = [
            position
            for batch in taken[start : start + per_epoch]
            for position in batch[batch_size:]
        ]
        assert len(set(unlabelled)) == len(unlabelled) == per_epoch * batch_size
        assert min(unlabelled) >= num_labelled


@pytest.mark.parametrize(
    ("num_labelled", "size", "steps"),
    [(10, 450, 44), (20, 450, 21), (50, 450, 8), (100, 450, 7), (100, 900, 16)],
)
def test_mixed_epochs_take_the_published_number_of_steps(
    num_labelled: int, size: int, steps: int
) -> None:
    """XCLP section 5.3, steps per local epoch of a labelled client."""
    client = a_client(num_labelled, size, width=900)
    assert len(batches(mixed_epochs, (min(50, num_labelled), 1, 100, 890), client)) == steps


@pytest.mark.parametrize("num_unlabelled", [1, 7, 8, 9, 20])
def test_mixed_epochs_of_a_client_without_labels(num_unlabelled: int) -> None:
    batch_size = 4
    epochs = 2
    taken = batches(
        mixed_epochs, (batch_size, epochs, 9, 20), a_client(0, num_unlabelled, width=20)
    )
    per_epoch = -(-num_unlabelled // (2 * batch_size))
    assert len(taken) == epochs * per_epoch
    for start in range(0, len(taken), per_epoch):
        epoch = taken[start : start + per_epoch]
        assert [len(batch) for batch in epoch[:-1]] == [2 * batch_size] * (per_epoch - 1)
        assert sorted(position for batch in epoch for position in batch) == list(
            range(num_unlabelled)
        )


@pytest.mark.parametrize("num_labelled", [1, 4, 7])
def test_mixed_epochs_of_a_client_with_labels_only(num_labelled: int) -> None:
    batch_size = 4
    epochs = 2
    taken = batches(
        mixed_epochs, (batch_size, epochs, 9, 20), a_client(num_labelled, num_labelled, width=20)
    )
    assert len(taken) == epochs * -(-num_labelled // batch_size)
    assert all(len(batch) == batch_size for batch in taken)
    stream = [position for batch in taken for position in batch]
    for start in range(0, len(stream), num_labelled):
        one_pass = stream[start : start + num_labelled]
        assert len(set(one_pass)) == len(one_pass)


def test_mixed_epochs_with_fewer_unlabelled_examples_than_a_batch() -> None:
    taken = batches(mixed_epochs, (4, 2, 9, 20), a_client(num_labelled=5, num_examples=8, width=20))
    assert len(taken) == 2  # one step per epoch
    for batch in taken:
        assert len(batch) == 4 + 3
        assert sorted(batch[4:]) == [5, 6, 7]


def test_mixed_epochs_of_an_empty_slot_take_no_step() -> None:
    assert batches(mixed_epochs, (4, 2, 9, 20), a_client(0, 0, width=20)) == []


@pytest.mark.parametrize(
    ("num_labelled", "num_examples"),
    [(3, 17), (0, 11), *(pytest.param(*x, marks=pytest.mark.thorough) for x in ((5, 5), (2, 4)))],
)
def test_mixed_epochs_do_not_depend_on_the_bounds(num_labelled: int, num_examples: int) -> None:
    client = a_client(num_labelled, num_examples, width=40)
    tight = batches(mixed_epochs, (3, 2, num_labelled, num_examples - num_labelled), client)
    assert batches(mixed_epochs, (3, 2, 19, 37), client) == tight


def test_schedules_run_in_64_bit_mode(float64) -> None:
    client = a_client(3, 9)
    for sampler in (labelled_epochs(2, 2, 4), mixed_epochs(2, 2, 4, 8)):
        schedule = jax.jit(sampler.schedule)(jax.random.key(0), client, toy.NOW)
        assert int(schedule.num_steps) > 0


@pytest.mark.parametrize(
    ("labelled", "examples", "too", "steps"),
    [(4, 20, False, 4), (4, 4, False, 2), (0, 20, False, 6), (4, 20, True, 4), (0, 0, False, 0)],
)
def test_paired_batches_go_through_both_streams(
    labelled: int, examples: int, too: bool, steps: int
) -> None:
    """Two passes in batches of 4 and 8: 16 examples in 4 steps, and 20 in 6, the last batch of
    the second filled up.
    """
    client = a_client(labelled, examples)
    schedule = compiled(paired_batches, 4, 8, passes(4, 8, 2, 4, 20), 4, 20, too)(
        jax.random.key(0), client, toy.NOW
    )
    assert int(schedule.num_steps) == steps
    for stream, first in (("labelled", 0), ("unlabelled", 0 if too else labelled)):
        last = labelled if stream == "labelled" else examples
        rows = np.asarray(schedule.positions[stream])[:steps].ravel()
        real = np.asarray(schedule.masks[stream])
        assert real[:steps].all() == (last > first or not steps) and not real[steps:].any()
        if last > first:
            counts = np.bincount(rows - first, minlength=last - first)
            assert rows.min() >= first and rows.max() < last and counts.max() - counts.min() <= 1


def test_paired_batches_of_a_fixed_number_of_steps() -> None:
    make = compiled(paired_batches, 4, 8, fixed_steps(3), 4, 20)
    assert int(make(jax.random.key(0), a_client(1, 20), toy.NOW).num_steps) == 3
    assert int(make(jax.random.key(0), a_client(0, 0), toy.NOW).num_steps) == 0
    with pytest.raises(ValueError, match="local_steps"):
        fixed_steps(0)
