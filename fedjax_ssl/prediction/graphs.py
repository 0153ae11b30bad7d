"""One-shot prediction: labels for new examples by propagation over a graph, without training a
classifier.

Every client has training examples, some of them labelled, and new examples. Each example is a
point, and labels are propagated over graphs of points. One graph of all clients is XCLP, one graph
per client is per-client label propagation, and one graph per random group of clients is the paper's
method for FEMNIST.

References:
    Scott, Yeo, Lampert, Cross-client label propagation for transductive and semi-supervised
    federated learning, TMLR 2023, arXiv 2210.06434: section 4 (prediction) and appendix (FEMNIST in
    groups).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int32, Key

from fedjax_ssl import graph
from fedjax_ssl.backend import backend
from fedjax_ssl.checks import check_whole_numbers
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import map_rows
from fedjax_ssl.graph import (
    Exchange,
    GraphSettings,
    Neighbors,
    Propagation,
    nearest_neighbors,
)
from fedjax_ssl.graph.codes import has_angle, lsh_codes
from fedjax_ssl.keys import named_key

# Points embedded and hashed at once, so that features are never all in memory. The same number is
# labelled at once if small graphs would leave an accelerator idle.
_POINTS_AT_ONCE = 8192

Embedding = Callable[[Array], Float[Array, "n d"]]  # raw inputs [n, ...] -> features


class Points(NamedTuple):
    """Points of the graphs: training examples, then test examples of clients."""

    row: Int32[Array, " n"]  # row of `FederatedData.inputs`
    client: Int32[Array, " n"]
    observed: Int32[Array, " n"]  # -1 = no label
    new: Int32[Array, " n"]  # place in `FederatedData.test_index`, -1 = a training example


class Predictions(NamedTuple):
    """Labels of the test examples, in the order of `FederatedData.test_index`."""

    labels: Int32[Array, " t"]  # -1 if no label reaches the example
    confidence: Float[Array, " t"]  # in [0, 1], 0 if no label reaches the example
    coarse: Int32[Array, " t"] | None = None
    # ^ labels in the space of the client's coarse labels, -1 if the client has none


class Labeller(NamedTuple):
    """Labels the points of one graph."""

    # (places of the graph's points, their observed labels, mask of real points) -> one propagation
    # per variant
    label: Callable[[Array, Array, Array], list[Propagation]]
    on_host: bool = False  # cannot be traced


def points_of(data: FederatedData) -> Points:
    """List the points of a federation.

    Args:
        data: federation, not traced; test examples without a client are left out.
    """
    client, column = np.nonzero(
        np.arange(data.max_examples) < np.asarray(data.num_examples)[:, None]
    )
    observed = np.asarray(data.observed_by_clients)[client, column]
    owner = np.asarray(data.test_client)
    new = np.flatnonzero(owner >= 0)
    row = [np.asarray(data.index)[client, column], np.asarray(data.test_index)[new]]
    columns = (
        row,
        [client, owner[new]],
        [observed, np.full_like(new, -1)],
        [np.full_like(client, -1), new],
    )
    return Points(*(jnp.asarray(np.concatenate(parts), jnp.int32) for parts in columns))


def by_codes(
    key: Key[Array, ""],
    data: FederatedData,
    points: Points,
    embed: Embedding,
    variants: Sequence[GraphSettings],
    *,
    neighbor_search: Callable[..., Neighbors] = nearest_neighbors,
    exchange: Exchange | None = None,
) -> Labeller:
    """Label graphs of binary codes, as XCLP does (Algorithm 1). Codes are computed here, once for
    all graphs.

    Args:
        key: typed key of the projections.
        data: the federation.
        points: from `points_of`.
        embed: raw inputs [m, ...] -> features [m, d].
        variants: settings with the same bits and neighbours, so that the search is shared.
        neighbor_search: see `fedjax_ssl.graph.label`.
        exchange: protocols between the clients of a graph, see `fedjax_ssl.graph.Exchange`; not
            under a trace.

    Raises:
        ValueError: if variants differ in bits or neighbours.
    """
    num_bits = variants[0].num_bits
    if len({(settings.num_bits, settings.num_neighbors) for settings in variants}) > 1:
        raise ValueError(
            f"variants are {variants}; they share neighbours: give num_bits and num_neighbors one "
            "value"
        )
    projections = named_key(key, "projections")

    def hash_block(inputs: Array) -> tuple[Array, Array]:
        features = embed(inputs)
        return lsh_codes(projections, features, num_bits), has_angle(features)

    codes, angled = map_rows(hash_block, data.inputs, points.row, _POINTS_AT_ONCE)

    def label(place: Array, observed: Array, real: Array) -> list[Propagation]:
        search = _once(neighbor_search, 0)
        # Variants of one graph share its distances, and so the session that computes them.
        protocols = exchange and exchange._replace(
            distances=exchange.distances and _once(exchange.distances, 2),
            begin=_once(exchange.begin, 0),
        )
        return [
            graph.label(
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
    """Call a function once per value of its first arguments, so that variants of one graph share
    its result.
    """
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
    variants: Sequence[GraphSettings],
) -> Labeller:
    """Label graphs of exact cosines of features, which real clients would have to reveal. They are
    computed here, once.

    Arguments and result are as for `by_codes`; variants may differ in everything, because bits are
    not used.
    """
    features = map_rows(embed, data.inputs, points.row, _POINTS_AT_ONCE)

    def label(place: Array, observed: Array, real: Array) -> list[Propagation]:
        return [
            graph.label(
                features[place],
                observed,
                data.num_classes,
                settings,
                valid=real,
                clients=points.client[place],
            )
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
    """Label the test examples by propagation over one graph per set of clients (XCLP section 4).

    Args:
        data: the federation.
        points: from `points_of`.
        labeller: from `by_codes` or `by_cosines`.
        graph_of: [C + new clients], graph of each client's points, -1 = none.
        num_graphs: G; C + new clients graphs, one per client, is per-client label propagation.
        unlabelled: whether training examples without a label take part.
        new_batch_size: new points of a client in one call; further ones are in further calls. None:
            all at once, so that new points help each other.

    Returns:
        Predictions, one for each variant of the labeller.

    Raises:
        ValueError: as `fedjax_ssl.graph.label`, or for a batch size below 1.
    """
    if new_batch_size is not None:
        check_whole_numbers(new_batch_size=new_batch_size)
    size = data.test_index.shape[0]
    kind = jnp.result_type(float)
    found: list[tuple[np.ndarray, np.ndarray]] = []
    client, observed, new = map(np.asarray, points[1:])
    own_graph = np.where(
        unlabelled | (observed >= 0) | (new >= 0), np.asarray(graph_of)[client], -1
    )
    for batch in _batches(client, new, new_batch_size):
        place, real = _members(np.where(batch, own_graph, -1), num_graphs)
        results = _map_graphs(labeller, place, np.where(real, observed[place], -1), real)
        found = found or [(np.full(size, -1, np.int32), np.zeros(size, kind)) for _ in results]
        # Every new point is in one graph of one batch.
        chosen = real & (new[place] >= 0)
        for (labels, confidence), result in zip(found, results, strict=True):
            labels[new[place[chosen]]] = np.asarray(result.labels)[chosen]
            confidence[new[place[chosen]]] = np.asarray(result.confidence)[chosen]
    return [Predictions(*map(jnp.asarray, both)) for both in found]


def random_groups(
    key: Key[Array, ""], num_clients: int, num_groups: int
) -> Int32[Array, " clients"]:
    """Divide the clients, new ones included, at random into groups whose numbers of clients differ
    by at most one.

    Raises:
        ValueError: if there are more groups than clients, or none.
    """
    if not 1 <= num_groups <= num_clients:
        raise ValueError(
            f"groups is {num_groups}; with {num_clients} clients it must be 1..{num_clients}"
        )
    return jax.random.permutation(key, num_clients).astype(jnp.int32) % num_groups


def _batches(client: np.ndarray, new: np.ndarray, batch_size: int | None) -> list[np.ndarray]:
    """List the points of each call: all training points, and at most `batch_size` new points of
    every client.
    """
    if batch_size is None:
        return [np.ones(client.shape, bool)]
    number = np.zeros(client.shape, int)
    taken = np.flatnonzero(new >= 0)
    count = np.bincount(client[taken])
    # Rank among the points of its client, in order.
    rank = np.arange(taken.size) - np.repeat(np.cumsum(count) - count, count)
    number[taken[np.argsort(client[taken], stable=True)]] = rank // batch_size
    return [(new < 0) | (number == one) for one in range(int(number.max(initial=0)) + 1)]


def _members(graph_of_point: np.ndarray, num_graphs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of every graph's points, padded to the largest graph, and the mask of real
    ones.
    """
    owner = np.where(graph_of_point >= 0, graph_of_point, num_graphs)
    order = np.argsort(owner, stable=True)
    count = np.bincount(owner, minlength=num_graphs + 1)[:num_graphs]
    column = np.arange(max(count.max(), 1))
    place = order[np.minimum((np.cumsum(count) - count)[:, None] + column, order.size - 1)]
    return place.astype(np.int32), column < count[:, None]


def _map_graphs(labeller: Labeller, *known: np.ndarray) -> list[Propagation]:
    """Label graph by graph in one program: one after another on a CPU, several small ones at once
    elsewhere.
    """
    members = tuple(map(jnp.asarray, known))
    (num_graphs, width) = known[0].shape
    # Known values stay concrete, so that they can be checked.
    if num_graphs == 1 or labeller.on_host:
        found = [
            labeller.label(*(values[number] for values in members)) for number in range(num_graphs)
        ]
        return jax.tree.map(lambda *values: jnp.stack(values), *found)
    at_once = 1 if backend() == "cpu" else max(1, _POINTS_AT_ONCE // width)
    return jax.lax.map(
        lambda one: labeller.label(*one), members, batch_size=min(at_once, num_graphs)
    )
