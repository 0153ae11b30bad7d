"""An error in code of a user's own ends a command with one message that has its file and line."""

import sys

import pytest

from fedjax_ssl import cli

METHODS = """
import jax.numpy as jnp

from fedjax_ssl.data import load
from fedjax_ssl.federated import Stage, Term, federated_method, labelled_epochs
from fedjax_ssl.federated.terms import augmented_view


def wrong_shapes(setup):
    view = augmented_view(setup, "labelled")

    def loss(step):
        logits = step.outputs[view.name].logits
        return jnp.sum(logits + jnp.ones(logits.shape[1] + 1))

    sampler = labelled_epochs(setup.batch_size, setup.local_epochs, setup.max_labelled)
    return federated_method(setup, (Stage((Term("own", (view,), loss),), sampler),))


def refuses(setup, *, strength: float = 2.0):
    if strength > 1:
        raise ValueError(f"strength is {strength}; allowed: up to 1")


def dataset():
    return load("digits").nothing


def partition():
    return 1 / 0


def supervision():
    raise RuntimeError("not yet")


def augmentation():
    return lambda key, images: images @ images


class Model:
    def __init__(self, num_classes, width: int = 3):
        self.width = self.wdth


def optimizer(settings):
    raise KeyError("no state")
"""


@pytest.fixture
def start(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_things.py").write_text(METHODS)
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = cli.main(["run", "digits_fedavg", "--rounds=1", "--workdir=run", *arguments])
        return code, capsys.readouterr().err

    yield call
    sys.modules.pop("own_things", None)


@pytest.mark.parametrize(
    ("field", "name", "messages"),
    [
        (
            "method",
            "wrong_shapes",
            ("shapes", "line 14, in loss: `return jnp.sum(logits + jnp.ones(logits.shape[1] + 1))`"),
        ),
        (
            "method",
            "refuses",
            ("config.method: strength is 2.0; allowed: up to 1 (own_things.py, line 22",),
        ),
        ("data", "dataset", ("AttributeError: 'Dataset' object has no attribute 'nothing' (own_things.py, line 26",)),
        ("partition", "partition", ("ZeroDivisionError", "own_things.py, line 30, in partition: `return 1 / 0`")),
        ("supervision", "supervision", ("RuntimeError: not yet (own_things.py, line 34",)),
        ("model", "Model", ("AttributeError", "own_things.py, line 43, in __init__")),
        ("federated", "optimizer", ("KeyError: 'no state' (own_things.py, line 47",)),
        ("method", "refuse", ("own_things.py has no 'refuse'. Did you mean 'own_things:refuses'",)),
        ("model", "absent.nothing:Model", ("no module named 'absent'",)),
    ],
)
def test_the_users_line_is_named(start, tmp_path, field, name, messages):
    name = name if ":" in name else f"own_things:{name}"
    options = [f"--{field}.name={name}", *["--supervision.labels=None"] * (field == "supervision")]
    options += ["--partition.num_clients=3"] * (field == "partition")
    code, error = start(*options)
    assert code == 2 and error.count("error:") == 1 and "Traceback" not in error, error
    assert all(message in error for message in messages), error
    assert not (tmp_path / "run").exists()


def test_an_error_of_ours_keeps_its_traceback(start, monkeypatch):
    monkeypatch.setattr("fedjax_ssl.runs.loop.Run", None)
    with pytest.raises(TypeError, match="not callable"):
        start()
