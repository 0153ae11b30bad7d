"""SAGE and ProxyFL against their authors' code: weights, batch statistics, priors, predictions."""

import numpy as np
import pytest

from fedjax_ssl import federated, methods, models
from fedjax_ssl.contrib.methods.proxyfl import with_projections
from tests import toy
from tests.parity.parity import (
    KEY,
    difference,
    fixture,
    gaps_of,
    starting_from,
    under,
    without_chance,
)

ROUNDS = 3
TUNING = {"tuning_epochs": 3, "tuning_rate": 0.05}


@pytest.mark.parametrize(("name", "settings"), [("sage", {}), ("proxyfl", TUNING)])
def test_weights_statistics_and_predictions_are_those_of_the_code(
    name, settings, monkeypatch, exact
):
    without_chance(monkeypatch)
    said = fixture(name)
    labelled, sizes = said["clients"].T
    rows = np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1])
    data = toy.dealt(said["inputs"], said["labels"], rows, list(labelled), num_classes=3)
    network = models.build(
        "mlp", num_classes=3, input_shape=data.inputs.shape[1:], hidden=(5,), norm="bn"
    )
    run = toy.setup(
        data,
        model=network,
        local_optimizer=federated.local_optimizer(momentum=0.9, weight_decay=1e-4),
        strong_augment=lambda key, inputs: inputs[:, ::-1],
    )
    if name == "proxyfl":
        run = with_projections(run)
    first = starting_from(run.model, under(said, "first"))
    method = methods.build(
        name, run._replace(model=first), threshold=0.6, labelled_copies=2000.0, **settings
    )
    states, _ = toy.every_state(method, KEY, data, ROUNDS)
    gaps = {}
    for number, state in enumerate(states[1:]):
        gaps |= gaps_of(state, under(said, f"reset/round{number}"), number)
        log_probs = method.predict(state, data.inputs)
        gaps[f"predictions {number}"] = difference(log_probs, said[f"reset/log_probs{number}"])
        if name == "proxyfl":
            prior = said[f"reset/prior{number}"]
            gaps[f"prior {number}"] = difference(state.terms["candidates"], prior)
    assert max(gaps.values()) < 1e-12
