"""What goes elsewhere: the same numbers after reading it back."""

import json

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import models
from fedjax_ssl.trained import TrainedModelError
from fedjax_ssl.trained.model import as_program


@pytest.mark.thorough
@pytest.mark.promise
def test_prediction_as_a_program_for_any_batch_and_platform(model, digits, tmp_path):
    path = model.save_prediction(tmp_path / "prediction.stablehlo")
    program = jax.export.deserialize(bytearray(path.read_bytes()))
    assert set(program.platforms) == {"cpu", "cuda", "rocm", "tpu"}
    for number in (1, 7):
        images = digits.train.x[:number]
        np.testing.assert_allclose(
            program.call(images), model.predict(images), rtol=1e-5, atol=1e-6
        )


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


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [
        "cnn",
    ],
)
def test_convolutions_can_be_exported(name):
    """Batches of any size go through the plain convolution and through pooling."""
    network = models.build(name, num_classes=3, input_shape=(32, 32, 3), lowering="lax")
    params, statistics = network.init(jax.random.key(0))

    def predict(x):
        return network.apply(params, statistics, x.astype(jnp.float32) / 255, train=False)[0].logits

    program = as_program(predict, (32, 32, 3), np.dtype("uint8"))
    images = np.random.default_rng(0).integers(0, 255, (3, 32, 32, 3), np.uint8)
    found = jax.export.deserialize(bytearray(program)).call(images)
    np.testing.assert_allclose(found, jax.jit(predict)(images), rtol=1e-3, atol=1e-4)
