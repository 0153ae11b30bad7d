"""Training a part of a network."""

import chex
import jax
import jax.numpy as jnp
import pytest

from fedjax_ssl import methods, models
from fedjax_ssl.methods.around.trained_part import REST
from tests import toy

KEY = jax.random.key(0)


def network(**options) -> models.Model:
    shape = (toy.NUM_FEATURES,)
    options = {"hidden": (5,), "norm": "bn", **options}
    return models.build("mlp", num_classes=toy.NUM_CLASSES, input_shape=shape, **options)


def test_the_rest_stays_and_is_not_sent() -> None:
    data = toy.federation()
    setup = toy.setup(data, model=network())
    whole, part = (
        methods.build("fedavg", setup, train=train) for train in ("all", "dense1.kernel,he*")
    )
    start = jax.jit(part.init)(KEY, data)
    assert {*start.params[REST]} == {"dense1", "norm1"} and {*start.params["model"]["dense1"]} == {
        "kernel"
    }
    end, (info,) = toy.run(jax.jit(part.round), KEY, start, data, 1)
    chex.assert_trees_all_equal(end.params[REST], start.params[REST])
    moved = jax.tree.map(
        lambda new, old: bool(jnp.any(new != old)), end.params["model"], start.params["model"]
    )
    assert all(jax.tree.leaves(moved))
    begin = jax.eval_shape(whole.init, KEY, data)
    sent = models.count_parameters((start.params["model"], start.model_state))
    assert int(info["bytes_up"]) == 4 * sent * int(info["clients"])
    expected = jax.tree.map(jnp.shape, whole.network(begin))
    assert jax.tree.map(jnp.shape, part.network(end)) == expected


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("dense7", "no parameter is named dense7; the network has dense1, .*head"),
        ("", "no parameter is named so"),
        ("*", "which is all of this network; write train=all"),
    ],
)
def test_names_are_checked(train: str, message: str) -> None:
    setup = toy.setup(toy.federation(), model=network())
    with pytest.raises(ValueError, match=f"config.model: train is '.*', .*{message}"):
        methods.build("fedavg", setup, train=train)
