"""Cross-client label propagation over one graph of all clients' points (XCLP, Algorithm 1).

The steps of Algorithm 1, and where they are:

| steps | what | where |
|---|---|---|
| 1 to 3 | a shared seed, random hyperplanes, codes | `codes.lsh_codes` |
| 4 to 6 | Hamming distances, cosines, the k nearest points | `neighbors.nearest_neighbors` |
| 7, 8 | W = A + A^T, normalized by the degrees | `graph.build_graph` |
| 9 to 12 | Z = (I - alpha W)^(-1) Y | `propagation.propagate` |
| 13 | labels and confidences | `_read_labels`, `weighting.confidence` |

With an `exchange.Exchange`, steps 4 and 9 to 12 run as the clients and the server of the paper run
them. Algorithm 2, training with these labels, is `fedjax_ssl.methods.xclp`.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Int32, Key, UInt32

from fedjax_ssl.checks import required
from fedjax_ssl.graph.codes import has_angle, lsh_codes
from fedjax_ssl.graph.exchange import (
    Exchange,
    begin_exchange,
    exchanged_neighbors,
    exchanged_scores,
)
from fedjax_ssl.graph.graph import build_graph
from fedjax_ssl.graph.graph_settings import (
    PAPER,
    GraphSettings,
    check_codes,
    check_labels,
    check_rows,
    is_known,
)
from fedjax_ssl.graph.neighbors import Neighbors, cosine_neighbors, nearest_neighbors
from fedjax_ssl.graph.propagation import propagate
from fedjax_ssl.graph.weighting import class_counts, confidence, scale_confidence

# Scope in which graphs are traced: profiles and compiled programs show this name.
LABEL_GRAPH = "label_graph"


class Propagation(NamedTuple):
    """Labels for every point, and their confidence."""

    labels: Int32[Array, " n"]  # -1 if no label reaches the point
    confidence: Float[Array, " n"]
    # ^ in [0, 1]; 1 for labelled points, 0 if no label reaches the point
    scores: Float[Array, "n classes"]  # Z, the propagated scores of all points, labelled ones too
    valid: Bool[Array, " n"]  # whether the label can be used


def label(
    points: Float[Array, "n d"] | UInt32[Array, "n words"],
    labels: Int[Array, " n"],
    num_classes: int,
    settings: GraphSettings = PAPER,
    *,
    key: Key[Array, ""] | None = None,
    valid: Bool[Array, " n"] | None = None,
    has_code: Bool[Array, " n"] | None = None,
    clients: Int[Array, " n"] | None = None,
    neighbor_search: Callable[..., Neighbors] = nearest_neighbors,
    exchange: Exchange | None = None,
    **changes: Any,
) -> Propagation:
    """Label points by propagation over one graph, either of all clients' points (XCLP, Algorithm
    1), or of one client's (per-client LP, the paper's baseline; map over clients with `jax.vmap`).

    Labelled points keep their own label with confidence 1; `scores` still has the propagated
    scores. A point that no label reaches gets label -1, confidence 0 and valid False: an isolated
    point, a point in a component without labels, or one that is more edges away from any label than
    conjugate gradients took iterations. So does a row with NaN or infinity, which is possible under
    a trace only. A zero row has no angle and is isolated. Under a trace, labels out of range count
    as none.

    Args:
        points: features [n, d], compared by their codes if there is a key, as in XCLP, otherwise by
            their exact cosines. Or codes, uint32 from `lsh_codes`, for Algorithm 1 from step 4 on.
            Points of several clients follow each other.
        labels: [n], 0..num_classes - 1, or -1 = no label.
        num_classes: C.
        settings: settings of the propagation; the defaults are the paper's.
        key: typed key of the projections, one per call. None: no projections.
        valid: [n], False for padding rows. None: no padding.
        has_code: [n], False for points with a meaningless code (zero features), which are isolated;
            for codes only. None: all codes count.
        clients: [n], the owner of each point, any integers; only needed for "client_max" and for an
            exchange.
        neighbor_search: function that finds the neighbours of codes, called as
            `neighbor_search(codes, num_bits, num_neighbors, valid)`: `nearest_neighbors`, or with a
            mesh by `functools.partial`.
        exchange: protocols on the host in place of the kernels, see `Exchange`; for codes only.
            None: the kernels.
        **changes: fields of `settings` that differ, for example `num_bits=1024`.

    Raises:
        ValueError: on arguments out of range, shapes that do not fit, known features that are not
            finite, or an exchange under a trace.
    """
    settings = dataclasses.replace(settings, **changes)
    points = jnp.asarray(points)
    coded = points.dtype == jnp.uint32
    if coded and key is not None:
        raise ValueError("points are codes already (uint32), and key is given; leave key out.")
    if not coded:
        valid = _finite(points, valid)
    if key is not None:  # steps 1 to 3
        has_code = has_angle(points)
        points = lsh_codes(key, points, settings.num_bits)
        coded = True
    if clients is None and (exchange is not None or settings.confidence_scale == "client_max"):
        raise ValueError(
            "clients is None; an exchange and confidence_scale='client_max' need each point's "
            "client."
        )
    if coded:
        check_codes(points, settings.num_bits)
        check_rows("has_code", has_code, points.shape[0])
    elif exchange is not None:
        raise ValueError("an exchange compares codes, but key is None and points are no codes.")

    def find_neighbors(some: Array, usable: Array) -> Neighbors:
        if coded:
            return neighbor_search(some, settings.num_bits, settings.num_neighbors, usable)
        return cosine_neighbors(some, settings.num_neighbors, usable)

    return _label(
        points, labels, num_classes, settings, find_neighbors, valid, has_code, clients, exchange
    )


@required
def propagate_labels(
    features: ArrayLike,
    labels: ArrayLike,
    clients: ArrayLike | None = None,
    *,
    num_classes: int | None = None,
    seed: int = 0,
    **options: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Label the points of all clients from a few labels, without training (XCLP, Algorithm 1).

    Args:
        features: [n, d], the points of all clients, one after the other: features of a network, or
            inputs.
        labels: [n], 0, 1, 2, ..., or -1 = no label.
        clients: [n], the owner of each point, any integers; only needed for
            confidence_scale="client_max".
        num_classes: number of classes; one more than the largest label by default.
        seed: random seed of the projections.
        **options: options of `label`: settings, num_bits, num_neighbors, alpha, ...

    Returns:
        Labels [n], -1 where no label reaches, and confidences [n] in [0, 1]; labelled points keep
        their labels, with confidence 1.

    Raises:
        ValueError: arguments out of range, shapes that do not fit, features that are not finite.

    Example:
        >>> digits = fs.load_dataset("digits").train
        >>> known = np.where(np.arange(len(digits.y)) % 20 == 0, digits.y, -1)
        >>> pixels = digits.x.reshape(len(known), -1)
        >>> labels, confidence = fs.propagate_labels(pixels, known, digits.client)
        >>> bool((labels == digits.y).mean() > 0.8)
        True
    """
    known = np.asarray(labels)
    count = int(known.max(initial=0)) + 1 if num_classes is None else num_classes
    holders = None if clients is None else jnp.asarray(clients)
    points = jnp.asarray(features, jnp.result_type(float))
    key = jax.random.key(seed)
    found = label(points, jnp.asarray(known), count, key=key, clients=holders, **options)
    return np.asarray(found.labels), np.asarray(found.confidence)


