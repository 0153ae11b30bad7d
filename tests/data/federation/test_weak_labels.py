"""Coarse labels and unlabelled sets: who gets which, and what they are told about them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.data import Dataset, FederatedData, Split, federate
from fedjax_ssl.data.federation.report import report
from fedjax_ssl.data.federation.weak_labels import perturbed_shares
from fedjax_ssl.methods.parts.channel_terms import check_one_space

NUM_CLASSES = 10
SIZE = 600
RNG = np.random.default_rng(0)
# Sizes are the same wherever they can be: most of the time here goes into compiling for each shape.
LABELS = RNG.permutation(np.arange(SIZE) % NUM_CLASSES).astype(np.int32)
FOUR_KINDS = {"labelled_clients": 1, "labels": 5, "coarse_clients": 2, "set_clients": 1, "sets": 5}


def dataset(labels: np.ndarray = LABELS, **fields) -> Dataset:
    split = {name: fields.pop(name) for name in ("client", "coarse", "set") if name in fields}
    train = Split(np.arange(len(labels), dtype=np.float32)[:, None], labels, **split)
    test = Split(np.zeros((5, 1), np.float32), np.arange(5, dtype=np.int32))
    return Dataset("made", train, test, tuple("abcdefghij"), **fields)


def draw(
    supervision: str, seed: int = 0, num_clients: int = 3, data: Dataset | None = None, **options
) -> FederatedData:
    return federate(
        jax.random.key(seed),
        dataset() if data is None else data,
        partition=options.pop("partition", "iid"),
        num_clients=num_clients,
        supervision=supervision,
        supervision_options=options,
    )


def entries_of(data: FederatedData, client: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows, observations) of a client's entries."""
    count = int(data.num_examples[client])
    return np.asarray(data.index[client, :count]), np.asarray(data.weak.labels[client, :count])


def check_shares(data: FederatedData) -> None:
    """What clients are told is what a count of the true labels gives."""
    for client in range(data.num_clients):
        rows, observations = entries_of(data, client)
        counts = np.zeros(data.weak.matrix.shape[1:])
        np.add.at(counts, (observations[observations >= 0], LABELS[rows[observations >= 0]]), 1)
        sizes = counts.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(
            data.weak.matrix[client], counts / np.maximum(sizes, 1), atol=1e-6
        )
        np.testing.assert_allclose(data.weak.share[client], sizes[:, 0] / sizes.sum(), atol=1e-6)


@pytest.mark.thorough
def test_dealt_sets_use_every_example_once_and_differ_in_their_classes() -> None:
    data = draw("sets", sets=5)
    check_shares(data)
    rows = np.concatenate([entries_of(data, client)[0] for client in range(3)])
    assert sorted(rows) == list(range(SIZE))
    assert data.kinds() == ("sets",)
    np.testing.assert_array_equal(data.weak.num_observations, [5, 5, 5])
    # The dominant class of set m is m mod K, ten times as likely to be wanted as another.
    np.testing.assert_array_equal(
        np.argmax(np.asarray(data.weak.matrix)[:, :, :5], axis=2), [np.arange(5)] * 3
    )


def test_equal_sets_use_every_example_once_and_are_of_one_size() -> None:
    data = draw("sets", sets=5, protocol="equal")
    check_shares(data)
    rows = np.concatenate([entries_of(data, client)[0] for client in range(3)])
    assert sorted(rows) == list(range(SIZE))
    for client in range(3):
        sizes = np.bincount(entries_of(data, client)[1], minlength=5)
        assert sizes.max() - sizes.min() <= NUM_CLASSES, "each class is rounded"
    assert np.asarray(data.weak.matrix).max(axis=2).mean() > 2 / NUM_CLASSES, "they differ"


@pytest.mark.thorough
def test_reference_sets_overlap_and_each_holds_an_example_once() -> None:
    data = draw("sets", sets=10, protocol="reference")
    check_shares(data)
    rows, observations = entries_of(data, 0)
    assert len(set(rows)) < len(rows)
    assert len(set(zip(rows, observations, strict=True))) == len(rows)
    assert int(data.num_examples[0]) <= SIZE // 3


@pytest.mark.thorough
def test_shared_reference_shares_are_normalized_over_the_sets() -> None:
    data = draw("sets", sets=10, protocol="reference", shared_shares=True)
    check_shares(data)
    counts = (
        np.asarray(data.weak.matrix)
        * np.asarray(data.weak.share)[..., None]
        * np.asarray(data.num_examples)[:, None, None]
    )
    # As many of each class in all sets together as one set has examples, but for rounding down.
    np.testing.assert_array_less(counts.sum(axis=1), SIZE / 3 / 10 + 1e-3)
    np.testing.assert_array_less(SIZE / 3 / 10 - 10 - 1e-3, counts.sum(axis=1))


