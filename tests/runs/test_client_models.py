"""Models that clients have before they are averaged: kept by a run, used by
`load_run(...).predict`.
"""

import csv
import io

import numpy as np
import pytest

from fedjax_ssl import cli, presets
from fedjax_ssl.config import ConfigError, resolve
from fedjax_ssl.runs.loop import run
from fedjax_ssl.runs.shared import Shared
from fedjax_ssl.trained.trained_model import TrainedModelError, load_run
from tests.saved import state_of

IMAGES = np.random.default_rng(0).integers(0, 17, (7, 8, 8, 1)).astype(np.uint8)


@pytest.fixture(scope="module")
def shared():
    return Shared()


def config(**fields):
    found = presets.digits_by_writer("fedavg")
    found.update({"rounds": 4, "eval_every": 4, "save_clients": 4, **fields})
    found.model.name = "linear"
    return found


def log_probabilities(model, **given):
    return np.log(model.predict(IMAGES, **given).astype(np.float64))


def centred(values):
    return values - values.mean(axis=-1, keepdims=True)


@pytest.mark.thorough
@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.promise)])
def test_the_global_model_is_the_mean_of_what_is_kept_and_nothing_else_changes(
    tmp_path, devices, capsys, shared
):
    with_devices = config()
    with_devices.federated.devices = devices
    run(with_devices, tmp_path / "kept", shared=shared)
    run(config(save_clients=None), tmp_path / "plain", shared=shared, quiet=True)
    kept, plain = (state_of(tmp_path / name) for name in ("kept", "plain"))
    assert kept == plain
    assert "models of up to 11 clients are kept of round 4: 28.6 kB" in capsys.readouterr().out
    model = load_run(tmp_path / "kept")
    names = model.client_names[:11]
    # Scores of a linear model are linear in its weights, and all clients count alike.
    mean = np.mean([centred(log_probabilities(model, client=name)) for name in names], axis=0)
    np.testing.assert_allclose(mean, centred(log_probabilities(model)), atol=1e-4)
    assert not np.allclose(
        log_probabilities(model, client=names[0]), log_probabilities(model, client=names[1])
    )


@pytest.mark.thorough
def test_models_of_a_round_are_those_of_the_last_round_of_a_shorter_run(tmp_path, shared):
    for folder, fields in (
        ("second", {"save_clients": 2}),
        ("two", {"rounds": 2, "eval_every": 2, "save_clients": "last"}),
        ("kept", {}),
    ):
        run(config(**fields), tmp_path / folder, shared=shared, quiet=True)
    for client in (0, 1):
        found = [
            load_run(tmp_path / folder).predict(IMAGES, client=client)
            for folder in ("second", "two", "kept")
        ]
        np.testing.assert_array_equal(found[0], found[1])
        assert not np.allclose(found[0], found[2])


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "rounds"), [(4, 1), (2, 3)])
def test_a_run_that_was_stopped_keeps_the_same_models(tmp_path, shared, number, rounds):
    given = config(eval_every=1, save_clients=number)
    run(given, tmp_path / f"whole {number}", shared=shared, quiet=True)
    before = {"save_clients": number} if number <= rounds else {"save_clients": None}
    run(
        config(rounds=rounds, eval_every=1, **before),
        tmp_path / f"stopped {number}",
        shared=shared,
        quiet=True,
    )
    run(given, tmp_path / f"stopped {number}", shared=shared, quiet=True)
    whole, stopped = (
        load_run(tmp_path / f"{name} {number}").predict(IMAGES, client=3)
        for name in ("whole", "stopped")
    )
    np.testing.assert_array_equal(whole, stopped)


@pytest.mark.promise
@pytest.mark.thorough
def test_the_command_takes_a_client(tmp_path, capsys, shared):
    run(config(rounds=2, eval_every=2, save_clients=1), tmp_path / "run", shared=shared, quiet=True)
    np.savez(tmp_path / "images.npz", inputs=IMAGES)
    model = load_run(tmp_path / "run")
    given = [tmp_path / "run", "--client", model.client_names[3], tmp_path / "images.npz", "--all"]
    assert cli.main(["predict", *map(str, given)]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    found = [[float(row[f"probability_{name}"]) for name in model.class_names] for row in rows]
    np.testing.assert_allclose(found, model.predict(IMAGES, client=3), atol=1e-5)


@pytest.mark.promise
@pytest.mark.thorough
def test_who_did_not_train_or_was_not_kept_is_said(tmp_path, capsys, shared):
    given = config(save_clients="last")
    given.federated.cohort_size = 3
    run(given, tmp_path / "three", shared=shared, quiet=True)
    model = load_run(tmp_path / "three")
    absent = []
    for name in model.client_names[:11]:
        try:
            model.predict(IMAGES, client=name)
        except TrainedModelError as error:
            absent.append(name)
            assert f"client {name!r} did not train in round 4. Clients: " in str(error)
    assert len(absent) == 8
    with pytest.raises(
        TrainedModelError, match="features are the global model's; leave client out"
    ):
        model.embed(IMAGES, client=absent[0])
    run(config(save_clients=None), tmp_path / "plain", shared=shared, quiet=True)
    with pytest.raises(TrainedModelError, match="--save_clients=last keeps the models"):
        load_run(tmp_path / "plain").predict(IMAGES, client=3)
    run(config(save_clients=2), tmp_path / "plain", shared=shared)
    assert "names round 2, which this folder is past without them" in capsys.readouterr().out


@pytest.mark.promise
@pytest.mark.thorough
def test_a_run_that_ends_before_its_round_says_that_no_models_are_kept(tmp_path, capsys, shared):
    given = config(rounds=3, eval_every=1, save_clients="last")
    given.data.validation_fraction = 0.2
    given.optimizer.learning_rate = 0.0  # nothing gets better
    given.early_stopping.patience = 1
    run(given, tmp_path / "run", shared=shared)
    said = (
        "no clients' models are kept: the run stopped after round 2, save_clients=last names "
        "round 3"
    )
    assert said in " ".join(capsys.readouterr().out.split())
    assert not (tmp_path / "run" / "clients").exists()


@pytest.mark.parametrize("given", [5, "first", 0])
@pytest.mark.promise
@pytest.mark.thorough
def test_rounds_that_are_not_there_are_refused(given):
    message = rf"config\.save_clients is {given!r}; allowed: last, or a round from 1 to 4"
    with pytest.raises(ConfigError, match=message):
        resolve(config(save_clients=given))


@pytest.mark.promise
@pytest.mark.thorough
def test_clients_with_models_of_their_own_need_none(tmp_path, shared):
    given = config(save_clients="last")
    given.federated.name = "local"
    with pytest.raises(
        ConfigError,
        match=r"config\.save_clients is 'last', but clients have models or inputs of their",
    ):
        run(given, tmp_path / "run", shared=shared, quiet=True)
