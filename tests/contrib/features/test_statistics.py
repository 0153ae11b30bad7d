"""One-shot classifiers of class statistics, against their formulas and least squares."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.contrib.features import statistics
from fedjax_ssl.prediction.graphs import Points

GENERATOR = np.random.default_rng(0)
FEATURES = GENERATOR.standard_normal((12, 3)).astype(np.float32)
CLIENT = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 0, 1])
OBSERVED = np.array([0, 1, -1, 1, 1, 0, -1, -1, -1, -1, -1, -1])
NEW = np.array([-1] * 10 + [0, 1])
POINTS = Points(*map(jnp.asarray, (np.arange(12), CLIENT, OBSERVED, NEW)))


def summed():
    return statistics.of_clients(POINTS, FEATURES, num_classes=3)


def test_sums_of_clients_are_those_of_all_labelled_examples():
    known = OBSERVED >= 0
    whole = statistics.of_client(FEATURES[known], OBSERVED[known], 3)
    sums, senders = summed()
    assert senders == 2  # the third client has no label
    for ours, all_at_once in zip(sums, whole, strict=True):
        np.testing.assert_allclose(ours, all_at_once, rtol=1e-5)


def test_the_nearest_class_mean_is_the_nearest():
    known = OBSERVED >= 0
    means = [FEATURES[known & (k == OBSERVED)].mean(0) for k in (0, 1)]
    distances = [((FEATURES - mean) ** 2).sum(1) for mean in means]
    scores = statistics.by_means(summed()[0], FEATURES)
    np.testing.assert_array_equal(scores.argmax(1), np.argmin(distances, axis=0))
    assert (scores[:, 2] == -np.inf).all()  # nobody has a label of it


@pytest.mark.parametrize("ridge", [0.1, 2.0])
def test_the_linear_head_is_ridge_regression(ridge):
    known = OBSERVED >= 0
    x = FEATURES[known].astype(np.float64)
    y = np.eye(3)[OBSERVED[known]]
    centred = x - x.mean(0)
    penalty = ridge * (centred**2).sum() / 3
    # least squares on more rows, which stand for the penalty
    rows = np.vstack([centred, np.sqrt(penalty) * np.eye(3)])
    targets = np.vstack([y - y.mean(0), np.zeros((3, 3))])
    weights = np.linalg.lstsq(rows, targets, rcond=None)[0]
    expected = (FEATURES - x.mean(0)) @ weights + y.mean(0)
    scores = statistics.by_ridge(summed()[0], FEATURES, ridge)
    np.testing.assert_allclose(scores[:, :2], expected[:, :2], rtol=1e-4, atol=1e-5)


def test_bytes_are_those_of_what_is_sent():
    data = SimpleNamespace(inputs=jnp.asarray(FEATURES), num_classes=3, test_index=np.zeros(2))
    sent = [
        predictor(data, POINTS, lambda inputs: inputs, 1.0)[1]
        for predictor in (statistics.class_means, statistics.linear_head)
    ]
    # of two clients: sums and counts of three classes, and half of the products of three features
    assert sent == [2 * 3 * (3 + 1) * 4, 2 * (3 * (3 + 1) + 6) * 4]
