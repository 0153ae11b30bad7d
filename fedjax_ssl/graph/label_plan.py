"""Plan which examples to label next, from the graph of XCLP.

The entry S_ij of S = (I - alpha W)^(-1) is the influence of a label at point j on point i. A set L
of labelled points covers f(L) = sum over i of max over j in L of S_ij. This is facility location,
monotone and submodular, so the greedy choice reaches at least 1 - 1/e of the best coverage for a
total budget, and half of it for a budget per client (Nemhauser, Wolsey and Fisher, 1978). Lazy
greedy (Minoux, 1978) makes the same choice but evaluates few gains: a gain can only fall, so an old
one is a bound. The other strategies of `STRATEGIES` are for comparison.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Int32, Key

from fedjax_ssl.checks import check_choices, check_whole_numbers, required
from fedjax_ssl.errors import counted, note
from fedjax_ssl.graph.codes import has_angle, lsh_codes
from fedjax_ssl.graph.graph import Graph, build_graph
from fedjax_ssl.graph.graph_settings import GraphSettings, check_features, check_labels, check_rows
from fedjax_ssl.graph.neighbors import nearest_neighbors
from fedjax_ssl.graph.propagation import influence_columns, sum_rows

SETTINGS = GraphSettings(num_bits=1024, num_neighbors=10, alpha=0.9)
# Entries of S in memory: half a GiB in single precision.
_MOST_ENTRIES = 2**27
_COLUMNS_AT_ONCE = 128
# TypiClust: most clusters, largest cluster that counts as too small, neighbours of a typical point.
_MOST_CLUSTERS = 500
_SMALL = 5
_TYPICAL_NEIGHBORS = 20
_MOVES = 30
_ROWS_AT_ONCE = 128


class Pool(NamedTuple):
    """Points that a plan chooses from."""

    features: Float[Array, "n d"]
    valid: Bool[Array, " n"]  # False: padding
    labelled: Bool[Array, " n"]
    allowed: Bool[Array, " n"]  # mask of points that may be chosen
    client: Int32[Array, " n"]
    quota: Int32[Array, " clients"]  # labels that each client may still get
    margin: Float[Array, " n"] | None = None
    # ^ a network's probability of its first class minus that of its second


class Plan(NamedTuple):
    """Points to label, the most useful one first."""

    rows: Int32[Array, " budget"]  # row numbers; -1 after the last point that could be chosen
    gain: Float[Array, " budget"]
    # ^ coverage that each point adds; NaN unless the strategy is "influence"
    covered: Float[Array, ""]  # coverage by the labels that existed before
    connected: Int32[Array, ""]  # points with an edge; all points for a strategy without a graph


@required
def plan_labels(
    features: ArrayLike,
    labels: ArrayLike,
    clients: ArrayLike | None = None,
    *,
    budget: int | None = None,
    per_client: int | None = None,
    strategy: str = "influence",
    probabilities: ArrayLike | None = None,
    settings: GraphSettings = SETTINGS,
    candidates: int | None = None,
    seed: int = 0,
) -> Plan:
    """Plan which examples of all clients to label next, without using any class.

    Args:
        features: [n, d], the points of all clients, one after the other: features of a network, or
            inputs.
        labels: [n], -1 = no label; only whether there is a label counts, not its class.
        clients: [n], the client that holds each point, numbers or names. None: one client has all.
        budget: labels in total. None: as many as `per_client` allows.
        per_client: most new labels of one client. None: only the budget counts.
        strategy: a name of `STRATEGIES`.
        probabilities: [n, K] of a network, for the strategy "margin".
        settings: settings of the graph; bits, neighbours and alpha are used.
        candidates: number of random points to choose among, for the strategy "influence"; by
            default all points up to about 11,500, and beyond that as many as fit into half a GiB.
        seed: random seed of projections and random choices.

    Returns:
        A plan of NumPy arrays. Coverage is relative to the coverage by all candidates together.

    Raises:
        ValueError: arguments out of range, nothing to label, too few points or a graph without
            edges.

    Example:
        >>> digits = fs.load_dataset("digits").train
        >>> known = np.where(np.arange(len(digits.y)) < 5, digits.y, -1)
        >>> pixels = digits.x.reshape(len(known), -1)
        >>> plan = fs.plan_labels(pixels, known, digits.client, budget=20, per_client=2)
        >>> len(plan.rows), int(np.bincount(digits.client[plan.rows]).max())
        (20, 2)
    """
    check_choices(STRATEGIES, strategy=strategy)
    for name, value in (("budget", budget), ("per_client", per_client), ("candidates", candidates)):
        check_whole_numbers(**({} if value is None else {name: value}))
    points = jnp.asarray(features, jnp.result_type(float))
    check_features(points)
    known = np.asarray(labels)
    num_classes = int(known.max(initial=0)) + 1 if known.dtype.kind in "iu" else 1
    check_labels(jnp.asarray(known), len(points), num_classes)
    whose = np.zeros(len(known), int) if clients is None else np.asarray(clients)
    names, holder = np.unique(whose, return_inverse=True)
    check_rows("clients", jnp.asarray(holder), len(points))
    free = np.bincount(holder[known < 0], minlength=len(names))
    margin = None
    if strategy == "margin":
        margin = _margin(probabilities, len(points))
    count = _count(free, names, budget, per_client)
    if strategy == "influence" and len(points) <= settings.num_neighbors:
        raise ValueError(
            f"there are {counted(len(points), 'example')}, and a graph with "
            f"{settings.num_neighbors} neighbours of each needs more; add examples, or use "
            "strategy 'random'"
        )
    unlabelled = jnp.asarray(known < 0)
    everybody = jnp.ones(len(points), bool)
    most = count if per_client is None else per_client
    pool = Pool(
        points,
        everybody,
        ~unlabelled,
        unlabelled,
        jnp.asarray(holder, jnp.int32),
        jnp.full(len(names), most, jnp.int32),
        margin,
    )
    if strategy == "influence" and candidates is None:
        candidates = most_candidates(len(points))
    facts = {"num_labelled": int((known >= 0).sum()), "settings": settings}
    found = choose(jax.random.key(seed), pool, count, strategy, candidates=candidates, **facts)
    if not int(found.connected):
        raise ValueError(
            "no two examples have similar features, so that the graph has no edge and a label says "
            "nothing about another example; give other features, or use strategy 'random'"
        )
    plan: Plan = jax.device_get(found)
    there = plan.rows >= 0
    if there.sum() < count:
        note(
            f"only {counted(int(there.sum()), 'label')} of {count} are planned, as the plan "
            f"chooses among {candidates:,} examples; label these, and plan again"
        )
    return plan._replace(rows=plan.rows[there], gain=plan.gain[there])


def _margin(probabilities: ArrayLike | None, num_points: int) -> Array:
    """Return the probability of each point's first class minus that of its second."""
    given = np.asarray(() if probabilities is None else probabilities)
    if given.ndim != 2 or given.shape[0] != num_points or not np.isfinite(given).all():
        raise ValueError(
            "strategy 'margin' needs probabilities of a network, finite numbers of shape "
            f"({num_points}, classes); they have shape {given.shape}"
        )
    best = np.sort(given, axis=1)
    return jnp.asarray(best[:, -1] - (best[:, -2] if best.shape[1] > 1 else 0))


