"""One-shot prediction: which points stand in which graph, against the propagation of
`fedjax_ssl.graph` itself.
"""

import dataclasses
import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import graph, methods
from fedjax_ssl.keys import named_key
from fedjax_ssl.prediction.graphs import (
    by_codes,
    by_cosines,
    points_of,
    predict_with_graphs,
    random_groups,
)
from tests import toy
from tests.graph.recorded_exchange import RecordedExchange

KEY = jax.random.key(3)
SETTINGS = graph.GraphSettings(num_bits=64, num_neighbors=3)
NUM_CLIENTS = len(toy.SIZES) + 1  # the last one has new examples only
ONE_GRAPH = jnp.zeros(NUM_CLIENTS, jnp.int32)
OWN_GRAPHS = jnp.arange(NUM_CLIENTS, dtype=jnp.int32)


def embed(inputs):
    return inputs.reshape(inputs.shape[0], -1).astype(jnp.float32)


def federation():
    """The toy federation, 20 of its test examples with the clients in turn, the other 4
    nobody's.
    """
    data = toy.federation(num_test=24)
    owner = jnp.where(jnp.arange(24) < 20, jnp.arange(24) % NUM_CLIENTS, -1).astype(jnp.int32)
    return dataclasses.replace(data, test_client=owner, num_new_clients=1)


DATA = federation()
label = jax.jit(graph.label, static_argnums=(2, 3))
OWNED = np.asarray(DATA.test_client) >= 0


def predict(
    data=DATA, graph_of=ONE_GRAPH, num_graphs=1, exact=False, options=None, variants=None, **search
):
    options = options or {}
    settings = (SETTINGS,) if variants is None else variants

    points = points_of(data)
    if exact:
        label = by_cosines(data, points, embed, settings)
    else:
        label = by_codes(KEY, data, points, embed, settings, **search)
    found = predict_with_graphs(data, points, label, graph_of, num_graphs, **options)
    return found[0] if variants is None else found


one_graph = functools.cache(predict)


def rows_of(client, data=DATA, unlabelled=True):
    """Rows and observed labels of a client's training examples."""
    size = int(data.num_examples[client]) if client < data.num_clients else 0
    rows = np.asarray(data.index)[client, :size] if size else np.zeros(0, np.int32)
    observed = np.asarray(data.observed)[rows]
    return (rows, observed) if unlabelled else (rows[observed >= 0], observed[observed >= 0])


def expected(clients, unlabelled=True, new=None, exact=False):
    """New examples of some clients with their labels and confidences, by the primitives; padded
    to one shape.
    """
    parts = [rows_of(client, unlabelled=unlabelled) for client in clients]
    new = np.flatnonzero(np.isin(DATA.test_client, clients)) if new is None else new
    rows = np.concatenate([*(part[0] for part in parts), np.asarray(DATA.test_index)[new]])
    observed = np.concatenate([*(part[1] for part in parts), np.full(len(new), -1)]).astype(
        np.int32
    )
    padding = 80 - len(rows)
    features = embed(DATA.inputs[np.pad(rows, (0, padding))])
    observed = jnp.asarray(np.pad(observed, (0, padding)))
    valid = jnp.arange(80) < len(rows)
    key = None if exact else named_key(KEY, "projections")
    result = label(features, observed, toy.NUM_CLASSES, SETTINGS, key=key, valid=valid)
    chosen = slice(len(rows) - len(new), len(rows))
    return new, np.asarray(result.labels)[chosen], np.asarray(result.confidence)[chosen]


@pytest.mark.thorough
@pytest.mark.parametrize("unlabelled", [True, False])
def test_one_graph_is_xclp_over_all_points(unlabelled):
    found = predict(options={"unlabelled": unlabelled})
    new, labels, confidence = expected(range(NUM_CLIENTS), unlabelled)
    np.testing.assert_array_equal(new, np.flatnonzero(OWNED))
    np.testing.assert_array_equal(found.labels[new], labels)
    np.testing.assert_allclose(found.confidence[new], confidence, atol=1e-5)
    assert (np.asarray(found.labels)[~OWNED] == -1).all() and not np.asarray(found.confidence)[
        ~OWNED
    ].any()
    truth = np.asarray(DATA.labels)[np.asarray(DATA.test_index)]
    assert np.mean(np.asarray(found.labels)[OWNED] == truth[OWNED]) > 0.8  # chance: 1/3


