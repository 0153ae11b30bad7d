"""Models that clients have before they are averaged: kept by a run, used by `load_run(...).predict`."""

import csv
import io

import numpy as np
import pytest

from fedjax_ssl import cli, presets
from fedjax_ssl.config import ConfigError, resolve
from fedjax_ssl.runs.loop import run
from fedjax_ssl.trained.model import TrainedModelError, load_run
from tests.saved import state_of

IMAGES = np.random.default_rng(0).integers(0, 17, (7, 8, 8, 1)).astype(np.uint8)


def config(**fields):
    found = presets.digits_by_writer("fedavg")
    found.update({"rounds": 4, "eval_every": 4, "save_clients": "2,4", **fields})
    found.model.name = "linear"
    return found


def log_probabilities(model, **given):
    return np.log(model.predict(IMAGES, **given).astype(np.float64))


def centred(values):
    return values - values.mean(axis=-1, keepdims=True)


@pytest.mark.parametrize("devices", [1, 2])
def test_the_global_model_is_the_mean_of_what_is_kept_and_nothing_else_changes(tmp_path, devices, capsys):
    with_devices = config()
    with_devices.federated.devices = devices
    run(with_devices, tmp_path / "kept")
    run(config(save_clients=""), tmp_path / "plain", quiet=True)
    kept, plain = (state_of(tmp_path / name) for name in ("kept", "plain"))
    assert kept == plain
    assert "models of up to 11 clients are kept of round 2, 4: 28.6 kB a round" in capsys.readouterr().out
    model = load_run(tmp_path / "kept")
    names = model.client_names[:11]
    # Scores of a linear model are linear in its weights, and all clients count alike.
    mean = np.mean([centred(log_probabilities(model, client=name)) for name in names], axis=0)
    np.testing.assert_allclose(mean, centred(log_probabilities(model)), atol=1e-4)
    assert not np.allclose(log_probabilities(model, client=names[0]), log_probabilities(model, client=names[1]))
    shorter = config(rounds=2, eval_every=2, save_clients="last")
    run(shorter, tmp_path / "two", quiet=True)
    for name in names[:2]:
        two = load_run(tmp_path / "two").predict(IMAGES, client=name)
        np.testing.assert_array_equal(two, model.predict(IMAGES, client=name, round=2))


def test_a_run_that_was_stopped_keeps_the_same_models(tmp_path):
    given = config(eval_every=1)
    run(given, tmp_path / "whole", quiet=True)
    run(config(rounds=3, eval_every=1, save_clients="2"), tmp_path / "stopped", quiet=True)
    run(given, tmp_path / "stopped", quiet=True)
    for round in (2, 4):
        whole, stopped = (
            load_run(tmp_path / name).predict(IMAGES, client=3, round=round) for name in ("whole", "stopped")
        )
        np.testing.assert_array_equal(whole, stopped)


def test_the_command_takes_a_client_and_a_round(tmp_path, capsys):
    run(config(rounds=2, eval_every=2, save_clients="1,last"), tmp_path / "run", quiet=True)
    np.savez(tmp_path / "images.npz", inputs=IMAGES)
    model = load_run(tmp_path / "run")
    for round in (1, 2):
        given = [
            tmp_path / "run",
            tmp_path / "images.npz",
            "--client",
            model.client_names[3],
            "--round",
            round,
            "--all",
        ]
        assert cli.main(["predict", *map(str, given)]) == 0
        rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
        found = [[float(row[f"probability_{name}"]) for name in model.class_names] for row in rows]
        np.testing.assert_allclose(found, model.predict(IMAGES, client=3, round=round), atol=1e-5)


def test_who_did_not_train_or_was_not_kept_is_said(tmp_path, capsys):
    given = config(save_clients="last")
    given.federated.cohort_size = 3
    run(given, tmp_path / "three", quiet=True)
    model = load_run(tmp_path / "three")
    absent = []
    for name in model.client_names[:11]:
        try:
            model.predict(IMAGES, client=name)
        except TrainedModelError as error:
            absent.append(name)
            assert f"client {name!r} did not train in round 4. Clients: " in str(error)
    assert len(absent) == 8
    with pytest.raises(TrainedModelError, match="this run kept rounds 4 "):
        model.predict(IMAGES, client=absent[0], round=2)
    run(config(save_clients=""), tmp_path / "plain", quiet=True)
    with pytest.raises(TrainedModelError, match="--save_clients=last keeps the models"):
        load_run(tmp_path / "plain").predict(IMAGES, client=3)
    run(config(save_clients="2"), tmp_path / "plain")
    assert "names round 2, which this folder is past without them" in capsys.readouterr().out


@pytest.mark.parametrize("given", ["5", "first", "0"])
def test_rounds_that_are_not_there_are_refused(given):
    with pytest.raises(
        ConfigError, match=rf"config.save_clients names '{given}'; allowed: 'last' and rounds from 1 to 4"
    ):
        resolve(config(save_clients=given))


def test_a_client_of_a_method_with_models_of_their_own_keeps_these(tmp_path):
    given = config(save_clients="last")
    given.federated.name = "local"
    run(given, tmp_path, quiet=True)
    model = load_run(tmp_path)
    # Alone, a client's model after local training is the one that it keeps.
    np.testing.assert_allclose(model.predict(IMAGES, client=3), model.predict(IMAGES, client=3, round=4), rtol=1e-5)