def _finite(features: Array, valid: Array | None) -> Array | None:
    """Return the mask of valid points, without rows that have NaN or infinity, which are possible
    under a trace only.
    """
    check_rows("valid", valid, features.shape[0])
    if is_known(features):
        return valid
    finite = jnp.isfinite(features.reshape(features.shape[0], -1)).all(axis=1)
    return finite if valid is None else finite & valid


@jax.named_scope(LABEL_GRAPH)
def _label(
    points: Array,
    labels: Array,
    num_classes: int,
    settings: GraphSettings,
    find_neighbors: Callable[[Array, Array], Neighbors],
    valid: Array | None = None,
    angled: Array | None = None,
    clients: Array | None = None,
    exchange: Exchange | None = None,
) -> Propagation:
    """Run Algorithm 1 from step 4 on, for features or codes."""
    labels = jnp.asarray(labels)
    num_points = points.shape[0]
    check_labels(labels, num_points, num_classes)
    check_rows("valid", valid, num_points)
    check_rows("clients", clients, num_points)
    labels = labels.astype(jnp.int32)
    if clients is None:
        clients = jnp.zeros(num_points, jnp.int32)
    order = None
    if valid is None:
        valid = jnp.ones(num_points, bool)
    else:
        order, points, labels, valid, angled, clients = _points_first(
            points, labels, valid, angled, clients
        )
    usable = valid if angled is None else valid & angled
    if exchange is None:
        exchange = Exchange()  # the kernels
    else:
        if not all(map(is_known, (points, labels, usable, clients, settings.alpha))):
            raise ValueError(
                "an exchange runs on the host, between rounds, and this call is traced: call it "
                "outside jit, vmap and scan, or leave exchange=None."
            )
        begin_exchange(exchange, clients, valid, usable)
    # Steps 4 to 6: distances, similarities, the nearest neighbours.
    if exchange.distances is None:
        neighbors = find_neighbors(points, usable)
    else:
        neighbors = exchanged_neighbors(exchange, points, clients, usable, settings)
    # Steps 7 and 8: the symmetric, normalized graph.
    graph = build_graph(neighbors, settings.similarity_power)
    # Steps 9 to 12: scores.
    label_matrix = _label_matrix(labels, valid, num_classes, settings.label_norm == "class")
    label_matrix = label_matrix.astype(graph.weight.dtype)
    if exchange.row_sums is None:
        scores = propagate(graph, label_matrix, settings.alpha, settings.solver)
    else:
        scores = exchanged_scores(exchange, graph, label_matrix, clients, valid, settings)
    # Step 13: labels and confidences.
    return _read_labels(scores, labels, valid, clients, order, settings.confidence_scale)


