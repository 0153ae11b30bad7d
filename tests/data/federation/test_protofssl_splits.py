"""ProtoFSSL's splits on generated labels with the class counts of the published data sets."""

import jax
import numpy as np
import pytest

from fedjax_ssl import config as configs
from fedjax_ssl import data as data_module
from fedjax_ssl import presets
from fedjax_ssl.data import Dataset, Split
from fedjax_ssl.data.federation.report import report
from fedjax_ssl.federated import all_clients
from fedjax_ssl.runs.build import Experiment, federate

CIFAR10 = ((5000,) * 10, (1000,) * 10, 0)
SVHN = (
    (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
    (1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595),
    0,
)
STL10 = ((500,) * 10, (800,) * 10, 100_000)
NAMES = tuple("abcdefghij")


def generated(train, test, unlabelled):
    """Labels in a random order; an input is the example's number."""
    rng = np.random.default_rng(0)
    labels = [rng.permutation(np.repeat(np.arange(10), counts)) for counts in (train, test)]
    labels[0] = np.concatenate([labels[0], np.full(unlabelled, -1)]).astype(np.int32)
    parts = [
        Split(np.arange(values.size, dtype=np.float32)[:, None], values.astype(np.int32))
        for values in labels
    ]
    return Dataset("generated", *parts, NAMES)


def cut(counts, dataset, split, **fields):
    config = configs.default("protofssl")
    presets.protofssl_split(config, dataset, split)
    config.data.name = "digits"  # a source that is there; only what `federate` reads matters
    config.update_from_flattened_dict(fields)
    return federate(Experiment(configs.resolve(config), generated(*counts)), jax.random.key(0))


def held(data):
    """Labelled and unlabelled examples by client and class, the last class being unknown; all
    rows that are used.
    """
    index = np.asarray(data.index)
    known = np.asarray(data.num_labelled)
    slots = np.arange(index.shape[1])
    real = slots < np.asarray(data.num_examples)[:, None]
    seen = slots < known[:, None]
    classes = np.asarray(data.labels)[index]
    tables = [
        np.stack([((classes == kind) & mask).sum(axis=1) for kind in (*range(10), -1)], axis=1)
        for mask in (seen, real & ~seen)
    ]
    used = [
        index[real],
        *(
            np.asarray(data.test_index)[: int(data.num_test)],
            np.asarray(data.valid_index)[: int(data.num_valid)],
        ),
    ]
    return *tables, used


def by_offset(counts):
    return np.array([[counts[(kind - client) % 10] for kind in range(10)] for client in range(100)])


def check_pools(data, used, valid, test):
    """Nothing twice; validation and test examples equally many of every class."""
    together = np.concatenate(used)
    assert np.unique(together).size == together.size
    for rows, each in ((used[2], valid), (used[1], test)):
        np.testing.assert_array_equal(
            np.bincount(np.asarray(data.labels)[rows], minlength=10), each
        )


@pytest.mark.thorough
def test_cifar10_with_fedmatchs_matrix() -> None:
    data = cut(CIFAR10, "cifar10", "noniid")
    labelled, unlabelled, used = held(data)
    np.testing.assert_array_equal(labelled[:, :10], 5)
    np.testing.assert_array_equal(
        unlabelled[:, :10], by_offset((244, 73, 15, 15, 15, 10, 15, 15, 15, 73))
    )
    assert set(unlabelled.sum(axis=1)) == {490} and set(unlabelled.sum(axis=0)[:10]) == {4900}
    check_pools(data, used, 300, 300)
    # All official training images are trained on, and 400 official test images of every class.
    official_test = np.concatenate(used[1:]) >= 50_000
    assert official_test.all() and (used[0] >= 50_000).sum() == 4_000
    shares = unlabelled[:10, :10] / 490
    pairs = [np.abs(shares[a] - shares[b]).sum() / 2 for a in range(10) for b in range(a)]
    assert np.mean(pairs) == pytest.approx(0.635, abs=5e-4)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("split", "labels", "others"),
    [
        ("iid", (5,), (49,)),
        ("xnid", (23, 5, 5, 5, 3, 3, 3, 3, 0, 0), (243, 49, 49, 49, 25, 25, 25, 25, 0, 0)),
        ("iid_full", (54,), (0,)),
        ("noniid_full", (249, 78, 20, 20, 20, 15, 20, 20, 20, 78), (0,)),
    ],
)
def test_svhn_is_cut_to_equal_classes(split, labels, others) -> None:
    data = cut(SVHN, "svhn", split)
    labelled, unlabelled, used = held(data)
    np.testing.assert_array_equal(labelled[:, :10], by_offset(np.resize(labels, 10)))
    np.testing.assert_array_equal(unlabelled[:, :10], by_offset(np.resize(others, 10)))
    assert set((labelled + unlabelled).sum(axis=1)) == {540}
    check_pools(data, used, 200, 200)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("split", "labels", "others", "size"),
    [
        ("noniid_overlap", (5,), (243, 73, 15, 15, 15, 10, 15, 15, 15, 73), 489),
        (
            "xnid_overlap",
            (23, 5, 5, 5, 3, 3, 3, 3, 0, 0),
            (243, 49, 49, 49, 25, 25, 25, 25, 0, 0),
            490,
        ),
    ],
)
def test_labelled_images_are_unlabelled_ones_too_in_the_later_code(
    split, labels, others, size
) -> None:
    data = cut(CIFAR10, "cifar10", split)
    labelled, unlabelled, used = held(data)
    np.testing.assert_array_equal(labelled[:, :10], by_offset(np.resize(labels, 10)))
    np.testing.assert_array_equal(unlabelled[:, :10], by_offset(others))
    assert set(unlabelled.sum(axis=1)) == {size}
    rows, counts = np.unique(used[0], return_counts=True)
    assert counts.max() == 2 and (counts == 2).sum() == 5000, (
        "every labelled image, and no other one"
    )
    assert data.summary()["examples_dealt_twice"] == 5000 and rows.size == 100 * size
    assert "; 5000 are dealt twice" in report(data, NAMES)


