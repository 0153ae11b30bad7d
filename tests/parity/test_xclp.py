"""XCLP against its authors' code: labels and weights of one graph, and two rounds of stage 2,
also of per-client LP.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated, graph, methods
from tests import toy
from tests.parity.parity import (
    KEY,
    difference,
    fixture,
    gaps_of,
    perceptron,
    under,
    without_chance,
)

BITS = 4128
NEIGHBOURS = 4
ROUNDS = 2
SETTINGS = graph.GraphSettings(
    BITS, NEIGHBOURS, 0.99, similarity_power=3.0, label_norm="class", confidence_scale="max"
)


@pytest.mark.parametrize("kind", ["LSH", "FlatIP"])
def test_labels_and_weights_of_a_graph_are_those_of_the_code(exact, kind):
    said = fixture("xclp")
    labels = np.full(len(said["truth"]), -1)
    labels[said["known"]] = said["truth"][said["known"]]
    if kind == "LSH":
        codes = np.ascontiguousarray(said["codes"]).view("<u4")
        found = graph.label(jnp.asarray(codes), jnp.asarray(labels), 3, SETTINGS)
    else:
        points = jnp.asarray(said["points"])
        found = graph.label(points, jnp.asarray(labels), 3, SETTINGS)
    np.testing.assert_array_equal(found.labels, said[f"{kind}_labels"])
    balance = graph.class_weights(found.labels, jnp.ones(len(labels), bool), 3)
    gaps = (
        difference(found.confidence, said[f"{kind}_confidence"]),
        difference(balance, said[f"{kind}_balance"]),
    )
    assert max(gaps) < 1e-6  # weights of classes are float32 in the code


@pytest.mark.parametrize(
    "name",
    ["xclp", pytest.param("per_client", marks=[pytest.mark.thorough, pytest.mark.promise])],
)
def test_rounds_are_those_of_the_code(monkeypatch, exact, name):
    without_chance(monkeypatch)
    said = fixture("xclp")
    places = 2 ** np.arange(32, dtype=np.uint32)
    words = (-1, BITS // 32, 32)

    def codes(key: jax.Array, features: jax.Array, num_bits: int) -> jax.Array:
        bits = features @ said["projections"].T.astype(features.dtype) >= 0
        return jnp.sum(
            jnp.where(bits.reshape(words), places, np.uint32(0)), axis=2, dtype=jnp.uint32
        )

    # faiss drew other projections
    monkeypatch.setattr(sys.modules[graph.label.__module__], "lsh_codes", codes)
    sizes = said["sizes"][: 3 if name == "xclp" else 2]
    rows = np.split(np.arange(sizes[:, 0].sum()), np.cumsum(sizes[:, 0])[:-1])
    data = toy.dealt(said["inputs"], said["labels"], rows, sizes[:, 1].tolist(), num_classes=3)
    run = toy.setup(
        data,
        model=perceptron(data, under(said, "first")),
        local_optimizer=federated.local_optimizer(weight_decay=2e-4),
        batch_size=3,
        local_epochs=2,
    )
    run = run._replace(learning_rate=federated.learning_rate_schedule("cosine", 0.3, 4))
    method = methods.build(
        "xclp" if name == "xclp" else "per_client_lp", run, num_neighbors=NEIGHBOURS, num_bits=BITS
    )
    states, _ = toy.every_state(method, KEY, data, ROUNDS)
    gaps = {}
    for number, state in enumerate(states[1:]):
        gaps |= gaps_of(state, under(said, f"{name}{number}"), number)
    assert max(gaps.values()) < 1e-6
