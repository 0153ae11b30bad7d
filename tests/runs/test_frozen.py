"""Runs that train a part of their network: what is sent, kept, gone on with and taken elsewhere."""

import gc
import json
import re
import shutil
import weakref

import jax
import numpy as np
import pytest

import fedjax_ssl as fs
from fedjax_ssl import models
from fedjax_ssl.config import ConfigError
from fedjax_ssl.folder.checkpoint import CheckpointError, Checkpoints
from fedjax_ssl.models.pretrained import vit_layers
from fedjax_ssl.runs import Shared, processes
from fedjax_ssl.runs.build import rest_of as original
from fedjax_ssl.runs.loop import Point, run_batch
from fedjax_ssl.runs.processes import data_of
from tests.models.torchvision_arrays import arrays_of
from tests.saved import state_of

FIELDS = {"eval_every": 1, "optimizer.local_epochs": 1, "data.test_clients": 9}
LORA = {"model.train": "lora", "model.lora_rank": 2}
NUMBERS = 2 * (128 + 64) + 128 * 10 + 10  # of the pair and of the head
REST = 128 * 64 + 128
VIT = {"patch": 4, "dim": 8, "depth": 1, "heads": 2}


def config(rounds, **more):
    return fs.load_config("digits_fedavg", {**FIELDS, **LORA, "rounds": rounds, **more})


@pytest.fixture(scope="module")
def shared():
    return Shared()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, shared):
    folder = tmp_path_factory.mktemp("lora") / "run"
    fs.run(config(2), folder, quiet=True, shared=shared)
    return folder


def sizes(arrays):
    return sum(array.size for array in arrays.values())


def test_what_is_trained_is_sent_and_the_rest_is_kept_once(folder):
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert row["bytes_up"] == row["bytes_down"] == 4 * NUMBERS * row["clients"] > 0
    arrays = Checkpoints(folder).arrays(2)
    assert sizes({name: one for name, one in arrays.items() if ".params" in name}) == NUMBERS
    assert sizes(arrays) < NUMBERS + 100
    frozen = Checkpoints(folder, folder="frozen")
    assert (frozen.rounds(), sizes(frozen.arrays(0))) == ([0], REST)


def test_it_goes_on_bit_for_bit(folder, shared, tmp_path):
    fs.run(config(1), tmp_path / "run", quiet=True, shared=shared)
    fs.run(config(2), tmp_path / "run", quiet=True, shared=shared)
    assert state_of(tmp_path / "run") == state_of(folder)


def test_it_goes_on_with_the_rest_in_its_folder(folder, shared, tmp_path):
    """And not with that of a file which has become another one."""
    fs.run(config(1), tmp_path / "run", quiet=True, shared=shared)
    frozen = Checkpoints(tmp_path / "run", folder="frozen")
    stored = {name: 0 * array for name, array in frozen.arrays(0).items()}
    frozen.write(0, stored, {})
    fs.run(config(2), tmp_path / "run", quiet=True, shared=shared)
    assert state_of(tmp_path / "run") != state_of(folder)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["model.weights", "start_from"])
def test_it_goes_on_without_the_weights_that_it_began_with(folder, tmp_path, kind):
    given = tmp_path / "given.npz"
    network = {"model.name": "vit_s16", "model.lora_layers": "*.qkv"}
    network |= {f"model.{name}": value for name, value in VIT.items()}
    if kind == "start_from":
        shutil.copytree(folder, given)
        network = {"model.train": "head", "model.lora_rank": 4}
    else:
        built = models.build("vit_s16", num_classes=10, input_shape=(8, 8, 1), **VIT)
        np.savez(given, **arrays_of(built, vit_layers()))
    for name, rounds in (("run", (1, 2)), ("whole", (2,))):
        for number in rounds:
            gone = number == 2 and name == "run"
            if gone:
                given.rename(tmp_path / "gone")
            fs.run(config(number, **network, **{kind: str(given)}), tmp_path / name, quiet=True)
            if gone:
                (tmp_path / "gone").rename(given)
    assert state_of(tmp_path / "run") == state_of(tmp_path / "whole")
    with pytest.raises(ConfigError, match="gone"):
        fs.run(config(1, **network, **{kind: str(tmp_path / "gone")}), tmp_path / "new", quiet=True)


def test_a_rest_that_is_gone_is_said(folder, shared, tmp_path):
    shutil.copytree(folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "frozen")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .*frozen"):
        fs.run(config(3), tmp_path / "run", quiet=True, shared=shared)