@pytest.mark.thorough
def test_numbers_of_sets_may_differ_between_clients() -> None:
    data = draw("sets", set_counts=(2, 5, 3))
    check_shares(data)
    np.testing.assert_array_equal(data.weak.num_observations, [2, 5, 3])
    assert data.weak.matrix.shape == (3, 5, NUM_CLASSES)
    assert not np.asarray(data.weak.matrix[0, 2:]).any()


@pytest.mark.thorough
def test_noise_changes_what_clients_are_told_but_not_the_sets() -> None:
    exact = draw("sets", sets=5)
    noisy = draw("sets", sets=5, noise=0.4)
    np.testing.assert_array_equal(exact.weak.labels, noisy.weak.labels)
    told = np.asarray(noisy.weak.matrix)
    assert np.abs(told - np.asarray(exact.weak.matrix)).max() > 0.05
    np.testing.assert_allclose(told.sum(axis=2), 1.0, atol=1e-6)


def test_noise_follows_its_formula() -> None:
    shares = jnp.asarray([[0.55, 0.05, 0.40], [0.0, 0.0, 0.0]])
    worked = {  # FedUL section 6: every sign pattern of +-20 %, normalized
        tuple(np.round(row / row.sum(), 6))
        for row in np.asarray([0.55, 0.05, 0.40])
        * (1 + 0.2 * np.stack(np.meshgrid(*[[-1, 1]] * 3), -1).reshape(-1, 3))
    }
    assert (0.647059, 0.039216, 0.313725) in worked
    for seed in range(8):
        moved = np.asarray(perturbed_shares(jax.random.key(seed), shares, 0.2))
        assert any(np.allclose(moved[0], row, atol=2e-6) for row in worked)
        assert not moved[1].any(), "padding stays"
    emptied = np.asarray(perturbed_shares(jax.random.key(0), jnp.asarray([[0.5, 0.5]] * 32), 1.0))
    np.testing.assert_allclose(emptied.sum(axis=1), 1.0)
    assert (emptied == 0.5).all(axis=1).any(), "a row that is cut to zero becomes uniform"


def test_coarse_labels_follow_their_correspondence() -> None:
    data = draw("coarse", correspondence="parity", server_labels=20)
    assert data.kinds() == ("server", "coarse")
    assert int(data.num_labelled.sum()) == 0 and int(data.num_server) == 20
    for client in range(3):
        rows, observations = entries_of(data, client)
        np.testing.assert_array_equal(observations, LABELS[rows] % 2)
    np.testing.assert_array_equal(data.weak.matrix[0, :, :4], [[1, 0, 1, 0], [0, 1, 0, 1]])


