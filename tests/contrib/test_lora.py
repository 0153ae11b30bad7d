"""LoRA: its formula, and training of its pairs alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import methods, models
from fedjax_ssl.contrib.lora import lora
from tests import toy

KEY = jax.random.key(0)


def network() -> models.Model:
    shape = (toy.NUM_FEATURES,)
    return models.build("mlp", num_classes=toy.NUM_CLASSES, input_shape=shape, hidden=(5,))


def test_lora_adds_the_product_of_its_pairs() -> None:
    plain = network()
    model = lora(plain, rank=2, layers="dense1.kernel", scale=0.5)
    params, state = model.init(KEY)
    inputs = jax.random.normal(KEY, (4, toy.NUM_FEATURES))
    own, _ = plain.init(KEY)
    expected = plain.apply(own, {}, inputs, train=False)[0].logits
    found = model.apply(params, state, inputs, train=False)[0].logits
    np.testing.assert_array_equal(found, expected)
    pair = params["lora"]["dense1"]["kernel"]
    pair["b"] = jnp.ones_like(pair["b"])
    own["dense1"]["kernel"] += 0.5 * pair["a"] @ pair["b"]
    expected = plain.apply(own, {}, inputs, train=False)[0].logits
    found = model.apply(params, state, inputs, train=False)[0].logits
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    with pytest.raises(ValueError, match=r"rank 9 and layers .*smallest of these kernels has"):
        lora(plain, rank=9)


def test_the_pairs_are_a_part_that_is_trained_alone() -> None:
    data = toy.federation()
    setup = toy.setup(data, model=lora(network(), rank=2))
    method = methods.build("fedavg", setup, train="lora")
    start = jax.eval_shape(method.init, KEY, data)
    assert {*start.params["model"]} == {"lora"}
    assert jax.eval_shape(method.round, KEY, start, data)[0].params == start.params