@pytest.fixture
def constants(tmp_path):
    """Give a function: the largest constant of the programs that were lowered, in characters."""
    jax.config.update("jax_dump_ir_to", str(tmp_path / "programs"))
    yield lambda: max(
        len(found)
        for file in (tmp_path / "programs").iterdir()
        for found in re.findall(r"dense<[^>]*>|$", file.read_text())
    )
    jax.config.update("jax_dump_ir_to", None)


def test_the_rest_is_an_argument_of_a_trained_models_programs(folder, constants):
    model = fs.load_run(folder)
    inputs = fs.load_dataset("digits").train.x[:2]
    assert (model.predict(inputs).shape, model.embed(inputs).shape) == ((2, 10), (2, 128))
    assert constants() < REST


@pytest.mark.thorough
def test_the_rest_is_an_argument_of_a_runs_programs(tmp_path, constants):
    held_out = {"data.test_clients": 0, "data.client_test_fraction": 0.2}
    names = "network,xclp,per_client_lp,class_means,linear_head"
    more = {"prediction.predictors": names, "personalize.epochs": 1, "model.hidden": (1024,)}
    fs.run(config(1, **held_out, **more), tmp_path / "run", quiet=True)
    assert constants() < 8 * REST


@pytest.mark.thorough
def test_the_model_predicts_and_starts_another_run_of_the_whole_network(folder, tmp_path):
    model = fs.load_run(folder)
    digits = fs.load_dataset("digits")
    right = model.predict(digits.train.x).argmax(1) == digits.train.y
    assert abs(float(right.mean()) - model.metrics["test_accuracy"]) < 0.2
    pytest.importorskip("safetensors")
    path = model.save_parameters(tmp_path / "whole.safetensors")
    from safetensors.numpy import load_file

    arrays = load_file(path)
    assert sizes(arrays) == REST + 128 * 10 + 10
    for place in (folder, path):
        for train in ("all", "head"):
            start = {"start_from": str(place), "model.train": train, "model.lora_rank": 4}
            fs.run(config(1, **start), tmp_path / f"{train}{place.suffix}", quiet=True)
    both = (Checkpoints(tmp_path / f"all{end}").arrays(1) for end in ("", ".safetensors"))
    first, second = both
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "more",
    [{"federated.devices": 2}, {"federated.placement": "vmap"}, {"personalize.epochs": 1}],
    ids=str,
)
def test_it_does_not_depend_on_where_clients_run(folder, tmp_path, more):
    beside = (
        {"data.test_clients": 0, "data.client_test_fraction": 0.2}
        if "personalize.epochs" in more
        else {}
    )
    summary = fs.run(config(2, **more, **beside), tmp_path / "run", quiet=True)
    if beside:
        assert "accuracy" in summary["fine_tuning"]
        return
    arrays, expected = (Checkpoints(place).arrays(2) for place in (tmp_path / "run", folder))
    for name, array in expected.items():
        np.testing.assert_allclose(arrays[name], array, atol=1e-5)


@pytest.mark.thorough
def test_what_is_put_on_several_devices_is_nowhere_else(tmp_path, monkeypatch):
    more = {
        "federated.devices": 2,
        "data.test_clients": 0,
        "data.client_test_fraction": 0.2,
        "prediction.predictors": "network,class_means",
    }
    made = []

    def rest_of(key):
        def rest(network):
            frozen = original(key)(network)
            made.extend(map(weakref.ref, jax.tree.leaves(frozen)))
            return frozen

        return rest

    monkeypatch.setattr("fedjax_ssl.runs.shared.rest_of", rest_of)
    # as on accelerators: devices of a CPU may look at one copy
    monkeypatch.setattr(processes, "data_of", lambda leaf: np.array(data_of(leaf)))
    gone = []

    def look(block):
        gc.collect()
        gone.extend(one() is None for one in made)

    fs.run(config(1, **more), tmp_path / "run", quiet=True, callbacks=[look])
    assert gone == [True, True]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::fedjax_ssl.errors.ConfigNote")
def test_runs_together_hold_the_rest_once(tmp_path):
    shared = Shared()
    start = tmp_path / "start"
    fs.run(config(1, **{"model.train": "all", "model.lora_rank": 4}), start, quiet=True)
    points = [
        Point(config(2, seed=seed, start_from=str(start)), tmp_path / str(seed))
        for seed in range(2)
    ]
    assert all(isinstance(one, dict) for one in run_batch(points, shared))
    for seed in range(2):
        alone = config(2, seed=seed, start_from=str(start))
        fs.run(alone, tmp_path / f"alone{seed}", quiet=True, shared=shared)
        first, second = (Checkpoints(tmp_path / f"{way}{seed}").arrays(2) for way in ("", "alone"))
        for name, array in first.items():
            np.testing.assert_allclose(array, second[name], atol=1e-5)
