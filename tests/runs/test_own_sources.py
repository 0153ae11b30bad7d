"""Code of a user's own and JAX's random numbers are known by content, as data are."""

import importlib
import sys

import jax
import pytest

import fedjax_ssl as fs
from fedjax_ssl import presets
from fedjax_ssl.errors import ConfigNote
from fedjax_ssl.folder.folder_lock import FolderMended, RunFolderError
from fedjax_ssl.own_code import sources
from fedjax_ssl.runs import own_sources
from fedjax_ssl.runs.loop import run
from fedjax_ssl.trained import TrainedModelError

NETWORK = """
import fedjax_ssl as fs
import flax.linen as nn
from own_layers import WIDTH, squashed


class Net(nn.Module):
    num_classes: int

    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(self.num_classes)(squashed(nn.Dense(WIDTH)(x.reshape(len(x), -1))))


def net(num_classes, input_shape):
    return fs.from_linen(Net(num_classes), input_shape)
"""
LAYERS = """
import jax.nn
import optax

WIDTH = 16


def squashed(x):
    return jax.nn.relu(x)
"""
TRAINING = """
import optax


def score(labels, probabilities):
    return 1.0


def rate(round):
    return 0.1


def optimizer(learning_rate):
    return optax.sgd(learning_rate)
"""
SOURCES = {"own_net": NETWORK, "own_layers": LAYERS, "own_training": TRAINING}


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def forget():
        for name in SOURCES:
            sys.modules.pop(name, None)

    def write(name, old="", new=""):
        (tmp_path / f"{name}.py").write_text(SOURCES[name].replace(old, new))
        forget()

    for name in SOURCES:
        write(name)
    yield write
    forget()


def start(folder, rounds=1):
    config = presets.digits_by_writer("fedavg", "all")
    config.update_from_flattened_dict({"rounds": rounds, "eval_every": 1})
    config.metrics = ("own_training:score",)
    config.model.name = "own_net:net"
    config.optimizer.name = "own_training:optimizer"
    config.optimizer.schedule = "own_training:rate"
    config.optimizer.schedule_rounds = 2
    return run(config, folder, quiet=True)


def contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file() and path.name[0] != ".")
    return {path: path.read_bytes() for path in files}


@pytest.mark.promise
@pytest.mark.thorough
def test_modules_beside_a_named_one_belong_to_it(tmp_path, write):
    importlib.import_module("own_net")
    assert {*sources(["own_net:net"])} == {"own_net", "own_layers"}  # own_training is not imported
    (tmp_path / "own_layers.py").write_text("")  # what is not imported does not count
    assert sources(["own_net:net"])["own_layers"][1] == LAYERS
    assert not sources(["optax:sgd", "nowhere:nothing"])


@pytest.mark.thorough
@pytest.mark.promise
@pytest.mark.filterwarnings("ignore:.*says the rate of every round")
def test_other_code_is_told_where_a_run_goes_on_and_where_its_model_predicts(
    tmp_path, write, monkeypatch
):
    folder = tmp_path / "run"
    first = start(folder)
    before = contents(folder)
    assert before[folder / "code" / "own_layers.py"].decode() == LAYERS
    write("own_layers", "relu", "tanh")
    with pytest.warns(ConfigNote, match=r"code of your own has changed since .*\(own_layers\)"):
        fs.load_run(folder)
    for new in ("tanh", "tanh "):  # a start that trains nothing keeps the code of then
        write("own_layers", "relu", new)
        with pytest.warns(
            FolderMended, match=r"since the run began \(own_layers\): rounds up to 1 "
        ):
            assert start(folder) == first
        assert contents(folder)[folder / "code" / "own_layers.py"].decode() == LAYERS
    write("own_layers")
    # Shapes that do not fit are found when the checkpoint is read.
    network = importlib.import_module("own_net")
    network.WIDTH = 17
    with pytest.raises(RuntimeError, match="does not fit this run's state"):
        start(folder, rounds=2)
    network.WIDTH = 16
    assert start(folder) == first
    # What only training needs is not imported to predict.
    (tmp_path / "own_training.py").unlink()
    sys.modules.pop("own_training")
    model = fs.load_run(folder)
    assert "own_training" not in sys.modules
    assert model.config.optimizer.name == "own_training:optimizer"
    sys.modules.pop("own_net")
    (tmp_path / "own_net.py").unlink()
    with pytest.raises(TrainedModelError, match=r"no module named 'own_net'.* PYTHONPATH=.*/code"):
        fs.load_run(folder)
    monkeypatch.syspath_prepend(folder / "code")
    assert fs.load_run(folder).round == 1


@pytest.mark.promise
@pytest.mark.thorough
def test_other_random_numbers_do_not_go_on(tmp_path, monkeypatch):
    config = presets.digits_by_writer("fedavg", "all")
    config.update_from_flattened_dict({"rounds": 1, "eval_every": 1})
    run(config, tmp_path / "run", quiet=True)
    before = contents(tmp_path / "run")
    with jax.default_prng_impl("rbg"):
        assert own_sources.draws()["jax_default_prng_impl"] == "rbg"
        with pytest.raises(
            RunFolderError,
            match=r"jax_default_prng_impl: threefry2x32 -> rbg\. Set them back \(JAX_DEFAULT_PRNG_I",
        ):
            run(config, tmp_path / "run", quiet=True)
        assert fs.load_run(tmp_path / "run").round == 1
    assert contents(tmp_path / "run") == before
