"""Supervision: which labels are kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_ssl.data.federation.planned import Compared
from fedjax_ssl.data.federation.pool import Holdings
from fedjax_ssl.data.federation.supervision import SUPERVISIONS, balanced_draw, build_supervision

NUM_CLIENTS = 12
NUM_CLASSES = 5
GENERATOR = np.random.default_rng(1)
CLIENT = GENERATOR.choice(np.arange(-1, NUM_CLIENTS - 1), 300)  # client 11 has nothing
LABELS = GENERATOR.choice(np.arange(-1, NUM_CLASSES), 300, p=(0.1, 0.3, 0.3, 0.2, 0.08, 0.02))
ELIGIBLE = (CLIENT >= 0) & (LABELS >= 0)
SIZES = np.bincount(CLIENT[CLIENT >= 0], minlength=NUM_CLIENTS)
WITH_LABEL = np.bincount(CLIENT[ELIGIBLE], minlength=NUM_CLIENTS)
POINTS = Compared(np.random.default_rng(2).normal(size=(300, 6)).astype(np.float32), jnp.asarray)


def keep(
    name,
    key=0,
    client=CLIENT,
    truth=LABELS,
    num_clients=NUM_CLIENTS,
    num_classes=NUM_CLASSES,
    **options,
):
    rule = build_supervision(name, **options)
    client = jnp.asarray(client, jnp.int32)
    truth = jnp.asarray(truth, jnp.int32)
    return np.asarray(
        rule.label(jax.random.key(key), holdings(client, truth, num_clients, num_classes))
    )


def holdings(client, truth, num_clients=NUM_CLIENTS, num_classes=NUM_CLASSES):
    everything = jnp.ones(client.shape, bool)
    return Holdings(client, truth, jnp.ones(num_clients, bool), num_classes, labelled=everything)


def keep_many(rule, keys, client, truth, num_clients=NUM_CLIENTS, num_classes=NUM_CLASSES):
    label = jax.vmap(lambda key: rule.label(key, holdings(client, truth, num_clients, num_classes)))
    return np.asarray(jax.jit(label)(keys))


def per_client(kept, client=CLIENT, num_clients=NUM_CLIENTS):
    return np.bincount(client[kept], minlength=num_clients)


CASES = [
    ("all", {}),
    ("none", {}),
    ("per_client", {"labels": 3}),
    ("per_client", {"labels": 100}),
    ("per_client", {"labels": 7, "class_balanced": True, "labelled_clients": 4}),
    ("per_class", {"labels": 2}),
    ("circulant", {"label_counts": (3, 1, 0, 0, 1)}),
    ("fraction", {"fraction": 0.1}),
    ("fraction", {"fraction": 1.0, "labelled_clients": 2, "which": "random"}),
    ("total", {"labels": 50}),
    ("total", {"labels": 7, "class_balanced": True}),
    ("total_per_class", {"labels": 3}),
    ("xclp_noniid", {"labels": 4, "classes": 2}),
    ("class_pairs", {"labels": 5}),
    ("dealt", {}),
    ("server", {"labels": 9}),
    ("coarse", {"correspondence": "identity"}),
    ("sets", {"sets": 2}),
    ("given", {}),
    ("mixed", {"labelled_clients": 3, "labels": 2, "coarse_clients": 2, "set_clients": 2}),
    ("planned", {"labels": 20, "points": POINTS}),
]
TRACED = ("per_class", "fraction", "total", "xclp_noniid")


@pytest.mark.parametrize(("name", "options"), CASES)
def test_own_labels(name, options):
    kept = keep(name, 0, **options)
    assert not kept[~ELIGIBLE].any()
    np.testing.assert_array_equal(kept, keep(name, 0, **options))
    counts = per_client(kept)
    assert kept.sum() == {"all": ELIGIBLE.sum(), "none": 0, "server": 0}.get(name, kept.sum())
    assert (counts > 0).sum() <= options.get("labelled_clients", NUM_CLIENTS)
    if 0 < kept.sum() < ELIGIBLE.sum():
        assert (kept != keep(name, 1, **options)).any()


@pytest.mark.parametrize("labels", [1, 4, 1000])
def test_numbers_are_exact_up_to_what_exists(labels):
    have = np.zeros((NUM_CLIENTS, NUM_CLASSES), int)
    np.add.at(have, (CLIENT[ELIGIBLE], LABELS[ELIGIBLE]), 1)

    def got(name, **options):
        kept = keep(name, labels=labels, **options)
        counts = np.zeros_like(have)
        np.add.at(counts, (CLIENT[kept], LABELS[kept]), 1)
        return counts

    np.testing.assert_array_equal(got("per_class"), np.minimum(labels, have))
    total = got("total_per_class").sum(axis=0)
    np.testing.assert_array_equal(total, np.minimum(labels, have.sum(axis=0)))
    for class_balanced in (False, True):
        of_client = got("per_client", class_balanced=class_balanced).sum(axis=1)
        np.testing.assert_array_equal(of_client, np.minimum(labels, WITH_LABEL))


def test_every_supervision_has_a_case():
    assert {name for name, _ in CASES} == {*SUPERVISIONS}


def test_per_client_balanced_is_as_equal_as_the_data_allow():
    kept = keep("per_client", labels=8, class_balanced=True)
    for client in range(11):
        have = np.bincount(LABELS[ELIGIBLE & (client == CLIENT)], minlength=NUM_CLASSES)
        got = np.bincount(LABELS[kept & (client == CLIENT)], minlength=NUM_CLASSES)
        assert (got <= have).all()
        # A class that gets less than another by two or more must have been used up.
        assert (got[got < got.max() - 1] == have[got < got.max() - 1]).all()


def test_fraction_counts_and_at_least_one():
    kept = keep("fraction", fraction=0.25)
    expected = np.minimum(np.maximum(np.floor(0.25 * SIZES + 0.5), 1), WITH_LABEL)
    np.testing.assert_array_equal(per_client(kept), expected)
    np.testing.assert_array_equal(
        per_client(keep("fraction", fraction=1e-6)), np.minimum(WITH_LABEL, 1)
    )


@pytest.mark.parametrize("labels", [1, 11, 40, 200])
def test_total_is_exact_and_shared_equally(labels):
    kept = keep("total", labels=labels)
    assert kept.sum() == labels
    counts = per_client(kept)
    full = counts == WITH_LABEL
    assert np.ptp(counts[~full]) <= 1
    assert (counts[full] <= counts.max()).all()


def test_total_goes_to_the_labelled_clients_only():
    counts = per_client(keep("total", labels=20, labelled_clients=4))
    np.testing.assert_array_equal(counts, [5, 5, 5, 5] + [0] * 8)


def test_first_and_random_labelled_clients():
    first = per_client(keep("per_client", labels=1, labelled_clients=3))
    np.testing.assert_array_equal(first > 0, np.arange(NUM_CLIENTS) < 3)
    client = np.arange(300) % 12
    labels = np.arange(300) % 5
    chosen = [
        tuple(
            np.flatnonzero(
                per_client(
                    keep(
                        "per_class",
                        key,
                        client,
                        labels,
                        labels=1,
                        labelled_clients=3,
                        which="random",
                    ),
                    client,
                )
            )
        )
        for key in range(4)
    ]
    assert all(len(clients) == 3 for clients in chosen) and len(set(chosen)) > 1


@pytest.mark.parametrize(("labels", "num_clients"), [(20, 20), (10, 25), (13, 10)])
def test_xclp_noniid_has_five_shifted_classes(labels, num_clients):
    # iid data, 6 of every class per client, enough for every quota.
    # Rows that are nobody's fill up to the same length for all cases.
    client = np.where(np.arange(1500) < 60 * num_clients, np.arange(1500) // 60, -1)
    truth = np.arange(1500) % 10
    kept = keep("xclp_noniid", 3, client, truth, num_clients, 10, labels=labels)
    counts = np.zeros((num_clients, 10), int)
    np.add.at(counts, (client[kept], truth[kept]), 1)
    assert (counts.sum(axis=1) == labels).all()
    assert ((counts > 0).sum(axis=1) == 5).all()
    for row in counts:
        assert np.ptp(row[row > 0]) <= 1
    for block in range(num_clients // 10):
        rows = counts[10 * block : 10 * block + 10] > 0
        np.testing.assert_array_equal(rows, [np.roll(rows[0], shift) for shift in range(10)])
        assert (rows.sum(axis=0) == 5).all()


def test_planned_labels_are_as_many_as_asked_for_and_no_client_has_more_than_its_share():
    assert keep("planned", labels=20, points=POINTS).sum() == 20
    shared = keep("planned", labels=20, per_client=2, points=POINTS, labelled_clients=8)
    counts = per_client(shared)
    assert counts.max() == 2 and counts.sum() == 16 and not counts[8:].any()
    with pytest.raises(ValueError, match="'planned' needs the option labels or per_client"):
        build_supervision("planned")
    with pytest.raises(ValueError, match="10 neighbours of each example, but there are 9 training"):
        build_supervision("planned", labels=2, points=POINTS._replace(stored=POINTS.stored[:9]))
    with pytest.raises(ValueError, match="a partition that deals some examples twice"):
        keep(
            "planned", client=np.zeros(301, int), truth=np.zeros(301, int), labels=2, points=POINTS
        )


def test_class_pairs_have_labels_of_two_classes(labels=50):
    """FedRGD: 100 clients with 25 labels of each of their two classes; every class is at 20 of
    them.
    """
    client = np.repeat(np.arange(100), 500)
    truth = np.tile(np.arange(10), 5000)
    kept = keep("class_pairs", 3, client, truth, 100, 10, labels=labels)
    counts = np.zeros((100, 10), int)
    np.add.at(counts, (client[kept], truth[kept]), 1)
    pairs = np.stack([2 * np.arange(100) % 10, (2 * np.arange(100) + 1) % 10], axis=1)
    assert (np.take_along_axis(counts, pairs, axis=1) == 25).all() and counts.sum() == 5000
    assert ((counts > 0).sum(axis=0) == 20).all()


def test_the_supervised_reference_keeps_the_labels_of_clients_beside_those_of_the_server():
    assert build_supervision("server", labels=10, at_clients=True).server_labels == 10
    assert keep("server", labels=10, at_clients=True).sum() == ELIGIBLE.sum()


def test_xclp_noniid_fills_up_from_the_other_drawn_classes():
    client = np.full(300, -1)
    truth = np.zeros(300, int)
    client[:24] = 0
    truth[20:24] = [1, 2, 3, 4]
    kept = keep("xclp_noniid", 0, client, truth, 1, 5, labels=10)
    np.testing.assert_array_equal(np.bincount(truth[kept]), [6, 1, 1, 1, 1])


def test_uniform_labels_do_not_depend_on_the_classes():
    # Which labels are kept must not tell anything about the classes: other classes, same choice.
    shuffled = np.where(LABELS >= 0, GENERATOR.permutation(NUM_CLASSES)[LABELS], -1)
    for name, options in (
        ("per_client", {"labels": 3}),
        ("fraction", {"fraction": 0.2}),
        ("total", {"labels": 30}),
        ("planned", {"labels": 20, "points": POINTS}),
    ):
        np.testing.assert_array_equal(keep(name, **options), keep(name, truth=shuffled, **options))


def test_every_example_is_equally_likely_to_be_labelled():
    # Counts of 30 examples over 1,000 keys, chi-square-like with threshold at 1e-6: fails for one
    # seed in a million.
    client = jnp.zeros(30, jnp.int32)
    labels = jnp.asarray(np.arange(30) % 7 // 3, jnp.int32)
    kept = keep_many(
        build_supervision("per_client", labels=3),
        jax.random.split(jax.random.key(6), 1000),
        client,
        labels,
        1,
        3,
    )
    # Drawing 3 of 30 without replacement has variance p (1 - p) and correlation -1/29 between
    # examples.
    statistic = ((kept.sum(axis=0) - 100.0) ** 2 / (1000 * 0.1 * 0.9)).sum() * 29 / 30
    assert stats.chi2.sf(statistic, 29) > 1e-6


def test_balanced_draw_is_balanced_and_exact():
    available = np.ones(300, bool)
    available[:50] = False
    drawn = np.asarray(
        balanced_draw(jax.random.key(0), jnp.asarray(LABELS, jnp.int32), jnp.asarray(available), 12)
    )
    assert not drawn[:50].any() and (LABELS[drawn] >= 0).all()
    have = np.bincount(LABELS[available & (LABELS >= 0)], minlength=NUM_CLASSES)
    np.testing.assert_array_equal(
        np.bincount(LABELS[drawn], minlength=NUM_CLASSES), np.minimum(have, 12)
    )


def test_bad_options_and_more_than_there_is():
    with pytest.raises(ValueError, match=r"fraction is 1.5; it must be a number in \(0, 1\]"):
        build_supervision("fraction", fraction=1.5)
    with pytest.raises(ValueError, match="has no meaning for supervision 'server'"):
        build_supervision("server", labels=5, labelled_clients=2)
    with pytest.raises(ValueError, match="labelled_clients=9, but there are 8 clients"):
        build_supervision("all", labelled_clients=9).check(8, 100)
    with pytest.raises(ValueError, match="labels=101, but only 100 training examples"):
        build_supervision("total", labels=101).check(8, 100)
    with pytest.raises(
        ValueError, match=r"9 labels are asked for at the server.* for 10 classes ask for 10"
    ):
        build_supervision("server", labels=9).count_at_server([100.0] * 10, 1000)
    with pytest.raises(
        ValueError, match=r"server, .*, needs 4 examples of class 1, but there are 3 "
    ):
        build_supervision("coarse", server_labels=13).count_at_server([5.0, 3.9, 9.0], 17)
    with pytest.raises(ValueError, match="classes=5 labelled classes per client, the data have 3"):
        keep("xclp_noniid", 0, np.zeros(6, int), np.arange(6) % 3, 1, 3, labels=2)
