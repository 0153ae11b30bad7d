"""Steps of FedUL, FedPL, FedLLP and FedLLP-VAT (arXiv 2204.03304, theorem 1, algorithm 1, section
5), on clients with class labels, with sets, and with both.
"""

import numpy as np
import pytest

from tests.methods.whole_step import harness
from tests.methods.whole_step.harness import SIZES, cross_entropy, forward, softmax

FIRST = harness.first_weights()
L1 = 0.02
WHOLE = {"batch_size": max(SIZES)}  # one batch holds a client's examples


@pytest.fixture(scope="module")
def data():
    return harness.with_sets()


def test_fedul(data) -> None:
    run = harness.rounds_of("fedul", data, run=WHOLE, l1=L1)
    losses = []
    for number, client in enumerate(harness.clients_of(data)):
        matrix, share = harness.sets_of(data, number)
        assert np.ptp(share) > 0.1 and np.ptp(matrix) > 0.5

        def loss(p, x=client, matrix=matrix, share=share) -> float:
            rows = harness.observed_loss(forward(p, x.view).logits, x, matrix, share)
            return float(np.mean(rows)) + L1 * harness.size_of(p)

        losses.append(loss)
    harness.assert_step(run, losses, FIRST)


def test_fedpl(data) -> None:
    """A round on the sets' most frequent classes, then one on the network's own predictions."""
    settings = {"warmup_rounds": 1, "threshold": 0.55, "mix_weight": 0.4, "mix_alpha": 0.6}
    run = harness.rounds_of("fedpl", data, 2, run=WHOLE, l1=L1, **settings)
    first = []
    for number, client in enumerate(harness.clients_of(data)):
        majority = harness.sets_of(data, number)[0].argmax(axis=1)
        labels = np.where(client.observed >= 0, client.observed, majority[client.weak])

        def of_sets(p, x=client, labels=labels) -> float:
            rows = cross_entropy(forward(p, x.view).logits, labels, 1.0)
            return float(np.mean(rows)) + L1 * harness.size_of(p)

        first.append(of_sets)
    after = harness.assert_step(run, first, FIRST)
    second = []
    share = harness.mixup_share(0.6)
    pairs = 0
    for client in harness.clients_of(data):
        batch = client.at(slice(None, None, -1))  # the order that the batch is in
        q = softmax(forward(after, batch.view).logits)
        known = batch.observed >= 0
        labels = np.where(known, batch.observed, q.argmax(axis=1))
        sure = known | (q.max(axis=1) >= 0.55)
        number = min(sure.sum(), (~sure).sum())
        one, other = (np.flatnonzero(rows)[:number] for rows in (sure, ~sure))
        pairs += number

        def loss(p, x=batch, labels=labels, sure=sure, one=one, other=other) -> float:
            rows = cross_entropy(forward(p, x.view[sure]).logits, labels[sure], 1.0)
            mixed = share * x.view[one] + (1 - share) * x.view[other]
            logits = forward(p, mixed).logits
            parts = [cross_entropy(logits, labels[rows], 1.0) for rows in (one, other)]
            mix = share * parts[0] + (1 - share) * parts[1]
            fixed = np.sum(rows) / max(len(rows), 1)
            return float(fixed + 0.4 * np.sum(mix) / max(len(mix), 1)) + L1 * harness.size_of(p)

        second.append(loss)
    assert pairs > 1
    harness.assert_step(run, second, after, round=2, atol=2e-8)


@pytest.mark.parametrize("vat", [False, True], ids=["fedllp", "fedllp_vat"])
def test_fedllp(data, vat: bool) -> None:
    """A step for every set, the last one first; the weight of VAT rises with the local epochs."""
    settings = {"vat_weight": 1.5, "vat_radius": 0.4, "ramp_epochs": 4} if vat else {}
    name = "fedllp_vat" if vat else "fedllp"
    run = harness.rounds_of(name, data, start=harness.in_round(1), l1=L1, **settings)
    ends = []
    losses = []
    for number, client in enumerate(harness.clients_of(data)):
        matrix, share = harness.sets_of(data, number)
        params = FIRST
        sets = np.flatnonzero(share)[::-1]
        for step, own in enumerate(sets):
            members = client.at(np.flatnonzero(client.weak == own)[::-1])
            wanted = np.clip(matrix[own], 1e-7, 1 - 1e-7)
            target = softmax(forward(params, members.view).logits)
            moved = members.view + harness.adversarial(params, members.view, 0.4)
            weight = 1.5 * np.exp(-5 * (1 - min(1 + step / len(sets), 4) / 4) ** 2) * vat

            def loss(p, x=members, y=wanted, t=target, moved=moved, weight=weight) -> float:
                mean = softmax(forward(p, x.view).logits).mean(axis=0)
                divergence = t * (np.log(t) - np.log(softmax(forward(p, moved).logits)))
                value = -np.sum(y * np.log(mean)) + weight * np.mean(divergence.sum(axis=1))
                return float(value) + L1 * harness.size_of(p)

            losses.append(loss(params))
            params = harness.descended(loss, params)
        ends.append(params)
    assert run.infos[0]["loss"] == pytest.approx(np.mean(losses), rel=1e-8)
    harness.assert_same(run.params(), harness.mean_of(ends, SIZES), atol=1e-8)
