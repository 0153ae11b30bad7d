"""What goes elsewhere: the same numbers after reading it back."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import models
from fedjax_ssl.trained import TrainedModelError


def test_parameters_are_those_of_the_network(model, digits, tmp_path):
    pytest.importorskip("safetensors")
    from safetensors import safe_open

    path = model.save_parameters(tmp_path / "parameters.safetensors")
    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        facts = json.loads(file.metadata()["fedjax_ssl"])
    assert facts["class_names"] == list(model.class_names) and facts["inputs"]["max"] == 16.0
    params: dict = {}
    for name, array in arrays.items():
        _, *path_of, leaf = name.split(".")
        place = params
        for part in path_of:
            place = place.setdefault(part, {})
        place[leaf] = array
    network = models.build("mlp", num_classes=10, input_shape=(8, 8, 1))
    images = digits.train.x[:5]
    outputs, _ = network.apply(params, {}, jnp.asarray(images, jnp.float32) / 16, train=False)
    probabilities = jax.nn.softmax(outputs.logits / facts["temperature"])
    np.testing.assert_allclose(probabilities, model.predict(images), rtol=1e-4, atol=1e-6)


def test_a_missing_package_is_named(model, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "safetensors.numpy", None)
    with pytest.raises(TrainedModelError, match=r"pip install 'fedjax_ssl\[export\]'"):
        model.save_parameters(tmp_path / "x.safetensors")
