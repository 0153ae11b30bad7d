"""One-shot prediction: labels for new examples by propagation over a graph, without training a classifier.

Every client brings its training examples, some of them labelled, and new examples; each example is a point, and labels
travel over graphs of points. One graph of all clients is XCLP, a graph per client is per-client label propagation, and
a graph per random group of clients is how the paper did FEMNIST.

References:
    Scott, Yeo, Lampert, Cross-client label propagation for transductive and semi-supervised federated learning, TMLR
    2023, arXiv 2210.06434: section 4 (prediction) and appendix (FEMNIST in groups).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32, Key

from fedjax_ssl import graph
from fedjax_ssl.backend import backend
from fedjax_ssl.checks import check_whole_numbers
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import map_rows
from fedjax_ssl.graph import Exchange, Neighbors, Propagation, PropagationSettings, nearest_neighbors
from fedjax_ssl.graph.codes import has_angle, lsh_codes
from fedjax_ssl.keys import named_key

# Points embedded and hashed at once: their features are never all in memory. As many are labelled at once where
# small graphs would leave an accelerator idle.
_POINTS_AT_ONCE = 8192

Embedding = Callable[[Array], Float[Array, "n d"]]  # raw inputs [n, ...] -> features


class Points(NamedTuple):
    """Points of the graphs: training examples, then test examples of clients."""

    row: Int32[Array, " n"]  # row of `FederatedData.inputs`
    client: Int32[Array, " n"]  # -1 = padding
    observed: Int32[Array, " n"]  # -1 = no label
    new: Int32[Array, " n"]  # place in `FederatedData.test_index`, -1 = a training example


class Predictions(NamedTuple):
    """Labels of the test examples, in the order of `FederatedData.test_index`."""

    labels: Int32[Array, " t"]  # -1 where nothing is known
    confidence: Float[Array, " t"]  # in [0, 1], 0 where nothing is known
    coarse: Int32[Array, " t"] | None = None  # in the label space of the example's client, -1 where it has no other one


class Labeller(NamedTuple):
    """Labels the points of one graph."""

    # (places of the graph's points, their observed labels, which are no padding) -> one propagation per variant
    label: Callable[[Array, Array, Array], list[Propagation]]
    on_host: bool = False  # it cannot be traced


def points_of(data: FederatedData) -> Points:
    """Lists the points of a federation.

    Args:
        data: with test examples that belong to clients; others are left out.

    Returns:
        Points; without padding if the federation is known, and padded to static sizes under a trace.
    """
    real = jnp.arange(data.max_examples, dtype=jnp.int32) < data.num_examples[:, None]
    owner = jnp.broadcast_to(jnp.arange(data.num_clients, dtype=jnp.int32)[:, None], real.shape)
    observed = data.observed_by_clients
    training = Points(data.index, jnp.where(real, owner, -1), observed, jnp.full_like(observed, -1))
    place = jnp.arange(data.test_index.shape[0], dtype=jnp.int32)
    new = Points(data.test_index, data.test_client, jnp.full_like(place, -1), place)
    points = jax.tree.map(lambda one, other: jnp.concatenate([one.reshape(-1), other]), training, new)
    if isinstance(points.client, jax.core.Tracer):
        return points
    taken = np.flatnonzero(np.asarray(points.client) >= 0)
    return jax.tree.map(lambda values: values[taken], points)


def by_codes(
    key: Key[Array, ""],
    data: FederatedData,
    points: Points,
    embed: Embedding,
    variants: Sequence[PropagationSettings],
    *,
    neighbor_search: Callable[..., Neighbors] = nearest_neighbors,
    exchange: Exchange | None = None,
) -> Labeller:
    """Labels graphs of binary codes, as XCLP does (Algorithm 1). Codes are worked out here, once for all graphs.

    Args:
        key: typed key of the projections.
        data: the federation.
        points: from `points_of`.
        embed: raw inputs [m, ...] -> features [m, d].
        variants: settings with the same bits and neighbours, which are searched for once.
        neighbor_search: see `fedjax_ssl.graph.xclp`.
        exchange: protocols between the clients of a graph, see `fedjax_ssl.graph.Exchange`; not under a trace.

    Raises:
        ValueError: if variants differ in bits or neighbours.
    """
    num_bits = variants[0].num_bits
    if any(settings[:2] != variants[0][:2] for settings in variants):
        raise ValueError(f"variants are {variants}; they share neighbours: give num_bits and num_neighbors one value")
    projections = named_key(key, "projections")

    def hash_block(inputs: Array) -> tuple[Array, Array]:
        features = embed(inputs)
        return lsh_codes(projections, features, num_bits), has_angle(features)

    codes, angled = map_rows(hash_block, data.inputs, points.row, _POINTS_AT_ONCE)

    def label(place: Array, observed: Array, real: Array) -> list[Propagation]:
        search = _once(neighbor_search, 0)
        # Variants of one graph share its distances, and so the session in which they were worked out.
        protocols = exchange and exchange._replace(
            distances=exchange.distances and _once(exchange.distances, 2),
            begin=exchange.begin and _once(exchange.begin, 0),
        )
        return [
            graph.xclp_from_codes(
                codes[place],
                observed,
                data.num_classes,
                settings,
                valid=real,
                has_code=angled[place],
                clients=points.client[place],
                neighbor_search=search,
                exchange=protocols,
            )
            for settings in variants
        ]

    return Labeller(label, on_host=exchange is not None)


def _once(function: Callable, num_names: int) -> Callable:
    """Calls a function once per value of its first arguments: variants of one graph share what it returns."""
    known: dict[tuple, Any] = {}

    def call(*arguments: Any) -> Any:
        name = arguments[:num_names]
        if name not in known:
            known[name] = function(*arguments)
        return known[name]

    return call


def by_cosines(
    data: FederatedData,
    points: Points,
    embed: Embedding,
    variants: Sequence[PropagationSettings],
) -> Labeller:
    """Labels graphs of the exact cosines of features: what a client can do alone. Features are worked out here, once.

    Arguments and labeller: as `by_codes`; variants may differ in all but the bits, which are not used.
    """
    features = map_rows(embed, data.inputs, points.row, _POINTS_AT_ONCE)

    def label(place: Array, observed: Array, real: Array) -> list[Propagation]:
        return [
            graph.label_propagation(features[place], observed, data.num_classes, settings, valid=real)
            for settings in variants
        ]

    return Labeller(label)


def predict_with_graphs(
    data: FederatedData,
    points: Points,
    labeller: Labeller,
    graph_of: Int[Array, " clients"],
    num_graphs: int,
    *,
    unlabelled: bool = True,
    new_batch_size: int | None = None,
) -> list[Predictions]:
    """Labels the test examples by propagation over one graph per set of clients (XCLP section 4).

    Args:
        data: the federation.
        points: from `points_of`.
        labeller: from `by_codes` or `by_cosines`.
        graph_of: [C + new clients], the graph that each client's points stand in.
        num_graphs: G; C + new clients graphs, one per client, is per-client label propagation.
        unlabelled: whether training examples without a label take part.
        new_batch_size: new points that a client brings to one call; the next ones come with a call of their own.
            None: all at once, as points that help each other.

    Returns:
        Predictions, one for each variant of the labeller.

    Raises:
        ValueError: as `fedjax_ssl.graph.xclp`, for a batch size below 1, or for batches of a federation that is traced.
    """
    if new_batch_size is not None:
        check_whole_numbers(new_batch_size=new_batch_size)
    empty = jnp.zeros(data.test_index.shape[0], jnp.result_type(float))
    nothing = Predictions(jnp.full(empty.shape, -1, jnp.int32), empty)
    found: list[Predictions] = []
    taken = (points.client >= 0) & (unlabelled | (points.observed >= 0) | (points.new >= 0))
    own_graph = jnp.where(taken, graph_of[points.client], -1)
    for batch in _batches(points, new_batch_size):
        place, real = _members(jnp.where(batch, own_graph, -1), num_graphs)
        results = _map_graphs(labeller, place, jnp.where(real, points.observed[place], -1), real)
        # Every new point is in one graph of one batch; everything else goes to a place that does not exist.
        target = jnp.where(real & (points.new[place] >= 0), points.new[place], empty.shape[0])
        found = [
            Predictions(
                before.labels.at[target].set(result.labels, mode="drop"),
                before.confidence.at[target].set(result.confidence.astype(empty.dtype), mode="drop"),
            )
            for before, result in zip(found or [nothing] * len(results), results, strict=True)
        ]
    return found


def random_groups(key: Key[Array, ""], num_clients: int, num_groups: int) -> Int32[Array, " clients"]:
    """Cuts the clients, new ones included, at random into groups whose numbers of clients differ by at most one.

    Raises:
        ValueError: if there are more groups than clients, or none.
    """
    if not 1 <= num_groups <= num_clients:
        raise ValueError(f"groups is {num_groups}; with {num_clients} clients it must be 1..{num_clients}")
    return jax.random.permutation(key, num_clients).astype(jnp.int32) % num_groups


def _batches(points: Points, batch_size: int | None) -> list[Bool[Array, " n"]]:
    """Returns which points each call sees: all training points, and at most `batch_size` new ones of every client."""
    here = points.client >= 0
    if batch_size is None:
        return [here]
    if isinstance(points.client, jax.core.Tracer):
        raise ValueError(f"new_batch_size is {batch_size}; under a trace the number of batches is not known: use None")
    new = points.new >= 0
    # New points keep their order, so each one's place among its client's is its place after a stable sort.
    group = jnp.where(new & here, points.client, -1)
    order = jnp.argsort(group, stable=True)
    ordered = group[order]
    start = jnp.searchsorted(ordered, ordered).astype(jnp.int32)
    rank = jnp.zeros_like(group).at[order].set(jnp.arange(group.shape[0], dtype=jnp.int32) - start)
    most = int(np.max(np.asarray(rank), where=np.asarray(group) >= 0, initial=0)) + 1
    return [here & (~new | (rank // batch_size == number)) for number in range(-(-most // batch_size))]


def _members(graph_of_point: Int[Array, " n"], num_graphs: int) -> tuple[Int32[Array, "g w"], Bool[Array, "g w"]]:
    """Places of every graph's points, and which entries are real; as narrow as the largest graph if it is known."""
    owner = jnp.where(graph_of_point >= 0, graph_of_point, num_graphs)
    order = jnp.argsort(owner, stable=True).astype(jnp.int32)
    bounds = jnp.searchsorted(owner[order], jnp.arange(num_graphs + 1, dtype=owner.dtype)).astype(jnp.int32)
    count = bounds[1:] - bounds[:-1]
    known = not isinstance(count, jax.core.Tracer)
    width = int(np.max(np.asarray(count), initial=1)) if known else graph_of_point.shape[0]
    column = jnp.arange(width, dtype=jnp.int32)
    place = jnp.minimum(bounds[:-1, None] + column, order.shape[0] - 1)
    return order[place], column < count[:, None]


def _map_graphs(labeller: Labeller, *members: Array) -> list[Propagation]:
    """Graph by graph in one program: one after the other on a CPU, several small ones at once elsewhere."""
    num_graphs, width = members[0].shape
    if num_graphs == 1 or labeller.on_host:  # what is known stays known, so that its values are checked
        found = [labeller.label(*(values[number] for values in members)) for number in range(num_graphs)]
        return jax.tree.map(lambda *values: jnp.stack(values), *found)
    at_once = 1 if backend() == "cpu" else max(1, _POINTS_AT_ONCE // width)
    return jax.lax.map(lambda one: labeller.label(*one), members, batch_size=min(at_once, num_graphs))
