"""Partitions: who gets which example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_ssl.data.federation import partition as partition_module
from fedjax_ssl.data.federation import published_partitions as pairs
from fedjax_ssl.data.federation.partition import (
    PARTITIONS,
    Facts,
    Pool,
)

NATURAL = np.repeat(np.arange(6), (3, 30, 20, 40, 17, 10)).astype(np.int32)


def make_pool(labels, num_classes, num_clients, available=None, natural=None):
    labels = np.asarray(labels, np.int32)
    available = np.ones(labels.size, bool) if available is None else available
    held = int((~available).sum())
    facts = Facts(
        num_clients=num_clients,
        num_classes=num_classes,
        class_counts=tuple(np.bincount(labels[labels >= 0], minlength=num_classes).tolist()),
        num_unlabelled=int((labels < 0).sum()),
        num_natural=0 if natural is None else len(np.unique(natural)),
        least=labels.size - held,
        most=labels.size - held,
    )
    natural = np.full(labels.size, -1) if natural is None else natural
    return Pool(jnp.asarray(labels), jnp.asarray(available), jnp.asarray(natural, jnp.int32), facts)


def assignment(partition, pool):
    """Clients of all examples as a function of the seed, in one program."""
    assign = jax.jit(lambda key: partition.assign(key, pool))
    return lambda seed: np.asarray(assign(jax.random.key(seed)))


def balanced_labels(num_classes, each):
    return np.tile(np.arange(num_classes), each)


def table(client, labels, num_clients, num_classes):
    counts = np.zeros((num_clients, num_classes), int)
    real = (client >= 0) & (labels >= 0)
    np.add.at(counts, (client[real], labels[real]), 1)
    return counts


SKEWED = np.random.default_rng(0).choice(10, 120, p=np.arange(1, 11) / 55)
NO_FIVE = np.where(SKEWED == 5, 6, SKEWED)
TWO = np.arange(120) % 3 // 2
SOME_UNKNOWN = np.where(np.arange(120) % 4 == 0, -1, SKEWED)
EVEN_AND_UNKNOWN = np.where(np.arange(120) % 12 == 0, -1, np.arange(120) % 10)
# The first case of every partition is also traced; all have the same length, so that operations
# compile once.
CASES = [
    ("natural", {}, SKEWED, 4),
    ("natural", {}, SOME_UNKNOWN, 6),
    ("iid", {}, SOME_UNKNOWN, 7),
    ("iid", {}, TWO, 120),
    ("iid", {}, SKEWED, 1),
    ("random", {}, SOME_UNKNOWN, 8),
    ("random", {}, TWO, 7),
    ("dirichlet", {"alpha": 1e-3, "min_examples": 5}, NO_FIVE, 8),
    ("dirichlet", {"alpha": 0.1}, SKEWED, 8),
    ("dirichlet", {"alpha": 0.5, "min_examples": 0}, SOME_UNKNOWN, 8),
    ("dirichlet", {"alpha": 0.5, "min_examples": 13}, TWO, 8),
    ("dirichlet", {"alpha": 0.1, "skip_full": True}, SOME_UNKNOWN, 8),
    ("dirichlet_balanced", {"alpha": 0.01}, NO_FIVE, 8),
    ("dirichlet_balanced", {"alpha": 0.3}, SOME_UNKNOWN, 8),
    ("dirichlet_balanced", {"alpha": 1.0}, TWO, 1),
    ("shards", {"shards_per_client": 3}, SOME_UNKNOWN, 8),
    ("shards", {}, SKEWED, 8),
    ("shards", {"shards_per_client": 200}, TWO, 2),
    ("classes_per_client", {"classes": 3}, SKEWED, 8),
    ("classes_per_client", {"classes": 2}, SOME_UNKNOWN, 6),
    ("classes_per_client", {"classes": 4}, NO_FIVE, 8),
    ("classes_per_client", {"classes": 2}, TWO, 1),
    ("fedmatch", {"balanced": 0}, TWO, 6),
    ("fedmatch", {"balanced": 0, "noniid": True}, SOME_UNKNOWN, 8),
    ("class_counts", {"counts": (3, 1), "balanced": 1}, TWO, 8),
    ("majority", {}, SOME_UNKNOWN, 5),
    ("own_class", {"skew": 0.4}, SOME_UNKNOWN, 8),
    ("own_class", {"skew": 1.0}, SKEWED, 20),
    ("paired_dirichlet", {"alpha": 0.1, "labels_per_class": 2}, EVEN_AND_UNKNOWN, 8),
    ("paired_dirichlet", {"alpha": 1e-3, "labels_per_class": 5}, TWO, 2),
]


def case_pool(name, labels, num_clients, available):
    natural = NATURAL if name == "natural" else None
    return make_pool(labels, 2 if labels is TWO else 10, num_clients, available, natural)


def check(client, name, labels, num_clients, available):
    assert client.dtype == np.int32 and client.max() < num_clients
    sizes = np.bincount(client[client >= 0], minlength=num_clients)
    assert (client[~available] == -1).all()
    if name == "natural":
        if num_clients == 6:
            np.testing.assert_array_equal(client[available], NATURAL[available])
        owners = [set(client[available & (writer == NATURAL)].tolist()) for writer in range(6)]
        assert all(len(owner) == 1 for owner in owners)
        assert sorted(min(owner) for owner in owners) == [-1] * (6 - num_clients) + list(
            range(num_clients)
        )
    elif name == "random":
        assert sizes.min() == sizes.max() == available.sum() // num_clients
    elif name not in ("majority", "class_counts", "fedmatch"):  # which leave what nobody asks for
        assert (client[available] >= 0).all()
    if name == "iid":
        counts = table(client, labels, num_clients, 10)
        assert np.ptp(sizes) <= 1 and (np.ptp(counts, axis=0) <= 1).all()
    if name in ("iid", "shards", "classes_per_client"):
        assert np.ptp(np.bincount(client[(labels < 0) & available], minlength=num_clients)) <= 1


# With and without examples held out: by turns, and both of every case in `make thorough`.
BY_TURNS = [
    pytest.param(
        *case,
        held_out,
        marks=()
        if held_out == place % 2 and case[0] != CASES[place - 1][0]
        else pytest.mark.thorough,
    )
    for place, case in enumerate(CASES)
    for held_out in (False, True)
]


@pytest.mark.parametrize(("name", "options", "labels", "num_clients", "held_out"), BY_TURNS)
def test_complete_and_disjoint(name, options, labels, num_clients, held_out):
    available = (
        np.arange(labels.size) % 9 != 0
        if held_out and num_clients < 100
        else np.ones(labels.size, bool)
    )
    options = (
        {**options, "min_examples": 13 - 2 * held_out}
        if options.get("min_examples") == 13
        else options
    )
    pool = case_pool(name, labels, num_clients, available)
    partition = PARTITIONS.build(name, **options)
    assign = assignment(partition, pool)
    client = assign(3)
    check(client, name, labels, num_clients, available)
    np.testing.assert_array_equal(client, assign(3))
    if num_clients not in (1, 6):
        assert (client != assign(4)).any()


def test_every_partition_has_a_case():
    assert {case[0] for case in CASES} == set(PARTITIONS)


@pytest.mark.thorough
@pytest.mark.parametrize("skew", [0.0, 0.4, 1.0])
def test_own_class_has_the_distance_between_clients_that_was_asked_for(skew):
    """CIFAR-10 less 1,000 labelled images of the server: ten users of 4,900."""
    labels = balanced_labels(10, 4900)
    client = assignment(PARTITIONS.build("own_class", skew=skew), make_pool(labels, 10, 10))(1)
    counts = table(client, labels, 10, 10)
    assert (counts.sum(axis=1) == 4900).all() and (counts.sum(axis=0) == 4900).all()
    shares = counts / 4900
    distance = np.abs(shares[:, None] - shares[None]).sum(axis=2) / 2
    assert abs(distance[np.triu_indices(10, 1)].mean() - skew) < 0.03
    if skew == 1:
        np.testing.assert_array_equal(shares, np.eye(10))


def test_own_class_cuts_its_parts_for_the_clients_of_a_class():
    labels = balanced_labels(10, 300)
    client = assignment(PARTITIONS.build("own_class", skew=0.5), make_pool(labels, 10, 30))(1)
    counts = table(client, labels, 30, 10)
    own = counts[np.arange(30), np.arange(30) % 10]
    assert (counts.sum(axis=1) == 100).all() and 0.45 < own.mean() / 100 < 0.65
    assert (np.argmax(counts, axis=1) == np.arange(30) % 10).all()


def test_majority_has_two_frequent_classes_and_hands_out_in_the_order_of_the_file():
    labels = np.arange(1000) % 10
    pool = make_pool(labels, 10, 5)
    client = assignment(PARTITIONS.build("majority"), pool)(0)
    counts = np.zeros((6, 10), int)
    np.add.at(counts, (client, labels), 1)
    for number in range(5):
        first = counts[number, 2 * number : 2 * number + 2]
        # FedUL, section 7: shares between 0.4265 and 0.5263 of a fifth of the data, cut where the
        # class runs out.
        assert (first >= 80).all() and first.sum() > 0.9 * counts[number].sum()
        for kind in range(10):
            places = np.flatnonzero((labels == kind) & (client >= 0))
            assert (np.diff(client[places]) >= 0).all()
    few = assignment(PARTITIONS.build("majority", max_examples=50), pool)(0)
    assert 40 <= np.bincount(few[few >= 0]).max() <= 50


@pytest.mark.thorough
def test_dirichlet_shares_have_the_right_spread():
    # E[sum of squared shares] = (alpha + 1) / (C alpha + 1). 2,000 draws against 5 standard errors:
    # a right implementation fails for less than one seed in a million.
    alpha = 0.5
    num_clients = 5
    each = 400
    labels = balanced_labels(4, each)
    pool = make_pool(labels, 4, num_clients)
    partition = PARTITIONS.build("dirichlet", alpha=alpha, min_examples=0)
    clients = np.asarray(
        jax.jit(jax.vmap(lambda key: partition.assign(key, pool)))(
            jax.random.split(jax.random.key(5), 500)
        )
    )
    counts = np.stack([table(client, labels, num_clients, 4) for client in clients]) / each
    squares = (counts**2).sum(axis=1).reshape(-1)
    expected = (alpha + 1) / (num_clients * alpha + 1)
    assert abs(squares.mean() - expected) < 5 * squares.std() / np.sqrt(squares.size)


@pytest.mark.thorough
def test_dirichlet_skips_clients_that_are_full():
    """SemiFL: a client that holds N / C examples or more by a class gets nothing of it, all
    others their shares.
    """
    labels = np.random.default_rng(1).choice(10, 600, p=np.arange(1, 11) / 55)
    pool = make_pool(labels, 10, 8)
    for alpha in (1e-3, 0.1):
        partition = PARTITIONS.build("dirichlet", alpha=alpha, min_examples=0, skip_full=True)
        plain = PARTITIONS.build("dirichlet", alpha=alpha, min_examples=0)
        counts = table(np.asarray(partition.assign(jax.random.key(1), pool)), labels, 8, 10)
        unskipped = table(np.asarray(plain.assign(jax.random.key(1), pool)), labels, 8, 10)
        before = np.cumsum(counts, axis=1) - counts
        assert (
            counts.sum() == 600
            and (counts[before >= 600 / 8] == 0).all()
            and (before >= 600 / 8).any()
        )
        np.testing.assert_array_equal(counts[:, 0], unskipped[:, 0])
        # below an equal part, and then all of one class
        assert counts.sum(axis=1).max() <= 2 * 600 / 8 + counts.sum(axis=0).max()
    # Two classes of four clients, worked by hand: client 2 is full after the first class, the
    # others share the second.
    shares = jnp.asarray([[0.2, 0.1, 0.6, 0.1], [0.1, 0.2, 0.5, 0.2]], jnp.float32)
    counts = partition_module._skip_full(shares, jnp.asarray([10, 10], jnp.int32))
    np.testing.assert_array_equal(counts, [[2, 1, 6, 1], [2, 4, 0, 4]])


@pytest.mark.parametrize("name", ["iid", "random"])
def test_every_example_is_dealt_uniformly(name):
    # Chi-square over 1,500 keys with threshold at 1e-6 per example, three examples: fails for 3
    # seeds in a million. "random" leaves 2 of 12 examples to nobody (-1).
    labels = balanced_labels(3, 4)
    pool = make_pool(labels, 3, 5)
    keys = jax.random.split(jax.random.key(2), 1500)
    clients = np.asarray(
        jax.jit(jax.vmap(lambda key: PARTITIONS.build(name).assign(key, pool)))(keys)
    )
    for example in (0, 5, 11):
        dealt = clients[:, example]
        assert stats.chisquare(np.bincount(dealt[dealt >= 0], minlength=5)).pvalue > 1e-6
    # Stratified parts differ by one in every class; random ones do not care.
    spread = max(np.ptp(table(client, labels, 5, 3), axis=0).max() for client in clients[:20])
    assert spread == 1 if name == "iid" else spread > 1


@pytest.mark.thorough
def test_dirichlet_balanced_has_equal_sizes_and_uneven_classes():
    labels = balanced_labels(10, 12)
    pool = make_pool(labels, 10, 8)
    spreads = []
    for alpha in (0.1, 1.0, 100.0):
        partition = PARTITIONS.build("dirichlet_balanced", alpha=alpha)
        clients = list(map(assignment(partition, pool), range(5)))
        counts = np.stack([table(client, labels, 8, 10) for client in clients])
        assert (counts.sum(axis=2) == 15).all() and (counts.sum(axis=1) == 12).all()
        spreads.append(((counts / 15) ** 2).sum(axis=2).mean())
    assert spreads[0] > 0.5 > spreads[1] > spreads[2] + 0.05


@pytest.mark.thorough
def test_pairs_have_equal_sizes_and_mixes_of_their_own_for_labelled_and_other_examples():
    """SAGE: 600 examples, 20 of each of ten classes labelled; the first cut leaves a quarter of
    a slice at least.
    """
    labels = balanced_labels(10, 60)
    pool = make_pool(labels, 10, 6)
    partition = PARTITIONS.build("paired_dirichlet", alpha=0.1, labels_per_class=20)
    draw = jax.jit(lambda key: (partition.assign(key, pool), partition.labelled(key, pool)))
    spread = []
    for seed in range(5):
        client, labelled = map(np.asarray, draw(jax.random.key(seed)))
        np.testing.assert_array_equal(np.bincount(labels[labelled]), 20)
        parts = [table(client[where], labels[where], 6, 10) for where in (labelled, ~labelled)]
        assert np.ptp(parts[0].sum(1)) <= 1 and np.ptp(parts[1].sum(1)) <= 1
        shares = [part / part.sum(1, keepdims=True) for part in parts]
        spread += [shares[0].std(), np.abs(shares[0] - shares[1]).mean()]
    assert min(spread) > 0.05, "uneven, and not alike"
    even = PARTITIONS.build("paired_dirichlet", alpha=1e4, labels_per_class=20)
    client = assignment(even, pool)(0)
    assert table(client, labels, 6, 10).max() <= 20


def test_a_slice_is_split_as_in_the_code():
    """A client that holds half of the slice gets no more; of several draws the first even enough
    one counts.
    """
    counts = jnp.asarray([[4, 4, 4, 4]], jnp.int32)
    first = np.array([[1.0, 1.0, 0.9, 0.9], [0.9, 0.6, 0.1, 0.6], [1.0, 1.0, 1.0, 1.0]])
    shares = jnp.asarray(np.stack([first, 1.0 - first], axis=2)[None], jnp.float32)
    # The first draw gives 4 + 4 and then nothing more: half of it. With that draw alone, and the
    # last two:
    split = jax.jit(pairs._even_enough)
    np.testing.assert_array_equal(split(shares, counts), [[4, 4, 0, 0]])
    np.testing.assert_array_equal(split(shares[:, 1:], counts), [[3, 2, 0, 2]])
    uneven = jnp.asarray(
        [[9, 1]], jnp.int32
    )  # the second client gets all of what is left, 1 of 10: none is even enough
    np.testing.assert_array_equal(split(shares[:, 2:, :2], uneven), [[9, 0]])


def test_shards_are_runs_of_the_sorted_labels():
    labels = balanced_labels(10, 12)
    pool = make_pool(labels, 10, 8)
    client = assignment(PARTITIONS.build("shards", shards_per_client=2), pool)(0)
    counts = table(client, labels, 8, 10)
    # 16 shards of 7 or 8 examples out of sorted runs of 12: a shard touches at most two classes, a
    # client four.
    assert np.isin(counts.sum(axis=1), (14, 15, 16)).all()
    assert ((counts > 0).sum(axis=1) <= 4).all()


@pytest.mark.thorough
@pytest.mark.parametrize(("num_clients", "classes"), [(8, 3), (7, 10), (3, 4), (15, 4)])
def test_classes_per_client_is_exact_and_balanced(num_clients, classes):
    labels = balanced_labels(10, 12)
    pool = make_pool(labels, 10, num_clients)
    partition = PARTITIONS.build("classes_per_client", classes=classes)
    for client in map(assignment(partition, pool), range(5)):
        counts = table(client, labels, num_clients, 10)
        assert ((counts > 0).sum(axis=1) == classes).all()
        assert np.ptp((counts > 0).sum(axis=0)) <= 1
        for column in counts.T:
            assert np.ptp(column[column > 0]) <= 1


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "dirichlet",
            {"alpha": 1.0, "min_examples": 13},
            "needs 130 training examples, there are 120",
        ),
        ("own_class", {"skew": 1.5}, r"skew is 1\.5"),
        ("classes_per_client", {"classes": 11}, "the training data have 10 classes"),
        (
            "paired_dirichlet",
            {"alpha": 0.1, "labels_per_class": 5},
            "asks for 5 examples of class 0, but there are 4",
        ),
    ],
)
def test_options_that_do_not_fit_the_data(name, options, message):
    with pytest.raises(ValueError, match=message):
        PARTITIONS.build(name, **options).assign(jax.random.key(0), make_pool(SKEWED, 10, 10))
