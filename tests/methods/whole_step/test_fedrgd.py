"""Two rounds of FedRGD in two groups: who starts where, consistency, and who is averaged (arXiv
2008.11364, as its public code has it).
"""

import numpy as np
import pytest

from fedjax_ssl import federated
from tests.methods.whole_step import harness
from tests.methods.whole_step.harness import BATCH, SIZES, cross_entropy, cycled, forward, softmax

FIRST = harness.first_weights()
THRESHOLD = 0.48
STEPS = 2
GROUP = (1, 1, 0)  # of the clients, whose slots are in reversed order


def consistency(params, examples: harness.Examples) -> tuple[harness.Loss, list[bool]]:
    """1/B sum_u [max q >= tau] CE(argmax q, f(A(u))), and which rows count."""
    q = softmax(forward(params, examples.view).logits)
    sure = q.max(axis=1) >= THRESHOLD
    labels = q.argmax(axis=1)

    def loss(p) -> float:
        rows = cross_entropy(forward(p, examples.strong).logits, labels, 1.0)
        return float(np.mean(sure * rows))

    return loss, sure.tolist()


@pytest.mark.parametrize("where", ["server", "client"])
def test_fedrgd(where: str) -> None:
    """With labels at the server its replicas join the groups, and the clients' own labels are not
    looked at; else two clients are a bridge.
    """
    at_server = where == "server"
    data = harness.federation(server=harness.SERVER * at_server)
    grouped = {"federated_optimizer": federated.grouped(group_sizes=(1, 2)), "rounds": 4}
    settings = {"labels": where, "threshold": THRESHOLD, "local_steps": STEPS}
    run = harness.rounds_of("fedrgd", data, 2, run=grouped, **settings)
    common = FIRST
    groups = [FIRST, FIRST]
    counted: list[bool] = []
    for number, info in enumerate(run.infos):
        rate = harness.RATE * np.cos(7 * np.pi / 16 * number * STEPS / (4 * STEPS))
        ends: list[list] = [[], []]
        losses = []
        for place, client in enumerate(harness.clients_of(data)):
            bridge = not at_server and place in (0, 2)
            params = common if bridge else groups[GROUP[place]]
            known = client.labelled
            pool = client if at_server else client.others
            batches = cycled(len(pool.observed), STEPS * BATCH).reshape(STEPS, -1)
            for places in batches:
                unlabelled, sure = consistency(params, pool.at(places))
                counted += sure
                loss = unlabelled
                if not at_server:
                    loss = harness.added(harness.supervised(known), unlabelled)
                losses.append(loss(params))
                params = harness.descended(loss, params, rate)
            ends[GROUP[place]].append((params, SIZES[place]))
        if at_server:
            replica = common
            server = harness.server_of(data)
            for places in cycled(harness.SERVER, STEPS * BATCH).reshape(STEPS, -1):
                replica = harness.descended(harness.supervised(server.at(places)), replica, rate)
            ends = [[*own, (replica, 1)] for own in ends]
        groups = [harness.mean_of(*map(list, zip(*own, strict=True))) for own in ends]
        common = harness.mean_of(groups, [1, 1])
        assert info["loss"] == pytest.approx(np.mean(losses), rel=1e-7)
        harness.assert_same(run.params(number + 1), common, atol=3e-8)
    assert 0 < np.mean(counted) < 1
