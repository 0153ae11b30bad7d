"""Rounds of ProtoFSSL: two of episodes on labels, then one with pseudo-labels by the prototypes of
the clients of the round before (arXiv 2205.13921, algorithm 1, in the form of its code).
"""

import jax
import numpy as np
import pytest

from tests import toy
from tests.methods.whole_step import harness
from tests.methods.whole_step.harness import forward, softmax

CLASSES = toy.NUM_CLASSES
# Three labels of every class, two of every class, and one of two classes.
SIZES = (13, 11, 6)
LABELLED = (9, 6, 2)
TEMPERATURE = 0.4
WEIGHT = 0.7
Prototypes = dict[int, np.ndarray]  # by class


def probabilities(z: np.ndarray, prototypes: Prototypes) -> np.ndarray:
    """Softmax of minus the mean squared difference; 0 for a class without a prototype."""
    minus = np.full((len(z), CLASSES), -np.inf)
    for k, center in prototypes.items():
        minus[:, k] = -np.mean((z - center) ** 2, axis=1)
    return softmax(minus)


def class_means(z: np.ndarray, labels: np.ndarray) -> Prototypes:
    return {int(k): z[labels == k].mean(axis=0) for k in np.unique(labels)}


def filled(sets: list[Prototypes]) -> list[Prototypes]:
    """A class that a set lacks is the mean of the others' prototypes."""
    means = {k: np.mean([own[k] for own in sets if k in own], axis=0) for k in range(CLASSES)}
    return [{**means, **own} for own in sets]


def mean_of_sets(z: np.ndarray, sets: list[Prototypes]) -> np.ndarray:
    return np.mean([probabilities(z, own) for own in sets], axis=0)


def episode(client: harness.Examples) -> tuple[list[int], list[int]]:
    """Places of one support and up to two queries of every class; a single example is support."""
    support: list[int] = []
    query: list[int] = []
    for k in range(CLASSES):
        places = np.flatnonzero(client.observed == k)[::-1].tolist()
        support += places[:1]
        query += places[1:3]
    return support, query


def sharpened(z: np.ndarray, helpers: list[Prototypes]) -> np.ndarray:
    powers = mean_of_sets(z, helpers) ** (1 / TEMPERATURE)
    return powers / powers.sum(axis=1, keepdims=True)


def loss_of(
    client: harness.Examples, helpers: list[Prototypes], means: Prototypes, received, flows: bool
) -> harness.Loss:
    """L_s + lambda L_u; the gradient flows through pseudo-labels, or unless a class is absent. With
    `means`, those of the helpers, all labelled examples of the episode are compared with them.
    """
    first, second = episode(client)
    support = client.at(first)
    query = client.at(first + second if means else second)
    others = client.others
    others = others.at(harness.cycled(len(others.observed), 4))
    held = len(support.observed) < CLASSES and not means and not flows

    def loss(p) -> float:
        local = means or class_means(forward(p, support.view).features, support.observed)
        value = 0.0
        if len(query.observed):
            q = probabilities(forward(p, query.view).features, local)
            value -= np.mean(np.log(q[np.arange(len(q)), query.observed]))
        if helpers:
            z = forward(p, others.view).features
            fixed = forward(received, others.view).features
            targets = sharpened(fixed if held else z, helpers)
            clipped = np.clip(probabilities(z, local), 1e-7, 1 - 1e-7)
            value -= WEIGHT * np.mean(np.sum(targets * np.log(clipped), axis=1))
        return float(value)

    return loss


@pytest.mark.parametrize(
    ("source", "absent"),
    [
        ("local_support", "stop"),
        pytest.param("local_support", "flow", marks=pytest.mark.thorough),
        pytest.param("global", "stop", marks=pytest.mark.thorough),
    ],
)
def test_protofssl(source: str, absent: str) -> None:
    """Episodes, both losses, what is uploaded, who helps with it in the next round, and what
    predicts: the sets of two rounds.
    """
    data = harness.federation(LABELLED, sizes=SIZES, num_test=3)
    settings = {
        "num_unlabelled": 4,
        "unlabelled_weight": WEIGHT,
        "temperature": TEMPERATURE,
        "unlabel_round": 1,
        "proto_source": source,
        "absent_classes": absent,
    }
    run = harness.rounds_of("protofssl", data, 3, **settings)
    params = harness.first_weights()
    shared: list[list[Prototypes]] = []
    for number in range(3):
        helpers = filled(shared[-1]) if number > 1 else []
        means: Prototypes = {}
        if source == "global" and shared:
            sent = filled(shared[-1])
            means = {k: np.mean([own[k] for own in sent], axis=0) for k in range(CLASSES)}
        clients = harness.clients_of(data)
        flows = absent == "flow"
        losses = [loss_of(client, helpers, means, params, flows) for client in clients]
        sets = []
        for client, loss in zip(clients, losses, strict=True):
            known = client.labelled
            trained = harness.descended(loss, params)
            sets.append(class_means(forward(trained, known.plain).features, known.observed))
        shared.append(sets)
        params = harness.assert_step(run, losses, params, round=number + 1, sizes=SIZES, atol=4e-8)
    raw = np.asarray(data.inputs)[np.asarray(data.test_index)]
    z = forward(params, harness.normalized(raw)).features
    expected = mean_of_sets(z, filled([*shared[1], *shared[2]]))
    found = np.exp(jax.jit(run.method.predict)(run.states[-1], raw))
    np.testing.assert_allclose(found, expected, atol=1e-8)
