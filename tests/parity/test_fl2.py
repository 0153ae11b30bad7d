"""(FL)^2 against its authors' code: weights, batch statistics and thresholds of three rounds."""

import jax
import numpy as np
import optax

from fedjax_ssl import federated, methods, models
from tests import toy
from tests.parity.parity import KEY, difference, federation, fixture, starting_from, under, without_chance

ROUNDS = 3


def test_weights_statistics_and_predictions_are_those_of_the_code(monkeypatch, exact):
    without_chance(monkeypatch)
    said = fixture("fl2")
    server, sizes = int(said["server"]), said["sizes"]
    rows = np.split(server + np.arange(sizes.sum()), np.cumsum(sizes)[:-1])
    data = federation(said["inputs"], said["labels"], rows, [0] * len(rows), server=np.arange(server), num_classes=3)
    model = models.build("mlp", num_classes=3, input_shape=data.inputs.shape[1:], hidden=(5,), norm="bn")
    run = toy.setup(
        data,
        model=starting_from(model, under(said, "first")),
        learning_rate=0.1,
        federated_optimizer=federated.fedopt(optax.sgd(1.0, 0.5)),
        local_optimizer=federated.local_optimizer(momentum=0.9, nesterov=True, weight_decay=5e-4, clip_norm=1.0),
        batch_size=8,
        local_epochs=2,
        keep_optimizer=True,
        strong_augment=lambda key, inputs: inputs[:, ::-1],
    )
    method = methods.build("fl2", run, rho=0.1, pretrain_calls=4, server_batch_size=10, server_epochs=2)
    state, one_round = jax.jit(method.init)(KEY, data), jax.jit(method.round)
    gaps = {}

    def compare(name: str) -> None:
        theirs = under(said, name)
        statistics = {"norm1": {part: theirs["norm1"].pop(part) for part in ("mean", "var")}}
        gaps[f"{name} weights"] = difference(state.params["model"], theirs)
        gaps[f"{name} statistics"] = difference(state.model_state, statistics)

    compare("pretrained")
    for number in range(ROUNDS):
        state, info = one_round(KEY, state, data)
        compare(f"round{number}")
        gaps[f"log-probabilities {number}"] = difference(method.predict(state, data.inputs), said[f"log_probs{number}"])
        share = said[f"confident{number}"].sum() / sizes.sum()
        gaps[f"trained on {number}"] = abs(toy.numbers(info)["pseudo_label_coverage"] - share)
    assert max(gaps.values()) < 1e-12
