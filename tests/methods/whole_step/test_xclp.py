"""A step of FedAvg+XCLP and of the paper's baselines: pseudo-labels of a graph or of the network,
and FedSiam (arXiv 2210.06434, Algorithms 1 and 2, section 5).
"""

import numpy as np
import pytest

from tests import toy
from tests.methods.whole_step import graphs, harness
from tests.methods.whole_step.harness import BATCH, assert_taught, cross_entropy, forward, softmax

CLASSES = toy.NUM_CLASSES
FIRST = harness.first_weights()
Targets = tuple[np.ndarray, np.ndarray]  # (labels, weights) of one client's examples


def batch_of(client: harness.Examples) -> np.ndarray:
    """Places of stage 2's one batch: labelled examples, each as often, and all others once."""
    labelled = len(client.labelled.observed)
    others = np.arange(labelled, len(client.observed))
    return np.concatenate([harness.cycled(labelled, BATCH), others])


def weighted(client: harness.Examples, targets: Targets) -> harness.Loss:
    """Algorithm 2: 1/|B| sum_i w_i CE(f(x_i), y_i)."""
    places = batch_of(client)
    labels, weights = (table[places] for table in targets)
    view = client.view[places]
    return lambda p: float(np.mean(weights * cross_entropy(forward(p, view).logits, labels)))


def test_xclp_over_one_graph(monkeypatch, data) -> None:
    """The code's variant: cosines cubed, labels by class, confidences by the largest, balance."""
    graphs.use_directions(monkeypatch)
    run = harness.rounds_of("xclp", data, num_bits=graphs.BITS, num_neighbors=2, alpha=0.9)
    clients = harness.clients_of(data)
    similarity = graphs.of_codes(
        np.concatenate([forward(FIRST, c.plain).features for c in clients])
    )
    observed = np.concatenate([client.observed for client in clients])
    scores, sure = graphs.propagated(similarity, observed, 2, 0.9, 3.0, True)
    labels = np.where(observed >= 0, observed, graphs.likeliest(scores))
    kappa = graphs.balance(labels)
    weights = np.where(observed >= 0, 1, sure) * kappa[labels]
    assert np.ptp(kappa) > 0.1 and 0 < sure.min() < 0.5
    assert_operations(run.infos[0])
    targets = graphs.apart(clients, labels, weights)
    losses = [weighted(*own) for own in zip(clients, targets, strict=True)]
    harness.assert_step(run, losses, FIRST)


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
    losses = []
    clients = [client for client in harness.clients_of(data) if len(client.labelled.observed)]
    for client in clients:
        similarity = graphs.of_features(forward(FIRST, client.plain).features)
        known = client.observed
        scores, sure = graphs.propagated(similarity, known, 2, 0.8, 1.0, False)
        targets = np.where(known >= 0, known, graphs.likeliest(scores))
        losses.append(weighted(client, (targets, np.where(known >= 0, 1, sure))))
    sizes = harness.SIZES[: len(clients)]
    harness.assert_step(run, losses, FIRST, sizes=sizes)


def assert_operations(info: dict[str, float]) -> None:
    """Those of the paper's formulas (section 3.3), in millions, for the mean client."""
    sizes = np.array(harness.SIZES)
    total = sizes.sum()
    expected = {
        "codes": sizes.mean() * harness.WIDTH * graphs.BITS,
        "distances": sizes.mean() * total * graphs.BITS,
        "inverse": total**3,
        "row_sums": total * np.mean(harness.LABELLED) * CLASSES,
    }
    for step, number in expected.items():
        assert info[f"operations_{step}"] == pytest.approx(number / 1e6)


def said_by_network(params, client: harness.Examples) -> Targets:
    """The network's classes with weight 1 - H / log K; labels as they are."""
    q = softmax(forward(params, client.plain).logits)
    known = client.observed >= 0
    labels = np.where(known, client.observed, q.argmax(axis=1))
    return labels, np.where(known, 1, graphs.confidence(q))


@pytest.mark.parametrize("name", ["network_pseudo_label", "fedsem"])
def test_pseudo_labels_of_the_network(data, name: str) -> None:
    """FedSem keeps those of the first round; the other makes new ones in the second."""
    run = harness.rounds_of(name, data, 2)
    clients = harness.clients_of(data)
    params = FIRST
    targets: list[Targets] = []
    for number in (1, 2):
        if name != "fedsem" or not targets:
            targets = [said_by_network(params, client) for client in clients]
        losses = [weighted(*own) for own in zip(clients, targets, strict=True)]
        params = harness.assert_step(run, losses, params, round=number, atol=2e-8)


def test_fedsiam_follows_its_teacher(data) -> None:
    """Two steps in the third round: the ramp is not over, and the teacher lags behind."""
    settings = {"consistency_weight": 4.0, "ramp_rounds": 5, "head_weight": 0.3, "decay": 0.6}
    run = harness.rounds_of(
        "fedsiam", data, start=harness.in_round(2), run={"local_epochs": 2}, **settings
    )
    ramp = 4.0 * np.exp(-5 * (1 - 3 / 5) ** 2)
    trained = []
    clients = [client for client in harness.clients_of(data) if len(client.labelled.observed)]
    for client in clients:
        batch = client.at(batch_of(client))

        def loss_of(teacher, step: int, batch=batch) -> harness.Loss:
            taught = softmax(forward(teacher, batch.view).logits)

            def loss(p) -> float:
                seen = forward(p, batch.view)
                return float(
                    np.mean(cross_entropy(seen.logits, batch.observed))
                    + 0.3 * np.mean((seen.logits - seen.aux_logits) ** 2)
                    + ramp * np.mean((softmax(seen.aux_logits) - taught) ** 2)
                )

            return loss

        trained.append(harness.with_teacher(loss_of, 2, 0.6))
    assert_taught(run, trained, "mean_teacher", harness.SIZES[: len(clients)])
