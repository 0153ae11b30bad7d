"""Plans of labels: greedy coverage against plain greedy, and strategies on ten
points worked out by hand.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_ssl as fs
from fedjax_ssl import graph
from fedjax_ssl.graph import label_plan
from fedjax_ssl.graph.label_plan import Pool, choose, cover_greedily, plan_graph

FEW = graph.GraphSettings(num_bits=256, num_neighbors=3, alpha=0.9)


def clusters(seed: int, num_points: int, num_clusters: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Points around the axes, and the number of each one's axis."""
    random = np.random.default_rng(seed)
    axis = random.integers(num_clusters, size=num_points)
    points = 2 * np.eye(8)[axis] + 0.5 * random.normal(size=(num_points, 8))
    return points.astype(np.float32), axis


def influence_of(features: np.ndarray, settings=FEW, seed: int = 0) -> np.ndarray:
    valid = jnp.ones(len(features), bool)
    built = plan_graph(jax.random.key(seed), jnp.asarray(features), valid, settings)
    return np.asarray(graph.influence_matrix(built, settings.alpha), np.float64)


def coverage(influence: np.ndarray, rows) -> float:
    return influence[:, list(rows)].max(axis=1, initial=0).sum() / influence.max(axis=1).sum()


def plain_greedy(influence: np.ndarray, budget: int, client=None, quota=None) -> list[int]:
    """Look at every gain in every step."""
    covered = np.zeros(len(influence))
    chosen: list[int] = []
    for _ in range(budget):
        gains = np.maximum(influence - covered[:, None], 0).sum(axis=0)
        gains[chosen] = -1
        if quota is not None:
            gains[np.bincount(client[chosen], minlength=client.max() + 1)[client] >= quota] = -1
        chosen.append(int(gains.argmax()))
        covered = np.maximum(covered, influence[:, chosen[-1]])
    return chosen


def nobody(count: int) -> np.ndarray:
    return np.full(count, -1)


def test_lazy_greedy_is_plain_greedy():
    points, _ = clusters(1, 500)
    influence = influence_of(points)
    client = np.arange(500) % 7
    plan = fs.plan_labels(points, nobody(500), client, budget=30, settings=FEW)
    assert plan.rows.tolist() == plain_greedy(influence, 30)
    assert (np.diff(plan.gain) <= 0).all() and plan.covered == 0
    assert plan.gain.sum() == pytest.approx(coverage(influence, plan.rows), rel=1e-4)
    shared = fs.plan_labels(points, nobody(500), client, budget=30, per_client=5, settings=FEW)
    assert shared.rows.tolist() == plain_greedy(influence, 30, client, 5)
    assert np.bincount(client[shared.rows]).max() == 5


def test_equals_are_chosen_by_number_and_each_client_gets_its_share():
    # Candidates 0 and 2 cover the same, and so do 1 and 3.
    influence = jnp.asarray([[2.0, 2, 0, 0], [0, 0, 1, 1], [2, 2, 0, 0], [0, 0, 1, 1]])
    allowed = jnp.ones(4, bool)
    client = jnp.asarray([0, 0, 0, 1])
    picks, gain = cover_greedily(influence, jnp.zeros(4), allowed, client, jnp.full(2, 9), 4)
    assert picks.tolist() == [0, 1, 2, 3] and gain.tolist() == [4, 2, 0, 0]
    picks, gain = cover_greedily(influence, jnp.zeros(4), allowed, client, jnp.full(2, 1), 4)
    assert picks.tolist() == [0, 3, -1, -1] and gain.tolist() == [4, 2, 0, 0]


def test_labels_that_are_there_count_as_chosen():
    points, _ = clusters(3, 120)
    first = fs.plan_labels(points, nobody(120), budget=16, settings=FEW)
    labels = nobody(120)
    labels[first.rows[:6]] = 3  # whatever the labels are
    rest = fs.plan_labels(points, labels, budget=10, settings=FEW)
    assert rest.rows.tolist() == first.rows[6:].tolist()
    assert rest.covered == pytest.approx(first.gain[:6].sum(), rel=1e-5)


def test_padding_and_the_order_of_clients_change_nothing():
    points, _ = clusters(3, 120)
    client = np.arange(120) % 4
    plan = fs.plan_labels(points, nobody(120), client, per_client=4, settings=FEW)
    named = np.array([70, -3, 12, 5])[client]
    other = fs.plan_labels(points, nobody(120), named, per_client=4, settings=FEW)
    assert other.rows.tolist() == plan.rows.tolist()
    place = np.sort(np.random.default_rng(0).permutation(150)[:120])
    wide = np.ones((150, 8), np.float32)
    wide[place] = points
    real = np.isin(np.arange(150), place)
    holder = np.zeros(150, np.int32)
    holder[place] = client
    pool = Pool(wide, real, ~np.ones(150, bool), real, holder, np.full(4, 4, np.int32))
    padded = choose(jax.random.key(0), jax.tree.map(jnp.asarray, pool), 16, settings=FEW)
    assert padded.rows.tolist() == place[plan.rows].tolist()
    np.testing.assert_allclose(padded.gain, plan.gain, rtol=1e-5)


@pytest.mark.parametrize("strategy", ["influence", "typiclust"])
def test_mapped_over_seeds_a_plan_is_that_of_each_seed(strategy):
    points, axis = clusters(4, 80)
    yes = jnp.ones(80, bool)
    pool = Pool(points, yes, ~yes, yes, jnp.arange(80) % 4, jnp.full(4, 5))
    keys = jax.random.split(jax.random.key(1), 3)

    def plan(key):
        return choose(key, pool, 12, strategy, settings=FEW, candidates=60).rows

    rows = np.asarray(jax.vmap(plan)(keys))
    np.testing.assert_array_equal(rows, jnp.stack([plan(key) for key in keys]))
    assert strategy != "influence" or all(len(set(axis[of_seed])) == 6 for of_seed in rows)


