"""SemiFL against its authors' code: weights, batch statistics and predictions of three rounds."""

import jax
import pytest

from fedjax_ssl import federated, methods
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
SHARE = 0.3


@pytest.fixture
def trained(monkeypatch, exact):
    """What the code says, and our states and metrics after each round."""
    without_chance(monkeypatch, SHARE)
    said = fixture("semifl")
    data, run = labels_at_server(said)
    run = run._replace(learning_rate=federated.learning_rate_schedule("cosine", 0.1, ROUNDS))
    method = methods.build(
        "semifl",
        run,
        threshold=0.6,
        mixup_alpha=2.0,
        server_batch_size=4,
        server_epochs=2,
        separate_passes=True,
    )
    states = [jax.jit(method.init)(KEY, data)]
    infos = []
    one_round = jax.jit(method.round)
    for _ in range(ROUNDS):
        state, info = one_round(KEY, states[-1], data)
        states.append(state)
        infos.append(toy.numbers(info))
    return said, method, states[1:], infos, data


def test_weights_statistics_and_predictions_are_those_of_the_code(trained):
    said, method, states, infos, data = trained
    sizes = said["sizes"]
    gaps = {}
    for number, (state, info) in enumerate(zip(states, infos, strict=True)):
        gaps |= gaps_of(state, under(said, f"reset/server{number}"), number)
        log_probs = said[f"reset/log_probs{number}"]
        gaps[f"log-probabilities {number}"] = difference(
            method.predict(state, data.inputs), log_probs
        )
        gaps[f"confident {number}"] = (
            info["pseudo_label_coverage"] - said[f"reset/confident{number}"].sum() / sizes.sum()
        )
    assert max(gaps.values()) < 1e-12
    # As released, the server goes on with its momentum: the first round is the same, later ones are
    # not.
    kept = [under(said, f"kept/server{number}") for number in range(ROUNDS)]
    for tree in kept:
        del tree["norm1"]["mean"], tree["norm1"]["var"]
    apart = [
        difference(state.params["model"], tree) for state, tree in zip(states, kept, strict=True)
    ]
    assert apart[0] < 1e-12 and apart[-1] > 1e-2
