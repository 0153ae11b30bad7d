"""Clients tune copies of the last model and test them; nothing comes back."""

import csv

import jax
import numpy as np
import pytest

import fedjax_ssl as fs
from fedjax_ssl.federated.evaluation import compared
from fedjax_ssl.runs import build, federate, fine_tuning, load_experiment

OWN_TEST = {"data.test_clients": 0, "data.client_test_fraction": 0.3}


def run(folder, **given):
    settings = {**OWN_TEST, "rounds": 2, "eval_every": 2, **given}
    return fs.run(fs.load_config("digits_fedavg", settings), folder, quiet=True)


def test_the_share_that_gains_counts_clients_with_test_examples() -> None:
    common = np.array([0.5, 0.8, np.nan, 0.4, 0.2])
    own = np.array([0.6, 0.8, np.nan, 0.3, np.nan])
    found = {name: float(value) for name, value in compared(common, own).items()}
    assert found["gain"] == pytest.approx(1 / 3)
    assert found["global_accuracy"] == pytest.approx((0.5 + 0.8 + 0.4) / 3)
    assert found["global_accuracy_worst_tenth"] == pytest.approx(0.4)


@pytest.mark.parametrize(
    "given, says",
    [
        ({"data.test_clients": 3, "data.client_test_fraction": 0.0}, None),
        ({"method.name": "protofssl"}, "method 'protofssl' does not predict with the class scores"),
        ({"partition.name": "iid", "partition.num_clients": 3, **OWN_TEST}, None),
    ],
)
def test_what_cannot_be_tuned_or_tested_is_refused_before_training(given, says) -> None:
    settings = {**OWN_TEST, **given, "personalize.epochs": 1}
    experiment = load_experiment(fs.load_config("digits_fedavg", settings))
    built = build(experiment, federate(experiment, jax.random.key(0)))
    if says is None and built.federation.owned_test:
        fine_tuning.check(built)
        return
    with pytest.raises(ValueError, match=says or "no client has test examples of its own"):
        fine_tuning.check(built)


@pytest.mark.thorough
def test_copies_are_tuned_and_the_model_stays(tmp_path) -> None:
    plain = run(tmp_path / "plain")
    summary = run(tmp_path / "tuned", **{"personalize.epochs": 3})
    assert summary["test_accuracy"] == plain["test_accuracy"]
    tuned = summary["fine_tuning"]
    assert tuned["epochs"] == 3 and tuned["tuned_clients"] == 14
    assert tuned["global_accuracy"] == pytest.approx(plain["test_client_accuracy"], abs=1e-5)
    assert tuned["accuracy"] != tuned["global_accuracy"] and tuned["gain"] > 0
    with open(tmp_path / "tuned" / fine_tuning.FILE, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["client"] for row in rows][:2] == ["writer 0", "writer 1"]
    gain = np.mean([float(row["after"]) > float(row["before"]) for row in rows])
    assert gain == pytest.approx(tuned["gain"], abs=1e-5)


@pytest.mark.thorough
def test_a_rate_of_next_to_nothing_changes_nothing(tmp_path) -> None:
    given = {"personalize.steps": 2, "personalize.learning_rate": 1e-12}
    tuned = run(tmp_path / "still", **given)["fine_tuning"]
    assert tuned["steps"] == 2 and tuned["gain"] == 0.0
    assert tuned["accuracy"] == tuned["global_accuracy"]


@pytest.mark.thorough
def test_a_kept_model_predicts_and_is_compared_with_the_global_one(tmp_path) -> None:
    given = {"personalize.name": "ditto", "personalize.pull": 0.1}
    summary = run(tmp_path / "ditto", **given)
    assert 0 <= summary["test_client_gain"] <= 1
    assert summary["test_client_global_accuracy"] != summary["test_client_accuracy"]
    text = (tmp_path / "ditto" / "personal_accuracy.csv").read_text()
    table = list(csv.DictReader(text.splitlines()))
    assert table[0].keys() == {"client", "global", "own"}
    by_global = np.mean([float(row["global"]) for row in table])
    np.testing.assert_allclose(by_global, summary["test_client_global_accuracy"], atol=1e-5)
    gain = np.mean([float(row["own"]) > float(row["global"]) for row in table])
    np.testing.assert_allclose(gain, summary["test_client_gain"], atol=1e-5)
    model = fs.load_run(tmp_path / "ditto")
    inputs = fs.load_dataset("digits").train.x[:4]
    own = model.predict(inputs, client="writer 3")
    assert np.max(np.abs(own - model.predict(inputs, client="writer 4"))) > 1e-4
    assert np.max(np.abs(own - model.predict(inputs))) > 1e-4