def test_who_has_an_example_without_its_label_does_not_see_it() -> None:
    """Two clients; of every class one example is dealt as labelled to each, and four again, from
    the first one on.
    """
    labels = np.arange(120, dtype=np.int32) % 10
    split = Split(np.arange(120, dtype=np.float32)[:, None], labels)
    options = {"counts": (4,), "labelled_counts": (1,), "overlap": True}
    data = data_module.federate(
        jax.random.key(0),
        Dataset("small", split, split, NAMES),
        partition="class_counts",
        num_clients=2,
        partition_options=options,
        supervision="dealt",
    )
    labelled, unlabelled, (rows, *_) = held(data)
    assert (labelled[:, :10] == 1).all() and (unlabelled[:, :10] == 4).all()
    assert (np.unique(rows, return_counts=True)[1] == 2).sum() == 20
    seen = np.asarray(data.observed_by_clients)
    np.testing.assert_array_equal((seen >= 0).sum(axis=1), data.num_labelled)
    np.testing.assert_array_equal(np.asarray(all_clients(data).observed), seen)
    # All labelled ones are unlabelled examples of the first client, its own ones too.
    first = np.asarray(data.index[0, 10:50])
    others = np.asarray(data.index[:, :10])
    assert np.isin(others, first).all()


@pytest.mark.thorough
def test_labelled_examples_may_be_dealt_apart_and_once() -> None:
    fields = {"partition.labelled_counts": (5,), "partition.balanced": 0}
    supervision = {"supervision.name": "dealt", "supervision.labels": None}
    data = cut(CIFAR10, "cifar10", "noniid", **fields, **supervision)
    labelled, unlabelled, used = held(data)
    np.testing.assert_array_equal(labelled[:, :10], 5)
    np.testing.assert_array_equal(
        unlabelled[:, :10], by_offset((244, 73, 15, 15, 15, 10, 15, 15, 15, 73))
    )
    check_pools(data, used, 300, 300)


@pytest.mark.thorough
def test_stl10_has_unlabelled_images_of_unknown_class() -> None:
    data = cut(STL10, "stl10", "iid")
    labelled, unlabelled, used = held(data)
    np.testing.assert_array_equal(labelled, [[10] * 10 + [0]] * 100)
    np.testing.assert_array_equal(unlabelled, [[0] * 10 + [980]] * 100)
    check_pools(data, used, 150, 150)


@pytest.mark.thorough
def test_pools_that_are_shuffled_first() -> None:
    """The paper's text: merge, shuffle, split; then a tenth of the test images is from the
    official test split.
    """
    data = cut(CIFAR10, "cifar10", "iid", **{"data.shuffle_pools": True})
    *_, used = held(data)
    check_pools(data, used, 300, 300)
    assert (used[1] >= 50_000).mean() == pytest.approx(1 / 6, abs=0.03)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data.pools": (5401, 300, 300)}, "6001 examples of class 0, but there are 6000"),
        (
            {"data.pools": (5399, 300, 300)},
            "100 clients are to get 5400 examples of class 0, but there are 5399",
        ),
        ({"data.validation_fraction": 0.1}, "give only one of them"),
        ({"partition.counts": (0,), "partition.balanced": 0}, "no client would get anything"),
        ({"partition.unlabelled": 3}, "3 examples without a label each, but there are 0"),
        (
            {"partition.overlap": True},
            "nothing is dealt as labelled; give labelled_counts, with supervision 'dealt'",
        ),
        (
            {"partition.overlap": True, "partition.labelled_counts": (5,), "data.pools": None}
            | {"data.client_test_fraction": 0.1},
            r"deals some examples twice, which does not go with test examples of the clients",
        ),
        (
            {
                "supervision.name": "circulant",
                "supervision.label_counts": (1, 2),
                "supervision.labels": None,
            },
            "2 entries",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused(fields, message) -> None:
    with pytest.raises(configs.ConfigError, match=message):
        cut(CIFAR10, "cifar10", "iid", **fields)


def test_unknown_splits_are_refused() -> None:
    with pytest.raises(configs.ConfigError, match="no split 'noniid' of 'stl10'"):
        presets.protofssl_split(configs.default("protofssl"), "stl10", "noniid")
