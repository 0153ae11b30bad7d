"""The worked example of the XCLP spec, section 9.1, to the printed digits."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import graph
from tests.graph import reference

CODES = reference.pack(reference.EXAMPLE_CODES)
LABELS = reference.EXAMPLE_LABELS
BITS = reference.EXAMPLE_BITS
SETTINGS = graph.GraphSettings(BITS, num_neighbors=2)
PRINTED = dict(rtol=0, atol=0.51e-10)

DISTANCES = [
    [0, 2, 5, 6, 6, 7],
    [2, 0, 7, 6, 4, 7],
    [5, 7, 0, 3, 5, 4],
    [6, 6, 3, 0, 6, 1],
    [6, 4, 5, 6, 0, 7],
    [7, 7, 4, 1, 7, 0],
]
NEIGHBORS = [{1, 2}, {0, 4}, {3, 5}, {5, 2}, {1, 2}, {3, 2}]
WEIGHTS = {
    (0, 1): 1.7320508076,
    (0, 2): 0.2588190451,
    (1, 4): 1.0,
    (2, 3): 1.4142135624,
    (2, 4): 0.2588190451,
    (2, 5): 1.0,
    (3, 5): 1.9318516526,
}
DEGREES = [1.9908698527, 2.7320508076, 2.9318516526, 3.3460652150, 1.2588190451, 2.9318516526]
NORMALIZED = {
    (0, 1): 0.7426681624,
    (0, 2): 0.1071281980,
    (1, 4): 0.5392298953,
    (2, 3): 0.4515198017,
    (2, 4): 0.1347235699,
    (2, 5): 0.3410813774,
    (3, 5): 0.6167875194,
}
INFLUENCE = {
    0.5: """1.1805011236 0.4743213017 0.0815743918 0.0250930410 0.1333791096 0.0216502902
        0.4743213017 1.2694069796 0.0550224372 0.0169254130 0.3459575059 0.0146032561
        0.0815743918 0.0550224372 1.1414863086 0.3511317966 0.0917274268 0.3029567161
        0.0250930410 0.0169254130 0.3511317966 1.2131140851 0.0282162089 0.4339990721
        0.1333791096 0.3459575059 0.0917274268 0.0282162089 1.0994542380 0.0243449613
        0.0216502902 0.0146032561 0.3029567161 0.4339990721 0.0243449613 1.1855090526""",
    0.99: """15.1101436125 17.0296856590 14.9845231389 15.6069249369 11.0896672238 14.5897273267
        17.0296856590 20.6465007022 17.4389561756 18.1633060650 13.3478223538 16.9794936486
        14.9845231389 17.4389561756 20.3916845715 21.2386799029 12.0293385829 19.8544267890
        15.6069249369 18.1633060650 21.2386799029 23.7153873084 12.5289929192 21.6527583748
        11.0896672238 13.3478223538 12.0293385829 12.5289929192  9.7299984841 11.7124027384
        14.5897273267 16.9794936486 19.8544267890 21.6527583748 11.7124027384 20.9258551000""",
}
SCORES = {
    0.5: [
        [1.1805011236, 0.4743213017, 0.0815743918, 0.0250930410, 0.1333791096, 0.0216502902],
        [0.0467433312, 0.0315286691, 0.6540885127, 1.6471131572, 0.0525611702, 1.6195081247],
    ],
    0.99: [
        [15.1101436125, 17.0296856590, 14.9845231389, 15.6069249369, 11.0896672238, 14.5897273267],
        [30.1966522636, 35.1427997136, 41.0931066919, 45.3681456832, 24.2413956575, 42.5786134748],
    ],
}
OMEGA = {
    0.5: [0.7665438386, 0.6633818802, 0.4974186959, 0.8876033767, 0.1409262443, 0.8987201784],
    0.99: [0.0815303758, 0.0887823421, 0.1625668781, 0.1794178596, 0.1023998959, 0.1805737104],
}
# The reference variant at alpha 0.99: power 3, class norm, confidence divided by its maximum.
REFERENCE_SCORES = [
    [25.8185894739, 27.4164003111, 8.4637953629, 12.8600423560, 10.8265966233, 11.5795073526],
    [12.2197748543, 13.2252401192, 20.5705457380, 33.5944881181, 5.7721802161, 30.4822550446],
]
REFERENCE_OMEGA = [
    0.0942657995,
    0.0898309703,
    0.1293364055,
    0.1489035419,
    0.0679598821,
    0.1510357640,
]
REFERENCE_SCALED = [0.6241289944, 0.5947662187, 0.8563296669, 0.9858826670, 0.4499588727, 1.0]
SOLVERS = ["cholesky", "conjugate_gradient"]

pytestmark = pytest.mark.usefixtures("float64")


def symmetric(entries: dict) -> np.ndarray:
    matrix = np.zeros((6, 6))
    for (row, column), value in entries.items():
        matrix[row, column] = matrix[column, row] = value
    return matrix


def example_graph(power: float = 1.0) -> graph.Graph:
    return graph.build_graph(graph.nearest_neighbors(jnp.asarray(CODES), BITS, 2), power)


def label_matrix() -> np.ndarray:
    return reference.one_hot(LABELS, 2)


def test_distances():
    np.testing.assert_array_equal(graph.hamming_matrix(jnp.asarray(CODES)), DISTANCES)


def test_cosines():
    printed = [1, 0.9659258263, 0.8660254038, 0.7071067812, 0.5, 0.2588190451] + 7 * [0]
    table = graph.cosine_from_hamming(jnp.arange(13), BITS)
    np.testing.assert_allclose(table, printed, **PRINTED)
    assert (np.asarray(table[6:]) == 0).all()


def test_kept_neighbors():
    index, similarity = graph.nearest_neighbors(jnp.asarray(CODES), BITS, 2)
    assert [set(row) for row in np.asarray(index).tolist()] == NEIGHBORS
    distance = np.take_along_axis(np.array(DISTANCES), np.asarray(index), axis=1)
    np.testing.assert_allclose(similarity, reference.cosines(distance, BITS), rtol=1e-15)


def test_weights_degrees_and_normalized_matrix():
    built = example_graph()
    np.testing.assert_allclose(built.degree, DEGREES, **PRINTED)
    normalized = np.asarray(graph.dense_matrix(built))
    np.testing.assert_allclose(normalized, symmetric(NORMALIZED), **PRINTED)
    root = np.sqrt(np.asarray(built.degree))
    np.testing.assert_allclose(
        normalized * root[:, None] * root, symmetric(WEIGHTS), rtol=0, atol=1e-10
    )
    np.testing.assert_allclose(graph.multiply(built, jnp.eye(6)), normalized, atol=1e-15)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("alpha", [0.5, 0.99])
def test_influence_matrix(alpha, solver):
    printed = np.array(INFLUENCE[alpha].split(), float).reshape(6, 6)
    matrix = np.asarray(graph.influence_matrix(example_graph(), alpha))
    np.testing.assert_allclose(matrix, printed, **PRINTED)
    columns = graph.influence_columns(example_graph(), alpha, jnp.array([3, 5]), solver)
    np.testing.assert_allclose(columns, printed[:, [3, 5]], **PRINTED)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("alpha", [0.5, 0.99])
def test_scores_and_confidence(alpha, solver):
    scores = graph.propagate(example_graph(), label_matrix(), alpha, solver)
    np.testing.assert_allclose(np.asarray(scores).T, SCORES[alpha], **PRINTED)
    np.testing.assert_allclose(graph.confidence(scores), OMEGA[alpha], **PRINTED)


@pytest.mark.parametrize("alpha, raw", [(0.5, [0, 0, 1, 1, 0, 1]), (0.99, [1, 1, 1, 1, 1, 1])])
def test_paper_variant(alpha, raw):
    found = graph.label(CODES, LABELS, 2, replace(SETTINGS, alpha=alpha))
    np.testing.assert_array_equal(np.argmax(found.scores, axis=1), raw)
    labelled = LABELS >= 0
    np.testing.assert_array_equal(found.labels, np.where(labelled, LABELS, raw))
    np.testing.assert_allclose(found.confidence, np.where(labelled, 1, OMEGA[alpha]), **PRINTED)
    assert np.asarray(found.valid).all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_reference_variant(solver):
    settings = replace(graph.CODE, num_bits=BITS, num_neighbors=2, solver=solver)
    found = graph.label(CODES, LABELS, 2, settings)
    np.testing.assert_allclose(np.asarray(found.scores).T, REFERENCE_SCORES, **PRINTED)
    np.testing.assert_array_equal(np.argmax(found.scores, axis=1), [0, 0, 1, 1, 0, 1])
    np.testing.assert_array_equal(found.labels, [0, 0, 1, 1, 0, 1])
    np.testing.assert_allclose(graph.confidence(found.scores), REFERENCE_OMEGA, **PRINTED)
    labelled = LABELS >= 0
    np.testing.assert_allclose(found.confidence, np.where(labelled, 1, REFERENCE_SCALED), **PRINTED)
    np.testing.assert_array_equal(graph.class_weights(found.labels, found.valid, 2), [1, 1])


def test_confidence_scaled_by_each_clients_maximum():
    settings = replace(
        SETTINGS, similarity_power=3.0, label_norm="class", confidence_scale="client_max"
    )
    found = graph.label(CODES, LABELS, 2, settings, clients=jnp.array([7, 7, 7, 2, 2, 2]))
    expected = [1, 0.0898309703 / 0.1293364055, 1, 1, 0.0679598821 / 0.1510357640, 1]
    np.testing.assert_allclose(found.confidence, expected, atol=1e-8)


def test_class_norm_alone():
    found = graph.label(CODES, LABELS, 2, replace(SETTINGS, label_norm="class"))
    np.testing.assert_array_equal(np.argmax(found.scores, axis=1), [0, 1, 1, 1, 1, 1])


@pytest.mark.parametrize(
    "alpha, first, second",
    [
        (0.5, [1.3333333333, 0.5849622256, 0.3197868650], [2, 0, 2]),
        (0.99, [50.2512562814, 43.6517037704, 23.8634921903], [100, 0, 100]),
    ],
)
@pytest.mark.parametrize("solver", SOLVERS)
def test_each_client_alone(alpha, first, second, solver):
    settings = replace(SETTINGS, alpha=alpha, solver=solver)
    one = graph.label(CODES[:3], LABELS[:3], 2, settings)
    np.testing.assert_allclose(one.scores[:, 0], first, **PRINTED)
    np.testing.assert_array_equal(one.labels, [0, 0, 0])
    two = graph.label(CODES[3:], LABELS[3:], 2, settings)
    np.testing.assert_allclose(two.scores[:, 1], second, **PRINTED)
    np.testing.assert_array_equal(two.scores[1], [0, 0])
    np.testing.assert_array_equal(two.labels, [1, -1, 1])
    np.testing.assert_array_equal(two.valid, [True, False, True])
    np.testing.assert_array_equal(two.confidence, [1, 0, 1])


def test_dropout_of_the_second_client():
    found = graph.label(CODES, np.array([0] + 5 * [-1], np.int32), 2, replace(SETTINGS, alpha=0.5))
    np.testing.assert_allclose(found.scores[:, 0], SCORES[0.5][0], **PRINTED)
    np.testing.assert_array_equal(found.scores[:, 1], np.zeros(6))
