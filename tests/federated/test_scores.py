"""Scores beside accuracy, against scikit-learn and plain loops."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import f1_score, roc_auc_score

from fedjax_ssl.federated import evaluate
from fedjax_ssl.federated import evaluation as scores
from fedjax_ssl.federated.evaluation import BY_CLIENT
from tests import toy
from tests.federated.test_evaluation import fixed_scores, method_with, numbered


def example(
    num_rows: int = 300, num_classes: int = 4, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log-probabilities with ties, labels of which the last class has none, and which rows
    count.
    """
    generator = np.random.default_rng(seed)
    logits = np.round(generator.normal(size=(num_rows, num_classes)), 1)  # ties within a column
    log_probs = (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(np.float32)
    return (
        log_probs,
        generator.integers(0, num_classes - 1, num_rows),
        generator.random(num_rows) < 0.8,
    )


def test_macro_f1_is_that_of_scikit_learn() -> None:
    log_probs, labels, real = example()
    predicted = log_probs.argmax(1)
    found = scores.macro_f1(*map(jnp.asarray, (log_probs, labels, real)))
    assert float(found) == pytest.approx(
        f1_score(labels[real], predicted[real], average="macro"), rel=1e-6
    )


def test_auroc_is_that_of_scikit_learn() -> None:
    log_probs, labels, real = example()
    found = jax.jit(scores.auroc)(*map(jnp.asarray, (log_probs, labels, real)))
    # class 3 has no label
    expected = np.mean([roc_auc_score(labels[real] == k, log_probs[real, k]) for k in range(3)])
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_auroc_of_two_classes_is_the_usual_one() -> None:
    log_probs, labels, real = example(num_classes=2, seed=1)
    labels = np.random.default_rng(1).integers(0, 2, labels.size)
    found = scores.auroc(*map(jnp.asarray, (log_probs, labels, real)))
    assert float(found) == pytest.approx(roc_auc_score(labels[real], log_probs[real, 1]), rel=1e-5)


def test_calibration_error_is_that_of_a_plain_loop() -> None:
    log_probs, labels, real = example()
    confidence = np.exp(log_probs.max(1))
    correct = log_probs.argmax(1) == labels
    expected = 0.0
    edges = np.linspace(0, 1, scores.ECE_BINS + 1)
    for low, high in itertools.pairwise(edges):
        inside = real & (confidence > low) & (confidence <= high)
        if inside.any():
            expected += (
                inside.sum() / real.sum() * abs(correct[inside].mean() - confidence[inside].mean())
            )
    found = scores.calibration_error(*map(jnp.asarray, (log_probs, labels, real)))
    assert float(found) == pytest.approx(expected, rel=1e-4)


def test_a_sure_and_right_model_is_calibrated() -> None:
    log_probs = jnp.log(jnp.eye(3, dtype=jnp.float32))
    everything = jnp.arange(3), jnp.ones(3, bool)
    assert float(scores.calibration_error(log_probs, *everything)) == 0.0
    assert float(scores.auroc(log_probs, *everything)) == 1.0


def test_over_clients() -> None:
    accuracies = np.array([np.nan, *np.linspace(0.5, 0.9, 21)], np.float32)
    found = scores.over_clients(jnp.asarray(accuracies))
    # 3 of 21
    assert float(found["worst_tenth"]) == pytest.approx(np.mean(np.sort(accuracies[1:])[:3]))
    assert float(found["spread"]) == pytest.approx(np.std(accuracies[1:]))


def with_owners(data):
    """Test examples belong in turn to three of the six clients, two new ones and nobody."""
    owner = np.array([0, 1, 2, 6, 7, -1])[np.arange(data.test_index.shape[0]) % 6]
    return dataclasses.replace(
        data, test_client=jnp.asarray(owner, jnp.int32), num_new_clients=2, owned_test=True
    )


def test_evaluation_has_what_is_asked_for_and_padding_does_not_count() -> None:
    data = numbered(with_owners(toy.federation()))
    rows = np.asarray(data.test_index)
    owner = np.asarray(data.test_client)
    padded = dataclasses.replace(
        data,
        test_index=jnp.concatenate([data.test_index, jnp.zeros(5, jnp.int32)]),
        test_client=jnp.concatenate([data.test_client, jnp.zeros(5, jnp.int32)]),
    )
    every = fixed_scores(data.inputs.shape[0])
    found = jax.jit(lambda d: evaluate(method_with(every), None, d, metrics=scores.SCORES))(padded)
    names = {"test_macro_f1", "test_ece", "test_auroc", "test_client_accuracy", BY_CLIENT}
    names |= {"test_client_accuracy_worst_tenth", "test_client_accuracy_spread"}
    assert found.keys() == names | {"test_accuracy", "test_balanced_accuracy", "test_loss"}
    truth = np.asarray(data.labels)[rows]
    chosen = every[rows].argmax(1)
    expected = [
        (chosen == truth)[owner == client].mean() if (owner == client).any() else np.nan
        for client in range(8)
    ]
    np.testing.assert_allclose(found[BY_CLIENT], expected, rtol=1e-6)
    assert float(found["test_client_accuracy"]) == pytest.approx(np.nanmean(expected))
    assert float(found["test_macro_f1"]) == pytest.approx(
        f1_score(truth, chosen, average="macro"), rel=1e-6
    )
    area = np.mean([roc_auc_score(truth == k, every[rows, k]) for k in range(toy.NUM_CLASSES)])
    assert float(found["test_auroc"]) == pytest.approx(area, rel=1e-5)


@pytest.mark.thorough
def test_metrics_can_be_vectorized_over_runs() -> None:
    data = numbered(with_owners(toy.federation()))
    several = jnp.asarray(np.stack([fixed_scores(data.inputs.shape[0], seed) for seed in range(3)]))

    def of(run_scores):
        return evaluate(
            method_with(None)._replace(predict=lambda state, x: run_scores[x[:, 0].astype(int)]),
            None,
            data,
            metrics=scores.SCORES,
        )

    together = jax.jit(jax.vmap(of))(several)
    for run in range(3):
        for name, value in of(several[run]).items():
            np.testing.assert_allclose(together[name][run], value, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("width", [pytest.param(0, marks=pytest.mark.thorough), 3])
def test_without_a_test_example_all_is_nan(width: int) -> None:
    data = numbered(toy.federation())
    empty = dataclasses.replace(
        data,
        test_index=jnp.zeros(width, jnp.int32),
        test_client=jnp.full(width, -1, jnp.int32),
        num_test=jnp.zeros((), jnp.int32),
        owned_test=True,
    )
    method = method_with(fixed_scores(data.inputs.shape[0]))
    found = jax.jit(lambda d: evaluate(method, None, d, metrics=scores.SCORES))(empty)
    assert all(np.isnan(value).all() for value in found.values())


def test_a_broken_model_has_no_area() -> None:
    log_probs, labels, real = example(20)
    log_probs[real.argmax(), 0] = np.nan
    assert np.isnan(scores.auroc(*map(jnp.asarray, (log_probs, labels, real))))
