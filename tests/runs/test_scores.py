"""Detailed scores at the end of a run, beside scikit-learn's, and the temperature that goes with
the model.
"""

import functools

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as sklearn

from fedjax_ssl import cli, data, load_config, load_run, presets
from fedjax_ssl.runs.loop import run
from fedjax_ssl.runs.scores import fit_temperature, one_class, scaled, scores
from fedjax_ssl.runs.shared import Shared


def experiment(**fields):
    config = presets.digits_by_writer("fedavg", "all")
    config.rounds = 2
    config.eval_every = 1
    config.optimizer.local_epochs = 1
    config.data.test_clients = 3
    config.data.validation_fraction = 0.2
    config.update_from_flattened_dict(fields)
    return config


@pytest.fixture(scope="module")
def shared():
    return Shared()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, shared):
    path = tmp_path_factory.mktemp("scores") / "run"
    run(experiment(), path, shared=shared, quiet=True)
    return path


def table_of(folder):
    table = pd.read_csv(folder / "test_predictions.csv", dtype={"label": str, "prediction": str})
    return (
        table,
        table.filter(like="probability_").to_numpy(),
        table["label"].astype(int).to_numpy(),
    )


def assert_equal_to_sklearn(found, labels, probabilities):
    classes = range(probabilities.shape[1])
    predicted = probabilities.argmax(axis=1)
    assert (
        found["confusion"] == sklearn.confusion_matrix(labels, predicted, labels=classes).tolist()
    )
    theirs = sklearn.precision_recall_fscore_support(
        labels, predicted, labels=classes, zero_division=np.nan
    )
    for name, values in zip(("precision", "recall", "f1", "support"), theirs, strict=True):
        np.testing.assert_allclose(np.array(found[name], float), values, atol=1e-6, err_msg=name)
    probabilities = probabilities / probabilities.sum(axis=1, keepdims=True)
    assert found["loss"] == pytest.approx(
        sklearn.log_loss(labels, probabilities, labels=classes), abs=1e-4
    )
    for k in (2, 3, 5):
        theirs = sklearn.top_k_accuracy_score(labels, probabilities, k=k, labels=classes)
        assert found[f"top_{k}_accuracy"] == pytest.approx(theirs, abs=1e-6)


@pytest.mark.promise
@pytest.mark.thorough
def test_scores_and_predictions_of_a_run(folder, shared, capsys):
    model = load_run(folder)
    (table, probabilities, labels) = table_of(folder)
    found = model.summary["scores"]
    assert 0 < model.summary["evaluate_seconds"] <= model.summary["train_seconds"]
    assert found["round"] == model.round and found["accuracy"] == pytest.approx(
        model.metrics["test_accuracy"]
    )
    assert_equal_to_sklearn(found, labels, probabilities)
    # The file has what `predict` gives for the same images, and says which they are.
    digits = data.load("digits").train
    images = digits.x[table["row"]]
    rows = table["row"].to_numpy()
    np.testing.assert_allclose(model.predict(images), probabilities, atol=1e-6)
    np.testing.assert_array_equal(digits.y[rows], labels)
    assert (table["prediction"].astype(int) == probabilities.argmax(axis=1)).all()
    # Without the temperature they are those of the round's evaluation.
    assert model.temperature == pytest.approx(found["temperature"]) and found["temperature"] != 1
    plain = np.log(model.predict(images, calibrated=False))
    assert -plain[np.arange(len(labels)), labels].mean() == pytest.approx(
        model.metrics["test_loss"], rel=1e-4
    )
    assert found["uncalibrated_loss"] == pytest.approx(model.metrics["test_loss"], rel=1e-5)
    assert found["uncalibrated_ece"] == pytest.approx(model.metrics["test_ece"], abs=1e-5)
    assert load_run(folder, "last").temperature == (model.temperature if model.round == 2 else None)
    np.savez(folder.parent / "some.npz", inputs=images[:3])
    for option in ([], ["--uncalibrated"]):
        assert cli.main(["predict", str(folder), str(folder.parent / "some.npz"), *option]) == 0
        assert ("temperature" in capsys.readouterr().err) == (not option)
    # A start of the complete run leaves it as it is.
    run(experiment(), folder, shared=shared, quiet=True)
    assert load_run(folder).temperature == model.temperature


