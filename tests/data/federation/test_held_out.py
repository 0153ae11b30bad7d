"""What is kept from training: shares of every client, one client, clients that only have test
examples.
"""

from functools import partial

import jax
import numpy as np
import pytest

from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.federation.federate import federate
from fedjax_ssl.data.federation.federated_data import client_names, client_number
from fedjax_ssl.data.federation.held_out import HeldOut
from fedjax_ssl.data.federation.report import report
from fedjax_ssl.data.standardization import standardized

SIZES = (30, 1, 20, 41, 9)


def make_dataset(own_test=False, natural=True):
    client = np.repeat(np.arange(len(SIZES)) * 2 + 1, SIZES).astype(np.int32)  # 1, 3, 5, 7, 9
    labels = (np.arange(sum(SIZES)) % 4).astype(np.int32)
    labels[::7] = -1
    x = np.arange(sum(SIZES), dtype=np.float32)[:, None]
    test = None
    if own_test:
        # Client 4 and 11 have test examples only; of client 3 no test example is there.
        of = np.array([11, 1, 1, 4, 7, 9, 4, 5], np.int32)
        test = Split(
            1000 + np.arange(8, dtype=np.float32)[:, None],
            np.arange(8) % 5 - 1,
            of if natural else None,
        )
    return Dataset("toy", Split(x, labels, client if natural else None), test, tuple("abcd"))


DATASET = make_dataset()
WITH_TEST = make_dataset(own_test=True)


def draw(dataset=DATASET, seed=0, **options):
    return federate(jax.random.key(seed), dataset, supervision="all", **options)


def held_out_examples(data):
    """Pairs of (row, client), real entries only."""
    count = int(data.num_test)
    assert (np.asarray(data.test_client)[count:] == -1).all()
    return np.asarray(data.test_index)[:count], np.asarray(data.test_client)[:count]


def trains(data, client):
    return set(np.asarray(data.index)[client, : int(data.num_examples[client])].tolist())


def test_a_share_of_every_client():
    data = draw(client_test_fraction=0.2)
    rows, client = held_out_examples(data)
    # who has one example trains on it
    np.testing.assert_array_equal(np.bincount(client, minlength=5), [6, 0, 4, 8, 2])
    np.testing.assert_array_equal(np.asarray(data.num_examples), np.array(SIZES) - [6, 0, 4, 8, 2])
    np.testing.assert_array_equal((DATASET.train.client[rows] - 1) // 2, client)
    assert (np.asarray(data.observed)[rows] == -1).all() and data.num_new_clients == 0
    assert not set(rows.tolist()) & set().union(*(trains(data, number) for number in range(5)))
    assert (DATASET.train.y[rows] < 0).any()  # drawn blindly: also what has no true label


def test_one_client_left_out_with_all_it_has():
    data = draw(WITH_TEST, left_out_client=7)
    rows, client = held_out_examples(data)
    train = np.flatnonzero(WITH_TEST.train.client == 7)
    assert set(rows.tolist()) == {*train.tolist(), 101 + 4}  # of both splits
    assert data.num_clients == 4 and data.num_new_clients == 1 and (client == 4).all()
    assert float(data.inputs[105, 0]) == 1004.0
    assert not set(train.tolist()) & set().union(*(trains(data, number) for number in range(4)))


def test_a_client_left_out_of_made_up_clients_keeps_its_own_test_examples():
    data = draw(WITH_TEST, left_out_client=7, partition="iid", num_clients=4)
    assert set(held_out_examples(data)[1].tolist()) == {4} and int(data.num_test) == 42


def test_clients_held_out_at_random_are_new_clients():
    data = draw(test_clients=2)
    rows, client = held_out_examples(data)
    assert data.num_clients == 3 and data.num_new_clients == 2 and set(client.tolist()) == {3, 4}
    for number in (3, 4):
        assert len(set(DATASET.train.client[rows[client == number]].tolist())) == 1
    whole = draw(held_out=HeldOut(test_clients=1), test_clients=2)  # names go before
    np.testing.assert_array_equal(whole.test_index, data.test_index)


@pytest.mark.thorough
def test_whose_the_own_test_examples_are():
    data = draw(WITH_TEST)
    rows, client = held_out_examples(data)
    np.testing.assert_array_equal(rows, 101 + np.arange(8))
    # new clients in order of their numbers
    np.testing.assert_array_equal(client, [6, 0, 0, 5, 3, 4, 5, 2])
    assert data.num_new_clients == 2
    some = draw(WITH_TEST, num_clients=3, seed=3)
    rows, client = held_out_examples(some)
    for number in range(3):  # natural clients are drawn: their test examples go with them
        (natural,) = set(WITH_TEST.train.client[sorted(trains(some, number))].tolist())
        np.testing.assert_array_equal(WITH_TEST.test.client == natural, client == number)
    assert set(client.tolist()) <= {-1, 0, 1, 2, 3, 4}


def test_own_test_examples_are_nobodys_where_clients_are_made_up():
    for dataset, partition in (
        (WITH_TEST, "iid"),
        (make_dataset(own_test=True, natural=False), "iid"),
    ):
        data = draw(dataset, partition=partition, num_clients=3)
        assert (held_out_examples(data)[1] == -1).all() and data.num_new_clients == 0


@pytest.mark.thorough
def test_every_client_draws_balanced_test_examples_of_its_own():
    labels = np.repeat([0, 1, 2, -1], (9, 12, 7, 5)).astype(np.int32)
    test = Split(np.arange(33, dtype=np.float32)[:, None], labels)
    dataset = Dataset("toy", Split(np.ones((24, 1)), np.arange(24) % 3), test, tuple("abc"))
    deal = partial(
        federate,
        dataset=dataset,
        partition="iid",
        num_clients=2,
        supervision="all",
        balanced_test=True,
    )
    data = deal(jax.random.key(0))
    again = deal(jax.random.key(1))
    rows, client = held_out_examples(data)
    assert (np.bincount(client) == 15).all() and data.num_new_clients == 0
    drawn = [rows[client == number] - 24 for number in range(2)]
    for one in drawn:  # 33 / 2 / 3 = 5 of every class, each once
        np.testing.assert_array_equal(np.bincount(labels[one]), [5, 5, 5])
        assert len(set(one.tolist())) == 15
    assert (
        set(drawn[0].tolist()) != set(drawn[1].tolist())
        and (rows != held_out_examples(again)[0]).any()
    )
    with pytest.raises(
        ValueError, match="33 test examples for 12 clients of 3 classes make 0 each"
    ):
        deal(jax.random.key(0), num_clients=12)
    with pytest.raises(
        ValueError, match="for 1 clients of 3 classes make 11 each, and class 2 has 7"
    ):
        deal(jax.random.key(0), num_clients=1)
    with pytest.raises(ValueError, match=r"leave it or test_fraction=0\.1 out"):
        deal(jax.random.key(0), test_fraction=0.1)
    with pytest.raises(ValueError, match="own test examples; 'toy' has none"):
        draw(balanced_test=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"left_out_client": 4},
            "left_out_client=4, but dataset 'toy' has no such client. Its clients: 1, 3, 5, 7, 9",
        ),
        ({"left_out_client": -1}, "left_out_client=-1"),
        (
            {"left_out_client": 1, "test_fraction": 0.1},
            "left_out_client=0 and test_fraction=0.1: give only one",
        ),
        ({"client_test_fraction": 0.1, "test_clients": 1}, "give only one"),
        ({"test_fraction": 1.0}, r"test_fraction is 1.0; it must be a number in \[0, 1\)"),
    ],
)
def test_what_cannot_be_held_out(options, message):
    with pytest.raises(ValueError, match=message):
        draw(**options)


