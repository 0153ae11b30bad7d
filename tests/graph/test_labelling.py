"""`xclp` as a whole: invariants, limits and the edge cases of the spec's section 8."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import graph
from fedjax_ssl.graph import GraphSettings as Settings
from tests.graph import reference

KEY = jax.random.key(0)
# The solvers take turns; `make thorough` has every test with both.
CHOLESKY_FIRST = ["cholesky", pytest.param("conjugate_gradient", marks=pytest.mark.thorough)]
CONJUGATE_GRADIENT_FIRST = [
    pytest.param("cholesky", marks=pytest.mark.thorough),
    "conjugate_gradient",
]
VARIANT = {"similarity_power": 3.0, "label_norm": "class", "confidence_scale": "max"}


def points_and_labels(num_points: int = 90, num_classes: int = 3, seed: int = 0):
    random = np.random.default_rng(seed)
    truth = random.integers(num_classes, size=num_points)
    centres = 4 * np.eye(num_classes, 6)
    points = (centres[truth] + random.normal(size=(num_points, 6))).astype(np.float32)
    shown = np.where(np.arange(num_points) < 12, truth, -1).astype(np.int32)
    return points, shown


POINTS, SHOWN = points_and_labels()


def label(shown=SHOWN, points=POINTS, num_classes=3, **options):
    return graph.label(points, shown, num_classes, num_bits=128, **options, key=KEY)


@pytest.mark.thorough
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("solver", "options"),
    [
        ("conjugate_gradient", VARIANT),
        ("cholesky", {}),
        pytest.param("conjugate_gradient", {}, marks=pytest.mark.thorough),
        pytest.param("cholesky", VARIANT, marks=pytest.mark.thorough),
    ],
)
def test_padding_changes_no_bit(solver, options):
    rows = np.sort(np.random.default_rng(3).choice(140, 90, replace=False))
    padded = np.random.default_rng(4).normal(size=(140, 6)).astype(np.float32)
    padded_shown = np.full(140, 2, np.int32)
    padded[rows] = POINTS
    padded_shown[rows] = SHOWN
    valid = np.isin(np.arange(140), rows)
    alone = label(solver=solver, **options)
    among = label(padded_shown, padded, valid=valid, solver=solver, **options)
    for name in ("labels", "valid", "confidence", "scores"):
        ours = np.asarray(getattr(alone, name))
        theirs = np.asarray(getattr(among, name))
        if solver == "cholesky" and name in ("confidence", "scores"):
            np.testing.assert_allclose(theirs[rows], ours, rtol=1e-11)
        else:
            np.testing.assert_array_equal(theirs[rows], ours)
    np.testing.assert_array_equal(among.labels[~valid], -1)
    np.testing.assert_array_equal(among.confidence[~valid], 0)
    np.testing.assert_array_equal(among.scores[~valid], 0)
    assert not np.asarray(among.valid)[~valid].any()


@pytest.mark.usefixtures("float64")
def test_order_of_points_and_classes_does_not_matter():
    # Cosines rather than codes: without ties, which go by the order of points.
    points = POINTS.astype(np.float64)
    straight = graph.label(points, SHOWN, 3, Settings())
    order = np.random.default_rng(0).permutation(90)
    turned = graph.label(points[order], SHOWN[order], 3, Settings())
    np.testing.assert_allclose(turned.scores, straight.scores[order], rtol=1e-9)
    np.testing.assert_array_equal(turned.labels, straight.labels[order])
    names = np.array([2, 0, 1], np.int32)
    renamed = graph.label(points, np.where(SHOWN >= 0, names[SHOWN], -1), 3, Settings())
    np.testing.assert_allclose(renamed.scores[:, names], straight.scores, rtol=1e-9)
    np.testing.assert_array_equal(renamed.labels, names[np.asarray(straight.labels)])


@pytest.mark.parametrize("solver", CHOLESKY_FIRST)
def test_without_propagation_only_labelled_points_are_valid(solver):
    found = label(alpha=0.0, solver=solver)
    np.testing.assert_array_equal(found.valid, SHOWN >= 0)
    np.testing.assert_array_equal(found.labels, SHOWN)
    np.testing.assert_array_equal(found.confidence, SHOWN >= 0)


@pytest.mark.parametrize("solver", CONJUGATE_GRADIENT_FIRST)
def test_parts_of_the_graph_without_labels_stay_without(solver):
    """A component without labels; and two points at a right angle to all others, which are listed
    as neighbours at similarity 0 and have no edge.
    """
    parts = np.repeat(np.array([0, 0xFFFFFFFF], np.uint32), 8)
    codes = np.append(parts, np.uint32([0x0000FFFF, 0x00FF00FF]))[:, None]
    labels = np.full(18, -1, np.int32)
    labels[[3, 17]] = [1, 0]
    found = graph.label(codes, labels, 2, Settings(32, num_neighbors=3, solver=solver))
    expected = np.array(8 * [1] + 9 * [-1] + [0])
    np.testing.assert_array_equal(found.labels, expected)
    np.testing.assert_array_equal(found.valid, expected >= 0)
    np.testing.assert_allclose(found.confidence, expected >= 0, rtol=1e-6)
    np.testing.assert_array_equal(found.scores[16:], [[0, 0], [1, 0]])


@pytest.mark.parametrize("scale", ["none", "max"])
def test_no_labels_at_all(scale):
    found = label(np.full_like(SHOWN, -1), label_norm="class", confidence_scale=scale)
    np.testing.assert_array_equal(found.labels, -1)
    assert not found.valid.any() and not found.confidence.any() and not found.scores.any()


def test_class_without_labels_is_never_predicted():
    found = label(np.where(SHOWN == 1, -1, SHOWN), num_classes=4, label_norm="class")
    assert set(np.asarray(found.labels).tolist()) == {0, 2}
    assert not np.asarray(found.scores)[:, [1, 3]].any() and np.isfinite(found.scores).all()


def test_one_class():
    found = label(np.minimum(SHOWN, 0), num_classes=1)
    np.testing.assert_array_equal(found.labels, 0)
    np.testing.assert_array_equal(found.confidence, 1)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "num_points, solver", [(0, "auto"), (1, "auto"), (2, "auto"), (2, "conjugate_gradient")]
)
def test_very_few_points(num_points, solver):
    points = np.array([[1, 0], [1, 0.1]], np.float32)[:num_points]
    labels = np.array([1, -1], np.int32)[:num_points]
    found = label(labels, points, 2, solver=solver)
    np.testing.assert_array_equal(found.labels, num_points * [1])
    np.testing.assert_allclose(found.confidence, num_points * [1], rtol=1e-6)
    alone = label(np.full_like(labels, -1), points, 2, solver=solver)
    assert not alone.valid.any()


def test_zero_rows_are_isolated():
    zero = jnp.array([0, 50])
    without = label(valid=~np.isin(np.arange(90), zero))
    found = label(points=np.where(np.isin(np.arange(90), zero)[:, None], 0, POINTS))
    np.testing.assert_array_equal(found.labels[zero], [SHOWN[0], -1])
    np.testing.assert_array_equal(found.valid[zero], [True, False])
    np.testing.assert_array_equal(found.confidence[zero], [1, 0])
    np.testing.assert_array_equal(
        found.scores[zero], [reference.one_hot(SHOWN[:1], 3)[0], [0, 0, 0]]
    )
    others = np.delete(np.arange(90), zero)
    np.testing.assert_allclose(found.scores[others], without.scores[others], rtol=1e-4, atol=1e-5)


def test_bad_rows_under_a_trace_are_left_out():
    clean = label(valid=~np.isin(np.arange(90), [3, 60]))
    points = POINTS.copy()
    points[3, 1], points[60] = np.nan, np.inf
    traced = jax.jit(label)
    found = traced(np.where(SHOWN == 2, 7, SHOWN), points)
    assert np.isfinite(found.scores).all() and np.isfinite(found.confidence).all()
    np.testing.assert_array_equal(found.labels[jnp.array([3, 60])], -1)
    assert not found.valid[3] and not found.valid[60]
    # Labels out of range count as none under a trace.
    assert not np.asarray(found.scores)[:, 2].any()
    np.testing.assert_array_equal(traced(SHOWN, points).labels, clean.labels)


@pytest.mark.thorough
def test_maps_over_keys_and_hyperparameters():
    keys = jax.random.split(KEY, 3)
    alphas = jnp.array([0.5, 0.9, 0.99])
    powers = jnp.array([1.0, 2.0, 3.0])

    def scores(key, alpha, power):
        options = {"alpha": alpha, "similarity_power": power}
        return graph.label(POINTS, SHOWN, 3, num_bits=128, **options, key=key).scores

    together = jax.jit(jax.vmap(scores))(keys, alphas, powers)
    for run in range(3):
        np.testing.assert_allclose(
            together[run], scores(keys[run], alphas[run], powers[run]), rtol=1e-3, atol=1e-5
        )


def test_bad_arguments_are_refused():
    points, shown = points_and_labels(20)
    with pytest.raises(ValueError, match="clients is None"):
        graph.label(points, shown, 3, confidence_scale="client_max", key=KEY)
    for name in ("valid", "clients"):
        with pytest.raises(ValueError, match=f"{name} has shape"):
            graph.label(points, shown, 3, **{name: np.ones(3, bool)}, key=KEY)
    with pytest.raises(ValueError, match=r"labels lie in -1\.\.2; with num_classes=2"):
        graph.label(points, shown, 2, key=KEY)
    with pytest.raises(ValueError, match=r"labels lie in -2\.\."):
        graph.label(points, shown - 1, 3, Settings())
    with pytest.raises(ValueError, match="labels have shape"):
        graph.label(points, shown[:5], 3, key=KEY)
    with pytest.raises(ValueError, match=r"codes already \(uint32\)"):
        graph.label(graph.lsh_codes(KEY, points, 128), shown, 3, num_bits=128, key=KEY)
    with pytest.raises(ValueError, match="key is None and points are no codes"):
        graph.label(points, shown, 3, clients=np.zeros(20, int), exchange=graph.IDEAL)
