"""Models of clients' own beside the global one, and copies of it that they tune."""

import csv

import numpy as np
import pytest

import fedjax_ssl as fs
from fedjax_ssl.federated.evaluation import compared

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


@pytest.mark.thorough
def test_one_round_alone_tunes_copies_of_the_model_of_another_run(tmp_path) -> None:
    plain = run(tmp_path / "plain")
    given = {"method.name": "alone", "rounds": 1, "eval_every": 1, "optimizer.local_epochs": 3}
    tuned = run(tmp_path / "tuned", start_from=str(tmp_path / "plain"), **given)
    assert tuned["test_client_accuracy"] != plain["test_client_accuracy"]
    still = {**given, "optimizer.learning_rate": 1e-12}
    same = run(tmp_path / "still", start_from=str(tmp_path / "plain"), **still)
    assert same["test_client_accuracy"] == pytest.approx(plain["test_client_accuracy"], abs=1e-5)


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
