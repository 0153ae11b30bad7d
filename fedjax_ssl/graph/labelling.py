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

from fedjax_ssl.checks import check_choices
from fedjax_ssl.graph.codes import FEW_POINTS, has_angle, lsh_codes
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

# the scope in which graphs are traced: profiles and compiled programs name it
LABEL_GRAPH = "label_graph"


class Propagation(NamedTuple):
    """Labels for every point, and how far to trust them."""

    labels: Int32[Array, " n"]  # -1 where nothing is known
    confidence: Float[Array, " n"]  # in [0, 1]; 1 for labelled points, 0 where nothing is known
    scores: Float[Array, "n classes"]  # Z, before labelled points got their own label back
    valid: Bool[Array, " n"]  # whether the label can be used


def xclp(
    key: Key[Array, ""],
    features: Float[Array, "n d"],
    labels: Int[Array, " n"],
    num_classes: int,
    *,
    settings: GraphSettings = PAPER,
    valid: Bool[Array, " n"] | None = None,
    clients: Int[Array, " n"] | None = None,
    neighbor_search: Callable[..., Neighbors] = nearest_neighbors,
    exchange: Exchange | None = None,
    **changes: Any,
) -> Propagation:
    """Label all points of all clients by propagation over one graph (XCLP, Algorithm 1).

    Labelled points keep their own label with confidence 1; `scores` still holds what was
    propagated. A point that no label reaches (isolated, in a component without labels, or more
    edges away from any label than conjugate gradients took iterations) gets label -1, confidence 0
    and valid False, and so does a row with NaN or infinity that comes in under a trace. A zero row
    has no angle and is isolated. Labels out of range count as none under a trace.

    Args:
        key: typed key of the projections, one per call.
        features: [n, d], the points of all clients, one after the other.
        labels: [n], 0..num_classes - 1, or -1 where there is none.
        num_classes: C.
        settings: settings of the propagation; the defaults are the paper's.
        valid: [n], False for padding rows. None: all are points.
        clients: [n], which client holds a point, any integers; needed by "client_max" and by an
            exchange only.
        neighbor_search: finds the neighbours, called as `neighbor_search(codes, num_bits,
            num_neighbors, valid)`: `nearest_neighbors`, or with a mesh by `functools.partial`.
        exchange: protocols in place of the kernels, on the host, see `Exchange`. None: the kernels.
        **changes: fields of `settings` that differ, for example `num_bits=1024`.

    Raises:
        ValueError: on arguments out of range, shapes that do not fit, known features that are not
            finite, or an exchange under a trace.
    """
    settings = dataclasses.replace(settings, **changes)
    features = jnp.asarray(features)
    return xclp_from_codes(
        lsh_codes(key, features, settings.num_bits),  # steps 1 to 3
        labels,
        num_classes,
        settings,
        valid=_finite(features, valid),
        has_code=has_angle(features),
        clients=clients,
        neighbor_search=neighbor_search,
        exchange=exchange,
    )