def test_above_the_memory_candidates_are_a_random_part():
    assert label_plan.most_candidates(11_000) == 11_000
    with pytest.warns(UserWarning, match="among 1,280 random ones of 100,000 examples"):
        assert label_plan.most_candidates(100_000) == 1280


# Ten points on a circle, in degrees: seven of one cluster, and three of another.
DEGREES = np.array([0, 2, 3, 4, 5, 8, 10, 120, 130, 132])
TEN = np.stack([np.cos(np.deg2rad(DEGREES)), np.sin(np.deg2rad(DEGREES))], axis=1)


def test_coreset_takes_the_farthest_point():
    labels = nobody(10)
    labels[0] = 1
    plan = fs.plan_labels(TEN, labels, budget=4, strategy="coreset")
    # From 0 degrees 132 is farthest; then 120 (12 away from 132, 10 is 10 away from 0); then 10;
    # then 5, which is 5 away from both neighbours.
    assert DEGREES[plan.rows].tolist() == [132, 120, 10, 5]


def test_typiclust_takes_the_middle_of_the_largest_cluster():
    labels = nobody(10)
    labels[9] = 0
    plan = fs.plan_labels(TEN, labels, budget=1, strategy="typiclust")
    # Two clusters, one without a label. Sums of angles to the six others of the cluster: 4 degrees
    # 18, 3 and 5 degrees 19 and 19.
    assert DEGREES[plan.rows].tolist() == [4]
    # A label there, and the other cluster with three points more: it has six, and no label.
    labels[[3, 9]] = 0, -1
    more = np.concatenate([TEN, TEN[-3:]])
    plan = fs.plan_labels(more, np.append(labels, nobody(3)), budget=1, strategy="typiclust")
    assert DEGREES[plan.rows].tolist() == [130]


def test_margin_takes_what_the_network_cannot_tell():
    first = np.array([0.9, 0.8, 0.5, 0.6, 1, 0.7, 0.55, 0.5, 0.75, 0.65])
    probabilities = np.stack([first, 1 - first], axis=1)
    labels = nobody(10)
    labels[6] = 0
    plan = fs.plan_labels(TEN, labels, budget=4, strategy="margin", probabilities=probabilities)
    assert plan.rows.tolist() == [2, 7, 3, 9]


def test_random_is_uniform_and_without_repetition():
    plans = [
        fs.plan_labels(TEN, nobody(10), np.arange(10) % 2, per_client=2, strategy="random", seed=s)
        for s in range(20)
    ]
    assert all(np.bincount(plan.rows % 2).tolist() == [2, 2] for plan in plans)
    assert set(np.concatenate([plan.rows for plan in plans])) == set(range(10))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget": 0}, "budget is 0; it must be a whole number of at least 1"),
        ({}, "budget and per_client are None; give one of them"),
        ({"budget": 3, "strategy": "best"}, "strategy is 'best'"),
        ({"budget": 1, "strategy": "margin"}, "'margin' needs probabilities"),
        (
            {"budget": 1, "strategy": "margin", "probabilities": np.full((10, 3), np.nan)},
            r"finite numbers of shape \(10, classes\)",
        ),
        (
            {"budget": 1, "strategy": "margin", "probabilities": np.ones((2, 3))},
            r"finite numbers of shape \(10, classes\)",
        ),
    ],
)
def test_bad_settings_are_one_sentence(given, message):
    with pytest.raises(ValueError, match=message):
        fs.plan_labels(TEN, nobody(10), settings=FEW, **given)


def test_bad_input_in_one_sentence():
    points, _ = clusters(0, 30)
    labels = nobody(30)
    with pytest.raises(ValueError, match="there are 3 examples, and a graph with 3 neighbours"):
        fs.plan_labels(points[:3], labels[:3], budget=1, settings=FEW)
    with pytest.raises(ValueError, match="the graph has no edge"):
        fs.plan_labels(np.zeros((8, 2)), nobody(8), budget=1, settings=FEW)
    with pytest.raises(ValueError, match="every example has a label"):
        fs.plan_labels(points, np.zeros(30, int), budget=1, settings=FEW)
    with pytest.warns(UserWarning, match="budget is 31, but only 30 unlabelled examples are there"):
        plan = fs.plan_labels(points, labels, budget=31, strategy="random")
    assert sorted(plan.rows) == list(range(30))
    with pytest.warns(UserWarning, match="only 6 labels of 9 are planned, .* among 6 examples"):
        few = fs.plan_labels(points, labels, budget=9, candidates=6, settings=FEW)
    assert len(few.rows) == 6
    labels[20:] = 0
    with pytest.warns(UserWarning, match="without an unlabelled example get no row: 2"):
        client = np.arange(30) // 10
        plan = fs.plan_labels(points, labels, client, per_client=2, strategy="random")
    assert len(plan.rows) == 4


def test_clients_may_be_names_and_labels_are_whole_numbers() -> None:
    points = np.random.default_rng(0).normal(size=(6, 4))
    names = ["b", "a", "b", "a", "b", "a"]
    plan = graph.plan_labels(points, np.full(6, -1), names, per_client=1, strategy="random")
    assert sorted(names[row] for row in plan.rows) == ["a", "b"]
    with pytest.raises(ValueError, match="they must be integers"):
        graph.plan_labels(points, np.full(6, np.nan), budget=1)
