"""SemiFL against its authors' code: weights, batch statistics and predictions of three rounds."""

import jax
import numpy as np
import optax
import pytest

from fedjax_ssl import federated, methods, models
from tests import toy
from tests.parity.parity import KEY, difference, federation, fixture, starting_from, under, without_chance

ROUNDS, SHARE = 3, 0.3


@pytest.fixture
def trained(monkeypatch, exact):
    """What the code says, and our states and metrics after each round."""
    without_chance(monkeypatch, SHARE)
    said = fixture("semifl")
    server, sizes = int(said["server"]), said["sizes"]
    rows = np.split(server + np.arange(sizes.sum()), np.cumsum(sizes)[:-1])
    data = federation(said["inputs"], said["labels"], rows, [0] * len(rows), server=np.arange(server), num_classes=3)
    model = models.build("mlp", num_classes=3, input_shape=data.inputs.shape[1:], hidden=(5,), norm="bn")
    run = toy.setup(
        data,
        model=starting_from(model, under(said, "first")),
        federated_optimizer=federated.fedopt(optax.sgd(1.0, 0.5)),
        local_optimizer=federated.local_optimizer(momentum=0.9, nesterov=True, weight_decay=5e-4, clip_norm=1.0),
        batch_size=8,
        local_epochs=2,
        keep_optimizer=True,
        strong_augment=lambda key, inputs: inputs[:, ::-1],
    )
    run = run._replace(learning_rate=federated.learning_rate_schedule("cosine", 0.1, ROUNDS))
    method = methods.build(
        "semifl", run, threshold=0.6, mixup_alpha=2.0, server_batch_size=4, server_epochs=2, separate_passes=True
    )
    states, infos = [jax.jit(method.init)(KEY, data)], []
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
        theirs = under(said, f"reset/server{number}")
        statistics = {"norm1": {name: theirs["norm1"].pop(name) for name in ("mean", "var")}}
        gaps[f"weights {number}"] = difference(state.params["model"], theirs)
        gaps[f"statistics {number}"] = difference(state.model_state, statistics)
        log_probs = said[f"reset/log_probs{number}"]
        gaps[f"log-probabilities {number}"] = difference(method.predict(state, data.inputs), log_probs)
        gaps[f"confident {number}"] = (
            info["pseudo_label_coverage"] - said[f"reset/confident{number}"].sum() / sizes.sum()
        )
    assert max(gaps.values()) < 1e-12
    # As released, the server goes on with its momentum: the first round is the same, later ones are not.
    kept = [under(said, f"kept/server{number}") for number in range(ROUNDS)]
    for tree in kept:
        del tree["norm1"]["mean"], tree["norm1"]["var"]
    apart = [difference(state.params["model"], tree) for state, tree in zip(states, kept, strict=True)]
    assert apart[0] < 1e-12 and apart[-1] > 1e-2
