"""ProtoFSSL against its authors' code: weights and predictions of four rounds, three with
helpers.
"""

import jax
import numpy as np
import pytest

from fedjax_ssl import federated, methods, models
from tests import toy
from tests.parity.parity import (
    KEY,
    difference,
    fixture,
    starting_from,
    under,
    without_chance,
)

CLIENTS = 3
LABELLED = 12
ROUNDS = 4


@pytest.mark.thorough
@pytest.mark.promise
def test_weights_and_predictions_are_those_of_the_code(monkeypatch, exact):
    without_chance(monkeypatch)
    said = fixture("protofssl")
    rows = np.split(np.arange(len(said["labels"])), CLIENTS)
    data = toy.dealt(said["inputs"], said["labels"], rows, [LABELLED] * CLIENTS, num_classes=3)
    model = models.build("mlp", num_classes=3, input_shape=(6,), hidden=(5,))
    head = model.init(KEY)[0]["head"]  # which the method does not use

    def network(weights):
        return {
            "dense1": {"kernel": weights["kernel"].T, "bias": weights["bias"]},
            "head": jax.device_get(head),
        }

    run = toy.setup(
        data,
        model=starting_from(model, network(under(said, "first"))),
        learning_rate=1e-2,
        local_optimizer=federated.local_optimizer("rmsprop"),
        local_epochs=3,
    )
    method = methods.build("protofssl", run, num_unlabelled=6, num_helpers=CLIENTS)
    states, _ = toy.every_state(method, KEY, data, ROUNDS)
    gaps = {}
    for number, state in enumerate(states[1:]):
        for kind in ("reset", "kept"):
            gaps[f"{kind} weights {number}"] = difference(
                state.params["model"], network(under(said, f"{kind}{number}"))
            )
            found = np.exp(method.predict(state, data.inputs))
            gaps[f"{kind} probabilities {number}"] = difference(
                found, said[f"{kind}{number}_probabilities"]
            )
    assert max(gap for name, gap in gaps.items() if name.startswith("reset")) < 1e-6
    assert gaps["kept weights 3"] > 1e-3
