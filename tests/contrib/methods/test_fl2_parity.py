"""(FL)^2 against its authors' code: weights, batch statistics and thresholds of three rounds."""

import pytest

from fedjax_ssl import methods
from tests import toy
from tests.parity.parity import (
    KEY,
    difference,
    fixture,
    gaps_of,
    labels_at_server,
    under,
    without_chance,
)

ROUNDS = 3


@pytest.mark.thorough
@pytest.mark.promise
def test_weights_statistics_and_predictions_are_those_of_the_code(monkeypatch, exact):
    without_chance(monkeypatch)
    said = fixture("fl2")
    data, run = labels_at_server(said)
    method = methods.build(
        "fl2", run, rho=0.1, pretrain_calls=4, server_batch_size=10, server_epochs=2
    )
    states, infos = toy.every_state(method, KEY, data, 4 + ROUNDS)  # first the server alone
    gaps = gaps_of(states[4], under(said, "pretrained"), "pretrained")
    for number, (state, info) in enumerate(zip(states[5:], infos[4:], strict=True)):
        gaps |= gaps_of(state, under(said, f"round{number}"), number)
        gaps[f"log-probabilities {number}"] = difference(
            method.predict(state, data.inputs), said[f"log_probs{number}"]
        )
        share = said[f"confident{number}"].sum() / said["sizes"].sum()
        gaps[f"trained on {number}"] = abs(info["pseudo_label_coverage"] - share)
    assert max(gaps.values()) < 1e-12