def test_overlapping_coarse_labels_have_the_probabilities_of_their_matrix() -> None:
    data = draw("coarse", correspondence="halves", overlap=0.4, server_labels=20)
    np.testing.assert_allclose(data.weak.matrix[0].sum(axis=0), 1.0, atol=1e-6)
    entries = [entries_of(data, client) for client in range(3)]
    rows, observations = (np.concatenate(parts) for parts in zip(*entries, strict=True))
    wrong = (observations != LABELS[rows] // 5).mean()
    assert abs(wrong - 0.2) < 0.05, "0.2 +- 0.016: more than three standard deviations"


def test_own_coarse_labels_with_and_without_a_matrix() -> None:
    coarse = (LABELS // 4).astype(np.int32)
    names = ("x", "y", "z")
    data = draw("coarse", correspondence="own", data=dataset(coarse=coarse, coarse_names=names))
    rows, observations = entries_of(data, 1)
    np.testing.assert_array_equal(observations, coarse[rows])
    assert not np.asarray(data.weak.matrix).any(), "nobody knows it"
    matrix = np.zeros((3, NUM_CLASSES))
    matrix[np.arange(NUM_CLASSES) // 4, np.arange(NUM_CLASSES)] = 1
    known = dataset(coarse=coarse, coarse_names=names, correspondence=matrix)
    np.testing.assert_allclose(
        draw("coarse", correspondence="own", data=known).weak.matrix[2], matrix
    )


@pytest.mark.thorough
@pytest.mark.promise
def test_clients_in_turn_have_label_spaces_of_their_own() -> None:
    data = draw("coarse", correspondence="shape,parity", num_clients=3)
    assert data.coarse_names == ("curved / even", "straight / odd", "both")
    np.testing.assert_array_equal(data.weak.num_observations, [3, 2, 3])
    for client, name in enumerate(("shape", "parity", "shape")):
        alone = draw("coarse", correspondence=name, num_clients=3)
        rows, observations = entries_of(data, client)
        np.testing.assert_array_equal(rows, entries_of(alone, client)[0])
        np.testing.assert_array_equal(observations, entries_of(alone, client)[1])
        size = int(data.weak.num_observations[client])
        np.testing.assert_array_equal(data.weak.matrix[client, :size], alone.weak.matrix[client])
        assert (
            not data.weak.matrix[client, size:].any() and not data.weak.share[client, size:].any()
        )
    with pytest.raises(ValueError, match="of different spaces"):
        check_one_space(data)
    assert check_one_space(alone) == []


def test_own_matrices_of_each_client() -> None:
    matrices = np.zeros((2, 3, NUM_CLASSES))
    matrices[0, 0, :4] = matrices[0, 1, 4:7] = matrices[0, 2, 7:] = 1
    matrices[1, 0, :5] = matrices[1, 1, 5:] = 1
    client = (np.arange(SIZE) % 2).astype(np.int32)
    coarse = matrices[client, :, LABELS].argmax(axis=1).astype(np.int32)
    own = {
        "client": client,
        "coarse": coarse,
        "coarse_names": tuple("012"),
        "correspondence": matrices,
    }
    data = draw(
        "coarse", data=dataset(**own), partition="natural", num_clients=None, correspondence="own"
    )
    np.testing.assert_array_equal(data.weak.matrix, matrices)
    np.testing.assert_array_equal(data.weak.num_observations, [3, 2])
    with pytest.raises(ValueError, match="given for 2 clients, but 3 train"):
        draw("coarse", data=dataset(**own), num_clients=3, correspondence="own")
    with pytest.raises(ValueError, match="of 3 clients, there are 2 natural ones"):
        dataset(**(own | {"correspondence": np.concatenate([matrices, matrices[:1]])}))
    with pytest.raises(ValueError, match="client 1"):
        dataset(**(own | {"correspondence": matrices * [[[1.0]], [[0.5]]]}))


@pytest.mark.thorough
def test_a_mixed_federation_has_clients_of_four_kinds() -> None:
    data = draw("mixed", num_clients=6, **FOUR_KINDS)
    assert data.kinds() == ("labels", "coarse", "sets")
    np.testing.assert_array_equal(data.num_labelled, [5, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(data.weak.num_observations, [0, 2, 2, 5, 0, 0])
    np.testing.assert_array_equal(data.weak.from_sets, [False, False, False, True, False, False])
    np.testing.assert_array_equal(
        np.asarray(data.weak.num_examples) > 0, [False, True, True, True, False, False]
    )
    assert (np.asarray(data.num_examples) == SIZE // 6).all(), (
        "clients with nothing keep their examples"
    )
    drawn = draw("mixed", num_clients=6, which="random", seed=1, **FOUR_KINDS)
    assert sorted(np.asarray(drawn.weak.num_observations)) == [0, 0, 0, 2, 2, 5]


@pytest.mark.thorough
def test_the_report_counts_coarse_labels_and_sets_where_there_are_any() -> None:
    data = draw("mixed", num_clients=6, **FOUR_KINDS)
    lines = report(data, dataset().class_names).splitlines()
    assert "5 labelled, 200 with a coarse label, 100 in sets with known class shares" in lines[0]
    assert "of them labelled  coarse  in sets  sets  histogram" in lines[2]
    table = [line.split("|")[0].split()[5:] for line in lines[3:9]]
    assert table == [
        ["0", "0", "0"],
        *[["100", "0", "0"]] * 2,
        ["0", "100", "5"],
        *[["0", "0", "0"]] * 2,
    ]
    only_coarse = report(
        draw("coarse", correspondence="parity"), dataset().class_names
    ).splitlines()
    assert "600 with a coarse label;" in only_coarse[0] and "sets" not in only_coarse[2]


def given(labels: np.ndarray = LABELS) -> tuple[Dataset, np.ndarray]:
    client = (np.arange(SIZE) % 3).astype(np.int32)
    sets = (np.arange(SIZE) // 3 % 5).astype(np.int32)
    sets[:10] = -1
    shares = np.zeros((3, 5, NUM_CLASSES))
    np.add.at(shares, (client[10:], sets[10:], LABELS[10:]), 1)
    shares /= shares.sum(axis=2, keepdims=True)
    return dataset(labels, client=client, set=sets, set_shares=shares), shares


def test_given_sets_are_taken_as_they_are_even_without_any_true_label() -> None:
    unknown, shares = given(np.full(SIZE, -1, np.int32))
    data = draw("given", num_clients=None, data=unknown, partition="natural")
    np.testing.assert_allclose(data.weak.matrix, shares, atol=1e-6)
    np.testing.assert_allclose(data.weak.share.sum(axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(data.weak.prior, np.bincount(LABELS[10:]) / (SIZE - 10), atol=1e-3)
    rows, observations = entries_of(data, 1)
    np.testing.assert_array_equal(observations[:-3], unknown.train.set[rows[:-3]])
    assert (observations[-3:] == -1).all(), "examples in no set come last"


def test_labels_coarse_labels_and_sets_are_taken_together_as_they_are_given() -> None:
    client = np.arange(SIZE) % 3
    sets = np.arange(SIZE) // 3 % 2
    sets[client > 0] = -1
    labels = np.where(client == 2, LABELS, -1)
    coarse = np.where(client == 1, LABELS % 2, -1)
    shares = np.zeros((3, 5, NUM_CLASSES))
    shares[0, :2] = [[0.19] + [0.09] * 9, [0.1] * 10]
    fields = {
        "client": client,
        "set": sets,
        "coarse": coarse,
        "coarse_names": ("even", "odd"),
        "set_shares": shares,
    }
    data = draw("given", num_clients=None, data=dataset(labels, **fields), partition="natural")
    assert data.kinds() == ("labels", "coarse", "sets")
    np.testing.assert_array_equal(data.weak.from_sets, [True, False, False])
    np.testing.assert_array_equal(data.weak.num_examples, [200, 200, 0])
    np.testing.assert_array_equal(data.num_labelled, [0, 0, 200])
    np.testing.assert_allclose(data.weak.share[0], [0.5, 0.5, 0, 0, 0])
    with pytest.raises(ValueError, match="partition 'iid' deals the examples anew"):
        draw("given", num_clients=3, data=dataset(labels, **fields))
    with pytest.raises(ValueError, match="class shares are given for 3 clients, but 2 train"):
        draw("given", num_clients=2, data=dataset(labels, **fields), partition="natural")
    with pytest.raises(ValueError, match="has a column of sets but not their class shares"):
        draw(
            "given",
            num_clients=None,
            data=dataset(labels, client=client, set=sets),
            partition="natural",
        )


@pytest.mark.thorough
def test_test_priors() -> None:
    uneven = dataset(np.where(LABELS == 9, 0, LABELS))
    np.testing.assert_allclose(
        draw("sets", sets=5, data=uneven).weak.prior,
        np.bincount(uneven.train.y, minlength=10) / SIZE,
        atol=1e-7,
    )
    np.testing.assert_allclose(
        draw("sets", sets=5, test_prior="uniform").weak.prior, 0.1, atol=1e-7
    )
    np.testing.assert_allclose(draw("sets", sets=5, test_prior="sets").weak.prior, 0.1, atol=1e-6)


def test_labels_that_are_not_given_do_not_show() -> None:
    """A permutation of the true labels within every set changes nothing that clients are told."""
    data, _ = given()
    scrambled = LABELS.copy()
    cell = data.train.client * 10 + data.train.set
    for each in np.unique(cell):
        scrambled[cell == each] = RNG.permutation(scrambled[cell == each])
    other = dataclasses.replace(data, train=dataclasses.replace(data.train, y=scrambled))
    pair = [
        draw("given", num_clients=None, data=each, partition="natural").weak
        for each in (data, other)
    ]
    jax.tree.map(np.testing.assert_array_equal, *pair)


@pytest.mark.parametrize(
    ("supervision", "options", "message"),
    [
        ("sets", {"set_counts": (2, 3)}, "2 numbers of sets are given for 3 clients"),
        ("coarse", {"correspondence": "own"}, "the dataset has no coarse labels of its own"),
        ("mixed", {"coarse_clients": 1}, "needs labelled_clients"),
        (
            "mixed",
            {"labelled_clients": 2, "coarse_clients": 1, "set_clients": 1},
            "there are 3 clients; lower",
        ),
        (
            "sets",
            {"labelled_clients": 1},
            "labelled_clients=1 has no meaning for supervision 'sets'",
        ),
    ],
)
def test_bad_options_are_refused(supervision: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(supervision, **options)
