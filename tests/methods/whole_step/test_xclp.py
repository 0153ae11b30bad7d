"""A step of FedAvg+XCLP and of the paper's baselines: pseudo-labels of a graph or of the network,
and FedSiam (arXiv 2210.06434, Algorithms 1 and 2, section 5).
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import graph
from tests import toy
from tests.methods.whole_step import harness
from tests.methods.whole_step.harness import BATCH, LABELLED, SIZES, cross_entropy, softmax

CLASSES = toy.NUM_CLASSES
BITS = 96
DIRECTIONS = np.random.default_rng(3).normal(size=(harness.WIDTH, BITS))
# (labels, weights) of one client's examples
Targets = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def data():
    with jax.enable_x64(True):
        return toy.federation(sizes=SIZES, labelled=LABELLED, num_test=1, noise=1.0)


def confidence(scores: np.ndarray) -> np.ndarray:
    """1 - H(q) / log C; 0 for a row without any score."""
    totals = scores.sum(axis=1, keepdims=True)
    q = scores / np.where(totals > 0, totals, 1)
    entropy = -np.sum(q * np.log(np.where(q > 0, q, 1)), axis=1)
    return np.where(totals[:, 0] > 0, 1 - entropy / np.log(CLASSES), 0)


def propagated(
    similarity: np.ndarray, observed: np.ndarray, k: int, alpha: float, power: float, code: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Algorithm 1 from similarities on: labels, confidences, and classes' inverse frequencies.

    With `code`, labels are divided by their class's number of labels and confidences by the largest
    of all.
    """
    size = len(observed)
    kept = np.zeros((size, size))
    for row in range(size):
        others = np.where(np.arange(size) == row, -np.inf, similarity[row])
        nearest = np.argsort(-others, kind="stable")[:k]
        kept[row, nearest] = np.maximum(similarity[row, nearest], 0) ** power
    edges = kept + kept.T
    degrees = edges.sum(axis=1)
    scale = 1 / np.sqrt(np.where(degrees > 0, degrees, 1))
    influence = np.linalg.inv(np.eye(size) - alpha * scale[:, None] * edges * scale)
    known = (observed[:, None] == np.arange(CLASSES)).astype(float)
    if code:
        known = known / np.maximum(known.sum(axis=0), 1)
    scores = influence @ known
    sure = confidence(scores)
    sure = sure / sure.max() if code else sure
    reached = scores.sum(axis=1) > 1e-12
    labels = np.where(reached, scores.argmax(axis=1), -1)
    labels = np.where(observed >= 0, observed, labels)
    counts = np.array([np.sum(labels == k) for k in range(CLASSES)])
    balance = np.where(counts > 0, counts.sum() / CLASSES / np.maximum(counts, 1), 1)
    return labels, np.where(observed >= 0, 1.0, np.where(reached, sure, 0)), balance


