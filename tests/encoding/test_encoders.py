"""Encoders: published networks against their libraries, modules and files of weights of PyTorch."""

import dataclasses
import importlib
from pathlib import Path

import numpy as np
import pytest

from fedjax_ssl import data
from fedjax_ssl.encoding.encoders import Moments, encoder
from fedjax_ssl.errors import UserError
from fedjax_ssl.models.published import PUBLISHED

NEEDS = "PyTorch and its libraries are not among the development tools"
# network of the package -> who has it, its name there, the name of its last layer
THEIRS = [
    ("resnet18", "torchvision.models", "resnet18", "fc"),
    ("resnet50", "torchvision.models", "resnet50", "fc"),
    ("resnet50", "timm", "resnet50", "fc"),
    ("efficientnet_b0", "torchvision.models", "efficientnet_b0", "classifier"),
    ("efficientnet_b0", "timm", "efficientnet_b0", "classifier"),
    ("efficientnet_lite0", "timm", "tf_efficientnet_lite0", "classifier"),
]
SIDE = 64


def images(side=SIDE):
    pixels = np.random.default_rng(0).integers(0, 256, (3, side, side, 3), np.uint8)
    return data.Dataset("some", data.Split(pixels, np.arange(3)), None, ("a", "b", "c"))


@pytest.mark.parametrize(
    ("name", "side", "message"),
    [
        ("efficientnet_lite", None, "no module:name. Did you mean 'efficientnet_lite0'"),
        ("resnet18", None, "needs --weights FILE"),
        ("runs/none", 3, "--side is for networks of the package"),
    ],
)
def test_what_is_no_encoder(name, side, message):
    with pytest.raises(UserError, match=message):
        encoder(name, images(), None, side)


def test_inputs_of_published_weights_are_refused_where_they_cannot_be_right():
    """Values above the largest one would be taken for a white 255 times as bright."""
    some = images()
    floats = some.train.x.astype(np.float32)
    for values, largest, message in (
        (floats, 1.0, "values from 0 to 255, .* give --data.input_max=255"),
        (floats / 255, 255.0, "values from 0 to 1, .* give --data.input_max=1"),
        (floats / 127.5 - 1, 1.0, "values from -1 to 1, .* bring them to 0 to 1"),
    ):
        split = dataclasses.replace(some.train, x=values)
        dataset = dataclasses.replace(some, train=split, input_max=largest)
        with pytest.raises(UserError, match=message):
            encoder("resnet18", dataset, Path("weights.npz"), None)
    for given, message in (
        (Moments(mean=(0.5, 0.5)), r"--data.mean is \[0.5, 0.5\]"),
        (Moments(std=(0.0,)), r"--data.std is \[0.0\]; .* a deviation above 0"),
    ):
        with pytest.raises(UserError, match=message):
            encoder("resnet18", some, Path("weights.npz"), None, given)
    with pytest.raises(UserError, match=r"--data\.std is for networks of the package"):
        encoder("runs/none", some, None, None, Moments(std=(0.5,)))


MODULES = """
import jax, numpy
from flax import linen, nnx

class Mine(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.dense = nnx.Linear(3072, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
    def __call__(self, x):
        return self.norm(self.dense(x.reshape(len(x), -1) / 255))

flat = linen.Sequential([lambda x: x.reshape(len(x), -1) / 255, linen.Dense(4)])
of_nnx = Mine()
of_linen = flat.bind(flat.init(jax.random.key(0), numpy.ones((1, 32, 32, 3))))
alone = linen.Dense(4)
"""


@pytest.mark.thorough
def test_modules_of_flax_encode_as_they_predict(tmp_path, monkeypatch):
    (tmp_path / "of_jax.py").write_text(MODULES)
    monkeypatch.syspath_prepend(tmp_path)
    some = images(side=32)
    for name in ("of_nnx", "of_linen"):
        encode = encoder(f"of_jax:{name}", some, None, None).encode
        together, first = encode(some.train.x), encode(some.train.x[:1])
        assert together.shape == (3, 4)
        np.testing.assert_allclose(together[:1], first, atol=1e-5)
    with pytest.raises(UserError, match=r"'of_jax:alone', given uint8 \[3, 32, 32, 3\], rais"):
        encoder("of_jax:alone", some, None, None).encode(some.train.x)


def random_network(library, name):
    """Make a network of a library whose weights and batch statistics are all drawn."""
    torch = pytest.importorskip("torch", reason=NEEDS)
    made = pytest.importorskip(library, reason=NEEDS)
    torch.manual_seed(0)
    make = made.create_model if library == "timm" else lambda name: getattr(made, name)()
    network = make(name).eval()
    with torch.no_grad():
        for values in network.parameters():
            values.add_(0.02 * torch.randn_like(values))
        for key, values in network.named_buffers():
            if key.endswith("running_var"):
                values.uniform_(0.5, 2)
            elif key.endswith("running_mean"):
                values.uniform_(-0.3, 0.3)
    return torch, network


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "library", "theirs", "last"), THEIRS)
def test_features_are_those_of_the_library(tmp_path, name, library, theirs, last):
    torch, network = random_network(library, theirs)
    path = tmp_path / "weights.pth"
    torch.save(network.state_dict(), path)
    setattr(network, last, torch.nn.Identity())
    facts = PUBLISHED[name]
    some = images()
    inputs = (some.train.x / 255 - np.array(facts.mean)) / np.array(facts.std)
    with torch.no_grad():
        expected = network(torch.tensor(inputs, dtype=torch.float32).permute(0, 3, 1, 2)).numpy()
    found = encoder(name, some, path, SIDE)
    features = np.asarray(found.encode(some.train.x))
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(features / scale, expected / scale, atol=1e-4)


@pytest.mark.thorough
def test_files_of_weights_and_modules_of_pytorch(tmp_path, monkeypatch):
    torch, network = random_network("torchvision.models", "resnet18")
    safetensors = pytest.importorskip("safetensors.torch", reason=NEEDS)
    some = images(side=32)
    state = network.state_dict()
    torch.save(state, tmp_path / "a.pth")
    safetensors.save_file(state, tmp_path / "a.safetensors")
    np.savez(tmp_path / "a.npz", **{key: values.numpy() for key, values in state.items()})
    first, *others = (
        np.asarray(encoder("resnet18", some, tmp_path / f"a.{kind}", 32).encode(some.train.x))
        for kind in ("npz", "pth", "safetensors")
    )
    for features in others:
        np.testing.assert_array_equal(features, first)
    with pytest.raises(ValueError, match=r"another architecture: .* missing, .* left over"):
        encoder("efficientnet_b0", some, tmp_path / "a.pth", 32)
    torch.save(network, tmp_path / "whole.pth")
    with pytest.raises(ValueError, match=r"hold more than arrays.* model\.state_dict\(\)"):
        encoder("resnet18", some, tmp_path / "whole.pth", 32)
    for kind in ("pth", "safetensors"):
        (tmp_path / f"broken.{kind}").write_bytes(b"no weights")
        with pytest.raises(ValueError, match=f"broken.{kind}"):
            encoder("resnet18", some, tmp_path / f"broken.{kind}", 32)

    (tmp_path / "theirs.py").write_text(
        "import torch\n"
        "net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 5))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    theirs = importlib.import_module("theirs")
    inputs = torch.tensor(some.train.x / 255, dtype=torch.float32).permute(0, 3, 1, 2)
    expected = theirs.net(inputs).detach().numpy()
    module = encoder("theirs:net", some, None, None)
    np.testing.assert_allclose(module.encode(some.train.x), expected, rtol=1e-5, atol=1e-6)
