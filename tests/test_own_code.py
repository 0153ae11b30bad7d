"""An error in code of a user's own ends a command with one message that has its file and line."""

import sys

import pytest

from fedjax_ssl import cli

METHODS = """
import jax.numpy as jnp

from fedjax_ssl.data import load
from fedjax_ssl.federated import Recipe, Stage, Term, Training, labelled_epochs
from fedjax_ssl.methods.parts.terms import augmented_view


def wrong_shapes(setup):
    view = augmented_view(setup, "labelled")

    def loss(step):
        logits = step.outputs[view.name].logits
        return jnp.sum(logits + jnp.ones(logits.shape[1] + 1))

    sampler = labelled_epochs(setup.batch_size, setup.local_epochs, setup.max_labelled)
    return Recipe(setup, (Stage(Training((Term("own", (view,), loss),), sampler)),))


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


RETURNS = """
import jax.numpy as jnp
import numpy as np

from fedjax_ssl.data import Dataset, Split
from fedjax_ssl.data.federation.pool import Partition
from fedjax_ssl.data.federation.supervision import all_labels
from fedjax_ssl.federated import Cohort


def nothing(num_classes=0):
    pass


def partition(client=99):
    return Partition(lambda key, pool: jnp.full(pool.labels.shape, client))


def short_partition():
    return Partition(lambda key, pool: jnp.zeros(3, jnp.int32))


def supervision():
    return all_labels()._replace(keep=lambda key, holdings: jnp.ones(holdings.labels.shape))


def far(client=999):
    return lambda key, labelled, examples, size, quota: Cohort(jnp.full(size, client), jnp.ones(size, bool))


def other():
    return lambda key, examples, size: examples


def dataset(size=4, path="own.csv", download=False, test_fraction=0.5):
    assert (size, path, download, test_fraction) == (4, "own.csv", False, 0.5)
    x, y = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32), np.arange(60) % 2
    return Dataset("mine", Split(x, y, np.arange(60) // 20), None, ("a", "b"), input_max=1.0)
"""


@pytest.fixture
def start(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_things.py").write_text(METHODS)
    (tmp_path / "own_returns.py").write_text(RETURNS)
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = cli.main(["run", "digits_fedavg", "--rounds=1", "--workdir=run", *arguments])
        return code, capsys.readouterr().err

    yield call
    sys.modules.pop("own_things", None)
    sys.modules.pop("own_returns", None)


@pytest.mark.parametrize(
    ("field", "name", "messages"),
    [
        (
            "method",
            "wrong_shapes",
            (
                "shapes",
                "line 14, in loss: `return jnp.sum(logits + jnp.ones(logits.shape[1] + 1))`",
            ),
        ),
        (
            "method",
            "refuses",
            ("config.method: strength is 2.0; allowed: up to 1 (own_things.py, line 22",),
        ),
        (
            "partition",
            "partition",
            ("ZeroDivisionError", "own_things.py, line 30, in partition: `return 1 / 0`"),
        ),
        ("model", "Model", ("AttributeError", "own_things.py, line 43, in __init__")),
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
    monkeypatch.setattr("fedjax_ssl.runs.start_run.Run", None)
    with pytest.raises(TypeError, match="not callable"):
        start()


FIVE = ("--partition.num_clients=5", "--data.test_clients=0", "--data.test_fraction=0.2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            (
                [f"--{section}.name=own_returns:nothing", *FIVE * (section == "partition")],
                f"returned NoneType; it has to return a {wanted} (own_returns",
            )
            for section, wanted in {
                **{"data": "Dataset", "partition": "Partition", "supervision": "Supervision"},
                "model": "Model: a pair (init, apply), fs.from_linen(module, input_shape) or fs.from_nnx(function of rngs)",
                **{"augment": "function", "cohort": "function", "federated": "FederatedOptimizer"},
            }.items()
        ),
        (
            ["--partition.name=own_returns:partition", *FIVE],
            "examples to client 99; there are clients 0 to 4",
        ),
        (
            ["--partition.name=own_returns:short_partition", *FIVE],
            "int32 [3] came, integer [1797] has to (own_returns",
        ),
        (
            ["--supervision.name=own_returns:supervision"],
            "float32 [1797] came, bool [1797] has to (own_returns.py",
        ),
        (
            ["--cohort.name=own_returns:other"],
            "other arguments (too many positional arguments); it has to return a",
        ),
        (
            ["--augment.name=own_returns:other"],
            "missing a required argument: 'size'); it has to return a function of",
        ),
        (
            ["--cohort.name=own_returns:far"],
            "draws client 999; there are 0 to 10 (own_returns.py, line 27)",
        ),
        (
            ["--cohort.name=own_returns:far", "--cohort.client=3"],
            "draws a client twice in a round (own_returns.py",
        ),
    ],
)
def test_what_the_users_code_returns_is_checked(start, arguments, message):
    code, error = start(*arguments)
    assert code == 2 and message in error and "Traceback" not in error, error


def test_a_loaders_own_defaults_are_kept(start):
    code, error = start(
        "--data.name=own_returns:dataset", "--data.test_clients=1", "--supervision.labels=2"
    )
    assert code == 0, error
