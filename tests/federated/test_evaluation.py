import dataclasses
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import accuracy_score, balanced_accuracy_score, log_loss, recall_score

from fedjax_ssl.federated import Method, Recipe, balanced_accuracy, evaluate, map_rows, score_labels
from fedjax_ssl.federated.recipe import Needs
from tests import toy


def fixed_scores(num_rows: int, seed: int = 0) -> np.ndarray:
    scores = np.random.default_rng(seed).normal(size=(num_rows, toy.NUM_CLASSES))
    return (scores - np.log(np.exp(scores).sum(1, keepdims=True))).astype(np.float32)


def method_with(scores: np.ndarray) -> Method:
    """A method whose prediction for the row that holds number i is `scores[i]`."""
    return Method(
        init=None,
        round=None,
        predict=lambda state, inputs: jnp.asarray(scores)[inputs[:, 0].astype(int)],
        recipe=Recipe(toy.setup(toy.federation()), ()),
    )


def numbered(data):
    rows = jnp.arange(data.inputs.shape[0], dtype=jnp.float32)[:, None]
    return dataclasses.replace(data, inputs=rows)


@pytest.mark.parametrize("batch_size", [7, 60, 512])
def test_scores_are_those_of_scikit_learn(batch_size: int) -> None:
    data = numbered(toy.federation())
    scores = fixed_scores(data.inputs.shape[0])
    found = evaluate(method_with(scores), None, data, batch_size)
    rows = np.asarray(data.test_index)
    truth = np.asarray(data.labels)[rows]
    chosen = scores[rows].argmax(1)
    assert found.keys() == {"test_accuracy", "test_balanced_accuracy", "test_loss"}
    assert float(found["test_accuracy"]) == pytest.approx(accuracy_score(truth, chosen))
    assert float(found["test_balanced_accuracy"]) == pytest.approx(
        balanced_accuracy_score(truth, chosen)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows sum to 1 up to float32
        assert float(found["test_loss"]) == pytest.approx(
            log_loss(truth, np.exp(scores[rows])), rel=1e-5
        )


def test_coarse_accuracy_is_the_mean_over_known_label_spaces() -> None:
    data = numbered(toy.weak_federation("coarse"))
    scores = fixed_scores(data.inputs.shape[0])
    overlapping = np.array([[0.9, 0.2, 0.3], [0.1, 0.8, 0.7]])[:, : toy.NUM_CLASSES]
    matrix = np.array(data.weak.matrix)
    coarse = np.flatnonzero(matrix.any(axis=(1, 2)))
    # one drawn, one unknown, the others as they were
    matrix[coarse[0]], matrix[coarse[1]] = overlapping, 0.0
    weak = dataclasses.replace(data.weak, matrix=jnp.asarray(matrix))
    data = dataclasses.replace(data, weak=weak, coarse_names=("left", "right"))
    method = method_with(scores)
    assert "test_coarse_accuracy" not in evaluate(method, None, data), (
        "it does not learn from coarse labels"
    )
    needs = Needs(("coarse", "server"))
    method = method._replace(recipe=method.recipe._replace(needs=needs))
    found = evaluate(method, None, data)
    rows = np.asarray(data.test_index)
    probabilities = np.exp(scores[rows].astype(np.float64))
    truth = np.asarray(data.labels)[rows]
    expected = [
        matrix[client][(probabilities @ matrix[client].T).argmax(axis=1), truth].mean()
        for client in np.delete(coarse, 1)
    ]
    assert float(found["test_coarse_accuracy"]) == pytest.approx(np.mean(expected), rel=1e-6)


def test_padding_and_unlabelled_rows_do_not_count() -> None:
    data = numbered(toy.federation())
    scores = fixed_scores(data.inputs.shape[0])
    expected = evaluate(method_with(scores), None, data)
    more = dataclasses.replace(
        data,
        test_index=jnp.concatenate(
            [data.test_index, jnp.asarray([0, 1], jnp.int32), jnp.zeros(5, jnp.int32)]
        ),
        num_test=data.num_test + 2,
        labels=data.labels.at[:2].set(-1),
    )
    found = evaluate(method_with(scores), None, more)
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(float(value)), name


def test_validation_examples_are_scored_beside() -> None:
    data = numbered(toy.federation())
    scores = fixed_scores(data.inputs.shape[0])
    both = dataclasses.replace(data, valid_index=data.test_index, num_valid=data.num_test)
    found = evaluate(method_with(scores), None, both)
    for name in ("accuracy", "balanced_accuracy", "loss"):
        assert float(found[f"validation_{name}"]) == float(found[f"test_{name}"])


@pytest.mark.parametrize("width", [0, 3])
def test_without_a_test_example_the_scores_are_nan(width: int) -> None:
    data = numbered(toy.federation())
    empty = dataclasses.replace(
        data, test_index=jnp.zeros(width, jnp.int32), num_test=jnp.zeros((), jnp.int32)
    )
    found = evaluate(method_with(fixed_scores(data.inputs.shape[0])), None, empty)
    assert all(np.isnan(value) for value in found.values())


def test_balanced_accuracy_ignores_classes_that_do_not_occur() -> None:
    labels = np.array([0, 0, 0, 2, 2, 1])
    chosen = np.array([0, 0, 3, 2, 3, 1])
    real = np.array([True, True, True, True, True, False])
    log_probs = jnp.log(jnp.eye(5)[chosen])
    found = balanced_accuracy(log_probs, jnp.asarray(labels), jnp.asarray(real))
    assert float(found) == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert float(found) == pytest.approx(
        np.mean([np.mean(chosen[:5][labels[:5] == k] == k) for k in (0, 2)])
    )


@pytest.mark.parametrize("batch_size", [1, 4, 6, 100])
def test_map_rows_keeps_the_shape_of_the_rows(batch_size: int) -> None:
    inputs = jnp.arange(20, dtype=jnp.float32).reshape(10, 2)
    rows = jnp.asarray([[3, 1, 9], [0, 0, 7]], jnp.int32)
    found = map_rows(lambda x: {"twice": 2 * x, "sum": x.sum(1)}, inputs, rows, batch_size)
    np.testing.assert_array_equal(found["twice"], 2 * np.asarray(inputs)[np.asarray(rows)])
    np.testing.assert_array_equal(found["sum"], np.asarray(inputs)[np.asarray(rows)].sum(-1))


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_map_rows_never_asks_for_more_than_a_batch(batch_size: int) -> None:
    sizes = []

    def function(batch):
        sizes.append(batch.shape[0])
        return batch

    map_rows(function, jnp.zeros((10, 2)), jnp.zeros((3, 3), jnp.int32), batch_size)
    assert set(sizes) == {min(batch_size, 9)}


def test_labels_are_scored_pooled_and_by_client() -> None:
    generator = np.random.default_rng(1)
    truth = generator.integers(-1, 4, 200)
    predicted = np.where(generator.random(200) < 0.7, truth, generator.integers(-1, 4, 200))
    client = generator.integers(-1, 5, 200) % 5  # clients 0..4
    client[:20], truth[:20] = -1, 0  # nobody's do not count
    found = score_labels(
        *(jnp.asarray(values) for values in (predicted, truth, client)),
        num_clients=6,
        num_classes=4,
    )
    real = (client >= 0) & (truth >= 0)
    assert float(found["accuracy"]) == pytest.approx(accuracy_score(truth[real], predicted[real]))
    assert float(found["coverage"]) == pytest.approx(np.mean(predicted[client >= 0] >= 0))
    assert int(found["examples"]) == np.sum(client >= 0)
    expected = recall_score(
        truth[real], predicted[real], labels=np.arange(4), average="macro", zero_division=0
    )
    assert float(found["balanced_accuracy"]) == pytest.approx(expected)
    for number in range(5):
        own = real & (client == number)
        assert float(found["client_examples"][number]) == own.sum()
        assert float(found["client_accuracy"][number]) == pytest.approx(
            np.mean(predicted[own] == truth[own])
        )
        recalls = [np.mean(predicted[own & (truth == k)] == k) for k in np.unique(truth[own])]
        assert float(found["client_balanced_accuracy"][number]) == pytest.approx(np.mean(recalls))
    assert np.isnan(found["client_accuracy"][5]) and np.isnan(found["client_balanced_accuracy"][5])