@pytest.mark.promise
@pytest.mark.thorough
def test_scores_of_every_client(folder):
    table, probabilities, labels = table_of(folder)
    clients = pd.read_csv(folder / "test_scores_by_client.csv").set_index("client")
    assert sorted(clients.index) == sorted(table["client"].unique()) and len(clients) == 3
    for name, row in clients.iterrows():
        own = (table["client"] == name).to_numpy()
        p = (probabilities[own].argmax(axis=1) == labels[own]).mean()
        n = own.sum()
        assert row["examples"] == n and row["accuracy"] == pytest.approx(p, abs=1e-6)
        recall = sklearn.recall_score(
            labels[own], probabilities[own].argmax(axis=1), average=None, labels=range(10)
        )
        there = row["support_0":"support_9"].to_numpy() > 0
        np.testing.assert_allclose(
            row["recall_0":"recall_9"].to_numpy(float)[there], recall[there], atol=1e-6
        )
        # Wilson 1927, equation by hand.
        z = 1.959964
        center = p + z * z / (2 * n)
        half = z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        ends = (center - half) / (1 + z * z / n), (center + half) / (1 + z * z / n)
        assert (row["accuracy_low"], row["accuracy_high"]) == pytest.approx(ends, abs=1e-5)


@pytest.mark.promise
@pytest.mark.thorough
def test_classes_that_are_never_there_or_never_predicted():
    log_probs = np.log(np.array([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.5, 0.4, 0.1]]))
    found = scores(log_probs, np.array([0, 0, 2]))
    assert found["recall"] == [1.0, None, 0.0] and found["precision"] == [0.666667, None, None]
    assert found["f1"] == [0.8, None, 0.0] and found["accuracy_high"] < 1.0


@pytest.mark.promise
@pytest.mark.thorough
def test_a_temperature_is_found_again_and_none_where_nothing_is_wrong():
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(20_000, 4)) * 2
    true = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (generator.random((20_000, 1)) > true.cumsum(axis=1)).sum(axis=1)
    assert fit_temperature(scaled(3 * logits, 1.0), labels) == pytest.approx(3.0, rel=0.05)
    assert fit_temperature(scaled(logits, 1.0), logits.argmax(axis=1)) is None


@pytest.mark.thorough
@pytest.mark.promise
def test_clients_own_models_predict_their_examples(tmp_path):
    fields = {
        "rounds": 2,
        "eval_every": 2,
        "data.test_clients": 0,
        "data.client_test_fraction": 0.3,
    }
    summary = run(load_config("digits", fields | {"federated.name": "local"}), tmp_path, quiet=True)
    assert summary["scores"]["model"] == "clients' own" and "temperature" not in summary["scores"]
    model = load_run(tmp_path)
    (table, probabilities, _) = table_of(tmp_path)
    images = data.load("digits").train.x
    for name in table["client"].unique()[:2]:
        own = (table["client"] == name).to_numpy()
        expected = model.predict(images[table["row"][own]], client=name)
        np.testing.assert_allclose(expected, probabilities[own], atol=1e-6)


@pytest.mark.promise
@pytest.mark.thorough
def test_the_file_is_written_as_asked_for(tmp_path, shared, capsys, monkeypatch):
    monkeypatch.setattr("fedjax_ssl.runs.scores.MOST_NUMBERS", 100)
    for asked, said in (
        ("auto", "config.test_predictions=all writes them"),
        ("none", ""),
        ("all", ""),
    ):
        (tmp_path / "summary.json").unlink(missing_ok=True)
        run(experiment(test_predictions=asked), tmp_path, shared=shared)
        assert said in capsys.readouterr().out
        assert (tmp_path / "test_predictions.csv").exists() == (asked == "all")


@pytest.mark.promise
@pytest.mark.thorough
def test_one_class_for_all_test_examples_is_said():
    labels = np.arange(40) % 2
    client = np.arange(40) // 20
    names = ["north", "south"]
    config = {"partition": {"name": "natural"}, "data": {"standardize": "auto"}}
    known = {"labels": labels, "client": client, "names": names, "classes": "ab"}
    said = functools.partial(one_class, **known, config=config)
    (note,) = said(np.zeros(40, int))
    assert note.startswith("the model predicts 'a' for all 40 test examples")
    assert "--data.standardize=client" in note
    by_client = {**config, "data": {"standardize": "client"}}
    (note,) = one_class(np.zeros(40, int), **known, config=by_client)
    assert note.endswith("learned nothing: train longer, or at another learning rate")
    (note,) = said(np.where(client == 1, 1, labels))
    assert note.startswith("one class is predicted for all test examples of south:")
    assert not said(labels) and not said(np.where(np.arange(40) < 9, 0, labels))
    # classes that are not there, and a handful of examples, say nothing
    assert not one_class(labels * 0, labels * 0, client, names, "ab", config)
    assert not one_class(labels[:8] * 0, labels[:8], client[:8], names, "ab", config)
