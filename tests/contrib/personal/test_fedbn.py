"""FedBN: normalization stays at the clients."""

from types import SimpleNamespace

import chex
import flax.linen as nn
import jax
import numpy as np
import pytest
from flax import nnx
from jax.flatten_util import ravel_pytree

from fedjax_ssl import methods, models
from fedjax_ssl.contrib.personal.fedbn import TERM, fedbn
from fedjax_ssl.federated import Recipe, build, local
from tests import toy

KEY = jax.random.key(3)


class Plain(nn.Module):
    """A layer that normalizes, called as none is usually."""

    @nn.compact
    def __call__(self, x, train, mask):
        norm = nn.BatchNorm(use_running_average=not train, name="first")
        x = norm(nn.Dense(5, name="bn")(x), mask=mask[:, None])
        return nn.Dense(toy.NUM_CLASSES, name="head")(nn.relu(x))


def setup_of(data, **changes):
    network = models.from_linen(Plain(), (toy.NUM_FEATURES,))
    return toy.setup(data, model=network, **changes)


def recipe_of(data, **changes) -> Recipe:
    return methods.recipe("fedavg", setup_of(data, **changes))


@pytest.fixture(scope="module")
def trained():
    """Two rounds of three of the six clients: (method, first state, last state, data, info)."""
    data = toy.federation()
    method = build(fedbn(recipe_of(data, cohort_size=3)))
    start = jax.jit(method.init)(KEY, data)
    end, infos = toy.run(jax.jit(method.round), KEY, start, data, 2)
    return SimpleNamespace(method=method, start=start, end=end, data=data, info=infos[-1])


def kept_by(network, **changes) -> int:
    """How many numbers a client keeps."""
    data = toy.federation()
    recipe = methods.recipe("fedavg", toy.setup(data, model=network, **changes))
    start = jax.eval_shape(build(fedbn(recipe)).init, KEY, data)
    return start.clients.terms[TERM].entries.shape[1]


def test_layers_are_found_by_their_scale() -> None:
    resnet = models.build("resnet18", num_classes=3, input_shape=(8, 8, 3))
    _, statistics = jax.eval_shape(resnet.init, KEY)
    assert kept_by(resnet) == models.count_parameters(statistics)  # scale, shift; mean, variance
    with pytest.raises(ValueError, match="none can be found"):
        kept_by(models.build("mlp", num_classes=3, input_shape=(4,)))


def test_layers_of_nnx_are_found_by_their_scale() -> None:
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.bn = nnx.Linear(4, 5, rngs=rngs)
            self.other = nnx.LayerNorm(5, rngs=rngs)
            self.head = nnx.Linear(5, 3, rngs=rngs)

        def __call__(self, x):
            return self.head(self.other(self.bn(x)))

    assert kept_by(models.from_nnx(Net)) == 2 * 5


def test_normalization_never_moves_at_the_server(trained) -> None:
    before = trained.start.params["model"]
    after = trained.end.params["model"]
    chex.assert_trees_all_equal(after["first"], before["first"])
    chex.assert_trees_all_equal(trained.end.model_state, trained.start.model_state)
    assert np.any(np.asarray(after["bn"]["kernel"]) != np.asarray(before["bn"]["kernel"]))


def test_bytes_are_those_of_the_other_layers(trained) -> None:
    params = trained.start.params["model"]
    sent = sum(x.size for name in ("bn", "head") for x in jax.tree.leaves(params[name]))
    assert trained.info["bytes_down"] == 4 * sent * trained.info["clients"]


def test_who_never_trained_predicts_with_the_mean(trained) -> None:
    kept = trained.end.clients.terms[TERM]
    assert 0 < int(kept.trained.sum()) < len(toy.SIZES)
    stranger = int(np.argmin(kept.trained))
    known = int(np.argmax(kept.trained))
    params, statistics = trained.method.network(trained.end, stranger)
    entries = np.asarray(kept.entries)[np.asarray(kept.trained)].mean(0)
    np.testing.assert_allclose(ravel_pytree(params["first"])[0], entries, rtol=1e-6)
    own, _ = trained.method.network(trained.end, known)
    np.testing.assert_array_equal(ravel_pytree(own["first"])[0], kept.entries[known])
    chex.assert_trees_all_equal(own["head"], trained.end.params["model"]["head"])
    chex.assert_trees_all_equal(trained.method.network(trained.end), (params, statistics))


@pytest.mark.thorough
def test_one_client_alone_trains_as_without_a_federation() -> None:
    """With one client, what is averaged and what stays are together its own model."""
    data = toy.only(toy.federation(), 4)
    methods = build(fedbn(recipe_of(data))), build(recipe_of(data, federated_optimizer=local()))
    found = [
        method.predict_for(toy.train(method, KEY, data, 3)[0], 4, data.inputs[:5])
        for method in methods
    ]
    np.testing.assert_allclose(*found, atol=1e-5)


def test_what_it_cannot_keep_is_refused() -> None:
    data = toy.federation()
    with pytest.raises(ValueError, match="none can be found in this network"):
        fedbn(methods.recipe("fedavg", toy.setup(data)))
    with pytest.raises(ValueError, match="not the class scores of a network"):
        fedbn(methods.recipe("protofssl", setup_of(data)))
    with pytest.raises(ValueError, match="have models of their own already"):
        fedbn(recipe_of(data, federated_optimizer=local()))
    with pytest.raises(ValueError, match=r"groups of 'fedmatch' \(psi, sigma\) are no parts"):
        fedbn(methods.recipe("fedmatch", setup_of(data), l2_weight=1.0))