@pytest.mark.parametrize("held", [{"left_out_client": 7}, {"test_clients": 2}])
def test_partly_labelled_clients_can_be_held_out(held):
    """Two examples of each client have a label: what is left to deal are all examples of the
    others.
    """
    labels = np.full(sum(SIZES), -1, np.int32)
    place = np.concatenate([np.arange(size) for size in SIZES])
    labels[place < 2] = place[place < 2]
    dataset = Dataset("toy", Split(DATASET.train.x, labels, DATASET.train.client), None, ("a", "b"))
    data = draw(dataset, **held)
    gone = 1 if "left_out_client" in held else 2
    assert data.num_clients == len(SIZES) - gone and data.num_new_clients == gone
    assert int(data.num_test) + int(data.num_examples.sum()) == sum(SIZES)


@pytest.mark.parametrize(
    ("asked", "names", "place"),
    [
        *[
            ("north", ("south", "north"), 1),
            (1, ("south", "north"), 1),
            (2, ("south", "north"), None),
        ],
        *[("1", ("1", "2", "3"), 0), (1, ("1", "2", "3"), 0), (0, ("1", "2", "3"), None)],
        *[
            ("02", ("01", "02", "03"), 1),
            (2, ("01", "02", "03"), None),
            ("01", ("south", "north"), None),
        ],
        (np.int32(5), ("3", "5", "ward"), 1),
    ],
)
def test_a_name_goes_before_a_number(asked, names, place):
    assert client_number(names, asked) == place
    if place is not None:
        clients = np.arange(12) % len(names)
        data = Dataset(
            "toy", Split(np.ones((12, 2)), np.arange(12) % 2, clients), None, ("a", "b"), names
        )
        assert client_names(data, draw(data, left_out_client=asked))[-1] == names[place]
        assert repr(names[place]) in standardized(data, left_out=asked)[1]


def test_a_client_is_left_out_by_its_name():
    named = Dataset(
        "toy",
        DATASET.train,
        None,
        tuple("abcd"),
        client_names=tuple(f"site {i}" for i in range(10)),
    )
    data = draw(named, left_out_client="site 7")
    assert int(data.num_test) == SIZES[3]
    assert client_names(named, data) == ["site 1", "site 3", "site 5", "site 9", "site 7"]
    assert client_names(named, data, natural=False) == list("01234")
    text = report(data, tuple("abcd"), client_names(named, data)[:4])
    assert "\n0 site 1 " in text and "\n3 site 9 " in text
    with pytest.raises(
        ValueError, match=r"no such client. Did you mean 'site 7'.*Its clients: site 1, site 3"
    ):
        draw(named, left_out_client="site 77")
    with pytest.raises(ValueError, match="Its clients: none"):
        draw(make_dataset(natural=False), left_out_client="a", partition="iid", num_clients=2)
