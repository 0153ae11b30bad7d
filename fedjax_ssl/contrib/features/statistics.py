"""One-shot classifiers from sums that clients send once: class means, and a linear head.

A client sends, of its labelled training examples, the number and the sum of the features of each
class; for the linear head also the matrix of all products of two features. For class means,
features are first scaled to length 1. The server adds the sums up and solves; nothing is trained.
Every number is sent in single precision.

References:
    Nearest class mean: Mensink et al., Distance-based image classification, TPAMI 2013, with the
    Euclidean distance between features of length 1. Linear head: ridge regression on one-vs-all
    targets, of which the sums are sufficient statistics.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import map_rows
from fedjax_ssl.graph import confidence
from fedjax_ssl.prediction import Embedding, Points, Predictions

_BYTES = 4  # bytes of one number that is sent


class Statistics(NamedTuple):
    """Sums over labelled examples, of one client or of all."""

    counts: Float[np.ndarray, " K"]
    sums: Float[np.ndarray, "K d"]
    products: Float[np.ndarray, "d d"]  # products of every two features, summed over examples


def of_client(
    features: Float[np.ndarray, "n d"], labels: Int[np.ndarray, " n"], num_classes: int
) -> Statistics:
    """Return the sums over one client's labelled examples.

    Example:
        >>> import numpy as np
        >>> from fedjax_ssl.contrib.features.statistics import of_client
        >>> of_client(np.array([[1.0], [3.0]]), np.array([1, 1]), 2).sums.tolist()
        [[0.0], [4.0]]
    """
    targets = np.eye(num_classes, dtype=features.dtype)[labels]
    return Statistics(targets.sum(axis=0), targets.T @ features, features.T @ features)


def of_clients(
    points: Points, features: Float[np.ndarray, "n d"], num_classes: int
) -> tuple[Statistics, int]:
    """Add up what the clients send, one after another.

    Args:
        points: points of the graphs; training examples with a label count.
        features: of all points.
        num_classes: K.

    Returns:
        The sums, and the number of clients that have something to send.
    """
    client, observed, new = (np.asarray(column) for column in points[1:])
    labelled = (observed >= 0) & (new < 0)
    senders = np.unique(client[labelled])
    total = None
    for sender in senders:
        own = labelled & (client == sender)
        sent = of_client(features[own], observed[own], num_classes)
        total = sent if total is None else Statistics(*map(np.add, total, sent))
    assert total is not None, "one_shot.check has seen a label"
    return total, len(senders)


def by_means(
    statistics: Statistics, features: Float[np.ndarray, "t d"]
) -> Float[np.ndarray, "t K"]:
    """Score classes by minus half the squared distance to their mean; -inf without a label.

    Args:
        statistics: sums over all clients.
        features: features of the examples to label.
    """
    means = statistics.sums / np.maximum(statistics.counts, 1)[:, None]
    scores = features @ means.T - np.sum(means**2, axis=1) / 2
    return np.where(statistics.counts > 0, scores, -np.inf)


def by_ridge(
    statistics: Statistics, features: Float[np.ndarray, "t d"], ridge: float
) -> Float[np.ndarray, "t K"]:
    """Return scores of classes by ridge regression of one-vs-all targets, 1 for the class and 0
    otherwise.

    Args:
        statistics: sums over all clients.
        features: features of the examples to label; the mean over the training examples should be
            near 0.
        ridge: weight of the squared coefficients, in units of the mean variance of a feature times
            the number of labels.
    """
    width = features.shape[1]
    number = statistics.counts.sum()
    # The constant feature is not shrunk: all features are centred instead.
    mean = statistics.sums.sum(axis=0) / number
    spread = statistics.products - number * np.outer(mean, mean)
    with_target = statistics.sums - np.outer(statistics.counts, mean)
    penalty = max(ridge * np.trace(spread) / width, np.finfo(np.float32).tiny)
    weights = np.linalg.solve(spread + penalty * np.eye(width), with_target.T)
    scores = (features - mean) @ weights + statistics.counts / number
    return np.where(statistics.counts > 0, scores, -np.inf)


def class_means(
    data: FederatedData, points: Points, embed: Embedding, ridge: float
) -> tuple[Predictions, int]:
    """Label the test examples by the nearest mean of a class.

    Args:
        data: the federation.
        points: from `points_of`.
        embed: raw inputs [m, ...] -> features [m, d].
        ridge: not used.

    Returns:
        The predictions, whose confidence is that of graphs, of a softmax of the scores; and the
        bytes that clients sent.
    """
    features = _features(data, points, embed)
    length = np.linalg.norm(features, axis=1, keepdims=True)
    features = features / np.maximum(length, np.finfo(np.float32).tiny)
    sums, senders = of_clients(points, features, data.num_classes)
    scores = by_means(sums, features[np.asarray(points.new) >= 0])
    numbers = sums.sums.size + sums.counts.size
    return _predictions(data, points, scores), _BYTES * senders * numbers


def linear_head(
    data: FederatedData, points: Points, embed: Embedding, ridge: float
) -> tuple[Predictions, int]:
    """Label the test examples by ridge regression; as `class_means`.

    Args:
        data: the federation.
        points: from `points_of`.
        embed: raw inputs [m, ...] -> features [m, d].
        ridge: see `by_ridge`.
    """
    features = _features(data, points, embed)
    sums, senders = of_clients(points, features, data.num_classes)
    scores = by_ridge(sums, features[np.asarray(points.new) >= 0], ridge)
    width = features.shape[1]
    numbers = sums.sums.size + sums.counts.size + width * (width + 1) // 2
    return _predictions(data, points, scores), _BYTES * senders * numbers


def _features(data: FederatedData, points: Points, embed: Embedding) -> Float[np.ndarray, "n d"]:
    return np.asarray(map_rows(embed, data.inputs, points.row), np.float32)


def _predictions(
    data: FederatedData, points: Points, found: Float[np.ndarray, "t K"]
) -> Predictions:
    """Return labels of the test examples by their scores."""
    scores = jnp.asarray(found)
    place = points.new[np.asarray(points.new) >= 0]
    size = data.test_index.shape[0]
    labels = jnp.full(size, -1, jnp.int32)
    labels = labels.at[place].set(jnp.argmax(scores, axis=1).astype(jnp.int32))
    certain = confidence(jax.nn.softmax(scores, axis=1))
    return Predictions(labels, jnp.zeros(size, certain.dtype).at[place].set(certain))
