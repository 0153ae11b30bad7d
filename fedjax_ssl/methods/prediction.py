"""One-shot prediction: labels for new examples by propagation over a graph, without training a classifier.

Every client brings its training examples, some of them labelled, and new examples; each example is a point, and labels
travel over graphs of points. One graph of all clients is XCLP, a graph per client is per-client label propagation, and
a graph per random group of clients is how the paper did FEMNIST.

References:
    Scott, Yeo, Lampert, Cross-client label propagation for transductive and semi-supervised federated learning, TMLR
    2023, arXiv 2210.06434: section 4 (prediction) and appendix (FEMNIST in groups).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32, Key

from fedjax_ssl import graph
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import map_rows
from fedjax_ssl.graph import Neighbors, Propagation, has_angle, lsh_codes, nearest_neighbors
from fedjax_ssl.keys import named_key

# Points embedded and hashed at once: their features are never all in memory. As many are labelled at once where
# small graphs would leave an accelerator idle.
_POINTS_AT_ONCE = 8192
SIMILARITIES = ("exact", "lsh")

Embedding = Callable[[Array], Float[Array, "n d"]]  # raw inputs [n, ...] -> features


class Points(NamedTuple):
    """What stands in the graphs: training examples, then test examples of clients."""

    row: Int32[Array, " n"]  # of `FederatedData.inputs`
    client: Int32[Array, " n"]  # -1 = padding
    observed: Int32[Array, " n"]  # -1 = no label
    new: Int32[Array, " n"]  # place in `FederatedData.test_index`, -1 = a training example


class Predictions(NamedTuple):
    """Labels of the test examples, in the order of `FederatedData.test_index`."""

    labels: Int32[Array, " t"]  # -1 where nothing is known
    confidence: Float[Array, " t"]  # in [0, 1], 0 where nothing is known


def points_of(data: FederatedData, unlabelled: bool = True) -> Points:
    """Lists the points of a federation.

    Args:
        data: with test examples that belong to clients; others are left out.
        unlabelled: whether training examples without a label take part.

    Returns:
        Points; without padding if the federation is known, and padded to static sizes under a trace.
    """
    real = jnp.arange(data.max_examples, dtype=jnp.int32) < data.num_examples[:, None]
    owner = jnp.broadcast_to(jnp.arange(data.num_clients, dtype=jnp.int32)[:, None], real.shape)
    observed = jnp.where(real, data.observed[data.index], -1)
    wanted = real if unlabelled else observed >= 0
    training = Points(data.index, jnp.where(wanted, owner, -1), observed, jnp.full_like(observed, -1))
    place = jnp.arange(data.test_index.shape[0], dtype=jnp.int32)
    new = Points(data.test_index, data.test_client, jnp.full_like(place, -1), place)
    points = jax.tree.map(lambda one, other: jnp.concatenate([one.reshape(-1), other]), training, new)
    if isinstance(points.client, jax.core.Tracer):
        return points
    taken = np.flatnonzero(np.asarray(points.client) >= 0)
    return jax.tree.map(lambda values: values[taken], points)


def propagate_labels(
    key: Key[Array, ""],
    data: FederatedData,
    embed: Embedding,
    points: Points,
    graph_of: Int[Array, " clients"],
    num_graphs: int,
    *,
    similarity: str = "lsh",
    num_bits: int = 4096,
    num_neighbors: int = 10,
    alpha: float | Array = 0.99,
    similarity_power: float | Array = 1.0,
    label_norm: str = "none",
    confidence_scale: str = "none",
    neighbor_search: Callable[..., Neighbors] = nearest_neighbors,
    new_batch_size: int | None = None,
) -> Predictions:
    """Labels the test examples by propagation over one graph per set of clients (XCLP section 4).

    Args:
        key: typed key of the projections.
        data: the federation.
        embed: raw inputs -> features.
        points: from `points_of`.
        graph_of: [C + new clients], the graph that each client's points stand in.
        num_graphs: G; C + new clients graphs, one per client, is per-client label propagation.
        similarity: "lsh" (codes of `num_bits` bits) or "exact" (cosine of the features).
        num_bits: bits per code.
        num_neighbors: neighbours per point.
        alpha: propagation, in [0, 1).
        similarity_power: exponent of the kept similarities; 1 in the paper, 3 in its code.
        label_norm: "none" (paper) or "class" (its code), over the labels of one graph.
        confidence_scale: "none" (paper) or "max" (its code), over the points of one graph.
        neighbor_search: see `fedjax_ssl.graph.xclp`; "lsh" only.
        new_batch_size: new points that a client brings to one call; the next ones come with a call of their own.
            None: all at once, as points that help each other.

    Returns:
        Predictions.

    Raises:
        ValueError: as `fedjax_ssl.graph.xclp`, for a similarity or batch size that does not exist, or for batches of
            a federation that is traced.
    """
    if similarity not in SIMILARITIES:
        raise ValueError(f"similarity is {similarity!r}; allowed: {', '.join(SIMILARITIES)}")
    if new_batch_size is not None and new_batch_size < 1:
        raise ValueError(f"new_batch_size is {new_batch_size}; it must be at least 1, or None for all at once")
    settings: dict[str, Any] = {
        "num_neighbors": num_neighbors,
        "alpha": alpha,
        "similarity_power": similarity_power,
        "label_norm": label_norm,
        "confidence_scale": confidence_scale,
    }
    if similarity == "lsh":
        codes, angled = _codes(named_key(key, "projections"), data.inputs, embed, points.row, num_bits)

        def label(place: Array, observed: Array, real: Array) -> Propagation:
            return graph.xclp_from_codes(
                codes[place],
                observed,
                data.num_classes,
                num_bits,
                valid=real,
                has_code=angled[place],
                neighbor_search=neighbor_search,
                **settings,
            )

    else:

        def label(place: Array, observed: Array, real: Array) -> Propagation:
            features = map_rows(embed, data.inputs, points.row[place], _POINTS_AT_ONCE)
            return graph.label_propagation(features, observed, data.num_classes, valid=real, **settings)

    empty = jnp.zeros(data.test_index.shape[0], jnp.result_type(float))
    found = Predictions(jnp.full(empty.shape, -1, jnp.int32), empty)
    own_graph = jnp.where(points.client >= 0, graph_of[points.client], -1)
    for batch in _batches(points, new_batch_size):
        place, real = _members(jnp.where(batch, own_graph, -1), num_graphs)
        result = _map_graphs(label, place, jnp.where(real, points.observed[place], -1), real)
        # Every new point is in one graph of one batch; everything else goes to a place that does not exist.
        new = points.new[place]
        target = jnp.where(real & (new >= 0), new, empty.shape[0])
        found = Predictions(
            found.labels.at[target].set(result.labels, mode="drop"),
            found.confidence.at[target].set(result.confidence.astype(empty.dtype), mode="drop"),
        )
    return found


def random_groups(key: Key[Array, ""], num_clients: int, num_groups: int) -> Int32[Array, " clients"]:
    """Cuts the clients at random into groups whose numbers of clients differ by at most one.

    Args:
        key: typed key.
        num_clients: clients, new ones included.
        num_groups: groups, 1..num_clients.

    Returns:
        [num_clients] group of each client.

    Raises:
        ValueError: if there are more groups than clients, or none.
    """
    if not 1 <= num_groups <= num_clients:
        raise ValueError(f"groups is {num_groups}; with {num_clients} clients it must be 1..{num_clients}")
    return jax.random.permutation(key, num_clients).astype(jnp.int32) % num_groups


def _codes(
    key: Key[Array, ""], inputs: Array, embed: Embedding, rows: Int[Array, " n"], num_bits: int
) -> tuple[Array, Bool[Array, " n"]]:
    """Codes of the points, and which of them have a direction."""

    def hash_block(some_inputs: Array) -> tuple[Array, Array]:
        features = embed(some_inputs)
        return lsh_codes(key, features, num_bits), has_angle(features)

    return map_rows(hash_block, inputs, rows, _POINTS_AT_ONCE)


def _batches(points: Points, batch_size: int | None) -> list[Bool[Array, " n"]]:
    """Which points each call sees: all training points, and so many new ones of every client."""
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


def _map_graphs(label: Callable[..., Propagation], *members: Array) -> Propagation:
    """Graph by graph in one program: one after the other on a CPU, several small ones at once elsewhere."""
    num_graphs, width = members[0].shape
    if num_graphs == 1:  # what is known stays known, so that its values are checked
        return jax.tree.map(lambda values: values[None], label(*(values[0] for values in members)))
    at_once = 1 if jax.default_backend() == "cpu" else max(1, _POINTS_AT_ONCE // width)
    return jax.lax.map(lambda one: label(*one), members, batch_size=min(at_once, num_graphs))
