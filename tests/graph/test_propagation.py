"""The normalized graph and propagation on it: identities of the spec's section 9.3, and SciPy as
the oracle.
"""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg

import fedjax_ssl as fs
from fedjax_ssl import graph
from fedjax_ssl.graph import propagation
from fedjax_ssl.graph.neighbors import Neighbors
from tests.graph import reference

SOLVERS = ["cholesky", "conjugate_gradient"]


def clustered_codes(
    seed: int, num_points: int, num_bits: int, num_clusters: int
) -> tuple[np.ndarray, np.ndarray]:
    """Codes that agree with their cluster's in three bits of four."""
    random = np.random.default_rng(seed)
    cluster = random.integers(num_clusters, size=num_points)
    bits = random.integers(0, 2, (num_clusters, num_bits))[cluster]
    bits = np.where(random.random(bits.shape) < 0.2, 1 - bits, bits)
    return reference.pack(bits), cluster


def example(num_points: int = 250, count: int = 4) -> graph.Graph:
    codes, _ = clustered_codes(0, num_points, 64, 5)
    return graph.build_graph(graph.nearest_neighbors(codes, 64, count))


def labels_for(num_points: int, num_classes: int = 3) -> np.ndarray:
    random = np.random.default_rng(1)
    return np.where(
        random.random(num_points) < 0.1, random.integers(num_classes, size=num_points), -1
    )


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "power", [*(pytest.param(p, marks=pytest.mark.thorough) for p in (0.5, 1.0)), 3.0]
)
def test_the_three_kernels_equal_the_dense_reference(power):
    codes, _ = clustered_codes(0, 250, 64, 5)
    distance = reference.hamming(codes)
    matrix = graph.hamming_matrix(codes)
    np.testing.assert_array_equal(matrix, distance)
    neighbors = graph.neighbors_from_matrix(matrix, jnp.ones(250, bool), 64, 4)
    built = graph.build_graph(neighbors, power)
    weight = reference.weights(
        reference.cosines(distance, 64), reference.nearest(distance, 4), power
    )
    np.testing.assert_allclose(built.degree, weight.sum(axis=1), rtol=1e-13)
    np.testing.assert_allclose(graph.dense_matrix(built), reference.normalize(weight), atol=1e-14)
    vectors = np.random.default_rng(0).normal(size=(250, 3))
    np.testing.assert_allclose(
        graph.multiply(built, vectors), reference.normalize(weight) @ vectors, atol=1e-13
    )
    expected = reference.influence(reference.normalize(weight), 0.99)
    influence = np.asarray(graph.influence_matrix(built, 0.99))
    np.testing.assert_allclose(influence, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(influence, influence.T)


@pytest.mark.parametrize(
    "kernel", [graph.hamming_matrix, graph.build_graph, graph.influence_matrix]
)
def test_the_example_of_a_kernel_runs(kernel):
    names = {"fs": fs, "jnp": jnp}
    example = doctest.DocTestParser().get_doctest(kernel.__doc__, names, "kernel", None, None)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.thorough
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("count", [1, 3])
def test_a_point_that_all_others_point_to(count):
    # The worst case of the reversed lists: one row of A^T with an entry for every point.
    num_points = 200
    index = np.zeros((num_points, count), np.int32)
    index[:, 1:] = np.arange(num_points)[:, None]
    index[0] = 1
    similarity = np.zeros((num_points, count))
    similarity[:, 0] = np.linspace(0.1, 1, num_points)
    dense = np.zeros((num_points, num_points))
    np.add.at(dense, (np.arange(num_points)[:, None], index), similarity)
    built = graph.build_graph(Neighbors(jnp.asarray(index), jnp.asarray(similarity)))
    expected = reference.normalize(dense + dense.T)
    np.testing.assert_allclose(graph.multiply(built, jnp.eye(num_points)), expected, atol=1e-14)


def test_memory_of_the_graph_is_linear():
    sizes = []
    for num_points in (100, 200):
        lists = Neighbors(jnp.zeros((num_points, 4), jnp.int32), jnp.zeros((num_points, 4)))
        sizes.append(sum(part.size for part in jax.eval_shape(graph.build_graph, lists)))
    assert sizes[1] == 2 * sizes[0]


@pytest.mark.parametrize("solver", SOLVERS)
def test_propagation_equals_scipy(solver):
    built = example()
    target = reference.one_hot(labels_for(250), 3)
    matrix = scipy.sparse.csc_matrix(np.asarray(graph.dense_matrix(built), float))
    system = scipy.sparse.identity(250) - 0.99 * matrix
    expected = scipy.sparse.linalg.spsolve(scipy.sparse.csc_matrix(system), target)
    found = graph.solve(built, target, 0.99, solver)
    assert found.scores.dtype == jnp.float32 and found.converged
    assert np.linalg.norm(found.scores - expected) <= 1e-5 * np.linalg.norm(expected)


def test_what_the_solver_tells():
    built = example()
    target = reference.one_hot(labels_for(250), 3)
    good = graph.solve(built, target, 0.99, "conjugate_gradient", tolerance=1e-5)
    assert good.converged and 5 < good.iterations < 100 and good.residual < 2e-5
    cut = graph.solve(built, target, 0.99, "conjugate_gradient", max_iterations=3)
    assert not cut.converged and cut.iterations == 3 and cut.residual > 1e-3
    dense = graph.solve(built, target, 0.99, "cholesky")
    assert dense.converged and dense.iterations == 0 and dense.residual < 1e-5


@pytest.mark.thorough
def test_columns_of_zeros_and_the_number_of_columns_do_not_matter():
    built = example()
    target = reference.one_hot(labels_for(250), 3)
    wide = np.zeros((250, 5))
    wide[:, 1:4] = target
    found = np.asarray(graph.propagate(built, wide, 0.99, "conjugate_gradient"))
    assert (found[:, [0, 4]] == 0).all()
    np.testing.assert_allclose(
        found[:, 1:4],
        graph.propagate(built, target, 0.99, "conjugate_gradient"),
        rtol=1e-5,
        atol=1e-6,
    )
    nothing = graph.solve(built, np.zeros((250, 2)), 0.99, "conjugate_gradient")
    assert nothing.converged and nothing.iterations == 0 and not nothing.scores.any()


def test_auto_takes_cholesky_for_small_graphs(monkeypatch):
    target = reference.one_hot(labels_for(250), 3)
    assert graph.solve(example(), target, 0.99).iterations == 0
    monkeypatch.setattr(propagation, "CHOLESKY_POINTS", 249)
    assert graph.solve(example(), target, 0.99).iterations > 0


def test_alpha_outside_its_range_is_refused():
    built = example(20)
    for call in (graph.propagate, graph.solve):
        with pytest.raises(ValueError, match="alpha is"):
            call(built, np.ones((20, 1)), 1.0)
    with pytest.raises(ValueError, match="alpha is"):
        graph.influence_matrix(built, 1.0)


def test_bad_arguments_are_refused():
    built = example(20)
    with pytest.raises(ValueError, match="solver is 'lu'"):
        graph.propagate(built, np.ones((20, 1)), 0.5, "lu")
    with pytest.raises(ValueError, match="label_matrix has shape"):
        graph.propagate(built, np.ones((19, 1)), 0.5)
    with pytest.raises(ValueError, match="max_iterations"):
        graph.solve(built, np.ones((20, 1)), 0.5, max_iterations=0)
    with pytest.raises(ValueError, match="similarity_power is 0"):
        graph.build_graph(graph.nearest_neighbors(reference.random_codes(0, 5, 8), 8, 2), 0)
    with pytest.raises(ValueError, match="neighbour lists"):
        graph.build_graph(Neighbors(jnp.zeros((3, 2), jnp.int32), jnp.zeros((3, 1))))


def test_confidence_rules():
    scores = jnp.array([[1.0, 1, 1], [0, 5, 0], [0, 0, 0], [-1e-9, 2, 0], [1, 2, 0]])
    expected = [0, 1, 0, 1, 1 - (np.log(3) - 2 / 3 * np.log(2)) / np.log(3)]
    np.testing.assert_allclose(graph.confidence(scores), expected, atol=1e-6)
    np.testing.assert_array_equal(graph.confidence(jnp.array([[2.0], [0.0]])), [1, 0])


def test_class_weights():
    labels = jnp.array([0, 0, 0, 1, -1, 1])
    valid = jnp.array([True, True, True, True, True, False])
    np.testing.assert_allclose(graph.class_weights(labels, valid, 3), [4 / 9, 4 / 3, 1], rtol=1e-6)
    np.testing.assert_array_equal(graph.class_weights(labels, jnp.zeros(6, bool), 2), [1, 1])
