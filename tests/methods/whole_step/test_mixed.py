"""A step of mixed supervision: class labels, sets, a client with both and a client without either
(the docstrings of `fedjax_ssl.methods.mixed`).
"""

import numpy as np

from tests.methods.whole_step import graphs, harness
from tests.methods.whole_step.harness import cross_entropy, cycled, forward, softmax

FIRST = harness.first_weights()
BATCH = 7
WITH_SET = (2, 4, 0)  # examples of each client that are in a set


def test_mixed(monkeypatch) -> None:
    data = harness.with_fewer_weak(harness.with_sets(), WITH_SET)
    graphs.use_directions(monkeypatch)
    run = harness.rounds_of(
        "mixed",
        data,
        run={"batch_size": BATCH},
        num_bits=graphs.BITS,
        num_neighbors=2,
        alpha=0.9,
        anchor_confidence=0.9,
        channel_weight=0.7,
        pseudo_label_weight=1.6,
    )
    clients = harness.clients_of(data)
    seen = [forward(FIRST, client.plain) for client in clients]
    # 1. How likely each class makes what was observed, share_m pi_mk / pi_k; 1 where nothing was.
    likely = []
    for number, client in enumerate(clients):
        matrix, share = harness.sets_of(data, number)
        rows = (share[:, None] * matrix / harness.PRIOR)[client.weak]
        likely.append(np.where(client.weak[:, None] >= 0, rows, 1))
    likelihood = np.concatenate(likely)
    # 2. Labels are propagated from class labels, and from sets whose class is clear.
    observed = np.concatenate([client.observed for client in clients])
    in_set = np.concatenate([client.weak for client in clients]) >= 0
    posterior = softmax(np.concatenate([own.logits for own in seen])) * likelihood
    posterior /= posterior.sum(axis=1, keepdims=True)
    clear = in_set & (posterior.max(axis=1) > 0.9)
    assert 0 < clear.sum() < in_set.sum()
    anchors = np.where(observed >= 0, observed, np.where(clear, posterior.argmax(axis=1), -1))
    similarity = graphs.of_codes(np.concatenate([own.features for own in seen]))
    scores, sure = graphs.propagated(similarity, anchors, 2, 0.9, 3.0, True)
    # 3. What is known of an example refines its scores.
    refined = scores * likelihood
    labels = np.where(observed >= 0, observed, graphs.likeliest(refined))
    sure = np.maximum(graphs.confidence(refined), np.where(anchors >= 0, 1, sure))
    weights = np.where(observed >= 0, 0, sure * graphs.balance(labels)[labels])
    losses = []
    targets = graphs.apart(clients, labels, weights)
    for place, (client, own) in enumerate(zip(clients, targets, strict=True)):
        num_known = int(np.sum((client.observed >= 0) | (client.weak >= 0)))
        num_labelled = int(np.sum(client.observed >= 0))
        places = num_labelled + cycled(len(client.observed) - num_labelled, BATCH)
        known, others = client.at(cycled(num_known, BATCH)), client.at(places)
        y, w = (table[places] for table in own)
        sets = harness.sets_of(data, place)

        def loss(p, known=known, others=others, y=y, w=w, sets=sets) -> float:
            channel = harness.observed_loss(forward(p, known.view).logits, known, *sets)
            pseudo = w * cross_entropy(forward(p, others.view).logits, y)
            return sum(
                float(weight * np.mean(rows))
                for weight, rows in ((0.7, channel), (1.6, pseudo))
                if len(rows)
            )

        losses.append(loss)
    harness.assert_step(run, losses, FIRST)
