"""`federate`: hold-outs, tables, tracing, checks and the report."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest

from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.federation import tables
from fedjax_ssl.data.federation.federate import Drawing, federate
from fedjax_ssl.data.federation.federated_data import WeakLabels, validate
from fedjax_ssl.data.federation.held_out import HeldOut
from fedjax_ssl.data.federation.partition import PARTITIONS
from fedjax_ssl.data.federation.report import counts_by_kind, plot_partition, report

NUM_CLASSES = 6
SIZES = (30, 50, 20, 41, 9, 60, 30)  # of the seven natural clients


def make_dataset(missing_labels=False, own_test=False):
    generator = np.random.default_rng(0)
    labels = generator.choice(NUM_CLASSES, 240, p=(0.3, 0.2, 0.2, 0.15, 0.1, 0.05)).astype(np.int32)
    if missing_labels:
        labels[::5] = -1
    # Gaps in the clients' numbers, as after a selection of writers.
    client = generator.permutation(np.repeat(np.arange(7) * 3 + 1, SIZES)).astype(np.int32)
    images = np.arange(240, dtype=np.uint8)[:, None, None, None]
    test = (
        Split(np.zeros((40, 1, 1, 1), np.uint8), np.arange(40) % (NUM_CLASSES + 1) - 1)
        if own_test
        else None
    )
    return Dataset("toy", Split(images, labels, client), test, tuple("abcdef"))


DATASET = make_dataset()
MISSING = make_dataset(missing_labels=True)
WITH_TEST = make_dataset(own_test=True)
LABELS = DATASET.train.y
WRITER = DATASET.train.client
draw = partial(federate, supervision="per_client", supervision_options={"labels": 3})


def rows(index, count):
    """The real entries of a padded table, after checking that the padding is zero."""
    index = np.asarray(index)
    count = int(count)
    assert (index[count:] == 0).all()
    return index[:count]


def contents(data):
    """Everything that must not depend on how wide the tables are."""
    clients = [rows(data.index[c], data.num_examples[c]).tolist() for c in range(data.num_clients)]
    held = {
        name: rows(getattr(data, f"{name}_index"), getattr(data, f"num_{name}")).tolist()
        for name in ("test", "valid", "server")
    }
    return clients, held, np.asarray(data.observed).tolist(), np.asarray(data.num_labelled).tolist()


def check(data, dataset=DATASET, complete=True):
    clients, held, observed, num_labelled = contents(data)
    everywhere = (
        [row for client in clients for row in client]
        + held["test"]
        + held["valid"]
        + held["server"]
    )
    assert len(set(everywhere)) == len(everywhere)
    if complete:
        assert len(everywhere) == len(data.labels)
    truth = np.asarray(data.labels)
    observed = np.asarray(observed)
    seen = set()
    for client, count in zip(clients, num_labelled, strict=True):
        assert (observed[client[:count]] == truth[client[:count]]).all() and (
            observed[client[:count]] >= 0
        ).all()
        assert (observed[client[count:]] == -1).all()
        assert client[:count] == sorted(client[:count]) and client[count:] == sorted(client[count:])
        assert count <= data.max_labelled and len(client) - count <= data.max_unlabelled
        seen.update(client[:count])
    assert (truth[held["valid"]] >= 0).all()
    assert (observed[held["server"]] == truth[held["server"]]).all()
    assert set(np.flatnonzero(observed >= 0)) == seen | set(held["server"])
    return clients, held


@pytest.mark.thorough
def test_natural_clients_with_unseen_test_clients():
    data = draw(jax.random.key(0), DATASET, test_clients=3)
    clients, held = check(data)
    assert data.num_clients == 4 and data.max_labelled == 3
    most = max(map(len, clients))
    assert most <= data.max_examples <= data.max_unlabelled + 3 <= 9 / 8 * most + 4
    writers = [set(WRITER[client]) for client in clients]
    assert all(len(writer) == 1 for writer in writers)
    unseen = set(WRITER[held["test"]])
    assert len(unseen) == 3 and not unseen & set.union(*writers)
    assert [min(writer) for writer in writers] == sorted(min(writer) for writer in writers)
    others = {
        frozenset(WRITER[check(draw(jax.random.key(k), DATASET, test_clients=3))[1]["test"]])
        for k in range(4)
    }
    assert len(others) > 1
    np.testing.assert_array_equal(data.inputs[:, 0, 0, 0], np.arange(240))
    assert data.inputs.dtype == jnp.uint8


def test_a_subset_of_the_natural_clients():
    data = draw(jax.random.key(1), DATASET, num_clients=4)
    clients, _ = check(data, complete=False)
    assert sorted(map(len, clients)) != [0] * 4 and all(
        len(set(WRITER[client])) == 1 for client in clients
    )
    assert (
        sum(map(len, clients)) == np.isin(WRITER, [WRITER[client[0]] for client in clients]).sum()
    )


def test_stratified_test_and_validation():
    data = draw(
        jax.random.key(0),
        DATASET,
        partition="iid",
        num_clients=5,
        test_fraction=0.2,
        validation_fraction=0.1,
    )
    clients, held = check(data)
    assert len(held["test"]) == 48 and len(held["valid"]) == 19
    share = np.bincount(LABELS, minlength=NUM_CLASSES)
    assert (abs(np.bincount(LABELS[held["test"]], minlength=NUM_CLASSES) - 0.2 * share) <= 1).all()
    assert (
        abs(np.bincount(LABELS[held["valid"]], minlength=NUM_CLASSES) - 0.08 * share) <= 1.2
    ).all()
    assert np.ptp([len(client) for client in clients]) <= 1


def test_unseen_test_clients_give_away_nothing():
    # What they have without a label can be predicted, if not scored, and must not reach the other
    # clients either.
    data = draw(jax.random.key(0), MISSING, partition="iid", num_clients=4, test_clients=2)
    clients, held = check(data, MISSING, complete=False)
    assert not set(WRITER[held["test"]]) & set(WRITER[np.concatenate(clients)])
    unseen = np.isin(WRITER, WRITER[held["test"]])
    assert sum(map(len, clients)) == 240 - unseen.sum()
    assert len(held["test"]) == unseen.sum()


def test_own_test_split_comes_after_the_training_examples():
    data = draw(jax.random.key(0), WITH_TEST)
    check(data, WITH_TEST)
    assert data.inputs.shape[0] == 280 and data.labels.shape == data.observed.shape == (280,)
    test = rows(data.test_index, data.num_test)
    # those without a true label too: they can be predicted
    np.testing.assert_array_equal(test, 240 + np.arange(40))
    assert (np.asarray(data.observed)[240:] == -1).all()
    replaced = draw(jax.random.key(0), WITH_TEST, test_fraction=0.25)
    assert replaced.inputs.shape[0] == 240 and int(replaced.num_test) == 60


@pytest.mark.thorough
def test_all_labels_at_clients_and_some_at_the_server():
    data = federate(
        jax.random.key(0),
        DATASET,
        partition="iid",
        num_clients=6,
        supervision="all",
        supervision_options={"server_labels": 4 * NUM_CLASSES},
        test_fraction=0.1,
    )
    assert data.kinds() == ("labels", "server") and int(data.num_server) == 4 * NUM_CLASSES
    np.testing.assert_array_equal(data.num_labelled, data.num_examples)
    assert data.max_unlabelled == 0


def test_server_holds_balanced_labels_and_clients_none():
    data = federate(
        jax.random.key(0),
        DATASET,
        partition="iid",
        num_clients=6,
        supervision="server",
        supervision_options={"labels": 4 * NUM_CLASSES + 1},  # the odd one is dropped
        test_fraction=0.1,
    )
    clients, held = check(data)
    assert (
        len(held["server"]) == int(data.num_server) == 4 * NUM_CLASSES
        and not np.asarray(data.num_labelled).any()
    )
    assert np.bincount(LABELS[held["server"]]).tolist() == [4] * NUM_CLASSES
    assert data.max_labelled == 0 and data.max_unlabelled == max(map(len, clients))


def test_examples_without_a_label_stay_at_clients():
    data = draw(jax.random.key(2), MISSING, partition="iid", num_clients=5, test_fraction=0.1)
    clients, _ = check(data, MISSING)
    assert sum((MISSING.train.y[client] < 0).sum() for client in clients) == 48
    assert (np.asarray(data.num_labelled) == 3).all()


def test_a_key_inside_somebody_elses_jit_is_fixed_or_refused():
    key = jax.random.key(0)
    inside = jax.jit(lambda: draw(key, DATASET, test_clients=3))()
    assert contents(inside) == contents(draw(jax.random.key(0), DATASET, test_clients=3))
    with pytest.raises(ValueError, match="drawn by a key that is traced"):
        jax.jit(lambda key: draw(key, DATASET, test_clients=3))(jax.random.key(0))


def test_tables_of_other_keys_mostly_have_the_same_width():
    """Exact where clients have equally many, else an eighth wider at most."""
    counts = [np.array([7, 9]), np.array([100, 40]), np.array([50, 50, 0]), np.array([0])]
    assert [tables._width(one) for one in counts] == [9, 104, 50, 0]


def test_a_drawing_gives_every_key_the_federation_that_it_has_alone():
    drawing = Drawing(DATASET, "iid", 3, {}, "per_client", {"labels": 2}, HeldOut())
    first, second = (drawing(jax.random.key(seed)) for seed in (0, 1))
    assert not np.array_equal(first.index, second.index)
    options = {"partition": "iid", "num_clients": 3, "supervision_options": {"labels": 2}}
    alone = federate(jax.random.key(1), DATASET, **options)
    chex.assert_trees_all_equal(second, alone)


@pytest.mark.thorough
def test_labels_are_those_that_the_partition_dealt():
    """SAGE: two labelled examples of every class, dealt apart; every client has equally many of
    both kinds.
    """
    deal = partial(federate, jax.random.key(0), supervision="dealt", num_clients=4)
    options = {"alpha": 0.1, "labels_per_class": 2}
    data = deal(DATASET, partition="paired_dirichlet", partition_options=options)
    check(data)
    seen = np.asarray(data.observed)
    np.testing.assert_array_equal(np.bincount(seen[seen >= 0], minlength=NUM_CLASSES), 2)
    np.testing.assert_array_equal(data.num_labelled, 3)
    np.testing.assert_array_equal(data.num_examples, 60)
    with pytest.raises(ValueError, match="needs a partition that deals labelled examples apart"):
        deal(DATASET, partition="iid")


def test_hidden_labels_do_not_change_what_is_seen():
    # Other labels where nothing was observed: the same clients see the same labels of the same
    # examples.
    data = draw(jax.random.key(0), DATASET, test_clients=2)
    hidden = np.asarray(data.observed) < 0
    other = np.where(hidden, (LABELS + 1) % NUM_CLASSES, LABELS)
    changed = dataclasses.replace(DATASET, train=Split(DATASET.train.x, other, WRITER))
    assert contents(draw(jax.random.key(0), changed, test_clients=2)) == contents(data)


def test_tables_have_32_bits_in_64_bit_mode():
    with jax.enable_x64(True):
        data = draw(jax.random.key(0), DATASET, test_clients=2)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(data)} == {"int32", "uint8"}


@pytest.mark.parametrize("partition", list(PARTITIONS))
@pytest.mark.parametrize("enabled", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_dtypes_do_not_depend_on_64_bit_mode(partition, enabled):
    needed = {
        "dirichlet": {"alpha": 0.4},
        "dirichlet_balanced": {"alpha": 0.4},
        "class_counts": {"counts": tuple(range(6))},
        "fedmatch": {"balanced": 1, "parts": 2},
        "own_class": {"skew": 0.4},
        "paired_dirichlet": {"alpha": 0.4, "labels_per_class": 2},
    }
    rules = {
        "total": {"labels": 9, "class_balanced": True},
        "xclp_noniid": {"labels": 9},
        "fraction": {"fraction": 0.2},
        "mixed": {
            "labelled_clients": 1,
            "coarse_clients": 1,
            "correspondence": "identity",
            "set_clients": 2,
            "sets": 2,
        },
    }
    with jax.enable_x64(enabled):
        for supervision, given in rules.items():
            how = partition, 4, needed.get(partition, {}), supervision, given
            drawing = Drawing(DATASET, *how, HeldOut(test_fraction=0.1))
            roles = jax.eval_shape(drawing._draw, jax.random.key(0), drawing._examples)
            found = {leaf.dtype.name for leaf in jax.tree.leaves(roles)}
            assert found == {"int32", "bool"} | ({"float32"} if supervision == "mixed" else set())


UNOWNED = dataclasses.replace(DATASET, train=Split(DATASET.train.x, LABELS))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": UNOWNED}, "has no natural clients; choose another partition"),
        (
            {"dataset": UNOWNED, "partition": "iid", "num_clients": 3, "test_clients": 2},
            "test_clients=2, but dataset 'toy' has no natural clients",
        ),
        ({"partition": "iid"}, "partition 'iid' does not know how many clients"),
        (
            {"partition": "iid", "num_clients": 241},
            "num_clients=241, but as few as 240 training examples",
        ),
        ({"num_clients": 8}, "num_clients=8, but only 7 natural clients"),
        ({"test_clients": 7}, "test_clients=7, but dataset 'toy' has 7; at least one must train"),
        ({"test_clients": 1, "test_fraction": 0.1}, "give only one"),
        (
            {"supervision": "total", "supervision_options": {"labels": 241}},
            "labels=241, but only 240",
        ),
        (
            {"supervision_options": {"labels": 2, "labelled_clients": 8}},
            "labelled_clients=8, but there are 7",
        ),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        draw(jax.random.key(0), **{"dataset": DATASET, **options})


def test_validate_says_what_is_wrong():
    good = draw(jax.random.key(0), DATASET, test_clients=3)
    validate(good)
    nothing = jnp.zeros_like(good.num_examples)
    with pytest.raises(ValueError, match="the federation is empty"):
        validate(dataclasses.replace(good, num_examples=nothing))
    with pytest.raises(ValueError, match=r"have no training example \(the first is client 2\)"):
        validate(dataclasses.replace(good, num_examples=good.num_examples.at[2].set(0)))
    with pytest.raises(ValueError, match="there are no test examples"):
        validate(draw(jax.random.key(0), DATASET))
    without_truth = dataclasses.replace(good, labels=good.labels.at[good.test_index].set(-1))
    with pytest.raises(ValueError, match="none of the 91 test examples has a label"):
        validate(without_truth)
    validate(without_truth, truth_required=False)


def test_the_picture_names_clients_classes_and_kinds_of_labels(tmp_path):
    data = draw(jax.random.key(0), DATASET, test_clients=2, supervision_options={"labels": 1})
    sizes, clients = np.asarray(data.num_examples), data.num_clients
    column = np.arange(data.max_examples)
    known = (column >= 1) & (column < sizes[:, None]) & (np.arange(clients)[:, None] < 2)
    weak = WeakLabels(
        labels=jnp.where(known, 0, -1),
        num_examples=jnp.asarray(known.sum(1)),
        num_observations=jnp.asarray(known.any(1).astype(int)),
        from_sets=jnp.arange(clients) == 1,
        matrix=jnp.ones((clients, 1, NUM_CLASSES)),
        share=jnp.ones((clients, 1)),
        prior=jnp.ones(NUM_CLASSES),
    )
    server = data.test_index[:7]
    mixed = dataclasses.replace(data, weak=weak, server_index=server, num_server=jnp.asarray(7))
    file = tmp_path / "partition.svg"
    names = [f"site {client}" for client in range(clients)]
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot_partition(mixed, file, DATASET.class_names, names)
    shown = file.read_text()
    for words in (
        *names,
        *DATASET.class_names,
        f"{sizes.sum():,} examples",
        f"{sizes[0] - 1:,} with a coarse label",
        f"{sizes[1] - 1:,} in sets with known class shares",
        f"{clients} labelled",
        "7 server",
        f"{int(data.num_test):,} held out",
    ):
        assert f">{words}<" in shown, words


def test_report_and_counts():
    data = draw(jax.random.key(0), DATASET, test_clients=3)
    counts = counts_by_kind(data)
    clients, _ = check(data)
    for client, owned in enumerate(clients):
        np.testing.assert_array_equal(
            counts["examples"][client, :-1], np.bincount(LABELS[owned], minlength=NUM_CLASSES)
        )
    assert (counts["labelled"].sum(axis=1) == 3).all()
    assert (counts["labelled"] <= counts["examples"]).all()
    lines = report(data, DATASET.class_names, client_names=["Ann", "Bo", "Cy", "Di"]).splitlines()
    assert lines[0].startswith("4 clients (4 with labels)") and "12 labelled" in lines[0]
    assert lines[3].split()[:4] == ["0", "Ann", str(len(clients[0])), "3"]
    assert [line.split()[0] for line in lines[-3:]] == ["min", "median", "max"]


def test_without_a_word_on_labels_clients_have_all_of_them():
    data = federate(jax.random.key(0), DATASET)
    known = federate(jax.random.key(0), DATASET, supervision="all")
    np.testing.assert_array_equal(data.num_labelled, known.num_labelled)
    five = federate(jax.random.key(0), DATASET, supervision_options={"labels": 2})
    assert set(np.asarray(five.num_labelled).tolist()) == {2}
