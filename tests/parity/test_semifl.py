"""SemiFL against its authors' code: weights, batch statistics and predictions of three rounds."""

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


def test_weights_statistics_and_predictions_are_those_of_the_code(monkeypatch, exact):
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
    (_, *states), infos = toy.every_state(method, KEY, data, ROUNDS)
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
