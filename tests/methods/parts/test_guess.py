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


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_labels_of_the_received_model_and_thresholds(name: str) -> None:
    data = toy.federation()
    run = toy.setup(data, rounds=4)
    rule = {} if name == "mean_teacher" else {"threshold_rule": "freematch"}
    method = methods.build(name, run, labels_from="either", **rule)
    jax.eval_shape(method.round, KEY, jax.eval_shape(method.init, KEY, data), data)


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


def test_freematchs_averages_are_sent_and_counted() -> None:
    """With K = 3: 2 K + 1 averages both ways."""
    data = toy.federation()
    run = toy.setup(data, model=toy.linear_model())
    one, other = (
        toy.train(methods.build("fixmatch", run, threshold=0.4, threshold_rule=rule), KEY, data, 1)
        for rule in ("fixed", "freematch")
    )
    ((_, (plain,)), (_, (info,))) = one, other
    for way in ("bytes_down", "bytes_up"):
        assert info[way] - plain[way] == 4 * info["clients"] * 7


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("fixmatch", {"labels_from": "either"}, "labels_from is 'either', but clients that train"),
        ("fixmatch", {"labels_from": "globl"}, r"labels_from is 'globl'.* Did you mean 'global'"),
        ("fixmatch", {"threshold_rule": "freemtch"}, "threshold_rule is 'freemtch'.* 'freematch'"),
        ("mean_teacher", {"threshold_rule": "freematch"}, "has no option 'threshold_rule'"),
    ],
)
def test_refusals(name: str, settings: dict, message: str) -> None:
    alone = toy.setup(toy.federation(), federated_optimizer=federated.local())
    with pytest.raises(ValueError, match=message):
        methods.build(name, alone, **settings)