def propagate_labels(
    features: ArrayLike,
    labels: ArrayLike,
    clients: ArrayLike | None = None,
    *,
    num_classes: int | None = None,
    seed: int = 0,
    **options: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Label the points of all clients from the few labels that there are, without training (XCLP,
    Algorithm 1).

    Args:
        features: [n, d], the points of all clients, one after the other: features of a network, or
            inputs.
        labels: [n], 0, 1, 2, ..., or -1 where there is none.
        clients: [n], the client that holds each point, any integers; needed by
            confidence_scale="client_max" alone.
        num_classes: number of classes; one more than the largest label by default.
        seed: decides the random projections.
        **options: as `xclp` takes them: settings, num_bits, num_neighbors, alpha, ...

    Returns:
        Labels [n], -1 where no label reaches, and confidences [n] in [0, 1]; labelled points keep
        theirs, with 1.

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
    found = xclp(
        jax.random.key(seed), points, jnp.asarray(known), count, clients=holders, **options
    )
    return np.asarray(found.labels), np.asarray(found.confidence)


def xclp_from_codes(
    codes: UInt32[Array, "n words"],
    labels: Int[Array, " n"],
    num_classes: int,
    settings: GraphSettings,
    *,
    valid: Bool[Array, " n"] | None = None,
    has_code: Bool[Array, " n"] | None = None,
    clients: Int[Array, " n"] | None = None,
    neighbor_search: Callable[..., Neighbors] = nearest_neighbors,
    exchange: Exchange | None = None,
) -> Propagation:
    """Label all points from their binary codes (XCLP, Algorithm 1 from step 4 on).

    Args:
        codes: [n, ceil(num_bits / 32)] as `lsh_codes` returns them.
        labels: [n], -1 where there is none.
        num_classes: C.
        settings: settings of the propagation.
        valid: [n], False for padding rows. None: all are points.
        has_code: [n], False for points whose code means nothing (zero features), which are
            isolated. None: all have one.
        clients: see `xclp`.
        neighbor_search: see `xclp`.
        exchange: see `xclp`.

    Raises:
        ValueError: on arguments out of range, shapes that do not fit, or an exchange under a trace.
    """
    codes = jnp.asarray(codes)
    check_codes(codes, settings.num_bits)
    check_rows("has_code", has_code, codes.shape[0])
    if clients is None and (exchange is not None or settings.confidence_scale == "client_max"):
        raise ValueError(
            "clients is None; an exchange and confidence_scale='client_max' need each point's "
            "client."
        )

    def find_neighbors(some_codes: Array, usable: Array) -> Neighbors:
        return neighbor_search(some_codes, settings.num_bits, settings.num_neighbors, usable)

    return _label(
        codes, labels, num_classes, settings, find_neighbors, valid, has_code, clients, exchange
    )


def label_propagation(
    features: Float[Array, "n d"],
    labels: Int[Array, " n"],
    num_classes: int,
    settings: GraphSettings,
    *,
    similarity: str = "exact",
    key: Key[Array, ""] | None = None,
    valid: Bool[Array, " n"] | None = None,
    clients: Int[Array, " n"] | None = None,
) -> Propagation:
    """Label the points of one client from that client's labels alone (per-client LP, the baseline
    of the paper).

    Maps over clients: `jax.vmap` it over padded features, labels and `valid`.

    Args:
        features: [n, d], one client's points.
        labels: [n], -1 where there is none.
        num_classes: C.
        settings: settings of the propagation.
        similarity: "exact" (cosine of the features) or "lsh" (codes, as the code of the paper
            does).
        key: typed key of the projections; needed by "lsh" only.
        valid: [n], False for padding rows. None: all are points.
        clients: [n], which client holds a point, where they are of several clients that show each
            other their features. None: all are one client's.

    Raises:
        ValueError: as `xclp`, or if "lsh" comes without a key.
    """
    check_choices(("exact", "lsh"), similarity=similarity)
    features = jnp.asarray(features)
    if clients is None:
        clients = jnp.zeros(features.shape[0], jnp.int32)
    if similarity == "lsh":
        if key is None:
            raise ValueError(
                "key is None; similarity='lsh' needs a typed key, for example jax.random.key(0)."
            )
        return xclp_from_codes(
            lsh_codes(key, features, settings.num_bits, points_at_once=FEW_POINTS),
            labels,
            num_classes,
            settings,
            valid=_finite(features, valid),
            has_code=has_angle(features),
            clients=clients,
        )

    def find_neighbors(points: Array, usable: Array) -> Neighbors:
        return cosine_neighbors(points, settings.num_neighbors, usable)

    valid = _finite(features, valid)
    return _label(features, labels, num_classes, settings, find_neighbors, valid, clients=clients)


def _finite(features: Array, valid: Array | None) -> Array | None:
    """Return the mask of the points. Rows with NaN or infinity, which only come in under a trace,
    are no points.
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
    """Run Algorithm 1 from step 4 on, whatever the points are."""
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
    """Move padding behind the points, where it cannot change the order of any sum."""
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
