"""Whose pseudo-labels, and which rows: numbers of the specification's checks, and one step by
hand.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated, methods
from fedjax_ssl.methods.parts.guess import Guessing, Local, guesses_of
from fedjax_ssl.objectives import batch_mean, cross_entropy
from fedjax_ssl.testing import check_method, promises
from tests import toy

KEY = jax.random.key(3)
METHODS = ("fixmatch", "uda", "pseudo_label", "mixmatch", "mean_teacher", "pi_model", "vat")

# Predictions by two models, and scores of strong views.
OURS = [
    [0.97, 0.02, 0.01],
    [0.96, 0.03, 0.01],
    [0.5, 0.3, 0.2],
    [0.6, 0.3, 0.1],
    [0.955, 0.035, 0.01],
]
THEIRS = [
    [0.99, 0.005, 0.005],
    [0.2, 0.7, 0.1],
    [0.01, 0.98, 0.01],
    [0.3, 0.6, 0.1],
    [0.02, 0.97, 0.01],
]
STRONG = [[2.0, 0.0, -1.0], [1.0, 0.5, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.2, 0.4, -0.3]]


def step_of(guesses: Any) -> Any:
    """A step on the five samples, of a client that has begun."""
    nothing = dict.fromkeys(federated.Step._fields, ())
    client = toy.context(1).clients
    rows = federated.contract.Stream(jnp.arange(5), jnp.ones(5, bool), jnp.zeros(5, int), ())
    local = Local(jnp.zeros(5, int))
    return federated.Step(
        **{**nothing, "streams": {"unlabelled": rows}, "client": client, "local": local}
    )


def guess(labels_from: str, threshold: float) -> Any:
    """Of the five samples of the specification."""
    logits = jnp.log(jnp.asarray(OURS))
    guesses = guesses_of(toy.setup(toy.federation()), Guessing(labels_from), threshold)
    theirs = logits if labels_from == "local" else jnp.log(jnp.asarray(THEIRS))
    return guesses.judged(step_of(guesses), theirs, logits)


@pytest.mark.parametrize(
    ("labels_from", "labels", "expected"),
    [
        ("global", [0, -1, 1, -1, 1], 0.3121673875),
        ("local", [0, 0, -1, -1, 0], 0.3779323788),
        ("either", [0, 1, 1, -1, 1], 0.5482213181),
    ],
)
def test_labels_masks_and_loss(
    float64, labels_from: str, labels: list[int], expected: float
) -> None:
    """Part B's check; its last number has 1e-10 added to probabilities, as in ProxyFL's code."""
    found = guess(labels_from, 0.95)
    np.testing.assert_array_equal(np.where(found.counted, found.labels, -1), labels)
    losses = cross_entropy(jnp.asarray(STRONG), found.labels)
    value = batch_mean(losses, jnp.ones(5, bool), found.counted)
    assert float(value) == pytest.approx(expected, abs=4e-9)


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def test_two_steps_with_the_labels_of_the_received_model() -> None:
    """By hand: the labels stay those of the first step. With local ones the second step differs."""
    with jax.enable_x64(True):
        data = toy.federation(sizes=(8,), labelled=(4,))
        run = toy.setup(data, model=toy.linear_model(), learning_rate=2.0, local_epochs=2)
        run = run._replace(
            batch_size=4, augment=toy.same, strong_augment=lambda key, x: 0.5 * x, max_labelled=4
        )

        def trained(labels_from: str) -> Any:
            method = methods.build(
                "fixmatch", run, threshold=0.6, unlabelled_ratio=1, labels_from=labels_from
            )
            start = method.init(KEY, data)
            return start, jax.jit(method.round)(KEY, start, data)[0].params["model"]

        start, found = jax.device_get(trained("global"))
        _, local = jax.device_get(trained("local"))
    w = np.array(start.params["model"]["w"])
    b = np.array(start.params["model"]["b"])
    inputs = np.asarray(data.inputs)
    known = inputs[:4]
    weak = inputs[4:8]
    received = softmax(weak @ w + b)
    counted = (received.max(1) >= 0.6)[:, None]
    targets = np.eye(toy.NUM_CLASSES)[received.argmax(1)]
    for _ in range(2):
        slope = (softmax(known @ w + b) - np.eye(toy.NUM_CLASSES)[data.labels[:4]]) / 4
        other = counted * (softmax(0.5 * weak @ w + b) - targets) / 4
        w, b = (
            w - 2.0 * (known.T @ slope + 0.5 * weak.T @ other),
            b - 2.0 * (slope.sum(0) + other.sum(0)),
        )
    np.testing.assert_allclose(found["w"], w, rtol=1e-9)
    np.testing.assert_allclose(found["b"], b, rtol=1e-9)
    assert np.abs(local["w"] - w).max() > 1e-3


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_labels_of_the_received_model_and_thresholds(name: str) -> None:
    data = toy.federation()
    run = toy.setup(data, rounds=4)
    rule = {} if name == "mean_teacher" else {"threshold_rule": "freematch"}
    method = methods.build(name, run, labels_from="either", **rule)
    jax.eval_shape(method.round, KEY, jax.eval_shape(method.init, KEY, data), data)


def test_who_receives_nothing_has_local_labels() -> None:
    alone = toy.setup(toy.federation(), federated_optimizer=federated.local())
    with pytest.raises(ValueError, match=r"labels_from is 'either', but clients that train alone"):
        methods.build("fixmatch", alone, labels_from="either")
    with pytest.raises(ValueError, match=r"labels_from is 'globl'.* Did you mean 'global'"):
        methods.build("fixmatch", alone, labels_from="globl")


def trained(data: Any, rounds: int, **settings: Any) -> Any:
    """The state of FixMatch after some rounds, and the metrics of the last one."""
    run = toy.setup(data, model=toy.linear_model(), local_epochs=2, strong_augment=toy.jitter)
    method = methods.build("fixmatch", run, unlabelled_ratio=1, **settings)
    state = jax.jit(method.init)(KEY, data)
    one_round = jax.jit(method.round)
    for _ in range(rounds):
        state, info = one_round(KEY, state, data)
    assert one_round._cache_size() == 1, "a round leaves the types that it began with"
    return state, info


def model_bytes(data: Any) -> tuple[int, int]:
    """What a round moves without thresholds: down, up; a client."""
    _, info = trained(data, 1)
    return int(info["bytes_down"]), int(info["bytes_up"])


def test_freematchs_averages_are_sent_and_counted() -> None:
    """With K = 3: 2 K + 1 averages both ways."""
    data = toy.federation()
    plain = model_bytes(data)
    _, info = trained(data, 1, threshold_rule="freematch", threshold=0.4)
    clients = int(info["clients"])
    assert int(info["bytes_down"]) - plain[0] == 4 * clients * 7
    assert int(info["bytes_up"]) - plain[1] == 4 * clients * 7


@pytest.mark.thorough
def test_freematch_keeps_the_promises() -> None:
    check_method(
        "fixmatch",
        promises.Special(learns_without_labels=True),
        threshold_rule="freematch",
        threshold=0.4,
        labels_from="either",
        unlabelled_ratio=2,
    )


def test_settings_that_cannot_be() -> None:
    run = toy.setup(toy.federation())
    with pytest.raises(ValueError, match=r"threshold_rule is 'freemtch'.* 'freematch'"):
        methods.build("fixmatch", run, threshold_rule="freemtch")
    with pytest.raises(ValueError, match=r"'mean_teacher' has no option 'threshold_rule'"):
        methods.build("mean_teacher", run, threshold_rule="freematch")
