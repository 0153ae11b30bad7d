"""A step of federated averaging, of FedProx, of clients alone and of all data in one place."""

import jax
import numpy as np
import pytest

from fedjax_ssl import federated
from tests.methods.whole_step import harness


def test_fedprox_pulls_towards_the_global_model(data) -> None:
    """Two steps: g + mu (w - w0). Clients weigh by examples; one without a label does not count."""
    prox = {"federated_optimizer": federated.fedprox(0.7), "local_epochs": 2}
    run = harness.rounds_of("fedavg", data, run=prox)
    start = harness.first_weights()
    trained = []
    losses = []
    for client in harness.clients_of(data)[:2]:
        loss = harness.supervised(client)
        one = harness.descended(loss, start)

        def pulled(p, loss=loss) -> float:
            squares = jax.tree.map(lambda w, w0: np.sum((w - w0) ** 2), dict(p), start)
            return loss(p) + 0.35 * sum(jax.tree.leaves(squares))

        trained.append(harness.descended(pulled, one))
        losses += [loss(start), loss(one)]
    harness.assert_same(run.params(), harness.mean_of(trained, harness.SIZES[:2]))
    assert run.infos[0]["loss"] == pytest.approx(np.mean(losses), rel=1e-9)


def test_alone_nobody_is_averaged(data) -> None:
    run = harness.rounds_of("alone", data)
    for number, client in enumerate(harness.clients_of(data)[:2]):
        found, _ = run.method.network(run.states[-1], np.int32(number))
        harness.assert_same(
            found, harness.descended(harness.supervised(client), harness.first_weights())
        )


def test_all_data_in_one_place() -> None:
    whole = harness.federation((4,), sizes=(7,))
    run = harness.rounds_of("pooled", whole)
    (client,) = harness.clients_of(whole)
    harness.assert_step(run, [harness.supervised(client)], harness.first_weights(), sizes=(1,))