def batch_of(client: harness.Examples) -> np.ndarray:
    """Places of stage 2's one batch: labelled examples, each as often, and all others once."""
    labelled = len(client.labelled.observed)
    others = np.arange(labelled, len(client.observed))
    return np.concatenate([np.tile(np.arange(labelled), BATCH // max(labelled, 1)), others])


def weighted_step(params, client: harness.Examples, targets: Targets):
    """Algorithm 2: 1/|B| sum_i w_i CE(f(x_i), y_i) and one gradient step."""
    places = batch_of(client) if len(client.labelled.observed) else np.arange(len(client.observed))
    labels, weights = (table[places] for table in targets)
    view = client.view[places]

    def loss(p) -> float:
        rows = cross_entropy(harness.forward(p, view).logits, labels)
        return float(np.sum(weights * rows) / len(places))

    return loss(params), harness.descended(loss, params)


def whole_round(params, clients, targets: list[Targets], loss: float):
    """The next global network, after the mean loss of the clients was compared."""
    steps = [
        weighted_step(params, client, own) for client, own in zip(clients, targets, strict=True)
    ]
    assert np.mean([value for value, _ in steps]) == pytest.approx(loss, rel=1e-9)
    return harness.mean_of([w for _, w in steps], [len(client.observed) for client in clients])


def apart(clients, *tables: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    """Tables over all examples, cut by client."""
    ends = np.cumsum([len(client.observed) for client in clients])[:-1]
    return list(zip(*(np.split(table, ends) for table in tables), strict=True))


def test_xclp_over_one_graph(monkeypatch, data) -> None:
    """The code's variant: cosines cubed, labels by class, confidences by the largest, balance."""

    def codes(key: jax.Array, features: jax.Array, num_bits: int) -> jax.Array:
        bits = (features @ DIRECTIONS >= 0).reshape(-1, BITS // 32, 32)
        values = 2 ** np.arange(32, dtype=np.uint32)
        return jnp.sum(jnp.where(bits, values, np.uint32(0)), axis=2, dtype=jnp.uint32)

    monkeypatch.setattr(sys.modules[graph.xclp.__module__], "lsh_codes", codes)
    run = harness.rounds_of("xclp", data, num_bits=BITS, num_neighbors=2, alpha=0.9)
    clients = harness.clients_of(data)
    params = harness.first_weights()
    features = np.concatenate([harness.forward(params, c.plain).features for c in clients])
    bits = features @ DIRECTIONS >= 0
    distance = np.sum(bits[:, None] != bits[None], axis=2)
    similarity = np.where(2 * distance == BITS, 0, np.cos(np.pi * distance / BITS))
    observed = np.concatenate([client.observed for client in clients])
    labels, sure, balance = propagated(similarity, observed, 2, 0.9, 3.0, True)
    assert len(set(np.round(balance, 6))) > 1 and 0 < sure.min() < 0.5, "settings are not neutral"
    targets = apart(clients, labels, sure * balance[labels])
    harness.assert_same(run.params(), whole_round(params, clients, targets, run.infos[0]["loss"]))


def test_label_propagation_at_every_client_alone(data) -> None:
    """The text's variant, exact cosines: power 1, no norm, no scale, no balance."""
    run = harness.rounds_of(
        "per_client_lp",
        data,
        num_neighbors=2,
        alpha=0.8,
        similarity_power=1.0,
        label_norm="none",
        confidence_scale="none",
        class_weighting="none",
    )
    params = harness.first_weights()
    clients = [client for client in harness.clients_of(data) if len(client.labelled.observed)]
    targets = []
    for client in clients:
        z = harness.forward(params, client.plain).features
        z = z / np.linalg.norm(z, axis=1, keepdims=True)
        labels, sure, _ = propagated(z @ z.T, client.observed, 2, 0.8, 1.0, False)
        targets.append((labels, sure))
    harness.assert_same(run.params(), whole_round(params, clients, targets, run.infos[0]["loss"]))


def said_by_network(params, client: harness.Examples) -> Targets:
    """The network's classes with weight 1 - H / log K; labels as they are."""
    q = softmax(harness.forward(params, client.plain).logits)
    known = client.observed >= 0
    return np.where(known, client.observed, q.argmax(axis=1)), np.where(known, 1.0, confidence(q))


@pytest.mark.parametrize("name", ["network_pseudo_label", "fedsem"])
def test_pseudo_labels_of_the_network(data, name: str) -> None:
    """FedSem keeps those of the first round; the other makes new ones in the second."""
    run = harness.rounds_of(name, data, 2)
    params = harness.first_weights()
    clients = harness.clients_of(data)
    first = [said_by_network(params, client) for client in clients]
    after = whole_round(params, clients, first, run.infos[0]["loss"])
    harness.assert_same(run.params(1), after)
    second = first if name == "fedsem" else [said_by_network(after, client) for client in clients]
    harness.assert_same(
        run.params(2), whole_round(after, clients, second, run.infos[1]["loss"]), atol=2e-8
    )


def test_fedsiam_follows_its_teacher(data) -> None:
    """Two steps in the third round: the ramp is not over, and the teacher lags behind."""
    settings = {"consistency_weight": 4.0, "ramp_rounds": 5, "head_weight": 0.3, "decay": 0.6}
    run = harness.rounds_of(
        "fedsiam", data, start=harness.in_round(2), run={"local_epochs": 2}, **settings
    )
    ramp = 4.0 * np.exp(-5 * (1 - 3 / 5) ** 2)
    students = []
    teachers = []
    losses = []
    clients = [client for client in harness.clients_of(data) if len(client.labelled.observed)]
    for client in clients:
        batch = client.at(batch_of(client))
        size = len(batch.observed)
        student = teacher = harness.first_weights()
        for step in (1, 2):
            taught = softmax(harness.forward(teacher, batch.view).logits)

            def loss(p, taught=taught, batch=batch, size=size) -> float:
                seen = harness.forward(p, batch.view)
                return float(
                    cross_entropy(seen.logits, batch.observed).sum() / size
                    + 0.3 * np.sum((seen.logits - seen.aux_logits) ** 2) / (size * CLASSES)
                    + ramp * np.sum((softmax(seen.aux_logits) - taught) ** 2) / (size * CLASSES)
                )

            losses.append(loss(student))
            student = harness.descended(loss, student)
            keep = min(1 - 1 / (step + 1), 0.6)
            teacher = harness.mean_of([teacher, student], [keep, 1 - keep])
        students.append(student)
        teachers.append(teacher)
    sizes = [len(client.observed) for client in clients]
    assert run.infos[0]["loss"] == pytest.approx(np.mean(losses), rel=1e-9)
    harness.assert_same(run.params(), harness.mean_of(students, sizes), atol=1e-8)
    taught = run.states[-1].terms["mean_teacher"].params
    harness.assert_same(taught, harness.mean_of(teachers, sizes), atol=1e-8)