@pytest.mark.thorough
def test_groups_have_graphs_of_their_own():
    graph_of = jnp.asarray([0, 1, 0, 1, 1, 0, 0], jnp.int32)
    found = predict(graph_of=graph_of, num_graphs=2)
    for group in (0, 1):
        new, labels, confidence = expected(np.flatnonzero(np.asarray(graph_of) == group))
        np.testing.assert_array_equal(found.labels[new], labels)
        np.testing.assert_allclose(found.confidence[new], confidence, atol=1e-5)


@pytest.mark.thorough
def test_a_graph_per_client_is_label_propagation_alone():
    found = predict(graph_of=OWN_GRAPHS, num_graphs=NUM_CLIENTS, exact=True)
    for client in range(NUM_CLIENTS):
        new, labels, _ = expected([client], exact=True)
        np.testing.assert_array_equal(found.labels[new], labels)
    # no labels; no training data
    without = np.isin(np.asarray(DATA.test_client), [2, NUM_CLIENTS - 1])
    assert (np.asarray(found.labels)[without] == -1).all()


def test_one_graph_labels_the_examples_of_clients_without_labels_or_training_data():
    found = one_graph()
    for client in (2, NUM_CLIENTS - 1):
        assert (np.asarray(found.labels)[np.asarray(DATA.test_client) == client] >= 0).all()


@pytest.mark.thorough
def test_new_examples_in_batches():
    found = predict(options={"new_batch_size": 2})
    owner = np.asarray(DATA.test_client)
    rank = np.array([np.sum(owner[:place] == owner[place]) for place in range(24)])
    for batch in (0, 1):
        chosen = np.flatnonzero(OWNED & (rank // 2 == batch))
        new, labels, _ = expected(range(NUM_CLIENTS), new=chosen)
        np.testing.assert_array_equal(found.labels[new], labels)
    at_once = predict(options={"new_batch_size": 3})
    np.testing.assert_array_equal(at_once.labels, one_graph().labels)


def test_true_labels_do_not_matter():
    scrambled = dataclasses.replace(DATA, labels=(DATA.labels + 1) % toy.NUM_CLASSES)
    np.testing.assert_array_equal(one_graph().labels, predict(scrambled).labels)


def test_random_groups():
    groups = np.asarray(random_groups(KEY, 11, 4))
    assert sorted(np.bincount(groups)) == [2, 3, 3, 3]
    assert (groups != np.asarray(random_groups(jax.random.key(4), 11, 4))).any()
    for number in (0, 12):
        with pytest.raises(
            ValueError, match=rf"groups is {number}; with 11 clients it must be 1\.\.11"
        ):
            random_groups(KEY, 11, number)


def test_variants_of_other_neighbours_are_refused():
    with pytest.raises(ValueError, match="give num_bits and num_neighbors one value"):
        predict(variants=(SETTINGS, replace(SETTINGS, num_neighbors=4)))


@pytest.mark.thorough
@pytest.mark.parametrize("num_graphs", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_protocol_predicts_between_rounds(num_graphs):
    """A network trains, its features meet in a protocol on the host, and training goes on as if
    nothing had been.
    """
    method = methods.build("fedavg", toy.setup(DATA))
    train = jax.jit(method.round)
    before = train(KEY, method.init(KEY, DATA), DATA)[0]
    alone = train(KEY, before, DATA)[0]
    graph_of = jnp.arange(NUM_CLIENTS, dtype=jnp.int32) % num_graphs
    recorded = RecordedExchange()
    variants = (SETTINGS, replace(SETTINGS, label_norm="class", confidence_scale="client_max"))

    def ask(**search):
        points = points_of(DATA)
        embed_inputs = functools.partial(method.embed, before)
        label = by_codes(KEY, DATA, points, embed_inputs, variants, **search)
        return predict_with_graphs(DATA, points, label, graph_of, num_graphs)

    found = ask(exchange=recorded.exchange)
    jax.tree.map(np.testing.assert_array_equal, found, ask(exchange=graph.IDEAL))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-3), found, ask())
    # Variants share the distances; clients of different graphs do not meet.
    together = [
        (a, b)
        for a in range(NUM_CLIENTS)
        for b in range(a, NUM_CLIENTS)
        if (b - a) % num_graphs == 0
    ]
    assert sorted(recorded.pairs) == together and len(recorded.shares) == len(variants) * num_graphs
    jax.tree.map(np.testing.assert_array_equal, train(KEY, before, DATA)[0], alone)