def most_candidates(num_points: int) -> int:
    """Return the number of points to choose among: all of them if S fits into memory; add a note if
    it is a random part.
    """
    room = _MOST_ENTRIES // num_points
    room = max(room - room % _COLUMNS_AT_ONCE, 1)  # a multiple of the block size
    if room < num_points:
        note(f"the plan chooses among {room:,} random ones of {num_points:,} examples")
    return min(room, num_points)


def _count(free: np.ndarray, names: np.ndarray, budget: int | None, per_client: int | None) -> int:
    """Return the number of labels to plan; add a note if it is smaller than the budget."""
    if budget is None and per_client is None:
        raise ValueError("budget and per_client are None; give one of them")
    if not free.any():
        raise ValueError("every example has a label, so that there is nothing to plan")
    if per_client is not None and not free.all():
        without = ", ".join(map(str, names[free == 0][:10]))
        note(f"clients without an unlabelled example get no row: {without}")
    there = int(free.sum() if per_client is None else np.minimum(free, per_client).sum())
    if budget is not None and budget > there:
        limit = "" if per_client is None else f" within per_client={per_client}"
        note(
            f"budget is {budget}, but only {there} unlabelled examples are there{limit}: all are "
            "planned"
        )
    return there if budget is None else min(budget, there)


@partial(jax.jit, static_argnames=("budget", "strategy", "num_labelled", "settings", "candidates"))
def choose(
    key: Key[Array, ""],
    pool: Pool,
    budget: int,
    strategy: str = "influence",
    *,
    num_labelled: int = 0,
    settings: GraphSettings = SETTINGS,
    candidates: int | None = None,
) -> Plan:
    """Choose points to label; a pure function that can be traced and mapped over keys and pools.

    Args:
        key: random key of projections and random choices.
        pool: points to choose from. Points that are not allowed are still in the graph.
        budget: labels in total.
        strategy: a name of `STRATEGIES`; "margin" needs `pool.margin`.
        num_labelled: number of points of the pool with a label.
        settings: settings of the graph.
        candidates: number of random points to choose among by "influence"; None: all.

    Returns:
        The plan. Among equally good points, the lowest row number is chosen.
    """
    # Padding goes last, so that it cannot change the order of a sum.
    order = jnp.argsort(~pool.valid, stable=True).astype(jnp.int32)
    by_point = {
        name: values[order]
        for name, values in pool._asdict().items()
        if name != "quota" and values is not None
    }
    pool = pool._replace(**by_point)
    pool = pool._replace(allowed=pool.allowed & pool.valid)
    plan = STRATEGIES[strategy](key, pool, budget, num_labelled, settings, candidates)
    return plan._replace(rows=jnp.where(plan.rows < 0, -1, order[plan.rows]))


