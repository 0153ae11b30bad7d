"""Encoders: networks of timm, modules of flax and of PyTorch."""

import contextlib
import dataclasses
import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedjax_ssl import data
from fedjax_ssl.encoding.encoders import Moments, encoder
from fedjax_ssl.errors import UserError

NEEDS = "PyTorch and its libraries are not among the development tools"
SIDE = 64


def images(side=SIDE):
    pixels = np.random.default_rng(0).integers(0, 256, (3, side, side, 3), np.uint8)
    return data.Dataset("some", data.Split(pixels, np.arange(3)), None, ("a", "b", "c"))


@pytest.mark.parametrize(
    ("name", "side", "message"),
    [
        ("resnet18", None, "no folder of a run; write timm:NAME"),
        ("timm:resnet18", None, r"needs the package timm: pip install .*features"),
        ("runs/none", 3, "--side is for networks of timm"),
    ],
)
def test_what_is_no_encoder(name, side, message, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=message):
        encoder(name, images(), None, side)


def test_inputs_of_published_weights_are_refused_where_they_cannot_be_right(timm):
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
            encoder("timm:resnet18", dataset, None, None)
    for given, message in (
        (Moments(mean=(0.5, 0.5)), r"--data.mean is \[0.5, 0.5\]"),
        (Moments(std=(0.0,)), r"--data.std is \[0.0\]; .* a deviation above 0"),
    ):
        with pytest.raises(UserError, match=message):
            encoder("timm:resnet18", some, None, None, given)
    with pytest.raises(UserError, match=r"--data\.std is for networks of timm"):
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


class Values(np.ndarray):
    """An array with the face of a tensor."""

    def numpy(self):
        return np.asarray(self)


class Net:
    """A network with the face of one of timm's: means of the channels, and a classifier."""

    classes = 3
    training = True

    def state_dict(self):
        return {"weight": np.full(2, 0.5).view(Values)}

    def eval(self):
        self.training = False

    def reset_classifier(self, classes):
        self.classes = classes

    def __call__(self, x):
        assert not self.training and not self.classes
        return x.mean(axis=(2, 3)).view(Values)


@pytest.fixture
def timm(monkeypatch):
    asked = []
    config = {"input_size": (3, 16, 16), "mean": (0.5, 0.25, 0.0), "std": (0.5, 1.0, 2.0)}

    def create(name, pretrained):
        if name == "nothing":
            raise RuntimeError("Unknown model (nothing)")
        asked.append((name, pretrained))
        return Net()

    made = SimpleNamespace(
        create_model=create,
        models=SimpleNamespace(load_checkpoint=lambda net, path: asked.append(path)),
        data=SimpleNamespace(resolve_model_data_config=lambda net: config),
    )
    torch = SimpleNamespace(no_grad=contextlib.nullcontext, from_numpy=lambda x: x)
    monkeypatch.setitem(sys.modules, "timm", made)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return asked


def test_a_network_of_timm_sees_images_as_in_its_training(timm):
    some = images()
    found = encoder("timm:net", some, None, None)
    features = found.encode(some.train.x)
    means = some.train.x.reshape(3, -1, 3).mean(axis=1) / 255
    np.testing.assert_allclose(features, (means - [0.5, 0.25, 0]) / [0.5, 1, 2], atol=5e-3)
    assert found.known_by["side"] == 16 and found.known_by["name"] == "timm:net"
    given = encoder("timm:net", some, Path("own.pth"), 32, Moments(mean=(0.0,), std=(1.0,)))
    np.testing.assert_allclose(given.encode(some.train.x), means, atol=5e-3)
    assert timm == [("net", True), ("net", False), "own.pth"]
    with pytest.raises(UserError, match=r"--encoder timm:nothing: Unknown model"):
        encoder("timm:nothing", some, None, None)


@pytest.mark.thorough
@pytest.mark.promise
def test_modules_of_pytorch(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch", reason=NEEDS)
    some = images(side=32)
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
