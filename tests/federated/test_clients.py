"""Clients as a round sees them: whole, or with one part of what comes to them as a stream."""

import dataclasses

import jax
import numpy as np
import pytest

from fedjax_ssl import data as datasets
from fedjax_ssl import methods
from fedjax_ssl.federated.client_states import all_clients, clients_of, part_of
from tests import toy

KEY = jax.random.key(0)


def stream(parts: int, rounds_per_part: int | None = None) -> datasets.FederatedData:
    """Clients with 3 labelled examples and 10 others, with 2 and 4, and with 2 labelled ones
    alone.
    """
    whole = toy.federation(sizes=(13, 6, 2), labelled=(3, 2, 2))
    return dataclasses.replace(
        whole, num_parts=parts, rounds_per_part=rounds_per_part, max_labelled=3, max_unlabelled=10
    )


def test_a_round_sees_its_part_of_the_stream_and_all_labels() -> None:
    data = stream(parts=4)
    index = np.asarray(data.index)
    for part in range(4):
        clients = jax.jit(all_clients)(data, part)
        assert clients.rows.shape == (3, 3 + 3) and clients.num_labelled.tolist() == [3, 2, 2]
        assert clients.num_examples.tolist() == [3 + 2, 2 + 1, 2]
        first = [*index[0, :3], *index[0, 3 + 2 * part : 5 + 2 * part]]
        assert clients.rows[0, :5].tolist() == first
        assert clients.rows[1, :3].tolist() == [*index[1, :2], index[1, 2 + part]]
        assert clients.observed[0, :6].tolist() == [
            *np.asarray(data.labels)[index[0, :3]],
            -1,
            -1,
            -1,
        ]
    (one,) = jax.device_get(
        clients_of(data, np.array([1], np.int32), np.array([False]), 2)
    ).num_examples
    assert one == 0, "an empty slot"


@pytest.mark.thorough
def test_weak_labels_follow_their_examples() -> None:
    whole = toy.federation(sizes=(12, 9, 6), labelled=(4, 3, 2), weak="coarse")
    data = dataclasses.replace(whole, num_parts=2, max_labelled=4, max_unlabelled=8)
    labels = np.asarray(whole.weak.labels)
    index = np.asarray(whole.index)
    for part in range(2):
        clients = all_clients(data, part)
        known = np.asarray(clients.num_known)
        for client in range(3):
            rows = np.asarray(clients.rows)[client, clients.num_labelled[client] : known[client]]
            there = [labels[client, index[client].tolist().index(row)] for row in rows]
            seen = np.asarray(clients.weak.labels)[
                client, clients.num_labelled[client] : known[client]
            ]
            assert seen.tolist() == there
    of_parts = sum(np.asarray(all_clients(data, part).weak.num_examples) for part in range(2))
    unlabelled = np.asarray(whole.num_examples - whole.num_labelled)
    assert (of_parts == np.minimum(whole.weak.num_examples, unlabelled // 2 * 2)).all()


def test_parts_of_clients_that_know_something_of_some_examples_only_are_refused() -> None:
    whole = toy.federation(sizes=(12, 9, 6), labelled=(4, 3, 2), weak="coarse")
    unlabelled = whole.num_examples - whole.num_labelled
    known = dataclasses.replace(whole.weak, num_examples=unlabelled - np.array([0, 1, 0], np.int32))
    data = dataclasses.replace(whole, num_parts=2, weak=known)
    with pytest.raises(ValueError, match="client 1 has weak labels for 5 of its 6 only"):
        datasets.validate(data)
    datasets.validate(
        dataclasses.replace(data, weak=dataclasses.replace(known, num_examples=unlabelled))
    )


@pytest.mark.parametrize(
    ("rounds_per_part", "rounds", "expected"),
    [
        (None, 100, [0, 0, 1, 9, 9]),
        (1, 100, [0, 9, 9, 9, 9]),
        (30, None, [0, 0, 0, 3, 4]),
        (None, 5, [0, 9, 9, 9, 9]),
    ],
)
def test_which_part_a_round_has(
    rounds_per_part: int | None, rounds: int | None, expected: list[int]
) -> None:
    """Ten parts in 100 rounds: part t in rounds 10 t to 10 t + 9, the last one to the end."""
    data = stream(10, rounds_per_part)
    numbers = np.array([0, 9, 10, 99, 120], np.int32)
    assert [int(part_of(data, number, rounds)) for number in numbers] == expected


def test_without_parts_nothing_is_asked_and_with_them_the_length_has_to_be_known() -> None:
    assert part_of(stream(1), np.int32(7), None) == 0
    with pytest.raises(
        ValueError, match=r"in a run of unknown length; say for how many rounds.*rounds_per_part"
    ):
        part_of(stream(4), np.int32(0), None)
    with pytest.raises(ValueError, match=r"fedsem labels every example once.*4 parts"):
        methods.build("fedsem", toy.setup(stream(4)))


@pytest.mark.thorough
def test_only_the_part_is_trained_on() -> None:
    """What a part does not hold may be anything, and no bit of the round changes."""
    whole = toy.federation(sizes=(12, 12), labelled=(4, 4), num_test=8)
    data = dataclasses.replace(whole, num_parts=4, max_labelled=4, max_unlabelled=8)
    later = np.asarray(data.index)[:, 6:].ravel()
    other = dataclasses.replace(data, inputs=data.inputs.at[later].set(7.0))
    method = methods.build("fixmatch", toy.setup(data, rounds=4), threshold=0.0)
    states = [toy.train(method, KEY, one, 1)[0] for one in (data, other)]
    same = jax.tree.map(np.array_equal, *(state.params for state in states))
    assert all(jax.tree.leaves(same))
    states = [toy.train(method, KEY, one, 2)[0] for one in (data, other)]
    assert not all(
        jax.tree.leaves(jax.tree.map(np.array_equal, *(state.params for state in states)))
    )