def _by_influence(
    key: Array,
    pool: Pool,
    budget: int,
    num_labelled: int,
    settings: GraphSettings,
    candidates: int | None,
) -> Plan:
    """Cover the graph: put every label where it adds most coverage."""
    graph = plan_graph(key, pool.features, pool.valid, settings)
    rows = _candidates(key, pool.allowed, candidates)
    influence = _influence_rows(graph, settings.alpha, rows)
    covered = jnp.zeros(graph.num_points, influence.dtype)
    if num_labelled:
        there = _first_rows(pool.labelled, num_labelled)
        for start in range(0, num_labelled, _MOST_ENTRIES // graph.num_points):
            some = there[start : start + _MOST_ENTRIES // graph.num_points]
            covered = jnp.maximum(covered, _influence_rows(graph, settings.alpha, some).max(axis=0))
    allowed = pool.allowed[rows]
    # The reference is the coverage by all candidates together.
    most = jnp.max(jnp.where(allowed[:, None], influence, 0), axis=0)
    whole = _sum(jnp.maximum(covered, most))
    before = _sum(covered)
    picks, gain = cover_greedily(influence, covered, allowed, pool.client[rows], pool.quota, budget)
    return Plan(
        jnp.where(picks < 0, -1, rows[picks]),
        gain / whole,
        before / whole,
        jnp.sum(graph.degree > 0, dtype=jnp.int32),
    )


def plan_graph(key: Array, features: Array, valid: Array, settings: GraphSettings) -> Graph:
    """Build the graph of a plan from codes, as XCLP does."""
    codes = lsh_codes(key, features, settings.num_bits)
    usable = valid & has_angle(features)
    neighbors = nearest_neighbors(codes, settings.num_bits, settings.num_neighbors, usable)
    return build_graph(neighbors, settings.similarity_power)


def _candidates(key: Array, allowed: Array, count: int | None) -> Array:
    """Choose the candidate rows: all, or a random part, in order."""
    num_points = allowed.shape[0]
    if count is None or count >= num_points:
        return jnp.arange(num_points, dtype=jnp.int32)
    noise = jax.random.uniform(jax.random.fold_in(key, 1), (num_points,), jnp.float32)
    return jnp.sort(jnp.argsort(jnp.where(allowed, noise, 2))[:count]).astype(jnp.int32)


def _first_rows(mask: Array, count: int) -> Array:
    return jnp.argsort(~mask, stable=True)[:count].astype(jnp.int32)


def _influence_rows(graph: Graph, alpha: Any, rows: Array) -> Array:
    """Return rows of S, [m, n], computed as some columns at once, because S is symmetric."""
    width = min(_COLUMNS_AT_ONCE, rows.shape[0])
    blocks = jnp.pad(rows, (0, -rows.shape[0] % width), mode="edge").reshape(-1, width)
    found = lax.map(lambda some: influence_columns(graph, alpha, some).T, blocks)
    return found.reshape(-1, graph.num_points)[: rows.shape[0]]


def _sum(values: Array) -> Array:
    return sum_rows(values[:, None])[0]


def cover_greedily(
    influence: Float[Array, "m n"],
    covered: Float[Array, " n"],
    allowed: Bool[Array, " m"],
    client: Int[Array, " m"],
    quota: Int[Array, " clients"],
    budget: int,
) -> tuple[Int32[Array, " budget"], Float[Array, " budget"]]:
    """Choose candidates by lazy greedy: each next one adds most coverage; of equal ones, the
    lowest.

    Args:
        influence: S of every candidate on every point.
        covered: max of S over existing labels.
        allowed: candidates that may be chosen.
        client: client of every candidate.
        quota: labels that each client may get.
        budget: labels in total.

    Returns:
        Numbers of candidates, -1 if none was left, and the coverage that each added.
    """

    def choose_next(carry: tuple, _: None) -> tuple:
        covered, bound, allowed, quota = carry
        free = allowed & (quota[client] > 0)

        def best_of(bound: Array) -> Array:
            return jnp.argmax(jnp.where(free, bound, -jnp.inf)).astype(jnp.int32)

        def is_old(search: tuple) -> Array:
            _, fresh, best = search
            return free[best] & ~fresh[best]

        def evaluate(search: tuple) -> tuple:
            bound, fresh, best = search
            # A fixed order of the sum, so that a gain never rises by rounding.
            gain = _sum(jnp.maximum(influence[best] - covered, 0))
            bound = bound.at[best].set(gain)
            return bound, fresh.at[best].set(True), best_of(bound)

        start = bound, jnp.zeros_like(free), best_of(bound)
        bound, _fresh, best = lax.while_loop(is_old, evaluate, start)
        found = free[best]
        covered = jnp.where(found, jnp.maximum(covered, influence[best]), covered)
        allowed = allowed.at[best].set(False)
        quota = quota.at[client[best]].add(-found.astype(quota.dtype))
        pick = jnp.where(found, best, -1), jnp.where(found, bound[best], 0)
        return (covered, bound, allowed, quota), pick

    bound = jnp.full(influence.shape[0], jnp.inf, influence.dtype)
    start = covered, bound, allowed, quota
    return lax.scan(choose_next, start, None, length=budget)[1]


def _one_by_one(
    pool: Pool,
    budget: int,
    state: Any,
    preferences: Callable[[Any], tuple[Array, ...]],
    update: Callable[[Any, Array], Any] = lambda state, row: state,
) -> Plan:
    """Choose the best point by the preferences in their order; of equal ones, the lowest."""

    def choose_next(carry: tuple, _: None) -> tuple:
        state, allowed, quota = carry
        among = allowed & (quota[pool.client] > 0)
        found = among.any()
        for values in preferences(state):
            among &= values == jnp.max(jnp.where(among, values, -jnp.inf))
        row = jnp.argmax(among).astype(jnp.int32)
        quota = quota.at[pool.client[row]].add(-found.astype(quota.dtype))
        # After the last choice the state is not used any more.
        return (update(state, row), allowed.at[row].set(False), quota), jnp.where(found, row, -1)

    start = state, pool.allowed, pool.quota
    rows: Array
    _, rows = lax.scan(choose_next, start, None, length=budget)
    unknown = jnp.full(budget, jnp.nan, pool.features.dtype)
    return Plan(rows, unknown, unknown[0], jnp.sum(pool.valid, dtype=jnp.int32))


def _at_random(key: Array, pool: Pool, budget: int, *_: Any) -> Plan:
    """Choose at random."""
    noise = jax.random.uniform(key, pool.valid.shape, jnp.float32)
    return _one_by_one(pool, budget, None, lambda _: (noise,))


def _by_margin(key: Array, pool: Pool, budget: int, *_: Any) -> Plan:
    """Choose points with the smallest margin between the network's two likeliest classes."""
    margin = pool.margin
    assert margin is not None
    return _one_by_one(pool, budget, None, lambda _: (-margin,))


def _by_centres(key: Array, pool: Pool, budget: int, num_labelled: int, *_: Any) -> Plan:
    """Choose the point farthest from all labelled ones, the first at random (k-center greedy; Sener
    and Savarese, 2018, Active learning for convolutional neural networks).
    """
    points = _directions(pool.features)
    noise = jax.random.uniform(key, pool.valid.shape, points.dtype)

    def nearer(distance: Array, row: Array) -> Array:
        return jnp.minimum(distance, jnp.sum((points - points[row]) ** 2, axis=1))

    distance = jnp.full(points.shape[0], jnp.inf, points.dtype)
    if num_labelled:
        there = _first_rows(pool.labelled, num_labelled)
        distance = lax.scan(lambda one, row: (nearer(one, row), None), distance, there)[0]

    def preferences(distance: Array) -> tuple[Array, Array]:
        return distance, jnp.where(jnp.isinf(distance), noise, 0)

    return _one_by_one(pool, budget, distance, preferences, nearer)


def _by_clusters(key: Array, pool: Pool, budget: int, num_labelled: int, *_: Any) -> Plan:
    """Choose the most typical point of the cluster with fewest labels; of several, the largest
    cluster (TypiClust; Hacohen, Dekel and Weinshall, 2022, Active learning on a budget).

    As in the paper and its code: one cluster for every label, at most 500; clusters of up to 5
    points are used last; a point is typical if its 20 nearest neighbours within the cluster are
    near.
    """
    count = min(num_labelled + budget, _MOST_CLUSTERS, pool.valid.shape[0])
    points = _directions(pool.features)
    cluster = _cluster(key, points, pool.valid, count)
    size = jnp.zeros(count, points.dtype).at[cluster].add(pool.valid.astype(points.dtype))
    labels = jnp.zeros(count, points.dtype).at[cluster].add(pool.labelled.astype(points.dtype))
    near = _near_in_cluster(points, cluster, pool.valid)
    large = (size > _SMALL).astype(points.dtype)

    def preferences(labels: Array) -> tuple[Array, ...]:
        of_cluster = large, -labels, size, -jnp.arange(count, dtype=points.dtype)
        return *(values[cluster] for values in of_cluster), -near

    def update(labels: Array, row: Array) -> Array:
        return labels.at[cluster[row]].add(1)

    return _one_by_one(pool, budget, labels, preferences, update)


def _directions(features: Array) -> Array:
    """Scale every point to length 1, because the graph compares angles."""
    norm = jnp.linalg.norm(features, axis=1, keepdims=True)
    return features / jnp.where(norm > 0, norm, 1)


def _cluster(key: Array, points: Array, valid: Array, count: int) -> Array:
    """Return the cluster of every point by k-means, with k-means++ as its start."""

    def add_centre(carry: tuple, key: Array) -> tuple:
        nearest, centre = carry
        nearest = jnp.minimum(nearest, jnp.sum((points - centre) ** 2, axis=1))
        following = points[jax.random.categorical(key, jnp.log(nearest))]
        return (nearest, following), centre

    keys = jax.random.split(key, count + 1)
    # squared distance of directions is at most 4
    far = jnp.where(valid, jnp.asarray(4, points.dtype), 0)
    first = points[jax.random.categorical(keys[count], jnp.log(far))]
    centres: Array
    _, centres = lax.scan(add_centre, (far, first), keys[:count])

    def assign(centres: Array) -> Array:
        closeness = points @ centres.T - jnp.sum(centres**2, axis=1) / 2
        return jnp.argmax(closeness, axis=1).astype(jnp.int32)

    def move(centres: Array, _: None) -> tuple:
        cluster = jnp.where(valid, assign(centres), count)
        size = jnp.zeros(count + 1, points.dtype).at[cluster].add(1)[:count, None]
        total = jnp.zeros((count + 1, points.shape[1]), points.dtype).at[cluster].add(points)
        return jnp.where(size > 0, total[:count] / jnp.maximum(size, 1), centres), None

    return assign(lax.scan(move, centres, None, length=_MOVES)[0])


def _near_in_cluster(points: Array, cluster: Array, valid: Array) -> Array:
    """Return the mean distance of every point to its nearest neighbours in its cluster; inf if
    there are none.
    """
    numbers = jnp.arange(points.shape[0], dtype=jnp.int32)
    count = min(_TYPICAL_NEIGHBORS, points.shape[0])

    def of(row: Array) -> Array:
        squared = jnp.maximum(2 - 2 * points @ points[row], 0)
        others = valid & (cluster == cluster[row]) & (numbers != row)
        nearest = lax.top_k(jnp.where(others, -jnp.sqrt(squared), -jnp.inf), count)[0]
        there = jnp.isfinite(nearest)
        total = -jnp.sum(jnp.where(there, nearest, 0))
        number = jnp.sum(there, dtype=total.dtype)
        return jnp.where(number > 0, total / jnp.maximum(number, 1), jnp.inf)

    return lax.map(of, numbers, batch_size=_ROWS_AT_ONCE)


# (key, pool, budget, number of labelled points, settings of the graph, candidates) -> plan
STRATEGIES: dict[str, Callable[..., Plan]] = {
    "influence": _by_influence,
    "random": _at_random,
    "typiclust": _by_clusters,
    "coreset": _by_centres,
    "margin": _by_margin,
}