@jax.jit
def _points_first(
    points: Array, labels: Array, valid: Array, *others: Array | None
) -> tuple[Array, ...]:
    """Move padding to the end, so that it cannot change the order of any sum."""
    order = jnp.argsort(~valid, stable=True)
    return order, *jax.tree.map(lambda rows: rows[order], (points, labels, valid, *others))


@partial(jax.jit, static_argnums=(2, 3))
def _label_matrix(labels: Array, valid: Array, num_classes: int, divide_by_count: bool) -> Array:
    labels = jnp.where(valid, labels, -1)
    label_matrix = jax.nn.one_hot(labels, num_classes, dtype=jnp.result_type(float))
    if divide_by_count:
        label_matrix = label_matrix / jnp.maximum(class_counts(labels, num_classes), 1)
    return label_matrix


@partial(jax.jit, static_argnames="confidence_scale")
def _read_labels(
    scores: Array,
    labels: Array,
    valid: Array,
    clients: Array,
    order: Array | None,
    confidence_scale: str,
) -> Propagation:
    labelled = valid & (labels >= 0) & (labels < scores.shape[1])
    reached = valid & (jnp.max(scores, axis=1) > 0)
    sureness = scale_confidence(
        jnp.where(reached, confidence(scores), 0), confidence_scale, clients
    )
    found = jnp.where(reached, jnp.argmax(scores, axis=1).astype(jnp.int32), -1)
    result = Propagation(
        labels=jnp.where(labelled, labels, found),
        confidence=jnp.where(labelled, 1, sureness),
        scores=scores,
        valid=reached | labelled,
    )
    if order is None:
        return result
    return jax.tree.map(
        lambda rows: jnp.zeros_like(rows).at[order].set(rows, unique_indices=True), result
    )
