"""MOON's loss and the model that it remembers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import methods
from fedjax_ssl.contrib.methods.moon import model_contrast
from fedjax_ssl.federated import build
from tests import toy

KEY = jax.random.key(2)


def test_the_worked_example(float64) -> None:
    features = jnp.array([[1.0, 0.0], [0.6, 0.8]])
    received = jnp.array([[0.8, 0.6], [0.0, 1.0]])
    previous = jnp.array([[0.6, -0.8], [1.0, 0.0]])
    found = model_contrast(features, received, previous, 0.5)
    np.testing.assert_allclose(found, [0.5130152524] * 2, atol=1e-10)


@pytest.mark.thorough
def test_it_begins_in_a_clients_second_round() -> None:
    data = toy.federation()
    setup = toy.setup(data)
    ends = {}
    for weight in (0.0, 5.0):
        parts = ("supervised", "moon") if weight else ("supervised",)
        settings = {"moon": {"weight": weight}} if weight else {}
        method = build(methods.recipe("compose", setup, parts=parts, **settings))
        ends[weight] = [toy.train(method, KEY, data, rounds)[0] for rounds in (1, 2)]
    first, second = (
        [np.asarray(jax.tree.leaves(state.params)[0]) for state in states]
        for states in zip(*ends.values(), strict=True)
    )
    np.testing.assert_allclose(first[0], first[1], atol=1e-6)
    assert np.max(np.abs(second[0] - second[1])) > 1e-4
