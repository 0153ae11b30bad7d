"""Losses of labelled examples against optax, a plain loop, and FLamby's numbers."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ssl.config import load, resolve
from fedjax_ssl.federated import Execution
from fedjax_ssl.objectives import cross_entropy, supervised_loss
from fedjax_ssl.runs import federate, load_experiment
from fedjax_ssl.runs.advice import note_loss
from fedjax_ssl.runs.build import build, build_method
from tests.objectives.test_cross_entropy import LOGITS, TARGETS

COUNTS = np.array([7, 0, 2, 11])
LABELLED = TARGETS >= 0


def losses(name: str = "cross_entropy", **options) -> np.ndarray:
    return np.asarray(
        supervised_loss(name, jnp.asarray(COUNTS), **options)(
            jnp.asarray(LOGITS), jnp.asarray(TARGETS)
        )
    )


def test_without_settings_it_is_cross_entropy_itself() -> None:
    assert supervised_loss() is cross_entropy and supervised_loss(gamma=3.0) is cross_entropy


def test_label_smoothing_is_that_of_optax(float64) -> None:
    soft = optax.smooth_labels(jax.nn.one_hot(TARGETS, 4), 0.1)
    expected = np.where(LABELLED, optax.softmax_cross_entropy(jnp.asarray(LOGITS), soft), 0.0)
    np.testing.assert_allclose(losses(label_smoothing=0.1), expected, rtol=1e-6)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_focal_loss_of_two_classes_is_that_of_optax(float64, gamma: float) -> None:
    logits = jnp.asarray(LOGITS[:, :2])
    targets = np.arange(9) % 2
    found = supervised_loss("focal", gamma=gamma)(logits, jnp.asarray(targets))
    expected = optax.losses.sigmoid_focal_loss(
        logits[:, 1] - logits[:, 0], jnp.asarray(targets, float), gamma=gamma
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    slope = jax.grad(lambda z: supervised_loss("focal", gamma=gamma)(z, jnp.asarray([0, -1])).sum())
    assert np.isfinite(slope(jnp.asarray([[90.0, -90.0], [0.0, 1.0]]))).all()


def test_weighted_focal_loss_of_flamby(float64) -> None:
    """Fed-ISIC2019: weights are pooled training examples over those of the class, the mean is
    over the batch.
    """
    weights = 5.5813, 2.0472, 7.0204, 26.1194, 9.5369, 101.0707, 92.5224, 38.3443
    logits = jnp.asarray(
        [[2, 1, 0, -1, 0.5, 0, -0.5, 0.2], [0, 3, 0.5, 0.1, -0.2, 0.3, 0.1, 0], [0.1] * 8]
    )
    loss = supervised_loss("focal", class_weights=weights)
    expected = [1.2376472896, 0.0561261257, 160.9118749860]
    np.testing.assert_allclose(loss(logits, jnp.asarray([0, 1, 5])), expected, rtol=1e-9)


def test_weights_and_priors_are_of_the_labels_that_are_seen(float64) -> None:
    seen = np.maximum(COUNTS, 1)  # a prior of 0 would be infinity for a class without labels
    weights = COUNTS.sum() / (3 * seen)
    assert (COUNTS * weights).sum() / COUNTS.sum() == pytest.approx(1)
    plain = np.asarray(cross_entropy(jnp.asarray(LOGITS), jnp.asarray(TARGETS)))
    np.testing.assert_allclose(
        losses(class_weights=("inverse",)), plain * weights[TARGETS], rtol=1e-12
    )
    nobody = supervised_loss(counts=jnp.zeros(3, jnp.int32), class_weights=("inverse",))
    assert np.isfinite(nobody(jnp.asarray(LOGITS), jnp.asarray(TARGETS))).all()
    shifted = jnp.asarray(LOGITS + 1.5 * np.log(seen / seen.sum()))
    expected = cross_entropy(shifted, jnp.asarray(TARGETS))
    np.testing.assert_allclose(losses(logit_adjustment=1.5), expected, rtol=1e-12)


def experiment_with(method: str, **section):
    fields = {f"loss.{name}": value for name, value in section.items()}
    return load_experiment(resolve(load(f"digits:{method}", {"rounds": 2, **fields})))


def test_a_run_counts_the_labels_of_clients_and_server() -> None:
    experiment = experiment_with("fedavg", class_weights=("inverse",))
    data = federate(experiment, jax.random.key(0))
    observed = np.asarray(data.observed_by_clients)
    counts = np.bincount(observed[observed >= 0], minlength=10)
    expected = supervised_loss(counts=jnp.asarray(counts), class_weights=("inverse",))

    def after_a_round(**changes):
        method = build_method(experiment, data, Execution(), **changes)
        key = jax.random.key(1)
        return jax.jit(method.round)(key, method.init(key, data), data)[0].params

    found = after_a_round()
    jax.tree.map(np.testing.assert_array_equal, found, after_a_round(loss=expected))
    apart = jax.tree.map(
        lambda a, b: float(jnp.abs(a - b).max()), found, after_a_round(loss=cross_entropy)
    )
    assert max(jax.tree.leaves(apart)) > 1e-6


@pytest.mark.parametrize(("method", "uses"), [("xclp", True), ("protofssl", False)])
def test_a_method_that_takes_no_such_loss_says_so(method: str, uses: bool) -> None:
    experiment = experiment_with(method, name="focal")
    with pytest.warns() if not uses else contextlib.nullcontext() as caught:
        note_loss(build(experiment, federate(experiment, jax.random.key(0))))
    assert uses or any("config.loss has no" in str(one.message) for one in caught)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((1.0, 2.0), "config.loss: class_weights has 2 numbers; the data have 10 classes"),
        (("rare",), r"config.loss.class_weights\[0\] is 'rare'; it must be a number"),
    ],
)
def test_bad_weights_are_a_line(weights, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        experiment = experiment_with("fedavg", class_weights=weights)
        build(experiment, federate(experiment, jax.random.key(0)))
